"""Makes the page that compares finished runs and repeats."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from harness.browse import within
from harness.browse.drawing import HEAVY, plotted
from harness.browse.index import Index, Missing
from harness.browse.selection import Selection
from harness.browse.texts import cells, render
from harness.core.shown.escapes import visible
from harness.core.shown.private import hide
from harness.errors import ConfigError, HarnessError, one_line
from harness.results import run_files
from harness.results.answer import headline_in_short
from harness.results.compare import change_text
from harness.results.compare import report as compare_report
from harness.results.compare.compare import BETTER, WORSE, Change, Comparison, compare
from harness.results.compare.finished import FinishedRun, named_apart, side
from harness.results.compare.interval_bar import Scale
from harness.results.compare.page import bar, differences, figures, reasons, verdict_chip, why
from harness.results.pages import page as pages
from harness.results.pages.heading import workload
from harness.results.pages.page import Article, Figure
from harness.results.pages.tables import Column, Table
from harness.results.pages.words import letter_of
from harness.results.pages.words import words as plain_words

MOST_DRAWN = 6
"""The plots of a comparison show at most this many sides, because each plot reads all samples of the runs."""

_MOST_NAMED = 5
"""The facts name at most this many settings that differ."""

_LEAST_MEDIAN = 3
"""Least number of runs of a side of which the plots show the median run; with fewer, they show the first run."""

_COLOURS = {WORSE: "reason", BETTER: "good"}
"""Maps a verdict to the class of its headline's colour."""


class Side(NamedTuple):
    letter: str
    path: str
    name: str
    verdict: str
    answer: str
    doubts: str
    """Codes, separated by spaces."""


class Comparisons:
    """Makes the page of a comparison. Safe to call from any thread."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._root = index.root
        self._read = lru_cache(maxsize=256)(self._finished)
        self._drawn_sides = lru_cache(maxsize=32)(self._draw_sides)

    def page(self, selection: Selection) -> str:
        """Compares the first selected run with every other selected run."""
        if selection.oldest:
            entries = self._index.entries()
            by_start = sorted(
                selection.run, key=lambda path: entries[path].at if path in entries else ""
            )
            selection = replace(selection, run=tuple(by_start), oldest="")
        runs, problems = [], []
        for path in selection.run:
            try:
                runs.append(self._side(path))
            except Missing:
                problems.append(f"{path}: this run does not exist")
            except (OSError, HarnessError) as e:
                problems.append(one_line(e))
        compared: dict[str, Any] = {
            **dict.fromkeys(("sides", "comparisons", "tables"), ()),
            "refused": None,
            "no_plots": "",
        }
        drawn: Sequence[Figure] = ()
        if len(runs) > 1 and not problems:
            try:
                made, drawn = self._compared(runs)
                compared |= made
            except HarnessError as e:
                problems.append(one_line(e))
        return render(
            "compare.html",
            title="Comparison",
            selection=selection,
            problems=problems,
            workload=_workload(runs),
            is_of_studies=bool(runs) and all(len(one) > 1 for one in runs),
            most_drawn=MOST_DRAWN,
            **compared,
            **plotted([Article((), drawn, ())]),
        )

    def _side(self, path: str) -> Sequence[FinishedRun]:
        entry = self._index.entry(path)
        if entry.row is None and entry.study != "repeats":
            raise ConfigError(f"{path}: {entry.problem or 'this folder is not a run'}")
        folder = within.check_folder(self._root, path)
        with HEAVY:
            return self._read(path, folder.lstat().st_mtime_ns)

    def _finished(self, path: str, _changed_ns: int) -> Sequence[FinishedRun]:
        return side(str(self._root / path))

    def _compared(
        self, runs: Sequence[Sequence[FinishedRun]]
    ) -> tuple[Mapping[str, Any], Sequence[Figure]]:
        """Compares each further side with the first. Returns the template's values, and plots of the sides."""
        sides = {letter_of(place): side for place, side in enumerate(named_apart(runs))}
        (_, first), *others = sides.items()
        with HEAVY, run_files.reading_run("the runs"):
            made = {letter: compare(first, other) for letter, other in others}
            main = next((one.headline.name for one in made.values() if one.headline), "")
            middles = {letter: _middle(side, main) for letter, side in sides.items()}
            drawn = {letter: run for letter, (run, _) in middles.items()}
            shown = {
                "sides": [
                    one for letter, side in sides.items() for one in self._named(letter, side)
                ],
                "drawn": {letter: text for letter, (_, text) in middles.items()},
                "comparisons": [
                    _judgement(one, letter, is_only=len(made) == 1) for letter, one in made.items()
                ],
                "refused": _refused(made),
                "tables": _tables(made),
            }
        plots, problem = self._plots_of_sides(_legend(dict(list(drawn.items())[:MOST_DRAWN])))
        return {**shown, "no_plots": problem}, plots

    def _plots_of_sides(self, sides: Mapping[str, FinishedRun]) -> tuple[Sequence[Figure], str]:
        """Returns the plots that show a run of each side, and the reason why the plots cannot be drawn; "" if
        they can be drawn. sides: by their name in the legend.
        """
        try:
            with HEAVY, run_files.reading_run("the runs"):
                named = (
                    (name, run.folder, run.folder.lstat().st_mtime_ns)
                    for name, run in sides.items()
                )
                drawn = self._drawn_sides(*named)
        except (OSError, HarnessError) as e:
            return (), one_line(e)
        return drawn, "" if drawn else "the samples of a run are missing"

    def _draw_sides(self, *sides: tuple[str, Path, int]) -> Sequence[Figure]:
        return list(figures({name: folder for name, folder, _changed_ns in sides}))

    def _named(self, letter: str, runs: Sequence[FinishedRun]) -> Sequence[Side]:
        paths = (os.path.relpath(run.folder, self._root) for run in runs)
        return [
            Side(
                letter,
                path,
                run.name,
                run.result["verdict"],
                headline_in_short(run.result),
                " ".join(doubt["code"] for doubt in run.result["doubts"]),
            )
            for path, run in zip(paths, runs, strict=True)
        ]


