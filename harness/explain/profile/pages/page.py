"""Writes profile.html: flame view, layers, roofline, memory, and every table."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from harness.core.units import NS_PER_MS
from harness.explain.kernels import layers as ly
from harness.explain.kernels.layers import Layer, NodeCost, Peaks
from harness.explain.profile.pages import batch_page
from harness.explain.profile.tables.batch_tables import at_batches
from harness.explain.profile.tables.folder import PAGE, Profiled, headline, profile_tables
from harness.explain.profile.tables.layer_tables import peaks_of, profile_of
from harness.explain.profile.tables.tables import PHASES
from harness.results.evidence.stages import STAGE_EDGES, Completions
from harness.results.pages import page
from harness.results.pages.page import Article, Figure
from harness.results.pages.tables import Table

_PAGE_ROWS = 60
_BOUNDS = {"compute": "#2a78b5", "memory": "#d1791f"}
_UNKNOWN = "#8a949e"
_PALETTE = ("#1f7a5c", "#b5522a", "#7b5ea7", "#a8871a", "#b03a6b", "#3f7f93", "#6b7f2a")


def write(profiled: Profiled, folder: Path) -> Path:
    """Returns the page's path. Raises PluginUnavailable without plotly."""
    name = str(profiled.content.get("model_name") or folder.resolve().name)
    shown = profile_tables(profiled, folder)
    article = Article(
        [f"<h1>Profile · {escape(name)}</h1>", *_head(profiled.content)],
        list(figures(profiled)),
        list(_tail(shown)),
    )
    return page.write([article], f"profile {name}", folder / PAGE, script_in=folder)


def _head(content: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"<p>{escape(line)}</p>" for line in headline(content) if line)
    about = (content.get("model") or {}).get("about") or {}
    description = ", ".join(f"{key} {value}" for key, value in about.items())
    yield f'<p class="quiet">batch {content["batch"]} {escape(description)}</p>'
    yield (
        '<p class="quiet">trace.json opens in ui.perfetto.dev and chrome://tracing; every table is '
        "in tables/ as CSV.</p>"
    )


def figures(profiled: Profiled) -> Iterator[Figure]:
    profile = profile_of(profiled.content)
    layers: list[Layer] = []
    if profile is not None:
        nodes = [NodeCost(**cost) for cost in profiled.content["layer"]["nodes"]]
        layers = ly.layers_of(profile, nodes)
        yield _flame(profiled, layers, ly.overhead(profile))
    elif profiled.done is not None and len(profiled.done):
        yield _flame(profiled, [], None)
    if layers:
        yield _over_index(layers)
        peaks = peaks_of(profiled.content)
        if peaks is not None:
            yield _roofline(layers, peaks)
            batches = at_batches(profiled.content)
            if len(batches) > 1:
                yield batch_page.figure(batches, peaks)
        yield _by_type(layers)
    model = profiled.content.get("model")
    if model:
        yield _throughput(model["batches"])
    growth = (profiled.content.get("memory") or {}).get("growth")
    if growth:
        yield _growth(growth)


def _flame(profiled: Profiled, layers: Sequence[Layer], parts: ly.Overhead | None) -> Figure:
    """Mean times as nested bars: each level divides the one above it; overheads are named."""
    boxes: list[tuple[str, str, str, float]] = []  # id, name, parent, ns
    if profiled.done is not None and len(profiled.done):
        boxes += _flame_of_run(profiled.done)
    parent = next((box[0] for box in boxes if box[1] == "infer"), "")
    if parts is not None:
        boxes += _flame_of_call(layers, parts, parent, {box[0]: box[3] for box in boxes})
    ids, names, parents, values = zip(*boxes, strict=True)
    types = [group.name for group in ly.grouped(layers, lambda layer: layer.op_type)]
    return Figure(
        "Flame view",
        "Mean time of one query: from LoadGen's schedule down to the kernels. Click to zoom in. "
        "The call is the unprofiled one; kernels are scaled into it by their shares.",
        [
            {
                "type": "icicle",
                "ids": ids,
                "labels": names,
                "parents": parents,
                "values": [ns / NS_PER_MS for ns in values],
                "branchvalues": "total",
                "hovertemplate": "%{label}<br>%{value:.4g} ms<br>%{percentRoot:.2%}<extra></extra>",
                "tiling": {"orientation": "v"},
                "sort": False,
                "insidetextfont": {"color": "#ffffff"},
                "outsidetextfont": {"color": "#ffffff"},  # of the root, says plotly
                "marker": {"colors": [_colour(name, types) for name in map(_kind, boxes)]},
                "pathbar": {"visible": True},
            }
        ],
        {},
        height_rem=30,
    )


