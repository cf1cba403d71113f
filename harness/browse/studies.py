"""Shows the folder of a verb that makes many runs or measurements, as a line in the list and as the verb's own page."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from html import escape
from operator import itemgetter
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import quote

from harness.browse import within
from harness.browse.index import STUDIES, Entry
from harness.core.files import parse_json, reading
from harness.core.units import counted, show_rate
from harness.errors import ConfigError, HarnessError, one_line
from harness.explain.advise import content as advise_content
from harness.explain.advise.output import page as advise_page
from harness.explain.advise.output import text as advise_text
from harness.explain.bricks.tables import text as bricks_text
from harness.explain.cold import page as cold_page
from harness.explain.cold import tables as cold_tables
from harness.explain.machine import page as machine_page
from harness.explain.machine.arithmetic import NO_RATE, peaks_line
from harness.explain.pitfalls import page as pitfalls_page
from harness.explain.profile import page as profile_page
from harness.explain.profile.tables import folder as profile_folder
from harness.explain.profile.tables.layer_tables import Profiled, most_time
from harness.models.manifest.lookup import result_name
from harness.results.pages import page
from harness.results.pages.heading import Badges, heading, is_doubted, task, verdict_of
from harness.results.pages.page import Article, RunLink, with_command
from harness.results.pages.tables import Table
from harness.search import repeats
from harness.search.grid.cells.options import GridOptions
from harness.search.grid.view import page as grid_page
from harness.search.grid.view.view import stored_view
from harness.search.overhead import content as overhead_content
from harness.search.overhead import page as overhead_page
from harness.search.overhead import table as overhead_table
from harness.search.peak import content as peak_content
from harness.search.peak import page as peak_page
from harness.search.peak import table as peak_table
from harness.search.runtimes import page as runtimes_page
from harness.search.runtimes import table as runtimes_table
from harness.search.sweep import caches
from harness.search.sweep import content as sweep_content
from harness.search.sweep import page as sweep_page
from harness.search.sweep import table as sweep_table
from harness.search.tune import content as tune_content
from harness.search.tune import page as tune_page
from harness.search.tune import table as tune_table
from harness.search.workers import content as workers_content
from harness.search.workers import table as workers_table

PAGES: Mapping[str, str] = {
    peak_page.PAGE: "plot of the loads that were tried",
    sweep_page.PAGE: "plots of the sweep",
    grid_page.PAGE: "heat maps and tables of the grid",
    tune_page.PAGE: "plots of the forecast and the runs",
    runtimes_page.PAGE: "speeds and table of the runtimes",
    overhead_page.PAGE: "plots of the overhead's parts and of the pairs",
    profile_folder.PAGE: "tables and flame graph of the profile",
    machine_page.PAGE: "plots of the machine's peaks and costs",
    cold_page.PAGE: "plots of the time to the first answer, by part",
    advise_page.PAGE: "tables of the advice",
    bricks_text.PAGE: "tables of the layers",
    pitfalls_page.PAGE: "plots of the changed answers",
}

_FILES = {verb: file for file, verb in STUDIES.items()}

_ARTICLES: Mapping[str, Callable[[Any, Path], Sequence[Article]]] = {
    "grid": lambda _, folder: grid_page.articles(stored_view(folder, GridOptions())),
    "tune": lambda content, _: tune_page.articles(content),
    "repeats": lambda content, _: _of_repeats(content),
    "rerun": lambda content, _: _of_rerun(content),
    "overhead": lambda content, _: overhead_page.articles(content),
    "workers": lambda content, _: _of_workers(content),
    "runtimes": lambda content, _: runtimes_page.articles(content),
    "profile": lambda _, folder: profile_page.articles(profile_folder.read(folder), folder),
    "machine": lambda content, _: machine_page.articles(content),
    "cold": lambda content, _: cold_page.articles(content),
    "advise": advise_page.articles,
    "bricks": lambda content, _: bricks_text.articles(content),
    "pitfalls": lambda content, _: pitfalls_page.articles(content["reports"]),
}
"""Maps a verb to a function that makes the page's articles from the verb's file and folder."""

WITH_LINKS: Mapping[str, Callable[[Any, Callable[[str], RunLink]], list[Article]]] = {
    "peak": peak_page.articles,
    "sweep": sweep_page.articles,
}
"""Like `_ARTICLES`, for verbs whose table of runs links to the pages of the runs."""

_READ_WHOLE = ("grid", "profile")
"""Verbs whose articles need further files from the folder."""


def read(root: Path, file: str) -> Mapping[str, Any]:
    """Returns the JSON object in a file below the root. Raises OSError or ConfigError."""
    with reading(f"{file} is not a file of a run"):
        content = parse_json(within.read_file(root, file).decode())
    if not isinstance(content, dict):
        raise ConfigError(f"{file} is not a file of a run")
    return content


def _content(root: Path, entry: Entry) -> Mapping[str, Any]:
    return read(root, f"{entry.path}/{_FILES[entry.study or '']}")


def articles(root: Path, entry: Entry, *, picks: bool = True) -> Sequence[Article]:
    """Returns the articles of the verb's page. If the articles cannot be made, returns an article that states the
    reason. picks: whether a table of runs has checkboxes.
    """
    verb = entry.study or ""
    try:
        content, folder = _content(root, entry), root / entry.path
        if verb in _READ_WHOLE:
            folder = within.check_folder(root, entry.path, within.MOST_FILES_OF_STUDY)
        with reading(f"{entry.path}: its page cannot be made"):
            made: Sequence[Article]
            if verb in WITH_LINKS:
                made = WITH_LINKS[verb](content, lambda run: _link(entry.path, run, picks=picks))
            else:
                made = _ARTICLES[verb](content, folder)
            return with_command(made, content.get("command"))
    except (OSError, HarnessError) as e:
        title = f"<h1>{escape(verb.capitalize())}</h1>"
        reason = f'<p class="reason">This page cannot be made: {escape(one_line(e))}</p>'
        return [Article([title, reason], (), ())]


def ended_early(root: Path, entry: Entry) -> str:
    """Returns the reason why the study ended before it was complete; '' if it was completed or the reason is unknown."""
    try:
        return str(_content(root, entry).get("ended_early") or "")
    except (OSError, HarnessError):
        return ""  # the page already states why the file cannot be read


def _link(study: str, run: str, *, picks: bool) -> RunLink:
    """Returns the link to a run's page. run: the run's folder in the study."""
    path = str(PurePosixPath(study) / run)
    return RunLink(f"/run/{quote(path)}", path if picks else "")


def _judged_repeats(content: repeats.Content) -> Badges:
    verdict = "INVALID" if set(content["verdicts"]) - {"VALID"} else "VALID"
    return Badges(verdict, any(content["doubts"]))


def _judged_workers(content: workers_content.Content) -> Badges:
    return Badges(verdict_of(content["workers"]), is_doubted(content["workers"]))


def _of_repeats(content: repeats.Content) -> Sequence[Article]:
    title = heading(["Repeats", *task(content)], _judged_repeats(content))
    lines = [repeats.headline(content), *repeats.facts(content)]
    made = _without_plots(title, lines, repeats.tables(content))
    return [made._replace(figures=list(repeats.figures(content)))]


def _of_workers(content: workers_content.Content) -> Sequence[Article]:
    title = heading(["Workers", *workers_table.words(content)], _judged_workers(content))
    lines = [_workers(content)[1], *workers_table.facts(content)]
    return [_without_plots(title, lines, [workers_table.workers_table(content)])]


def _of_rerun(content: Mapping[str, Any]) -> Sequence[Article]:
    """Shows the tables of `rerun`, which are stored as text."""
    runs = " and ".join(content["runs"])
    about = 'class="scroll" tabindex="0" role="region" aria-label="Comparison"'
    tail = [
        f'<div {about}><pre class="table">{escape(text)}</pre></div>' for text in content["tables"]
    ]
    head = [heading(["Rerun", runs], Badges()), *map(page.headline, content["verdicts"])]
    return [Article(head, (), tail)]


def _without_plots(title: str, lines: Iterable[str], tables: Iterable[Table]) -> Article:
    """title: the heading as HTML. lines: lines of the conclusion, the headline first."""
    head = [title, *page.conclusion(lines)]
    return Article(
        head,
        (),
        [part for table in tables for part in page.section(table, named=("number",), cards=True)],
    )


class Summary(NamedTuple):
    """A study in a few words. Texts from the folder, not escaped."""

    workload: str
    outcome: str
    judged: Badges = Badges()
    models: Sequence[str] = ()
    """Names of the models that the study measured."""


def changed_ns(root: Path, entry: Entry) -> int:
    """Returns the time at which the verb's file was last changed; 0 if the file cannot be read."""
    try:
        return (root / entry.path / _FILES[entry.study or ""]).lstat().st_mtime_ns
    except OSError:
        return 0


