"""Writes report.html, the page of a finished run, from the run's files.

Every run writes this page when it ends.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from harness.core.codes import CODES, without_markup
from harness.core.config.parse import parse_slos
from harness.core.units import counted, show_ns
from harness.machine.host_log import HOST_CSV
from harness.results import records, run_folder
from harness.results.answer import answer_of, answer_rows
from harness.results.findings import Findings
from harness.results.pages import tiles
from harness.results.pages.figures import figures
from harness.results.pages.heading import Badges, heading, workload
from harness.results.pages.load_hosts import host_table
from harness.results.pages.models_tables import curve_figure, curve_table, models_table
from harness.results.pages.node_table import node_table
from harness.results.pages.page import (
    Article,
    Figure,
    Html,
    command_html,
    groups_html,
    link,
    section,
    table,
    typeset,
    write,
)
from harness.results.pages.page import answer as page_answer
from harness.results.pages.page import facts as page_facts
from harness.results.pages.requests import tables as request_tables
from harness.results.pages.run_table import NOT_ISOLATED, facts, latency_table, stage_table
from harness.results.pages.tables import Column, Table
from harness.results.pages.words import groups, settings
from harness.results.power import NO_METER
from harness.results.records import SERVER_CSV, Samples
from harness.results.run_files import RunFiles, read_files, reading_run, shown_config
from harness.results.seal.digests import PAGE
from harness.results.steady.shown import ALONGSIDE


def report(folder: Path, out: Path | None, *, standalone: bool) -> Path:
    """Writes the page, and returns its path. standalone: embeds plotly's script instead of writing it next to the page.

    out: path of the page; default: report.html in the run's folder. At the default path, all runs in a results folder
    share one script.
    """
    run, page = read_files(folder), out or folder / PAGE
    script_in = out.parent if out else folder.resolve().parent
    drawn = plots(run, records.read_samples(folder))
    title = folder.resolve().name
    return write(
        [_with_files(run, drawn, page)], title, page, script_in=None if standalone else script_in
    )


def report_at_end(folder: Path, findings: Findings) -> Path:
    """Writes the report of a run that has just ended, from the rows in memory."""
    run, page = read_files(folder, findings.performance), folder / PAGE
    drawn = plots(run, records.samples_of(findings))
    return write([_with_files(run, drawn, page)], run.name, page, script_in=folder.resolve().parent)


def page_differences(folder: Path) -> Iterator[str]:
    """Yields a line for each disagreement between the page in the run's folder and the other files. Ignores the plots."""
    page = folder / PAGE
    if not page.is_file():
        return
    run = read_files(folder)
    text = page.read_text(encoding="utf-8", errors="replace")
    top, bottom = list(_top(run)), list(_bottom(run))
    numbers = list(_numbers(run.result))
    # These slices leave out the folder's name and path.
    blocks = (top[:1], top[2:], numbers, bottom[:-1])
    if not all(typeset("\n".join(block)) in text for block in blocks):
        yield f"{page} differs from the run's other files: `report {folder}` writes it again"


def plots(run: RunFiles, beside: Samples) -> list[Figure]:
    """Returns the plots of a performance run; [] if the run has none. beside: readings during the run."""
    with reading_run(run.folder):
        slos = parse_slos(run.result.get("slo") or "")
        return list(figures(run.performance, beside, slos)) if run.performance else []


def article(run: RunFiles, drawn: Sequence[Figure], config: str = "") -> Article:
    """Returns the page's article without links to files. Does not read `run.performance`.

    drawn: result of `plots`. config: path to the run's config.yaml from the reader's point of view; by default without
    private names.
    """
    with reading_run(run.folder):
        tail = [*_numbers(run.result), *_bottom(run, config)]
        made = Article(list(_top(run)), [*drawn, *curve_figure(run.result)], tail)
        return made._replace(head=[*made.head, _sections(run, made)])


def _with_files(run: RunFiles, drawn: Sequence[Figure], page: Path) -> Article:
    whole = article(run, drawn)
    return whole._replace(tail=[*whole.tail, *_files(run.folder, page)])


def _bottom(run: RunFiles, config: str = "") -> Iterator[str]:
    for title, content in (
        ("Settings", shown_config(run.config)),
        ("Machine", run.environment),
        ("Machine in the run", run.result.get("host") or {}),
        ("Servers in the run", run.result.get("servers") or {}),
    ):
        if content:
            yield f'<details><summary><h2 id="{_address(title)}">{title}</h2></summary>'
            if title == "Settings":
                yield table(("setting", "value"), settings(content))
            else:
                yield groups_html(groups(content))
            yield "</details>"
    yield '<h2 id="again">Run it again</h2>'
    # Pages are shown to other people, and parent folders may have private names. Only the default results folder is
    # kept in the path.
    folder = run.folder.absolute()
    parent = f"{folder.parent.name}/" if folder.parent.name == run_folder.RESULTS else ""
    path = shlex.quote(config or f"{parent}{folder.name}/{run_folder.CONFIG}")
    yield command_html(f"python -m harness --config {path}")


def _address(title: str) -> str:
    return title.lower().replace(" ", "-")


def _files(folder: Path, page: Path) -> Iterator[str]:
    names = (run_folder.RESULT, run_folder.CONFIG, run_folder.ENVIRONMENT, HOST_CSV, SERVER_CSV)
    found = [link(name, folder / name, page) for name in names if (folder / name).is_file()]
    if found:
        yield f"<h2>Files</h2><nav>{''.join(found)}</nav>"


