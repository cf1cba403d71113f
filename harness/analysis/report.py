"""`report`: one page for a person, of one finished run or several, made from their files.

Every text of a run (names of plug-ins, messages of frameworks) is escaped: it is anybody's.
"""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from harness import records, results
from harness.analysis.finished import PERCENTILES, FinishedRun, read
from harness.analysis.report_figures import Figure, figures
from harness.errors import ConfigError, PluginUnavailable
from harness.units import show_ns, show_rate

PAGE = "report.html"
SCRIPT = "plotly.min.js"


class _Section(NamedTuple):
    run: FinishedRun
    figures: Sequence[Figure]


def write(folders: Sequence[Path], out: Path | None, *, standalone: bool) -> Path:
    """The page's path; beside it lies plotly's script, unless the page holds it (4 MB).

    out: default report.html in the one run's folder. A page that is there is replaced.
    """
    if out is None:
        if len(folders) > 1:
            raise ConfigError("a report of several runs lies in none of them: pass --out FILE")
        out = folders[0] / PAGE
    script = _plotly()
    page = _page([_section(folder) for folder in folders], script if standalone else None)
    try:
        out.write_text(page, encoding="utf-8")
        if not standalone:
            out.with_name(SCRIPT).write_text(script, encoding="utf-8")
    except OSError as e:
        raise ConfigError(f"{out} cannot be written: {e.strerror}: pass --out FILE") from None
    return out


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise PluginUnavailable(
            "a report needs the module 'plotly': pip install 'mlperf-harness[report]'"
        ) from None
    return str(get_plotlyjs())


def _section(folder: Path) -> _Section:
    run = read(folder)
    evidence = records.read(folder / "performance" / "run_1", "")
    return _Section(run, list(figures(evidence)) if evidence else [])


def _page(sections: Sequence[_Section], script: str | None) -> str:
    css, javascript = (
        Path(__file__).with_name(name).read_text(encoding="utf-8")
        for name in ("report_page.css", "report_page.js")
    )
    articles: list[str] = []
    plots: list[Mapping[str, Any]] = []
    for section in sections:
        articles.append("\n".join(_article(section, len(plots))))
        plots += [{"data": f.data, "layout": f.layout} for f in section.figures]
    # "<" ends a script element, whatever kind of text it stands in
    data = json.dumps(plots).replace("<", "\\u003c")
    loaded = f"<script>{script}</script>" if script else f'<script src="{SCRIPT}"></script>'
    title = ", ".join(section.run.name for section in sections)
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<link rel="icon" href="data:,">',
            f"<title>{escape(title)}</title>",
            f"<style>{css}</style></head><body>",
            *articles,
            f'<script type="application/json" id="figures">{data}</script>',
            loaded,
            f"<script>{javascript}</script>",
            "</body></html>\n",
        ]
    )


def _article(section: _Section, first_plot: int) -> Iterator[str]:
    run, result = section.run, section.run.result
    yield "<article>"
    yield from _top(run)
    if result["latency_ns"]:
        yield "<h2>Latency</h2>"
        yield _table(
            ("percentile", "latency"),
            [(n, show_ns(result["latency_ns"][n])) for n in _known(result["latency_ns"])],
        )
        yield f'<p class="quiet">{escape(str(result["latency_ns"].get("source", "")))}</p>'
    yield '<div class="plots">'
    for i, figure in enumerate(section.figures, first_plot):
        yield f"<section><h2>{escape(figure.title)}</h2>"
        yield f'<p class="quiet">{escape(figure.about)}</p>'
        yield f'<div class="plot" id="plot-{i}"></div></section>'
    yield "</div>"
    yield "<h2>Settings</h2>"
    yield _table(("setting", "value"), _flat(run.config))
    yield "<h2>Machine</h2>"
    yield _table(("what", "value"), _flat(run.environment))
    yield "<h2>Run it again</h2>"
    path = shlex.quote(str(run.folder / results.CONFIG))
    yield f"<pre>{escape(f'python -m harness --config {path}')}</pre>"
    yield "</article>"


def _known(latency: Mapping[str, Any]) -> list[str]:
    return [n for n in ("min", "mean", *PERCENTILES, "max") if latency.get(n) is not None]


def _top(run: FinishedRun) -> Iterator[str]:
    """Verdict and why, doubts, headline, accuracy."""
    result = run.result
    verdict = str(result["verdict"])
    kind = "valid" if verdict == "VALID" else "invalid"
    words = [result["scenario"], result["backend"], result["model"], result["dataset"]]
    about = escape(" · ".join(map(str, words)))
    yield f'<h1><span class="badge {kind}">{escape(verdict)}</span> {about}</h1>'
    yield f'<p class="quiet">{escape(run.name)}, begun {escape(str(result.get("started")))}</p>'
    told = {
        "valid": "The run followed its rules: nothing speaks against its numbers",
        "invalid": "These numbers must not be quoted",
    }[kind]
    but = ", but look into the doubts first" if result["doubts"] and kind == "valid" else ""
    yield f"<p>{told}{but}.</p>"
    for name, label in (("reasons", "reason"), ("doubts", "doubt")):
        if result[name]:
            items = (f"<b>{escape(r['code'])}</b>: {escape(r['text'])}" for r in result[name])
            yield f'<ul class="{label}">{"".join(f"<li>{item}</li>" for item in items)}</ul>'
    notes = result.get("not_for_submission") or []
    yield from (f'<p class="quiet">Not for submission: {escape(str(n))}.</p>' for n in notes)
    headline = result.get("headline")
    if headline:
        yield f'<p class="headline">{escape(_quantity(headline))}</p>'
        yield f'<p class="quiet">{escape(headline["name"])}</p>'
    yield f"<p>{escape(_accuracy(result['accuracy']))}</p>"


def _quantity(quantity: Mapping[str, Any]) -> str:
    if quantity["unit"] == "ns":
        return show_ns(quantity["value"])
    return f"{show_rate(quantity['value'])} {quantity['unit']}"


def _accuracy(accuracy: Mapping[str, Any] | None) -> str:
    if not accuracy or accuracy["value"] is None:
        return f"Accuracy: not measured, {(accuracy or {}).get('reason', 'no run')}."
    target = accuracy.get("target")
    wanted = f", wanted {target:g} {accuracy['unit']}" if target is not None else ""
    return (
        f"Accuracy: {accuracy['metric']} {accuracy['value']:.4g} {accuracy['unit']}{wanted}, "
        f"of {accuracy['samples']:,} samples."
    )


def _flat(content: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows = []
    for key, value in content.items():
        if isinstance(value, Mapping):
            rows += _flat(value, f"{prefix}{key} ")
        elif value not in (None, "", []):
            told = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            rows.append((f"{prefix}{key}", told))
    return rows


def _table(heads: Sequence[str], rows: Sequence[tuple[str, str]]) -> str:
    top = "".join(f"<th>{escape(head)}</th>" for head in heads)
    kind = ' class="number"' if heads[-1] == "latency" else ""
    body = "".join(
        f"<tr><td>{escape(name)}</td><td{kind}>{escape(value)}</td></tr>" for name, value in rows
    )
    return f'<div class="scroll"><table><tr>{top}</tr>{body}</table></div>'