def summary(root: Path, entry: Entry) -> Summary:
    try:
        content = _content(root, entry)
        with reading(f"{entry.path} has an unknown format"):
            workload, outcome = _SUMMARIES[entry.study or ""](content)
        judged = Badges()
        if judge := _JUDGED.get(entry.study or ""):
            with suppress(HarnessError), reading(entry.path):  # the file may lack what judges it
                judged = judge(content)
        return Summary(workload, outcome, judged, tuple(dict.fromkeys(_models(content))))
    except (OSError, HarnessError) as e:
        return Summary("-", one_line(e))


_OF_MODELS = ("model", "models", "model_name", "name", "axes", "reports")
"""Keys under which the verbs store the names of models, at any depth."""


def _models(value: object) -> Iterator[str]:
    if isinstance(value, str) and value.isprintable():  # others cannot be part of a URL
        yield result_name(value)
    elif isinstance(value, list):
        for one in value:
            yield from _models(one)
    elif isinstance(value, Mapping):
        for key in _OF_MODELS:
            yield from _models(value.get(key))


def tiles_so_far(root: Path, entry: Entry) -> str:
    """Returns the tiles at the top of a study's page as HTML; '' if the page has none, or has none yet."""
    if make := _TILES.get(entry.study or ""):
        with suppress(OSError, HarnessError), reading(entry.path):
            return make(_content(root, entry))
    return ""


