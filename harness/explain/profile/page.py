"""Writes profile.html: flame view, layers, roofline, memory, and every table."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import log
from pathlib import Path
from typing import Any

from harness.core.stats import trimmed_mean
from harness.core.units import NS_PER_MS, show_ns
from harness.explain.kernels import layers as ly
from harness.explain.kernels.layers import Layer, Peaks
from harness.explain.profile.tables.folder import PAGE, headline, profile_tables
from harness.explain.profile.tables.layer_tables import LayerLevel, Profiled
from harness.explain.profile.tables.tables import contended, phases_of
from harness.results.evidence.stages import Completions
from harness.results.pages import page
from harness.results.pages.heading import Badges, heading
from harness.results.pages.page import Article, Figure
from harness.results.pages.plots import bars_in_rows, label_sides, line, rounded, shortened
from harness.results.pages.words import settings, words

_PAGE_ROWS = 60
KERNELS_SHOWN = 5
_OPEN = ("levels", "types")
"""Keys of the tables that are not folded."""

_ROOF = "#8a949e"
_UNKNOWN = "#5f6a74"
_PALETTE = ("#1f7a5c", "#a84a25", "#7b5ea7", "#7d640f", "#b03a6b", "#346c7d", "#596a22")
"""Colours on which white text is readable: their contrast is at least 4.5."""

_MOST_TIME = "most time   "
"""Start of the line that becomes the headline."""

_LONGEST_NAME = 28
"""Maximum number of characters of a name in the flame view."""


def write(profiled: Profiled, folder: Path) -> Path:
    title = f"profile {_name(profiled, folder)}"
    return page.write(articles(profiled, folder), title, folder / PAGE, script_in=folder)


def badges(content: Mapping[str, Any]) -> Badges:
    run = content.get("run") or {}
    is_doubted = run.get("doubts") or Profiled(content).doubts or any(contended(content))
    return Badges(run.get("verdict", ""), bool(is_doubted))


def articles(profiled: Profiled, folder: Path) -> list[Article]:
    """folder: the folder that an error message names if the folder's files do not fit together."""
    tables = profile_tables(profiled, folder)
    title = heading(["Profile", _name(profiled, folder)], badges(profiled.content))
    head = [title, *_head(profiled)]
    stages = ("stage", "stages")
    tail = [
        part
        for table in tables
        for part in page.section(
            table,
            _PAGE_ROWS,
            f"tables/{table.key}.csv",
            stages,
            is_folded=table.key not in _OPEN,
            cards=True,
        )
    ]
    return [Article(head, list(figures(profiled)), tail)]


def _name(profiled: Profiled, folder: Path) -> str:
    return str(profiled.content.get("model_name") or folder.resolve().name)


def _head(profiled: Profiled) -> Iterator[str]:
    content = profiled.content
    lines = list(headline(profiled))
    if profiled.level is not None:
        _, name, _, whole_ns = _boxes(profiled)[0]
        whole = f"mean {show_ns(whole_ns)} per {name}"
        lines = [one.replace(_MOST_TIME, f"{_MOST_TIME}{whole}; ", 1) for one in lines]
    lines += [f"{'doubt':<12}{doubt}" for doubt in contended(content)]
    yield from page.conclusion(lines, "most time")
    about = (content.get("model") or {}).get("about") or {}
    described = {"batch": content["batch"], **about}
    description = ", ".join(f"{name} {value}" for name, value in settings(described))
    yield f'<p class="quiet">{escape(description)}</p>'
    yield (
        '<p class="quiet">The folder has trace.json, for ui.perfetto.dev and chrome://tracing, and every table '
        "as CSV in tables/.</p>"
    )


def figures(profiled: Profiled) -> Iterator[Figure]:
    content = profiled.content
    level, peaks, batches = profiled.level, profiled.peaks, profiled.by_batch
    if level is not None or profiled.done is not None:
        yield _flame(profiled)
    if level is not None and level.layers:
        yield _over_index(level.layers)
        if peaks is not None:
            yield _by_kernel(level.layers, peaks)
            if len(batches) > 1:
                yield _by_batch(batches, peaks)
        yield _by_type(level.layers)
    if content.get("model"):
        yield _throughput(content["model"]["batches"])
    growth = (content.get("memory") or {}).get("growth")
    if growth:
        yield _growth(growth)


