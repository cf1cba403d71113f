"""Makes the pages about finished runs: list, run, comparison, history, Pareto, studies, machines."""

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from harness.browse import studies, within
from harness.browse.heading import heading
from harness.browse.index import MOST_ENTRIES, STUDIES, Entry, Index, Missing, Row
from harness.browse.live import Snapshot, snapshot
from harness.browse.machines import Machines
from harness.browse.selection import CHOICES, PAGE_SIZE, SORTS, Selection, choices
from harness.browse.studies import Summary
from harness.browse.texts import cells, render, url
from harness.core.files import PARTIAL, reading
from harness.core.shown.escapes import visible
from harness.core.shown.private import hide
from harness.errors import ConfigError, HarnessError, PluginUnavailable, one_line
from harness.results import records, run_files, run_folder
from harness.results.answer import headline_in_short
from harness.results.compare import change_text
from harness.results.compare import report as compare_report
from harness.results.compare.compare import BETTER, WORSE, Change, Comparison, compare
from harness.results.compare.finished import FinishedRun, named_apart, side
from harness.results.compare.interval_bar import Scale
from harness.results.compare.page import bar, differences, figures, reasons, verdict_chip, why
from harness.results.pages import page as pages
from harness.results.pages import report
from harness.results.pages.heading import is_doubted
from harness.results.pages.page import Article, Figure
from harness.results.pages.runs.history import history
from harness.results.pages.runs.pareto import pareto
from harness.results.pages.runs.rows import Addresses
from harness.results.pages.tables import Column, Table
from harness.results.seal import digests

MOST_UNFINISHED = 20
"""Showing the list calls the endpoints of at most this many unfinished runs."""

MOST_LISTED = 100

MOST_DRAWN = 6
"""The plots of a comparison show at most this many sides, because each plot reads all samples of the runs."""

FILES: Mapping[str, str] = {
    digests.PAGE: "the report as written at the end of the run",
    **studies.PAGES,
    run_folder.RESULT: "",
    run_folder.ENVIRONMENT: "",
    "host.csv": "the machine, once per second",
    "server.csv": "reports of the servers",
    "power.csv": "readings of the meters",
    run_folder.METRICS: "the last page for Prometheus",
    run_folder.ACCURACY_TEXT: "",
    "sweep.csv": "",
    "grid.csv": "",
    "SHA256SUMS": "",
}
"""Maps each file that browse serves from a run or study to a description. Lists only files that contain no private
names (docs/runs.md).
"""

_MIXED = ("scenario", "model")
"""Filters for which the pages of History and Pareto offer a link for each value, if the runs have several."""

_HEAVY = threading.Lock()
"""Held while a comparison, a run's plots or a study's page is computed. Only one page may hold the lock at a time,
because a run on this machine needs the cores.
"""


_COLOURS = {WORSE: "reason", BETTER: "good"}
"""Maps a verdict to the class of its headline's colour."""


class Side(NamedTuple):
    letter: str
    path: str
    name: str
    verdict: str
    answer: str
    is_doubted: bool


