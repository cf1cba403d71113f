"""Opens backends and datasets from a configuration, and names the plug-in in each error."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from harness.core import registry
from harness.core.config.parse import ELSEWHERE, HUB, each_device
from harness.core.config.run_config import RunConfig
from harness.core.console import program
from harness.core.files import cache_dir
from harness.core.registry import plugin
from harness.core.units import counted
from harness.errors import ConfigError, HarnessError, PluginUnavailable, refuse
from harness.loadgen.plan import InstanceGroup
from harness.machine.threads import running_on
from harness.models.generation.backend import GeneratingBackend
from harness.models.generation.speech import SpeechBackend
from harness.models.manifest.files import files_of
from harness.models.manifest.hook import check_hook
from harness.models.manifest.lookup import is_path, load_model, named_models
from harness.models.manifest.model import Model
from harness.models.opened import separate_instance
from harness.models.opened.isolation import PROCESSES_OPTION, is_separate
from harness.models.opened.remote import BLOCKING, remote_class
from harness.models.opened.separate_instance import Declared, SeparateInstance
from harness.models.sequences.backend import SequenceBackend
from harness.models.tables.tables import FORMATS, tables_of
from harness.types import (
    BATCH_FIRST,
    OTHER_NAMES,
    Backend,
    BackendSetup,
    Batch,
    Dataset,
    DatasetSetup,
    HasOutputs,
    HasSignature,
    Shape,
    Step,
    Table,
    TensorSpec,
    fixed_batch,
    show_shape,
)
from harness.wire.remote_backend import RemoteBackend

FORMAT_OPTION = "format"
"""A backend option that the harness handles. The option sets the format of the model file that the backend receives."""


def unknown_names(values: Mapping[str, Any]) -> Iterator[str]:
    """Yields problems with the names of plug-ins, the model and its hook. Does not import anything."""
    for kind in ("backend", "dataset", "metric"):
        try:
            if values.get(kind) is not None:
                registry.check_name(kind, values[kind])
        except HarnessError as e:
            yield str(e)
    if "model" in values:
        try:
            check_hook(load_model(values["model"]), values.get("hook"))
        except ConfigError as e:
            yield f"{e}{_of_server(values)}"


def _of_server(values: Mapping[str, Any]) -> str:
    """Returns the end of the message for an unknown --model, which may be a model on the server of --url."""
    model, urls = values["model"], values.get("url")
    if not urls or model.startswith(ELSEWHERE) or is_path(model) or model in named_models():
        return ""
    source = "docs/manifest.md explains how to write one"
    if values.get("backend") == "kserve":
        source = f"`{program()} probe {urls[0]}` prints one"
    return f"; a model of the server needs a manifest, --model FILE.yaml: {source}"


def missing_data(path: Path | None) -> list[str]:
    """Returns one problem if the folder of --data-dir is missing or cannot be read, or an empty list."""
    if path is None or str(path).startswith(HUB):
        return []
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return [f"--data-dir {path} does not exist"]
    except OSError as e:  # the user has no permission to enter a parent folder
        return [f"--data-dir {path} cannot be read: {e.strerror}"]
    return []


def declared(config: RunConfig) -> Declared:
    """Returns the declarations in the backend's class. A third-party plug-in that runs in separate processes is not
    imported into the current process.
    """
    if is_separate(config) and registry.is_foreign("backend", config.backend):
        return separate_instance.declared(config.backend)
    return separate_instance.declared_by(config.backend)


def model_file(config: RunConfig, model: Model) -> Path | None:
    """Returns the model file in the backend's preferred format, or in the format of `--backend-option format=NAME`.

    Returns None if the backend does not read a file. A configuration may name another file, which contains the same
    model in another precision.
    """
    if config.model_file is not None:
        # This call raises an error for a damaged file before a framework reads the file.
        files_of(config.model_file)
        return config.model_file
    return model.path(wanted_formats(config, declared(config).formats))


def wanted_formats(config: RunConfig, formats: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the backend's formats, or only the format of `--backend-option format=NAME`.

    Raises ConfigError if the backend does not read this format. formats: the formats that the backend reads.
    """
    chosen = dict(config.backend_option).get(FORMAT_OPTION)
    if chosen is None or not formats:
        return formats
    if chosen not in formats:
        raise ConfigError(
            f"--backend-option {FORMAT_OPTION}: backend {config.backend!r} reads "
            f"{', '.join(formats)}, not {chosen!r}"
        )
    return (chosen,)