def _kind(box: tuple[str, str, str, float]) -> str:
    """The type of a kernel or group of kernels, else the name."""
    parts = [part for part in (box[2], box[0]) if part.startswith("type ")]
    return parts[0].removeprefix("type ") if parts else box[1]


def _colour(kind: str, types: Sequence[str]) -> str:
    """Types of kernels have colours, the longest first; everything around them is grey or blue."""
    if kind in types:
        return _PALETTE[types.index(kind) % len(_PALETTE)]
    return {"query": "#4d5963", "infer": "#23618f", "kernels": "#2a78b5"}.get(kind, _UNKNOWN)


def _flame_of_run(done: Completions) -> Iterator[tuple[str, str, str, float]]:
    means = {
        stage: float((done.columns[end] - done.columns[begin]).mean())
        for stage, (begin, end) in STAGE_EDGES.items()
    }
    yield "query", "query", "", sum(means.values())
    for phase, stages in PHASES.items():
        if len(stages) == 1:
            yield stages[0], stages[0], "query", means[stages[0]]
        else:
            yield phase, phase, "query", sum(means[stage] for stage in stages)
            yield from ((stage, stage, phase, means[stage]) for stage in stages)


def _flame_of_call(
    layers: Sequence[Layer], parts: ly.Overhead, parent: str, known: Mapping[str, float]
) -> Iterator[tuple[str, str, str, float]]:
    """The parts of a profiled call, scaled to the box they are drawn in."""
    whole = known.get(parent, parts.plain_ns)
    scale = whole / parts.call_ns
    if not parent:
        yield "call", "call", "", whole
        parent = "call"
    for name, ns in reversed(list(parts.named_ns.items())):
        yield name, name, parent, max(ns, 0) * scale
    rest = parts.call_ns - sum(max(ns, 0) for ns in parts.named_ns.values())
    fit = rest / parts.kernels_ns if parts.kernels_ns else 0.0
    yield "kernels", "kernels", parent, rest * scale
    for group in ly.grouped(layers, lambda layer: layer.op_type):
        yield f"type {group.name}", group.name, "kernels", group.latency_ns * fit * scale
    for layer in layers:
        name = f"{layer.index} {layer.name}"
        yield f"kernel {name}", name, f"type {layer.op_type}", layer.latency_ns * fit * scale


def _over_index(layers: Sequence[Layer]) -> Figure:
    index = [layer.index for layer in layers]
    bars = [("latency, ms", [layer.latency_ns / NS_PER_MS for layer in layers], "#2a78b5")]
    if _tells_memory(layers):
        taken = [max(layer.allocated_bytes or 0, 0) / 1e6 for layer in layers]
        bars.append(("allocated, MB", taken, "#7b5ea7"))
    both = len(bars) > 1
    data = [
        {
            "type": "bar",
            "x": index,
            "y": [float(f"{value:.6g}") for value in values],
            "name": name,
            "text": [f"{layer.name}: {layer.ops}" for layer in layers],
            "textposition": "none",
            "marker": {"color": colour},
            "yaxis": f"y{i or ''}".replace("y1", "y2"),
            "hovertemplate": "%{x} %{text}<br>%{y}<extra></extra>",
        }
        for i, (name, values, colour) in enumerate(bars)
    ]
    return Figure(
        "Layers in order (A3, A4)" if both else "Layers in order (A3)",
        f"Latency{' and memory taken' if both else ''} of each executed kernel.",
        data,
        {
            "xaxis": {"title": "index of the kernel", "anchor": "y2" if both else "y"},
            "yaxis": {"title": "latency, ms", "domain": [0.55 if both else 0, 1]},
            **({"yaxis2": {"title": "allocated, MB", "domain": [0, 0.45]}} if both else {}),
            "showlegend": False,
        },
    )


def _tells_memory(layers: Sequence[Layer]) -> bool:
    return any(layer.allocated_bytes is not None for layer in layers)


