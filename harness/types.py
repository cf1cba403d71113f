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
    Array = Any  # the command line imports this module and must not wait for NumPy

Outputs = Array | Sequence[Array] | Mapping[str, Array]
"""The outputs of `Backend.infer`: n rows, or n arrays, or n rows under each output's name."""

Take = Callable[[Array, Array | list[int], Array], None]
"""Copies rows, chosen by their places in the first array, to the last array."""


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
    """An int if the bound is whole, and so is `low`; a float would round an int64."""

    def __str__(self) -> str:
        return f"{self.low}:{self.high}"


class Table(NamedTuple):
    """A table of a model, e.g. an embedding, and the operator that selects its rows."""

    operator: str
    """Its name in the file's format, e.g. Gather."""
    rows: int


Shape = Sequence[int | str | None]
"""Sizes; a size that varies is None or a name."""


_NAMELESS = re.compile(r"\?*|-?\d+|None|unk__\d+", re.IGNORECASE)
"""Names that exporters write for a size without a name; two sizes with such a name need not be equal."""


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
    """The first entry is the batch. An entry that varies is None or a name."""


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
    """Returns the batch size that a model's file fixes; None if every input allows any size.

    Raises a ConfigError if the first dimension of an input is not the batch: inputs fix different sizes, or
    the batch is a later dimension, e.g. of a state with the shape [layers, batch, hidden].
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

    first: open first dimensions of the inputs. others: the sizes after them, whose names do not mean the batch.
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
    """n samples that a backend answers at once."""

    size: int
    """n. The backend does not get the dataset indices, because it could use them to answer from a table."""
    inputs: Mapping[str, Array]
    """(n, ...) array by input name; read-only, because it may be a view into the dataset."""


class Decoding(NamedTuple):
    """How a language model answers: greedily, one token at a time."""

    context: int
    """The most tokens of a prompt together with its answer."""
    vocabulary: int
    """The number of tokens: ids are below."""
    end: tuple[int, ...]
    """The tokens that end an answer."""


class Transcribing(NamedTuple):
    """How a model of speech answers: with the text of a sound, greedily, one token at a time."""

    language: str | None
    """The language of the speech, e.g. `en`; None for a model of one language."""
    most: int
    """The most tokens of an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSetup:
    """The parameters of a backend."""

    model: Path | None
    """The model file; None if the model has no file in a format that the backend reads."""
    model_name: str
    """For messages."""
    inputs: tuple[TensorSpec, ...] = ()
    """The inputs that the manifest declares, as they are in the file; () without a manifest."""
    batch_axes: Mapping[str, int | None] | None = None
    """Batch axis by input name, None for an input without a batch, if the caller lays out the arrays; `infer` then takes
    them as the file has them and does not pad. None: the batch is the first dimension of each input and output.
    """
    names: Mapping[str, str] = field(default_factory=dict)
    """Manifest name of an input or output -> its name in the file, if the names differ."""
    threads: int = 1
    """Threads that this instance may compute with, >= 1."""
    instances: int = 1
    """Instances in this process."""
    device: str = "cpu"
    """cpu or cuda."""
    max_batch: int = 1
    """Samples in the largest batch that `infer` will get."""
    owns_cores: bool = False
    """Whether no other instance of the process runs on this one's cores, so that its idle threads may spin."""
    cpus: tuple[int, ...] = ()
    """A logical processor for each thread, or () for any; only for backends with `elastic`. The instance binds the
    threads that it starts to the second and later processors, and they spin only while it computes.
    """
    provider: str | None = None
    """ONNX Runtime's execution provider, from --provider; None for the backend's default."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Values of --backend-option by name."""
    decoding: Decoding | None = None
    """Set for a language model that answers in this process; None for any other model."""
    transcribing: Transcribing | None = None
    """Set for a model of speech that answers in this process; None for any other model."""
    transport: str = "http"
    """Transport of a remote backend's requests, from the scheme of --url: http or grpc."""


