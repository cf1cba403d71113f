"""Shows a run or a search in progress, first as a page and then every second as server-sent events."""

import hashlib
import json
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from time import monotonic

import anyio
from starlette.concurrency import run_in_threadpool

from harness.browse import studies
from harness.browse.index import Entry, Index, Missing, read_row
from harness.browse.live.heading import Heading, Step, heading, step
from harness.browse.live.loads import Tried, planned_plot, tried_loads
from harness.browse.live.past import Past
from harness.browse.live.points import CHARTS, Chart
from harness.browse.live.tiles import BEFORE, brief, current_tiles, final_tiles
from harness.browse.snapshots import snapshots
from harness.browse.studies import read
from harness.browse.texts import render, url
from harness.core.files import PARTIAL, reading
from harness.core.registry import SCENARIOS
from harness.core.shown.private import hide
from harness.core.units import show_percent
from harness.errors import HarnessError
from harness.loadgen.scenario import scenario_named
from harness.results import run_folder
from harness.results.pages import tiles
from harness.results.pages.page import headline
from harness.results.pages.tiles import Tile
from harness.run.supervisor.metrics.course import Snapshot

PERIOD_S = 1.0
PATIENCE = 5
"""A run counts as ended after this many unanswered requests in a row. A busy endpoint may miss a single request."""

MOST_WATCHED = 32
"""Points are stored for at most this many folders. A new folder replaces the folder that was read least recently."""

MOST_RUNS = 4
"""The charts show at most this many runs of a study (live.js)."""

MOST_OTHER = 0.1
"""The page warns if other programs use more than this share of the cores."""

BETWEEN_RUNS = "loading the next run"
JUDGING = "judging the run that has ended"
STARTING = "starting"
GONE = "its folder was renamed or removed"
MEASURING = "measuring"
WITHOUT_RUNS = ("machine", "cold", "advise", "bricks", "pitfalls")
"""Studies that measure without runs, so that their pages have no charts while they are in progress."""
NOT_WRITTEN = "this study has ended or was stopped, or runs on another machine"


