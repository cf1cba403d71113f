"""`runs --pareto`: which runs no other run of the same task beats in everything."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import combinations
from pathlib import Path
from typing import Any

from harness.core.units import counted
from harness.results.pages.history import MOST, Row, Told, hover, numbers, shown
from harness.results.pages.page import Article, Figure, link, table

_WIDE = 20
"""An axis on which the largest number is so many times the smallest is logarithmic."""

_KINDS = ("throughput", "p99 latency", "accuracy", "energy")
Numbers = Mapping[str, Told]


def pareto(rows: Sequence[Row], results: Path, page: Path) -> list[Article]:
    """rows: newest first. One article for each task: scenario, dataset and machine; only VALID runs.

    On synthetic data each model has a task of its own.
    """
    groups: dict[tuple[str, ...], list[tuple[Row, Numbers]]] = {}
    for row in rows:
        found = {n: t for n, t in numbers(row).items() if n.startswith(_KINDS)}
        if row["verdict"] == "VALID" and found:
            task = row["model"] if row["dataset"] == "synthetic" else row["dataset"]
            key = (row["scenario"], task, row["host"] or "-")
            groups.setdefault(key, []).append((row, found))
    articles = [
        _article(key, members, results, page) for key, members in list(groups.items())[:MOST]
    ]
    if len(groups) > MOST:
        left = f"{len(groups) - MOST} more tasks are left out: choose by --scenario or --host"
        articles.append(Article([f"<p>{left}.</p>"], [], []))
    return articles


def beats(ours: Numbers, theirs: Numbers) -> bool:
    """No worse in anything that the other measured, and better in something."""
    if not theirs.keys() <= ours.keys():
        return False
    gains = [_gain(ours[name], told) for name, told in theirs.items()]
    return min(gains) >= 0 and max(gains) > 0


def _gain(ours: Told, theirs: Told) -> float:
    return (ours.value - theirs.value) * (1 if theirs.higher_is_better else -1)


def _article(
    key: Sequence[str], members: Sequence[tuple[Row, Numbers]], results: Path, page: Path
) -> Article:
    scenario, task, host = key
    beaten = {
        row["folder"]: next((r["folder"] for r, other in members if beats(other, found)), "")
        for row, found in members
    }
    front = sum(not by for by in beaten.values())
    about = (
        f"{counted(len(members), 'VALID run')} on {host}, {front} of them on the front: no other run is at "
        "least as good in every number that they measured, and better in one. Points are single "
        "runs: whether two of them differ by more than noise is what compare says."
    )
    head = [
        f"<h1>{escape(f'{scenario} · {task}')}</h1>",
        f'<p class="quiet">{escape(about)}</p>',
    ]
    names = list(dict.fromkeys(name for _, found in members for name in found))
    return Article(
        head,
        list(_figures(members, names, beaten)),
        [_listed(members, names, beaten, results, page)],
    )


def _figures(
    members: Sequence[tuple[Row, Numbers]], names: Sequence[str], beaten: Mapping[str, str]
) -> Iterator[Figure]:
    """One for each two numbers that at least two runs have."""
    for x, y in combinations(sorted(names, key=_order), 2):
        both = [(row, found) for row, found in members if x in found and y in found]
        if len(both) < 2:
            continue
        data: list[Mapping[str, Any]] = []
        for label in dict.fromkeys(_label(row) for row, _ in both):
            own = [one for one in both if _label(one[0]) == label]
            symbols = ["circle-open" if beaten[row["folder"]] else "circle" for row, _ in own]
            data.append(
                {
                    "x": [found[x].value for _, found in own],
                    "y": [found[y].value for _, found in own],
                    "text": [hover(row) for row, _ in own],
                    "name": escape(label),
                    "mode": "markers",
                    "marker": {"symbol": symbols, "size": 10},
                }
            )
        data.append(_front([{n: found[n] for n in (x, y)} for _, found in both], x, y))
        yield Figure(
            f"{y.capitalize()} against {x}",
            "Filled: on the front of all numbers. Dashed: the front of these two.",
            data,
            {"xaxis": _axis(x, both), "yaxis": _axis(y, both), "showlegend": True},
        )


def _order(name: str) -> int:
    return next(i for i, kind in enumerate(_KINDS) if name.startswith(kind))


def _label(row: Row) -> str:
    return f"{row['model']} {row['backend']}"


def _front(points: Sequence[Numbers], x: str, y: str) -> Mapping[str, Any]:
    best = [point for point in points if not any(beats(other, point) for other in points)]
    best.sort(key=lambda point: point[x].value)
    return {
        "x": [point[x].value for point in best],
        "y": [point[y].value for point in best],
        "name": "front",
        "mode": "lines",
        "hoverinfo": "skip",
        "line": {"dash": "dash", "color": "#888888"},
    }


def _axis(name: str, both: Sequence[tuple[Row, Numbers]]) -> Mapping[str, Any]:
    values = [found[name].value for _, found in both]
    unit = both[0][1][name].unit
    title = f"{name}, {unit}" if unit else name
    wide = min(values) > 0 and max(values) > _WIDE * min(values)
    return {"title": title, "type": "log"} if wide else {"title": title}


def _listed(
    members: Sequence[tuple[Row, Numbers]],
    names: Sequence[str],
    beaten: Mapping[str, str],
    results: Path,
    page: Path,
) -> str:
    """A table with the runs on the front first."""
    rows = [
        (
            link(row["folder"], results / row["folder"] / "report.html", page),
            _label(row),
            beaten[row["folder"]] or "on the front",
            *(shown(found.get(name)) for name in names),
        )
        for row, found in sorted(members, key=lambda one: bool(beaten[one[0]["folder"]]))
    ]
    return table(("run", "model, backend", "beaten by", *names), rows, numbers=len(names))
