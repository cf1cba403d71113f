"""Writes grid.html with a grid's heat maps, lines, fronts and tables."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import combinations, compress
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
from harness.results.numbers import Number
from harness.results.pages import page
from harness.results.pages.heading import heading
from harness.results.pages.page import Article, Figure, typeset
from harness.results.pages.plots import heat_map, line
from harness.search.grid.cells.cells import Row
from harness.search.grid.view import report, tables
from harness.search.grid.view.view import View

PAGE = "grid.html"

_READING = (
    "Heat maps: a stronger colour is better, and a gap is a cell that is absent or not ranked."
)


_OPEN = ("fastest", "front")
"""Keys of the tables that are not folded unless they are long."""


def write(view: View, folder: Path) -> Path:
    return page.write(articles(view), folder.resolve().name, folder / PAGE, script_in=folder)


def articles(view: View) -> list[Article]:
    config = view.content["config"]
    head = [_heading(view), page.headline(report.headline(view) or "no cell is ranked")]
    length = show_wait(parse_duration_ns(config["duration"]) / NS_PER_S)
    maps = [*_heat_maps(view)]
    facts = [f"{length} per cell", *report.made(view), *([_READING] if maps else [])]
    head += [f'<p class="quiet">{escape(fact)}</p>' for fact in facts]
    # A reader looks for the best cells first; the heat maps show the same comparisons as the folded tables.
    shown = sorted(report.tables_of(view), key=lambda table: table.key not in _OPEN)
    tail = [
        part
        for table in shown
        for part in page.section(table, folds=True, is_folded=table.key not in _OPEN, cards=True)
    ]
    lines = [*_lines(view)]
    keyed = [trace["name"] for figure in lines for trace in figure.data]
    return [Article(head, [*maps, *lines, *_fronts(view, keyed)], tail)]


def _heading(view: View) -> str:
    words = ["Grid", view.content["config"]["scenario"], ", ".join(view.labels.values())]
    doubted = any(row.doubts for row in view.ranked)
    return heading(words, "VALID" if view.ranked else "INVALID", doubted=doubted)


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
        in_ms = number.endswith(", ms")
        name = number.removesuffix(", ms")
        batches = sorted({batch for row in rows.values() for batch in row})
        cells_by_row = [[row.get(batch) for batch in batches] for row in rows.values()]
        title = f"{name[:1].upper()}{name[1:]}"
        yield heat_map(
            f"{title}: {subject}" if subject else title,
            "",
            ("batch, samples", batches),
            ("", list(rows)),
            cells_by_row,
            _AXIS_REM + _ROW_REM * len(rows),
            text=[[_text(z, in_ms=in_ms) for z in row] for row in cells_by_row],
            texttemplate="%{text}",
            showscale=False,
            hoverongaps=False,
            zmin=min(of_number),
            zmax=max(of_number),
            reversescale=number.startswith("latency"),
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


def _lines(view: View) -> Iterator[Figure]:
    """Yields plots of throughput against batch size, with one line per way to run the model."""
    looks, groups = _looks(view), dict[str, list[Row]]()
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
        )
        for label, members in groups.items()
        if len(members) > 1
    ]
    if data:
        yield Figure(
            "Throughput over batch",
            "Bars: the column +-, about half of the 95 % interval, from blocks of neighbouring batches.",
            data,
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


_LEGEND: Mapping[str, Any] = {
    "showlegend": True,
    "legend": {"groupclick": "toggleitem", "tracegroupgap": 0},
}

_COLOURS = 8
"""Number of colours of a page. Further families repeat the colours with other marks."""
_DASHES = ("solid", "dash", "dot", "dashdot")
_SHAPES = ("circle", "square", "diamond", "triangle-up", "cross", "star")


class Look(NamedTuple):
    """The look of one way to run a model. Eight lines in eight colours could not be told apart, so the colour shows only
    the first axis with several values (e.g. the framework), and dash and mark show the others.
    """

    family: str
    """Ways with the same family have the same colour."""
    dash: str
    shape: str


def _looks(view: View) -> Mapping[str, Look]:
    """Returns the look of each label."""
    ranked = view.ranked
    families = _varying(
        [(view.labels[r.model], r.backend, r.data, " ".join(r.shape)) for r in ranked], " "
    )
    axes = (families, [r.precision for r in ranked], [str(r.threads) for r in ranked])
    varying = [axis for axis in axes if len(set(axis)) > 1] or [families]
    ways = list(zip(*varying, strict=True))
    return looks_of(dict(zip(_labels(view), ways, strict=True)))


def looks_of(ways: Mapping[str, tuple[str, ...]]) -> Mapping[str, Look]:
    """Returns the look of each label. ways: values of the varying axes by label, the axis of the colours first."""
    colours = list(dict.fromkeys(way[0] for way in ways.values()))
    dashes = list(dict.fromkeys(way[1:2] for way in ways.values()))
    shapes = list(dict.fromkeys((colours.index(w[0]) // _COLOURS, w[1:]) for w in ways.values()))
    return {
        label: Look(
            escape(way[0]),
            _DASHES[dashes.index(way[1:2]) % len(_DASHES)],
            _SHAPES[shapes.index((colours.index(way[0]) // _COLOURS, way[1:])) % len(_SHAPES)],
        )
        for label, way in ways.items()
    }


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


def _fronts(view: View, keyed: Sequence[str]) -> Iterator[Figure]:
    """Yields a scatter plot for each pair of measured numbers. Filled marks are cells on the front.

    keyed: names in the legend of the plot over batch. A plot of the same lines has the same colours, and no legend for
    them.
    """
    looks, beaten = _looks(view), tables.front(view.ranked)
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
        is_keyed = [escape(label) for label in lines] == list(keyed)
        yield Figure(
            f"{y.capitalize()} against {x}",
            "On the front: no other cell is at least as good in every number and better in one."
            f"{_KEYED if is_keyed else ''}",
            [*all_points(lines, beaten, looks, is_keyed=is_keyed)],
            {
                "xaxis": {"title": f"{x}, {both[0][1].unit}"},
                "yaxis": {"title": f"{y}, {both[0][2].unit}"},
                **_LEGEND,
            },
        )


_KEYED = " Colours and marks as in the plot of the throughput over batch."

_GREY = "#57606a"


def all_points(
    lines: Mapping[str, Sequence[tuple[Row, Number, Number]]],
    beaten: Mapping[Any, Any],
    looks: Mapping[str, Look],
    *,
    is_keyed: bool = False,
) -> Iterator[dict[str, Any]]:
    """Yields the points of each line, one legend entry per line (unless `is_keyed`), and two legend entries that explain
    filled and open points.
    """
    for label, own in lines.items():
        family, _, shape = looks[label]
        open_ones = [bool(beaten[row.cell]) for row, _, _ in own]
        yield {
            **line(escape(label), [x.value for _, x, _ in own], [y.value for _, _, y in own]),
            "mode": "markers",
            "legendgroup": family,
            "text": [f"batch {row.batch}" for row, _, _ in own],
            "marker": {
                "symbol": [f"{shape}-open" if one else shape for one in open_ones],
                "size": 10,
            },
            "showlegend": False,
        }
        if not is_keyed:
            yield {**_entry(escape(label), {"symbol": shape, "size": 10}), "legendgroup": family}
    yield _entry("on the front", {"symbol": "circle", "size": 10, "color": _GREY})
    yield _entry("beaten", {"symbol": "circle-open", "size": 10, "color": _GREY})


def _entry(name: str, marker: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a trace without points, which only has an entry in the legend."""
    return {**line(name, [None], [None]), "mode": "markers", "marker": dict(marker)}