class Backend(Protocol):
    """One instance of a model on a framework. It does not get LoadGen's ids, dataset indices or a clock.

    Built as `Backend(setup)`. One thread at a time enters, calls and leaves an instance.

    Optional attributes:
    formats      the manifest's file formats that the backend reads, best first (a tuple of str)
    signature()  the inputs, once entered (HasSignature); needed for models without a manifest
    outputs()    the names of the outputs, once entered (HasOutputs); () if the file has none
    buffers()    memory into which its batches are copied (HasBuffers)
    used()       what the run used of a device other than the processor (HasUse)
    holds_gil    True if the framework keeps Python's GIL while it computes: several instances then run in separate
                 processes, unless --backend-option processes=off
    tunable      options that change nothing but speed, and the values `tune` tries (name -> tuple
                 of str)
    elastic      True if an instance can bind its threads to BackendSetup.cpus, so that an instance
                 with all cores can answer queries that are alone
    profiler()   for the layer level of `profile` (harness/profiler.py)
    begin(), step(), leave()  a token engine, for language models (GeneratesTokens)
    listen(), text()  with step() and leave(): a speech engine (TranscribesSpeech)
    """

    def __init__(self, setup: BackendSetup, /) -> None: ...

    def __enter__(self) -> Self:
        """Loads the model. Raises a ConfigError if the user's file is at fault."""

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
        """Returns versions, device, precision and threads: the actual values, not the configured ones.

        device: begins with `cpu` if this machine's cores compute; a backend that only waits then gets a doubt.
        precision: the number type the model computes in, by a name of harness/core/number_types.py.
        `compare` ranks runs of two backends only if they have the same precision.
        """


@runtime_checkable
class HasBuffers(Protocol):
    """A backend that reads its batches from its own memory, e.g. memory from which a GPU copies."""

    def buffers(self, size: int, /) -> Mapping[str, Array] | None:
        """Returns (size, ...) arrays by input name, into which the rows of the next batch may be copied.

        The batch after that overwrites them. Returns None if the backend has no arrays of that size.
        """

    def take(self, rows: Array, places: Array | list[int], into: Array, /) -> None:
        """Copies rows[places] to `into`, an array of `buffers`, with the threads of the instance."""


@runtime_checkable
class HasUse(Protocol):
    """A backend that reports what it used of a device other than the processor."""

    def used(self) -> Mapping[str, object]:
        """Returns numbers and texts, e.g. of memory. Called on each instance after the run; added to `describe`."""


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
    """A backend that keeps the cache of a language model itself and chooses the tokens, greedily: a token engine.

    The harness then calls neither `infer` nor `signature`. One thread calls these methods.
    """

    def begin(self, key: int, prompt: Sequence[int], most: int, *, ignores_end: bool) -> None:
        """Lets an answer join at the next step.

        key: unique among active answers. most: the most tokens of the answer. ignores_end: an end does not end the answer.
        """

    def step(self) -> Sequence[tuple[int, int]]:
        """Returns the key and the new token of each answer that has one. Called while an answer is active; waits for a token."""

    def leave(self, key: int) -> None:
        """Forgets an active answer, which is complete or not wanted any more."""


@runtime_checkable
class TranscribesSpeech(Protocol):
    """A backend that answers sounds with tokens, greedily: a speech engine. `step` and `leave`: see GeneratesTokens."""

    end: tuple[int, ...]
    """The tokens that end an answer; set once the engine has been entered."""

    def listen(self, key: int, sound: Array, most: int) -> None:
        """Lets an answer join at the next step.

        key: of no active answer. sound: (samples,) float32 in [-1, 1]. most: the most tokens of the answer.
        """

    def step(self) -> Sequence[tuple[int, int]]: ...

    def leave(self, key: int) -> None: ...

    def text(self, tokens: Sequence[int]) -> str:
        """Returns the text of an answer's tokens without its end."""


class Network(NamedTuple):
    """Properties that show whether two model files hold the same network."""

    weights: Sequence[tuple[tuple[int, ...], str]]
    """Shape and number type of each weight."""
    strides: Sequence[tuple[int, ...]] | None
    """Strides of each convolution, one per axis; None if unknown."""
    macs: int | None
    """Multiplications of one batch in convolutions and matrix products; None if unknown."""


@runtime_checkable
class HasNetwork(Protocol):
    """A backend that reports the network it has loaded, for formats that no other code here reads."""

    def network(self, batch: Batch, /) -> Network:
        """Returns the network. Not timed; it may run `batch`."""


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
    """Folder where preprocessed samples may stay between runs."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The user's sizes of symbolic dimensions by input name."""
    lengths: Mapping[str, Lognormal | Path] = field(default_factory=dict)
    """Lengths of the samples along a symbolic dimension by its name: a distribution, or a file with
    one length per line.
    """
    ranges: Mapping[str, Interval] = field(default_factory=dict)
    """The user's ranges of numbers by input name."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Values of --dataset-option by name."""
    tables: Callable[[], Mapping[str, Table]] = dict
    """Reads from the model's file, by input name, the smallest table that the input selects rows of.

    An input is missing if it selects no rows, or if the file does not show that it does.
    """
    seed: int = 0
    progress: Callable[[int, int], None] = lambda _done, _total: None
    """Called now and then by `load`, on its thread, with the samples done and their total."""