class Watching:
    def __init__(self, index: Index) -> None:
        self._index = index
        self._pasts: dict[str, Past] = {}
        self._lock = threading.Lock()

    def page(self, path: str) -> str:
        """Returns a page that shows the current state. If the run or search has ended, the page links to the result
        instead.

        Raises Missing.
        """
        self.check(path, may_have_ended=True)
        past, problem = self._look(path)
        is_between = problem == BETWEEN_RUNS and run_folder.is_in_progress(self._index.root / path)
        is_running = not self._ended(path) and (not problem or is_between)
        return render(
            "live.html",
            title=path,
            heading=self._heading(path, None),
            name=self._name(path),
            path=path,
            panel=self._panel(path, past, problem),
            done=self._done(path),
            charts=CHARTS,
            hidden=[chart.name for chart in CHARTS if not self._is_expected(path, chart)],
            is_running=is_running,
            has_charts=is_running or bool(past.points),
            has_runs=self._has_runs(path),
            is_study=self._is_search(path) and not self._may_be_run(path),
        )

    def ended_page(self, path: str) -> str:
        """Returns the address of the page of a run that has ended, or of a study that has ended or was stopped; '' if
        the run or study may be in progress.
        """
        entries = self._index.entries()
        finished = self._finished(path)
        if path.endswith(PARTIAL) and finished in entries and self._ended(path):
            return str(url("study" if entries[finished].study else "run", finished))
        entry = entries.get(path)
        is_study = entry is not None and entry.study is not None
        if (
            not is_study
            or self._runs_inside(path)
            or run_folder.is_in_progress(self._index.root / path)
        ):
            return ""
        return str(url("study", path))

    def moved_page(self, path: str) -> str:
        """Returns the address of the live page if a run is in progress, of the run's page if `path` is its name before it
        ended, and of the study's page if the folder has a study and no run; '' in all other cases.
        """
        entries, finished = self._index.entries(), path.removesuffix(PARTIAL)
        if finished != path and path not in entries and finished in entries:
            return str(url("run", finished))
        is_known = path in entries or "/" not in path
        if finished != path and is_known and run_folder.is_in_progress(self._index.root / path):
            return str(url("live", path))
        entry = entries.get(path)
        is_study = entry is not None and entry.study is not None and entry.row is None
        return str(url("study", path)) if is_study else ""

    def check(self, path: str, *, may_have_ended: bool = False) -> None:
        """Raises Missing if the folder contains neither a run nor a search."""
        entries = self._index.entries()
        has_ended = may_have_ended and path.removesuffix(PARTIAL) in entries
        is_known = path in entries or has_ended or self._runs_inside(path)
        if not is_known and not self._has_only_begun(path):
            raise Missing(path)

    async def events(self, path: str) -> AsyncIterator[str]:
        """Yields `name` events with digests, `done` events with HTML, `points` events with JSON and `state` events with
        HTML, then one `end` event.
        """
        missed = sent = 0
        done = name = ""
        while True:
            past, problem = await run_in_threadpool(self._look, path)
            is_missed = problem and not await run_in_threadpool(self._may_be_silent, path)
            missed = missed + 1 if is_missed else 0
            has_stopped = missed >= PATIENCE
            if is_gone := await run_in_threadpool(self._ended, path):
                self._index.expire()
            has_ended = is_gone or has_stopped
            panel = await run_in_threadpool(self._panel, path, past, problem, has_stopped)
            now_name = "" if has_ended else await run_in_threadpool(self._name, path)
            if now_name not in ("", name):
                yield _event("name", now_name)
                name = now_name
            if (now_done := await run_in_threadpool(self._done, path)) not in ("", done):
                yield _event("done", now_done)
                done = now_done
            # The page draws the points together with the next panel, so that both show the same moment.
            if new := past.since(sent):
                yield _event("points", hide(json.dumps(new, separators=(",", ":"))))
                sent = past.count
            if has_ended:
                yield _event("end", panel)
                return
            if not problem or problem == BETWEEN_RUNS:
                yield _event("state", panel)
            await anyio.sleep(PERIOD_S)

    def _look(self, path: str) -> tuple[Past, str]:
        """Returns the snapshots so far, and why the current state is unknown; '' if it is known."""
        past = self._past(path)
        with past.lock:
            if past.state is not None and monotonic() - past.read_s < PERIOD_S / 2:
                return past, ""
            run = path
            if past.run not in ("", path) or self._is_search(path):
                self._add_ended(path, past)
                inside = self._runs_inside(path)
                if not inside:
                    past.state = None
                    return past, BETWEEN_RUNS
                run = inside[0].path
            after_s = past.last.at_s if past.last is not None and past.run == run else 0.0
            found = snapshots(self._index.root, run, after_s)
            past.read_s = monotonic()
            if isinstance(found, str):
                past.state = None
                return past, BETWEEN_RUNS if run != path else found
            for state in found:
                past.add(run, state)
            return past, ""

    def _add_ended(self, path: str, past: Past) -> None:
        """Adds the latest runs of a study that ended before a snapshot of them was read."""
        for entry in self._ended_runs(path)[-MOST_RUNS:]:
            if not past.has_drawn(entry.path):
                with suppress(OSError, HarnessError), reading(entry.path):
                    result = read(self._index.root, f"{entry.path}/{run_folder.RESULT}")
                    past.add_ended(entry.path, result)

    def _ended_runs(self, path: str) -> list[Entry]:
        """Returns the finished runs in a study's folder, oldest first."""
        entries = self._index.entries()
        path = path.removesuffix(PARTIAL) if self._ended(path) else path
        inside = (e for e in entries.values() if e.path.startswith(f"{path}/"))
        return [e for e in reversed([*inside]) if e.row is not None and not e.notes_endpoint]

    def _past(self, path: str) -> Past:
        with self._lock:
            past = self._pasts.pop(path, None) or Past()
            self._pasts[path] = past  # the folder that was read last becomes the last key
            while len(self._pasts) > MOST_WATCHED:
                del self._pasts[next(iter(self._pasts))]
            return past

    def _is_search(self, path: str) -> bool:
        entry = self._index.entries().get(path)
        if entry is not None and entry.notes_endpoint:
            return False
        if entry is None:
            return bool(self._runs_inside(path)) or self._has_only_begun(path)
        return entry.study is not None or bool(self._runs_inside(path))

    def _name(self, path: str) -> str:
        """Returns a digest of the page's kind and title; '' until the run or study has written its first file.

        The title itself may contain private names and control characters, which the page shows in another form.
        """
        kind, title = "study" if self._is_search(path) else "run", self._heading(path, None).title
        return hashlib.sha256(f"{kind} {title}".encode()).hexdigest() if title else ""

    def _may_be_silent(self, path: str) -> bool:
        """Returns whether this is a study in progress, which may be between two runs, or measure without runs."""
        return self._is_search(path) and run_folder.is_in_progress(self._index.root / path)

    def _has_runs(self, path: str) -> bool:
        """Returns whether the folder may contain a run, or a study that makes runs."""
        entry = self._index.entries().get(path)
        return entry is None or entry.study not in WITHOUT_RUNS

    def _is_expected(self, path: str, chart: Chart) -> bool:
        """Returns whether the page shows the chart before it has values."""
        entry = self._index.entries().get(path)
        mine = [entry] if entry is not None else []
        rows = (e.row for e in [*mine, *self._runs_inside(path), *self._ended_runs(path)])
        scenarios = {row["scenario"] for row in rows if row is not None}
        if entry is not None and entry.study is not None:
            # The workload of a study names its scenario before its first run does.
            words = studies.summary(self._index.root, entry).workload.split(" · ")
            scenarios |= SCENARIOS.keys() & set(words)
        if chart.name == "latency" and scenarios:
            return not all(scenario_named(one).all_at_once for one in scenarios)
        if chart.name == "cores" and self._is_search(path):  # short runs may lack its values
            return False
        return chart.is_first and self._has_runs(path)

    def _has_only_begun(self, path: str) -> bool:
        """Returns whether a study is in progress that has no files yet."""
        is_unknown = path.endswith(PARTIAL) and path not in self._index.entries()
        return is_unknown and "/" not in path and run_folder.is_in_progress(self._index.root / path)

    def _may_be_run(self, path: str) -> bool:
        """Returns whether a folder that has only begun may become the folder of a run, which notes no progress."""
        noted = self._index.root / path / run_folder.PROGRESS
        return self._has_only_begun(path) and not noted.is_file()

    def _runs_inside(self, path: str) -> list[Entry]:
        """Returns the runs in progress below an unfinished folder, newest first."""
        if not self._index.is_unfinished(path):
            return []
        entries = self._index.entries().values()
        return [e for e in entries if e.notes_endpoint and e.path.startswith(f"{path}/")]

    def _ended(self, path: str) -> bool:
        """Returns whether the folder no longer exists, or no longer belongs to a run or study in progress."""
        folder = self._index.root / path
        if path.endswith(PARTIAL):
            return not folder.is_dir() or self._was_interrupted(path)
        return not (folder / run_folder.PROGRESS).is_file()

    def _was_interrupted(self, path: str) -> bool:
        """Returns whether the folder belongs to a run that was ended early, which keeps the folder's name."""
        folder, entry = self._index.root / path, self._index.entries().get(path)
        is_run = entry is not None and entry.study is None and not entry.notes_endpoint
        has_result = (folder / run_folder.RESULT).is_file()
        return is_run and has_result and not run_folder.is_in_progress(folder)

    def _finished(self, path: str) -> str:
        """Returns the folder's path once the run or study has ended."""
        return path if self._was_interrupted(path) else path.removesuffix(PARTIAL)

    def _panel(self, path: str, past: Past, problem: str, has_stopped: bool = False) -> str:
        finished = self._finished(path)
        verdict = outcome = study = None
        doubts, is_search = "", past.run not in ("", path) or self._is_search(path)
        is_between = problem == BETWEEN_RUNS
        is_stopped = is_between and not run_folder.is_in_progress(self._index.root / path)
        if is_stopped:
            problem = NOT_WRITTEN
        elif problem and self._ended(path):
            problem = GONE
        elif is_between and not self._has_runs(path):
            problem = MEASURING
        elif is_between and self._has_only_begun(path):
            problem = STARTING
        state = past.last
        disturbance = "" if problem else _disturbance(past)
        is_past = is_between or past.begun is not state
        is_next = is_past and (is_between or past.begun_in != past.run)
        shown, of_tiles = self._tiles(path, past, is_next=is_next, is_search=is_search)
        if past.begun is None and (is_stopped or (problem and not is_between)):
            shown = ()
        if self._ended(path) and (self._index.root / finished).is_dir():
            with suppress(OSError, HarnessError), reading(finished):
                verdict, outcome, doubts, shown = self._end(finished)
                of_tiles = "Final numbers"
            entry = self._index.entries().get(finished)
            study = entry.study if entry is not None else None
        done = Step() if is_stopped else self._step(path, past)
        if done.has_ended and problem == BETWEEN_RUNS:
            problem = JUDGING
        about = self._heading(path, past.measured or state)
        entry = self._index.entries().get(path)
        stopped = entry if is_stopped and entry is not None and entry.study is not None else None
        return render(
            "panel.html",
            state=state,
            run=past.run if past.run != path else "",
            run_name=_last_name(past.run),
            brief=brief(shown) if is_search and not is_past else (),
            problem=problem,
            has_stopped=has_stopped,
            is_loading=is_between and not is_stopped,
            is_between=is_between,
            stages=past.begun.stages if past.begun is not None else (),
            of_tiles=of_tiles if shown else "",
            heading=about,
            headline=headline(about.so_far),
            step=done,
            is_search=is_search,
            is_next=is_next and not verdict,
            tiles=tiles.html(shown),
            verdict=verdict,
            outcome=outcome,
            doubts=doubts,
            disturbance="" if verdict else disturbance,
            study=study,
            stopped=stopped and (studies.ended_early(self._index.root, stopped) or NOT_WRITTEN),
            finished=url("study", path) if stopped else url("study" if study else "run", finished),
            path=path,
        )

    def _tiles(
        self, path: str, past: Past, *, is_next: bool, is_search: bool
    ) -> tuple[Sequence[Tile], str]:
        """Returns the tiles of the current run, and what they show. is_next: whether it is the next run of a study, which
        has not begun; the tiles are then of the run before it.
        """
        if is_next and (ended := self._ended_runs(path)):
            with suppress(OSError, HarnessError), reading(ended[-1].path):
                *_, shown = self._end(ended[-1].path)
                return shown, f"{_last_name(ended[-1].path)}, final numbers"
        if past.begun is None:
            shown, what = self._heading(past.run or path, past.last).opening, BEFORE
        else:
            shown, what = current_tiles(past)
        if is_search:
            what = f"{_last_name(past.begun_in or past.run)} {what[:1].lower()}{what[1:]}"
        return shown, what

    def _step(self, path: str, past: Past) -> Step:
        """Returns the current step of a study, whose share of the time never becomes smaller."""
        now = step(self._index.root, path)
        if now.share is None and not now.has_ended:
            return now
        past.share = max(now.share or 0.0, past.share or 0.0) or None
        return now._replace(share=past.share)

    def _heading(self, path: str, state: Snapshot | None) -> Heading:
        entries = self._index.entries()
        entry = entries.get(path) or entries.get(path.removesuffix(PARTIAL))
        return heading(self._index.root, entry, state)

    def _end(self, path: str) -> tuple[str, str, str, Sequence[Tile]]:
        """Returns a finished run's verdict, its first reason or else its answer, codes of its doubts, and tiles; '' for a
        missing text.

        Raises OSError or ConfigError.
        """
        row = read_row(self._index.root, path)
        result = read(self._index.root, f"{path}/{run_folder.RESULT}")
        outcome = next((one["text"] for one in result["reasons"]), row["answer"] or "")
        return row["verdict"], outcome, row["doubts"], final_tiles(result)

    def _done(self, path: str) -> str:
        """Renders a study's finished runs, for a search below a plot of the loads that were tried. While a sweep searches
        for its peak, these are the loads of that search.
        """
        entries = self._index.entries()
        entry = entries.get(path) or entries.get(path.removesuffix(PARTIAL))
        inner = (e for e in entries.values() if e.inside == path and e.study and e.is_unfinished)
        entry = next(inner, entry)
        return render(
            "done.html",
            tried=tried_loads(self._index.root, entry) if entry else Tried(),
            planned=planned_plot(self._index.root, entry) if entry else "",
            done=[e.row for e in reversed(self._ended_runs(path))],
        ).strip()


def _last_name(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(PARTIAL)


def _disturbance(past: Past) -> str:
    """Returns a warning if other programs use the cores that the run needs; otherwise ''."""
    used, cores = (
        past.latest("cores", "other programs"),
        past.last.totals.cores if past.last else None,
    )
    if not used or not cores or used / cores < MOST_OTHER:
        return ""
    share = show_percent(used / cores)
    return f"Other programs use {share} of the cores, so the run may measure the machine's load instead of the model."


def _event(name: str, text: str) -> str:
    data = "".join(f"data: {line}\n" for line in text.splitlines())
    return f"event: {name}\n{data}\n"
