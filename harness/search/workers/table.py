"""Extracts one row per number of workers, and prints the rows with the cost of a cache in which every request misses."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from harness.core.stats import LEVEL, mean_half_width
from harness.core.units import counted, show_bytes, show_ns, show_percent
from harness.results.pages.tables import Cell, Table, aligned, columns
from harness.run.study import (
    machine_text,
    shared_doubts,
    shared_lines,
    verdict_text,
)
from harness.search.workers.content import Content, Misses, WorkersRow


def row_of(result: Mapping[str, Any], workers: int, folder: Path, below: Path) -> WorkersRow:
    """Returns a row of workers.json. A number is None if the run did not measure it."""
    latency, models = result["latency_ns"] or {}, result.get("models") or {}
    return {
        "workers": workers,
        "completed_per_s": result["throughput_per_s"]["completed"],
        "p50_ns": latency.get("p50"),
        "p99_ns": latency.get("p99"),
        "hit_rate": models.get("hit_rate"),
        "load_ns": models.get("load_ns"),
        "verdict": result["verdict"],
        "reasons": [reason["code"] for reason in result["reasons"]],
        "doubts": [doubt["code"] for doubt in result["doubts"]],
        "folder": str(folder.relative_to(below)),
    }


class Overhead(NamedTuple):
    """Time that a cache in which every request misses adds to a load, as a share of a plain load."""

    share: float
    half: float
    """Half of the interval's width at LEVEL, by Student's t over the pairs."""


def overhead_of(plain_ns: Sequence[int], cached_ns: Sequence[int]) -> Overhead:
    """Computes the overhead from at least two pairs."""
    added = [cached - plain for plain, cached in zip(plain_ns, cached_ns, strict=True)]
    return Overhead(fmean(added) / fmean(plain_ns), mean_half_width(added) / fmean(plain_ns))


def lines(content: Content, folder: Path) -> Iterator[str]:
    yield f"SWEEP  {'  '.join(words(content))}"
    yield ""
    table = workers_table(content)
    yield from aligned(table.columns, table.rows)
    yield ""
    yield from table.notes
    yield from facts(content)
    yield f"{'results':<12}{folder}"


def words(content: Content) -> list[str]:
    """Returns the model set, its size in the cache, and the threads."""
    cache = f"{show_bytes(content['capacity_bytes'])} ({content['policy']})"
    threads = f"{counted(content['threads'], 'thread')} per worker"
    return [content["model"], f"{counted(content['models'], 'model')} in {cache}", threads]


def workers_table(content: Content) -> Table:
    rows = content["workers"]
    heads = columns(
        "workers [count] | queries/s [samples/s] | p50 [ns] | p99 [ns] | hits [share] | waited for a model [ns] | verdict"
    )
    shared = shared_doubts(rows)
    table: list[list[Cell]] = [
        [
            *(row["workers"], row["completed_per_s"], row["p50_ns"], row["p99_ns"]),
            *(row["hit_rate"], row["load_ns"], verdict_text(row, shared)),
        ]
        for row in rows
    ]
    note = "the number of queries in flight equals the number of workers, so a query waits only for its model"
    return Table("workers", "Numbers of workers", "", heads, table, [note])


def facts(content: Content) -> Iterator[str]:
    """Yields labelled lines about the machine and the cost of a cache in which every request misses."""
    rows = content["workers"]
    if text := machine_text(rows):
        yield f"{'machine':<12}{text}: stop other programs and sweep again"
    yield from shared_lines(rows)
    if content["misses"] is not None:
        yield f"{'worst case':<12}{_worst(content['misses'])}"


def _worst(misses: Misses) -> str:
    plain, cached = misses["plain_ns"], misses["cached_ns"]
    found = overhead_of(plain, cached)
    least, most = (
        show_percent(found.share + sign * found.half, 1, signed=True) for sign in (-1, 1)
    )
    return (
        f"if every request misses, a load takes {show_ns(fmean(cached))} through the cache and {show_ns(fmean(plain))} without it: "
        f"{show_percent(found.share, 1, signed=True)} ({show_percent(LEVEL)}: {least} to {most}) "
        f"in {len(plain)} pairs, {misses['hits']} hits"
    )
