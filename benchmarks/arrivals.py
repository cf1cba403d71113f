"""Compares the harness's scheduler with LoadGen's on the same schedule and model.

python benchmarks/arrivals.py [--rows NAME,...] [--quick]
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import pairs
from benchmarks.command import Noise, Run, harness
from benchmarks.pairs import Estimate, Verdict, estimate, ratio
from benchmarks.report import Row, command
from harness.loadgen.arrival_profiles import lines
from harness.loadgen.schedule import server_schedule_ns

SECONDS = 5
SEED = 20261121


def _band(aa: Estimate) -> float:
    """Returns the relative deviation between runs of LoadGen's own schedule."""
    return max(abs(aa.low - 1.0), abs(aa.high - 1.0))


def _verdict(found: Estimate, band: float) -> Verdict:
    """Returns "met" if the value is inside the A/A band, and "missed" if the whole interval lies outside the band."""
    if abs(found.value - 1.0) <= band:
        return "met"
    outside = found.low > 1.0 + band or found.high < 1.0 - band
    return "missed" if outside else "not decidable here"


def replayed(backend: str, model: str, rate: int, count: int, noise: Noise) -> list[Row]:
    """Returns a row for p50 and a row for p99, including both sides' issue delays."""
    common = (
        "--scenario", "server", "--backend", backend, "--model", model,
        "--mode", "performance", "--slo", "p99=1s",
    )  # fmt: skip
    runs: dict[str, list[Run]] = {"replayed": [], "LoadGen": []}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "loadgen.csv"
        after_ns = server_schedule_ns(rate * SECONDS, rate, SEED)
        path.write_text("\n".join(lines(after_ns, "LoadGen's")), encoding="ascii")
        theirs = (
            "--target-qps", str(rate), "--queries", str(rate * SECONDS), "--seed", str(SEED),
        )  # fmt: skip

        def measure(side: str, *more: str) -> float:
            runs[side].append(noise.quiet(lambda: harness(*common, *more)))
            return 0.0

        pairs.alternate(
            partial(measure, "replayed", "--arrivals", str(path)),
            partial(measure, "LoadGen", *theirs),
            count,
        )
    name = f"arrivals-{backend if backend == 'null' else model}".replace("light/", "")
    return [_row(name, percentile, rate, runs) for percentile in ("p50", "p99")]


def _row(name: str, percentile: str, rate: int, runs: Mapping[str, list[Run]]) -> Row:
    ours, theirs = (
        tuple(float(run.result["latency_ns"][percentile]) / 1e3 for run in runs[side])
        for side in ("replayed", "LoadGen")
    )
    seen = pairs.Pairs(ours, theirs)
    found, aa = pairs.compared(seen, ratio), pairs.same(seen, ratio)
    band = _band(aa)
    delays = {
        f"{side}: issue delay {percentile}, us": estimate(
            [float(run.result["stages_ns"]["issue_delay"][percentile]) / 1e3 for run in kept]
        ).value
        for side, kept in runs.items()
    }
    return Row(
        name=f"{name}-{percentile}",
        what=f"{percentile} of LoadGen's schedule at {rate:,}/s replayed, over LoadGen's own",
        unit="",
        limit="at most",
        bar=1.0 + band,
        found=found,
        aa=aa,
        neutral=1.0,
        decided=_verdict(found, band),
        beside={
            "replayed, us": estimate(ours).value,
            "LoadGen, us": estimate(theirs).value,
            **delays,
        },
        runs={"replayed_us": ours, "loadgen_us": theirs},
    )


ROWS: Mapping[str, Callable[[int, Noise], list[Row]]] = {
    "arrivals-digits": partial(replayed, "ort", "digits", 2_000),
    "arrivals-squeezenet": partial(replayed, "ort", "light/squeezenet", 100),
    "arrivals-null": partial(replayed, "null", "digits", 20_000),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    return command(ROWS, parser)


if __name__ == "__main__":
    sys.exit(main())
