"""The schema of model manifests: every field, its type and its range. docs/manifest.md explains each."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from harness.parse import parse_slo
from harness.sampling import TOLERANCE
from harness.steps import PostprocessSteps, PreprocessSteps
from harness.types import TensorSpec


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelFile(_Strict):
    """path: a file or a folder, relative to the manifest or to the model's folder in the cache.

    sha256: of the file, or of the folder's listing (`harness.manifest.sha256_of`); null says that
    nobody has pinned it: any file is taken, and the result says so. source: where the file is
    fetched from when it is nowhere. obtain: how a person gets it, where there is no such address.
    """

    path: Annotated[str, Field(min_length=1)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None
    source: Annotated[str, Field(pattern=r"^(https|file)://\S+$")] | None = None
    obtain: str | None = None

    @model_validator(mode="after")
    def _source_is_pinned(self) -> Self:
        if self.source is not None and self.sha256 is None:
            raise ValueError("a source needs a sha256: what is fetched must be known beforehand")
        return self


def _check_shape(shape: tuple[int | str | None, ...]) -> tuple[int | str | None, ...]:
    if any(size in (0, "") or (isinstance(size, int) and size < 0) for size in shape):
        raise ValueError("a size is a number of at least 1, a name, or null")
    return shape


class Input(_Strict):
    name: str
    dtype: Literal["float32", "float16", "float64", "uint8", "int8", "int32", "int64", "bool"]
    shape: Annotated[tuple[int | str | None, ...], AfterValidator(_check_shape)]
    preprocess: PreprocessSteps = ()

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec(self.name, self.dtype, self.shape)


class Output(_Strict):
    """postprocess: what turns the output's rows into answers, applied inside the timed part."""

    name: str
    postprocess: PostprocessSteps = ()


def _check_registered(name: str) -> str:
    """A manifest is data: what it names must not be a file or module with code."""
    if ":" in name or name.endswith(".py") or "/" in name:
        raise ValueError(
            f"{name!r} is code: name it on the command line; a manifest names plug-ins"
        )
    return name


Registered = Annotated[str, Field(min_length=1), AfterValidator(_check_registered)]


class Accuracy(_Strict):
    """target: the least score that may be quoted (of errors: the most), in the metric's unit.

    sampling_tolerance: rows that the performance run may answer differently from the accuracy run.
    tolerance: by how much two floats of such rows may differ and still be the same: relative,
    with what is small measured by the row's median.
    """

    metric: Registered
    target: Annotated[float, Field(allow_inf_nan=False)]
    sampling_tolerance: Annotated[int, Field(ge=0)] = 0
    tolerance: Annotated[float, Field(ge=0, allow_inf_nan=False)] = TOLERANCE


Framework = Literal["onnxruntime", "tensorflow", "openvino", "ai_edge_litert", "torch"]
Versions = Annotated[
    str,
    Field(pattern=r"^(>=|<=|==|!=|>|<) ?\d+(\.\d+)*( ?, ?(>=|<=|==|!=|>|<) ?\d+(\.\d+)*)*$"),
]


class Requires(_Strict):
    """What must be so before the model is loaded (harness/requirements.py).

    frameworks: module -> constraints on its version, e.g. ">=1.20, <2"; only the one of the chosen
    backend counts. ram_mb: of memory, in MiB. cpu_flags: as /proc/cpuinfo names them.
    """

    frameworks: dict[Framework, Versions] = {}
    ram_mb: Annotated[int, Field(ge=1)] | None = None
    cpu_flags: tuple[Annotated[str, Field(pattern=r"^[a-z0-9_]+$")], ...] = ()


def _check_slo(text: str) -> str:
    parse_slo(text)
    return text


def _check_some(inputs: tuple[Input, ...]) -> tuple[Input, ...]:
    if not inputs:
        raise ValueError("there must be at least one")
    return inputs


class Manifest(_Strict):
    """One model. files: format name -> file; none for a backend that reads none.

    weights: random where nothing was trained: then there is no accuracy, and no submission.
    performance_count: samples a performance run holds in memory.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    version: str
    description: str
    licence: str
    references: tuple[str, ...] = ()
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
    ]
    weights: Literal["trained", "random"] = "trained"
    files: dict[str, ModelFile]
    requires: Requires = Requires()
    inputs: Annotated[tuple[Input, ...], AfterValidator(_check_some)]
    outputs: Annotated[tuple[Output, ...], Field(min_length=1)]
    dataset: Registered
    performance_count: Annotated[int, Field(ge=1)] | None = None
    accuracy: Accuracy | None = None
    slo: Annotated[str, AfterValidator(_check_slo)] | None = None
    max_batch: Annotated[int, Field(ge=1)] | None = None
    mlperf_model: str | None = None
