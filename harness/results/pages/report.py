"""Writes `report`: one page about one finished run or several, from their files.

Every run writes its own at its end.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from harness.core.shown import private
from harness.core.units import show_ns
from harness.errors import ConfigError
from harness.machine.host_log import HostLog
from harness.machine.power.energy import PowerLog
from harness.results import records, run_folder
from harness.results.evidence.stages import PERCENTILES
from harness.results.findings import Findings
from harness.results.pages.figures import figures
from harness.results.pages.page import Article, section, table, write
from harness.results.pages.run_table import RATES, show_accuracy, show_quantity
from harness.results.pages.tables import Column, Table
from harness.results.run_files import RunFiles, read_files, reading_run
from harness.results.seal.digests import PAGE

_NO_ACCURACY = {"value": None, "reason": "no run"}


def report(folders: Sequence[Path], out: Path | None, *, standalone: bool) -> Path:
    """The page's path. plotly's script lies beside it, or inside with `standalone`.

    out: default report.html in the one run's folder, with one script beside all runs for all of
    them.
    """
    if out is None and len(folders) > 1:
        raise ConfigError("a report of several runs lies in none of them: pass --out FILE")
    articles = [_article(read_files(f), *records.read_samples(f)) for f in folders]
    title = ", ".join(folder.resolve().name for folder in folders)
    script_in = out.parent if out else folders[0].resolve().parent
    page = out or folders[0] / PAGE
    return write(articles, title, page, script_in=None if standalone else script_in)


def report_at_end(folder: Path, findings: Findings) -> Path:
    """The report of a run that has just ended; its rows in memory are not read again."""
    run = read_files(folder, findings.performance)
    article = _article(run, findings.host, findings.power)
    return write([article], run.name, folder / PAGE, script_in=folder.resolve().parent)


def page_differences(folder: Path) -> Iterator[str]:
    """The page in the run's folder does not show what the other files say. Its plots are not looked at."""
    page = folder / PAGE
    if not page.is_file():
        return
    run = read_files(folder)
    text = page.read_text(encoding="utf-8", errors="replace")
    top, bottom = [*_top(run), *_numbers(run.result)], list(_bottom(run))
    blocks = (top[:1], top[2:], bottom[:-1])  # without the name and the path of the folder
    if not all("\n".join(block) in text for block in blocks):
        yield f"{page} shows something else than the run's other files: `report {folder}` makes it again"


def _article(run: RunFiles, host: HostLog | None, power: PowerLog | None) -> Article:
    with reading_run(run.folder):
        drawn = figures(run.performance, host, power) if run.performance else ()
        return Article([*_top(run), *_numbers(run.result)], list(drawn), list(_bottom(run)))


def text_parts(run: RunFiles) -> list[str]:
    """The page without its plots, as HTML; it does not read `run.performance`."""
    with reading_run(run.folder):
        return [*_top(run), *_numbers(run.result), *_bottom(run)]


def _bottom(run: RunFiles) -> Iterator[str]:
    for title, content in (
        ("Settings", _settings(run.config)),
        ("Machine", run.environment),
        ("Machine in the run", run.result.get("host") or {}),
    ):
        if content:
            yield f"<h2>{title}</h2>"
            yield table(("setting", "value"), flat(content))
    yield "<h2>Run it again</h2>"
    # Without the folders above, which may be private: a page is shown to others.
    path = shlex.quote(f"{run.folder.absolute().name}/{run_folder.CONFIG}")
    yield f"<pre>{escape(f'python -m harness --config {path}')}</pre>"


def _settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The content of config.yaml without private names and the arguments of meters."""
    meters = [private.meter(str(text)) for text in config.get("meter") or ()]
    shown: Mapping[str, Any] = private.hidden({**config, "meter": meters})
    return shown


def _top(run: RunFiles) -> Iterator[str]:
    result = run.result
    verdict = str(result["verdict"])
    kind = "valid" if verdict == "VALID" else "invalid"
    words = [result["scenario"], result["backend"], result["model"], result["dataset"]]
    about = escape(" · ".join(map(str, words)))
    yield f'<h1><span class="badge {kind}">{escape(verdict)}</span> {about}</h1>'
    yield f'<p class="quiet">{escape(run.name)}, started {escape(str(result.get("started")))}</p>'
    advice = "Do not quote these numbers"
    if kind == "valid":
        advice = "The run followed its rules" + (
            ": read the doubts first" if result["doubts"] else ""
        )
    yield f"<p>{advice}.</p>"
    for name, label in (("reasons", "reason"), ("doubts", "doubt")):
        if result[name]:
            items = (f"<b>{escape(r['code'])}</b>: {escape(r['text'])}" for r in result[name])
            yield f'<ul class="{label}">{"".join(f"<li>{item}</li>" for item in items)}</ul>'
    notes = result.get("not_for_submission") or []
    yield from (f'<p class="quiet">Not for submission: {escape(str(n))}.</p>' for n in notes)
    headline = result.get("headline")
    if headline:
        yield f'<p class="headline">{escape(show_quantity(headline))}</p>'
        yield f'<p class="quiet">{escape(headline["name"])}</p>'
    yield f"<p>Accuracy: {escape(show_accuracy(result['accuracy'] or _NO_ACCURACY))}.</p>"


def _numbers(result: Mapping[str, Any]) -> Iterator[str]:
    latency, rates, power = (result.get(n) for n in ("latency_ns", "throughput_per_s", "power"))
    if latency:
        known = [n for n in ("min", "mean", *PERCENTILES, "max") if latency.get(n) is not None]
        rows = [(name, latency[name]) for name in known]
        latencies = (Column("percentile"), Column("latency", "ns"))
        source = str(latency["source"])
        yield from section(Table("latency", "Latency", "", latencies, rows, (source,)))
    if rates:
        named = {name: rates.get(key) for key, name in RATES.items()}
        rows = [(name, rate) for name, rate in named.items() if rate is not None]
        offered = (Column("rate"), Column("samples/s", "samples/s"))
        yield from section(Table("throughput", "Throughput", "", offered, rows))
    if power:
        rows = [tuple(reading[key] for key in _POWER) for reading in power["readings"]]
        missing = (f"{m['source']}: no reading: {m['reason']}." for m in power["missing"])
        window = f"{power['window']}, {show_ns(power['seconds'] * 1e9)}; {power['note']}."
        columns = tuple(_POWER.values())
        yield from section(Table("power", "Power", "", columns, rows, (*missing, window)))
    else:
        reason = escape(str(result.get("power_reason")))
        yield f'<h2>Power</h2><p class="quiet">Not measured: {reason}.</p>'


_POWER = {
    "source": Column("source"),
    "domain": Column("covers"),
    "provenance": Column("from"),
    "joules": Column("energy", "J"),
    "mean_watts": Column("mean", "W"),
    "peak_watts": Column("peak", "W"),
    "idle_watts": Column("idle", "W"),
    "joules_per_query": Column("a query", "J"),
    "joules_per_sample": Column("a sample", "J"),
}
"""Key of a reading -> its column."""


def flat(content: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """(setting, value) as texts; settings of an inner mapping have its key before theirs."""
    rows = []
    for key, value in content.items():
        if isinstance(value, Mapping):
            rows += flat(value, f"{prefix}{key} ")
        elif value not in (None, "", []):
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            rows.append((f"{prefix}{key}", f"{value:.6g}" if isinstance(value, float) else text))
    return rows