def _boxes(profiled: Profiled) -> Sequence[tuple[str, str, str, float]]:
    """Returns (id, name, parent, ns) of each box in the flame view, the whole query or call first."""
    boxes: list[tuple[str, str, str, float]] = []
    if profiled.done is not None:
        boxes += _flame_of_run(profiled.done)
    parent = next((box[0] for box in boxes if box[1] == "infer"), "")
    if profiled.level is not None:
        boxes += _flame_of_call(profiled.level, parent, {box[0]: box[3] for box in boxes})
    return boxes


def _flame(profiled: Profiled) -> Figure:
    """Draws mean times as nested bars. Each level splits the level above it, and overheads are labelled."""
    boxes, level = _boxes(profiled), profiled.level
    ids, names, parents, values = zip(*boxes, strict=True)
    types = [group.name for group in level.by_type] if level else []
    return Figure(
        "Flame view",
        "Mean time of one query by the journal, from LoadGen's schedule down to the kernels. Click to zoom in."
        f"{' The call is unprofiled; the kernels are scaled to it by their shares.' if level else ''}",
        [
            {
                "type": "icicle",
                "ids": ids,
                "labels": [shortened(name, _LONGEST_NAME) for name in names],
                "text": [show_ns(ns) for ns in values],
                "texttemplate": "%{label}<br>%{text}",
                "hovertext": names,
                "parents": parents,
                "values": [ns / NS_PER_MS for ns in values],
                "branchvalues": "total",
                "hovertemplate": "%{hovertext}<br>%{text}<br>%{percentRoot:.2%}<extra></extra>",
                "tiling": {"orientation": "v"},
                "sort": False,
                "leaf": {"opacity": 1},
                "insidetextfont": {"color": "#ffffff"},
                "outsidetextfont": {"color": "#ffffff"},  # plotly's name for the parent of the root
                "marker": {
                    "colors": [_colour(name, types) for name in map(_kind, boxes)],
                    "line": {"width": 1, "color": "rgba(255, 255, 255, 0.4)"},
                },
                "pathbar": {"visible": True},
            }
        ],
        {"uniformtext": {"minsize": 10, "mode": "hide"}},
        height_rem=30,
    )


def _kind(box: tuple[str, str, str, float]) -> str:
    """Returns the type of a kernel or group of kernels; for any other box, returns the name."""
    parts = [part for part in (box[2], box[0]) if part.startswith("type ")]
    return parts[0].removeprefix("type ") if parts else box[1]


def _colour(kind: str, types: Sequence[str]) -> str:
    """Returns the colour of a kernel type; the types are in the order of their times. All other boxes are grey or blue."""
    if kind in types:
        return _PALETTE[types.index(kind) % len(_PALETTE)]
    return {"query": "#4d5963", "infer": "#23618f", "kernels": "#2a78b5"}.get(kind, _UNKNOWN)


def _flame_of_run(done: Completions) -> Iterator[tuple[str, str, str, float]]:
    means = {stage: float(done.spent_ns(stage).mean()) for stage in done.edges}
    yield "query", "query", "", sum(means.values())
    for phase, stages in phases_of(done).items():
        if len(stages) == 1:
            yield stages[0], words(stages[0]), "query", means[stages[0]]
        else:
            yield phase, phase, "query", sum(means[stage] for stage in stages)
            yield from ((stage, words(stage), phase, means[stage]) for stage in stages)


def _flame_of_call(
    level: LayerLevel, parent: str, known: Mapping[str, float]
) -> Iterator[tuple[str, str, str, float]]:
    """Yields the parts of a profiled call, scaled to the box that contains them."""
    parts = level.parts
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
    for group in level.by_type:
        yield f"type {group.name}", group.name, "kernels", group.latency_ns * fit * scale
    for layer in level.layers:
        name = f"{layer.index} {layer.name}"
        yield f"kernel {name}", name, f"type {layer.op_type}", layer.latency_ns * fit * scale