class Dataset(Protocol):
    """LoadGen's sample library plus labels. Built as `Dataset(setup)`; building must be cheap.

    Optional attributes:
    performance_count  the most samples that a performance run holds in memory
    options            the names of --dataset-option that it takes (tuple of str)
    synthetic          True if answers are neither right nor wrong
    batch_into()       see HasBatchInto
    lengths()          see HasLengths; faults(), calibration(), class_names() and turns(): see HasFaults,
                       HasCalibration, HasClassNames, HasTurns, HasSessions, HasLiveHistory, HasOwnOrder
    """

    def __init__(self, setup: DatasetSetup, /) -> None: ...

    def __len__(self) -> int: ...

    def load(self, indices: Sequence[int], /) -> None:
        """Decodes and preprocesses the samples. Not timed.

        Rows must keep the order of `indices`: LoadGen shuffles them and issues Offline in that order.
        MultiStream pads them at the end with duplicates.
        """

    def unload(self, indices: Sequence[int], /) -> None: ...

    def batch(self, indices: Sequence[int], /) -> Batch:
        """Gathers loaded samples. Timed: should return a view of contiguous rows, else copy once."""

    def label(self, index: int, /) -> object:
        """Returns the correct answer; None if the sample has none."""

    def describe(self) -> Mapping[str, object]:
        """Returns name, count, source, and `digest`: a SHA-256 that changes with the data behind the samples.

        For images it covers the files' names and sizes: reading all files would take as long as a run.
        """


@runtime_checkable
class HasLengths(Protocol):
    """A dataset whose samples differ in length: Offline batches samples of similar length."""

    def lengths(self, indices: Sequence[int], /) -> Array | None:
        """Returns (n,) numbers that grow with the work of each loaded sample; None if all samples are equal."""


@runtime_checkable
class HasBatchInto(Protocol):
    """A dataset that copies the rows of a batch into the backend's buffers."""

    def batch_into(self, indices: Sequence[int], into: Mapping[str, Array], take: Take, /) -> Batch:
        """Returns the batch like `Dataset.batch`; copies rows that are not adjacent into `into`, with `take`.

        into: (n, ...) arrays by input name. take: HasBuffers.take of the backend.
        """


@runtime_checkable
class HasClassNames(Protocol):
    """A dataset whose labels are numbers of classes with names."""

    def class_names(self) -> Mapping[int, str]:
        """Maps a label, or the category_id of an object, to its name; empty if the data have no names."""


@runtime_checkable
class HasTurns(Protocol):
    """A dataset of conversations: adjacent samples are the turns of one conversation, in order."""

    def turns(self) -> Array:
        """Returns (len(dataset),) the turn of each sample in its conversation, from 0."""


class SessionTurns(NamedTuple):
    """The turns of sessions, by dataset index. Adjacent samples belong to one session."""

    session: Array
    """(n,) the number of the sample's session."""
    after: Sequence[Sequence[int]]
    """(n,) the samples of the same session whose answers the sample waits for, all of them earlier ones."""
    delay_ns: Array
    """(n,) time from the last of these answers, or from the session's start, until the sample is due."""


@runtime_checkable
class HasSessions(Protocol):
    """A dataset whose samples are the turns of sessions, e.g. the calls of an agent and its subagents."""

    def sessions(self) -> SessionTurns: ...


@runtime_checkable
class HasOwnOrder(Protocol):
    """A dataset whose samples are answered in its order, e.g. by time, whichever samples LoadGen draws.

    Its `describe` has `identity_bytes`: the bytes at the beginning of an answer that identify its sample.
    """

    labelled: bool
    """Set before the run: whether the official log of this run's answers has the labels, as in an accuracy run."""

    def next(self, count: int, /) -> list[int]:
        """Returns the next samples, from the first one after each `load`. Called on LoadGen's issuing thread."""

    def identified(self, answers: Sequence[Array], indices: Sequence[int], /) -> list[Array]:
        """Returns the answers in the form of the official log, each behind the identity of its sample."""


@runtime_checkable
class HasLiveHistory(Protocol):
    """A dataset of sessions that can put the model's own answers into later prompts."""

    live_history: bool
    """Whether later prompts contain the model's own answers."""

    def continue_with(self, index: int, answers: Mapping[int, bytes], /) -> None:
        """Makes the prompt of a loaded turn, until the next call. answers: dataset index of an earlier turn -> text."""


