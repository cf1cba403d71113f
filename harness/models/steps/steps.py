"""Defines the steps that a manifest may declare, with their options.

In YAML, a step is its name, or its name with options: `argmax`, `resize: {size: 256}`. Unknown steps and options are
errors. Defaults are filled in, so that a recorded step lists every option. The steps run in datasets/ (untimed) and in
harness/models/steps/postprocess.py (timed).
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
"""Allows YAML's lists as values of a strict tuple. The entries remain strict: `yes` and "5" are not numbers."""


def _one_or_more(item: Any) -> BeforeValidator:
    """Allows a single entry as the value of a tuple; the entry then applies to all positions."""
    return BeforeValidator(
        lambda value: value if isinstance(value, list | tuple) else (value,),
        json_schema_input_type=item | tuple[item, ...],
    )


Size = Annotated[int, Field(ge=1, le=65_536)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Sizes = Size | Annotated[tuple[Size, Size], LISTED]
"""One number for both sides, or [height, width]."""


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Decode(_Options):
    decoder: Literal["pillow", "opencv", "simplejpeg", "tensorflow"] = "pillow"
    colour: Literal["rgb", "bgr", "grey"] = "rgb"
    dct: Literal["accurate", "fast"] = "accurate"
    """`fast` decodes JPEG with less exact arithmetic; only simplejpeg and tensorflow support `fast`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.dct == "fast" and self.decoder in ("pillow", "opencv"):
            raise ValueError(f"{self.decoder} has no fast dct: choose simplejpeg or tensorflow")
        return self


class Resize(_Options):
    size: Sizes
    keep: Literal["none", "shorter", "pad"] = "none"
    """`none` stretches the image to `size`. `shorter` scales the shorter side to `size` (one number) and keeps the
    aspect ratio. `pad` fits the whole image into `size` and fills the remaining area with `fill`.
    """
    method: Literal["nearest", "bilinear", "bicubic", "area", "lanczos"] = "bilinear"
    library: Literal["pillow", "opencv", "tensorflow"] = "pillow"
    fill: Annotated[int, Field(ge=0, le=255)] = 0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.keep == "shorter" and not isinstance(self.size, int):
            raise ValueError("keep: shorter needs a single number as size")
        return self


class Crop(_Options):
    """A centred crop, given by either `size` (in pixels) or `fraction` (of each side)."""

    size: Sizes | None = None
    fraction: Annotated[float, Field(gt=0, le=1)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.size is None) == (self.fraction is None):
            raise ValueError("give either size or fraction")
        return self


class Normalise(_Options):
    """Computes (x * scale - mean) / std in float32, with one mean and std for all channels, or one per channel."""

    scale: Finite = 1.0
    mean: Annotated[tuple[Finite, ...], LISTED, _one_or_more(Finite)] = (0.0,)
    std: Annotated[tuple[Positive, ...], LISTED, _one_or_more(Positive)] = (1.0,)


class Layout(_Options):
    """The order of an image's axes. Before this step, the channels are last."""

    order: Literal["nchw", "nhwc"]


class Tokenise(_Options):
    """Wordpiece tokens of a text."""

    vocab: str
    """The vocabulary's file, in the manifest's folder or in --data-dir."""
    max_length: Annotated[int, Field(ge=3, le=65_536)]
    gives: Literal["ids", "mask", "types"]
    """The tokeniser's output that becomes this input."""
    lower: bool = True
    stride: Size = 128
    """The distance between SQuAD's document windows, in tokens."""
    max_query_length: Size = 64


class Audio(_Options):
    """Mono sound as float32 in [-1, 1] at `rate`, cut or padded with zeros to `max_seconds`."""

    gives: Literal["samples", "length"] = "samples"
    """The audio samples, or the number of samples without the padding."""
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
    """The columns of a table that form this input."""

    names: Annotated[tuple[str, ...], LISTED, _one_or_more(str)] = ()
    """Names in order; () selects all columns that are neither labels nor in another input."""
    label: str = "label"
    """The column of the labels; all inputs that set this option must name the same column."""


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
    """Reduces (n, classes, ...) to (n, ...) int64."""


class Nothing(_Options):
    """Leaves the rows unchanged."""


class TopK(_Options):
    """Reduces (n, classes) to (n, k) int64, with the best class first. If two values are equal, the lower class comes
    first.
    """

    k: Annotated[int, Field(ge=1, le=1000)] = 5


class Softmax(_Options):
    """Computes softmax over the last axis, in the number type of the outputs."""


class Shift(_Options):
    """Adds a number to each answer, e.g. -1 if the model counts a background class."""

    by: int


class Threshold(_Options):
    """Turns one score per sample, (n) or (n, 1), into class 1 if the score is above `above`, and into class 0
    otherwise; the result is (n) int64.
    """

    above: Finite = 0.5


class Stack(_Options):
    """Combines the named outputs into one array, with the outputs along the last axis in this order."""

    outputs: Annotated[tuple[str, ...], LISTED, Field(min_length=1)]


class Boxes(_Options):
    """Turns one YOLO head (n, 4 + classes, anchors) into (boxes, 7) float32 per sample.

    The head contains centre x, y, width and height in input pixels, then scores. The columns follow MLPerf's
    detection log: sample index, ymin, xmin, ymax, xmax (as fractions of the input's side), score, class. An anchor
    counts only for its best class, and only if the score of this class is above `score`. If boxes of one class overlap
    by more than `iou`, only the best box stays.
    """

    score: Annotated[float, Field(ge=0, le=1)] = 0.001
    iou: Annotated[float, Field(gt=0, le=1)] = 0.7
    most: Size = 300
    side: Size = 640


class Ctc(_Options):
    """Decodes (n, positions, classes) by CTC's best path into one row of int64 per sample.

    The row contains the best class of each position, without repeats and blanks. The manifest's `accuracy.symbols`
    turns the row into a text.
    """

    blank: Annotated[int, Field(ge=-1)] = 0
    """The class that stands for no symbol; -1 for the last class."""


class Notes(_Options):
    """Turns (n, frames, pitches, 2) activations of onsets and pitches into (notes, 3) float32 per sample.

    The columns are onset and end in seconds, and MIDI pitch. A note begins at each local maximum of the onsets that is
    at least `onset`. A note lasts while the activation of its pitch is at least `frame`, apart from gaps of up to
    `gap_frames` frames, and ends at the latest when the next note of this pitch begins.
    """

    frame_seconds: Positive
    """The time from one frame to the next."""
    onset: Annotated[float, Field(gt=0, le=1)] = 0.5
    frame: Annotated[float, Field(gt=0, le=1)] = 0.3
    lowest_pitch: Annotated[int, Field(ge=0, le=127)] = 21
    """The MIDI number of the first pitch."""
    shortest_frames: Annotated[int, Field(ge=1, le=65_536)] = 12
    """Minimum number of frames in a note; shorter notes are dropped."""
    gap_frames: Annotated[int, Field(ge=0, le=65_536)] = 10


class Hook(_Options):
    """Calls `function` in the user's Python `file` next to the manifest, in the timed part.

    The function takes the previous step's rows (or, as the first step, the model's outputs) and the sample indices, and
    returns an array of n rows, or n arrays. The function runs only if the user names the file with --hook.
    """

    file: Annotated[str, Field(pattern=r"\.py$")]
    function: str


POSTPROCESS: Mapping[str, type[_Options]] = {
    "argmax": Argmax,
    "none": Nothing,
    "topk": TopK,
    "softmax": Softmax,
    "shift": Shift,
    "threshold": Threshold,
    "stack": Stack,
    "boxes": Boxes,
    "ctc": Ctc,
    "notes": Notes,
    "hook": Hook,
}

OF_ANY_LENGTH = ("boxes", "ctc", "notes")
"""Steps whose answers can have a different length for each sample."""

_MOST = 5
"""Maximum number of problems that are reported per step."""


def problem(error: Any) -> str:
    """Returns the message of a pydantic error, with the value if it is short."""
    if error["type"] == "value_error":
        return str(error["msg"]).removeprefix("Value error, ")
    message, value = str(error["msg"]).replace("valid tuple", "list"), error["input"]
    # The value comes first, because a long list of names may be cut off.
    if error["type"] == "literal_error":
        names = error["ctx"]["expected"].replace(" or ", ", ").replace("'", "")
        return f"{value!r:.60} is not one of {names}"
    is_long = error["type"] == "extra_forbidden" or isinstance(value, dict | list | tuple)
    return message if is_long else f"{message}, not {value!r:.60}"


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
        checked = known[name].model_validate({} if options is None else options)
    except ValidationError as e:
        errors = e.errors()
        lines = [f"{'.'.join(map(str, (name, *p['loc'])))}: {problem(p)}" for p in errors[:_MOST]]
        if len(errors) > _MOST:
            lines.append(f"and {len(errors) - _MOST:,} more")
        raise ValueError("; ".join(lines)) from None
    return Step(name, checked.model_dump())


def preprocess_step(name: str, **options: object) -> Step:
    """Returns a step with these options, as in a manifest. Raises ValueError with a list of every wrong option."""
    return _step({name: options}, PREPROCESS)


def choices(name: str, option: str) -> tuple[str, ...]:
    """Returns the allowed values of a preprocessing step's option, the default first."""
    return get_args(PREPROCESS[name].model_fields[option].annotation)


class _StepsSchema:
    """The JSON Schema of steps in a file: a step is its name, or its name with options."""

    def __init__(self, known: Mapping[str, type[_Options]]) -> None:
        self._known = known

    def __get_pydantic_json_schema__(self, _core: object, _handler: object) -> dict[str, Any]:
        options = {name: one.model_json_schema() for name, one in self._known.items()}
        bare = [name for name, one in options.items() if not one.get("required")]
        named = {
            "type": "object",
            "properties": {
                name: {**one, "type": ["object", "null"]} for name, one in options.items()
            },
            "additionalProperties": False,
            "minProperties": 1,
            "maxProperties": 1,
        }
        step = {"anyOf": [{"enum": bare}, named]}
        return {"anyOf": [step, {"type": "array", "items": step}]}


def _steps(known: Mapping[str, type[_Options]]) -> Any:
    def parse(value: object) -> tuple[Step, ...]:
        if isinstance(value, Step) or not isinstance(value, list | tuple):
            return (_step(value, known),)
        return tuple(_step(item, known) for item in value)

    return BeforeValidator(parse)


PreprocessSteps = Annotated[tuple[Step, ...], _steps(PREPROCESS), _StepsSchema(PREPROCESS)]
PostprocessSteps = Annotated[tuple[Step, ...], _steps(POSTPROCESS), _StepsSchema(POSTPROCESS)]
