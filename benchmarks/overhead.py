"""Measures the harness's overhead: the rows of the table that every release must meet.

python benchmarks/overhead.py [--rows NAME,...] [--quick]
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import offline, pairs, rates
from benchmarks.command import DIGITS, Noise, Run, harness, script, wall_s
from benchmarks.pairs import difference, estimate, ratio
from benchmarks.report import Row, absolute, command
from harness.models.made import onnx_light

PROBE_S = 1.0
"""Duration of the command's noise probe, which does not count as start-up time."""

_PERFORMANCE = ("--mode", "performance")
_NULL = ("--backend", "null", *_PERFORMANCE)
_ORT = ("--backend", "ort", *_PERFORMANCE)


def single_stream_null(count: int, noise: Noise) -> list[Row]:
    ask = ("--scenario", "single-stream", "--queries", "300000", *_NULL)
    bare = ("bare_loadgen.py", "single-stream", "300000")
    seen = pairs.alternate(
        lambda: noise.quiet(lambda: _p50_us(harness(*ask))),
        lambda: noise.quiet(lambda: float(script(*bare)["p50_ns"]) / 1e3),
        count,
    )
    what = "LoadGen's p50, null backend"
    return [absolute("single-stream-null", what, "us", 5.0, seen.a, {"bare LoadGen": seen.b})]


def single_stream_digits(count: int, noise: Noise) -> list[Row]:
    ask = ("--scenario", "single-stream", "--queries", "80000", "--threads", "1", *_ORT)
    bare = ("bare.py", str(DIGITS), "3", "1x1x1")
    seen = pairs.alternate(
        lambda: noise.quiet(lambda: _p50_us(harness(*ask))),
        lambda: noise.quiet(lambda: float(script(*bare)[0]["p50_ns"]) / 1e3),
        count,
    )
    return [
        Row(
            name="single-stream-digits",
            what="LoadGen's p50 minus the p50 of a bare session.run, digits, one thread",
            unit="us",
            limit="at most",
            bar=6.0,
            found=pairs.compared(seen, difference),
            aa=pairs.same(seen, difference),
            beside={"LoadGen's p50": estimate(seen.a).value, "bare": estimate(seen.b).value},
            runs={"harness": seen.a, "bare": seen.b},
        )
    ]


def _p50_us(run: Run) -> float:
    return float(run.result["latency_ns"]["p50"]) / 1e3


def server_null(count: int, noise: Noise) -> list[Row]:
    ladder = (50_000, 100_000, 150_000, 200_000)
    seen = rates.search(partial(rates.run_at, "null"), ladder, count + 1, noise)
    return [rates.row("server-null", "null backend", 100_000, seen, rates.bare_null(noise))]


def server_digits(count: int, noise: Noise) -> list[Row]:
    ladder = (30_000, 40_000, 50_000, 60_000, 80_000)
    seen = rates.search(partial(rates.run_at, "ort"), ladder, count + 1, noise)
    return [rates.row("server-digits", "digits", 50_000, seen, rates.bare_digits(noise))]


def offline_digits(count: int, noise: Noise) -> list[Row]:
    batches = (16, 32, 64, 128, 256, 512, 1024)
    return [offline.row("digits", DIGITS, batches, 400_000, 0.9, count, noise)]


def offline_squeezenet(count: int, noise: Noise) -> list[Row]:
    path = onnx_light.make("squeezenet")
    return [offline.row("squeezenet", path, (1, 2, 4, 8, 16, 32), 2_000, 0.97, count, noise)]


_MILLION = {
    "server": ("--scenario", "server", "--target-qps", "100000", "--queries", "1000000", *_NULL),
    "single-stream": ("--scenario", "single-stream", "--queries", "1000000", *_NULL),
}