def _legend(sides: Mapping[str, FinishedRun]) -> Mapping[str, FinishedRun]:
    """Returns the sides by their letter, followed by the model or backend if the sides differ in it. The names are
    escaped, because plotly reads them as HTML.
    """
    found = {letter: [letter] for letter in sides}
    for key in ("model", "backend"):
        words = {letter: escape(str(run.result[key])) for letter, run in sides.items()}
        if len(set(words.values())) > 1:
            for letter, word in words.items():
                found[letter].append(word)
    return {" ".join(found[letter]): run for letter, run in sides.items()}


def _middle(side: Sequence[FinishedRun], name: str) -> tuple[FinishedRun, str]:
    """Returns the run that the plots show, with a text that names it: the run with the side's median of a number, or the
    first run if the side has fewer than three runs with this number.
    """
    if len(side) < _LEAST_MEDIAN or not all(name in run.numbers for run in side):
        return side[0], side[0].folder.name
    middle = sorted(side, key=lambda run: run.numbers[name].value)[(len(side) - 1) // 2]
    return middle, f"{middle.folder.name}, with the median {plain_words(name)}"


def _workload(sides: Sequence[Sequence[FinishedRun]]) -> Sequence[str]:
    """Returns the words of the workload that all sides share."""
    first, *others = [workload(runs[0].result) for runs in sides] or [[]]
    return [word for word in first if all(word in other for other in others)]


def _settings(one: Comparison) -> Sequence[tuple[str, str]]:
    """Returns a label and a text with the names of the first settings that differ; nothing without differences."""
    names = [name for name, *_ in compare_report.difference_rows(one)]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    text = visible(hide(f"{', '.join(names[:_MOST_NAMED])}{more}: see the end of the page"))
    return [("differs", text)] if names else []


def _judgement(one: Comparison, letter: str, *, is_only: bool) -> Mapping[str, Any]:
    """Returns the template's values for the judgement of a side. letter: the side's letter. is_only: whether A is compared
    with this side only, so that the table of the settings stands at the end of the page.
    """
    notes = compare_report.facts(one, letter)
    return {
        "letter": letter,
        "headline": _headline(one, letter) + why(one),
        "next": [text for kind, text in notes if kind == "next"],
        "facts": [
            *(_settings(one) if is_only else []),
            *(note for note in notes if note[0] != "next"),
        ],
        "reasons": reasons(one, letter),
        "differences": differences(one, letter),
    }


def _refused(made: Mapping[str, Comparison]) -> Mapping[str, Any] | None:
    """Returns the template's values for the sides that cannot be ranked against the first, with one table of the
    reasons; None for fewer than two such sides.
    """
    refused = {letter: one for letter, one in made.items() if one.refusals}
    if len(refused) < 2:
        return None
    cells: dict[str, dict[str, str]] = {}
    for letter, one in refused.items():
        for what, before, after, remedy in compare_report.reason_rows(one):
            row = cells.setdefault(what, {"A": before, "remedy": remedy})
            row |= {letter: after, "remedy": row["remedy"] or remedy}
    *others, last = refused
    return {
        "letters": list(refused),
        "title": f"{', '.join(others)} and {last} against A",
        "headline": _headline(next(iter(refused.values())), last),
        "heads": ("not comparable", "A", *refused, "remedy"),
        # A side without an own reason has the value of the first.
        "rows": [
            [
                visible(hide(what)),
                *(visible(hide(row.get(n, row["A"]))) for n in ("A", *refused)),
                row["remedy"],
            ]
            for what, row in cells.items()
        ],
    }


def _tables(made: Mapping[str, Comparison]) -> Sequence[Mapping[str, Any]]:
    """Returns the template's values for the table of the main numbers and the folded table of the others.

    made: comparisons with the first side, by the letter of the second side.
    """
    main = {change.name for one in made.values() for change in change_text.parted(one)[0]}
    by_name: dict[str, list[tuple[str, Change]]] = {}
    for letter, one in made.items():
        for change in chain(*change_text.parted(one)):
            by_name.setdefault(change.name, []).append((letter, change))
    parts = (
        [pair for name, pairs in by_name.items() if (name in main) is is_main for pair in pairs]
        for is_main in (True, False)
    )
    return [_table_of(part, list(made)) for part in parts if part]


def _table_of(changes: Sequence[tuple[str, Change]], letters: Sequence[str]) -> Mapping[str, Any]:
    """Returns the template's values for a table of changes on one scale. If A is compared with several sides, the rows
    of a number stand together, and a column has the letter of the side. changes: with the letter of the second side.
    """
    scale = Scale([change for _, change in changes])
    has_several = len(letters) > 1
    columns = change_text.columns("value" if has_several else letters[0])
    rows = [list(change_text.row_in_words(change)) for _, change in changes]
    names = [change.name for _, change in changes]
    if has_several:
        columns.insert(2, Column("side"))
        for row, (letter, _) in zip(rows, changes, strict=True):
            row.insert(2, letter)
    more = [
        {
            "image": bar(change, scale),
            "verdict": verdict_chip(change),
            "is_lower_better": not change.higher_is_better,
            "is_first": name not in names[:i],
        }
        for i, (name, (_, change)) in enumerate(zip(names, changes, strict=True))
    ]
    return {
        "columns": columns,
        "scale": scale.axis,
        "is_ranked": any(change.verdict is not None for _, change in changes),
        "rows": list(zip(cells(Table("", "", "", columns, rows)), more, strict=True)),
        "folded": change_text.folded(changes),
    }


def _headline(comparison: Comparison, letter: str) -> str:
    """Returns the verdict of a comparison as HTML. letter: the second side's letter."""
    sentence = visible(hide(compare_report.verdict(comparison, letter)))
    return pages.typeset(pages.headline(sentence, _COLOURS.get(comparison.verdict or "", "")))
