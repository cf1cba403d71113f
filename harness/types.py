"""Defines the types that all packages share, and the protocols of plug-ins."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self, runtime_checkable

from harness.errors import ConfigError

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]
else:
    # Array is not numpy.ndarray, because the command line imports this module and must start without NumPy.
    Array = Any

Outputs = Array | Sequence[Array] | Mapping[str, Array]
"""The outputs of `Backend.infer`: n rows, or n arrays, or n rows under each output's name."""

Take = Callable[[Array, Array | list[int], Array], None]
"""Copies rows of the first array, at the given positions, to the last array."""


class Lognormal(NamedTuple):
    """Distribution of sequence lengths: median * exp(sigma * normal), rounded, from 1 to `most`."""

    median: float
    sigma: float
    most: int

    def __str__(self) -> str:
        return f"lognormal:median={self.median:.10g},sigma={self.sigma:.10g},max={self.most}"


class Interval(NamedTuple):
    """A range of numbers: `low` is included, `high` is not."""

    low: float
    high: float
    """A bound is an int if it is a whole number, because a float would round an int64."""

    def __str__(self) -> str:
        return f"{self.low}:{self.high}"


class Table(NamedTuple):
    """A table of a model, e.g. an embedding, and the operator that selects its rows."""

    operator: str
    """The operator's name in the file format, e.g. Gather."""
    rows: int


Shape = Sequence[int | str | None]
"""Dimension sizes; a variable size is None or a name."""


_NAMELESS = re.compile(r"\?*|-?\d+|None|unk__\d+", re.IGNORECASE)
"""Matches placeholder names that exporters write for an unnamed size. Two sizes with such a name need not be equal."""


def declared_shape(sizes: Iterable[int | str | None]) -> tuple[int | str | None, ...]:
    """Returns the shape that a model file declares, with None for sizes below 1 and sizes without a real name."""
    return tuple(
        (None if _NAMELESS.fullmatch(size.strip()) else size)
        if isinstance(size, str)
        else (None if size is None or size < 1 else int(size))
        for size in sizes
    )


def show_shape(shape: Shape) -> str:
    """Formats a shape for messages, e.g. `[batch, 3, ?]`."""
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