def peaks(root: Path, entries: Iterable[Entry]) -> Mapping[str, tuple[str, Entry]]:
    """Maps the fingerprint of each machine that `machine` measured to the tiles of its peaks, and to the study with
    these peaks: the newest complete study. entries: newest first. Skips folders that cannot be read.
    """
    found: dict[str, tuple[str, Entry]] = {}
    for entry in sorted(entries, key=lambda one: one.is_unfinished):
        if entry.study == "machine":
            with suppress(OSError, HarnessError), reading(entry.path):
                content = _content(root, entry)
                if shown := machine_page.peak_tiles(content):
                    found.setdefault(str(content["fingerprint"]), (shown, entry))
    return found


def _peak(content: peak_content.Content) -> tuple[str, str]:
    """The workload has the bound, without which a peak answers no question."""
    if not content["finished"] and all(one["passed"] is None for one in content["probes"]):
        return _named(content), "no load has been judged yet"
    has_peak = content["peak"] is not None
    outcome = peak_table.peak_text(content) if has_peak else peak_table.tried_text(content)
    so_far = "" if content["finished"] else "so far "
    return _named(content), f"{so_far}{outcome}"


def _sweep(content: sweep_content.Content) -> tuple[str, str]:
    found = [sweep_table.highest_of(part) for _, part in caches.parts(content)]
    highest = max((rate for rate in found if rate is not None), default=None)
    if highest is not None:
        outcome = f"highest VALID {show_rate(highest)} queries/s"
    elif any(point["verdict"] == "VALID" for point in content["points"]):
        outcome = "none VALID without an INVALID rate below it"
    else:
        outcome = "none VALID"
    words = _named({**content["config"], "model": content["model"], "slo": content["slo"]})
    if not content["points"]:
        return words, "no rate measured so far"
    rates = counted(len({point["rate_per_s"] for point in content["points"]}), "rate")
    states = f", each in {len(found)} states of the cache" if len(found) > 1 else ""
    return words, f"{rates}{states}, {outcome}"


def _grid(content: Mapping[str, Any]) -> tuple[str, str]:
    axes = content["axes"]
    backends = [", ".join(axes["backend"])] if axes.get("backend") else []
    models = map(result_name, axes.get("model", ()))
    words = [*models, content["config"]["scenario"], *backends]
    # An older version did not store the fastest cell.
    none = "no fastest cell so far" if "fastest" in content else "no fastest cell is stored"
    return " · ".join(map(str, words)), str(content.get("fastest") or none)


def _tune(content: tune_content.Content) -> tuple[str, str]:
    return _named(content), tune_table.outcome(content)


def _repeats(content: repeats.Content) -> tuple[str, str]:
    return _named(content), repeats.headline(content)


def _overhead(content: overhead_content.Content) -> tuple[str, str]:
    return str(content["model"]), overhead_table.headline(content)


