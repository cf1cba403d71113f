"""Reads rows of the database of runs: the load, the numbers and the name of each run."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from harness.core.units import NS_PER_MS, show_ns, show_rate, show_si
from harness.errors import HarnessError
from harness.loadgen.scenario import scenario_named
from harness.results import database, run_folder
from harness.results.numbers import Number, deciding_number
from harness.results.numbers import numbers as numbers_of
from harness.results.pages.page import Html, address, anchor, whole
from harness.results.pages.words import words

Row = Mapping[str, Any]

ESTIMATE = "early-stopping estimate"
"""Name of the headline of a stream scenario."""


UNKNOWN = "unknown rate"
"""Text for a load that the database does not have, such as a number of streams."""


def load_text(row: Row) -> str:
    """Returns the load that groups runs; '' if the user set no load. Runs with different loads cannot be ranked.

    A rate has two digits, because calibrated rates differ a little from run to run.
    """
    scenario = scenario_named(row["scenario"])
    if row["peak"] is not None:
        return f"peak at {row['slo']}"
    if row["concurrency"] is not None:
        return f"{row['concurrency']} in flight"
    if row["arrivals_sha256"] is not None:
        return f"arrivals {str(row['arrivals_sha256'])[:8]}"
    if scenario.scheduled:
        rate = row["asked_per_s"]
        known = isinstance(rate, int | float) and math.isfinite(rate)
        return f"{show_rate(float(f'{rate:.2g}'))}{_PER_S}" if known else UNKNOWN
    return f"{row['samples_per_query']} samples per query" if scenario.by_query else ""


def exact_load(rows: Sequence[Row]) -> str:
    """Returns the load of runs that `load_text` does not distinguish, with their exact rates."""
    text = load_text(rows[0])
    if not text.endswith(_PER_S):
        return text
    rates = [row["asked_per_s"] for row in rows]
    return " to ".join(dict.fromkeys(map(show_rate, (min(rates), max(rates))))) + _PER_S


_PER_S = " queries/s"


def numbers(row: Row) -> dict[str, Number]:
    """Returns the numbers that the run measured, without numbers that the user set.

    Omits the rate if queries came on a schedule, and omits Offline's latency, which only reflects how many samples were
    issued. Shows the load that a search found instead of the latency, because this latency is just below the bound.
    """
    scenario, is_peak = scenario_named(row["scenario"]), row["peak"] is not None
    axis = scenario.search_axis if row["concurrency"] is None else None
    is_paced = scenario.scheduled and row["concurrency"] is None
    was_set = {"samples/s", "ns"} if is_peak else {"samples/s"} if is_paced else set()
    peak = Number(row["peak"], axis.unit if axis else "in flight", higher_is_better=True)
    found: dict[str, Any] = {"peak": peak, **numbers_of(database.content_of(row))}
    shown = {"accuracy": f"accuracy.{row['metric']}", "headline": ESTIMATE}
    return {
        shown.get(name, name): _in_ms(number)
        for name, number in found.items()
        if number.unit not in was_set
        if isinstance(number.value, int | float) and math.isfinite(number.value)
    }


def _in_ms(number: Number) -> Number:
    is_time = number.unit == "ns"
    return number._replace(value=number.value / NS_PER_MS, unit="ms") if is_time else number


Addresses = Callable[[Row], str | None]
"""Maps a run in the database to the address of the run's page, escaped for a URL; None if the page does not exist."""


def reports_in(results: Path, page: Path) -> Addresses:
    """Returns a function that finds a run's report.html from `page`."""
    return lambda row: address(results / row["folder"] / "report.html", page)


def linked(row: Row, addresses: Addresses) -> str:
    """Returns the name of a run, with a link to the run's page if the page exists. A date does not break at its hyphens."""
    found = addresses(row)
    name = Html(_DATE.sub(lambda date: whole(date[0]), escape(named(row))))
    return name if found is None else anchor(name, found)


_DATE = re.compile(r"^\d{4}-\d\d-\d\d(?= )")


def all_linked(rows: Sequence[Row], addresses: Addresses) -> Html:
    """Returns the links to runs, which are folded if there are several."""
    links = [linked(row, addresses) for row in rows]
    shown_links = [link if isinstance(link, Html) else escape(link) for link in links]
    if len(links) == 1:
        return Html(shown_links[0])
    return Html(
        f'<data value="{len(links)}"></data><details><summary>{len(links)} runs</summary>'
        f"{'<br>'.join(shown_links)}</details>"
    )


def named(row: Row) -> str:
    """Returns the recorded start of a run if its folder begins with a time, followed by the run's path in its study, if
    it belongs to one; otherwise returns the folder.

    A folder that a user named may begin with a different time than the start.
    """
    folder = str(row["folder"])
    first, _, rest = folder.partition("/")
    if not run_folder.TIMED.fullmatch(first):
        return folder
    return f"{str(row['started'])[:19].replace('T', ' ')} {rest}".rstrip()


def run_name(folder: str) -> str:
    """Returns the start of the run if the folder is named after the start: '2026-11-28 15:26:40'; otherwise returns the
    folder.
    """
    found = run_folder.TIMED.fullmatch(folder)
    return f"{found[1]} {found[2]}:{found[3]}:{found[4]}" if found else folder


def main_number(row: Row) -> tuple[str, Number] | None:
    """Returns the name and value of the number that answers the scenario's question; None if the run lacks this number."""
    known = numbers(row)
    try:
        deciding = deciding_number(database.content_of(row), known)
    except HarnessError:  # this version cannot read the SLO
        deciding = ""
    names = ("peak", deciding, ESTIMATE, *known)
    return next(((name, known[name]) for name in names if name in known), None)


def main_text(row: Row) -> str:
    found = main_number(row)
    return f"{words(found[0])} {shown(found[1])}" if found is not None else "-"


def shown(number: Number | None) -> str:
    """Formats a number with its unit, as on the screen of a run; `-` for None."""
    if number is None:
        return "-"
    value, unit = number.value, number.unit
    if unit == "ms":
        return show_ns(value * NS_PER_MS)
    if unit == "J":
        return show_si(value, "J")
    if number.kind == "exact":
        return f"{value:.2f} %" if unit == "%" else f"{value:.4g} {unit}".rstrip()
    return f"{show_rate(value)} {unit}".rstrip()
