"""Draws the page of `runs --pareto`, which shows the configurations that no other one of the same task beats."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import combinations
from typing import Any, NamedTuple

from harness.core.units import counted, show_percent
from harness.results.evidence.between_runs import EXTREME, SMALLEST_CHANGE
from harness.results.numbers import Number
from harness.results.pages.heading import subject
from harness.results.pages.page import Article, Figure, Html, aligned_table, counted_codes
from harness.results.pages.plots import UNJUDGED, VALID
from harness.results.pages.runs.configurations import (
    Configuration,
    Member,
    Noise,
    beats,
    gathered,
)
from harness.results.pages.runs.history import hover, limits
from harness.results.pages.runs.overview import OPTIONS, Overview, first_articles
from harness.results.pages.runs.rows import (
    UNKNOWN,
    Addresses,
    Row,
    all_linked,
    exact_load,
    load_text,
    numbers,
    shown,
)
from harness.results.pages.words import letter_of, words

NAMED_MODELS = 3
"""A title names at most this many models."""

_WIDE = 20
"""An axis is logarithmic if its largest number is at least this multiple of its smallest number."""

_LEAST_SPAN = 0.02
"""An axis spans at least this share of its values, because smaller differences are noise."""

_MOST_NAMED = 12
"""A plot of more configurations has no legend, which would be longer than the plot; hovering names a mark."""

_STRIP_REM, _ROW_REM = 5.0, 1.7
"""Height of the axis of a plot with a row per configuration, and of a row."""

_FRONT, _UNDECIDED, _BEATEN = "on the front", "undecided", "beaten"
_SYMBOLS = {_FRONT: "circle", _UNDECIDED: "diamond-open", _BEATEN: "circle-open"}
"""Maps the state of a configuration to its mark in a plot."""

_KINDS = ("peak", "throughput", "p99", "accuracy", "joules_per_sample")


def pareto(rows: Sequence[Row], addresses: Addresses, choice: str = OPTIONS) -> list[Article]:
    """Returns one article per task (scenario, load, data and machine). Includes only VALID runs that measured a speed
    under a known load. rows: newest first. choice: as in `first_articles`.

    With synthetic data, each model is a separate task.
    """
    return first_articles(
        _tasks(rows),
        _PAGE,
        lambda key, members: _article(key, members, addresses),
        addresses,
        choice,
    )


def count_tasks(rows: Sequence[Row]) -> int:
    """Returns the number of tasks with several configurations."""
    return sum(len(gathered(members)) > 1 for members in _tasks(rows).values())


def _tasks(rows: Sequence[Row]) -> Mapping[tuple[str, ...], list[Member]]:
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
    return groups


_INTRODUCTION = (
    '<p class="quiet">A task has the VALID runs with the same work on one machine. Repeats of a configuration (model, '
    "backend and settings) are one row with the median and the range of the runs. A configuration is on the front "
    "unless another one is better in a measured number and worse in none. Undecided: another one has better numbers, but "
    "the difference is within the noise.</p>"
)
_READING = (
    "A plot compares two numbers. A filled mark is on the front of all numbers; a diamond is undecided; an open circle "
    "is beaten. A bar shows the range of the repeats. A dashed line is the front of the medians of the two numbers."
)


class _Placed(NamedTuple):
    """A configuration and its place among the configurations of its task."""

    one: Configuration
    letter: str
    state: str
    """_FRONT, _UNDECIDED or _BEATEN."""
    rival: str
    """Letter of the configuration that beats this one or ties with it; '' on the front."""

    @property
    def about(self) -> str:
        words = {_UNDECIDED: " against ", _BEATEN: " by "}.get(self.state, "")
        return f"{self.state}{words}{self.rival}"


def _placed(found: Sequence[Configuration]) -> list[_Placed]:
    """Returns the configurations, those on the front first, and on it the best by the first number."""
    beaten_by = _beaten_by(found, Noise(found))
    ranked = _ranked(found, beaten_by)
    first = ranked[0][0]
    judged: list[tuple[str, Configuration, Configuration | None]] = []
    for one, better in ranked:
        if better is not None:
            judged.append((_BEATEN, one, better))
        else:
            ties = _only_ties(one, first)
            judged.append((_UNDECIDED, one, first) if ties else (_FRONT, one, None))
    judged.sort(key=lambda each: list(_SYMBOLS).index(each[0]))
    letters = {one.name: letter_of(place) for place, (_, one, _) in enumerate(judged)}
    return [
        _Placed(one, letters[one.name], state, "" if rival is None else letters[rival.name])
        for state, one, rival in judged
    ]


def _beaten_by(configurations: Sequence[Configuration], noise: Noise) -> list[Configuration | None]:
    """Returns the configuration that beats each configuration; None for a configuration on the front."""

    def beat(two: Configuration, one: Configuration) -> bool:
        return beats(two.numbers, one.numbers, noise.between(two, one))

    is_beaten = [any(beat(two, one) for two in configurations) for one in configurations]
    front = [one for one, beaten in zip(configurations, is_beaten, strict=True) if not beaten]
    # Ties are not transitive, so a configuration may be beaten only by others that are beaten, too.
    by_rank = [*front, *configurations]
    return [
        next(two for two in by_rank if beat(two, one)) if beaten else None
        for one, beaten in zip(configurations, is_beaten, strict=True)
    ]


def _names(configurations: Sequence[Configuration]) -> list[str]:
    """Returns the numbers of a task in the order of `_KINDS`."""
    found = dict.fromkeys(name for one in configurations for name in one.numbers)
    return sorted(found, key=_order)


def _order(name: str) -> int:
    return next(i for i, kind in enumerate(_KINDS) if name.startswith(kind))


def _title(_key: Sequence[str], members: Sequence[Member]) -> str:
    rows = [row for row, _ in members]
    models, backends = (
        list(dict.fromkeys(row[key] for row in rows)) for key in ("model", "backend")
    )
    named = ", ".join(models) if len(models) <= NAMED_MODELS else counted(len(models), "model")
    own = backends if len(backends) == 1 else []
    parts = [subject(named, rows[0]["dataset"]), rows[0]["scenario"], *own, exact_load(rows)]
    return " · ".join(filter(None, parts))


def _summary(members: Sequence[Member]) -> Sequence[str]:
    """Returns the cells of a task in the overview."""
    found = gathered(members)
    placed = _placed(found)
    cells = []
    for state in (_FRONT, _UNDECIDED):
        names = [each.one.name for each in placed if each.state == state]
        cells.append(", ".join(names[:NAMED_MODELS]) + (", …" if len(names) > NAMED_MODELS else ""))
    return (str(len(members)), str(len(found)), *cells)


_PAGE = Overview(
    "Pareto: the configurations that no other configuration beats",
    _INTRODUCTION,
    _READING,
    ("task", "VALID runs", "configurations", _FRONT, _UNDECIDED),
    _summary,
    _title,
    lambda member: member[0],
    "task",
    "configuration",
    lambda members: len(gathered(members)),
    has_verdicts=False,
)


def _article(key: Sequence[str], members: Sequence[Member], addresses: Addresses) -> Article:
    found = gathered(members)
    placed = _placed(found)
    counts = Counter(each.state for each in placed)
    best = f"{counts[_FRONT]} {_FRONT}"
    if counts[_UNDECIDED]:
        best += f", {counts[_UNDECIDED]} {_UNDECIDED}"
    elif counts[_FRONT] == 1 < len(found):
        best = "one configuration beats the others"
    about = f"{counted(len(members), 'VALID run')} of {counted(len(found), 'configuration')} on {key[-1]}: {best}."
    head = [f"<h1>{escape(_title(key, members))}</h1>", f'<p class="quiet">{escape(about)}</p>']
    if ties := _ties(found, Noise(found)):
        rule = f'<p class="quiet">{escape(ties)}</p>'
        head.append(f"<details><summary>Which differences count</summary>{rule}</details>")
    figures = list(_figures(placed, addresses))
    return Article(head, figures, [_table(placed, addresses)])


def _ties(found: Sequence[Configuration], noise: Noise) -> str:
    """Returns the sentence that states which differences are ties; "" if there is nothing to compare."""
    kinds = {name: found[0].numbers[name].kind for name in found[0].numbers}
    if len(found) == 1:
        return ""
    if all(noise.is_known(name) for name, kind in kinds.items() if kind != "exact"):
        return (
            "A difference counts above its 95 % interval, which follows from the spread of all repeats of this task, and "
            f"above {show_percent(SMALLEST_CHANGE)}."
        )
    rate, body, tail = (f"{EXTREME[kind] + 1:g}" for kind in ("rate", "body", "tail"))
    return (
        f"Too few repeats show the noise, so a gain counts only above a factor of {rate} (rates), {tail} (p99) or "
        f"{body} (other numbers), and a loss only above {show_percent(SMALLEST_CHANGE)}. Accuracies count exactly."
    )


def _figures(placed: Sequence[_Placed], addresses: Addresses) -> Iterator[Figure]:
    """Yields a plot per pair of numbers that differ; if only one number differs, a plot of this number; nothing for a
    single configuration, whose axis would make its noise look large.
    """
    if len(placed) < 2:
        return
    found = [each.one for each in placed]
    names = [
        name
        for name in _names(found)
        # The table shows a number that is equal everywhere.
        if len({one.numbers[name].value for one in found if name in one.numbers}) > 1
    ]
    for x, y in combinations(names, 2):
        both = [each for each in placed if x in each.one.numbers and y in each.one.numbers]
        if len(both) > 1:
            data = [_mark(each, x, y, addresses) for each in both]
            yield Figure(
                f"{words(y)} against {words(x)}",
                "Filled: on the front of all numbers. Dashed: the front of the medians of these two.",
                [*data, _front([each.one for each in both], x, y)],
                {
                    "xaxis": _axis(x, found),
                    "yaxis": _axis(y, found),
                    "showlegend": len(both) <= _MOST_NAMED,
                },
            )
    if len(names) < 2:
        name = next(iter(names), _names(found)[0])
        yield _strip(placed, name, addresses)


def _strip(placed: Sequence[_Placed], name: str, addresses: Addresses) -> Figure:
    """Draws one number with a row per configuration."""
    data = []
    for each in placed:
        if name in each.one.numbers:
            mark = _mark(each, name, name, addresses)
            del mark["error_y"]
            colour = {"color": VALID if each.state == _FRONT else UNJUDGED}
            marker = {**mark["marker"], **colour}
            error = {**mark["error_x"], **colour}
            data.append({**mark, "y": [escape(each.one.name)], "marker": marker, "error_x": error})
    title = words(name)
    return Figure(
        f"{title.capitalize() if title.isalpha() else title} of each configuration",
        "Filled: on the front. Diamond: undecided. Open circle: beaten. A bar shows the range of the repeats.",
        data,
        {
            "xaxis": _axis(name, [each.one for each in placed]),
            "yaxis": {"title": "", "type": "category", "autorange": "reversed", "dtick": 1},
            "showlegend": False,
            # On a narrow screen, page.js shows the letters of the table.
            "meta": {"letters": {escape(each.one.name): each.letter for each in placed}},
        },
        _STRIP_REM + _ROW_REM * len(data),
    )


def _mark(each: _Placed, x: str, y: str, addresses: Addresses) -> dict[str, Any]:
    one = each.one
    numbers = [one.numbers[name] for name in (x, y)]
    newest = one.runs[0][0]
    texts = [
        f"{words(name)} {_value(number)}" for name, number in zip((x, y), numbers, strict=True)
    ]
    about = f"{escape(one.name)}, {counted(len(one.runs), 'run')}<br>{'<br>'.join(dict.fromkeys(texts))}"
    return {
        "x": [numbers[0].value],
        "y": [numbers[1].value],
        "error_x": _range(numbers[0]),
        "error_y": _range(numbers[1]),
        "text": [f"{about}<br>newest: {hover(newest)}"],
        "hovertemplate": "%{text}<extra></extra>",
        "name": escape(one.name),
        "mode": "markers",
        "marker": {"symbol": _SYMBOLS[each.state], "size": 10},
        "meta": {"links": [addresses(newest)]},
    }


def _range(number: Number) -> Mapping[str, Any]:
    """Returns the bar from the smallest to the largest number of a run."""
    low, high = (number.value if end is None else end for end in (number.low, number.high))
    return {
        "type": "data",
        "array": [high - number.value],
        "arrayminus": [number.value - low],
        "visible": low < high,
    }


def _value(number: Number) -> str:
    """Returns the median and the range of the repeats, if there are any."""
    return shown(number) + (f" ({ends})" if (ends := _ends(number)) else "")


def _ends(number: Number) -> str:
    if number.low is None or number.high is None or number.low == number.high:
        return ""
    low, high = (shown(number._replace(value=end)) for end in (number.low, number.high))
    value, _, unit = low.rpartition(" ")
    return f"{value if unit and high.endswith(f' {unit}') else low} to {high}"


def _front(both: Sequence[Configuration], x: str, y: str) -> Mapping[str, Any]:
    points = [{name: one.numbers[name] for name in (x, y)} for one in both]
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


def _axis(name: str, found: Sequence[Configuration]) -> Mapping[str, Any]:
    numbers = [one.numbers[name] for one in found if name in one.numbers]
    values = [end for one in numbers for end in (one.value, one.low, one.high) if end is not None]
    unit = numbers[0].unit
    better = "higher" if numbers[0].higher_is_better else "lower"
    # The unit comes last, because page.js writes the marks of the axis with the unit of a time.
    title = f"{words(name)} ({better} is better)" + (f", {unit}" if unit else "")
    if min(values) > 0 and max(values) > _WIDE * min(values):
        return {"title": title, "type": "log"}
    middle, half = (max(values) + min(values)) / 2, (max(values) - min(values)) / 2
    least = _LEAST_SPAN / 2 * abs(middle)
    span = {"range": [middle - least, middle + least]} if half < least * 0.9 else {}
    return {"title": title, **span} | (limits(name, values) if name.startswith("accuracy") else {})


def _ranked(
    found: Sequence[Configuration], beaten_by: Sequence[Configuration | None]
) -> list[tuple[Configuration, Configuration | None]]:
    """Puts the front first, and on it the best configuration by the first number."""
    name = _names(found)[0]

    def order(pair: tuple[Configuration, Configuration | None]) -> tuple[bool, float]:
        number = pair[0].numbers.get(name)
        value = math.inf if number is None else number.value
        best_first = -value if number is not None and number.higher_is_better else value
        return pair[1] is not None, best_first

    return sorted(zip(found, beaten_by, strict=True), key=order)


def _only_ties(one: Configuration, first: Configuration) -> bool:
    """Returns whether the first configuration is at least as good in every number and better in one, so that only the
    noise keeps this one on the front.
    """
    shared = [
        (one.numbers[name], first.numbers[name]) for name in one.numbers if name in first.numbers
    ]
    is_ahead = any(
        (own.value > other.value) is own.higher_is_better and own.value != other.value
        for own, other in shared
    )
    has_more = bool(one.numbers.keys() - first.numbers.keys())
    return not (one is first or is_ahead or has_more)


def _table(placed: Sequence[_Placed], addresses: Addresses) -> str:
    names = _names([each.one for each in placed])
    doubts = [_doubts(each.one) for each in placed]
    rows = [
        (
            f"{each.letter}: {each.one.name}",
            each.about,
            all_linked([row for row, _ in each.one.runs], addresses),
            *(_cell(each.one.numbers.get(name)) for name in names),
            *([counted_codes(codes, "doubt", "uncertain")] if any(doubts) else []),
        )
        for each, codes in zip(placed, doubts, strict=True)
    ]
    heads = ["configuration", "front", "runs", *map(words, names)]
    is_number = [False] * 3 + [True] * len(names)
    if any(doubts):
        heads.append("doubts")
        is_number.append(False)
    return aligned_table(heads, rows, is_number, cards=True, sortable=True)


def _doubts(one: Configuration) -> Sequence[str]:
    """Returns the doubts of all runs; none for a row of runs.sqlite, which has none."""
    return sorted({code for row, _ in one.runs for code in (row.get("doubts") or "").split()})


def _cell(number: Number | None) -> str:
    """Returns a number with its value, because page.js sorts the rows by this value."""
    if number is None:
        return "-"
    ends = _ends(number)
    more = f'<br><span class="quiet">{escape(ends)}</span>' if ends else ""
    return Html(f'<data value="{number.value!r}">{escape(shown(number))}</data>{more}')
