"""Writes the page that compares finished runs. The page shows one verdict, plots of both runs, and every change.

`compare` judges the runs; this page only shows the judgement.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from harness.core.shown.escapes import visible
from harness.core.shown.private import hide
from harness.core.units import counted
from harness.errors import ConfigError
from harness.results.answer import answer_of, answer_rows
from harness.results.compare import change_text, report
from harness.results.compare.compare import (
    BETTER,
    UNDECIDED,
    WORSE,
    Change,
    Comparison,
    compare,
)
from harness.results.compare.finished import FinishedRun, sides_of
from harness.results.compare.interval_bar import Scale
from harness.results.pages import page
from harness.results.pages.figures import distributions, stage_means, token_distributions
from harness.results.pages.heading import Badges, is_doubted, workload
from harness.results.pages.page import Article, Figure, Html
from harness.results.pages.timeline import p99_over_time
from harness.results.pages.words import letter_of, words
from harness.results.run_files import read_files, reading_run
from harness.results.seal.digests import PAGE


def write(sides: Sequence[str], out: Path, *, standalone: bool) -> Path:
    """Writes the page, and returns its path. sides: at least two, in the form that `compare` accepts. Compares each
    further side with the first. standalone: embeds plotly's script instead of writing it next to the page.
    """
    first, *others = sides_of(sides)
    if not others:
        raise ConfigError("a comparison needs two sides: name a second run")
    with reading_run(", ".join(sides)):
        articles = [
            _article(compare(first, other), letter_of(number), out)
            for number, other in enumerate(others, start=1)
        ]
    names = " and ".join(one[0].name for one in (first, *others))
    return page.write(articles, names, out, script_in=None if standalone else out.parent)


def _article(comparison: Comparison, other: str, out: Path) -> Article:
    sides = {"A": comparison.before, other: comparison.after}
    named = {f"{letter}: {runs[0].name}": runs[0] for letter, runs in sides.items()}
    return Article(
        [*_head(comparison, sides, out, other), *_changes(comparison, other)],
        list(figures({name: run.folder for name, run in named.items()})),
        list(_tail(comparison, other)),
    )


def _head(
    comparison: Comparison, sides: dict[str, Sequence[FinishedRun]], out: Path, other: str
) -> Iterator[str]:
    names = " and ".join(escape(runs[0].name) for runs in sides.values())
    yield f"<h1>Comparison of {names}</h1>"
    yield page.headline(report.verdict(comparison, other))
    yield why(comparison)
    yield '<div class="beside">'
    for letter, runs in sides.items():
        yield f"<section>{''.join(_card(letter, run, out) for run in runs)}</section>"
    yield "</div>"
    yield reasons(comparison, other)


def reasons(comparison: Comparison, other: str) -> str:
    """Returns the reasons against a ranking as a table; "" if the sides are ranked. other: letter of the second side."""
    rows = report.reason_rows(comparison)
    if not rows:
        return ""
    shown = 4 if any(remedy for *_, remedy in rows) else 3
    heads = ("not comparable", "A", other, "remedy")[:shown]
    return page.table(heads, _visible(row[:shown] for row in rows), cards=True)


def differences(comparison: Comparison, other: str) -> str:
    """Returns the differences that are not reasons against a ranking as a table, which is collapsed if there are such
    reasons; "" without differences.
    """
    rows = report.difference_rows(comparison)
    if not rows:
        return ""
    what = "other difference" if comparison.refusals else "difference"
    made = page.table(("setting", "A", other), _visible(rows), cards=True)
    is_open = "" if comparison.refusals else " open"
    title = f"{counted(len(rows), what)} in settings"
    return f"<details{is_open}><summary>{title}</summary>{made}</details>"


def _visible(rows: Iterable[Sequence[str]]) -> Iterator[Sequence[str]]:
    """Yields rows whose control characters are escapes, because the values come from files."""
    return ([visible(hide(cell)) for cell in row] for row in rows)


def _card(letter: str, run: FinishedRun, out: Path) -> str:
    """Returns one run's answer, with a link to the run's page."""
    answer = answer_of(run.result)
    name = page.link(run.name, run.folder / PAGE, out)
    about = " · ".join(workload(run.result))
    facts = page.facts({"answer": answer.headline, **answer_rows(run.result)})
    judged = Badges(answer.verdict, is_doubted([run.result]))
    badges = " ".join(map(page.badge, judged.words))
    shown = name if isinstance(name, Html) else escape(name)
    return f'<h2>{letter}: {shown} {badges}</h2><p class="quiet">{escape(about)}</p>{facts}'


def _changes(comparison: Comparison, other: str) -> Iterator[str]:
    """Yields a table with the numbers that readers look for, then a collapsed table with all other numbers."""
    first, others = change_text.parted(comparison)
    yield "<h2>Changes</h2>"
    yield _table(first, other)
    if others:
        yield f"<details><summary>{escape(change_text.folded([(other, one) for one in others]))}</summary>"
        yield _table(others, other)
        yield "</details>"


def _table(changes: Sequence[Change], other: str) -> str:
    rows, scale = [], Scale(changes)
    for change in changes:
        *cells, _ = change_text.row_in_words(change)
        rows.append((*cells, bar(change, scale), verdict_chip(change)))
    *columns, verdicts = change_text.columns(other)
    heads = [*(column.name for column in columns), Html(scale.axis), verdicts.name]
    is_number = [*(bool(column.unit) for column in columns), False, False]
    # Without a ranking, all verdicts would be the same words.
    shown = len(heads) if any(change.verdict is not None for change in changes) else -1
    return page.aligned_table(heads[:shown], [row[:shown] for row in rows], is_number[:shown])


_KINDS = {BETTER: "better", WORSE: "worse", UNDECIDED: "uncertain"}
"""Maps a verdict to the CSS class that colours it."""


def bar(change: Change, scale: Scale) -> Html:
    """Returns the image of a change in the colour of its verdict, or in the colour of the text if the change has no
    verdict.
    """
    *_, verdict = change_text.row(change)  # a number that the schedule sets has no verdict
    kind = {**_KINDS, UNDECIDED: "doubt"}.get(verdict, "")
    return Html(f'<span class="{kind}">{scale.image(change)}</span>')


def verdict_chip(change: Change) -> Html:
    """Returns the verdict as a chip, which shows the reason on hover and focus. A verdict that the interval seems to
    contradict has its reason in the text.
    """
    *_, verdict = change_text.row(change)
    text, kind = verdict, _KINDS.get(verdict, "quiet")
    has_interval = change.low is not None and change.high is not None
    if verdict == UNDECIDED and not has_interval:
        text += ": no interval"
    elif verdict == UNDECIDED and (change.low or 0.0) * (change.high or 0.0) > 0:
        text += ": noise unknown" if math.isinf(change.noise) else ": within the noise"
    return page.chip(text, kind, change_text.why(change))


def why(comparison: Comparison) -> str:
    """Returns the reason for the main number's verdict as HTML; "" if the sides are not ranked."""
    if comparison.verdict is None or comparison.headline is None:
        return ""
    text = f"{words(comparison.headline.name)}: {change_text.why(comparison.headline)}"
    if math.isinf(comparison.headline.noise):
        text += f" Noise {comparison.noise.source}."
    return f'<p class="quiet">{escape(text)}</p>'


def figures(folders: Mapping[str, Path]) -> Iterator[Figure]:
    """Yields the plots that show several runs; nothing if a run's samples are missing. The plots of several comparisons
    on a page have equal axes. folders: each run's folder by its name in the legend.
    """
    runs = {}
    for name, folder in folders.items():
        run = read_files(folder).performance
        if run is not None and run.done:
            runs[name] = run
    if len(runs) == len(folders):
        drawn = (*token_distributions(runs), *distributions(runs), p99_over_time(runs))
        for one in (*drawn, stage_means(runs)):
            yield one._replace(layout={**one.layout, "meta": {"equal": one.title}})


def _tail(comparison: Comparison, other: str) -> Iterator[str]:
    yield "<h2>What differs, and what is noise</h2>"
    yield page.table(("about", "text"), report.facts(comparison, other))
    yield differences(comparison, other)
