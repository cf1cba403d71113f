"""Prints the cost of serving: the headline, the parts, the throughput that remains, and the doubts."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.core.units import counted, show_ns, show_percent, show_rate
from harness.results.pages.tables import Cell, Table, aligned, columns
from harness.run.study import doubt_lines, machine_text
from harness.search.overhead.content import (
    AnswersEntry,
    Content,
    MeanEntry,
    OverheadEntry,
    ThroughputEntry,
)
from harness.search.overhead.parts import FLOOR, LEAST_EXPLAINED, SEND_AND_NETWORK, Mean, Overhead

MOST_PAIRS = 100
"""More pairs than this are never recommended."""


def plain(found: Overhead) -> OverheadEntry:
    """Returns `overhead` of overhead.json."""
    return {
        **_plain(found.overhead),
        "of_model": found.of_model,
        "explained": found.explained,
        "in_process": _plain(found.in_process),
        "served": _plain(found.served),
        "parts": {name: _plain(part) for name, part in found.parts.items()},
    }


def _plain(mean: Mean) -> MeanEntry:
    return {"mean_ns": mean.mean_ns, "low_ns": mean.low_ns, "high_ns": mean.high_ns}


def lines(content: Content, folder: Path) -> Iterator[str]:
    yield headline(content)
    yield f"  {content['model']}: {sides(content)}"
    for table in tables(content):
        yield ""
        yield from aligned(table.columns, table.rows)
        yield ""
    yield from facts(content)
    yield f"{'results':<12}{folder}"


def sides(content: Content) -> str:
    served, here = content["config"]["served"], content["config"]["in_process"]
    return f"{served['backend']} at {', '.join(served['url'])} against {here['backend']} in process"


def tables(content: Content) -> Iterator[Table]:
    """Yields the table with the medians and the parts; yields nothing if no overhead is reported."""
    found = content["overhead"]
    if found is not None:
        level = show_percent(content["level"])
        heads = columns(f"median of a query | mean of pairs [ns] | {level} interval [ns]")
        yield Table("parts", "Parts", "", heads, list(_rows(found)))


def facts(content: Content) -> Iterator[str]:
    """Yields labelled lines about the parts, the throughput, the answers, the two sides and the machine."""
    if content["overhead"] is not None:
        yield from _explained(content["overhead"], content["server_times"])
    yield from _throughput(content["throughput"])
    yield from _answers(content["answers"])
    yield from _differences(content["described"])
    if text := machine_text(content["runs"]):
        yield f"{'machine':<12}{text}: stop other programs and measure again"
    yield from doubt_lines(content["runs"], f"{'doubt':<12}")


def headline(content: Content) -> str:
    """States the overhead with its interval, or the reason why it is missing."""
    found = content["overhead"]
    if found is None:
        return f"serving overhead not measured: {content['withheld']}"
    interval = f"{show_percent(content['level'])}: {_interval(found)}"
    low_ns, high_ns = found["low_ns"], found["high_ns"]
    if low_ns is not None and high_ns is not None and low_ns <= 0 <= high_ns:
        text = (
            f"serving overhead not distinguishable from 0 ({interval}): "
            f"{_more_pairs(found['mean_ns'], high_ns - low_ns, len(content['pairs']))}"
        )
    else:
        text = (
            f"serving overhead {_signed(found['mean_ns'])} per query ({interval}), "
            f"{found['of_model']:.1f} x the model"
        )
    kept = content["throughput"]["kept"] if content["throughput"] else None
    return (
        text if kept is None else f"{text}; the server keeps {show_percent(kept)} of the throughput"
    )


def _more_pairs(mean_ns: float, width_ns: float, pairs: int) -> str:
    """Estimates how many more pairs would separate the mean from 0. width_ns: width of the interval over the pairs.

    The interval shrinks with the square root of the number of pairs.
    """
    needed = math.ceil(pairs * (width_ns / 2 / max(abs(mean_ns), 1.0)) ** 2)
    if needed > MOST_PAIRS:
        return "this machine's noise hides an overhead of this size"
    more = max(1, needed - pairs)
    return f"about {counted(more, 'more pair')} would separate {_signed(mean_ns)} from 0"


def _signed(ns: float) -> str:
    return f"{'+' if ns >= 0 else ''}{show_ns(ns)}"


def _interval(mean: MeanEntry) -> str:
    low, high = mean["low_ns"], mean["high_ns"]
    return "-" if low is None or high is None else f"{show_ns(low)} to {show_ns(high)}"


def _rows(found: OverheadEntry) -> Iterator[list[Cell]]:
    for name, mean in (
        ("in process", found["in_process"]),
        ("served", found["served"]),
        ("overhead", found),
    ):
        yield [name, mean["mean_ns"], _interval(mean)]
    for name, part in found["parts"].items():
        shown = "floor of the client, subtracted" if name == FLOOR else name
        yield [f"  {shown}", part["mean_ns"], _interval(part)]


def _explained(found: OverheadEntry, source: str | None) -> Iterator[str]:
    """Yields lines about the parts. source: of the server's times; None if the server does not report them."""
    share = found["explained"]
    yield f"{'explained':<12}{show_percent(share, 1)} of the overhead by its parts"
    if share < LEAST_EXPLAINED:
        yield (
            f"{'doubt':<12}the parts explain less than {show_percent(LEAST_EXPLAINED)}: medians of parts do "
            "not add up if the runs are uneven; pass a longer --duration"
        )
    if source is None:
        yield f"{'parts':<12}the server does not report its times: `remote` is one part"
    else:
        what = "medians of its header" if source == "Server-Timing" else "means from its"
        yield f"{'parts':<12}the server's times are {what} {source}"
    if SEND_AND_NETWORK in found["parts"]:
        yield (
            f"{'':<12}the server answered before the client recorded the send time, so send and network are one part"
        )


def _throughput(told: ThroughputEntry | None) -> Iterator[str]:
    if told is None:
        return
    rates = [told["served_per_s"], told["in_process_per_s"]]
    served, here = ("-" if rate is None else show_rate(rate) for rate in rates)
    yield (
        f"{'throughput':<12}{served} samples/s served, {here} in process: Offline, "
        f"{counted(told['max_batch'], 'sample')} per batch, one instance in process"
    )
    if told["no_kept"]:
        yield f"{'':<12}not compared: {told['no_kept']}"


def _answers(told: AnswersEntry | None) -> Iterator[str]:
    if told is not None:
        yield (
            f"{'answers':<12}{told['identical']:,} of {told['samples']:,} identical, "
            f"{show_percent(told['alike'], 1)} equal"
        )


def _differences(described: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yields the facts in which the two sides' descriptions differ."""
    here, there = described.get("in-process") or {}, described.get("served") or {}
    for key in here:
        ours, theirs = (_stated(one.get(key)) for one in (here, there))
        if ours != theirs:
            yield f"{'differs':<12}{key}: in process {ours}, on the server {theirs}"


def _stated(value: Any) -> str:
    """Returns the value as text. The value may be missing, because some protocols have no field for it."""
    return "not stated" if value in (None, "", "unknown") else str(value)
