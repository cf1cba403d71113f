"""Defines the types that all rooms share, and the protocols of plug-ins."""

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
    Array = Any  # the command line needs this module and must not wait for NumPy

Outputs = Array | Sequence[Array] | Mapping[str, Array]
"""The outputs of `Backend.infer`: n rows, or n arrays, or n rows under each output's name."""


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
    """An int where it is whole, as `low`: a float would round int64."""

    def __str__(self) -> str:
        return f"{self.low}:{self.high}"


class Table(NamedTuple):
    """A table of a model, e.g. an embedding, and the operator that selects its rows."""

    operator: str
    """In the words of the file's format, e.g. Gather."""
    rows: int


Shape = Sequence[int | str | None]
"""Sizes; a size that varies is None or a name."""


_NAMELESS = re.compile(r"\?*|-?\d+|None|unk__\d+", re.IGNORECASE)
"""Names that exporters write for a size without a name: two of them need not be equal."""


def declared_shape(sizes: Iterable[int | str | None]) -> tuple[int | str | None, ...]:
    """The shape as a model file declares it: None for each size below 1, and for one without a real name."""
    return tuple(
        (None if _NAMELESS.fullmatch(size.strip()) else size)
        if isinstance(size, str)
        else (None if size is None or size < 1 else int(size))
        for size in sizes
    )


def show_shape(shape: Shape) -> str:
    """A shape in messages, e.g. `[batch, 3, ?]`."""
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


class TensorSpec(NamedTuple):
    """One input of a model."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]
    """The first entry is the batch. An entry that varies is None or a name."""


BATCH_FIRST = (
    "export the model with the batch as the first dimension of every input, or call the file from a backend of "
    "your own, which holds its states and scalars: docs/plugins.md#states-and-scalars has one of 30 lines"
)
"""The end of each message about an input that is not a batch of samples."""


OTHER_NAMES = (
    "if the file uses other names, list them as `names` of this file in the manifest, e.g. {image: input_2}: "
    "docs/manifest.md#one-network-in-several-formats"
)
"""The end of each message about an input or output of the manifest that a file lacks."""


def fixed_batch(inputs: Iterable[TensorSpec]) -> int | None:
    """The batch size that a model's file fixes; None where every input allows any size.

    Raises a ConfigError where the first dimension of an input is not the batch: where inputs fix different
    sizes, or where the batch is a later dimension, as in a state of the shape [layers, batch, hidden].
    """
    shaped = [s for s in inputs if s.shape]
    fixed = {s.name: s.shape[0] for s in shaped if isinstance(s.shape[0], int)}
    if len(set(fixed.values())) > 1:
        sizes = ", ".join(f"{name} {size}" for name, size in fixed.items())
        raise ConfigError(
            f"the model's inputs fix different first dimensions ({sizes}): {BATCH_FIRST}"
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
    """Whether a dimension behind the first one is the batch, as in [layers, batch, hidden].

    first: the open first dimensions of the other inputs. others: the sizes behind them, whose names are of no batch.
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
    """n. The backend does not learn the dataset indices: it could answer from a table."""
    inputs: Mapping[str, Array]
    """(n, ...) array by input name; read-only, since it may be a view into the dataset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSetup:
    """The parameters of a backend."""

    model: Path | None
    """The model file; None where the model has no file in a format that the backend reads."""
    model_name: str
    """For messages."""
    inputs: tuple[TensorSpec, ...] = ()
    """The inputs that the manifest declares; () without a manifest."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The manifest's name of an input or output -> its name in the file, where that is another."""
    threads: int = 1
    """Threads that this instance may compute with, >= 1."""
    instances: int = 1
    """Instances in this process."""
    device: str = "cpu"
    """cpu or cuda."""
    max_batch: int = 1
    """Samples in the largest batch that `infer` will get."""
    owns_cores: bool = False
    """Only this instance of the process runs on its cores, so its idle threads may spin."""
    cpus: tuple[int, ...] = ()
    """A logical processor for each thread: the instance binds the threads that it starts to the second and further
    ones, and they spin only while it computes. () for any. Only for backends with `elastic`.
    """
    provider: str | None = None
    """ONNX Runtime's execution provider, from --provider; None: the backend's default."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Values of --backend-option by name."""
    transport: str = "http"
    """Transport of a remote backend's requests, from the scheme of --url: http or grpc."""


