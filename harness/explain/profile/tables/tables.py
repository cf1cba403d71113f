"""Builds the tables of a profile from the content of its folder alone.

This module has no side effects. The input is profile.json and the rows of the harness run next to it. A level that was
not measured has no tables, and `missing` in profile.json states the reason.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from harness.core.stats import median_interval, trimmed_mean
from harness.core.units import counted, show_ns, show_percent, show_rate
from harness.explain.kernels import layers as ly
from harness.explain.profile.measure.memory import slope
from harness.explain.profile.tables.batch_tables import batch_tables
from harness.explain.profile.tables.layer_tables import Profiled, layer_tables
from harness.explain.profile.tables.library_tables import library_tables
from harness.results.evidence.stages import Completions
from harness.results.optimal_batch import GAIN, optimum
from harness.results.pages.tables import Cell, Table, columns

Content = Mapping[str, Any]

_LOCAL_PHASES = {
    "wait": ("issue_delay", "queue"),
    "data": ("gather",),
    "inference": ("infer",),
    "postprocess": ("postprocess",),
    "complete": ("complete",),
}
"""The harness's stages by phase. Decoding and preprocessing happen before the first query."""

_REMOTE_PHASES = {
    "wait": ("issue_delay", "queue"),
    "send": ("send",),
    "network and server": ("remote",),
    "receive": ("notice", "decode"),
    "complete": ("complete",),
}
"""The harness's stages by phase if the model runs on a server."""

CONTENDED = 1.2
"""If a single thread's wall time exceeds its CPU time by this factor, other processes have probably used the thread's
core.
"""


UNSTEADY = 1.5
"""If the mean wall time of a call with several threads exceeds the shortest wall time by this factor, other processes
have probably used the cores.
"""


def tables(profiled: Profiled) -> list[Table]:
    """Returns all tables, outermost level first."""
    content, done = profiled.content, profiled.done
    tables = [_levels(profiled)]
    if done is not None:
        tables += [_stages(done), _phases(content, done), _batches(done)]
    return [
        *tables,
        *_model_tables(content),
        *layer_tables(profiled),
        *batch_tables(profiled),
        *_memory(profiled),
        *_data(content),
        *library_tables(content),
    ]


def _levels(profiled: Profiled) -> Table:
    """Tabulates XSP's leveled experimentation. Each level is measured in a run that does not measure any deeper
    level.
    """
    content, done, level = profiled.content, profiled.done, profiled.level
    rows: list[list[Cell]] = []
    notes = [
        "The harness's journal is always on, so query, batch and stage add nothing to each other.",
        "The line answer has a percentile of the query level, this table has means. No latency of a model is from a profiled run.",
    ]
    if done is not None:
        mean = float(done.latency_ns.mean())
        took = _batch_ns(done).mean()
        source = f"LoadGen's, {counted(len(done), 'sample')}"
        loadgen_ns = _loadgen_mean_ns(content)
        if loadgen_ns is not None and show_ns(loadgen_ns) != show_ns(mean):
            source += f"; {show_ns(mean)} by the journal, as in the flame view"
        rows.append(["query", "harness run", float(loadgen_ns or mean), None, source])
        rows.append(["batch", "harness run", float(took), None, "taken to completed"])
        stage = "remote" if done.is_remote else "infer"
        spent_ns = float(done.spent_ns(stage).mean())
        rows.append(["stage", "harness run", spent_ns, None, f"{stage} alone"])
    calls = _bare_calls(content)
    if calls is not None:
        latency = trimmed_mean(calls["wall_ns"])
        rows.append(["model", "bare calls", latency, None, "no harness, no profiler"])
    if level is not None:
        parts = level.parts
        added = parts.call_ns - parts.plain_ns
        note = (
            f"{counted(len(level.profile.kernels), 'kernel')} take {show_ns(parts.kernels_ns)} of it; the profiler adds "
            f"{show_percent(parts.profiler_share, 1)}, and "
            f"{show_percent(parts.profiler_cpu_share, 1)} in CPU time"
        )
        rows.append(["layer", "profiled calls", parts.call_ns, added, note])
        notes.append(
            f"Calls without a profiler, made in turns with the profiled calls, took {show_ns(parts.plain_ns)}: the difference "
            "is the overhead."
        )
    return Table(
        "levels",
        "Levels",
        "mean latency of each level, from the run in which that level is the deepest, and the overhead of that run's profiler",
        columns("level | run | latency [ns] | overhead added [ns] | what"),
        rows,
        [*notes, *contended(content)],
    )


