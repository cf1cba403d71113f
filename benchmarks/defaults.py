"""Compares the default plan with plain loops of each framework that use the framework's own settings.

python benchmarks/defaults.py [--rows FRAMEWORK-MODEL,...] [--quick]

Each model gives two rows: single-stream p50 ÷ p50 of the plain loop at batch 1, and Offline rate ÷ rate of the best
loop.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import pairs
from benchmarks.command import Noise, harness, script
from benchmarks.framework_models import MADE
from benchmarks.pairs import estimate
from benchmarks.report import Row, command, ratio_of
from harness.core.registry import default_model
from harness.core.units import NS_PER_MS

MODELS = ("digits", "small", "resnet50", "encoder")
MODELS_OF = {"trees": MODELS[:1]}
SECONDS = 3.0
BATCHES = (1, 8, 32)
ABSENT = ("ncnn-encoder",)
"""Rows that are left out because the framework's converter cannot convert the model."""

MOST_P50, LEAST_RATE = 1.03, 0.98
SETTINGS = ("default", "guide")


class Bench:
    """One model on one framework."""

    def __init__(
        self, framework: str, model: str, paths: Callable[[str], Mapping[str, str]]
    ) -> None:
        """paths: returns a framework's model files, and creates them on the first call."""
        self._framework, self._model, self._paths = framework, model, paths
        self._name = f"{framework}-{model}"

    def rows(self, count: int, noise: Noise) -> list[Row]:
        self._path = self._paths(self._framework)[self._model]
        return [self._single_stream(count, noise), self._offline(count, noise)]

    def _single_stream(self, count: int, noise: Noise) -> Row:
        ask = ("--scenario", "single-stream", "--duration", f"{SECONDS:g}s")
        seen = pairs.alternate(
            lambda: noise.quiet(lambda: self._harness(*ask)["latency_ns"]["p50"] / NS_PER_MS),
            lambda: noise.quiet(lambda: self._plain("default", (1,))[0]["p50_ns"] / NS_PER_MS),
            count,
        )
        guide_ns = noise.quiet(lambda: self._plain("guide", (1,)))[0]["p50_ns"]
        paused_ns = noise.quiet(lambda: self._plain("default", (1,)))[0]["paused_p50_ns"]
        return ratio_of(
            f"{self._name}-single-stream",
            "p50 over a plain loop's in the framework's default settings",
            "at most",
            MOST_P50,
            seen,
            {
                "harness, ms": estimate(seen.a).value,
                "plain loop": estimate(seen.b).value,
                "with the pauses of a run": paused_ns / NS_PER_MS,
                "as its guide advises": guide_ns / NS_PER_MS,
            },
        )

    def _offline(self, count: int, noise: Noise) -> Row:
        grid = {
            f"{settings}, batch {found['batch']}": (
                found["samples_per_s"],
                settings,
                found["batch"],
            )
            for settings in SETTINGS
            for found in noise.quiet(partial(self._plain, settings, BATCHES))
        }
        best = max(grid, key=lambda plan: float(grid[plan][0]))
        _, settings, batch = grid[best]
        ask = ("--scenario", "offline", "--duration", f"{SECONDS:g}s")
        seen = pairs.alternate(
            lambda: noise.quiet(lambda: self._harness(*ask)["throughput_per_s"]["completed"]),
            lambda: noise.quiet(lambda: self._plain(settings, (int(batch),))[0]["samples_per_s"]),
            count,
        )
        return ratio_of(
            f"{self._name}-offline",
            "samples/s over the best plain loop's",
            "at least",
            LEAST_RATE,
            seen,
            {
                "harness, samples/s": estimate(seen.a).value,
                "plain loop": estimate(seen.b).value,
                "its settings": best,
            },
            {"grid": grid},
        )

    def _harness(self, *load: str) -> dict[str, Any]:
        """Returns the result.json of a run with the default plan."""
        model = default_model(self._framework) if self._model == "digits" else self._path
        system = ("--backend", self._framework, "--model", model, "--mode", "performance")
        return harness(*load, *system).result

    def _plain(self, settings: str, batches: Sequence[int]) -> list[dict[str, float]]:
        arguments = (self._framework, self._path, f"{SECONDS:g}", settings, *map(str, batches))
        found: list[dict[str, float]] = script("bare_defaults.py", *arguments)
        return found


def _rows(folder: Path) -> Iterator[tuple[str, Callable[[int, Noise], list[Row]]]]:
    @cache
    def paths(framework: str) -> Mapping[str, str]:
        found: Mapping[str, str] = script("framework_models.py", framework, str(folder / framework))
        return found

    for framework in MADE:
        models = MODELS_OF.get(framework, MODELS)
        for model in (name for name in models if f"{framework}-{name}" not in ABSENT):
            yield f"{framework}-{model}", Bench(framework, model, paths).rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    with tempfile.TemporaryDirectory() as parent:
        return command(dict(_rows(Path(parent))), parser)


if __name__ == "__main__":
    sys.exit(main())
