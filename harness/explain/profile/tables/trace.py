"""Places a profile's spans on one time line: queries, batches, stages, calls, kernels.

The harness run, the bare calls and the profiled calls ran one after the other, and their clocks cannot be compared.
Each group is therefore drawn directly after the previous group.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from harness.explain.kernels.kernels import Kernel
from harness.explain.profile.spans.spans import Span, lanes, with_parents
from harness.explain.profile.tables.layer_tables import LayerLevel, Profiled
from harness.results.evidence.stages import Completions

MOST_BATCHES = 2_000
"""The trace contains only the first batches of the harness run, at most this many.
completions.npz contains all batches.
"""

_GAP_NS = 1_000_000


def spans_of(profiled: Profiled) -> list[Span]:
    """Returns all spans. A parent that is not in the journal is found by comparing intervals."""
    ids = count(1)
    groups: list[list[Span]] = []
    content = profiled.content
    if profiled.done is not None:
        groups.append(list(_run_spans(profiled.done, ids)))
    model = content.get("model")
    if model:
        times = model["batches"][str(content["batch"])]
        groups.append(list(_calls(times["start_ns"], times["wall_ns"], "bare calls", ids)))
    if profiled.level is not None:
        groups.append(with_parents(list(_kernel_spans(profiled.level, ids))))
    return list(_in_a_row(groups))


def _in_a_row(groups: Sequence[Sequence[Span]]) -> Iterator[Span]:
    free_at = 0
    for group in groups:
        shift = free_at - min(span.start_ns for span in group)
        for span in group:
            yield replace(span, start_ns=span.start_ns + shift, end_ns=span.end_ns + shift)
        free_at = max(span.end_ns for span in group) + shift + _GAP_NS


def _run_spans(done: Completions, ids: Iterator[int]) -> Iterator[Span]:
    """Yields the spans of the run.

    A batch's parent is the query of its first sample. This query starts before the batch is launched and ends after a
    worker has executed the batch.
    """
    columns = {name: column.tolist() for name, column in done.columns.items()}

    def span(row: int, level: str, name: str, edges: tuple[str, str], **more: Any) -> Span:
        begin, end = (columns[edge][row] for edge in edges)
        return Span(
            id=next(ids),
            name=name,
            level=level,
            start_ns=begin,
            end_ns=end,
            group="harness run",
            **more,
        )

    rows = [i for i, batch in enumerate(columns["batch"]) if batch < MOST_BATCHES]
    rows.sort(key=lambda i: columns["scheduled_ns"][i])
    whole = ("scheduled_ns", "completed_ns")
    first: dict[int, int] = {}  # maps a batch to the row of its first sample
    parents: dict[int, int] = {}  # maps a query's position in issue order to the query's span
    edges = [(columns["scheduled_ns"][i], columns["completed_ns"][i]) for i in rows]
    for i, lane in zip(rows, lanes(edges), strict=True):
        first.setdefault(columns["batch"][i], i)
        tags = {"order": columns["order"][i], "index": columns["index"][i]}
        query = span(i, "query", "query", whole, lane=f"queries {lane}", tags=tags)
        parents[tags["order"]] = query.id
        yield query
    in_batch = [*done.edges.items()][2:]
    for number, i in first.items():
        batch = span(
            i,
            "batch",
            "batch",
            ("taken_ns", "completed_ns"),
            lane=f"worker {columns['worker'][i]}",
            parent=parents[columns["order"][i]],
            tags={
                "first sample": columns["order"][i],
                "batch": number,
                "size": columns["batch_size"][i],
                "launched_ns": columns["entry_ns"][i],
            },
        )
        yield batch
        for stage, edge in in_batch:
            yield span(i, "stage", stage, edge, lane=batch.lane, parent=batch.id)


def _calls(
    start_ns: Sequence[int], wall_ns: Sequence[int], group: str, ids: Iterator[int]
) -> Iterator[Span]:
    for start, wall in zip(start_ns, wall_ns, strict=True):
        yield Span(
            id=next(ids),
            name="predict",
            level="model",
            start_ns=start,
            end_ns=start + wall,
            group=group,
            lane="calls",
        )


def _kernel_spans(level: LayerLevel, ids: Iterator[int]) -> Iterator[Span]:
    """Yields the spans of kernels.

    Shifts the profiler's clock to Python's clock so that every run lies within its call. If kernels have no start
    times, yields one mean call in which the kernels run one after the other.
    """
    profile = level.profile
    calls, session = profile.profiled, profile.session
    if not all(kernel.start_ns for kernel in profile.kernels):
        yield from _mean_call(level, ids)
        return
    pairs = list(zip(calls.start_ns, session.run_start_ns, strict=True))
    earliest = max(call - run for call, run in pairs)
    latest = min(
        call + wall - run - took
        for (call, run), wall, took in zip(pairs, calls.wall_ns, session.run_ns, strict=True)
    )
    offset = (earliest + latest) // 2
    yield from _calls(calls.start_ns, calls.wall_ns, "profiled calls", ids)
    for kernel in profile.kernels:
        for run, start, took in zip(
            session.run_start_ns, kernel.start_ns, kernel.duration_ns, strict=True
        ):
            yield _kernel_span(kernel, run + start + offset, took, next(ids))


def _mean_call(level: LayerLevel, ids: Iterator[int]) -> Iterator[Span]:
    (call,) = _calls([0], [round(level.parts.call_ns)], "profiled calls", ids)
    yield replace(call, name="predict, mean of the profiled calls")
    start_ns = 0
    for layer, kernel in zip(level.layers, level.profile.kernels, strict=True):
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
