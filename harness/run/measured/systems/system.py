"""Defines the interface of a system under test, which answers the queries of LoadGen's run."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from harness.loadgen.binding import Complete
from harness.loadgen.plan import LoadPlan
from harness.models.opened.loading import described
from harness.models.opened.separate_instance import SeparateInstance
from harness.run.journal import Journal
from harness.run.measured.answerer import Answerer
from harness.run.measured.dispatch.instance import Failures
from harness.run.measured.dispatch.threads import Dispatcher
from harness.run.measured.placement.fewer_threads import Reopen
from harness.run.measured.preparation import Preparation
from harness.run.setup import Setup
from harness.types import Backend, Dataset, TensorSpec

Progress = Callable[[int, int], None]
"""Called with the number of samples or models loaded so far, and with the total number."""


OF_KINDS = ("client", "tokens", "models", "backend", "elastic")
"""Keys of the `ended` message that exist only for some kinds of systems."""


class Dispatch(NamedTuple):
    """How LoadGen's queries reach the system."""

    dispatcher: Dispatcher
    name: str
    issuer: Sequence[int] = ()
    """Logical processors of LoadGen's thread; () for any."""


class RunParts(NamedTuple):
    """Parts of LoadGen's run that a dispatcher uses."""

    plan: LoadPlan
    preparation: Preparation
    journal: Journal
    failures: Failures
    complete: Complete | None
    """Receives the responses if the harness schedules; None if LoadGen schedules."""


class System(ABC):
    """A system under test. Call `open`, then `connect` when the form of the answers is known, `dispatch` for LoadGen's
    run, and `summary` after the run.
    """

    no_schedule = ""
    """Reason why a schedule of this system's batches cannot be simulated; "" if a simulation is possible."""
    no_probe = ""
    """Reason why a probe with changed inputs is impossible; "" if such a probe is possible."""
    may_vary = False
    """Whether samples may differ in shape; set by `open`."""
    fixed_batch: int | None = None
    """The only batch size that the model file allows; None if the file allows any size. `open` sets this value."""
    max_batch: int
    """Number of samples in the largest batch; `open` may lower it."""
    import_s = 0.0
    load_s: list[float]
    """Load time in seconds of each instance, or of each model of a set."""
    slowest_ns = 0
    """Time of the slowest query that must first load its model; 0 if models stay loaded. `open` sets this value."""
    separate: Sequence[SeparateInstance] = ()
    """Instances in separate processes."""
    reopen: Reopen | None = None
    """Reopens the only instance with a different number of threads; None if the number must not change. `open` sets
    this value.
    """

    in_order: Callable[[], list[int]] | None = None
    """Returns the samples of all queries after the run, in an order that does not depend on time. None if the issue
    order does not depend on time."""

    answerers: Sequence[Answerer]
    """One answerer per instance or connection; set by `open`."""
    dataset: Dataset
    held: int
    """Number of samples of the dataset that a run loads at once."""
    classes: range | None = None
    """The classes that the model can return; None if unknown. `check_steps` sets this value."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self.config = setup.config
        self._group = setup.instances
        self.max_batch = setup.instances.max_batch
        self.load_s = []

    @abstractmethod
    def open(self, stack: ExitStack, progress: Progress) -> Mapping[str, Any]:
        """Opens the model and the dataset, which `stack` closes, and returns the `loaded` message."""

    def check_steps(self, backend: Backend, dataset: Dataset, first: list[int]) -> None:  # noqa: B027 - optional for each kind
        """Raises ConfigError if the manifest's steps do not fit the output for dataset index `first`."""

    def check_numbers(self, dataset: Dataset, loaded: list[int]) -> None:  # noqa: B027 - optional for each kind
        """Raises ConfigError if a loaded sample contains a number without a row in the model's tables."""

    def described_again(self) -> Mapping[str, Any] | None:
        """Returns the new description if the model was reopened after the `loaded` message; otherwise None."""
        return None

    def connect(self, plan: LoadPlan, preparation: Preparation) -> None:  # noqa: B027 - optional for each kind
        """Opens and tests connections. Called when the plan is known and samples are loaded."""

    @abstractmethod
    def dispatch(self, parts: RunParts) -> Dispatch:
        """Returns the dispatcher for LoadGen's run."""

    def before_load(self) -> Callable[[Sequence[int]], None] | None:
        """Returns a function to call with the dataset indices that were loaded for LoadGen; None if unnecessary."""
        return None

    def sut_name(self) -> Callable[[], str] | None:
        """Returns a function that returns the system's name for LoadGen; None for the harness's name."""
        return None

    def begin_hold(self) -> None:  # noqa: B027 - optional for each kind
        """Resets the counts when a ramp begins to hold a rate. Call this when no query is in flight."""

    def summary(self, _failures: Failures) -> Mapping[str, Any]:
        """Returns the values of the keys in OF_KINDS that apply to this kind of system.

        Call this after the dispatcher has stopped.
        """
        return {}

    def _loaded_message(
        self, backend: Backend, inputs: Sequence[TensorSpec], sha256: str | None, size_bytes: int
    ) -> dict[str, Any]:
        """Returns the `loaded` message. sha256, size_bytes: digest and size of the model file."""
        return {
            **described(backend, self.config.backend, self.dataset, self._setup.dataset),
            "inputs": inputs,
            "total_count": len(self.dataset),
            "performance_count": self.held,
            "synthetic": bool(getattr(self.dataset, "synthetic", False)),
            "fixed_batch": self.fixed_batch,
            "model_sha256": sha256,
            "model_bytes": size_bytes,
        }
