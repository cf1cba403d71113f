"""Opens the model that `cold` starts, and measures the time to fetch its file."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from harness.core import registry
from harness.core.config.run_config import RunConfig, make_config
from harness.core.console import say
from harness.errors import ConfigError, refuse
from harness.explain.cold.options import ColdOptions
from harness.machine.cores import available
from harness.models.manifest.defaults import default_dataset
from harness.models.manifest.fetch import fetch_source
from harness.models.manifest.files import size_bytes
from harness.models.manifest.lookup import load_model
from harness.models.manifest.model import Model
from harness.models.opened.loading import (
    FORMAT_OPTION,
    declared,
    missing_data,
    model_file,
    open_dataset,
    unknown_names,
)


class Subject(NamedTuple):
    """The model that `cold` starts. fetched: contains `ns` and `bytes` of the fetch, or `absent` with the reason."""

    config: RunConfig
    model: Model
    path: Path
    dataset: str
    threads: int
    fetched: Mapping[str, Any]


def open_subject(options: ColdOptions, values: Mapping[str, Any]) -> Subject:
    """Opens the model.

    values: the options shared with a run, as fields of RunConfig. Raises one ConfigError that lists all problems.
    """
    problems = [*unknown_names(values), *missing_data(values.get("data_dir"))]
    config = make_config({"scenario": "offline", **values}, problems)
    model = load_model(config.model)
    refuse(list(_problems(config, model)))
    fetched = _obtain(config, model, again=options.fetch)
    path = model_file(config, model)
    if path is None:
        raise ConfigError(
            f"backend {config.backend!r} reads no model file: there is no cold start to measure"
        )
    dataset = config.dataset or default_dataset(model)
    # The dataset can be checked at this point only if a manifest exists, because otherwise only the backend knows the
    # model's inputs.
    if model.manifest is not None:
        # This call refuses a wrong dataset before any conversion.
        open_dataset(config, model, dataset, model.inputs)
    threads = options.threads or available().planned
    return Subject(config, model, path, dataset, threads, fetched)


def _problems(config: RunConfig, model: Model) -> Iterator[str]:
    if config.backend in registry.REMOTE_BACKENDS:
        yield f"--backend {config.backend} loads the model on a server, but cold measures this machine: name a local backend"
    elif config.backend == "null":
        yield "--backend null loads no model: name a framework, e.g. ort"
    if model.generates:
        yield f"model {model.name!r} generates its answers token by token: cold measures models with one answer per sample"


def _obtain(config: RunConfig, model: Model, *, again: bool) -> Mapping[str, Any]:
    """Fetches or makes the file if it is missing. again: whether to fetch the file a second time and then delete the
    second copy.
    """
    formats = declared(config).formats
    chosen = dict(config.backend_option).get(FORMAT_OPTION)
    formats = (chosen,) if chosen in formats else formats
    was_missing = model.may_have_to_be_obtained
    begun_ns = time.monotonic_ns()
    model.obtain(formats, say)
    spent_ns = time.monotonic_ns() - begun_ns
    addresses = list(_addresses(model, formats))
    if not addresses:
        return {"absent": "the model has no download URL: its file is on this machine"}
    if was_missing and (path := model.path(formats)) is not None:
        return {"ns": spent_ns, "bytes": size_bytes(path)}
    if not again:
        return {"absent": "the file is already on this machine; --fetch downloads it again"}
    with TemporaryDirectory(prefix="harness-cold-") as folder:
        begun_ns = time.monotonic_ns()
        for number, (address, sha256) in enumerate(addresses):
            fetch_source(address, sha256, Path(folder) / str(number), say, again=True)
        spent_ns = time.monotonic_ns() - begun_ns
        return {"ns": spent_ns, "bytes": size_bytes(Path(folder))}


def _addresses(model: Model, formats: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yields the address and SHA-256 digest of each part of the file that a run reads."""
    files = model.manifest.files if model.manifest else {}
    name = next((name for name in formats if name in files), None)
    if name is None:
        return
    file = files[name]
    if file.source is not None and file.sha256 is not None:
        yield file.source, file.sha256
    for part in file.external:
        if part.source is not None:
            yield part.source, part.sha256