class Views:
    """Makes the pages. Every method returns an HTML page and is safe to call from any thread."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._root = index.root
        self._read = lru_cache(maxsize=256)(self._finished)
        self._drawn_run = lru_cache(maxsize=32)(self._draw_run)
        self._drawn_sides = lru_cache(maxsize=32)(self._draw_sides)
        self._summary = lru_cache(maxsize=4_096)(self._read_summary)
        self._machines = Machines(index)

    def runs(self, selection: Selection) -> str:
        entries = self._index.entries()
        finished = [e for e in entries.values() if e.row is not None and not e.notes_endpoint]
        all_rows = [e.row for e in finished if e.row is not None]
        of_studies = sum(e.inside is not None for e in finished)
        rows = selection.rows(entries.values())
        last_page = max(1, -(-len(rows) // PAGE_SIZE))
        number = min(selection.page, last_page)
        noted = [e for e in entries.values() if e.notes_endpoint]
        states = {e.path: snapshot(self._root, e.path) for e in noted[:MOST_UNFINISHED]}
        running = {
            path: (s, heading(self._root, entries[path]).title)
            for path, s in states.items()
            if isinstance(s, Snapshot)
        }
        broken = [
            (e.path, e.problem) for e in entries.values() if e.problem and e.path not in running
        ]
        broken += [(path, why) for path, why in states.items() if isinstance(why, str)]
        return render(
            "runs.html",
            title=f"Runs in {self._root.name}",
            selection=selection,
            choices=choices(all_rows),
            rows=rows[(number - 1) * PAGE_SIZE : number * PAGE_SIZE],
            first=(number - 1) * PAGE_SIZE,
            found=len(rows),
            total=len(all_rows) if selection.inside else len(all_rows) - of_studies,
            of_studies=of_studies,
            page=number,
            last_page=last_page,
            sorts=SORTS,
            running=running,
            searches=_searches(running),
            broken=broken[:MOST_LISTED],
            broken_count=len(broken),
            is_cut=len(entries) >= MOST_ENTRIES,
        )

    def run(self, path: str) -> str:
        entry = self._index.entry(path)
        articles: list[Article] = []
        problem = entry.problem
        if entry.row is not None:
            try:
                folder = within.check_folder(self._root, path)
                run = run_files.read_files(folder, with_evidence=False)
                drawn, problem = self._plots_of(path, folder)
                # The user of this server may see the full path.
                config = str(folder.absolute() / run_folder.CONFIG)
                articles = [report.article(run, drawn, config)]
            except (OSError, HarnessError) as e:
                problem = one_line(e)
        return render(
            "run.html",
            title=path,
            entry=entry,
            problem=problem,
            **_plots(articles),
            before=self._run_before(entry),
            workload=_workload(entry.row) if entry.row is not None else None,
            files=self._files(path),
        )

    def _plots_of(self, path: str, folder: Path) -> tuple[Sequence[Figure], str]:
        """Returns a run's plots, and the reason why the plots cannot be drawn; "" if they can be drawn."""
        try:
            with _HEAVY:
                return self._drawn_run(path, folder.lstat().st_mtime_ns), ""
        except (OSError, HarnessError) as e:
            return [], one_line(e)

    def _draw_run(self, path: str, _changed_ns: int) -> Sequence[Figure]:
        folder = self._root / path
        return report.plots(run_files.read_files(folder), records.read_samples(folder))

    def _run_before(self, entry: Entry) -> str | None:
        """Returns the path of the previous VALID run with the same workload on the same machine."""
        ours = entry.row
        if ours is None:
            return None
        same = [*CHOICES.values(), "dataset"]
        same.remove("verdict")
        return next(
            (
                other.path
                for other in self._index.entries().values()
                if other.row is not None
                and other.inside is None
                and other.at < entry.at
                and other.row["verdict"] == "VALID"
                and all(other.row[name] == ours[name] for name in same)
            ),
            None,
        )

    def _files(self, path: str) -> list[tuple[str, str]]:
        try:
            names = {file.name for file in (self._root / path).iterdir()}
        except OSError:
            return []
        return [(name, about) for name, about in FILES.items() if name in names]

    def compare(self, selection: Selection) -> str:
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
        compared: dict[str, Any] = {"sides": [], "comparisons": [], "tables": [], "no_plots": ""}
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
            most_drawn=MOST_DRAWN,
            **compared,
            **_plots([Article((), drawn, ())]),
        )

    def _side(self, path: str) -> Sequence[FinishedRun]:
        entry = self._index.entry(path)
        if entry.row is None and entry.study != "repeats":
            raise ConfigError(f"{path}: {entry.problem or 'this folder is not a run'}")
        folder = within.check_folder(self._root, path)
        with _HEAVY:
            return self._read(path, folder.lstat().st_mtime_ns)

    def _finished(self, path: str, _changed_ns: int) -> Sequence[FinishedRun]:
        return side(str(self._root / path))

    def _compared(
        self, runs: Sequence[Sequence[FinishedRun]]
    ) -> tuple[Mapping[str, Any], Sequence[Figure]]:
        """Compares each further side with the first. Returns the template's values, and plots of the sides."""
        sides = {compare_report.letter(place): side for place, side in enumerate(named_apart(runs))}
        (_, first), *others = sides.items()
        with _HEAVY, run_files.reading_run("the runs"):
            made = {letter: compare(first, other) for letter, other in others}
            shown = {
                "sides": [
                    one for letter, side in sides.items() for one in self._named(letter, side)
                ],
                "comparisons": [_comparison(one, letter) for letter, one in made.items()],
                "tables": _tables(made),
            }
        drawn = {letter: side[0] for letter, side in list(sides.items())[:MOST_DRAWN]}
        plots, problem = self._plots_of_sides(drawn)
        return {**shown, "no_plots": problem}, plots

    def _plots_of_sides(self, sides: Mapping[str, FinishedRun]) -> tuple[Sequence[Figure], str]:
        """Returns the plots that show the first run of each side, and the reason why the plots cannot be drawn; "" if
        they can be drawn. sides: by letter.
        """
        try:
            with _HEAVY, run_files.reading_run("the runs"):
                named = (
                    (f"{letter}: {run.name}", run.folder, run.folder.lstat().st_mtime_ns)
                    for letter, run in sides.items()
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
                is_doubted([run.result]),
            )
            for path, run in zip(paths, runs, strict=True)
        ]

    def history(self, selection: Selection) -> str:
        return self._drawn("history", selection, history, 2_000)

    def pareto(self, selection: Selection) -> str:
        return self._drawn("pareto", selection, pareto, 1_000)

    def _drawn(
        self,
        view: str,
        selection: Selection,
        draw: Callable[[Sequence[Row], Addresses, str], Sequence[Article]],
        most: int,
    ) -> str:
        """Returns a page of articles. most: number of newest runs to draw. More runs would slow down the browser."""
        entries = self._index.entries()
        rows = replace(selection, sort="started", turned="").rows(entries.values())
        mixed = choices(rows)
        with reading("the numbers of these runs cannot be drawn"):
            articles = draw(rows[:most], _address, "use the filters above")
        return render(
            "articles.html",
            title=view.capitalize(),
            view=f"/{view}",
            selection=selection,
            choices=choices([e.row for e in entries.values() if e.row is not None]),
            mixed={name: mixed[name] for name in _MIXED if len(mixed[name]) > 1},
            found=len(rows),
            drawn=min(len(rows), most),
            **_plots(articles),
        )

    def studies(self, selection: Selection) -> str:
        every = [
            (e, self._summary(e.path, e.study, studies.changed_ns(self._root, e)))
            for e in self._index.entries().values()
            if e.study is not None and e.inside is None
        ]
        found = [
            (entry, about)
            for entry, about in every
            if selection.kind in ("", entry.study)
            and (not selection.model or selection.model in about.models)
            and selection.finds((entry.path, entry.study or "", about.workload, about.outcome))
        ]
        return render(
            "studies.html",
            title="Studies",
            verbs=list(STUDIES.values()),
            selection=selection,
            choices={
                "kind": sorted({entry.study or "" for entry, _ in every}),
                "model": sorted({model for _, about in every for model in about.models}),
            },
            rows=found[:MOST_LISTED],
            total=len(every),
            left_out=max(0, len(found) - MOST_LISTED),
        )

    def _read_summary(self, path: str, study: str, _changed_ns: int) -> Summary:
        return studies.summary(self._root, Entry(path, "", study=study))

    def study(self, path: str) -> str:
        entry = self._index.entry(path)
        if entry.study is None:
            raise Missing(path)
        inside = [e for e in self._index.entries().values() if e.inside == path]
        with _HEAVY:
            articles = studies.articles(self._root, entry)
        return render(
            "study.html",
            title=path,
            entry=entry,
            runs=inside[:MOST_LISTED],
            # An unfinished study may have runs that its own table does not list yet.
            has_run_table=not entry.is_unfinished
            and entry.study in studies.WITH_LINKS
            and any(one.tail for one in articles),
            left_out=max(0, len(inside) - MOST_LISTED),
            files=self._files(path),
            **_plots(articles),
        )

    def machines(self, selection: Selection, *, all_settings: bool) -> str:
        return self._machines.page(selection, all_settings=all_settings)