@runtime_checkable
class HasFaults(Protocol):
    """A dataset that can check each of its samples without loading it."""

    def faults(self) -> Iterable[str]:
        """Yields one line for every sample that cannot be used."""


@runtime_checkable
class HasCalibration(Protocol):
    """A dataset with further samples, which are never scored, for quantisation."""

    def calibration(self) -> Dataset:
        """Returns a dataset with the same inputs that shares no sample with this dataset."""


class ClassName(str):
    """A label that is a text with a class number: metrics of texts read the text, metrics of classes the number."""

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
    """Further values by name, e.g. the exact match in addition to F1."""
    lower_is_better: bool = False
    """True for error rates: a target is the highest value that may be quoted."""
    scorer: str = ""
    """The program that computed the score, with its SHA-256; '' if the metric computed it."""


class Metric(Protocol):
    """Scores answers by labels. Built as `Metric(dtype)`, with the dtype of an answer's row."""

    def __init__(self, dtype: str, /) -> None: ...

    def score(self, answers: Iterable[Answer], labels: Mapping[int, object], /) -> Score:
        """Returns the score. answers: one for each dataset index, without repeats."""


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
        """Raises a ValueError with the label and what the metric accepts, if a label is wrong.

        labels: the labels of all samples.
        """


@runtime_checkable
class HasClassCheck(Protocol):
    """A metric whose labels are numbers of classes."""

    def check_classes(self, labels: Mapping[int, object], classes: range, /) -> None:
        """Raises a ValueError that names a label outside of the classes that the model can answer."""


class Quantity(NamedTuple):
    """A number with its name, its unit and its source."""

    name: str
    value: float
    unit: str
    source: str
    """The program or file that the value comes from, e.g. LoadGen."""


class PowerSource(NamedTuple):
    """One counter or sensor of a power meter."""

    name: str
    """Unique within the meter, e.g. `rapl:package-0`."""
    domain: str
    """The part of the machine that it covers, in words."""
    unit: Literal["J", "W"]
    """J: a counter of joules, which only grows. W: the power at the moment of reading."""
    wraps_at_joules: float | None = None
    """The value at which a counter begins at 0 again; None if it never does."""
    provenance: Literal["measured", "estimated"] = "measured"


class PowerMeter(Protocol):
    """Reads energy or power, in the supervisor, on one separate thread.

    Built as `Meter(argument)`, with the text after `NAME=` in --meter, or ''.
    """

    def __init__(self, argument: str, /) -> None: ...

    def __enter__(self) -> Self:
        """Finds the sources. Raises a ConfigError with the cause and a remedy if there are none."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

    def sources(self) -> Sequence[PowerSource]:
        """Returns the sources that `read` reads, once entered: at least one, and always the same."""

    def read(self) -> Sequence[float | Exception | None]:
        """Returns one value per source, in the source's unit; None or an exception if it has no value now.

        May wait up to a second for the next value. Raises if no source can be read.
        """


class Ready(NamedTuple):
    """An operation of a benchmark whose data are allocated and touched."""

    call: Callable[[], object]
    """The timed operation."""
    between: Callable[[], object] | None = None
    """Called before each timed call and not timed, e.g. to evict the data from the caches."""
    facts: Mapping[str, Any] = MappingProxyType({})
    """Facts found while the operation was made ready, as JSON: kernel names, errors of the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One operation of a benchmark of the machine, and the work that each call does."""

    settings: Mapping[str, str | int]
    """Values that form the point's name: benchmark/value/value. Points with a different `library` or number of
    threads are measured in separate processes.
    """
    open: Callable[[], AbstractContextManager[Ready]]
    """Makes the operation ready; an exception is the reason why the point is absent."""
    work: float = 0.0
    """Work per call in `unit`; 0 if the time alone is the result."""
    unit: str = ""
    """FLOP, B (bytes), or any other; the rate is in unit/s."""
    threads: int = 1
    """Processors that the process is bound to, and threads that its libraries get."""


class Benchmark(Protocol):
    """A benchmark of the machine, for the verb `machine`. Made without arguments."""

    about: str
    """The subject of the benchmark, in one line."""

    def points(self, threads: int) -> Iterable[Point]:
        """Yields the points, the same ones in each process; must not import a framework.

        threads: the number of threads that the machine can run at once.
        """
        ...
