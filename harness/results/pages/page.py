"""Writes pages with plots. A page is a single HTML file that works without a network.

Texts from outside the harness, such as plug-ins' names or frameworks' messages, are escaped. Home folders, user names
and host names are removed.
"""

import filecmp
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib.metadata import version
from importlib.util import find_spec
from itertools import dropwhile
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from harness.core.codes import CODES, Kind, without_markup
from harness.core.extras import how_to_install
from harness.core.files import atomic_file, write_text
from harness.core.shown.private import hide, own_command
from harness.core.units import counted
from harness.errors import ConfigError, PluginUnavailable
from harness.results.pages.tables import Table, shown_rows
from harness.results.pages.words import words
from harness.types import Array

POINTS = 600
"""A line contains at most this many points, because a screen cannot show more."""


_BEGIN = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">"""
"""First lines of a page. The harness recognises its pages by these lines."""


class Figure(NamedTuple):
    """A plot on a page. data, layout: input for plotly.js. about: one sentence below the title.

    height_rem: height of the plot in rem.
    """

    title: str
    about: str
    data: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any]
    height_rem: float = 22


class Html(str):
    """HTML that goes into a page unchanged. The caller must have escaped all text from outside the harness."""

    __slots__ = ()


class RunLink(NamedTuple):
    """A link to the page of a run in `browse`."""

    address: str
    """Already escaped for a URL."""
    path: str = ""
    """Path that a checkbox beside the link picks; '' without a checkbox."""


class Article(NamedTuple):
    """A section of a page. head, tail: HTML before and after the figures."""

    head: Sequence[str]
    figures: Sequence[Figure]
    tail: Sequence[str]


def write(articles: Sequence[Article], title: str, out: Path, *, script_in: Path | None) -> Path:
    """Writes the page atomically, and returns `out`. Overwrites an older page.

    script_in: folder to which plotly's script (4 MB) is copied once; None embeds the script in the page.
    Raises PluginUnavailable without plotly, and ConfigError if `out` is not a page or cannot be written.
    """
    source, name = plotly_script()
    try:
        _refuse_other_file(out)
        if script_in is None:
            loaded = f"<script>{source.read_text(encoding='utf-8')}</script>"
        else:
            copy = script_in / name
            # If other users can write to the folder, the file may be a link or a different script.
            if (
                copy.is_symlink()
                or not copy.exists()
                or not filecmp.cmp(copy, source, shallow=False)
            ):
                with atomic_file(copy) as temporary:
                    shutil.copyfile(source, temporary)
            there = os.path.relpath(copy.resolve(), out.parent.resolve())
            loaded = f'<script src="{quote(there)}"></script>'
        parts = _page(with_command(articles, own_command(out.stem)), title, loaded)
        write_text(
            out, "\n".join(part if part is loaded else typeset(hide(part)) for part in parts)
        )
    except OSError as e:
        raise ConfigError(f"{out} cannot be written: {e.strerror or e}") from None
    return out


_COMMAND = '<pre class="command">'


def command_html(command: str) -> str:
    """Returns a command as HTML, exactly as it was typed."""
    return f"{_COMMAND}{_OPTION.sub(_KEPT, escape(command))}</pre>"


_OPTION = re.compile(r"(?<= )--[a-z][a-z-]*")
_KEPT = r"<span>\g<0></span>"
"""The name of an option stays on one line, although a browser may break a line after each hyphen."""


def with_command(articles: Sequence[Article], command: str | None) -> Sequence[Article]:
    """Adds the command below the conclusion, unless the command is unknown or already there."""
    if not articles or command is None or command_html(command) in articles[0].head:
        return articles
    first, *others = articles
    head = [*first.head[:2], command_html(command), *first.head[2:]]
    return [first._replace(head=head), *others]


_UNIT = re.compile(
    r"(?<=\d) (?=(?:ns|us|ms|s|min|h|%|B|kB|MB|GB|[mk]?J|[mk]?W|(?:queries|samples)/s)\b|%)"
)


def typeset(html: str) -> str:
    """Keeps each number on the same line as its unit, writes out powers of ten (1.2e-07), inserts characters that
    terminals may lack, such as the micro sign, and leaves out arrows, which fonts may lack.

    Leaves the output of `command_html` unchanged. Inside scripts, changes only units.
    """
    if html.startswith(_COMMAND):
        return html
    if not html.startswith("<script"):
        html = _POWER.sub(_written_out, html)
        html = _RAISED_TO.sub(lambda found: f"10{found[1].translate(_RAISED)}", html)
        html = _ARROW.sub(lambda found: ">" if found[1] == ">" else " · ", html)
        html = html.replace(">+-<", ">±<")
    return _UNIT.sub("\u00a0", html).replace("\u00a0us", "\u00a0\u00b5s")


