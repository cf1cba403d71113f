"""Writes the manifest of a model file, with the facts that the file records and with comments for the other fields."""

import os
import posixpath
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from harness.core import registry
from harness.core.config.parse import example_shape
from harness.core.console import frameworks_output, say
from harness.core.formats.strict_yaml import parse_yaml, yaml_of
from harness.core.registry import plugin
from harness.errors import ConfigError, HarnessError
from harness.models.manifest.candidates import name_of_file
from harness.models.manifest.files import files_of, sha256_alone, sha256_of, size_bytes
from harness.models.manifest.formats import BY_SUFFIX, FORMATS, Format, check, format_of
from harness.models.manifest.lookup import parse_manifest
from harness.models.manifest.model import Model
from harness.models.manifest.package_model import package_model
from harness.models.opened import decoders, engine_files
from harness.models.opened.loading import inputs_of
from harness.models.packages.name import PackageName
from harness.models.sequences.names import is_batch, paired
from harness.models.sequences.propose import GUESSED_SIZE, NO_SAMPLES, Proposal, propose
from harness.models.tables.tables import tables_of
from harness.types import (
    Backend,
    BackendSetup,
    Batch,
    DatasetSetup,
    HasOutputs,
    HasSignature,
    TensorSpec,
    fixed_batch,
)

DEFAULT_BATCH = 8
"""Number of samples per batch unless the manifest sets it."""

FRAMES = 32
"""Number of frames in a noise sequence for a model with states."""

UNRECORDED = {"torchscript": "TorchScript", "ncnn": "ncnn"}
"""Formats that do not record the number types of inputs, with each format's name in messages. Some of these formats do
not record shapes either.
"""

UNRECORDED_TYPES = ("float32", "int64")
"""Types to try, in this order, for inputs whose types the file does not record."""

Shapes = Mapping[str, tuple[int, ...]]
"""Maps an input's name to the shape of one sample, with a batch dimension of 1, as in --input-shape."""


def manifest_of(path: Path, manifest: Path, shapes: Shapes, backend: str | None = None) -> str:
    """Returns the text of the manifest. The file `manifest` is in the folder of the model file or in a parent folder.

    shapes: sizes of symbolic dimensions. backend: the backend that opens the file, or None for the usual backend of the
    file's format. Raises ConfigError or PluginUnavailable if the file cannot be opened or described.
    """
    place = os.path.relpath(path.absolute(), manifest.absolute().parent)
    if place.startswith(".."):
        raise ConfigError(
            f"{manifest} must be in the folder of {path} or above it: pass a different --out"
        )
    if path.exists():
        # This call raises an error for a wrong kind of file before a framework starts.
        check(path, FORMATS)
    return _manifest(path, place, manifest, shapes, backend)


def manifest_of_package(
    text: str, manifest: Path | None, shapes: Shapes, backend: str | None = None
) -> tuple[Path, str]:
    """Fetches a file from a package, and returns the path and text of its manifest.

    text: the value of --model. manifest: None to use the model's name. For the other parameters, see `manifest_of`.
    """
    model = package_model(text)
    name = model.package
    manifest = manifest or Path(f"{_plain_name(model.name)}.yaml")
    if manifest.exists():
        raise ConfigError(
            f"{manifest} already exists and will not be overwritten: pass a different --out"
        )
    model.obtain(tuple(FORMATS), say)
    path = model.path(tuple(FORMATS))
    assert path is not None
    assert name.file is not None  # the name of a fetched model always includes a file
    inside = posixpath.dirname(name.file) if path.is_dir() else name.file
    place = f"{name.short}-{name.version}/{inside}"
    return manifest, _manifest(path, place, manifest, shapes, backend, name)


def _manifest(
    path: Path,
    place: str,
    manifest: Path,
    shapes: Shapes,
    backend: str | None,
    source: PackageName | None = None,
) -> str:
    """Opens the file and returns its manifest. place: the value of `path` in the manifest. source: the package that
    contains the file.
    """
    kind = format_of(path)
    if kind is None:
        raise ConfigError(
            f"{path} is neither a model file ({', '.join(BY_SUFFIX)}) nor the folder of a SavedModel"
        )
    rest = [*_described(path, kind, shapes, backend)]
    text = "\n".join((*_lines(path, place, kind, source, rest), *rest)) + "\n"
    parse_manifest(parse_yaml(text), str(manifest))
    return text


def _described(path: Path, kind: Format, shapes: Shapes, backend: str | None) -> Iterator[str]:
    """Yields the manifest lines that follow `files`."""
    if kind.name in engine_files.FORMATS and backend in (None, kind.backend):
        # A token engine or speech engine does not report inputs, and starts only with such a manifest.
        if shapes:
            raise ConfigError(
                f"{path.name} takes prompts or audio of any length: drop --input-shape"
            )
        yield from engine_files.lines(path, kind.name)
        return
    with frameworks_output():
        found = _opened(path, kind, shapes, backend or kind.backend)
    if found.vocabulary:
        facts = engine_files.Facts(None, found.vocabulary, ())
        yield from engine_files.generation_lines(facts, of_engine=False)
    else:
        yield from _tensors(found, kind)