class Backend(Protocol):
    """One instance of a model on a framework. It gets neither LoadGen's ids nor dataset indices nor a clock.

    Built as `Backend(setup)`. One thread at a time enters, calls and leaves an instance.

    Optional attributes:
    formats      the manifest's file formats that the backend reads, best first (a tuple of str)
    signature()  the inputs, once entered (HasSignature); needed for models without a manifest
    outputs()    the names of the outputs, once entered (HasOutputs); () where the file has none
    buffers()    memory in which it wants its batches (HasBuffers)
    used()       what it used in the run, of another device than the processor (HasUse)
    tunable      options that change nothing but speed, and the values `tune` tries (name -> tuple
                 of str)
    elastic      True where an instance can bind its threads to BackendSetup.cpus, so that one with
                 all cores can answer queries that are alone
    profiler()   for the layer level of `profile` (harness/profiler.py)
    """

    def __init__(self, setup: BackendSetup, /) -> None: ...

    def __enter__(self) -> Self:
        """Load the model. Raise a ConfigError where the user's file is at fault."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        """Free the model."""

    def infer(self, batch: Batch, /) -> Outputs:
        """Return `batch.size` outputs, in the order of the inputs' rows."""

    def describe(self) -> Mapping[str, object]:
        """Versions, device, precision, threads: as they are, not as the user configured them.

        device: begins with `cpu` where this machine's cores compute; a backend that only waits is then doubted.
        precision: the number type the model computes in, by a name of harness/core/number_types.py.
        `compare` ranks runs of two backends only where it is the same.
        """


@runtime_checkable
class HasBuffers(Protocol):
    """A backend that reads its batches from memory that it owns, e.g. memory that a GPU copies from."""

    def buffers(self, size: int, /) -> Mapping[str, Array] | None:
        """(size, ...) arrays by input name, into which the rows of its next batch may be copied; None where it
        has none for that size. The batch after that overwrites them.
        """


@runtime_checkable
class HasUse(Protocol):
    """A backend that reports what it used of another device than the processor."""

    def used(self) -> Mapping[str, object]:
        """Numbers and texts, e.g. of memory. Called on each instance after the run; joins what `describe` said."""


@runtime_checkable
class HasSignature(Protocol):
    """A backend that reports its inputs once it has loaded the model."""

    def signature(self) -> tuple[TensorSpec, ...]: ...


@runtime_checkable
class HasOutputs(Protocol):
    """A backend that reports the names of its outputs once it has loaded the model."""

    def outputs(self) -> tuple[str, ...]: ...


class Network(NamedTuple):
    """Properties that show whether two model files hold the same network."""

    weights: Sequence[tuple[tuple[int, ...], str]]
    """Shape and number type of each weight."""
    strides: Sequence[tuple[int, ...]] | None
    """Strides of each convolution, one an axis; None where unknown."""
    macs: int | None
    """Multiplications of one batch in convolutions and matrix products; None where unknown."""


@runtime_checkable
class HasNetwork(Protocol):
    """A backend that reports the network it has loaded, from files that no other code here reads."""

    def network(self, batch: Batch, /) -> Network:
        """The network. Not timed; it may run `batch`."""


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
    one length a line.
    """
    ranges: Mapping[str, Interval] = field(default_factory=dict)
    """The user's ranges of numbers by input name."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Values of --dataset-option by name."""
    tables: Callable[[], Mapping[str, Table]] = dict
    """Reads the model's file: the smallest table that each input selects rows of, by input name.

    An input is missing where it selects none, or where the file does not show it.
    """
    seed: int = 0
    progress: Callable[[int, int], None] = lambda _done, _total: None
    """Called now and then by `load`, on its thread, with the samples done and their total."""


class Dataset(Protocol):
    """LoadGen's sample library plus labels. Built as `Dataset(setup)`; building must be cheap.

    Optional attributes:
    performance_count  the most samples that a performance run holds in memory
    options            the names of --dataset-option that it takes (tuple of str)
    synthetic          True where answers are neither right nor wrong
    batch_into()       see HasBatchInto
    lengths()          see HasLengths; faults(), calibration(), class_names() and turns(): see HasFaults,
                       HasCalibration, HasClassNames, HasTurns
    """

    def __init__(self, setup: DatasetSetup, /) -> None: ...

    def __len__(self) -> int: ...

    def load(self, indices: Sequence[int], /) -> None:
        """Decode and preprocess the samples. Not timed.

        Rows must keep the order of `indices`: LoadGen shuffles them and issues Offline in that order.
        MultiStream pads them at the end with duplicates.
        """

    def unload(self, indices: Sequence[int], /) -> None: ...

    def batch(self, indices: Sequence[int], /) -> Batch:
        """Gather loaded samples. Timed: return a view of contiguous rows, else copy once."""

    def label(self, index: int, /) -> object:
        """The right answer; None where the sample has none."""

    def describe(self) -> Mapping[str, object]:
        """Name, count, source, and `digest`: a SHA-256 that changes with the data behind the samples.

        For images it is of the files' names and sizes: reading all of them would take as long as a run.
        """


@runtime_checkable
class HasLengths(Protocol):
    """A dataset whose samples differ in length: Offline batches samples of similar length."""

    def lengths(self, indices: Sequence[int], /) -> Array | None:
        """(n,) numbers that grow with the work of each loaded sample; None where all are equal."""