_ARROW = re.compile(r"(>|\s+)&lt;- (?=(?:taken|closest|keep|knee)\b)")
"""Matches the arrow of a mark in a table."""
_POWER = re.compile(r"(?<![\w.-])(\d(?:\.\d+)?)e([+-]\d\d)\b")
_RAISED_TO = re.compile(r"\b10\^(\d+)\b")
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_LARGEST_WRITTEN_OUT = 15


def _written_out(found: re.Match[str]) -> str:
    """Returns a number without the letter e: 1.2e+05 becomes 120,000, and 1.2e-07 becomes 1.2·10⁻⁷."""
    digits, power = found[1], int(found[2])
    if 0 <= power <= _LARGEST_WRITTEN_OUT:
        return f"{float(found[0]):,.0f}"
    return f"{digits}·10{str(power).translate(_RAISED)}"


def _refuse_other_file(out: Path) -> None:
    if out.is_file():
        with out.open("rb") as file:
            if file.read(len(_BEGIN)) != _BEGIN.encode():
                raise ConfigError(
                    f"{out} already exists and is not a page of the harness, so it will not be overwritten: name a different file"
                )


def plotly_script() -> tuple[Path, str]:
    """Returns the script's path, and a name for copies of the script. The name contains plotly's version, so that each
    page keeps using the version with which it was made.

    Does not import plotly, because importing takes longer than writing the page.
    """
    spec = find_spec("plotly")
    script = (
        Path(spec.origin).parent / "package_data/plotly.min.js" if spec and spec.origin else None
    )
    if script is None or not script.is_file():
        raise PluginUnavailable(
            f"a page with plots needs the module 'plotly': {how_to_install('report')}"
        )
    return script, f"plotly-{version('plotly')}.min.js"


def _page(articles: Sequence[Article], title: str, loaded: str) -> Iterator[str]:
    css, palette, javascript = (
        Path(__file__).with_name(name).read_text(encoding="utf-8")
        for name in ("page.css", "palette.js", "page.js")
    )
    yield _BEGIN
    yield f"<title>{escape(title)}</title>"
    yield f"<style>{css}</style></head><body><main>"
    figures: list[Figure] = []
    for article in articles:
        yield from article_html(article, len(figures))
        figures += article.figures
    yield "</main>"
    yield figures_html(figures)
    yield loaded
    yield f"<script>{palette}{javascript}</script>"
    yield "</body></html>\n"


def figures_html(figures: Sequence[Figure]) -> str:
    """Returns the data for all plots on a page. page.js draws the plots into the places that `article_html` reserves."""
    plots = [{"data": f.data, "layout": f.layout} for f in figures]
    # Each "<" is escaped, because "<" may end a script element, whatever text follows.
    data = json.dumps(plots, allow_nan=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="figures">{data}</script>'


_SECTION = re.compile(r'(?<!<summary>)<h2 id="([^"]+)">(.*?)</h2>')
"""Matches the heading of a section that is not folded."""

_FEWEST_LISTED = 6
"""A list of links appears above the plots if there are at least this many plots and sections."""


def article_html(article: Article, first_plot: int) -> Iterator[str]:
    """Yields the article's HTML. first_plot: number of plots on the page before the article."""
    yield "<article>"
    yield from article.head
    # The page of a run has links to all its sections in the head.
    if 'class="sections"' not in "".join(article.head):
        yield from _links(article, first_plot)
    yield '<div class="plots">'
    for i, (figure, wide) in enumerate(_with_widths(article.figures), first_plot):
        yield f'<section{wide}><h2 id="figure-{i}">{escape(figure.title)}</h2>'
        if figure.about:
            yield f'<p class="quiet">{escape(figure.about)}</p>'
        label = escape(f"{figure.title}: {figure.about}" if figure.about else figure.title)
        height = f'data-rem="{figure.height_rem:g}"'
        yield f'<div class="plot" id="plot-{i}" role="img" aria-label="{label}" {height}></div>'
        yield f'<details class="numbers" data-plot="{i}"><summary>The numbers of this plot</summary>'
        yield "</details></section>"
    yield "</div>"
    yield from article.tail
    yield "</article>"


def _links(article: Article, first_plot: int) -> Iterator[str]:
    """Yields links to the plots and the open sections of a long page. Of a plot and a table with one title, the plot is
    linked.
    """
    titles = (figure.title for figure in article.figures)
    keys = {escape(title): f"figure-{i}" for i, title in enumerate(titles, first_plot)}
    for key, title in _SECTION.findall("".join(article.tail)):
        keys.setdefault(title, key)
    if len(keys) >= _FEWEST_LISTED:
        links = "".join(f'<a href="#{key}">{title}</a>' for title, key in keys.items())
        yield f'<nav aria-label="Sections">{links}</nav>'


def _with_widths(figures: Sequence[Figure]) -> Iterator[tuple[Figure, str]]:
    """Yields each figure with the attribute for its width. Tall figures, and figures that would stand alone in a row of
    two, are as wide as the page.
    """
    is_wide = [one.height_rem > Figure._field_defaults["height_rem"] for one in figures]
    is_second = False
    for i, (figure, wide) in enumerate(zip(figures, is_wide, strict=True)):
        is_alone = not is_second and (i + 1 == len(figures) or is_wide[i + 1])
        is_second = not (wide or is_second)
        yield figure, ' class="wide"' if wide or (is_alone and len(figures) > 1) else ""


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: int = 0, cards: bool = False
) -> str:
    """Returns an HTML table; texts are escaped. numbers: how many of the last columns are right-aligned.

    cards: on a narrow screen, shows each row as a card, so that the last columns are visible without scrolling. Small
    tables stay tables.
    """
    words = len(heads) - numbers
    return aligned_table(heads, rows, [i >= words for i in range(len(heads))], cards=cards)


