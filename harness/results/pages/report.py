"""Writes `report`: one page about one finished run or several, from their files.

Every run writes its own at its end.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from harness.core.units import show_ns, show_rate, show_si
from harness.errors import ConfigError
from harness.machine.host_log import HostLog
from harness.machine.power.energy import PowerLog
from harness.results import records, run_folder
from harness.results.evidence.stages import PERCENTILES
from harness.results.findings import Findings
from harness.results.pages.figures import figures
from harness.results.pages.page import Article, table, write
from harness.results.pages.run_table import RATES, show_accuracy, show_quantity
from harness.results.run_files import RunFiles, read_files, reading_run

PAGE = "report.html"
_NO_ACCURACY = {"value": None, "reason": "no run"}


def report(folders: Sequence[Path], out: Path | None, *, standalone: bool) -> Path:
    """The page's path. plotly's script lies beside it, or inside with `standalone`.

    out: default report.html in the one run's folder, with one script beside all runs for all of
    them. A page that is there is replaced.
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


def _article(run: RunFiles, host: HostLog | None, power: PowerLog | None) -> Article:
    with reading_run(run.folder):
        drawn = figures(run.performance, host, power) if run.performance else ()
        return Article([*_top(run), *_numbers(run.result)], list(drawn), list(_bottom(run)))


def _bottom(run: RunFiles) -> Iterator[str]:
    for title, content in (
        ("Settings", run.config),
        ("Machine", run.environment),
        ("Machine in the run", run.result.get("host") or {}),
    ):
        if content:
            yield f"<h2>{title}</h2>"
            yield table(("setting", "value"), _flat(content))
    yield "<h2>Run it again</h2>"
    path = shlex.quote(str(run.folder.absolute() / run_folder.CONFIG))
    yield f"<pre>{escape(f'python -m harness --config {path}')}</pre>"


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
    latency, rates = result["latency_ns"], result["throughput_per_s"]
    if latency:
        known = [n for n in ("min", "mean", *PERCENTILES, "max") if latency.get(n) is not None]
        yield "<h2>Latency</h2>"
        rows = [(name, show_ns(latency[name])) for name in known]
        yield table(("percentile", "latency"), rows, numbers=1)
        yield f'<p class="quiet">{escape(str(latency.get("source", "")))}</p>'
    if rates:
        yield "<h2>Throughput</h2>"
        shown = {name: rates.get(key) for key, name in RATES.items()}
        rows = [(name, f"{show_rate(rate)} /s") for name, rate in shown.items() if rate is not None]
        yield table(("samples", "rate"), rows, numbers=1)
    yield from _power(result.get("power"), result.get("power_reason"))


_POWER = ("source", "covers", "from", "energy", "mean", "peak", "idle", "a query", "a sample")


def _power(power: Mapping[str, Any] | None, reason: str | None) -> Iterator[str]:
    yield "<h2>Power</h2>"
    if not power:
        yield f'<p class="quiet">Not measured: {escape(str(reason))}.</p>'
        return
    yield table(_POWER, [_reading(one) for one in power["readings"]], numbers=6)
    for one in power["missing"]:
        yield f'<p class="quiet">{escape(one["source"])}: no reading: {escape(one["reason"])}.</p>'
    about = f"{power['window']}, {show_ns(power['seconds'] * 1e9)}; {power['note']}"
    yield f'<p class="quiet">{escape(about)}.</p>'


def _reading(one: Mapping[str, Any]) -> list[str]:
    idle = one["idle_watts"]
    return [
        one["source"],
        one["domain"],
        one["provenance"],
        show_si(one["joules"], "J"),
        show_si(one["mean_watts"], "W"),
        show_si(one["peak_watts"], "W"),
        "-" if idle is None else show_si(idle, "W"),
        show_si(one["joules_per_query"], "J"),
        show_si(one["joules_per_sample"], "J"),
    ]


def _flat(content: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows = []
    for key, value in content.items():
        if isinstance(value, Mapping):
            rows += _flat(value, f"{prefix}{key} ")
        elif value not in (None, "", []):
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            rows.append((f"{prefix}{key}", f"{value:.6g}" if isinstance(value, float) else text))
    return rows
