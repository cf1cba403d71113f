"""Draws the page of `runs --pareto`, which shows each run that no other run of the same task beats."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import combinations
from typing import Any

from harness.core.units import counted
from harness.results.numbers import Number
from harness.results.pages.page import Article, Figure, table
from harness.results.pages.runs.history import hover, limits
from harness.results.pages.runs.overview import Overview, first_articles
from harness.results.pages.runs.rows import UNKNOWN, Linked, Row, load_text, numbers, shown, subject
from harness.results.pages.words import words

NAMED_MODELS = 3
"""A title names at most this many models."""

_WIDE = 20
"""An axis is logarithmic if its largest number is at least this multiple of its smallest number."""

_LEAST_SPAN = 0.02
"""An axis spans at least this share of its values, because smaller differences are noise."""

_KINDS = ("peak", "throughput", "p99", "accuracy", "joules_per_sample")
Numbers = Mapping[str, Number]
Member = tuple[Row, Numbers]


def pareto(rows: Sequence[Row], linked: Linked) -> list[Article]:
    """Returns one article per task (scenario, load, data and machine). Includes only VALID runs that measured a speed
    under a known load. rows: newest first.

    With synthetic data, each model is a separate task.
    """
    groups: dict[tuple[str, ...], list[Member]] = {}
    for row in rows:
        values = {name: q for name, q in numbers(row).items() if name.startswith(_KINDS)}
        # A run with only an accuracy would be on every front, and a smaller unknown load would beat a larger one.
        is_speed = any(not name.startswith("accuracy") for name in values)
        if row["verdict"] == "VALID" and is_speed and load_text(row) != UNKNOWN:
            synthetic = row["dataset"] == "synthetic"
            task = row["model"] if synthetic else row["dataset_digest"] or ""
            key = (row["scenario"], load_text(row), row["dataset"], task, row["host"] or "-")
            groups.setdefault(key, []).append((row, values))
    return first_articles(
        groups, _PAGE, lambda key, members: _article(key, members, linked), linked
    )


_INTRODUCTION = (
    "<h1>Pareto: the runs that no other run beats</h1>"
    '<p class="quiet">A task has the VALID runs with the same work on one machine. A run is on the front if no other '
    "run is at least as good in every measured number and better in one. For each beaten run, the table names a run "
    "that beats it. Compare shows whether two runs differ by more than noise.</p>"
)
_READING = (
    "A plot compares two numbers of the runs. A filled mark is on the front of all numbers; an open mark is beaten. A "
    "dashed line is the front of the two numbers of a plot."
)


def beats(ours: Numbers, theirs: Numbers) -> bool:
    """Returns whether the first run is better in at least one number and worse in none."""
    if not theirs.keys() <= ours.keys():
        return False
    gains = [
        (ours[name].value - number.value) * (1 if number.higher_is_better else -1)
        for name, number in theirs.items()
    ]
    return min(gains) >= 0 and max(gains) > 0


def _beaten_by(members: Sequence[Member]) -> dict[str, str]:
    """Maps the folder of each run to the folder of a run on the front that beats it; "" for a run on the front."""
    front = [
        (row, values)
        for row, values in members
        if not any(beats(other, values) for _, other in members)
    ]
    return {
        row["folder"]: next((r["folder"] for r, other in front if beats(other, values)), "")
        for row, values in members
    }


def _title(key: Sequence[str], members: Sequence[Member]) -> str:
    scenario, load, dataset, *_ = key
    models = list(dict.fromkeys(row["model"] for row, _ in members))
    named = ", ".join(models) if len(models) <= NAMED_MODELS else counted(len(models), "model")
    return " · ".join([subject(named, dataset), scenario, *([load] if load else [])])


def _summary(members: Sequence[Member]) -> Sequence[str]:
    """Returns the cells of a task in the overview."""
    beaten_by = _beaten_by(members)
    front = [_label(row) for row, _ in members if not beaten_by[row["folder"]]]
    named = list(dict.fromkeys(front))
    shown = ", ".join(named[:NAMED_MODELS]) + (", …" if len(named) > NAMED_MODELS else "")
    return (str(len(members)), str(len(front)), shown)


_PAGE = Overview(
    _INTRODUCTION,
    _READING,
    ("task", "VALID runs", "on the front", "model and backend on the front"),
    _summary,
    _title,
    lambda member: member[0],
    "task",
    "tasks are not shown: choose with --scenario or --host",
)


def _article(key: Sequence[str], members: Sequence[Member], linked: Linked) -> Article:
    beaten_by = _beaten_by(members)
    front = sum(not folder for folder in beaten_by.values())
    has_best = front == 1 < len(members)
    best = "one run beats the others" if has_best else f"{front} on the front"
    about = f"{counted(len(members), 'VALID run')} on {key[-1]}: {best}."
    title = escape(_title(key, members))
    head = [f"<h1>{title}</h1>", f'<p class="quiet">{escape(about)}</p>']
    names = list(dict.fromkeys(name for _, values in members for name in values))
    rows = _table(members, names, beaten_by, linked)
    # A front of one run is a point, which the table shows as well.
    figures = [] if has_best else list(_figures(members, names, beaten_by))
    return Article(head, figures, [rows])


def _figures(
    members: Sequence[Member], names: Sequence[str], beaten_by: Mapping[str, str]
) -> Iterator[Figure]:
    for x, y in combinations(sorted(names, key=_order), 2):
        both = [(row, values) for row, values in members if x in values and y in values]
        if len(both) < 2 or any(len({values[n].value for _, values in both}) < 2 for n in (x, y)):
            # A number that is equal in all runs does not distinguish the runs; the table shows the number.
            continue
        data: list[Mapping[str, Any]] = []
        for label in dict.fromkeys(_label(row) for row, _ in both):
            own = [member for member in both if _label(member[0]) == label]
            symbols = ["circle-open" if beaten_by[row["folder"]] else "circle" for row, _ in own]
            data.append(
                {
                    **_points([values for _, values in own], x, y),
                    "text": [hover(row) for row, _ in own],
                    "name": escape(label),
                    "mode": "markers",
                    "marker": {"symbol": symbols, "size": 10},
                }
            )
        data.append(_front([{n: values[n] for n in (x, y)} for _, values in both], x, y))
        yield Figure(
            f"{words(y)} against {words(x)}",
            "Filled: on the front of all numbers. Dashed: the front of these two.",
            data,
            {"xaxis": _axis(x, both), "yaxis": _axis(y, both), "showlegend": True},
        )


def _order(name: str) -> int:
    return next(i for i, kind in enumerate(_KINDS) if name.startswith(kind))


def _label(row: Row) -> str:
    return f"{row['model']} {row['backend']}"


def _points(points: Sequence[Numbers], x: str, y: str) -> dict[str, Any]:
    return {"x": [p[x].value for p in points], "y": [p[y].value for p in points]}


def _front(points: Sequence[Numbers], x: str, y: str) -> Mapping[str, Any]:
    best = [point for point in points if not any(beats(other, point) for other in points)]
    return {
        **_points(sorted(best, key=lambda point: point[x].value), x, y),
        "name": "front",
        "mode": "lines",
        "hoverinfo": "skip",
        "line": {"dash": "dash", "color": "#888888"},
    }


def _axis(name: str, both: Sequence[Member]) -> Mapping[str, Any]:
    values = [numbers[name].value for _, numbers in both]
    unit = both[0][1][name].unit
    title = f"{words(name)}, {unit}" if unit else words(name)
    wide = min(values) > 0 and max(values) > _WIDE * min(values)
    if wide:
        return {"title": title, "type": "log"}
    middle, half = (max(values) + min(values)) / 2, (max(values) - min(values)) / 2
    least = _LEAST_SPAN / 2 * abs(middle)
    span = {"range": [middle - least, middle + least]} if half < least * 0.9 else {}
    return {"title": title, **span} | (limits(name, values) if name.startswith("accuracy") else {})


def _table(
    members: Sequence[Member],
    names: Sequence[str],
    beaten_by: Mapping[str, str],
    linked: Linked,
) -> str:
    by_folder = {row["folder"]: row for row, _ in members}
    rows = [
        (
            linked(row),
            _label(row),
            linked(by_folder[beaten]) if (beaten := beaten_by[row["folder"]]) else "on the front",
            *(shown(values.get(name)) for name in names),
        )
        for row, values in sorted(members, key=lambda one: bool(beaten_by[one[0]["folder"]]))
    ]
    return table(
        ("run", "model, backend", "beaten by", *map(words, names)),
        rows,
        numbers=len(names),
        cards=True,
    )