_MOST_SMALL, _MOST_TEXTS = 4, 2
"""A small table has at most this many columns, and at most this many columns of text."""


def aligned_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    is_number: Sequence[bool],
    *,
    cards: bool = False,
    sortable: bool = False,
) -> str:
    """Returns an HTML table in the style of `table`. is_number: whether each column is right-aligned.

    sortable: whether page.js makes each head a button that sorts the rows.
    """
    texts = len(heads) - sum(is_number)
    is_small = cards and len(heads) <= _MOST_SMALL and texts <= _MOST_TEXTS
    cards = cards and not is_small
    kinds = [' class="number"' if number else "" for number in is_number]
    top = "".join(
        f'<th scope="col"{kind}>{_html(head)}</th>' if head.strip() else "<td></td>"
        for kind, head in zip(kinds, heads, strict=True)
    )
    labels = [f' data-head="{escape(head)}"' if cards else "" for head in heads]
    lines = []
    for row in rows:
        columns = zip(kinds, labels, row, strict=True)
        cells = (f"<td{kind}{label}>{_html(cell)}</td>" for kind, label, cell in columns)
        lines.append(f"<tr>{''.join(cells)}</tr>")
    body = "".join(lines)
    # A table with two columns fits on any screen, and the cells of a small table may wrap.
    many = "many" if len(heads) > 2 and not is_small else ""
    names = ("cards" if cards else many, "sortable" if sortable else "")
    kind = f' class="{" ".join(filter(None, names))}"' if any(names) else ""
    made = f'<div class="scroll" tabindex="0"><table{kind}><tr>{top}</tr>{body}</table></div>'
    # The chips' explanations lie above the scrolling box, which would cut them off.
    return f'<div class="chips">{made}</div>' if '<span class="chip' in body else made


_DIGEST = re.compile(r"\b[0-9a-f]{32,}\b")
_SHOWN_DIGITS = 12