def _opened(path: Path, kind: Format, shapes: Shapes, backend: str) -> Proposal:
    """Returns the inputs with the sizes of `shapes`, and the outputs."""
    guesses: list[tuple[TensorSpec, ...]] = [()]
    if kind.name in UNRECORDED and shapes:
        guesses = [
            tuple(TensorSpec(name, dtype, ("batch", *row[1:])) for name, row in shapes.items())
            for dtype in UNRECORDED_TYPES
        ]
        # The model may refuse zeros in the guessed shapes, for example because a state has two layers. The last guess
        # therefore uses exactly the shapes that the user gives.
        guesses.append(
            tuple(TensorSpec(name, UNRECORDED_TYPES[0], row) for name, row in shapes.items())
        )
    error: HarnessError = ConfigError("")
    for guess in guesses:
        setup = BackendSetup(model=path, model_name=path.stem, inputs=guess, batch_axes={})
        try:
            return _signature(registry.load("backend", backend)(setup), path, shapes)
        except ConfigError as e:
            error = e
    if kind.name in UNRECORDED and not shapes and error.__cause__ is None:
        # An error without a cause means that the framework has loaded the file and only the shapes are missing.
        raise ConfigError(
            f"{error}; for this command their shapes are enough: --input-shape NAME=1x3x224x224"
        )
    raise error


def _signature(backend: Backend, path: Path, shapes: Shapes) -> Proposal:
    with ExitStack() as stack:
        with plugin(f"the backend, loading {path.name},"):
            stack.enter_context(backend)
        specs = backend.signature() if isinstance(backend, HasSignature) else ()
        if decoders.generates(specs):
            return decoders.proposal(backend, specs)
        if unknown := sorted(shapes.keys() - {spec.name for spec in specs}):
            names = ", ".join(spec.name for spec in specs)
            raise ConfigError(f"--input-shape {unknown[0]}: the model's inputs are {names}")
        for spec in (spec for spec in specs if spec.shape and spec.name in shapes):
            _sized(spec, shapes)  # this call raises ConfigError for sizes that do not fit
        try:
            inputs = inputs_of(Model(path.stem, None, path.parent, path), backend)
        except ConfigError as e:
            found, why = propose(backend, specs, shapes)
            if found is None:
                raise _without_proposal(e, why, specs, shapes) from e
            return found
        found = _stated(backend, specs, shapes)
        return found or _batch_first(backend, tuple(_sized(s, shapes) for s in inputs), path)


def _stated(backend: Backend, specs: Sequence[TensorSpec], shapes: Shapes) -> Proposal | None:
    """Returns a proposal if the file has states, or outputs without a batch. The inputs alone may not show this,
    because each of them could be a batch of samples.
    """
    names = backend.outputs() if isinstance(backend, HasOutputs) else ()
    has_pairs = len(specs) > 1 and paired(
        dict.fromkeys(s.name for s in specs), dict.fromkeys(names)
    )
    later = [size for spec in specs for size in _sizes_after(spec, shapes)]
    known = all(isinstance(size, int) for size in later)
    named = {size for size in later if isinstance(size, str)}
    firsts = {spec.shape[0] for spec in specs if spec.shape}
    # A size that is the first of one input and a later one of another is the batch, whatever its name.
    has_batch_behind = any(map(is_batch, named)) or bool(named & firsts)
    if not (has_pairs or known or has_batch_behind):
        return None
    found, _ = propose(backend, specs, shapes)
    return None if found is None or found.is_plain else found


def _sizes_after(spec: TensorSpec, shapes: Shapes) -> Sequence[int | str | None]:
    return shapes.get(spec.name, spec.shape)[1:]


def _batch_first(backend: Backend, inputs: tuple[TensorSpec, ...], path: Path) -> Proposal:
    named = backend.outputs() if isinstance(backend, HasOutputs) else ()
    outputs = named or _answered(backend, inputs, path)
    axes = {spec.name: 0 for spec in inputs}
    return Proposal(
        inputs=inputs,
        axes=axes,
        values={},
        states={},
        outputs=dict.fromkeys(outputs, 0),
        fixed=fixed_batch(inputs) or (1 if _takes_one_alone(backend, inputs) else None),
    )