class TensorSpec(NamedTuple):
    """One input of a model."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]
    """The first entry is the batch dimension. A variable entry is None or a name."""


BATCH_FIRST = (
    "let `init --model` write a manifest, which states batch axes, constants and states "
    "(docs/manifest.md#states-and-other-batch-axes), or export the model with the batch as the first dimension of "
    "every input"
)
"""End of each message about an input that is not a batch of samples."""


OTHER_NAMES = (
    "if the file uses other names, list them as `names` of this file in the manifest, e.g. {image: input_2}: "
    "docs/manifest.md#one-network-in-several-formats"
)
"""End of each message about an input or output in the manifest that is not in the file."""


def fixed_batch(inputs: Iterable[TensorSpec]) -> int | None:
    """Returns the batch size that a model file fixes; None if every input allows any batch size.

    Raises a ConfigError if the first dimension of an input is not the batch dimension. The first dimension is not the
    batch if inputs fix different sizes for it, or if the batch of an input is a later dimension, e.g. in a state with
    the shape [layers, batch, hidden].
    """
    shaped = [s for s in inputs if s.shape]
    fixed = {s.name: s.shape[0] for s in shaped if isinstance(s.shape[0], int)}
    if len(set(fixed.values())) > 1:
        sizes = ", ".join(f"{name} {size}" for name, size in fixed.items())
        raise ConfigError(
            f"the inputs of the model fix different first dimensions ({sizes}): {BATCH_FIRST}"
        )
    first = {s.shape[0] for s in shaped if s.name not in fixed}
    others = {size for s in shaped if s.name not in fixed for size in s.shape[1:]}
    for name, _, shape in shaped if first else ():
        if shape[0] in (*first, 1):
            continue
        if _has_batch_behind(shape, first, others):
            raise ConfigError(
                f"input {name!r} of the model has the shape {show_shape(shape)}, whose first dimension, "
                f"{shape[0]}, is not the batch: {BATCH_FIRST}"
            )
    return next(iter(fixed.values()), None)


def _has_batch_behind(
    shape: Shape, first: Collection[int | str | None], others: Collection[int | str | None]
) -> bool:
    """Returns whether a dimension after the first one is the batch, as in [layers, batch, hidden].

    first: variable first dimensions of the inputs. others: sizes of later dimensions, whose names do not denote the
    batch.
    """
    names = [size for size in shape[1:] if isinstance(size, str) and size not in others]
    if any(size in first or "batch" in size.lower() for size in names):
        return True
    return len(shape) > 2 and shape[1] is None and None not in shape[2:]


class Step(NamedTuple):
    """One step of pre- or postprocessing, with a value for every option of the step."""

    name: str
    options: Mapping[str, Any]


class Batch(NamedTuple):
    """The n samples that a backend processes in one call."""

    size: int
    """The number of samples, n. The backend does not get the dataset indices, so that it cannot look up stored answers.
    """
    inputs: Mapping[str, Array]
    """One (n, ...) array per input name. Arrays are read-only because they may be views into the dataset."""


class Decoding(NamedTuple):
    """How a language model generates an answer: greedily, one token at a time."""

    context: int
    """Maximum number of tokens in a prompt and its answer together."""
    vocabulary: int
    """Number of tokens in the vocabulary. Every token ID is below this number."""
    end: tuple[int, ...]
    """The tokens that end an answer."""


class Transcribing(NamedTuple):
    """How a speech model transcribes audio: greedily, one token at a time."""

    language: str | None
    """Language of the speech, e.g. `en`; None for a monolingual model."""
    most: int
    """Maximum number of tokens in an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSetup:
    """The parameters of a backend."""

    model: Path | None
    """The model file; None if the model has no file in a format that the backend reads."""
    model_name: str
    """Model name for messages."""
    inputs: tuple[TensorSpec, ...] = ()
    """The inputs that the manifest declares, in the file's layout; () without a manifest."""
    batch_axes: Mapping[str, int | None] | None = None
    """Maps each input name to its batch axis (None: no batch axis) if the caller passes arrays in the file's layout.
    `infer` then does not pad the arrays. If the whole field is None, the batch is the first dimension of each input and
    output.
    """
    names: Mapping[str, str] = field(default_factory=dict)
    """Maps the manifest name of an input or output to its name in the file, if the names differ."""
    threads: int = 1
    """Maximum number of threads, at least 1, that this instance may use to compute."""
    instances: int = 1
    """Number of instances in this process."""
    device: str = "cpu"
    """cpu or cuda."""
    max_batch: int = 1
    """Number of samples in the largest batch that `infer` will receive."""
    owns_cores: bool = False
    """Whether no other instance of the process runs on the cores of this instance, so that idle threads may spin."""
    cpus: tuple[int, ...] = ()
    """One logical processor per thread, or () for any processor; only for backends with `elastic`. The instance binds
    the threads that it starts to the second and later processors, if the framework can bind them. These threads spin
    only while the instance computes.
    """
    provider: str | None = None
    """ONNX Runtime's execution provider, from --provider; None for the backend's default."""
    provider_options: Mapping[str, str] = field(default_factory=dict)
    """Values of --provider-option by name."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Values of --backend-option by name."""
    decoding: Decoding | None = None
    """Set for a language model that runs in this process; None for any other model."""
    transcribing: Transcribing | None = None
    """Set for a speech model that runs in this process; None for any other model."""
    transport: str = "http"
    """Transport of a remote backend's requests, derived from the scheme of --url: http or grpc."""


