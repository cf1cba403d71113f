"""Writes grid.html with a grid's heat maps, lines, fronts and tables."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import combinations, compress
from math import log10
from pathlib import Path
from typing import Any, NamedTuple

from harness.core.units import (
    NS_PER_MS,
    NS_PER_S,
    counted,
    parse_duration_ns,
    show_ns,
    show_rate,
    show_wait,
)
from harness.models.manifest.lookup import result_name
from harness.results.numbers import Number
from harness.results.pages import page
from harness.results.pages.heading import Badges, heading
from harness.results.pages.page import Article, Figure, typeset
from harness.results.pages.plots import heat_map, line
from harness.search.grid.cells.cells import Row
from harness.search.grid.view import report, tables
from harness.search.grid.view.view import View

PAGE = "grid.html"

_READING = (
    "Heat maps: a stronger colour is better, a border marks the best cell, and a gap is a cell that is absent or not "
    "ranked."
)

_DECADE = 10
"""The colours are logarithmic if the largest value exceeds the smallest by more than this factor. Otherwise one large
value would make all other cells pale.
"""


_OPEN = ("fastest", "front")
"""Keys of the tables that are not folded unless they are long."""


def write(view: View, folder: Path) -> Path:
    return page.write(articles(view), folder.resolve().name, folder / PAGE, script_in=folder)


def articles(view: View) -> list[Article]:
    config = view.content["config"]
    head = [_heading(view), page.headline(report.headline(view) or "no cell is ranked")]
    length = show_wait(parse_duration_ns(config["duration"]) / NS_PER_S)
    maps = [*_heat_maps(view)]
    head += page.labelled([f"{'each cell':<12}{length}", *report.facts(view)])
    head += [f'<p class="quiet">{_READING}</p>'] if maps else []
    # A reader looks for the best cells first; the heat maps show the same comparisons as the folded tables.
    shown = sorted(report.tables_of(view), key=lambda table: table.key not in _OPEN)
    tail = [
        part
        for table in shown
        for part in page.section(table, folds=True, is_folded=table.key not in _OPEN, cards=True)
    ]
    return [Article(head, [*maps, *_lines(view), *_fronts(view)], tail)]


def _heading(view: View) -> str:
    axes = view.content["axes"]
    models = map(result_name, axes["model"])
    words = [
        "Grid",
        ", ".join(models),
        view.content["config"]["scenario"],
        ", ".join(axes["backend"]),
    ]
    return heading(words, Badges(*report.judged(view)))


def _heat_maps(view: View) -> Iterator[Figure]:
    """Yields a heat map of each number for each model, kind of data and shape. All maps of a number share a scale on
    which a stronger colour is better.
    """
    maps = view.heat_maps()
    values: dict[str, list[float]] = {}
    joined: dict[tuple[str, str], dict[str, Mapping[int, float | None]]] = {}
    subjects, names = _told_apart(view, maps)
    for content, subject, row_names in zip(maps, subjects, names, strict=True):
        cells = [z for row in content["z"] for z in row if z is not None]
        values.setdefault(content["number"], []).extend(cells)
        rows = joined.setdefault((content["number"], subject), {})
        for row_name, z in zip(row_names, content["z"], strict=True):
            rows[row_name] = dict(zip(content["batch"], z, strict=True))
    for (number, subject), rows in joined.items():
        of_number = values[number]
        if len(set(of_number)) < 2:
            continue  # a single colour shows nothing more than the table
        name, _, unit = number.partition(", ")
        in_ms, is_better_low = unit == "ms", number.startswith("latency")
        least, most = min(of_number), max(of_number)
        is_log = 0 < _DECADE * least < most
        scale = log10 if is_log else float
        batches = sorted({batch for row in rows.values() for batch in row})
        cells_by_row = [[row.get(batch) for batch in batches] for row in rows.values()]
        title = f"{name[:1].upper()}{name[1:]}"
        in_title, after = ("", "") if in_ms or not unit else (f", {unit}", f" {unit}")
        yield heat_map(
            f"{title}{in_title}{subject and f': {subject}'}",
            "Logarithmic colours." if is_log else "",
            ("batch, samples", batches),
            ("", list(rows)),
            [[None if z is None else scale(z) for z in row] for row in cells_by_row],
            _AXIS_REM + _ROW_REM * len(rows),
            scale(least if is_better_low else most),
            text=[[_text(z, in_ms=in_ms) for z in row] for row in cells_by_row],
            texttemplate="%{text}",
            hovertemplate=f"%{{y}}, batch %{{x}}: %{{text}}{after}<extra></extra>",
            showscale=False,
            hoverongaps=False,
            zmin=scale(least),
            zmax=scale(most),
            reversescale=is_better_low,
        )


_AXIS_REM, _ROW_REM = 7.0, 1.8
"""Height of a heat map without rows, and height of a row."""


def _told_apart(view: View, maps: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Returns the subject of each map (model, data, shape) and the names of its rows (framework, precision, threads).
    Both contain only words that differ between maps, and every row has its precision.
    """
    subjects = [
        (view.labels[content["model"]], content["data"], " ".join(content["shape"]))
        for content in maps
    ]
    backends = _varying([(content["backend"],) for content in maps], "")
    threads = _varying([(counted(content["threads"], "thread"),) for content in maps], "")
    names = [
        [
            ", ".join(filter(None, (f"{backend} {one}".strip(), count)))
            for one in content["precision"]
        ]
        for content, backend, count in zip(maps, backends, threads, strict=True)
    ]
    return _varying(subjects, ", "), names