@contextmanager
def _formats_missing(formats: Sequence[str], model: Model, path: Path | None) -> Iterator[None]:
    """Explains in the error that a plug-in receives no file unless it declares `formats`."""
    try:
        yield
    except PluginUnavailable as e:
        of_none = "None" in str(e) or "raised AssertionError" in str(e)
        if path is not None or formats or not of_none:
            raise
        there = ", ".join(model.manifest.files) if model.manifest else "a file without a manifest"
        raise PluginUnavailable(
            f"{e} (setup.model is None because the class declares no `formats`; {model.name!r} has "
            f"{there}: write e.g. formats = ('onnx',) in the class)"
        ) from e.__cause__


_OF_TOKENS = "openai"
"""The backend whose option sets the maximum number of tokens in an answer."""

_OF_SERVICES = "http-json"
"""The backend whose options describe an HTTP service."""


def _options_in_manifest(backend: str, model: Model) -> dict[str, str]:
    """Returns the backend options that the manifest sets. --backend-option overrides them."""
    manifest = model.manifest
    if manifest is None:
        return {}
    if backend == _OF_TOKENS and manifest.max_tokens is not None:
        return {"max_tokens": str(manifest.max_tokens)}
    if backend == _OF_SERVICES and manifest.service is not None:
        return manifest.service.options()
    return {}


def open_backends(
    config: RunConfig,
    model: Model,
    path: Path | None,
    spec: InstanceGroup,
    stack: ExitStack,
    load_s: list[float] | None = None,
    cpus: tuple[int, ...] = (),
) -> list[Backend]:
    """Opens one backend per instance.

    `stack` closes the backends. load_s: list that receives the load time of each backend. cpus: see BackendSetup.
    """
    formats, of_one_process, holds_gil = declared(config)
    options = dict(config.backend_option)
    if formats:
        options.pop(FORMAT_OPTION, None)
    alone = not holds_gil or spec.instances == 1 or PROCESSES_OPTION in options
    in_processes = is_separate(config) or not alone
    options.pop(PROCESSES_OPTION, None)
    options = {**_options_in_manifest(config.backend, model), **options}
    setup = BackendSetup(
        model=path,
        model_name=model.name,
        inputs=model.file_inputs,
        names=model.names_in(path) if path is not None else {},
        threads=spec.threads,
        instances=1 if in_processes else spec.instances,
        max_batch=spec.max_batch,
        owns_cores=spec.owns_cores,
        cpus=cpus,
        device=config.device,
        provider=config.provider,
        provider_options=dict(config.provider_option),
        options=options,
    )
    cls: Callable[[BackendSetup], Backend]
    count = spec.instances
    if model.generates and not config.url:
        _refuse_batches(config, model, in_processes=in_processes)
    if model.layout is not None:
        _refuse_layout(config, model, in_processes=in_processes)
    if in_processes:
        _refuse_sharing(config.backend, of_one_process, options)
        cls = partial(SeparateInstance, config.backend)
    else:
        chosen = registry.load("backend", config.backend)
        remote = remote_class(config, chosen, spec.connections)
        cls = remote or (_around(chosen, model) if formats else chosen)
        if remote is not None:
            count = min(BLOCKING, spec.connections)
    backends: list[Backend] = []
    devices = each_device(config.device)
    for i in range(count):
        start = time.monotonic()
        own_cpus = spec.pinned[i] if spec.pinned else ()
        what = f"backend {config.backend!r}, loading {model.name!r},"
        with _formats_missing(formats, model, path), plugin(what), running_on(own_cpus):
            first = backends[0] if backends else None
            twin = first.twin() if isinstance(first, RemoteBackend) else None
            own = replace(setup, device=devices[i % len(devices)])
            backends.append(registry.entered(config.backend, stack.enter_context(twin or cls(own))))
        if load_s is not None:
            load_s.append(time.monotonic() - start)
    return backends


def _around(
    chosen: Callable[[BackendSetup], Backend], model: Model
) -> Callable[[BackendSetup], Backend]:
    """Returns the backend, or a wrapper that processes prompts, recordings or sequences.

    chosen: the backend that computes one step of the model file.
    """
    if model.generation is not None:
        return partial(GeneratingBackend, chosen, model.generation)
    if model.transcription is not None:
        return partial(SpeechBackend, chosen, model.transcription)
    return chosen if model.layout is None else partial(SequenceBackend, chosen, model.layout)


def _refuse_batches(config: RunConfig, model: Model, *, in_processes: bool) -> None:
    """Raises an error for options that make no sense for a model without batches."""
    options = {
        f"--backend-option {PROCESSES_OPTION}=on": in_processes,
        "--dispatch deadline": config.dispatch == "deadline",
        "--batch-wait": bool(config.batch_wait_ns),
    }
    for option in (name for name, is_given in options.items() if is_given):
        raise ConfigError(
            f"model {model.name!r} generates its answers token by token, without batches: drop {option}"
        )