class Backend(Protocol):
    """One instance of a model on a framework. A backend cannot see LoadGen's ids, the dataset indices or a clock.

    The harness constructs it as `Backend(setup)`. Only one thread at a time enters, calls or leaves an instance.

    Optional attributes:
    formats      the manifest's file formats that the backend reads, best first (a tuple of str)
    signature()  the inputs, once entered (HasSignature); needed for models without a manifest
    outputs()    the names of the outputs, once entered (HasOutputs); () if the file has none
    buffers()    memory into which its batches are copied (HasBuffers)
    used()       the use of a device other than the processor, e.g. GPU memory (HasUse)
    holds_gil    True if the framework keeps Python's GIL while it computes: several instances then run in separate
                 processes, unless --backend-option processes=off
    tunable      options that change only the speed, and the values that `tune` tries (name -> tuple
                 of str)
    elastic      True if an instance with all cores (BackendSetup.cpus) may answer a query when no other
                 query waits, because its threads leave the cores to the other instances between two batches
    profiler()   for the layer level of `profile` (harness/profiler.py)
    begin(), step(), leave()  a token engine, for language models (GeneratesTokens)
    listen(), text()  with step() and leave(): a speech engine (TranscribesSpeech)
    """

    def __init__(self, setup: BackendSetup, /) -> None: ...

    def __enter__(self) -> Self:
        """Loads the model. Raises a ConfigError if the user's file is faulty."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        """Frees the model."""

    def infer(self, batch: Batch, /) -> Outputs:
        """Returns `batch.size` outputs, in the order of the inputs' rows."""

    def describe(self) -> Mapping[str, object]:
        """Returns versions, device, precision and threads, with their actual values instead of the configured values.

        device: begins with `cpu` if the model runs on this machine's CPU cores. A run on such a backend gets the doubt
        `idle` if these cores hardly compute. precision: the number type of the model's arithmetic, by its name in
        harness/core/number_types.py. `compare` ranks runs of two backends only if they have the same precision.
        """


@runtime_checkable
class HasBuffers(Protocol):
    """A backend that reads its batches from memory that it provides, e.g. memory from which a GPU copies."""

    def buffers(self, size: int, /) -> Mapping[str, Array] | None:
        """Returns one (size, ...) array per input name, into which the rows of the next batch may be copied.

        Each batch overwrites the rows of the batch before it. Returns None if the backend does not have arrays of that
        size.
        """

    def take(self, rows: Array, places: Array | list[int], into: Array, /) -> None:
        """Copies rows[places] to `into`, an array that `buffers` returned, using the instance's threads."""


@runtime_checkable
class HasUse(Protocol):
    """A backend that reports its use of a device other than the processor, e.g. GPU memory."""

    def used(self) -> Mapping[str, object]:
        """Returns numbers and texts, such as memory use, which the result contains under `use`, next to the result of
        `describe`. The harness calls this method on each instance after the run.
        """


@runtime_checkable
class HasSignature(Protocol):
    """A backend that reports its inputs once it has loaded the model."""

    def signature(self) -> tuple[TensorSpec, ...]: ...


@runtime_checkable
class HasOutputs(Protocol):
    """A backend that reports the names of its outputs once it has loaded the model."""

    def outputs(self) -> tuple[str, ...]: ...


@runtime_checkable
class GeneratesTokens(Protocol):
    """A token engine: a backend that manages the KV cache of a language model and selects the tokens greedily.

    For a token engine, the harness calls neither `infer` nor `signature`. Only one thread calls these methods.
    """

    def begin(self, key: int, prompt: Sequence[int], most: int, *, ignores_end: bool) -> None:
        """Adds an answer to the batch at the next step.

        key: unique among active answers. most: maximum number of tokens in the answer. ignores_end: whether the answer
        continues after an end token.
        """

    def step(self) -> Sequence[tuple[int, int]]:
        """Waits for a token, and returns the key and the new token of each answer that got one.

        Called only while at least one answer is active.
        """

    def leave(self, key: int) -> None:
        """Drops an active answer that is complete or no longer wanted."""


@runtime_checkable
class TranscribesSpeech(Protocol):
    """A speech engine: a backend that transcribes audio to tokens greedily. `step`, `leave`: see GeneratesTokens."""

    end: tuple[int, ...]
    """The tokens that end an answer; set once the engine has been entered."""

    def listen(self, key: int, sound: Array, most: int) -> None:
        """Adds an answer to the batch at the next step.

        key: unique among active answers. sound: (samples,) float32 in [-1, 1]. most: maximum number of tokens in the
        answer.
        """

    def step(self) -> Sequence[tuple[int, int]]: ...

    def leave(self, key: int) -> None: ...

    def text(self, tokens: Sequence[int]) -> str:
        """Returns the text of an answer's tokens without the end token."""