@runtime_checkable
class HasBatchInto(Protocol):
    """A dataset that copies the rows of a batch to where the backend wants them."""

    def batch_into(self, indices: Sequence[int], into: Mapping[str, Array], /) -> Batch:
        """Returns the batch like `Dataset.batch`; copies rows that are not adjacent into `into`.

        into: (n, ...) arrays by input name.
        """


@runtime_checkable
class HasClassNames(Protocol):
    """A dataset whose labels are numbers of classes with names."""

    def class_names(self) -> Mapping[int, str]:
        """Label, or category_id of an object, -> name; empty where the data have none."""


@runtime_checkable
class HasTurns(Protocol):
    """A dataset of conversations, each a number of adjacent samples in the order of its turns."""

    def turns(self) -> Array:
        """(len(dataset),) the turn of each sample, from 0, which is the first of its conversation."""


@runtime_checkable
class HasFaults(Protocol):
    """A dataset that can check each of its samples without loading it."""

    def faults(self) -> Iterable[str]:
        """Yield one line for every sample that cannot be used."""


@runtime_checkable
class HasCalibration(Protocol):
    """A dataset with further samples, which are never scored, for quantisation."""

    def calibration(self) -> Dataset:
        """A dataset with the same inputs and none of the samples of this one."""


class ClassName(str):
    """A label that is a text: metrics of texts read the text, metrics of classes the class's number."""

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
    """Further values by name, e.g. the exact match beside F1."""
    lower_is_better: bool = False
    """True for error rates: a target is the highest value that may be quoted."""


class Metric(Protocol):
    """Scores answers by labels. Built as `Metric(dtype)`, with the dtype of an answer's row."""

    def __init__(self, dtype: str, /) -> None: ...

    def score(self, answers: Iterable[Answer], labels: Mapping[int, object], /) -> Score:
        """answers: one for each dataset index, without repeats."""


@runtime_checkable
class HasAnswerShape(Protocol):
    """A metric that checks the shape of answers before the run."""

    def check_shape(self, shape: Sequence[int | None], /) -> None:
        """Raise a ValueError that names the shape the metric takes.

        shape: of one answer; an entry is None where answers differ in size.
        """


@runtime_checkable
class HasLabelCheck(Protocol):
    """A metric that checks the labels before the run."""

    def check_labels(self, labels: Mapping[int, object], /) -> None:
        """Raise a ValueError that names a label and what the metric takes. labels: of all samples."""


@runtime_checkable
class HasClassCheck(Protocol):
    """A metric whose labels are numbers of classes."""

    def check_classes(self, labels: Mapping[int, object], classes: range, /) -> None:
        """Raise a ValueError that names a label outside of the classes that the model can answer."""


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
    """The value at which a counter begins at 0 again; None where it never does."""
    provenance: Literal["measured", "estimated"] = "measured"


class PowerMeter(Protocol):
    """Reads energy or power, in the supervisor, on one separate thread.

    Built as `Meter(argument)`, with the text after `NAME=` in --meter, or ''.
    """

    def __init__(self, argument: str, /) -> None: ...

    def __enter__(self) -> Self:
        """Find the sources. Raise a ConfigError with the cause and a remedy where there are none."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

    def sources(self) -> Sequence[PowerSource]:
        """The sources that `read` reads, once entered: at least one, and always the same."""

    def read(self) -> Sequence[float | Exception | None]:
        """One value a source, in its unit; None or an exception where it has no value now.

        It may wait up to a second for the next value. It raises where no source can be read.
        """


class Ready(NamedTuple):
    """An operation of a benchmark whose data are allocated and touched."""

    call: Callable[[], object]
    """The operation that is timed."""
    between: Callable[[], object] | None = None
    """Called before each timed call and not timed, e.g. to evict the data from the caches."""
    facts: Mapping[str, Any] = MappingProxyType({})
    """Facts found while the operation was made ready, as JSON: kernel names, errors of the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One operation of a benchmark of the machine, and how much work a call of it is."""

    settings: Mapping[str, str | int]
    """They make the point's name: benchmark/value/value. Points with another `library` or number of
    threads are measured in another process.
    """
    open: Callable[[], AbstractContextManager[Ready]]
    """Makes the operation ready; an exception is the reason why the point is absent."""
    work: float = 0.0
    """Work of a call in `unit`; 0 where the time alone is the result."""
    unit: str = ""
    """FLOP, B (bytes), or another; the rate is in unit/s."""
    threads: int = 1
    """Processors that the process is bound to, and threads that its libraries get."""


class Benchmark(Protocol):
    """A benchmark of the machine, for the verb `machine`. Made without arguments."""

    about: str
    """The subject of the benchmark, in one line."""

    def points(self, threads: int) -> Iterable[Point]:
        """The points, the same ones in each process; imports no framework.

        threads: how many the machine can run at once.
        """
        ...