def _top(run: RunFiles) -> Iterator[str]:
    """Yields the answer, reasons and doubts. The second entry shows the folder's name."""
    result = run.result
    answer = answer_of(result)
    doubts = [doubt["code"] for doubt in result["doubts"]]
    yield heading(workload(result), Badges(answer.verdict), doubts)
    yield f'<p class="quiet">{escape(run.name)}, started {escape(show_time(result.get("started")))}</p>'
    yield f'<p class="quiet">{escape(answer.question)}</p>'
    yield from page_answer(answer.headline)
    rows = answer_rows(result)
    if result["reasons"]:
        yield "<p>Do not quote these numbers.</p>"
        yield from _reasons(result["reasons"], rows.pop("advice", ""))
    shown = tiles.tiles(result)
    yield tiles.html(shown)
    yield page_facts(_with_fold(tiles.without_tiled(rows, shown)))
    if result["doubts"]:
        title = counted(len(result["doubts"]), "doubt")
        is_open = " open" if len(doubts) == 1 else ""  # several would push the plots down
        yield f'<details id="doubts"{is_open}><summary>{title} in full</summary>'
        yield '<ul class="doubt">'
        yield from (_entry(doubt, _meaning(doubt)) for doubt in result["doubts"])
        yield "</ul></details>"


def _with_fold(rows: Mapping[str, str]) -> Mapping[str, str]:
    """Collapses the numbers that changed with the latency, because only the change itself is part of the answer."""
    short, joint, detail = rows.get("steady", "").partition(ALONGSIDE)
    if not joint:
        return rows
    fold = f"<details><summary>What changed at the same time</summary>{escape(detail)}</details>"
    return {**rows, "steady": Html(f"{escape(short)}{fold}")}


def _sections(run: RunFiles, shown: Article) -> str:
    """Returns links to the sections of the page, which stay in view on a wide screen."""
    doubts = [("doubts", "Doubts")] if run.result["doubts"] else []
    plots = [(f"figure-{i}", escape(one.title)) for i, one in enumerate(shown.figures)]
    tables = _HEADING.findall("".join(shown.tail))
    links = (f'<a href="#{key}">{title}</a>' for key, title in (*doubts, *plots, *tables))
    return f'<nav class="sections" aria-label="Sections">{"".join(links)}</nav>'


_HEADING = re.compile(r'<h2 id="([^"]+)">(.*?)</h2>')


def _reasons(reasons: Sequence[Mapping[str, str]], advice: str) -> Iterator[str]:
    """Yields the reasons with their numbers, and the recommended next step."""
    yield '<ul class="reason">'
    yield from (_entry(reason) for reason in reasons)
    yield "</ul>"
    if advice:
        yield f"<p><b>Next:</b> {escape(advice)}</p>"


def _entry(entry: Mapping[str, str], meaning: str = "") -> str:
    more = f'<div class="quiet">{escape(meaning)}</div>' if meaning else ""
    return f"<li><b>{escape(entry['code'])}</b>: {escape(entry['text'])}{more}</li>"


def _meaning(entry: Mapping[str, str]) -> str:
    """Returns the meaning of a code without Markdown; "" if this version does not know the code."""
    known = CODES.get(entry["code"])
    return without_markup(known.meaning) if known else ""


def show_time(started: object) -> str:
    """Converts an ISO 8601 time to a readable form: '2026-11-22 15:37:15 UTC'."""
    try:
        at = datetime.fromisoformat(str(started)).astimezone(UTC)
    except (ValueError, OverflowError):
        return str(started)
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _numbers(result: Mapping[str, Any]) -> Iterator[str]:
    notes = [f"not for submission: {note}" for note in result.get("not_for_submission") or []]
    notes += [] if result.get("isolated", True) else [NOT_ISOLATED]
    rows = dict(facts(result)) | ({"notes": "; ".join(notes)} if notes else {})
    yield '<h2 id="numbers">Numbers</h2>'
    yield page_facts(rows)
    yield '<div class="beside">'
    for shown in (
        latency_table(result, journal=False),
        stage_table(result),
        host_table(result),
        node_table(result),
    ):
        if shown is not None:
            yield "<div>"
            yield from section(shown, cards=True, named=("stage",))
            yield "</div>"
    yield "</div>"
    for shown in (*request_tables(result), models_table(result), curve_table(result)):
        if shown is not None:
            yield from section(shown)
    power = result.get("power")
    if power:
        readings = [tuple(reading[key] for key in _POWER) for reading in power["readings"]]
        missing = (f"{m['source']}: no reading: {m['reason']}." for m in power["missing"])
        window = f"{power['window']}, {show_ns(power['seconds'] * 1e9)}; {power['note']}."
        columns = tuple(_POWER.values())
        yield from section(Table("power", "Power", "", columns, readings, (*missing, window)))
    elif result.get("power_reason") not in (None, NO_METER):
        yield f'<p class="quiet">Power was not measured: {escape(str(result["power_reason"]))}.</p>'


_POWER = {
    "source": Column("source"),
    "domain": Column("covers"),
    "provenance": Column("from"),
    "joules": Column("energy", "J"),
    "mean_watts": Column("mean", "W"),
    "peak_watts": Column("peak", "W"),
    "idle_watts": Column("idle", "W"),
    "joules_per_query": Column("per query", "J"),
    "joules_per_sample": Column("per sample", "J"),
}
"""Maps a reading's key to its column."""
