"""Writes machine.html: peaks, copies by size, transports, and every table, from machine.json alone."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from harness.core.units import NS_PER_MS, counted, show_percent
from harness.explain.machine import record
from harness.explain.machine.arithmetic import (
    NO_RATE,
    UNEVEN,
    Key,
    QuotedPeak,
    best_points,
    quoted_peaks,
)
from harness.explain.machine.record import Content
from harness.explain.machine.tables import tables
from harness.machine.characterise import peaks
from harness.machine.characterise.arithmetic.libraries.operations import PRECISIONS
from harness.machine.characterise.arithmetic.segments import WAYS
from harness.machine.characterise.measured import Measured, of
from harness.machine.characterise.movement.memory_copy import EVICTED, WARM
from harness.results.pages import page, tiles
from harness.results.pages.heading import Badges, heading
from harness.results.pages.page import Article, Figure
from harness.results.pages.plots import bars_in_rows, line, rounded
from harness.results.pages.report import show_time
from harness.results.pages.tiles import Tile

PAGE = "machine.html"
_G = 1e-9


def write(content: Content, folder: Path) -> Path:
    """Writes the page and returns its path. Raises PluginUnavailable if plotly is not installed."""
    return page.write(articles(content), "machine", folder / PAGE, script_in=folder)


def articles(content: Content) -> list[Article]:
    return [Article(list(_head(content)), list(figures(content)), list(_tail(content)))]


def badges(content: Content) -> Badges:
    return Badges(doubted=any(one.is_doubtful for one in quoted_peaks(content)))


def _head(content: Content) -> Iterator[str]:
    machine = content["machine"]
    yield heading(["Machine", machine["cpu"]], badges(content))
    yield peak_tiles(content) or page.headline(NO_RATE)
    cores = counted(machine["cores_usable"], "core")
    yield page.facts({"cores": cores, "fingerprint": content["fingerprint"], **_doubt(content)})
    plan = content["plan"]
    repeats, at_most = (
        counted(plan["repeats"], "repetition"),
        "" if plan["thorough"] else "at most ",
    )
    yield (
        f'<p class="quiet">{escape(show_time(content["started"]))}; {at_most}{repeats} per point, '
        f"{plan['point_ns'] / 1e6:g} ms in total; {escape(content['units'])}</p>"
    )


def _doubt(content: Content) -> Mapping[str, str]:
    names = ", ".join(one.name for one in quoted_peaks(content) if one.is_doubtful)
    if not names:
        return {}
    why = f"the repetitions differ by a CV of more than {show_percent(UNEVEN)}: {names}"
    return {"doubt": f"{why}; measure again on an idle machine, with --thorough"}


def peak_tiles(content: Content) -> str:
    """Returns the highest rates as HTML; '' if no rate was measured."""
    return tiles.html([_tile(one) for one in quoted_peaks(content)])


def _tile(one: QuotedPeak) -> Tile:
    about = counted(one.threads, "thread")
    if one.variation is not None:
        about += f", CV {show_percent(one.variation)}"
        about += ": measure again" if one.is_doubtful else ""
    return Tile(one.name, one.rate, about, is_doubtful=one.is_doubtful)


def _tail(content: Content) -> Iterator[str]:
    for table in tables(content):
        yield from page.section(table, is_folded=table.key != "peaks", cards=True)


def figures(content: Content) -> Iterator[Figure]:
    """Yields a figure for each kind of benchmark with enough points. If the time limit ended the measurement, some
    kinds may have only one size.
    """
    points = [point for point in record.points(content) if not point.missing]
    for benchmark in peaks.ARITHMETIC:
        if best := best_points(points, benchmark):
            yield _rates(benchmark, best)
    copies = [point for point in of(points, peaks.COPY) if point.threads == 1]
    if _has_several(copies, "bytes"):
        yield _copies(copies)
    touches = list(of(points, "first-touch"))
    if _has_several(touches, "bytes"):
        yield _by_size("First touch", "First and later writes to new pages.", touches, "pages")
    trips = list(of(points, "transport"))
    if _has_several(trips, "bytes"):
        yield _by_size("Round trips", "Round trip of a payload to another process.", trips, "way")
    for benchmark in ("reduction", "scan"):
        sums = list(of(points, benchmark))
        if _has_several(sums, "segment"):
            yield _segments(benchmark, sums)


def _has_several(points: Sequence[Measured], setting: str) -> bool:
    """Whether a curve over the setting has more than one point. A single point is shown only in the tables."""
    return len({point.settings[setting] for point in points}) > 1


def _rates(benchmark: str, best: Mapping[Key, Measured]) -> Figure:
    """Draws a bar for each library, precision and number of threads, the fastest first, with a colour per precision."""
    shown = sorted(best.items(), key=lambda one: -(one[1].peak_per_s or 0.0))
    rates = {
        precision: [
            rounded(point.peak_per_s, _G) if own == precision else None
            for (_, own, _), point in shown
        ]
        for precision in PRECISIONS
    }
    titles = {"gemm": "Matrix products", "convolution": "Convolutions"}
    return bars_in_rows(
        titles[benchmark],
        "The fastest call of each library, by precision and threads; int8 operations are counted like FLOP.",
        {"title": "GFLOP/s"},
        [f"{library}, {precision}, {counted(n, 'thread')}" for (library, precision, n), _ in shown],
        rates,
        "stack",
    )


def _copies(points: Sequence[Measured]) -> Figure:
    data = []
    for state in (WARM, EVICTED):
        shown = [p for p in points if p.settings["state"] == state]
        data.append(_with_spread(state, shown, [rounded(p.per_s, _G) for p in shown], _G))
    return Figure(
        "Copies",
        "Bandwidth of copied bytes by size, on one thread. Bars: standard deviation of the repetitions.",
        data,
        {"xaxis": _BYTES, "yaxis": {"title": "GB/s", "type": "log"}},
    )


_BYTES = {"title": "size, bytes", "type": "log"}


def _with_spread(
    name: str, points: Sequence[Measured], values: Sequence[float | None], scale: float
) -> dict[str, Any]:
    """Makes a line whose error bars show the spread of the rates."""
    spread = [rounded(point.std_per_s, scale) for point in points]
    bars = {"type": "data", "array": spread, "visible": True}
    sizes = [point.settings["bytes"] for point in points]
    return line(name, sizes, values, error_y=bars)


def _by_size(title: str, about: str, points: Sequence[Measured], setting: str) -> Figure:
    """Draws times over sizes, with a line per value of the setting."""
    data = []
    for value in dict.fromkeys(point.settings[setting] for point in points):
        shown = [point for point in points if point.settings[setting] == value]
        times = [rounded(point.median_ns, 1 / NS_PER_MS) for point in shown]
        data.append(line(str(value), [point.settings["bytes"] for point in shown], times))
    return Figure(
        title, about, data, {"xaxis": _BYTES, "yaxis": {"title": "time, ms", "type": "log"}}
    )


def _segments(benchmark: str, points: Sequence[Measured]) -> Figure:
    data = []
    for way in WAYS:
        shown = [point for point in points if point.settings["way"] == way]
        rates = [rounded(point.per_s, _G) for point in shown]
        data.append(line(way, [point.settings["segment"] for point in shown], rates))
    return Figure(
        benchmark.capitalize(),
        "Elements added up per second, by segment size, on one thread.",
        data,
        {
            "xaxis": {"title": "elements in a segment", "type": "log"},
            "yaxis": {"title": "10⁹ elements/s", "rangemode": "tozero"},
        },
    )