def _workers(content: workers_content.Content) -> tuple[str, str]:
    rows = [row for row in content["workers"] if row["verdict"] == "VALID"]
    best = max(rows, key=itemgetter("completed_per_s"), default=None)
    outcome = (
        f"{show_rate(best['completed_per_s'] or 0.0)} queries/s with {counted(best['workers'], 'worker')}"
        if best
        else "none VALID"
    )
    return f"{content['model']}, {counted(content['models'], 'model')}", outcome


def _runtimes(content: Mapping[str, Any]) -> tuple[str, str]:
    models = ", ".join(one["model"] for one in content["models"])
    return f"{models} · {content['scenario']}", "; ".join(runtimes_table.headlines(content))


def _profile(content: Mapping[str, Any]) -> tuple[str, str]:
    level = Profiled(content).level
    levels = f"levels: {', '.join(content['levels'])}"
    return str(content["model_name"]), levels if level is None else most_time(level)


def _machine(content: Mapping[str, Any]) -> tuple[str, str]:
    return str(content["machine"]["cpu"]), peaks_line(content) or NO_RATE


def _cold(content: Mapping[str, Any]) -> tuple[str, str]:
    first, *_ = cold_tables.headlines(content)
    return str(content["model"]), first.partition(";")[0]


def _advise(content: advise_content.Content) -> tuple[str, str]:
    return str(content["model"]["name"]), advise_text.conclusion(content)


def _bricks(content: Mapping[str, Any]) -> tuple[str, str]:
    return ", ".join(map(result_name, content["models"])), bricks_text.summary(content)[0]


def _pitfalls(content: Mapping[str, Any]) -> tuple[str, str]:
    reports = content["reports"]
    return (
        ", ".join(report["model"] for report in reports),
        "; ".join(map(pitfalls_page.headline, reports)),
    )


def _rerun(content: Mapping[str, Any]) -> tuple[str, str]:
    return " and ".join(content["runs"]), "; ".join(content["verdicts"])


def _named(content: Mapping[str, Any]) -> str:
    return " · ".join(task(content))


_SUMMARIES: Mapping[str, Callable[[Any], tuple[str, str]]] = {
    "peak": _peak,
    "sweep": _sweep,
    "grid": _grid,
    "tune": _tune,
    "repeats": _repeats,
    "rerun": _rerun,
    "overhead": _overhead,
    "workers": _workers,
    "runtimes": _runtimes,
    "profile": _profile,
    "machine": _machine,
    "cold": _cold,
    "advise": _advise,
    "bricks": _bricks,
    "pitfalls": _pitfalls,
}

QUESTIONS: Mapping[str, str] = {
    "peak": "Which load is the highest that meets the SLO?",
    "sweep": "How does the latency grow with the load?",
    "grid": "Which settings are the fastest?",
    "tune": "Which instances, threads and batch size are the fastest?",
    "repeats": "How much does the answer differ from run to run?",
    "rerun": "Does a second run give the same answer?",
    "overhead": "How much time does serving add to a query?",
    "workers": "How many workers are the fastest?",
    "runtimes": "Which runtime is the fastest that gives the same answers?",
    "profile": "Where does the time of a query go?",
    "machine": "How fast does this machine compute and move data?",
    "cold": "How long does a new process take until its first answer?",
    "advise": "Which ONNX Runtime settings make the model faster?",
    "bricks": "Which sequences of layers do the models share?",
    "pitfalls": "Which mistakes in preparing inputs change the answers?",
}
"""Maps a verb to the question that it answers."""

_TILES: Mapping[str, Callable[[Any], str]] = {
    "machine": machine_page.peak_tiles,
    "peak": peak_page.tiles_so_far,
}

_JUDGED: Mapping[str, Callable[[Any], Badges]] = {
    "peak": peak_page.badges,
    "sweep": sweep_page.badges,
    "tune": tune_page.badges,
    "grid": lambda content: Badges(*content.get("judged") or ()),
    "profile": profile_page.badges,
    "repeats": _judged_repeats,
    "overhead": overhead_page.badges,
    "workers": _judged_workers,
    "machine": machine_page.badges,
    "cold": cold_page.badges,
    "advise": advise_page.badges,
    "runtimes": runtimes_page.badges,
    "bricks": lambda content: bricks_text.summary(content)[1],
}
"""Judges the verbs whose file alone is enough to judge them."""
