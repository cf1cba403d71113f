"""The nouns every part shares, and the protocols a plug-in follows."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self, runtime_checkable

from harness.errors import ConfigError

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]
else:
    Array = Any  # the command line needs this module and must not wait for NumPy

Outputs = Array | Sequence[Array] | Mapping[str, Array]
"""What `Backend.infer` returns: n rows, or n arrays, or n rows under each output's name."""


class Lognormal(NamedTuple):
    """Lengths of sequences: median * exp(sigma * normal), a whole number from 1 to `most`."""

    median: float
    sigma: float
    most: int

    def __str__(self) -> str:
        return f"lognormal:median={self.median:.10g},sigma={self.sigma:.10g},max={self.most}"


class TensorSpec(NamedTuple):
    """One model input. shape: the first entry is the batch; None or a name where it varies."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]


def fixed_batch(inputs: Iterable[TensorSpec]) -> int | None:
    """The batch that a model's file fixes, None where every input leaves it open.

    A ConfigError when the inputs fix different ones: then it is no batch at all.
    """
    fixed = {s.name: s.shape[0] for s in inputs if s.shape and isinstance(s.shape[0], int)}
    if len(set(fixed.values())) > 1:
        told = ", ".join(f"{name} {size}" for name, size in fixed.items())
        raise ConfigError(
            f"the model's inputs fix different first dimensions ({told}): the first dimension of "
            "every input must be the batch; export the model so"
        )
    return next(iter(fixed.values()), None)


class Step(NamedTuple):
    """One declared step of pre- or postprocessing, with every option filled in (harness/models/steps/steps.py)."""

    name: str
    options: Mapping[str, Any]


class Batch(NamedTuple):
    """What a backend answers: n samples.

    indices: (n,) dataset indices, in the order the outputs must have.
    inputs: input name -> (n, ...) array. It may be a view into the dataset: do not write to it.
    """

    indices: Sequence[int]
    inputs: Mapping[str, Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSetup:
    """What a backend is built from.

    model: the model file, None where the model has none in a format the backend reads.
    model_name: for messages.
    inputs: the inputs the manifest declares, () without a manifest.
    threads: threads this one instance may compute with, >= 1.
    instances: how many of them there are in this process.
    device: cpu or cuda.
    max_batch: the largest batch it will be given, in samples.
    owns_cores: nothing else of this process runs on this instance's cores, so that its idle threads
    may spin.
    """

    model: Path | None
    model_name: str
    inputs: tuple[TensorSpec, ...] = ()
    threads: int = 1
    instances: int = 1
    device: str = "cpu"
    max_batch: int = 1
    owns_cores: bool = False
    provider: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)


class Backend(Protocol):
    """One instance of a model on a framework. It sees no ids and no clock.

    Built as `Backend(setup)`. Each instance is entered, called and left by one thread at a time.
    Optional: `formats`, the manifest's file formats it reads, best first (a tuple of str);
    `signature()`, its input TensorSpecs once entered, needed for models without a manifest;
    `outputs()`, the names of its outputs once entered, () where the file names none; `tunable`, of
    its options those that change speed alone, with the values `tune` tries (name -> tuple of str);
    `profiler()`, for the layer level of `profile` (harness/profiler.py).
    """

    def __init__(self, setup: BackendSetup, /) -> None: ...

    def __enter__(self) -> Self:
        """Load the model. A ConfigError says that the user's file is at fault."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        """Free everything."""

    def infer(self, batch: Batch, /) -> Outputs:
        """Answer one output per index, in the order of `batch.indices`."""

    def describe(self) -> Mapping[str, object]:
        """Versions, device, precision, threads: as they are, not as they were asked for.

        precision: the number type the model computes in, by a name of harness/core/number_types.py.
        `compare` ranks runs of two backends only where it is the same.
        """


@runtime_checkable
class HasSignature(Protocol):
    """A backend that can tell its inputs once it has loaded the model."""

    def signature(self) -> tuple[TensorSpec, ...]: ...


@runtime_checkable
class HasOutputs(Protocol):
    """A backend that can tell the names of its outputs once it has loaded the model."""

    def outputs(self) -> tuple[str, ...]: ...


class Network(NamedTuple):
    """weights: shape and number type of each. strides: of each convolution, along its axes; None where
    they are not known. macs: multiplications of a batch in convolutions and matrix products, likewise.
    """

    weights: Sequence[tuple[tuple[int, ...], str]]
    strides: Sequence[tuple[int, ...]] | None
    macs: int | None