def contended(content: Content) -> Iterator[str]:
    """Yields a note if other processes disturbed the calls, because such a disturbance changes all kernel times."""
    layer = (content.get("layer") or {}).get("profile", {})
    calls = [c for c in (_bare_calls(content), layer.get("plain"), layer.get("profiled")) if c]
    if not calls:
        return
    load = content.get("load_average")  # missing if the profile was stopped
    then = f", load average {load['before']:.1f} to {load['after']:.1f}" if load else ""
    if content.get("threads") == 1:
        ratio = max(trimmed_mean(c["wall_ns"]) / max(trimmed_mean(c["cpu_ns"]), 1.0) for c in calls)
        if ratio > CONTENDED:
            yield (
                f"Contended: a call took {ratio:.2f} times its CPU time{then}: compare CPU times, or "
                "measure again."
            )
        return
    ratio = max(trimmed_mean(c["wall_ns"]) / max(min(c["wall_ns"]), 1) for c in calls)
    if ratio > UNSTEADY:
        yield (
            f"Unsteady: the mean call took {ratio:.2f} times the fastest one{then}: other processes may have "
            "used the cores; measure again."
        )


def _loadgen_mean_ns(content: Content) -> float | None:
    return (content.get("run") or {}).get("loadgen_mean_ns")


def _bare_calls(content: Content) -> Mapping[str, Any] | None:
    calls: Mapping[str, Any] | None = (
        (content.get("model") or {}).get("batches", {}).get(str(content["batch"]))
    )
    return calls


def _batch_ns(done: Completions) -> np.ndarray[Any, Any]:
    spent: np.ndarray[Any, Any] = done.columns["completed_ns"] - done.columns["taken_ns"]
    return spent


def _stages(done: Completions) -> Table:
    rows: list[list[Cell]] = []
    for stage in done.edges:
        spent = np.sort(done.spent_ns(stage))
        share = float(spent.sum()) / float(done.latency_ns.sum())
        p99 = float(spent[int(len(spent) * 0.99)])
        rows.append([stage, float(spent.mean()), float(np.median(spent)), p99, share])
    heads = columns("stage | mean [ns] | p50 [ns] | p99 [ns] | share [share]")
    about = "time of a sample by stage in the harness run; the stages add up to its latency"
    return Table("stages", "Stages", about, heads, rows)


def phases_of(done: Completions) -> Mapping[str, Sequence[str]]:
    """Returns the run's stages, by phase."""
    phases = _REMOTE_PHASES if done.is_remote else _LOCAL_PHASES
    return {phase: [s for s in stages if s in done.edges] for phase, stages in phases.items()}


def _phases(content: Content, done: Completions) -> Table:
    """Tabulates shares of LoadGen's latency, which is measured independently of the stages."""
    rows: list[list[Cell]] = []
    for phase, stages in phases_of(done).items():
        spent = sum(float(done.spent_ns(stage).mean()) for stage in stages)
        rows.append([phase, " + ".join(stages), spent])
    total = sum(float(row[2] or 0) for row in rows)
    whole = _loadgen_mean_ns(content) or total
    notes = ["decoding and preprocessing come before the first query, as MLPerf's rules require"]
    if whole != total:
        notes.insert(
            0, f"the phases are {show_percent(total / whole, 2)} of LoadGen's mean latency"
        )
        rows.append(["LoadGen", "its own time around the callback", whole - total])
    shares = [[*row, float(row[2] or 0) / whole] for row in rows]
    heads = columns("phase | stages | latency [ns] | share [share]")
    return Table("phases", "Phases", "mean time of a sample by phase", heads, shares, notes)


def _batches(done: Completions) -> Table:
    first = np.unique(done.columns["batch"].astype(np.int64), return_index=True)[1]
    keys = done.columns["batch_size"][first]
    took = _batch_ns(done)[first]
    rows: list[list[Cell]] = []
    for size in np.unique(keys).tolist():
        chosen = took[keys == size]
        rows.append([size, len(chosen), float(chosen.mean()), float(np.median(chosen))])
    heads = columns("batch [count] | batches [count] | mean [ns] | p50 [ns]")
    return Table("batches", "Batches", "of the harness run, by size", heads, rows)


