"""Defines the steps that a manifest may declare, with their options.

In YAML a step is its name, or its name with options: `argmax`, `resize: {size: 256}`. Unknown
steps and options are errors; defaults are filled in, so that a recorded step says all there is.
What the steps do is written where they run: datasets/ (untimed) and harness/models/steps/postprocess.py (timed).
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    model_validator,
)

from harness.types import Step

LISTED = Strict(False)
"""Of a tuple in a model that is strict: YAML has lists only. Its entries stay strict: `yes` is no
number, and neither is "5".
"""

Size = Annotated[int, Field(ge=1, le=65_536)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Sizes = Size | Annotated[tuple[Size, Size], LISTED]
"""One number for both, or [height, width]."""


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Decode(_Options):
    """dct: `fast` decodes JPEG with less exact arithmetic (simplejpeg and tensorflow have both)."""

    decoder: Literal["pillow", "opencv", "simplejpeg", "tensorflow"] = "pillow"
    colour: Literal["rgb", "bgr", "grey"] = "rgb"
    dct: Literal["accurate", "fast"] = "accurate"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.dct == "fast" and self.decoder in ("pillow", "opencv"):
            raise ValueError(f"{self.decoder} has no fast dct: choose simplejpeg or tensorflow")
        return self


class Resize(_Options):
    """keep: `none` stretches to size; `shorter` makes the shorter side as long as size (one
    number) and keeps the aspect; `pad` fits the whole image into size and fills up with `fill`.
    """

    size: Sizes
    keep: Literal["none", "shorter", "pad"] = "none"
    method: Literal["nearest", "bilinear", "bicubic", "area", "lanczos"] = "bilinear"
    library: Literal["pillow", "opencv", "tensorflow"] = "pillow"
    fill: Annotated[int, Field(ge=0, le=255)] = 0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.keep == "shorter" and not isinstance(self.size, int):
            raise ValueError("keep: shorter takes one number as size")
        return self


class Crop(_Options):
    """Centred. Exactly one of size (pixels) and fraction (of each side)."""

    size: Sizes | None = None
    fraction: Annotated[float, Field(gt=0, le=1)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.size is None) == (self.fraction is None):
            raise ValueError("give either size or fraction")
        return self


class Normalise(_Options):
    """(x * scale - mean) / std in float32; mean and std by channel, or one for all."""

    scale: Finite = 1.0
    mean: Annotated[tuple[Finite, ...], LISTED] = (0.0,)
    std: Annotated[tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...], LISTED] = (1.0,)


class Layout(_Options):
    """Of an image with channels last until here."""

    order: Literal["nchw", "nhwc"]


class Tokenise(_Options):
    """Wordpiece with a vocabulary file beside the manifest. stride: SQuAD's document windows.

    gives: which of the encoder's arrays this input takes.
    """

    vocab: str
    max_length: Annotated[int, Field(ge=3, le=65_536)]
    gives: Literal["ids", "mask", "types"]
    lower: bool = True
    stride: Size = 128
    max_query_length: Size = 64


class Audio(_Options):
    """Mono float32 in [-1, 1] at this rate, cut or filled with zeros to max_seconds.

    gives: the samples, or how many of them are not filling.
    """

    gives: Literal["samples", "length"] = "samples"
    rate: Annotated[int, Field(ge=1000, le=384_000)] = 16_000
    max_seconds: Annotated[float, Field(ge=0.001, le=86_400)] = 30.0


class Clip(_Options):
    low: Finite
    high: Finite

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        if self.low >= self.high:
            raise ValueError("low must be less than high")
        return self


class Column(_Options):
    """Of a table: which columns make this input, in this order; empty means every one left.

    label: the column with the right answers, the same for every input that says so.
    """

    names: Annotated[tuple[str, ...], LISTED] = ()
    label: str = "label"


PREPROCESS: Mapping[str, type[_Options]] = {
    "decode": Decode,
    "resize": Resize,
    "crop": Crop,
    "normalise": Normalise,
    "layout": Layout,
    "tokenise": Tokenise,
    "audio": Audio,
    "clip": Clip,
    "column": Column,
}


class Argmax(_Options):
    """(n, classes, ...) -> (n, ...) int64."""


class Nothing(_Options):
    """The rows as they are."""


class TopK(_Options):
    """(n, classes) -> (n, k) int64, the best first; of equal ones the lower class first."""

    k: Annotated[int, Field(ge=1, le=1000)] = 5


class Softmax(_Options):
    """Over the last axis, in the outputs' own type."""