class Network(NamedTuple):
    """Properties that show whether two model files contain the same network."""

    weights: Sequence[tuple[tuple[int, ...], str]]
    """Shape and number type of each weight."""
    strides: Sequence[tuple[int, ...]] | None
    """Strides of each convolution, one per axis; None if unknown."""
    macs: int | None
    """Number of multiplications per batch in convolutions and matrix products; None if unknown."""


@runtime_checkable
class HasNetwork(Protocol):
    """A backend that reports the network it has loaded, for formats that only this backend reads."""

    def network(self, batch: Batch, /) -> Network:
        """Returns the network. The call is not timed, and may run `batch`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSetup:
    """The parameters of a dataset."""

    inputs: tuple[TensorSpec, ...] = ()
    """Inputs of the model."""
    steps: Mapping[str, tuple[Step, ...]] = field(default_factory=dict)
    """The manifest's preprocessing steps by input name; empty without a manifest."""
    data_dir: Path | None = None
    """Folder of the user's files."""
    model_dir: Path | None = None
    """Folder of the manifest, e.g. for a vocabulary."""
    cache_dir: Path | None = None
    """Folder in which preprocessed samples may be kept between runs."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Maps an input name to the sizes that the user chose for its symbolic dimensions."""
    lengths: Mapping[str, Lognormal | Path] = field(default_factory=dict)
    """Maps the name of a symbolic dimension to the sample lengths along it: a distribution, or a file with
    one length per line.
    """
    ranges: Mapping[str, Interval] = field(default_factory=dict)
    """Maps an input name to the range of numbers that the user set."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Values of --dataset-option by name."""
    tables: Callable[[], Mapping[str, Table]] = dict
    """Reads the model file, and maps an input name to the smallest table from which the input selects rows.

    An input is omitted if it does not select rows, or if the file does not show whether it does.
    """
    seed: int = 0
    progress: Callable[[int, int], None] = lambda _done, _total: None
    """Called repeatedly by `load`, on the thread of `load`, with the number of loaded samples and the total."""


class Dataset(Protocol):
    """LoadGen's sample library, with labels. The harness constructs it as `Dataset(setup)`. The constructor must be
    cheap.

    Optional attributes:
    performance_count  maximum number of samples that a performance run holds in memory
    options            the names of --dataset-option that it takes (tuple of str)
    synthetic          True if answers are neither right nor wrong
    batch_into()       see HasBatchInto
    lengths()          see HasLengths; faults(), calibration(), class_names() and turns(): see HasFaults,
                       HasCalibration, HasClassNames, HasTurns, HasSessions, HasLiveHistory, HasOwnOrder
    """

    def __init__(self, setup: DatasetSetup, /) -> None: ...

    def __len__(self) -> int: ...

    def load(self, indices: Sequence[int], /) -> None:
        """Decodes and preprocesses the samples. This call is not timed.

        Rows must keep the order of `indices`, because LoadGen shuffles the indices and issues Offline queries in that
        order. In MultiStream, LoadGen pads the indices at the end with duplicates.
        """

    def unload(self, indices: Sequence[int], /) -> None: ...

    def batch(self, indices: Sequence[int], /) -> Batch:
        """Gathers loaded samples. This call is timed, so it should return a view of contiguous rows, or copy other rows
        only once.
        """

    def label(self, index: int, /) -> object:
        """Returns the correct answer, or None if the sample has none."""

    def describe(self) -> Mapping[str, object]:
        """Returns name, count, source, and `digest`, a SHA-256 that changes if the data of the samples change.

        For images, the digest covers file names and sizes, because reading all files would take as long as a run.
        """


@runtime_checkable
class HasLengths(Protocol):
    """A dataset whose samples differ in length, so that Offline batches samples of similar length."""

    def lengths(self, indices: Sequence[int], /) -> Array | None:
        """Returns (n,) numbers that grow with the work per loaded sample, or None if all samples need equal work."""


