"""Compares the plan that `tune` chooses with the best plan of the whole grid, and times the search.

python benchmarks/tune.py [--rows NAME,...] [--quick]

In Offline, bare.py times the whole grid: every layout and largest batch. In Server, the harness runs every plan at the
rate that `tune` used. Then the chosen plan and the best plan alternate in ordinary runs.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import pairs
from benchmarks.command import DIGITS, ROOT, Noise, environment, harness, script
from benchmarks.pairs import Estimate, estimate, ratio
from benchmarks.report import Row, command

LAYOUTS = ("1x1", "1x2", "2x1")
SECONDS = 90.0
WITHIN = 0.97
_RUN = ("--backend", "ort", "--mode", "performance")


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result of `tune`. text: the content of tuned.yaml, whose folder has been removed."""

    text: str
    content: Mapping[str, Any]
    seconds: float

    def written(self, folder: str) -> str:
        """Writes tuned.yaml and returns its path for --config."""
        path = Path(folder) / "tuned.yaml"
        path.write_text(self.text, encoding="utf-8")
        return str(path)


def tune(*arguments: str) -> Tuned:
    """Runs the command as a user types it."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "tuned"
        ask = (sys.executable, "-m", "harness", "tune", *arguments, "--no-metrics", "--quiet")
        begun = time.monotonic()
        done = subprocess.run(
            [*ask, "--out", str(folder)],
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.monotonic() - begun
        if done.returncode:
            raise RuntimeError(f"{' '.join(ask)}: status {done.returncode}: {done.stderr}")
        content = json.loads((folder / "tune.json").read_text(encoding="utf-8"))
        return Tuned((folder / "tuned.yaml").read_text(encoding="utf-8"), content, seconds)


def plan_options(plan: str) -> tuple[str, ...]:
    """Returns the options that make a run use a plan, such as '2x1x64'."""
    instances, threads, batch = plan.split("x")
    return "--instances", instances, "--threads", threads, "--max-batch", batch


def offline_rate(*arguments: str) -> float:
    """Returns a run's samples/s."""
    run = harness("--scenario", "offline", *_RUN, *arguments)
    return float(run.result["throughput_per_s"]["completed"])


def offline(count: int, noise: Noise) -> list[Row]:
    found = noise.quiet(partial(tune, "--scenario", "offline", "--backend", "ort"))
    grid = [f"{layout}x{1 << power}" for power in range(11) for layout in LAYOUTS]
    both = [script("bare.py", str(DIGITS), "0.4", *order) for order in (grid, list(reversed(grid)))]
    rates = dict.fromkeys(grid, 0.0)
    for one in (*both[0], *both[1]):
        rates[one["plan"]] += float(one["samples_per_s"]) / 2
    best = max(rates, key=rates.__getitem__)
    load = ("--queries", "300000")
    with tempfile.TemporaryDirectory() as folder:
        config = found.written(folder)
        seen = pairs.alternate(
            lambda: noise.quiet(lambda: offline_rate("--config", config, *load)),
            lambda: noise.quiet(lambda: offline_rate(*plan_options(best), *load)),
            count,
        )
    return [
        _row("tune-offline", "samples/s", found, best, seen, {"grid": rates}),
        _time("tune-offline-seconds", found),
    ]


def server(count: int, noise: Noise) -> list[Row]:
    ask = ("--scenario", "server", "--backend", "ort", "--slo", "p99=10ms")
    found = noise.quiet(partial(tune, *ask))
    load = ("--target-qps", str(found.content["rate_per_s"]), "--duration", "1500ms", *ask)

    def tail_ns(*plan: str) -> float:
        run = harness(*plan, *load, "--mode", "performance")
        return float(run.result["latency_ns"]["p99"])

    grid = [f"{layout}x{batch}" for batch in (4, 16, 64, 256) for layout in LAYOUTS]
    tails = {plan: tail_ns(*plan_options(plan)) for plan in grid}
    for plan in reversed(grid):
        tails[plan] = (tails[plan] + tail_ns(*plan_options(plan))) / 2
    best = min(tails, key=tails.__getitem__)
    with tempfile.TemporaryDirectory() as folder:
        config = found.written(folder)
        seen = pairs.alternate(  # the best plan is the numerator, because a shorter tail is better
            lambda: noise.quiet(lambda: 1e9 / tail_ns("--config", config)),
            lambda: noise.quiet(lambda: 1e9 / tail_ns(*plan_options(best))),
            count,
        )
    return [
        _row("tune-server", "1 / p99 s", found, best, seen, {"grid_p99_ns": tails}),
        _time("tune-server-seconds", found),
    ]


def _row(
    name: str,
    what: str,
    found: Tuned,
    best: str,
    seen: pairs.Pairs,
    more: Mapping[str, Any],
) -> Row:
    return Row(
        name=name,
        what=f"{what} with the plan that tune chose over {what} with the best plan of the whole grid",
        unit="",
        limit="at least",
        bar=WITHIN,
        found=pairs.compared(seen, ratio),
        aa=pairs.same(seen, ratio),
        neutral=1.0,
        beside={
            "taken": found.content["taken"],
            "best of the grid": best,
            "tuned": estimate(seen.a).value,
            "best": estimate(seen.b).value,
        },
        runs={"tuned": seen.a, "best": seen.b, "tune": found.content["finalists"], **more},
    )


def _time(name: str, found: Tuned) -> Row:
    return Row(
        name=name,
        what="duration of tune in seconds, digits on two cores",
        unit="s",
        limit="at most",
        bar=SECONDS,
        found=Estimate(found.seconds, found.seconds, found.seconds),
        decided="met" if found.seconds <= SECONDS else "missed",
        beside={"LoadGen runs": len(found.content["runs"])},
    )


ROWS: Mapping[str, Callable[[int, Noise], list[Row]]] = {
    "tune-offline": offline,
    "tune-server": server,
}


def main(arguments: Sequence[str] | None = None) -> int:
    return command(
        ROWS,
        argparse.ArgumentParser(
            description="Compares tune's winner with the best plan of the grid."
        ),
        arguments,
    )


if __name__ == "__main__":
    sys.exit(main())