def _refuse_layout(config: RunConfig, model: Model, *, in_processes: bool) -> None:
    """Raises an error for servers and separate processes, which support only batches of samples."""
    named = {f"--backend-option {PROCESSES_OPTION}=on": in_processes, "--url": bool(config.url)}
    for option in (option for option, is_given in named.items() if is_given):
        raise ConfigError(
            f"model {model.name!r} has states, constants or other batch axes, which the harness feeds only to a model in "
            f"its own process: drop {option}"
        )


def _refuse_sharing(
    backend: str, of_one_process: Sequence[str], options: Mapping[str, str]
) -> None:
    """Raises an error for options that have no effect between processes but would be reported as active."""
    for name in of_one_process:
        if options.get(name) == "on":
            raise ConfigError(
                f"--backend-option {name}=on applies to the instances of one process, but "
                f"{PROCESSES_OPTION}=on runs each instance of backend {backend!r} in a separate process: drop one"
            )


def inputs_of(model: Model, backend: Backend, *, qdl: bool = False) -> tuple[TensorSpec, ...]:
    """Returns the manifest's inputs, or the file's inputs without a manifest. The first dimension of each input is
    the batch.

    qdl: whether the backend returns complete answers instead of the manifest's outputs. Raises ConfigError if the
    manifest and the file differ.
    """
    inputs = model.inputs
    if isinstance(backend, HasSignature):
        in_file = backend.signature()
        declared = {s.name for s in inputs}
        if declared and declared != {s.name for s in in_file}:
            remote = isinstance(backend, RemoteBackend)
            raise ConfigError(
                f"model {model.name!r}: the manifest's inputs are {sorted(declared)}, but the "
                f"{'server' if remote else 'file'}'s are {sorted(s.name for s in in_file)}: "
                + ("name the server's model with --model" if remote else OTHER_NAMES)
            )
        _check_declared(model, in_file)
        _check_batches(in_file)
        inputs = inputs or in_file
    _check_batches(inputs)
    names = backend.outputs() if isinstance(backend, HasOutputs) else ()
    if qdl and len(names) > 1:
        raise ConfigError(
            f"--qdl: the server's model has the outputs {', '.join(names)}, but it must return only the answer, "
            "because a QDL may not postprocess: use e.g. `serve --postprocess`"
        )
    if names and not qdl and model.output is not None and model.output.name not in names:
        raise ConfigError(
            f"model {model.name!r}: the manifest's output {model.output.name!r} is not among the "
            f"file's outputs ({', '.join(names)})"
            + ("" if isinstance(backend, RemoteBackend) else f": {OTHER_NAMES}")
        )
    return inputs


def _check_declared(model: Model, specs: Sequence[TensorSpec]) -> None:
    """Raises an error if the declared types or shapes differ from the file's, because some frameworks would truncate
    values.
    """
    in_file = {spec.name: spec for spec in specs}
    problems = [
        f"model {model.name!r}: the manifest's input {name!r} is {dtype} {show_shape(shape)}, but "
        f"the file's is {in_file[name].dtype} {show_shape(in_file[name].shape)}"
        for name, dtype, shape in model.inputs
        if dtype != in_file[name].dtype or not _alike(shape, in_file[name].shape)
    ]
    if problems:
        raise ConfigError("\n".join(problems))


def _alike(a: Shape, b: Shape) -> bool:
    """Returns whether the shapes agree. Only the batch size may differ, because the file may contain a fixed batch
    size.
    """
    pairs = zip(a[1:], b[1:], strict=False)
    return len(a) == len(b) and not any(
        isinstance(x, int) and isinstance(y, int) and x != y for x, y in pairs
    )


def batch_in_file(backend: Backend, inputs: Sequence[TensorSpec]) -> int | None:
    """Returns the fixed batch size in samples, or None if the model accepts any number of samples."""
    return fixed_batch(backend.signature() if isinstance(backend, HasSignature) else inputs)


def _check_batches(inputs: Sequence[TensorSpec]) -> None:
    for spec in inputs:
        if not spec.shape or (len(spec.shape) == 1 and isinstance(spec.shape[0], int)):
            none = "" if spec.shape else " (or the file records none)"
            raise ConfigError(
                f"input {spec.name!r} of the model has the shape {show_shape(spec.shape)}{none}, in which no "
                f"dimension is the batch: {BATCH_FIRST}"
            )
    fixed_batch(inputs)