def groups_html(groups: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    """Returns groups of (setting, value) pairs as small tables side by side."""
    tables = []
    for head, pairs in groups.items():
        rows = "".join(
            f'<tr><th scope="row">{escape(name)}</th><td>{short_digests(text)}</td></tr>'
            for name, text in pairs
        )
        tables.append(f'<table class="machines"><caption>{escape(head)}</caption>{rows}</table>')
    return f'<div class="groups">{"".join(tables)}</div>'


def short_digests(text: str) -> Html:
    """Returns a text as HTML in which each digest is cut to its first digits, because a whole digest would fill a
    column. A pointer shows the whole digest.
    """
    return Html(_DIGEST.sub(_digest, escape(text)))


def _digest(found: re.Match[str]) -> str:
    return f'<span title="{found[0]}">{found[0][:_SHOWN_DIGITS]}…</span>'


_CODE = re.compile(r"`([^`]+)`")


def _html(text: str) -> str:
    """Returns an Html object unchanged, and escapes any other text. Words in backticks become code."""
    return text if isinstance(text, Html) else _CODE.sub(r"<code>\1</code>", escape(text))


def whole(text: str) -> Html:
    """Returns a text as HTML that stays in one line, such as a date, which would break at its hyphens."""
    return Html(f'<span class="whole">{escape(text)}</span>')


def with_meanings(text: str) -> Html:
    """Returns a text as HTML in which a verdict is a badge, and each code of a reason or doubt is a chip that shows
    its meaning.
    """
    return Html(" ".join(map(_chip, text.replace("doubts: ", "").split())))


_BADGES = {
    "VALID": "valid",
    "INVALID": "invalid",
    "DECIDED": "valid",
    "UNDECIDED": "doubted",
}
"""Maps a verdict to the class of its badge."""


DOUBTS_CHIP = '<span class="chip uncertain">doubts</span>'


def badge(word: str) -> str:
    """Returns a verdict as a badge, and the mark of doubts as a chip, as a run's number of doubts."""
    if word == "DOUBT":
        return DOUBTS_CHIP
    return f'<span class="badge {_BADGES[word]}">{word}</span>'


def _chip(word: str) -> str:
    if word == "DOUBT" or word in _BADGES:
        return badge(word)
    name = word.removesuffix(",")
    code = CODES.get(name)
    if code is None:
        return escape(word)
    kind = "bad" if code.kind == Kind.REASON else "uncertain"
    return chip(name, kind, without_markup(code.meaning)) + word[len(name) :]


def chip(text: str, kind: str, tip: str = "") -> Html:
    """Returns a label in a frame. kind: class of its colour. tip: text that appears on hover and focus."""
    shown = f'<span class="tip" role="tooltip">{escape(tip)}</span>' if tip else ""
    focus = ' tabindex="0"' if tip else ""
    return Html(f'<span class="chip {kind}"{focus}>{escape(text)}{shown}</span>')


def counted_codes(codes: Sequence[str], word: str, kind: str) -> Html:
    """Returns one chip for all codes, which explains each on hover and focus; '' without codes. word: `doubt` or `reason`.
    kind: as in `chip`.
    """
    if not codes:
        return Html("")
    tips = "<br>".join(f"<b>{escape(code)}</b>: {escape(_meaning(code))}" for code in codes)
    many = f"{word}{'s' if len(codes) != 1 else ''}"
    # A list may show only the number.
    return Html(
        f'<span class="chip {kind}" tabindex="0">{len(codes)}<span class="word"> {many}</span>'
        f'<span class="tip" role="tooltip">{tips}</span></span>'
    )


def _meaning(code: str) -> str:
    known = CODES.get(code)
    return without_markup(known.meaning) if known else "a code that this version does not know"


def facts(rows: Mapping[str, str] | Sequence[tuple[str, str]]) -> str:
    """Returns a definition list; texts are escaped. rows: labels and texts. A text without a label belongs to the label
    above it, and equal labels are shown once.
    """
    items, above = [], ""
    for label, text in rows.items() if isinstance(rows, Mapping) else rows:
        is_new = label not in ("", above)
        above = label or above
        head = f"<dt>{escape(label[:1].upper() + label[1:])}</dt>" if is_new else ""
        items.append(
            f"{head}<dd{_DOUBTS if above in _DOUBTED else ''}>{_html(_with_codes(above, text))}</dd>"
        )
    return f'<dl class="facts">{"".join(items)}</dl>'


_DOUBTS = ' class="doubts"'
"""HTML attribute that colours the text of each label in `_DOUBTED`."""

_DOUBTED = frozenset(("doubts", "doubt", "machine", "warning", "hole"))

_WITH_CODES = frozenset(("doubts", "doubt", "machine"))
"""Labels of texts that contain codes."""

_LABEL = re.compile(r" *(\S+(?: \S+)*?) {2,}(\S.*)")
"""Matches a line on the screen that consists of a label, at least two spaces, and a text."""

_INDENT = " " * 12
"""Start of a line on the screen that continues the text of the line above."""


def conclusion(lines: Iterable[str], first: str = "") -> Iterator[str]:
    """Yields the top of a study's page. One line becomes the headline; the remaining lines become definitions and
    paragraphs.

    lines: lines from the screen, most of them with a label. first: the headline's label; default: the first line's
    label.
    """
    rows = _rows(lines)
    top = next((row for row in rows if row[0] == first), rows[0] if rows else None)
    if top is None:
        return
    yield headline(top[1])
    yield from _listed([row for row in rows if row is not top])


def labelled(lines: Iterable[str]) -> Iterator[str]:
    """Yields lines from the screen as definitions and paragraphs. lines: most of them start with a label."""
    yield from _listed(_rows(lines))


def _rows(lines: Iterable[str]) -> list[tuple[str | None, str]]:
    """Returns labels and texts. The label is '' in a line that continues the line above, and None in a sentence."""
    rows: list[tuple[str | None, str]] = []
    for line in filter(None, lines):
        if found := _LABEL.fullmatch(line):
            rows.append((found[1], found[2]))
        else:
            rows.append(("" if line.startswith(_INDENT) else None, line.strip()))
    return rows


def _listed(rows: Sequence[tuple[str | None, str]]) -> Iterator[str]:
    defined: list[tuple[str, str]] = []
    for label, text in rows:
        if label == "doubt" and defined and defined[-1][0] == label:  # all doubts stand in one row
            defined[-1] = label, Html(f"{defined[-1][1]} · {_html(_with_codes(label, text))}")
        elif label is not None:
            defined.append((label, _with_codes(label, text)))
    if defined:
        yield facts(defined)
    yield from (f"<p>{_html(text)}</p>" for label, text in rows if label is None)


_GROUP = re.compile(r"\(([^()]*)\)")
"""Matches codes in parentheses."""


def _with_codes(label: str, text: str) -> str:
    """Returns a text in which the codes at the beginning of a doubt, or in parentheses, are chips. In other places, a word
    such as `idle` may be a code or not.
    """
    if isinstance(text, Html) or label not in _WITH_CODES:
        return text
    if label == "doubt":
        words = text.split(" ")
        rest = [*dropwhile(CODES.__contains__, words)]
        codes = words[: len(words) - len(rest)]
        return Html(" ".join([*map(_chip, codes), *map(escape, rest)]))
    parts = _GROUP.split(text)  # texts and groups in turns
    return Html(
        "".join(
            f"({with_meanings(part)})" if i % 2 else escape(part) for i, part in enumerate(parts)
        )
    )


_CLAUSE = re.compile(r"; (?![^(]*\))")
"""Matches a semicolon that is not between parentheses."""


_WORDS = frozenset(
    (
        "keep",
        "mean",
        "undecided",
        "no",
        "not",
        "only",
        "nothing",
        "none",
        "stopped",
        "better",
        "worse",
        "cold",
        "serving",
        "throughput",
        "so",
    )
)
"""First words that begin with a capital letter on a page. Other first words are names or numbers."""


def headline(text: str, kind: str = "") -> str:
    """Returns HTML for the sentence that answers the question of a page. kind: class of the sentence's colour.

    The first clause is the headline. The clauses after the first semicolon are a smaller line.
    """
    if text.split(" ", 1)[0].rstrip(":") in _WORDS:
        text = text[:1].upper() + text[1:]
    classes = f"headline {kind}".strip()
    found = _CLAUSE.search(text)
    if found is None:
        return f'<p class="{classes}">{escape(text)}</p>'
    rest = text[found.end() :]
    more = f'<p class="lead">{escape(rest[:1].upper() + rest[1:])}</p>'
    return f'<p class="{classes}">{escape(text[: found.start()])}</p>{more}'


_ASIDE = re.compile(r" \(([^()]*)\)")


def answer(text: str) -> Iterator[str]:
    """Yields HTML for a run's answer. The texts between parentheses become a smaller line below the answer."""
    yield f'<p class="headline">{escape(_ASIDE.sub("", text))}</p>'
    if asides := "; ".join(_ASIDE.findall(text)):
        yield f'<p class="lead quiet">{escape(asides[:1].upper() + asides[1:])}</p>'


LONG = 15
"""On a page with many tables, a table with more rows than this is collapsed at first."""

MOST_NOTES = 8
"""More notes than this below a table are collapsed at first."""

_OF_CODES = frozenset(("verdict", "doubts"))
"""Columns whose cells contain codes of reasons and doubts."""


def section(
    shown: Table,
    most_rows: int | None = None,
    more: str = "",
    named: Sequence[str] = (),
    *,
    folds: bool = False,
    is_folded: bool = False,
    runs: Sequence[RunLink] = (),
    cards: bool = False,
) -> Iterator[str]:
    """Yields a table with its title and notes.

    most_rows: largest number of rows. more: where to find the remaining rows. named: columns whose cells are names from
    code, such as ttft_p50. folds: shows only the title of a table with more than LONG rows until the reader opens it.
    is_folded: the same, whatever the number of rows. runs: run to which the first cell of each row leads; empty without links.
    cards: as in `table`.
    """
    title = shown.title[:1].upper() + shown.title[1:]
    head = f'<h2 id="{escape(shown.key)}">{escape(title)}</h2>'
    if not is_folded and (not folds or len(shown.rows) <= LONG):
        yield head
        yield from _table_and_notes(shown, most_rows, more, named, runs, cards=cards)
        return
    about = escape("; ".join(filter(None, (shown.about, counted(len(shown.rows), "row")))))
    yield f'<details class="long"><summary>{head} <span class="quiet">{about}</span></summary>'
    shown = shown._replace(about="")
    yield from _table_and_notes(shown, most_rows, more, named, runs, cards=cards)
    yield "</details>"


def _table_and_notes(
    shown: Table,
    most_rows: int | None,
    more: str,
    named: Sequence[str],
    runs: Sequence[RunLink],
    *,
    cards: bool,
) -> Iterator[str]:
    if shown.about:
        yield f'<p class="quiet">{escape(_sentence(shown.about))}</p>'
    rows = shown.rows if most_rows is None else shown.rows[:most_rows]
    if rows:
        heads = [words(column.name) for column in shown.columns]
        is_number = [bool(column.unit) for column in shown.columns]
        texts = {
            **dict.fromkeys(named, words),
            **dict.fromkeys(_OF_CODES, with_meanings),
            "outcome": _coloured,
        }
        made = [texts.get(column.name, str) for column in shown.columns]
        cells = [
            [make(cell) for make, cell in zip(made, row, strict=True)]
            for row in shown_rows(shown.columns, rows)
        ]
        for row, run in zip(cells, runs, strict=False):
            row[0] = _picked(row[0], run)
        yield aligned_table(heads, cells, is_number, cards=cards)
    if hidden := len(shown.rows) - len(rows):
        yield f'<p class="quiet">{hidden:,} more rows{escape(more and f": {more}")}</p>'
    notes = [f'<p class="quiet">{_html(note)}</p>' for note in shown.notes]
    if len(notes) > MOST_NOTES:
        about = f'<summary class="quiet">{len(notes)} notes</summary>'
        notes = [f'<details class="long notes">{about}', *notes, "</details>"]
    yield from notes


_OUTCOMES = {"passed": "good", "failed": "reason"}
"""Maps the outcome of a run to the class of its colour."""


def _coloured(outcome: str) -> Html:
    kind = _OUTCOMES.get(outcome)
    return Html(f'<span class="{kind}">{escape(outcome)}</span>' if kind else escape(outcome))


def _picked(text: str, run: RunLink) -> Html:
    link = anchor(text, run.address)
    if not run.path:
        return Html(link)
    box = (
        f'<input type="checkbox" form="compare" name="run" value="{escape(run.path)}" '
        f'aria-label="Pick run {escape(text)}">'
    )
    return Html(f'<span class="whole pick">{box} {link}</span>')


def _sentence(text: str) -> str:
    """Returns a text that begins with a capital letter, unless it begins with a name from code."""
    return text[:1].upper() + text[1:] if text.partition(" ")[0].rstrip(":,").isalpha() else text


def link(text: str, target: Path, page: Path) -> str:
    """Returns a link from the page to a file, or plain text if the file does not exist."""
    found = address(target, page)
    return text if found is None else anchor(text, found)


def address(target: Path, page: Path) -> str | None:
    """Returns a file's address on the page, escaped for a URL; None if the file does not exist."""
    if not target.is_file():
        return None
    return quote(os.path.relpath(target.resolve(), page.parent.resolve()))


def anchor(text: str, address: str) -> str:
    """Returns a link. address: already escaped for a URL."""
    return Html(f'<a href="{escape(address)}">{_html(text)}</a>')


def digits(values: Array) -> list[float]:
    """Rounds values to six digits. A screen cannot show more digits, and the file shrinks to a third."""
    return [float(f"{value:.6g}") for value in values.tolist()]


def thinned(x: Array, y: Array, most: int = POINTS) -> tuple[Array, Array]:
    """Returns at most `most` points in order, and keeps the lowest and highest point of each stretch. x, y: (n,)."""
    if len(x) <= most:
        return x, y
    stretches = np.array_split(np.arange(len(x)), most // 2)
    kept = [(s[y[s].argmin()], s[y[s].argmax()]) for s in stretches]
    chosen = np.unique(np.array(kept))
    return x[chosen], y[chosen]