def _comparison(one: Comparison, letter: str) -> Mapping[str, Any]:
    """Returns the template's values for the judgement of a side. letter: the side's letter."""
    return {
        "letter": letter,
        "headline": _headline(one, letter) + why(one),
        "facts": compare_report.facts(one, letter),
        "reasons": reasons(one, letter),
        "differences": differences(one, letter),
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
    """Returns the template's values for a table of changes on one scale. If A is compared with several sides, a column
    has the letter of the side. changes: with the letter of the second side.
    """
    scale = Scale([change for _, change in changes])
    has_several = len(letters) > 1
    columns = change_text.columns("other" if has_several else letters[0])
    rows = [list(change_text.row_in_words(change)) for _, change in changes]
    if has_several:
        columns.insert(1, Column("side"))
        for row, (letter, _) in zip(rows, changes, strict=True):
            row.insert(1, letter)
    images = [(bar(change, scale), verdict_chip(change)) for _, change in changes]
    return {
        "columns": columns,
        "scale": scale.axis,
        "rows": list(zip(cells(Table("", "", "", columns, rows)), images, strict=True)),
        "folded": change_text.folded([change for _, change in changes]),
    }


def _address(row: Row) -> str:
    return url("run", row["folder"]).unescape()


def _headline(comparison: Comparison, letter: str) -> str:
    """Returns the verdict of a comparison as HTML. letter: the second side's letter."""
    sentence = visible(hide(compare_report.verdict(comparison, letter)))
    return pages.typeset(pages.headline(sentence, _COLOURS.get(comparison.verdict or "", "")))


def _workload(row: Row) -> Selection:
    return Selection(
        scenario=row["scenario"],
        backend=row["backend"],
        model=row["model"],
        machine=row["host"] or "-",
    )


def _plots(articles: Sequence[Article]) -> dict[str, Any]:
    """Returns the template's values for a page with plots: the lines of each article, and the data of all plots.
    Without plotly, the page shows only the tables.
    """
    try:
        script: str | None = pages.plotly_script()[1]
    except PluginUnavailable:
        script = None
    made: list[list[str]] = []
    plots: list[Figure] = []
    for article in articles:
        drawn = article if script else article._replace(figures=())
        made.append(list(pages.article_html(drawn, len(plots))))
        plots += drawn.figures
    return {
        "articles": made,
        "plots": any(article.figures for article in articles),
        "figures": pages.figures_html(plots),
        "script": script,
    }


def _searches(running: Iterable[str]) -> list[str]:
    """Returns the unfinished folders that contain a run in progress."""
    folders = {str(up) for path in running for up in PurePosixPath(path).parents}
    return sorted(folder for folder in folders if folder.endswith(PARTIAL))