def _roofline(layers: Sequence[Layer], peaks: Peaks) -> Figure:
    """Log-log, without kernels that have no FLOPs."""
    shown = [la for la in layers if la.flops and la.intensity and la.flops_per_s]
    slowest = max((layer.latency_ns for layer in shown), default=1.0)
    data: list[dict[str, Any]] = []
    for bound, colour in _BOUNDS.items():
        bounded = [layer for layer in shown if ly.bound_of(layer, peaks) == bound]
        data.append(
            {
                "x": [layer.intensity for layer in bounded],
                "y": [(layer.flops_per_s or 0) / 1e9 for layer in bounded],
                "text": [f"{layer.index} {layer.name}: {layer.ops}" for layer in bounded],
                "mode": "markers",
                "name": f"{bound}-bound",
                "marker": {
                    "color": colour,
                    "opacity": 0.7,
                    "size": [6 + 18 * (la.latency_ns / slowest) ** 0.5 for la in bounded],
                },
                "hovertemplate": "%{text}<br>%{x:.3g} FLOP/byte, %{y:.3g} GFLOP/s<extra></extra>",
            }
        )
    ends = [layer.intensity or 1.0 for layer in shown] + [peaks.ridge]
    x = [min(ends) / 2, peaks.ridge, max(ends) * 2]
    y = [min(peaks.flops_per_s, at * peaks.bytes_per_s) / 1e9 for at in x]
    line = {"color": _UNKNOWN, "dash": "dash"}
    data.append({"x": x, "y": y, "mode": "lines", "name": "measured peaks", "line": line})
    return Figure(
        "Roofline (A9, A14)",
        "FLOPs and bytes from shapes, time measured; the roof: this machine's own matrix product "
        "and copy. Larger marks took longer.",
        data,
        {
            "xaxis": {"title": "arithmetic intensity, FLOP/byte", "type": "log"},
            "yaxis": {"title": "GFLOP/s", "type": "log"},
        },
    )


def _by_type(layers: Sequence[Layer]) -> Figure:
    groups = ly.grouped(layers, lambda layer: layer.op_type)[::-1]
    data = []
    measures = {
        "kernels": [float(g.count) for g in groups],
        "latency": [g.latency_ns for g in groups],
    }
    if _tells_memory(layers):
        measures["allocated"] = [float(g.allocated_bytes or 0) for g in groups]
    for name, values in measures.items():
        total = sum(values) or 1.0
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "y": [group.name for group in groups],
                "x": [100 * value / total for value in values],
            }
        )
    return Figure(
        "By type (A5-A7)",
        "Shares of the number of kernels, their time and, where reported, their memory.",
        data,
        {"xaxis": {"title": "%"}, "yaxis": {"title": ""}, "barmode": "group"},
    )


def _throughput(batches: Mapping[str, Mapping[str, Sequence[int]]]) -> Figure:
    sizes = sorted(map(int, batches))
    latency = {b: ly.trimmed_mean(batches[str(b)]["wall_ns"]) for b in sizes}
    return Figure(
        "Batches (A1)",
        "Bare calls: throughput and latency by batch.",
        [
            {
                "x": sizes,
                "y": [b / latency[b] * 1e9 for b in sizes],
                "name": "samples/s",
                "mode": "lines+markers",
            },
            {
                "x": sizes,
                "y": [latency[b] / NS_PER_MS for b in sizes],
                "name": "latency, ms",
                "mode": "lines+markers",
                "yaxis": "y2",
            },
        ],
        {
            "xaxis": {"title": "batch", "type": "log", "anchor": "y2", "tickvals": sizes},
            "yaxis": {"title": "samples/s", "rangemode": "tozero", "domain": [0.55, 1]},
            "yaxis2": {"title": "latency, ms", "rangemode": "tozero", "domain": [0, 0.45]},
        },
    )


def _growth(growth: Mapping[str, Any]) -> Figure:
    """Relative to the smallest, since the kinds have no common unit."""
    data = []
    for kind, one in growth.items():
        points = sorted((int(size), p["activations"]) for size, p in one["points"].items())
        if points and points[0][1]:
            data.append(
                {
                    "x": [size / points[0][0] for size, _ in points],
                    "y": [value / points[0][1] for _, value in points],
                    "name": kind,
                    "mode": "lines+markers",
                }
            )
    return Figure(
        "Growth of activations",
        "From shapes, relative to the smallest of each kind.",
        data,
        {
            "xaxis": {"title": "times the smallest", "type": "log"},
            "yaxis": {"title": "times its activations", "type": "log"},
        },
    )


def _tail(shown: Sequence[Table]) -> Iterator[str]:
    for table in shown:
        yield from page.section(table, _PAGE_ROWS, f"tables/{table.key}.csv")