def million(scenario: str, count: int, noise: Noise) -> list[Row]:
    """Returns two rows from the same runs: memory, and the time that the end of a run takes."""
    runs = [noise.quiet(lambda: harness(*_MILLION[scenario])) for _ in range(max(2, count // 2))]
    growth_mb = [_growth_mb(r.result["measured_process"]) for r in runs]
    peaks_mb = [r.supervisor_peak_bytes / 1e6 for r in runs]
    ending_s = [(r.ended_ns - r.last_completed_ns) / 1e9 for r in runs]
    name, load = f"million-{scenario}", f"1,000,000 queries, {scenario}, null backend"
    return [
        absolute(
            f"{name}-memory",
            f"growth of the measured process: {load}",
            "MB",
            450.0,
            growth_mb,
            {"supervisor's peak, MB": peaks_mb},
        ),
        absolute(
            f"{name}-ending",
            f"last completion to the command's end: {load}",
            "s",
            5.0,
            ending_s,
            {},
        ),
    ]


def _growth_mb(process: Mapping[str, Any]) -> float:
    if process["rss_growth_bytes"] is None:
        sys.exit(f"the memory growth is unknown: {process['rss_growth_reason']}")
    return float(process["rss_growth_bytes"]) / 1e6


def watching(rate: int, count: int, noise: Noise) -> list[Row]:
    ask = (
        "--scenario", "server", "--target-qps", str(rate), "--duration", "5s",
        "--slo", "p99=1s", *_ORT,
    )  # fmt: skip

    def cpu_us(kind: str) -> float:
        run = harness(*ask, prefix=("benchmarks/watching.py", kind))
        return float(run.result["measured_process"]["cpu_s_per_query"]) * 1e6

    seen = pairs.alternate(
        lambda: noise.quiet(lambda: cpu_us("looks")),
        lambda: noise.quiet(lambda: cpu_us("blind")),
        count,
    )
    return [
        Row(
            name=f"watching-{rate}",
            what=f"CPU time per query, watched over not watched, digits at {rate:,}/s",
            unit="",
            limit="at most",
            bar=1.03,
            found=pairs.compared(seen, ratio),
            aa=pairs.same(seen, ratio),
            neutral=1.0,
            beside={"watched, us": estimate(seen.a).value, "not": estimate(seen.b).value},
            runs={"watched_us": seen.a, "not_us": seen.b},
        )
    ]


def help_time(count: int, noise: Noise) -> list[Row]:
    wall_s("-m", "harness", "--help")  # the first call warms up the file cache
    seen = pairs.alternate(
        lambda: noise.quiet(lambda: wall_s("-m", "harness", "--help")),
        lambda: noise.quiet(lambda: wall_s("-c", "")),
        max(10, count),
    )
    what = "python -m harness --help"
    return [absolute("help", what, "s", 0.25, seen.a, {"python -c '', s": seen.b})]


_BARE_START = (
    "import mlperf_loadgen, onnxruntime, sys;"
    "onnxruntime.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])"
)


def first_query(count: int, noise: Noise) -> list[Row]:
    ask = ("--scenario", "server", "--target-qps", "1000", "--duration", "1s", *_ORT)

    def start_s() -> float:
        run = harness(*ask)
        calibration_s = float(run.result["calibration"]["seconds"] or 0.0)
        return (run.first_entry_ns - run.spawned_ns) / 1e9 - PROBE_S - calibration_s

    seen = pairs.alternate(
        lambda: noise.quiet(start_s),
        lambda: noise.quiet(lambda: wall_s("-c", _BARE_START, str(DIGITS))),
        count,
    )
    what = "command start to first query, less probe and calibration, digits"
    beside = {"bare imports and session, s": seen.b}
    return [absolute("first-query", what, "s", 2.5, seen.a, beside)]


ROWS: Mapping[str, Callable[[int, Noise], list[Row]]] = {
    "single-stream-null": single_stream_null,
    "single-stream-digits": single_stream_digits,
    "server-null": server_null,
    "server-digits": server_digits,
    "offline-digits": offline_digits,
    "offline-squeezenet": offline_squeezenet,
    "million-server": partial(million, "server"),
    "million-single-stream": partial(million, "single-stream"),
    "watching-1000": partial(watching, 1_000),
    "watching-10000": partial(watching, 10_000),
    "help": help_time,
    "first-query": first_query,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    return command(ROWS, parser)


if __name__ == "__main__":
    sys.exit(main())