@runtime_checkable
class HasBatchInto(Protocol):
    """A dataset that copies the rows of a batch into the backend's buffers."""

    def batch_into(self, indices: Sequence[int], into: Mapping[str, Array], take: Take, /) -> Batch:
        """Returns the batch, as `Dataset.batch` does. If the rows are not adjacent, calls `take` to copy them to
        `into`.

        into: one (n, ...) array per input name. take: HasBuffers.take of the backend.
        """


@runtime_checkable
class HasClassNames(Protocol):
    """A dataset whose labels are the numbers of named classes."""

    def class_names(self) -> Mapping[int, str]:
        """Maps a label, or an object's category_id, to the name of its class; empty if the data contain no class names."""


@runtime_checkable
class HasTurns(Protocol):
    """A dataset of conversations: adjacent samples are the turns of one conversation, in order."""

    def turns(self) -> Array:
        """Returns an array of shape (len(dataset),): the turn of each sample within its conversation, from 0."""


class SessionTurns(NamedTuple):
    """The turns of sessions, with one entry per dataset index. Adjacent samples belong to one session."""

    session: Array
    """(n,) session number of each sample."""
    after: Sequence[Sequence[int]]
    """(n,) for each sample, the earlier samples of its session whose answers must arrive first."""
    delay_ns: Array
    """(n,) for each sample, the time from the last of these answers, or from the session start, until the sample is
    due.
    """


@runtime_checkable
class HasSessions(Protocol):
    """A dataset whose samples are the turns of sessions, e.g. the calls of an agent and its subagents."""

    def sessions(self) -> SessionTurns: ...


@runtime_checkable
class HasOwnOrder(Protocol):
    """A dataset that determines the order in which its samples are answered, e.g. by time, regardless of the samples
    that LoadGen draws.

    Its `describe` returns `identity_bytes`: the number of bytes at the beginning of an answer that identify its sample.
    """

    labelled: bool
    """Whether the official log of this run's answers contains the labels, as in an accuracy run. The harness sets it
    before the run.
    """

    def next(self, count: int, /) -> list[int]:
        """Returns the next samples. Each `load` restarts at the first sample. Called on LoadGen's issuing thread."""

    def identified(self, answers: Sequence[Array], indices: Sequence[int], /) -> list[Array]:
        """Returns the answers in the form of the official log, each preceded by the identity of its sample."""


@runtime_checkable
class HasLiveHistory(Protocol):
    """A dataset of sessions that can put the model's own answers into later prompts."""

    live_history: bool
    """Whether later prompts contain the model's own answers."""

    def continue_with(self, index: int, answers: Mapping[int, bytes], /) -> None:
        """Builds the prompt of a loaded turn. The prompt is valid until the next call.

        answers: maps the dataset index of an earlier turn to its text.
        """


@runtime_checkable
class HasFaults(Protocol):
    """A dataset that can check its samples without loading them."""

    def faults(self) -> Iterable[str]:
        """Yields one line per unusable sample."""


@runtime_checkable
class HasCalibration(Protocol):
    """A dataset with additional samples for quantisation, which are never scored."""

    def calibration(self) -> Dataset:
        """Returns a dataset with the same inputs that shares no sample with this dataset."""


class ClassName(str):
    """A label that consists of a string and a class number. Text metrics read the string, and class metrics read the
    number.
    """

    number: int

    def __new__(cls, text: str, number: int = 0) -> Self:
        name = super().__new__(cls, text)
        name.number = number
        return name


class Answer(NamedTuple):
    """One row of LoadGen's accuracy log."""

    sample: int
    """Dataset index."""
    payload: bytes
    """Bytes of the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The result of a metric."""

    metric: str
    value: float
    """In `unit`, e.g. 99.2 for 99.2 %."""
    unit: str
    samples: int
    line: str
    """Line of accuracy.txt, in the official form."""
    details: Mapping[str, float] = field(default_factory=dict)
    """Additional values by name, e.g. the exact match in addition to F1."""
    lower_is_better: bool = False
    """True for error rates, whose target is the highest value that may be quoted."""
    scorer: str = ""
    """The external program that computed the score, with its SHA-256; '' if the metric itself computed it."""