@runtime_checkable
class HasNetwork(Protocol):
    """A backend that can tell which network it has loaded, for files that nothing else reads here."""

    def network(self, batch: Batch, /) -> Network:
        """Untimed; it may compute an answer to `batch`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSetup:
    """What a dataset is built from.

    inputs: the model's inputs. shapes: sizes given for symbolic dimensions, by input name.
    lengths: how long a symbolic dimension is, sample by sample, by the dimension's name: a
    distribution, or a file with one length a line.
    steps: what the manifest declares for each input, by its name; none without a manifest.
    data_dir: where the user's files are. model_dir: the manifest's folder, e.g. for a vocabulary.
    cache_dir: where preprocessed samples may be kept between runs.
    progress: to be called in load now and then, on load's thread, with (samples done, of how many).
    """

    inputs: tuple[TensorSpec, ...] = ()
    steps: Mapping[str, tuple[Step, ...]] = field(default_factory=dict)
    data_dir: Path | None = None
    model_dir: Path | None = None
    cache_dir: Path | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    lengths: Mapping[str, Lognormal | Path] = field(default_factory=dict)
    seed: int = 0
    progress: Callable[[int, int], None] = lambda _done, _total: None


class Dataset(Protocol):
    """LoadGen's sample library plus labels. Built as `Dataset(setup)`; building must be cheap.

    Optional: `performance_count`, how many samples a performance run holds in memory at most;
    `synthetic = True` where answers have no right or wrong; `lengths` (HasLengths).
    """

    def __init__(self, setup: DatasetSetup, /) -> None: ...

    def __len__(self) -> int: ...

    def load(self, indices: Sequence[int], /) -> None:
        """Decode and preprocess (untimed). Rows stay in the order given; LoadGen shuffles it and
        then issues Offline in that order, and multi-stream ends it with duplicates as padding.
        """

    def unload(self, indices: Sequence[int], /) -> None: ...

    def batch(self, indices: Sequence[int], /) -> Batch:
        """Gather (timed): a view where the rows are contiguous, else one copy; never a decode."""

    def label(self, index: int, /) -> object:
        """The right answer, None where there is none."""

    def describe(self) -> Mapping[str, object]:
        """Name, count, source, `digest` (SHA-256 of what the samples are made from)."""


@runtime_checkable
class HasLengths(Protocol):
    """A dataset whose samples differ in length: Offline puts those of a length into one batch."""

    def lengths(self, indices: Sequence[int], /) -> Array | None:
        """(n,) numbers that grow with the work a loaded sample is; None where all are alike."""


@runtime_checkable
class HasFaults(Protocol):
    """A dataset that can look at each of its samples without loading it."""

    def faults(self) -> Iterable[str]:
        """One line for every sample that cannot be used, whatever else is wrong."""


@runtime_checkable
class HasCalibration(Protocol):
    """A dataset with samples beside those it is scored on, to calibrate a precision with."""

    def calibration(self) -> Dataset:
        """Of the same inputs; none of its samples is among the dataset's own."""


class Answer(NamedTuple):
    """One row of LoadGen's accuracy log. sample: its dataset index; payload: the bytes the harness answered with."""

    sample: int
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """value: in the metric's own unit, e.g. 99.2 for 99.2 %. line: accuracy.txt, official pattern.

    details: further values by name, e.g. the exact match beside F1. lower_is_better: of errors,
    where a target is the most that may be quoted.
    """

    metric: str
    value: float
    unit: str
    samples: int
    line: str
    details: Mapping[str, float] = field(default_factory=dict)
    lower_is_better: bool = False


class Metric(Protocol):
    """Answers and labels -> one score. Built as `Metric(dtype)`, the dtype of one answer row."""

    def __init__(self, dtype: str, /) -> None: ...

    def score(self, answers: Iterable[Answer], labels: Mapping[int, object], /) -> Score:
        """answers: one for each dataset index, every one once."""


@runtime_checkable
class HasAnswerShape(Protocol):
    """A metric that can tell by the shape of an answer that it is nothing to be scored."""

    def check_shape(self, shape: Sequence[int | None], /) -> None:
        """A ValueError says what it takes instead. shape: of one answer; None where sizes differ."""


class Quantity(NamedTuple):
    """A number that says what it is and where it comes from."""

    name: str
    value: float
    unit: str
    source: str


class PowerSource(NamedTuple):
    """One counter or sensor of a power meter.

    name: unique among a meter's, e.g. `rapl:package-0`. domain: what it covers, in words.
    unit: J where it counts joules and only grows, W where it tells the power of the moment.
    wraps_at_joules: where a counter begins at 0 again, None where it does not.
    provenance: measured or estimated.
    """

    name: str
    domain: str
    unit: Literal["J", "W"]
    wraps_at_joules: float | None = None
    provenance: Literal["measured", "estimated"] = "measured"


class PowerMeter(Protocol):
    """Reads energy or power, in the supervisor, on one thread of its own.

    Built as `Meter(argument)`: what follows `NAME=` in --meter, '' where nothing does.
    """

    def __init__(self, argument: str, /) -> None: ...

    def __enter__(self) -> Self:
        """Find what there is to read. A ConfigError says what stands in the way, and the way round."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

    def sources(self) -> Sequence[PowerSource]:
        """What `read` gives, once entered; never empty, never another later."""

    def read(self) -> Sequence[float | Exception | None]:
        """One number for each source, in joules or watts as its unit says; where it has none now, None
        or the exception that says why.

        It may wait for the next one, a second at most. It raises where nothing could be read.
        """