class Shift(_Options):
    """Adds a number to each answer, e.g. -1 where the model counts a background class."""

    by: int


class Stack(_Options):
    """All the outputs named, as one array with a last axis for them, in this order."""

    outputs: Annotated[tuple[str, ...], LISTED, Field(min_length=1)]


class Boxes(_Options):
    """One YOLO head (n, 4 + classes, anchors): centre x, y, width, height in input pixels, then
    scores. -> per sample (boxes, 7) float32 as MLPerf's detection log: sample index, ymin, xmin,
    ymax, xmax (in parts of the input's side), score, class. An anchor counts for its best class if
    that scores more than `score`; boxes of one class that overlap by more than `iou` become one.
    """

    score: Annotated[float, Field(ge=0, le=1)] = 0.001
    iou: Annotated[float, Field(gt=0, le=1)] = 0.7
    most: Size = 300
    side: Size = 640


class Hook(_Options):
    """Python of the user's: `function` of `file` (beside the manifest), called in the timed part
    with the rows so far (as first step: the model's outputs) and the samples' indices. -> an array
    of n rows, or n arrays. It runs only when the user names the file with --hook.
    """

    file: Annotated[str, Field(pattern=r"\.py$")]
    function: str


POSTPROCESS: Mapping[str, type[_Options]] = {
    "argmax": Argmax,
    "none": Nothing,
    "topk": TopK,
    "softmax": Softmax,
    "shift": Shift,
    "stack": Stack,
    "boxes": Boxes,
    "hook": Hook,
}


_MOST = 5
"""Problems told of one step."""


def problem(error: Any) -> str:
    """One of pydantic's errors in words, with what was found where it does not say that itself."""
    if error["type"] == "value_error":
        return str(error["msg"]).removeprefix("Value error, ")
    told, found = str(error["msg"]).replace("valid tuple", "list"), error["input"]
    is_told = error["type"] == "extra_forbidden" or isinstance(found, dict | list | tuple)
    return told if is_told else f"{told}, not {found!r:.60}"


def _step(item: object, known: Mapping[str, type[_Options]]) -> Step:
    if isinstance(item, Step):
        return item
    name: object = item
    options: object = {}
    if isinstance(item, dict) and len(item) == 1:
        name, options = next(iter(item.items()))
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"no step {name!r:.60}: choose from {', '.join(known)}")
    try:
        made = known[name].model_validate({} if options is None else options)
    except ValidationError as e:
        found = e.errors()
        told = [f"{'.'.join(map(str, (name, *p['loc'])))}: {problem(p)}" for p in found[:_MOST]]
        more = [f"and {len(found) - _MOST:,} more"] if len(found) > _MOST else []
        raise ValueError("; ".join(told + more)) from None
    return Step(name, made.model_dump())


def preprocess_step(name: str, **options: object) -> Step:
    """One step as a manifest would declare it; a ValueError with the reason where it cannot."""
    return _step({name: options}, PREPROCESS)


def choices(name: str, option: str) -> tuple[str, ...]:
    """What an option of a preprocessing step takes, the default first; it takes words."""
    return get_args(PREPROCESS[name].model_fields[option].annotation)


def _steps(known: Mapping[str, type[_Options]]) -> Any:
    def parse(value: object) -> tuple[Step, ...]:
        items = (
            value if isinstance(value, list | tuple) and not isinstance(value, Step) else [value]
        )
        return tuple(_step(item, known) for item in items)

    return BeforeValidator(parse)


PreprocessSteps = Annotated[tuple[Step, ...], _steps(PREPROCESS)]
PostprocessSteps = Annotated[tuple[Step, ...], _steps(POSTPROCESS)]