def _over_index(layers: Sequence[Layer]) -> Figure:
    has_memory = _has_memory(layers)

    def bars(name: str, values: Sequence[float], axis: str) -> Mapping[str, Any]:
        return {
            "type": "bar",
            "x": [layer.index for layer in layers],
            "y": [rounded(value) for value in values],
            "name": name,
            "text": [f"{layer.name}: {layer.ops}" for layer in layers],
            "textposition": "none",
            "yaxis": axis,
            "hovertemplate": "%{x} %{text}<br>%{y}<extra></extra>",
        }

    latency_ms = [layer.latency_ns / NS_PER_MS for layer in layers]
    data = [bars("latency, ms", latency_ms, "y")]
    layout: dict[str, Any] = {
        "xaxis": {"title": "index of the kernel"},
        "yaxis": {"title": "latency, ms"},
        "showlegend": False,
    }
    if has_memory:
        taken = [max(layer.allocated_bytes or 0, 0) / 1e6 for layer in layers]
        data.append(bars("allocated, MB", taken, "y2"))
        layout["xaxis"]["anchor"] = "y2"
        layout["yaxis"]["domain"] = [0.55, 1]
        layout["yaxis2"] = {"title": "allocated, MB", "domain": [0, 0.45]}
    about = (
        f"Latency{' and memory taken' if has_memory else ''} of each executed kernel, as the profiler measured it; the "
        "flame view scales these times to the unprofiled call."
    )
    return Figure("Layers in order", about, data, layout)


def _has_memory(layers: Sequence[Layer]) -> bool:
    return any(layer.allocated_bytes is not None for layer in layers)


_HOVER = "%{text}<br>%{x:.3g} FLOP/byte, %{y:.3g} GFLOP/s<extra></extra>"
_MOST_NAMED = 6
"""The roofline names at most this many kernels, the slowest ones."""


def _by_kernel(layers: Sequence[Layer], peaks: Peaks) -> Figure:
    """Draws the kernels, except kernels without FLOPs."""
    shown = [la for la in layers if la.flops and la.intensity and la.flops_per_s]
    slowest = max((layer.latency_ns for layer in shown), default=1.0)
    data = []
    slowest_first = sorted(shown, key=lambda layer: -layer.latency_ns)
    named = _name_sides(slowest_first[:_MOST_NAMED], shown, peaks)
    for bound in ("compute", "memory"):
        bounded = [layer for layer in shown if ly.bound_of(layer, peaks) == bound]
        sizes = [6 + 18 * (layer.latency_ns / slowest) ** 0.5 for layer in bounded]
        data.append(
            {
                **_points(
                    f"{bound}-bound",
                    [(f"{la.index} {la.name}: {la.ops}", la) for la in bounded],
                    mode="markers+text",
                    marker={"opacity": 0.7, "size": sizes},
                    textposition=[named.get(la.index, "top center") for la in bounded],
                    hovertext=[f"{la.index} {la.name}: {la.ops}" for la in bounded],
                ),
                "text": [f"{la.index} {la.op_type}" if la.index in named else "" for la in bounded],
                "hovertemplate": _HOVER.replace("text", "hovertext"),
            }
        )
    has_integers = any(layer.is_integer for layer in shown) and peaks.int8_per_s is not None
    types = "float32 and int8" if has_integers else "float32"
    return _roofline(
        "Roofline",
        "FLOPs and bytes are from shapes, times are from the profiled calls. The roof is this machine's matrix product and copy, in "
        f"{types}; caches may lift a kernel above it. Larger markers stand for longer times.",
        data,
        peaks,
        has_integers=has_integers,
    )


_NAME_DISTANCE, _NAME_REACH = (0.12, 0.07), (0.1, 0.05)
"""Room of a name in the roofline, as `label_sides` takes it."""


def _name_sides(layers: Sequence[Layer], drawn: Sequence[Layer], peaks: Peaks) -> Mapping[int, str]:
    """Returns the place of the name of each layer, by the layer's index. drawn: all layers in the plot."""
    places = [(log(one.intensity or 1.0), log(one.flops_per_s or 1.0)) for one in drawn]
    ridge = log(peaks.ridge), log(peaks.flops_per_s)
    numbers = [drawn.index(layer) for layer in layers]
    sides = label_sides(places, numbers, _NAME_DISTANCE, _NAME_REACH, [ridge], only_free=True)
    return {drawn[number].index: side for number, side in sides.items()}


def _by_batch(batches: Mapping[int, LayerLevel], peaks: Peaks) -> Figure:
    """Draws the roofline by batch. batches: ascending by batch size, at least two."""
    labels = {"mode": "lines+markers+text", "textposition": "top center"}
    whole = [(str(batch), level) for batch, level in batches.items()]
    data = [_points("the model", whole, line={"width": 3}, **labels)]
    slowest = sorted(batches[max(batches)].layers, key=lambda layer: -layer.latency_ns)[
        :KERNELS_SHOWN
    ]
    for kernel in slowest:
        layers = {str(batch): level.by_name.get(kernel.name) for batch, level in batches.items()}
        same = [(batch, layer) for batch, layer in layers.items() if layer]
        data.append(_points(f"{kernel.index} {kernel.name}", same, line={"width": 1}, **labels))
    return _roofline(
        "Roofline by batch",
        "The whole model, and the slowest kernels of the largest batch. Numbers are batches.",
        [trace for trace in data if trace["x"]],
        peaks,
    )