def _varying(described: Sequence[tuple[str, ...]], separator: str) -> list[str]:
    """Returns the words of each entry, without the columns that are equal in all entries."""
    varies = [len(set(column)) > 1 for column in zip(*described, strict=True)]
    return [separator.join(filter(None, compress(words, varies))) for words in described]


def _text(value: float | None, *, in_ms: bool) -> str:
    if value is None:
        return ""
    return typeset(show_ns(value * NS_PER_MS)) if in_ms else show_rate(value)


BY_BATCH = "Throughput over batch"
"""Title of a plot, which is also on the page of a grid in progress."""


def _lines(view: View) -> Iterator[Figure]:
    """Yields plots of throughput against batch size, with one line per way to run the model."""
    ways, groups = _ways(view), dict[str, list[Row]]()
    looks = looks_of(ways)
    for row, label in zip(view.ranked, _labels(view), strict=True):
        groups.setdefault(label, []).append(row)
    data = [
        line(
            escape(label),
            [row.batch for row in members],
            [row.throughput_per_s for row in members],
            error_y={"array": [r.noise * (r.throughput_per_s or 0.0) for r in members]},
            legendgroup=looks[label].family,
            line={"dash": looks[label].dash},
            marker={"symbol": looks[label].shape},
            showlegend=False,
        )
        for label, members in groups.items()
        if len(members) > 1
    ]
    if data:
        yield Figure(
            BY_BATCH,
            "Bars: the column +-, about half of the 95 % interval, from blocks of neighbouring batches.",
            [*data, *key(ways)],
            {
                "xaxis": {
                    "title": "batch, samples",
                    "type": "log",
                    "tickvals": sorted({row.batch for row in view.ranked}),
                },
                "yaxis": {"title": "samples/s", "rangemode": "tozero"},
                **_LEGEND,
            },
        )


_LEGEND: Mapping[str, Any] = {"showlegend": True, "legend": {"tracegroupgap": 0}}

_COLOURS = 8
"""Number of colours of a page. Further families repeat the colours with other marks."""
_DASHES = ("solid", "dash", "dot", "dashdot")
_SHAPES = ("circle", "square", "diamond", "triangle-up", "cross", "star")


class Look(NamedTuple):
    """The look of one way to run a model. Eight lines in eight colours could not be told apart, so the colour shows only
    the first axis with several values (e.g. the framework), the dash the second (precision) and the mark the third
    (threads).
    """

    family: str
    """Ways with the same family have the same colour."""
    dash: str
    shape: str


def _ways(view: View) -> Mapping[str, tuple[str, ...]]:
    """Returns the values of the varying axes by label, the axis of the colours first."""
    ranked = view.ranked
    families = _varying(
        [(view.labels[r.model], r.backend, r.data, " ".join(r.shape)) for r in ranked], " "
    )
    threads = [counted(r.threads, "thread") for r in ranked]
    axes = (families, [r.precision for r in ranked], threads)
    varying = [axis for axis in axes if len(set(axis)) > 1] or [families]
    return dict(zip(_labels(view), zip(*varying, strict=True), strict=True))


