"""Lays out a page with one article per group of runs, below a table of all groups."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import compress
from typing import Any, NamedTuple, TypeVar

from harness.core.units import counted
from harness.results.pages.page import Article, anchor, table, with_meanings
from harness.results.pages.runs.rows import Addresses, Row, all_linked, main_text

MOST = 12
"""Largest number of groups drawn on a page, because each group has several plots."""

T = TypeVar("T")


class Overview(NamedTuple):
    """The top of a page of articles, and the texts around them."""

    heading: str
    introduction: str
    """HTML below the heading."""
    reading: str
    """Explains the plots, as text. Shown only if the page has plots."""
    heads: Sequence[str]
    """Heads of the table of groups. The first head is the heading of the groups."""
    summary: Callable[[Sequence[Any]], Sequence[str]]
    """Returns a group's cells for the heads after the first."""
    title: Callable[[tuple[str, ...], Sequence[Any]], str]
    """Returns a group's heading, as text."""
    row: Callable[[Any], Row]
    """Returns a member's row in the database."""
    single: str
    """Name of a group."""
    unit: str
    """Name of the thing that a group must have two of, such as run; other groups are a list without plots."""
    count: Callable[[Sequence[Any]], int]
    """Returns the number of these units in a group."""
    has_verdicts: bool = True
    """Whether the list of the other groups has a column of verdicts; not if all runs are VALID."""


OPTIONS = "choose with --model, --backend, --scenario, --host or --since"
"""Remedy for a page on which groups are missing, for users of the command line."""


def first_articles(
    groups: Mapping[tuple[str, ...], list[T]],
    page: Overview,
    article: Callable[[tuple[str, ...], list[T]], Article],
    addresses: Addresses,
    choice: str,
) -> list[Article]:
    """Returns an article for each of the first MOST groups with several runs, after an overview of the groups.

    groups: members by key; each key ends with the machine. A page with a single group has no overview. choice: remedy
    if the page lacks groups.
    """
    if len(groups) == 1:
        ((key, members),) = groups.items()
        only = article(key, members)
        return [only._replace(head=[*_top(page, [only]), *only.head])]
    names = [page.title(key, members) for key, members in groups.items()]
    titles = {
        key: name if names.count(name) == 1 else f"{name} · {key[-1]}"
        for name, key in zip(names, groups, strict=True)
    }
    several = [key for key, members in groups.items() if page.count(members) > 1]
    drawable = frozenset(several)
    drawn = {f"workload-{i}": key for i, key in enumerate(several[:MOST])}
    articles = []
    for name, key in drawn.items():
        one = article(key, groups[key])
        articles.append(one._replace(head=[f'<div id="{name}">{one.head[0]}</div>', *one.head[1:]]))
    head = _top(page, articles)
    if drawn:
        rows = [
            (anchor(titles[key], f"#{name}"), *page.summary(groups[key]))
            for name, key in drawn.items()
        ]
        is_used = [any(cells) for cells in zip(*rows, strict=True)]
        head.append(
            table(
                [*compress(page.heads, is_used)],
                [[*compress(r, is_used)] for r in rows],
                cards=True,
            )
        )
    single = {titles[key]: members for key, members in groups.items() if key not in drawable}
    if single and not several:
        head.append(f"<p>Nothing to compare yet: no {page.single} has two {page.unit}s.</p>")
    head += _single(page, single, addresses)
    if len(several) > MOST:
        missing = counted(len(several) - MOST, f"more {page.single}")
        are = "is" if len(several) - MOST == 1 else "are"
        head.append(f"<p>{missing} {are} not shown: {choice}.</p>")
    return [Article(head, [], []), *articles] if groups else []


def _top(page: Overview, articles: Sequence[Article]) -> list[str]:
    """Returns the heading of the page and its folded explanation, also of the plots if an article has any."""
    has_plots = any(article.figures for article in articles)
    reading = f'<p class="quiet">{page.reading}</p>' if has_plots else ""
    folded = (
        f"<details><summary>How to read this page</summary>{page.introduction}{reading}</details>"
    )
    return [f"<h1>{page.heading}</h1>", folded]


def _single(
    page: Overview, found: Mapping[str, Sequence[Any]], addresses: Addresses
) -> Iterator[str]:
    """Yields a folded list of the groups with a single unit. found: their members by heading."""
    if not found:
        return
    yield f"<details><summary>{counted(len(found), page.single)} with a single {page.unit}</summary>"
    rows = []
    for title, members in found.items():
        own = [page.row(member) for member in members]
        newest = main_text(own[0]) + (" in the newest" if len(own) > 1 else "")
        verdict = [with_meanings(own[0]["verdict"])] if page.has_verdicts else []
        rows.append((title, all_linked(own, addresses), *verdict, newest))
    heads = (page.single, "run", *(["verdict"] if page.has_verdicts else []), "result")
    yield table(heads, rows, cards=True)
    yield "</details>"