def _takes_one_alone(backend: Backend, inputs: Sequence[TensorSpec]) -> bool:
    """Returns whether the model runs with one sample of zeros but not with a batch of two. Returns False if sizes are
    open.
    """
    shapes = {
        spec.name: [size for size in spec.shape[1:] if isinstance(size, int)] for spec in inputs
    }
    is_known = all(len(shapes[spec.name]) == len(spec.shape) - 1 for spec in inputs)
    if not is_known or any(spec.dtype == "string" for spec in inputs):
        return False
    dtypes = {spec.name: spec.dtype for spec in inputs}

    def answers(count: int) -> bool:
        zeros = {n: np.zeros((count, *rest), dtypes[n]) for n, rest in shapes.items()}
        try:
            backend.infer(Batch(count, zeros))
        except Exception:  # noqa: BLE001 - of a framework, which refuses this batch
            return False
        return True

    return not answers(2) and answers(1)


def _without_proposal(
    error: ConfigError, why: str, specs: Sequence[TensorSpec], shapes: Shapes
) -> ConfigError:
    """Returns the error for a file whose batch axes could not be found. why: the reason."""
    if why == NO_SAMPLES:
        return ConfigError(
            f"{str(error).partition(': let `init')[0]}: export the model with the batch as the first dimension"
        )
    is_open = [
        s for s in specs if s.name not in shapes and not all(isinstance(n, int) for n in s.shape)
    ]
    if not why or not is_open:
        return error
    return ConfigError(
        f"{str(error).partition(': let `init')[0]}: no batch axes and states were found with {GUESSED_SIZE} for each size "
        f"that the file leaves open ({why}): set the sizes, e.g. {example_shape(is_open[0])}"
    )


def _sized(spec: TensorSpec, shapes: Shapes) -> TensorSpec:
    """Returns the input with the sizes that `shapes` sets. Names an open batch axis `batch` if the axis has no name."""
    batch = "batch" if spec.shape[0] is None else spec.shape[0]
    sizes = shapes.get(spec.name, (1, *spec.shape[1:]))
    pairs = zip(spec.shape[1:], sizes[1:], strict=False)
    clash = any(isinstance(size, int) and size != other for size, other in pairs)
    if clash or len(sizes) != len(spec.shape):
        raise ConfigError(
            f"--input-shape {spec.name}={'x'.join(map(str, sizes))} does not fit the file's "
            f"[{', '.join(map(str, spec.shape))}]"
        )
    return TensorSpec(spec.name, spec.dtype, (batch, *sizes[1:]))


def _answered(backend: Backend, inputs: Sequence[TensorSpec], path: Path) -> Sequence[str]:
    """Returns output names for a file that does not record them: the names in the model's result for noise, or
    `output`.
    """
    if any(not isinstance(size, int) for spec in inputs for size in spec.shape[1:]):
        return ("output",)
    setup = DatasetSetup(inputs=tuple(inputs), tables=partial(tables_of, path))
    noise = registry.load("dataset", "synthetic")(setup)
    count = fixed_batch(inputs) or 1
    noise.load(range(count))
    batch: Batch = noise.batch(range(count))
    try:
        answer = backend.infer(batch)
    except Exception as e:  # the frameworks' own exceptions share no base class
        raise ConfigError(f"the model does not answer noise of this type: {e}") from e
    return tuple(answer) if isinstance(answer, Mapping) else ("output",)


def _plain_name(stem: str) -> str:
    """Returns a name that consists of letters, digits and `._-`. Removes accents, and replaces other characters with a
    single `-`.
    """
    letters = unicodedata.normalize("NFKD", stem)
    plain = "".join(letter for letter in letters if not unicodedata.combining(letter))
    return re.sub(r"[^A-Za-z0-9._-]+", "-", plain).strip("._-") or "model"


def _lines(
    path: Path,
    place: str,
    kind: Format,
    source: PackageName | None,
    rest: Sequence[str],
) -> Iterator[str]:
    """Yields the manifest lines up to `files`. rest: the lines that follow."""
    stem = path.stem if source is None else name_of_file(source.short, source.file or "")
    yield f"name: {_flow(_plain_name(stem))}"
    yield "# version: '1.0'"
    yield "# description: one line for readers"
    yield "# licence: Apache-2.0 # a submission needs it"
    generates = "generation:" in rest
    yield "task: text-generation" if generates else "# task: image-classification"
    yield from ("files:", f"  {kind.name}:", f"    path: {_flow(place)}", *_digests(path, source))


