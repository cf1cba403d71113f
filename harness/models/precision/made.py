"""Converts a model to int8 or fp16 with the framework's tools. The cache key covers everything that the conversion
depends on.

Runs in a separate process (harness/core/child.py). int8 means post-training quantisation, with activation ranges from
samples.
"""

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from harness.core.config.run_config import RunConfig, from_plain
from harness.core.console import say
from harness.core.files import cache_dir, cached_file, read_json, write_json
from harness.errors import ConfigError, HarnessError, PluginUnavailable, one_line
from harness.loadgen.plan import InstanceGroup
from harness.models.manifest.files import sha256_alone
from harness.models.manifest.lookup import load_model
from harness.models.manifest.model import Model
from harness.models.network.files import of_onnx, of_openvino
from harness.models.network.tflite import of_tflite
from harness.models.opened.loading import batch_in_file, inputs_of, model_file, open_backends
from harness.models.precision import onnx, tflite, torchscript
from harness.models.precision.samples import QuantisationSamples, quantisation_samples

_BATCH = 8


class Maker(Protocol):
    """A module that writes one file format."""

    SOURCE: str
    """The format of the source file."""
    BACKEND: str
    """The backend that reads the written format."""
    TITLE: str
    """Name of the tool, for messages."""
    SUFFIX: str
    """Suffix of the written files."""

    def require(self, precision: str, /) -> None:
        """Raises PluginUnavailable if a tool is missing. Does not import the tools."""

    def check(self, precision: str, source: Path, /) -> None:
        """Raises ConfigError if the source cannot be converted."""

    def recipe(self, precision: str, source: Path, /) -> dict[str, Any]:
        """Returns the versions and settings that, together with the source and the samples, determine the file."""

    def write(
        self,
        source: Path,
        path: Path,
        samples: QuantisationSamples | None,
        recipe: Mapping[str, Any],
        /,
    ) -> None:
        """Writes the file. Raises ConfigError if the conversion does not change the model, and passes on the tools'
        errors. samples: only used for int8.
        """

    def describe(self, path: Path, recipe: Mapping[str, Any], /) -> dict[str, Any]:
        """Returns `kernels`, which counts the operators by name ({} if unknown), and `about`, a sentence about the
        file.
        """


MAKERS: Mapping[str, Maker] = {"onnx": onnx, "tflite": tflite, "torchscript": torchscript}


def make(request: Mapping[str, Any]) -> dict[str, Any]:
    """Creates the file for a request, or finds it in the cache.

    request: contains the `config` of a run, `format` (a key of MAKERS), `precision` (int8 or fp16), `synthetic`
    (whether no sample is scored), `calibration_dir` (may be null), and `scored` (the scored dataset indices; null or
    missing means all).

    Returns `file`, its `sha256`, the `source_sha256`, the `recipe`, and the maker's description.
    """
    precision, maker = request["precision"], MAKERS[request["format"]]
    requested = from_plain(request["config"])
    config = replace(requested, backend=maker.BACKEND, backend_option=())
    model = load_model(config.model)
    if precision == "int8" and (own := _own_int8(requested, model)) is not None:
        return own
    maker.require(precision)
    source = _source(model, maker, precision)
    recipe = {
        "precision": precision,
        "source_sha256": model.sha256(source),
        **maker.recipe(precision, source),
    }
    samples = None
    if precision == "int8":
        samples = _samples(config, model, source, request)
        feeds = [model.in_file(source, feed) for feed in samples.feeds]
        samples = samples._replace(feeds=feeds)
        recipe |= {
            "samples": samples.about,
            "samples_count": samples.total,
            "samples_are_scored": samples.are_scored,
            "samples_sha256": samples.sha256,
        }
    key = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:24]
    path = cache_dir() / "precisions" / key / f"{source.stem}-{precision}{maker.SUFFIX}"
    record = path.with_suffix(".json")
    if path.is_file() and record.is_file():
        kept = dict(read_json(record))
        if kept.get("sha256") == sha256_alone(path):
            return {**kept, "file": str(path)}
    with cached_file(path) as temporary:
        _write(maker, source, temporary, samples, recipe)
    content = {
        "precision": precision,
        "sha256": sha256_alone(path),
        "source_sha256": recipe["source_sha256"],
        "recipe": recipe,
        **maker.describe(path, recipe),
    }
    write_json(record, content)
    return {**content, "file": str(path)}


def _own_int8(config: RunConfig, model: Model) -> dict[str, Any] | None:
    """Returns the model's original file for this backend if that file has 8-bit integer weights, else None."""
    try:
        path = model_file(config, model)
        types = _weight_types(path) if path is not None else ()
    # A missing or unreadable file is ignored, because opening it reports the same error later.
    except HarnessError:
        return None
    if path is None or not {"int8", "uint8"} & set(types):
        return None
    return {
        "precision": "int8",
        "sha256": model.sha256(path),
        "source_sha256": model.sha256(path),
        "recipe": {"precision": "int8", "file": "the model's own"},
        "kernels": {},
        "about": f"the model's own file, {path.name}, which is quantised already",
        "file": str(path),
    }


def _weight_types(path: Path) -> Sequence[str]:
    """Returns the number types of the weights, or () for a format that is not supported."""
    readers = {".onnx": of_onnx, ".tflite": of_tflite, ".xml": of_openvino}
    return readers[path.suffix](path).types if path.suffix in readers else ()


def _source(model: Model, maker: Maker, precision: str) -> Path:
    files = model.manifest.files if model.manifest else None
    if files is not None and maker.SOURCE not in files:
        have = ", ".join(files) or "none"
        raise ConfigError(
            f"{precision} is made from a file in the format {maker.SOURCE}, but model {model.name!r} "
            f"has none: it has {have}"
        )
    model.obtain((maker.SOURCE,), say)
    source = model.path((maker.SOURCE,))
    assert source is not None
    maker.check(precision, source)
    return source


def _samples(
    config: RunConfig, model: Model, source: Path, request: Mapping[str, Any]
) -> QuantisationSamples:
    with ExitStack() as stack:
        (backend,) = open_backends(config, model, source, InstanceGroup(1, 1, _BATCH), stack)
        inputs = inputs_of(model, backend)
        batch = batch_in_file(backend, inputs) or _BATCH
    folder = request["calibration_dir"]
    return quantisation_samples(
        config,
        model,
        inputs,
        batch,
        Path(folder) if folder is not None else None,
        synthetic=request["synthetic"],
        scored=request.get("scored"),
    )


def _write(
    maker: Maker,
    source: Path,
    path: Path,
    samples: QuantisationSamples | None,
    recipe: Mapping[str, Any],
) -> None:
    """Writes the file, and suppresses the tools' warnings, which are meant for people who call the tools directly."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            maker.write(source, path, samples, recipe)
    except (ConfigError, PluginUnavailable, MemoryError, OSError):
        raise
    except Exception as e:  # the tools' exceptions share no base class
        why = one_line(e) or type(e).__name__
        raise ConfigError(f"{source}: {maker.TITLE} cannot convert it: {why}") from e
