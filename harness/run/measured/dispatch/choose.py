"""Chooses a run's dispatcher from the scenario, the options and the model's speed."""

from collections.abc import Mapping, Sequence

from harness.core.batch_rule import BatchRule, batch_times
from harness.core.config.run_config import RunConfig
from harness.loadgen.plan import LoadPlan
from harness.run.journal import Journal
from harness.run.measured.dispatch.by_length import Lengths
from harness.run.measured.dispatch.deadline import Deadlines, PlanningDispatcher
from harness.run.measured.dispatch.elastic import ElasticDispatcher
from harness.run.measured.dispatch.instance import Instance
from harness.run.measured.dispatch.shared import LARGEST_BATCH_NS, SharedDispatcher
from harness.run.measured.dispatch.threads import (
    Dispatcher,
    InlineDispatcher,
    QueuedDispatcher,
    SlicedDispatcher,
)

NAMES: Mapping[type[Dispatcher], str] = {
    InlineDispatcher: "inline",
    SlicedDispatcher: "sliced",
    QueuedDispatcher: "queued",
    ElasticDispatcher: "elastic",
    SharedDispatcher: "shared",
    PlanningDispatcher: "planning",
}
"""Names of the dispatchers in result.json."""


def dispatcher_class(
    dispatch: str, config: RunConfig, instances: int, slowest_ns: int
) -> type[Dispatcher]:
    """Returns the dispatcher class. dispatch: kind of the scenario. slowest_ns: time of the slowest warm batch."""
    if dispatch != "queued":
        return InlineDispatcher if dispatch == "inline" else SlicedDispatcher
    if config.batch_wait_ns or config.dispatch == "deadline":
        return PlanningDispatcher
    fast = slowest_ns <= LARGEST_BATCH_NS
    return SharedDispatcher if fast and instances > 1 else QueuedDispatcher


def make_dispatcher(
    cls: type[Dispatcher],
    config: RunConfig,
    plan: LoadPlan,
    instances: Sequence[Instance],
    max_batch: int,
    journal: Journal,
    *,
    curve: Sequence[tuple[int, int]],
    lengths: Lengths | None,
    wide: Instance | None = None,
) -> Dispatcher:
    """Makes a dispatcher. curve: measured (samples, ns) per batch size; [] if the dispatcher does not need the curve.

    lengths: returns the lengths of samples. wide: the wide instance, which a dispatcher with a queue uses when no other
    query waits.
    """
    issuer = journal.issuer()
    if cls is PlanningDispatcher:
        deadlines = None
        if config.dispatch == "deadline":
            assert plan.latency_bound_ns is not None  # Server always has an SLO
            times_ns = batch_times(curve, max_batch).astype(int).tolist()
            deadlines = Deadlines(plan.latency_bound_ns, times_ns, len(instances))
        wait_ns = config.batch_wait_ns
        return PlanningDispatcher(
            instances, max_batch, issuer, journal.entry_ns, wait_ns, deadlines
        )
    if cls is QueuedDispatcher:
        rule = BatchRule(batch_times(curve, max_batch), len(instances)) if curve else None
        if wide is not None:
            return ElasticDispatcher(instances, max_batch, issuer, rule, wide)
        return QueuedDispatcher(instances, max_batch, issuer, rule)
    if cls is SlicedDispatcher:
        return SlicedDispatcher(instances, max_batch, issuer, lengths)
    dispatcher: Dispatcher = cls(instances, max_batch, issuer)  # type: ignore[call-arg]
    return dispatcher