def _model_tables(content: Content) -> Iterator[Table]:
    model = content.get("model")
    if not model:
        return
    throughput, uncertainty, rows = {}, {}, []
    for text, times in model["batches"].items():
        batch, latency = int(text), trimmed_mean(times["wall_ns"])
        throughput[batch] = batch / latency * 1e9
        uncertainty[batch] = ly.uncertainty(times["wall_ns"])
        cpu = trimmed_mean(times["cpu_ns"])
        runs = len(times["wall_ns"])
        ratio = round(cpu / latency, 3)
        rows.append([batch, latency, latency / batch, throughput[batch], cpu, ratio, runs])
    fastest = max(throughput, key=lambda b: throughput[b])
    notes = [
        _optimal_batch(throughput, uncertainty),
        f"highest throughput {show_rate(throughput[fastest])} samples/s at batch {fastest}",
        *(f"batch {b}: {why}" for b, why in model["skipped"].items()),
    ]
    heads = columns(
        "batch [count] | latency [ns] | per sample [ns] | throughput [samples/s] | CPU time [ns]"
        "| CPU/wall | runs [count]"
    )
    about = "bare calls by batch, 20 % trimmed means"
    yield Table("model", "Model", about, heads, rows, notes)


def _optimal_batch(throughput: Mapping[int, float], uncertainty: Mapping[int, float]) -> str:
    best = optimum(throughput, uncertainty)
    if best.batch is None:
        most = max(throughput)
        if len(throughput) == 1:
            return f"optimal batch unknown: only batch {most} was measured"
        return f"optimal batch more than {most}: each doubling up to it gained more than {show_percent(GAIN)}"
    within = " (within the noise)" if best.is_unsure else ""
    return f"optimal batch {best.batch}{within}: the smallest batch whose doubling gains at most {show_percent(GAIN)}"


def _memory(profiled: Profiled) -> Iterator[Table]:
    memory, level = profiled.content.get("memory") or {}, profiled.level
    if "footprint" not in memory:
        return
    own = memory["footprint"]
    rows: list[list[Cell]] = [
        ["weights", own["weights"], "constants in the file"],
        ["input", own["inputs"], "of one call"],
        ["activations", own["activations"], "most alive at once, from the file's shapes"],
    ]
    if level is not None and level.profile.peak_bytes is not None:
        rows.append(["allocator", level.profile.peak_bytes, "most in use, measured by the runtime"])
    elif level is not None and "allocated" in level.profile.absent:
        rows.append(["allocator", None, level.profile.absent["allocated"]])
    heads = columns("memory | bytes [bytes] | what")
    notes = (
        [f"tensors whose size depends on data, not counted: {own['unknown']:,}"]
        if own["unknown"]
        else []
    )
    yield Table("memory", "Memory", "of the model and one call", heads, rows, notes)
    grown: list[list[Cell]] = []
    notes = []
    for kind, one in memory["growth"].items():
        points = {float(size): point["activations"] for size, point in one["points"].items()}
        grown += [[kind, size, value, own["weights"]] for size, value in points.items()]
        if len(points) > 1:
            notes.append(f"activations grow with {kind} ** {slope(points):.2f}")
        if one["refused"]:
            notes.append(f"{kind}: {one['refused']}")
    heads = columns("by | size [count] | activations [bytes] | weights [bytes]")
    about = "activations alive at once for other inputs, from shapes"
    yield Table("growth", "Growth", about, heads, grown, notes)


def _data(content: Content) -> Iterator[Table]:
    """Tabulates the median difference over pairs of calls if the 95 % interval of the difference excludes 0."""
    data = content.get("data") or {}
    if "real" not in data:
        return
    walls = [data[side]["wall_ns"] for side in ("real", "synthetic")]
    changes = [noise / max(real, 1) - 1 for real, noise in zip(*walls, strict=True)]
    low, high = median_interval(changes)
    is_shown = low is not None and high is not None and low * high > 0
    rows: list[list[Cell]] = [
        [f"dataset {data['dataset']}", trimmed_mean(walls[0]), None],
        [
            "seeded noise in the same range and shapes",
            trimmed_mean(walls[1]),
            float(np.median(changes)) if is_shown else None,
        ],
    ]
    heads = columns("input | latency [ns] | difference [share]")
    about = "the same calls on samples and on noise, in turn"
    notes = [] if is_shown else ["no difference is shown: it is within the variation of the calls"]
    yield Table("data", "Real against synthetic", about, heads, rows, notes)
