"""The content of advise.json. Times are in ns unless a name states another unit."""

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict


class AccuracyCost(TypedDict, total=False):
    """Comparison of the int8 file with the model's own file; only `failed` if it could not be made."""

    failed: str
    quantised: bool
    """Whether the model's own file is already quantised."""
    samples: int
    metric: str | None
    unit: str
    own_score: float | None
    score: float | None
    """Values of `metric` for the model's own file and for the int8 file; None for the reason in `no_score`."""
    drop: float | None
    """Positive if the int8 file is less accurate."""
    no_score: str
    agreement: float
    """Share of the samples for which both files give the same answer, in [0, 1]."""
    relative_l2: float | None
    """Mean distance between float answers, divided by the mean length of the answers."""
    broken: str
    """Reason why the file's answers must be wrong; "" if they may be right."""
    sha256: str
    quantisation_samples: int
    quantisation_samples_are_scored: bool
    about: str


class Realised(TypedDict):
    """Measured gain of a setting over alternating pairs."""

    ratio: float
    low: float | None
    high: float | None
    clock: str
    pairs: int
    gain: float
    """Share of the time that is saved."""


class AdviceEntry(TypedDict):
    """The fields and properties of `predict.Advice`."""

    question: str
    setting: str
    change: str
    clock: str
    now_ns: float
    predicted_ns: float
    realised: Realised | None
    accuracy: AccuracyCost | None
    needs: str
    gain: float
    within: bool | None
    verdict: str


class Measured(TypedDict):
    """Time of the whole model."""

    wall_ns: float
    median_wall_ns: float
    cpu_ns: float
    clock: str
    wall_over_cpu: float | None
    """None if a setting uses several threads."""
    contended: bool
    """Whether other processes must have used the thread's core."""


class Bound(TypedDict):
    """Time of the layers under their best settings."""

    sequential_ns: float
    parallel_ns: float
    """Time of the critical path."""
    ratio: float
    """Lower bound divided by the measured time, as Benanza defines it."""
    parallel_ratio: float
    path: Sequence[int]
    """Layers on the critical path."""


class LowerBound(Bound):
    clock: str
    by_clock: Mapping[str, Bound]
    units: int
    """Number of layers."""
    why_none: str
    """Reason why the time of the layers is not a lower bound; "" if it is one."""


class Coverage(TypedDict):
    work_nodes: float
    """Share of the nodes whose operator has a FLOP rule."""
    work_time: float | None
    """Share of the kernel time of such nodes."""
    work_missing: Mapping[str, int]
    layers_alone: int
    """Number of layers that were measured alone."""
    layers: int
    layers_time: float
    """Share of the layers' time in the model that was measured alone."""
    layers_missing: Mapping[str, int]
    why_missing: Sequence[str]


class Layer(TypedDict):
    """A distinct layer. Times refer to one occurrence."""

    key: str
    ops: str
    count: int
    first: str
    makes: str
    now_ns: float | None
    best_ns: float
    best: str
    gain_ns: float | None
    """Sum over all occurrences."""
    in_model_ns: float
    macs: int | None
    flops: int | None
    bytes: int


class Level(TypedDict):
    """The whole model at a graph level."""

    graph: str
    kernels: int | None
    fused: int
    inserted: int
    predicted_ns: float | None
    measured_ns: float | None
    failed: str | None


class MovingKernel(TypedDict):
    """A kernel that computes nothing."""

    name: str
    op: str
    why: str
    ns: float


class Kernels(TypedDict):
    executed: int
    nodes: int
    unexpected: Sequence[MovingKernel]
    between_ns: float
    """Time between kernels."""
    run_ns: float
    in_file: Sequence[str]
    """Nodes that the model's author could remove."""


class Unpredicted(TypedDict):
    """A setting that was measured only on the whole model."""

    question: str
    change: str
    gain: float


class Question(TypedDict):
    question: str
    asked: str
    answer: str


class Content(TypedDict):
    model: Mapping[str, Any]
    batch: int
    host: str
    runtime: str
    now: str
    """The current setting."""
    stopped: bool
    measured: Measured
    lower_bound: LowerBound
    work: Mapping[str, Any]
    """Sum of the layers' operations and traffic."""
    coverage: Coverage
    layers: Sequence[Layer]
    """Slowest first."""
    levels: Sequence[Level]
    kernels: Kernels
    advice: Sequence[AdviceEntry]
    """By descending gain; entries that need a decision come last."""
    top: AdviceEntry | None
    unpredicted: Sequence[Unpredicted]
    accuracy: AccuracyCost | None
    """None unless --vary includes precision."""
    peaks: Mapping[str, float]
    counted: Mapping[str, int]
    """Numbers of measurements that were made, reused, and found on another machine."""
    questions: NotRequired[Sequence[Question]]
    parts: NotRequired[Mapping[str, Any]]
    """Measurements that do not depend on the advice, by name."""