def _points(
    name: str, named: Sequence[tuple[str, Layer | LayerLevel]], **more: Any
) -> Mapping[str, Any]:
    """Returns positions below the roofline. Leaves out entries without work. named: pairs of a text and a layer or
    model.
    """
    known = [(text, at) for text, at in named if at.intensity and at.flops_per_s]
    return line(
        name,
        [at.intensity for _, at in known],
        [(at.flops_per_s or 0) / 1e9 for _, at in known],
        text=[text for text, _ in known],
        hovertemplate=_HOVER,
        **more,
    )


def _roofline(
    title: str,
    about: str,
    data: Sequence[Mapping[str, Any]],
    peaks: Peaks,
    *,
    has_integers: bool = False,
) -> Figure:
    """Draws the data and the measured peaks on logarithmic axes."""
    ends = [x for trace in data for x in trace["x"]] + [peaks.ridge]
    x = [min(ends) / 2, peaks.ridge, max(ends) * 2]
    roofs = [_roof("measured peaks", x, peaks, "dash")]
    if has_integers and peaks.int8_per_s is not None:
        integers = peaks._replace(flops_per_s=peaks.int8_per_s)
        at = sorted([*x, integers.ridge])
        roofs.append(_roof("measured peaks, int8", at, integers, "dot"))
    layout = {
        "xaxis": {"title": "arithmetic intensity, FLOP/byte", "type": "log"},
        "yaxis": {"title": "GFLOP/s", "type": "log"},
    }
    return Figure(title, about, [*data, *roofs], layout)


def _roof(name: str, x: Sequence[float], peaks: Peaks, dash: str) -> Mapping[str, Any]:
    y = [min(peaks.flops_per_s, at * peaks.bytes_per_s) / 1e9 for at in x]
    return line(name, x, y, mode="lines", line={"color": _ROOF, "dash": dash})


def _by_type(layers: Sequence[Layer]) -> Figure:
    groups = ly.grouped(layers, lambda layer: layer.op_type)
    measures = {
        "kernels": [float(g.count) for g in groups],
        "latency": [g.latency_ns for g in groups],
    }
    if has_memory := _has_memory(layers):
        measures["allocated"] = [float(g.allocated_bytes or 0) for g in groups]
    return bars_in_rows(
        "By type",
        f"Shares of the number of kernels{', their profiled time and their memory' if has_memory else ' and their profiled time'}.",
        {"title": "%"},
        [group.name for group in groups],
        {
            name: [100 * value / (sum(values) or 1.0) for value in values]
            for name, values in measures.items()
        },
        "group",
    )


def _throughput(batches: Mapping[str, Mapping[str, Sequence[int]]]) -> Figure:
    sizes = sorted(map(int, batches))
    latency_ns = [trimmed_mean(batches[str(size)]["wall_ns"]) for size in sizes]
    per_s = [size / ns * 1e9 for size, ns in zip(sizes, latency_ns, strict=True)]
    return Figure(
        "Batches",
        "Bare calls without a profiler: throughput and latency by batch.",
        [
            line("samples/s", sizes, per_s),
            line("latency", sizes, [ns / NS_PER_MS for ns in latency_ns], yaxis="y2"),
        ],
        {
            "xaxis": {"title": "batch", "type": "log", "anchor": "y2", "tickvals": sizes},
            "yaxis": {"title": "samples/s", "rangemode": "tozero", "domain": [0.55, 1]},
            "yaxis2": {"title": "latency, ms", "rangemode": "tozero", "domain": [0, 0.45]},
        },
    )


def _growth(growth: Mapping[str, Any]) -> Figure:
    """Draws growth relative to the smallest input, because the kinds of growth do not share a unit."""
    data = []
    for kind, one in growth.items():
        points = sorted((int(size), p["activations"]) for size, p in one["points"].items())
        if points and points[0][1]:
            sizes, values = zip(*points, strict=True)
            x, y = ([value / series[0] for value in series] for series in (sizes, values))
            data.append(line(kind, x, y))
    return Figure(
        "Growth of activations",
        "Computed from shapes, relative to the smallest input of each kind.",
        data,
        {
            "xaxis": {"title": "times the smallest", "type": "log"},
            "yaxis": {"title": "times its activations", "type": "log"},
        },
    )
