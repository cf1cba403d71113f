"""Makes the pages about finished runs: list, run, comparison, history, Pareto, studies, machines."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path, PurePosixPath

from harness.browse import studies, within
from harness.browse.comparisons import Comparisons
from harness.browse.drawing import HEAVY, plotted
from harness.browse.index import MOST_ENTRIES, STUDIES, Entry, Index, Missing, Row
from harness.browse.live.heading import Step, heading, step
from harness.browse.machines import Machines
from harness.browse.selection import CHOICES, PAGE_SIZE, SORTS, Selection, choices
from harness.browse.snapshots import newest
from harness.browse.studies import Summary
from harness.browse.texts import render, url
from harness.core.files import PARTIAL, reading
from harness.errors import HarnessError, one_line
from harness.results import records, run_files, run_folder
from harness.results.pages import report
from harness.results.pages.heading import workload
from harness.results.pages.page import Article, Figure
from harness.results.pages.runs.history import history
from harness.results.pages.runs.pareto import count_tasks, pareto
from harness.results.pages.runs.rows import Addresses, load_text
from harness.results.seal import digests

MOST_UNFINISHED = 20
"""Showing the list calls the endpoints of at most this many unfinished runs."""

MOST_LISTED = 100
_MOST_IN_PARETO = 1_000
MOST_OTHERS = 5
"""The page of a study of --repeats links to comparisons with at most this many others."""

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


class Views:
    """Makes the pages. Every method returns an HTML page and is safe to call from any thread."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._root = index.root
        self._drawn_run = lru_cache(maxsize=32)(self._draw_run)
        self._summary = lru_cache(maxsize=4_096)(self._read_summary)
        self._comparisons = Comparisons(index)
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
        states = {e.path: newest(self._root, e.path) for e in noted[:MOST_UNFINISHED]}
        running = {
            path: (s, heading(self._root, entries[path]).title)
            for path, s in states.items()
            if not isinstance(s, str)
        }
        shown = rows[(number - 1) * PAGE_SIZE : number * PAGE_SIZE]
        inside = {row["folder"]: entries[row["folder"]].inside or "" for row in shown}
        loading = dict(self._loading(running))
        broken = [(e.path, e.problem) for e in entries.values() if e.problem]
        broken += [(path, why) for path, why in states.items() if isinstance(why, str)]
        broken = [(path, why) for path, why in broken if path not in running.keys() | loading]
        return render(
            "runs.html",
            title=f"Runs in {self._root.name}",
            selection=selection,
            choices=choices(all_rows),
            rows=shown,
            studies={run: entries.get(study) for run, study in inside.items()},
            first=(number - 1) * PAGE_SIZE,
            found=len(rows),
            total=len(all_rows) if selection.inside else len(all_rows) - of_studies,
            of_studies=of_studies,
            page=number,
            last_page=last_page,
            sorts=SORTS,
            running=running,
            loading=loading,
            broken=broken[:MOST_LISTED],
            broken_count=len(broken),
            is_cut=len(entries) >= MOST_ENTRIES,
        )

    def _loading(self, running: Collection[str]) -> Iterator[tuple[str, tuple[str, Step]]]:
        """Yields each folder in progress that serves no state, with its title and what its process does."""
        entries = self._index.entries()
        above = {str(up) for path in running for up in PurePosixPath(path).parents}
        searches = {path for path in above if self._index.is_unfinished(path)}
        for path in searches:
            if searches.isdisjoint(map(str, PurePosixPath(path).parents)):
                yield path, self._in_progress(path, "all its runs")
        # No error if the root is missing.
        names = {one.name for one in self._root.glob(f"*{PARTIAL}")}
        names.update(path for path, e in entries.items() if e.is_unfinished and e.inside is None)
        for name in names.difference(searches, running):
            if run_folder.is_in_progress(self._root / name):
                is_run = name in entries and entries[name].study is None
                yield (
                    name,
                    self._in_progress(name, "loading the model" if is_run else "in progress"),
                )

    def _in_progress(self, path: str, otherwise: str) -> tuple[str, Step]:
        """Returns the title of a run or study in progress, and its current step. otherwise: the step if it is unknown."""
        title = heading(self._root, self._index.entries().get(path)).title
        now = step(self._root, path)
        return title, now if now.text else Step(otherwise)

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
            title=_title(entry),
            entry=entry,
            problem=problem,
            **plotted(articles),
            before=self._run_before(entry),
            workload=_workload(entry.row) if entry.row is not None else None,
            files=self._files(path),
        )

    def _plots_of(self, path: str, folder: Path) -> tuple[Sequence[Figure], str]:
        """Returns a run's plots, and the reason why the plots cannot be drawn; "" if they can be drawn."""
        try:
            with HEAVY:
                return self._drawn_run(path, folder.lstat().st_mtime_ns), ""
        except (OSError, HarnessError) as e:
            return [], one_line(e)

    def _draw_run(self, path: str, _changed_ns: int) -> Sequence[Figure]:
        folder = self._root / path
        return report.plots(run_files.read_files(folder), records.read_samples(folder))

    def _run_before(self, entry: Entry) -> str | None:
        """Returns the path of the previous VALID run with the same workload and load on the same machine."""
        ours = entry.row
        if ours is None:
            return None
        return next(
            (
                other.path
                for other in self._index.entries().values()
                if other.row is not None
                and other.inside is None
                and other.at < entry.at
                and other.row["verdict"] == "VALID"
                and _work(other.row) == _work(ours)
            ),
            None,
        )

    def _files(self, path: str) -> list[tuple[str, str]]:
        try:
            names = {file.name for file in (self._root / path).iterdir()}
        except OSError:
            return []
        return [(name, about) for name, about in FILES.items() if name in names]

    def history(self, selection: Selection) -> str:
        return self._drawn("history", selection, history, 2_000)

    def pareto(self, selection: Selection) -> str:
        """Includes the runs of studies if without them no task has two configurations."""
        if selection.inside or self._count_tasks(selection):
            return self._drawn("pareto", selection, pareto, _MOST_IN_PARETO)
        every = replace(selection, inside="1")
        if not self._count_tasks(every):
            return self._drawn("pareto", selection, pareto, _MOST_IN_PARETO)
        note = "Runs of studies are included, because without them no task has two configurations."
        return self._drawn("pareto", every, pareto, _MOST_IN_PARETO, note)

    def _count_tasks(self, selection: Selection) -> int:
        with reading("the numbers of these runs cannot be drawn"):
            return count_tasks(self._newest(selection)[:_MOST_IN_PARETO])

    def _newest(self, selection: Selection) -> Sequence[Row]:
        """Returns the selected runs, newest first."""
        newest = replace(selection, sort="started", turned="")
        return newest.rows(self._index.entries().values())

    def _drawn(
        self,
        view: str,
        selection: Selection,
        draw: Callable[[Sequence[Row], Addresses, str], Sequence[Article]],
        most: int,
        note: str = "",
    ) -> str:
        """Returns a page of articles. most: number of newest runs to draw. More runs would slow down the browser. note:
        stands above the articles.
        """
        entries = self._index.entries()
        rows = self._newest(selection)
        heading = f"<h1>{view.capitalize()}</h1>"
        with reading("the numbers of these runs cannot be drawn"):
            articles = draw(rows[:most], _address, "use the filters above")
        if articles:  # the heading comes before the filters
            first, *others = articles
            heading, *head = first.head
            articles = [first._replace(head=head), *others]
        return render(
            "articles.html",
            title=view.capitalize(),
            view=f"/{view}",
            selection=selection,
            choices=choices([e.row for e in entries.values() if e.row is not None]),
            heading=heading,
            found=len(rows),
            drawn=min(len(rows), most),
            note=note,
            **plotted(articles),
        )

    def studies(self, selection: Selection) -> str:
        every = [
            (e, self._summary(e.path, e.study, studies.changed_ns(self._root, e)))
            for e in self._index.entries().values()
            if e.study is not None and e.inside is None
        ]
        in_progress = {e.path for e, _ in every if e.is_in_progress(self._root)}
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
            selection=selection,
            choices={
                "kind": sorted({entry.study or "" for entry, _ in every}),
                "model": sorted({model for _, about in every for model in about.models}),
            },
            verbs=list(STUDIES.values()),
            rows=found[:MOST_LISTED],
            in_progress=in_progress,
            total=len(every),
            left_out=max(0, len(found) - MOST_LISTED),
        )

    def _read_summary(self, path: str, study: str, _changed_ns: int) -> Summary:
        return studies.summary(self._root, Entry(path, "", study=study))

    def study(self, path: str) -> str:
        entry = self._index.entry(path)
        if entry.study is None:
            raise Missing(path)
        every = [e for e in self._index.entries().values() if e.inside == path]
        inside = [e for e in every[::-1] if not e.is_in_progress(self._root)]  # oldest first
        with HEAVY:
            articles = studies.articles(self._root, entry)
        return render(
            "study.html",
            title=self._study_title(entry),
            entry=entry,
            is_in_progress=entry.is_in_progress(self._root),
            ended_early=studies.ended_early(self._root, entry),
            runs=inside[:MOST_LISTED],
            # An unfinished study may have runs that its own table does not list yet.
            has_run_table=not entry.is_unfinished
            and entry.study in studies.WITH_LINKS
            and any(one.tail for one in articles),
            left_out=max(0, len(inside) - MOST_LISTED),
            files=self._files(path),
            others=self._other_repeats(entry),
            **plotted(articles),
        )

    def _study_title(self, entry: Entry) -> str:
        study = entry.study or ""
        about = self._summary(entry.path, study, studies.changed_ns(self._root, entry))
        return f"{study.capitalize()} · {about.workload}"

    def _other_repeats(self, entry: Entry) -> Sequence[str]:
        """Returns the newest studies of --repeats with the work of a study of --repeats, also on other backends, which can be
        compared with it; empty for other studies.
        """
        if entry.study != "repeats" or entry.is_unfinished:
            return ()
        entries = self._index.entries()
        first = {e.inside: e.row for e in entries.values() if e.inside and e.row is not None}
        work = {
            path: _work(row, without=("backend",))
            for path, row in first.items()
            if path in entries and entries[path].study == entry.study
        }
        ours = work.get(entry.path)
        alike = (
            e.path
            for e in entries.values()
            if e.study == entry.study and not e.is_unfinished and e.path != entry.path
            if ours is not None and work.get(e.path) == ours
        )
        return [*islice(alike, MOST_OTHERS)]

    def compare(self, selection: Selection) -> str:
        return self._comparisons.page(selection)

    def machines(self, selection: Selection, *, all_settings: bool) -> str:
        return self._machines.page(selection, all_settings=all_settings)


def _title(entry: Entry) -> str:
    """Returns the title of a run's tab, which must differ at its beginning from the tabs of other runs."""
    row = entry.row
    if row is None:
        return entry.path
    return " · ".join([row["verdict"], *workload(row), row["started"][11:16]])


def _address(row: Row) -> str:
    return url("run", row["folder"]).unescape()


def _work(row: Row, without: Collection[str] = ()) -> Sequence[object]:
    """Returns the workload, data, machine and load of a run. A comparison of runs that differ in these, except for the
    backend, ranks nothing. without: columns to leave out.
    """
    names = [name for name in CHOICES.values() if name not in ("verdict", *without)]
    return [*(row[name] for name in (*names, "dataset", "dataset_digest")), load_text(row)]


def _workload(row: Row) -> Selection:
    return Selection(
        scenario=row["scenario"],
        backend=row["backend"],
        model=row["model"],
        machine=row["host"] or "-",
    )
