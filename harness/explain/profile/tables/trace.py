"""Puts a profile's spans on one time line: queries, batches, stages, calls, kernels.

The harness run, the bare calls and the profiled calls happened one after the other, on clocks that
do not compare: each group begins where the one before it ends.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from harness.explain.kernels.kernels import Kernel, LayerProfile
from harness.explain.kernels.layers import layers_of, overhead
from harness.explain.profile.spans.spans import Span, joined, lanes, with_parents
from harness.explain.profile.tables.layer_tables import profile_of
from harness.results.evidence.stages import STAGE_EDGES, Completions

MOST_BATCHES = 2_000
"""Batches of the harness run in the trace, the first ones; completions.npz has all."""

_GAP_NS = 1_000_000
_HANDED = "first sample"
_IN_BATCH = ("gather", "infer", "postprocess", "complete")


def spans_of(content: Mapping[str, Any], done: Completions | None) -> list[Span]:
    """Every span has its own id. Parents are found by interval, except where the journal knows
    them.
    """
    ids = count(1)
    groups: list[list[Span]] = []
    if done is not None and len(done):
        groups.append(list(_run_spans(done, ids)))
    model = content.get("model")
    if model:
        times = model["batches"][str(content["batch"])]
        groups.append(list(_calls(times, "bare calls", ids)))
    profile = profile_of(content)
    if profile is not None:
        groups.append(with_parents(list(_kernel_spans(profile, ids))))
    return list(_in_a_row(groups))


def _in_a_row(groups: Sequence[Sequence[Span]]) -> Iterator[Span]:
    free_at = 0
    for group in groups:
        shift = free_at - min(span.start_ns for span in group)
        for span in group:
            yield replace(span, start_ns=span.start_ns + shift, end_ns=span.end_ns + shift)
        free_at = max(span.end_ns for span in group) + shift + _GAP_NS


def _run_spans(done: Completions, ids: Iterator[int]) -> Iterator[Span]:
    """LoadGen's thread launches a batch and a worker executes it: its parent is the query of its
    first sample, which waits from before the launch to after the execution.
    """
    columns = {name: column.tolist() for name, column in done.columns.items()}
    rows = [i for i, batch in enumerate(columns["batch"]) if batch < MOST_BATCHES]
    queries: list[Span] = []
    first: dict[int, int] = {}  # batch -> row of its first sample
    by_start = sorted(rows, key=lambda i: columns["scheduled_ns"][i])
    edges = [(columns["scheduled_ns"][i], columns["completed_ns"][i]) for i in by_start]
    for i, lane in zip(by_start, lanes(edges), strict=True):
        first.setdefault(columns["batch"][i], i)
        queries.append(
            Span(
                id=next(ids),
                name="query",
                level="query",
                start_ns=columns["scheduled_ns"][i],
                end_ns=columns["completed_ns"][i],
                group="harness run",
                lane=f"queries {lane}",
                tags={"order": columns["order"][i], "index": columns["index"][i]},
            )
        )
    yield from queries
    parents = {span.tags["order"]: span.id for span in queries}
    launches, executions = [], []
    for batch, i in first.items():
        order = columns["order"][i]
        entry = columns["entry_ns"][i]
        launch = Span(
            id=next(ids),
            name="batch",
            level="batch",
            start_ns=entry,
            end_ns=entry,
            parent=parents[order],
            tags={_HANDED: order, "batch": batch, "size": columns["batch_size"][i]},
        )
        launches.append(launch)
        executions.append(
            replace(
                launch,
                parent=None,
                start_ns=columns["taken_ns"][i],
                end_ns=columns["completed_ns"][i],
                group="harness run",
                lane=f"worker {columns['worker'][i]}",
                tags={_HANDED: order},
            )
        )
    for span in joined(launches, executions, _HANDED):
        yield span
        i = first[span.tags["batch"]]
        for stage in _IN_BATCH:
            begin, end = (columns[edge][i] for edge in STAGE_EDGES[stage])
            yield replace(
                span,
                id=next(ids),
                name=stage,
                level="stage",
                start_ns=begin,
                end_ns=end,
                parent=span.id,
                tags={},
            )


def _calls(times: Mapping[str, Sequence[int]], group: str, ids: Iterator[int]) -> Iterator[Span]:
    for start, wall in zip(times["start_ns"], times["wall_ns"], strict=True):
        yield Span(
            id=next(ids),
            name="predict",
            level="model",
            start_ns=start,
            end_ns=start + wall,
            group=group,
            lane="calls",
        )


def _kernel_spans(profile: LayerProfile, ids: Iterator[int]) -> Iterator[Span]:
    """Shifts the profiler's clock to Python's so that every run lies within its call. Where
    kernels have no start times, one mean call is drawn, its kernels in a row from its start.
    """
    calls, session = profile.profiled, profile.session
    if not all(kernel.start_ns for kernel in profile.kernels):
        yield from _mean_call(profile, ids)
        return
    pairs = list(zip(calls.start_ns, session.run_start_ns, strict=True))
    earliest = max(call - run for call, run in pairs)
    latest = min(
        call + wall - run - took
        for (call, run), wall, took in zip(pairs, calls.wall_ns, session.run_ns, strict=True)
    )
    offset = (earliest + latest) // 2
    yield from _calls({"start_ns": calls.start_ns, "wall_ns": calls.wall_ns}, "profiled calls", ids)
    for kernel in profile.kernels:
        for run, start, took in zip(
            session.run_start_ns, kernel.start_ns, kernel.duration_ns, strict=True
        ):
            yield _kernel_span(kernel, run + start + offset, took, next(ids))


def _mean_call(profile: LayerProfile, ids: Iterator[int]) -> Iterator[Span]:
    mean_ns = round(overhead(profile).call_ns)
    (call,) = _calls({"start_ns": [0], "wall_ns": [mean_ns]}, "profiled calls", ids)
    yield replace(call, name="predict, mean of the profiled calls")
    start_ns = 0
    for layer, kernel in zip(layers_of(profile, ()), profile.kernels, strict=True):
        took_ns = round(layer.latency_ns)
        span = _kernel_span(kernel, start_ns, took_ns, next(ids))
        yield replace(span, tags={**span.tags, "start": "not reported: in order of execution"})
        start_ns += took_ns


def _kernel_span(kernel: Kernel, start_ns: int, took_ns: int, number: int) -> Span:
    return Span(
        id=number,
        name=kernel.name,
        level="layer",
        start_ns=start_ns,
        end_ns=start_ns + took_ns,
        group="profiled calls",
        lane="calls",
        tags={"op": kernel.op_type, "nodes": list(kernel.nodes)},
    )