class Metric(Protocol):
    """Scores answers against labels. The harness constructs it as `Metric(dtype)`, with the dtype of an answer's row."""

    def __init__(self, dtype: str, /) -> None: ...

    def score(self, answers: Iterable[Answer], labels: Mapping[int, object], /) -> Score:
        """Returns the score. answers: one answer per dataset index, without duplicates."""


@runtime_checkable
class HasAnswerShape(Protocol):
    """A metric that checks the shape of answers before the run."""

    def check_shape(self, shape: Sequence[int | None], /) -> None:
        """Raises a ValueError that names the expected shape if the metric does not accept `shape`.

        shape: the shape of one answer; an entry is None if answers differ in that size.
        """


@runtime_checkable
class HasLabelCheck(Protocol):
    """A metric that checks the labels before the run."""

    def check_labels(self, labels: Mapping[int, object], /) -> None:
        """Raises a ValueError if a label is wrong. The message contains the wrong label, and the labels that the metric
        accepts.

        labels: the labels of all samples.
        """


@runtime_checkable
class HasClassCheck(Protocol):
    """A metric whose labels are class numbers."""

    def check_classes(self, labels: Mapping[int, object], classes: range, /) -> None:
        """Raises a ValueError that names a label if it is outside the classes that the model can predict."""


class Quantity(NamedTuple):
    """A number with its name, its unit and its source."""

    name: str
    value: float
    unit: str
    source: str
    """The program or file that provides the value, e.g. LoadGen."""


class PowerSource(NamedTuple):
    """One counter or sensor of a power meter."""

    name: str
    """Unique within the meter, e.g. `rapl:package-0`."""
    domain: str
    """The part of the machine that the source covers, as text."""
    unit: Literal["J", "W"]
    """J: a counter in joules, which only grows. W: the power at the time of reading."""
    wraps_at_joules: float | None = None
    """The value at which a counter wraps around to 0; None if it never does."""
    provenance: Literal["measured", "estimated"] = "measured"


class PowerMeter(Protocol):
    """Reads energy or power in the supervisor, on a separate thread.

    The harness constructs it as `Meter(argument)`, with the text after `NAME=` in --meter, or ''.
    """

    def __init__(self, argument: str, /) -> None: ...

    def __enter__(self) -> Self:
        """Finds the sources. Raises a ConfigError with the cause and a remedy if it finds no sources."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

    def sources(self) -> Sequence[PowerSource]:
        """Returns the sources that `read` reads: at least one, and always the same."""

    def read(self) -> Sequence[float | Exception | None]:
        """Returns one value per source, in the source's unit. A source without a current value gets None or an
        exception.

        May wait up to a second for the next value. Raises an exception if it cannot read any source.
        """


class Ready(NamedTuple):
    """A benchmark operation whose data have been allocated and touched."""

    call: Callable[[], object]
    """The timed operation."""
    between: Callable[[], object] | None = None
    """Called before each timed call and not timed, e.g. to evict the data from the caches."""
    facts: Mapping[str, Any] = MappingProxyType({})
    """Facts found during preparation, as JSON values: kernel names, errors of the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One operation of a machine benchmark, and the work per call."""

    settings: Mapping[str, str | int]
    """Values that form the point's name: benchmark/value/value. Points with a different `library` or number of
    threads are measured in separate processes.
    """
    open: Callable[[], AbstractContextManager[Ready]]
    """Prepares the operation. If it raises an exception, the point is reported as absent, with the exception as the
    reason.
    """
    work: float = 0.0
    """Work per call in `unit`; 0 if the time alone is the result."""
    unit: str = ""
    """FLOP, B (bytes) or any other unit; rates are in `unit`/s."""
    threads: int = 1
    """Number of processors to which the process is bound, and number of threads for its libraries."""


class Benchmark(Protocol):
    """A benchmark of the machine, for the verb `machine`. The harness constructs it without arguments."""

    about: str
    """The subject of the benchmark, in one line."""

    def points(self, threads: int) -> Iterable[Point]:
        """Yields the points, which must be the same in every process. Must not import a framework.

        threads: number of threads that the machine can run at the same time.
        """
        ...