def open_dataset(
    config: RunConfig,
    model: Model,
    name: str,
    inputs: Sequence[TensorSpec],
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    steps: Mapping[str, tuple[Step, ...]] | None = None,
) -> Dataset:
    """Opens a dataset. inputs: the result of `inputs_of`. progress: called while the dataset loads.

    steps: preprocessing steps by input, which replace the manifest's steps. Results of replaced steps are not cached.
    """
    cls = registry.load("dataset", name)
    refuse(_unknown_options(cls, name, dict(config.dataset_option)))
    setup = DatasetSetup(
        inputs=tuple(inputs),
        steps=model.steps if steps is None else steps,
        data_dir=config.data_dir,
        model_dir=model.folder,
        cache_dir=cache_dir() if steps is None else None,
        shapes=dict(config.input_shape),
        lengths=dict(config.lengths),
        ranges=dict(config.input_range),
        options=dict(config.dataset_option),
        tables=partial(_tables, config, model),
        seed=config.seed or 0,
        progress=progress,
    )
    with plugin(f"dataset {name!r}"):
        dataset: Dataset = cls(setup)
        if len(dataset) < 1:
            raise ConfigError(f"dataset {name!r} is empty: nothing can be measured")
        return dataset


class OpenModel(NamedTuple):
    """A model with its opened backends and dataset."""

    path: Path | None
    """The model's file, or None if the backend does not read a file."""
    backends: Sequence[Backend]
    """The backends, one for each instance."""
    inputs: Sequence[TensorSpec]
    """The result of `inputs_of`."""
    fixed: int | None
    """The batch size that the file requires, or None if the model accepts any number of samples."""
    dataset: Dataset


def open_model(
    config: RunConfig,
    model: Model,
    dataset: str,
    spec: InstanceGroup,
    stack: ExitStack,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> OpenModel:
    """Opens the backends and the dataset; `stack` closes the backends. progress: called while the dataset loads."""
    path = model_file(config, model)
    backends = open_backends(config, model, path, spec, stack)
    inputs = inputs_of(model, backends[0])
    fixed = batch_in_file(backends[0], inputs)
    data = open_dataset(config, model, dataset, inputs, progress)
    return OpenModel(path, backends, inputs, fixed, data)


def _unknown_options(cls: Any, name: str, given: Mapping[str, str]) -> Iterator[str]:
    known = tuple(getattr(cls, "options", ()))
    for option in sorted(given.keys() - set(known)):
        near = get_close_matches(option, known, n=1)
        has = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known) or 'none'}"
        yield f"--dataset-option {option}: dataset {name!r} does not have this option: {has}"


def _tables(config: RunConfig, model: Model) -> Mapping[str, Table]:
    """Returns the tables whose rows the model's inputs select.

    Reads the tables from the model's first file in a supported format, regardless of the file that the backend loads.
    Runs of one model on several backends therefore get the same data. The file of --model-file, which contains the same
    model in a different precision, is read last.
    """
    paths = []
    for name in FORMATS:
        if model.may_have(name):
            # a missing file is acceptable if the backend does not need this file
            with suppress(HarnessError):
                paths.append(model.path((name,)))
    for path in (*paths, config.model_file):
        if path is not None and (tables := tables_of(path)):
            of_file = {own: name for name, own in model.names_in(path).items()}
            return {of_file.get(own, own): table for own, table in tables.items()}
    return {}


def check_tables(config: RunConfig, model: Model, batch: Batch) -> None:
    """Raises ConfigError if an integer in the batch selects a row that is missing in the model's table."""
    for name, table in _tables(config, model).items():
        rows = batch.inputs.get(name)
        if rows is None or rows.dtype.kind not in "iu" or not rows.size:
            continue
        if (most := int(rows.max())) >= table.rows:
            raise ConfigError(
                f"input {name!r} contains {most}, but the model's {table.operator} table has "
                f"{counted(table.rows, 'row')}, numbered 0 to {table.rows - 1}: the data do not fit the model"
            )


def samples_held(dataset: Dataset, name: str, limit: int | None) -> int:
    """Returns the number of samples that are in memory during a performance run."""
    count = len(dataset)
    with plugin(f"dataset {name!r}: performance_count"):
        own = int(getattr(dataset, "performance_count", count))
        if own < 1:
            raise ValueError(f"{own} must be at least 1")
    return min(limit or own, count)


def described(backend: Backend, backend_name: str, dataset: Dataset, name: str) -> dict[str, Any]:
    """Returns the descriptions of the backend and the dataset, as JSON values."""
    with plugin(f"backend {backend_name!r}: describe()"):
        about_backend = plain(backend.describe())
    with plugin(f"dataset {name!r}: describe()"):
        return {"backend": about_backend, "dataset": plain(dataset.describe())}


def plain(about: Mapping[str, object]) -> dict[str, Any]:
    """Returns the description as JSON values. Converts a value that JSON cannot represent to a string."""
    text = json.dumps(dict(about), default=str)
    # NaN and Infinity become strings, because they are not JSON.
    values: dict[str, Any] = json.loads(text, parse_constant=str)
    return values
