"""The schema of model manifests: every field, its type and its range. docs/manifest.md explains each."""

from collections.abc import Sequence
from posixpath import basename, normpath
from typing import Annotated, Literal, Self

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from harness.core.config.parse import parse_slo
from harness.models.manifest.files import listed
from harness.models.steps.steps import LISTED, PostprocessSteps, PreprocessSteps
from harness.types import Step, TensorSpec, show_shape

TOLERANCE = 1e-3
"""The default relative tolerance of float answers: batches of different sizes round differently."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Address = Annotated[str, Field(pattern=r"^(https|file)://\S+$")]
FilePath = Annotated[str, Field(min_length=1)]


class ExternalFile(_Strict):
    """A further file that a model's file reads. path: relative to the model file's own folder."""

    path: FilePath
    sha256: Sha256
    source: Address | None = None


class ModelFile(_Strict):
    """path: a file or a folder, relative to the manifest or to the model's folder in the cache.

    sha256: of the file, or of the folder's listing (harness/models/manifest/files.py). Without one any file is
    accepted. null: its publisher states none, so the result carries a doubt; omitted: the file is the user's
    own, so the result carries a note.
    external: the further files that the file reads.
    source: the address to fetch a missing file from.
    obtain: instructions for a person, where there is no such address.
    """

    path: FilePath
    sha256: Sha256 | None = None
    external: Annotated[tuple[ExternalFile, ...], LISTED] = ()
    source: Address | None = None
    obtain: str | None = None

    @property
    def is_own(self) -> bool:
        """Whether the manifest says nothing about a checksum, as its author does of a file of theirs."""
        return "sha256" not in self.model_fields_set

    @property
    def pinned(self) -> dict[str, str]:
        """Name relative to the file's folder -> SHA-256; empty where the file is not pinned."""
        if self.sha256 is None:
            return {}
        further = {normpath(part.path): part.sha256 for part in self.external}
        return {basename(self.path): self.sha256, **further}

    @property
    def digest(self) -> str | None:
        """The digest of the file and all files it reads, as `sha256_of`; None where it is not pinned."""
        return listed(self.pinned) if self.sha256 and self.external else self.sha256

    @model_validator(mode="after")
    def _source_is_pinned(self) -> Self:
        if self.source is not None and self.sha256 is None:
            raise ValueError("a source needs a sha256: what is fetched must be known beforehand")
        return self


def _check_shape(shape: tuple[int | str | None, ...]) -> tuple[int | str | None, ...]:
    if not shape:
        raise ValueError("it must have at least the batch")
    if any(size in (0, "") or (isinstance(size, int) and size < 0) for size in shape):
        raise ValueError("a size is a number of at least 1, a name, or null")
    return shape


_ONCE = ("audio", "column", "tokenise")
"""Steps that may occur once in an input; image datasets check their own steps."""