def looks_of(ways: Mapping[str, tuple[str, ...]]) -> Mapping[str, Look]:
    """Returns the look of each label. ways: as in `_ways`."""
    colours, dashes = (list(dict.fromkeys(way[i : i + 1] for way in ways.values())) for i in (0, 1))
    kinds: dict[tuple[Any, ...], str] = {}
    looks = {}
    for label, way in ways.items():
        colour, dash = colours.index(way[:1]), dashes.index(way[1:2])
        # A colour or dash that is used again gets other marks.
        kind = (colour // _COLOURS, dash // len(_DASHES), *way[2:])
        shape = kinds.setdefault(kind, _SHAPES[len(kinds) % len(_SHAPES)])
        looks[label] = Look(escape(way[0]), _DASHES[dash % len(_DASHES)], shape)
    return looks


def key(ways: Mapping[str, tuple[str, ...]]) -> Iterator[dict[str, Any]]:
    """Yields legend entries for the values of each axis, because an entry for each combination would fill the plot. A
    value whose colour or dash is already in use is also drawn with a mark. ways: as in `_ways`.
    """
    if len(ways) < 2:  # a single line needs no name
        return
    looks, first = looks_of(ways), dict[tuple[int, str], Look]()
    for label, way in ways.items():
        for axis, name in enumerate(way):
            first.setdefault((axis, name), looks[label])
    for (axis, name), (family, dash, shape) in sorted(first.items(), key=lambda one: one[0][0]):
        line_of = {"width": 4} if axis == 0 else {"color": _GREY, "dash": dash}
        entry = _entry(escape(name), {"symbol": shape, "size": 9, "color": _GREY}, line_of)
        is_first = shape == _SHAPES[0]
        entry["mode"] = "markers" if axis > 1 else "lines" if is_first else "lines+markers"
        if axis == 0:
            del entry["marker"]["color"]
            entry["legendgroup"] = family
        yield entry


def _labels(view: View) -> list[str]:
    """Returns a label for each ranked row; the label names the axes that have several values. The label leaves out the
    batch size.
    """
    words = [
        (
            view.labels[r.model],
            r.backend,
            r.precision,
            r.data,
            " ".join(r.shape),
            f"threads {r.threads}",
        )
        for r in view.ranked
    ]
    labels = _varying(words, " ")
    return [label or " ".join(one[:3]) for label, one in zip(labels, words, strict=True)]


def _fronts(view: View) -> Iterator[Figure]:
    """Yields a scatter plot for each pair of measured numbers. Filled marks are cells on the front."""
    ways, beaten = _ways(view), tables.front(view.ranked)
    measured = [tables.numbers(row) for row in view.ranked]
    names = list(dict.fromkeys(name for numbers in measured for name in numbers))
    for x, y in combinations(names, 2):
        lines: dict[str, list[tuple[Row, Number, Number]]] = {}
        for row, label, n in zip(view.ranked, _labels(view), measured, strict=True):
            if x in n and y in n:
                lines.setdefault(label, []).append((row, n[x], n[y]))
        both = [one for own in lines.values() for one in own]
        if min(len({a.value for _, a, _ in both}), len({b.value for _, _, b in both})) < 2:
            continue
        if y == "memory" and _is_flat([b.value for _, _, b in both]):
            continue
        yield Figure(
            f"{y.capitalize()} against {x}",
            "A line connects the batch sizes of one way to run the model. On the front: no other cell is at least as "
            "good in every number and better in one.",
            [*all_points(lines, beaten, ways)],
            {
                "xaxis": {"title": f"{x}, {both[0][1].unit}"},
                "yaxis": {"title": f"{y}, {both[0][2].unit}"},
                **_LEGEND,
            },
        )


FLAT = 0.05
"""Memory is plotted only if the cells differ by at least this share. An axis over less makes 2 % look like a cliff."""


def _is_flat(values: Sequence[float]) -> bool:
    return min(values) > (1 - FLAT) * max(values)


_GREY = "#57606a"


def all_points(
    lines: Mapping[str, Sequence[tuple[Row, Number, Number]]],
    beaten: Mapping[Any, Any],
    ways: Mapping[str, tuple[str, ...]],
) -> Iterator[dict[str, Any]]:
    """Yields the points of each line, the entries of `key`, and two legend entries that explain filled and open
    points.
    """
    looks = looks_of(ways)
    for label, unsorted in lines.items():
        own = sorted(unsorted, key=lambda one: one[0].batch)
        family, dash, shape = looks[label]
        open_ones = [bool(beaten[row.cell]) for row, _, _ in own]
        yield {
            **line(escape(label), [x.value for _, x, _ in own], [y.value for _, _, y in own]),
            "legendgroup": family,
            "text": [f"batch {row.batch}" for row, _, _ in own],
            "line": {"dash": dash, "width": 1},
            "marker": {
                "symbol": [f"{shape}-open" if one else shape for one in open_ones],
                "size": 9,
            },
            "showlegend": False,
        }
    yield from key(ways)
    for name, symbol in (("on the front", "circle"), ("beaten", "circle-open")):
        yield _entry(name, {"symbol": symbol, "size": 9, "color": _GREY}, {})


def _entry(name: str, marker: Mapping[str, Any], line_of: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a trace without points, which only has an entry in the legend."""
    drawn = {**line(name, [None], [None]), "mode": "markers", "marker": dict(marker)}
    return {**drawn, "line": dict(line_of)} if line_of else drawn
