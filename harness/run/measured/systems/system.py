"""Defines a system under test: opened once, described, and asked for the dispatcher of LoadGen's run."""

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
from harness.run.measured.preparation import Preparation
from harness.run.setup import Setup
from harness.types import Backend, Dataset, TensorSpec

Progress = Callable[[int, int], None]
"""Called with (samples or models that are loaded, their total)."""


OF_KINDS = ("client", "tokens", "models", "backend", "elastic")
"""Keys of the last message that only some kinds of system have."""


class Dispatch(NamedTuple):
    """How LoadGen's queries of one run reach the system."""

    dispatcher: Dispatcher
    name: str
    issuer: Sequence[int] = ()
    """Logical processors of LoadGen's thread; () for any."""


class System(ABC):
    """Call `open`, then `connect` once the answers are known, `dispatch` for LoadGen's run, and `summary` after it."""

    no_schedule = ""
    """Why a schedule of its batches cannot be simulated; "" where it can."""
    no_probe = ""
    """Why its inputs cannot be changed to see whether it reads them; "" where they can."""
    may_vary = False
    """Samples may differ in shape; set by `open`."""
    fixed_batch: int | None = None
    """The only batch size of the model's file; set by `open`."""
    max_batch: int
    """Samples of the largest batch; `open` may lower it."""
    import_s = 0.0
    load_s: list[float]
    """Seconds that each instance, or each model of a set, took to load."""
    slowest_ns = 0
    """A query that finds nothing loaded takes at least so long; set by `open`."""
    separate: Sequence[SeparateInstance] = ()
    """Instances in separate processes."""

    answerers: Sequence[Answerer]
    """One answerer for each instance or connection; set by `open`."""
    dataset: Dataset
    held: int
    """Samples of the dataset that a run holds at once."""
    classes: range | None = None
    """The classes that the answers can be; None where that is not known. Set by `check_steps`."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self.config = setup.config
        self._group = setup.instances
        self.max_batch = setup.instances.max_batch
        self.load_s = []

    @abstractmethod
    def open(self, stack: ExitStack, progress: Progress) -> Mapping[str, Any]:
        """Opens model and dataset, which `stack` closes, and returns the `loaded` message."""

    def check_steps(self, backend: Backend, dataset: Dataset, first: list[int]) -> None:  # noqa: B027 - not every kind has any
        """A ConfigError where the manifest's steps do not fit the output of dataset index `first`."""

    def check_numbers(self, dataset: Dataset, loaded: list[int]) -> None:  # noqa: B027 - not every kind has any
        """A ConfigError where the loaded samples have numbers that the model has no row for."""

    def connect(self, plan: LoadPlan, preparation: Preparation) -> None:  # noqa: B027 - not every kind has any
        """Opens and proves connections; the plan is known, and samples are loaded."""

    @abstractmethod
    def dispatch(
        self,
        plan: LoadPlan,
        preparation: Preparation,
        journal: Journal,
        failures: Failures,
        complete: Complete | None,
    ) -> Dispatch:
        """complete: of a scheduler of our own; None for LoadGen's."""

    def before_load(self) -> Callable[[Sequence[int]], None] | None:
        """Called with dataset indices before they are loaded for LoadGen."""
        return None

    def sut_name(self) -> Callable[[], str] | None:
        """Returns what gives LoadGen the system's name; None for the harness's name."""
        return None

    def summary(self, _failures: Failures) -> Mapping[str, Any]:
        """The keys of OF_KINDS that this kind of system has, with their values. The dispatcher has stopped."""
        return {}

    def _loaded_message(
        self, backend: Backend, inputs: Sequence[TensorSpec], sha256: str | None, size_bytes: int
    ) -> dict[str, Any]:
        """The `loaded` message. sha256, size_bytes: of the model."""
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