def _check_once(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    names = [step.name for step in steps]
    for name in _ONCE:
        if names.count(name) > 1:
            raise ValueError(f"the step {name!r} comes {names.count(name)} times: once is enough")
    return steps


DataType = Literal[
    "float32",
    "float16",
    "float64",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "bool",
    "string",
]


class Input(_Strict):
    name: str
    dtype: DataType
    shape: Annotated[tuple[int | str | None, ...], LISTED, AfterValidator(_check_shape)]
    preprocess: Annotated[PreprocessSteps, AfterValidator(_check_once)] = ()

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec(self.name, self.dtype, self.shape)


def _check_stack(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    if any(step.name == "stack" for step in steps[1:]):
        raise ValueError("stack sees the outputs by name: it must be the first step")
    return steps


class Output(_Strict):
    """postprocess: the steps that turn the output's rows into answers, inside the timed part."""

    name: str
    postprocess: Annotated[PostprocessSteps, AfterValidator(_check_stack)] = ()


def _check_registered(name: str) -> str:
    """Refuses files and modules: a manifest is data and names registered plug-ins only."""
    if ":" in name or name.endswith(".py") or "/" in name:
        raise ValueError(
            f"{name!r} is code: name it on the command line; a manifest names plug-ins"
        )
    return name


Registered = Annotated[str, Field(min_length=1), AfterValidator(_check_registered)]


class Accuracy(_Strict):
    """The metric and its target.

    target: the lowest score that may be quoted (for error rates: the highest), in the metric's unit.
    reference: the model's own score on the manifest's dataset, as its publisher states it.
    sampling_tolerance: rows that the performance run may answer differently from the accuracy run.
    tolerance: the relative difference up to which two floats count as equal; small values are compared
    with the row's median.
    symbols: the pieces of text for which integer answers stand, where labels are texts.
    """

    metric: Registered
    target: Annotated[float, Field(allow_inf_nan=False)]
    reference: Annotated[float, Field(allow_inf_nan=False)] | None = None
    sampling_tolerance: Annotated[int, Field(ge=0)] = 0
    tolerance: Annotated[float, Field(ge=0, allow_inf_nan=False)] = TOLERANCE
    symbols: Annotated[tuple[str, ...], LISTED] = ()


Framework = Literal["onnxruntime", "tensorflow", "openvino", "ai_edge_litert", "torch"]


def _check_versions(text: str) -> str:
    try:
        some = bool(SpecifierSet(text))
    except InvalidSpecifier:
        some = False
    if not some:
        raise ValueError(f"{text!r} is no range of versions: write e.g. '>=1.20, <2'")
    return text


Versions = Annotated[str, AfterValidator(_check_versions)]


class Requires(_Strict):
    """Requirements that are checked before the model is loaded (harness/models/manifest/requirements.py).

    frameworks: module -> range of versions, e.g. ">=1.20, <2"; only the chosen backend's is checked.
    ram_mb: available memory, in MiB.
    cpu_flags: as /proc/cpuinfo names them.
    """

    frameworks: dict[Framework, Versions] = {}
    ram_mb: Annotated[int, Field(ge=1)] | None = None
    cpu_flags: Annotated[tuple[Annotated[str, Field(pattern=r"^[a-z0-9_]+$")], ...], LISTED] = ()


def _check_slo(text: str) -> str:
    parse_slo(text)
    return text


def _refuse_twice(names: Sequence[str]) -> None:
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise ValueError(f"the name {twice[0]!r} comes twice")


def _check_some(inputs: tuple[Input, ...]) -> tuple[Input, ...]:
    if not inputs:
        raise ValueError("there must be at least one")
    _refuse_twice([one.name for one in inputs])
    return inputs


def _check_outputs(outputs: tuple[Output, ...]) -> tuple[Output, ...]:
    if not outputs:
        raise ValueError("there must be at least one")
    _refuse_twice([output.name for output in outputs])
    idle = [output.name for output in outputs[1:] if output.postprocess]
    if idle:
        raise ValueError(f"{idle[0]!r} has postprocess steps, and only the first output's are run")
    return outputs


class Manifest(_Strict):
    """One model.

    files: format name -> file; empty for a backend that reads no file.
    weights: `random` where nothing was trained; then there is no accuracy and no submission.
    performance_count: samples that a performance run holds in memory.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    version: str = ""
    description: str = ""
    licence: str = ""
    references: Annotated[tuple[str, ...], LISTED] = ()
    task: Literal[
        "image-classification",
        "object-detection",
        "segmentation",
        "image-to-image",
        "question-answering",
        "text-classification",
        "embedding",
        "speech-recognition",
        "table",
        "none",
    ] = "none"
    weights: Literal["trained", "random"] = "trained"
    files: dict[str, ModelFile]
    requires: Requires = Requires()
    inputs: Annotated[tuple[Input, ...], LISTED, AfterValidator(_check_some)]
    outputs: Annotated[tuple[Output, ...], LISTED, AfterValidator(_check_outputs)]
    dataset: Registered
    performance_count: Annotated[int, Field(ge=1)] | None = None
    accuracy: Accuracy | None = None
    slo: Annotated[str, AfterValidator(_check_slo)] | None = None
    max_batch: Annotated[int, Field(ge=1)] | None = None
    mlperf_model: str | None = None

    @model_validator(mode="after")
    def _boxes_fit_the_image(self) -> Self:
        """Checks inputs of known size; the others are checked before the run."""
        for step in self.outputs[0].postprocess:
            side = step.options.get("side")
            for name, shape in ((i.name, i.shape[1:]) for i in self.inputs):
                fixed = len(shape) == 3 and all(isinstance(size, int) for size in shape)
                if step.name == "boxes" and fixed and shape.count(side) < 2:
                    raise ValueError(
                        f"field 'outputs.0.postprocess': boxes.side is {side}, the input {name!r} "
                        f"is {show_shape(shape)}: its sides must be that long"
                    )
        return self