def _tensors(found: Proposal, kind: Format) -> Iterator[str]:
    """Yields the manifest lines that follow `files`, for a model whose inputs and outputs are arrays."""
    yield "inputs:"
    for spec in found.inputs:
        yield f"  - name: {_flow(spec.name)}"
        yield f"    dtype: {_flow(spec.dtype)}{_unrecorded(kind)}"
        yield f"    shape: {_flow(list(spec.shape))}{_open_sizes(spec, found)}"
        yield from _axis("    ", found.axes[spec.name])
        if spec.name in found.values:
            yield f"    value: {_flow(found.values[spec.name])} # a guess: check it"
        yield from _image_steps(spec)
    yield f"outputs: # the first one is the answer{' to a frame' if found.states else ''}"
    for number, (output, axis) in enumerate(found.outputs.items()):
        yield f"  - name: {_flow(output)}"
        yield from _axis("    ", axis, " # its number of rows depends on the data")
        if not number:
            yield "    # postprocess: argmax"
    yield from _states(found)
    texts = any(spec.dtype == "string" for spec in found.inputs)
    yield f"dataset: synthetic{' # it has no texts: pass --dataset FILE.py:CLASS' if texts else ''}"
    yield "# accuracy: {metric: top1, target: 75.0}"
    yield "# slo: p99=15ms"
    why = (
        "the file fixes it" if found.fixed else "a guess: `tune` finds what suits model and machine"
    )
    most = found.fixed or DEFAULT_BATCH
    if None in found.outputs.values():
        most, why = 1, "the number of rows of an output depends on the data"
    elif any(found.axes[name] is None for name in found.states):
        most, why = 1, "a state has no batch"
    yield f"max_batch: {most} # {why}"


def _axis(indent: str, axis: int | None, why: str = "") -> Iterator[str]:
    """Yields the manifest line for a batch axis that is not the first axis."""
    if axis is None:
        yield f"{indent}batch_axis: none{why}"
    elif axis:
        yield f"{indent}batch_axis: {axis}"


def _states(found: Proposal) -> Iterator[str]:
    if not found.states:
        return
    yield "states: # a guess, by names and shapes: a sample is a sequence, and each frame gets the states of the previous frame"
    for name, (output, spec) in found.states.items():
        yield f"  {_flow(name)}:"
        yield f"    output: {_flow(output)}"
        yield f"    dtype: {_flow(spec.dtype)}"
        yield f"    shape: {_flow(list(spec.shape))}"
        yield from _axis("    ", found.axes[name])
        yield "    start: 0"
    yield f"frames: {FRAMES} # of each sequence; without this line sequences may differ in length"
    yield "# frame_period_ms: 32.0 # real time from one frame to the next, for --streams"


def _digests(path: Path, source: PackageName | None) -> Iterator[str]:
    yield f"    sha256: {sha256_of(path) if path.is_dir() else sha256_alone(path)}"
    if source is not None:
        yield f"    source: {_flow(str(source))}"
        yield f"    bytes: {size_bytes(path)}"
    if path.is_dir():
        return
    others = {name: file for name, file in files_of(path).items() if name != path.name}
    if others:
        yield "    external:"
    for name, file in others.items():
        yield f"      - path: {_flow(name)}"
        yield f"        sha256: {sha256_alone(file)}"
        if source is not None:
            part = posixpath.normpath(posixpath.join(posixpath.dirname(source.file or ""), name))
            yield f"        source: {_flow(str(source._replace(file=part)))}"


def _unrecorded(kind: Format) -> str:
    title = UNRECORDED.get(kind.name)
    return f" # {title} records no types: check it" if title else ""


def _open_sizes(spec: TensorSpec, found: Proposal) -> str:
    if spec.name in found.guessed:
        return f" # {GUESSED_SIZE} is a guess for each size that the file leaves open"
    if found.states or found.axes[spec.name] != 0:
        return ""
    is_open = any(not isinstance(size, int) for size in spec.shape[1:])
    return f" # put sizes here, or pass e.g. {example_shape(spec)}" if is_open else ""


def _image_steps(spec: TensorSpec) -> Iterator[str]:
    """Yields the usual steps of an image dataset as a comment, if the input looks like an image."""
    sizes = spec.shape[1:]
    if len(sizes) != 3 or not all(isinstance(size, int) for size in sizes):
        return
    order = "nchw" if sizes[0] in (1, 3) else "nhwc" if sizes[2] in (1, 3) else None
    if order is None or spec.dtype not in ("float32", "float16", "uint8"):
        return
    side = list(sizes[1:] if order == "nchw" else sizes[:2])
    colour = "grey" if 1 in (sizes[0], sizes[2]) else "rgb"
    scale = ", {normalise: {scale: 0.00392156862745098}}" if spec.dtype != "uint8" else ""
    yield (
        f"    # preprocess: [{{decode: {{colour: {colour}}}}}, {{resize: {{size: {side}}}}}{scale}, "
        f"{{layout: {{order: {order}}}}}]"
    )


def _flow(value: Any) -> str:
    """Returns a value in YAML on one line. Raises ConfigError for names that are not UTF-8."""
    text = yaml_of(value, default_flow_style=True, allow_unicode=True, width=float("inf"))
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{value!r} is not UTF-8: rename it") from None
    return text.removesuffix("\n").removesuffix("\n...")
