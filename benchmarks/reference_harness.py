"""Compares the harness with MLPerf's reference vision harness, on the same ONNX file and with the reference's default
settings.

python benchmarks/reference_harness.py CHECKOUT [--rows NAME,...] [--quick]

CHECKOUT: a checkout of mlcommons/inference, at any commit near the round. The script needs OpenCV and pycocotools (the
extras `images` and `coco`). Both sides read preprocessed images, which this script makes from noise, and decode no
images.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import pairs
from benchmarks.command import Noise, environment, harness, script
from benchmarks.pairs import Estimate, estimate, ratio
from benchmarks.report import Row, command
from benchmarks.tune import offline_rate, tune
from harness.models.made import onnx_light

IMAGES = 64
_FOLDER = "vision/classification_and_detection"
_VALUE = re.compile(
    r'"key": "(result_samples_per_second|result_(?:50|99).00_percentile_latency_ns)", "value": ([\d.e+]+)'
)


class Reference:
    """Runs the reference harness's main.py on a folder of images, with its default settings except for the run's
    length.
    """

    def __init__(self, checkout: Path, images: Path) -> None:
        self._folder = checkout / _FOLDER
        self._images = images

    def run(self, model: Path, scenario: str, count: int, *more: str) -> Mapping[str, float]:
        """Makes one run and returns values from LoadGen's detail log. count: samples (Offline) or queries (Server)."""
        names = "".join(f"{i % IMAGES}.JPEG 1\n" for i in range(count))
        (self._images / "val_map.txt").write_text(names, encoding="utf-8")
        with tempfile.TemporaryDirectory() as out:
            done = subprocess.run(
                [
                    sys.executable, "main.py", "--backend", "onnxruntime", "--model", str(model),
                    "--dataset", "imagenet_mobilenet", "--dataset-path", str(self._images),
                    "--use_preprocessed_dataset", "--preprocessed_dir", str(self._images),
                    "--model-name", "resnet50", "--scenario", scenario, "--output", out,
                    "--user_conf", str(self._folder / "user.conf"), "--count", str(count),
                    "--performance-sample-count", str(IMAGES), *more,
                ],
                cwd=self._folder / "python",
                env=environment(),
                capture_output=True,
                text=True,
                check=False,
            )  # fmt: skip
            if done.returncode:
                raise RuntimeError(f"the reference harness failed:\n{done.stderr[-2000:]}")
            text = (Path(out) / "mlperf_log_detail.txt").read_text(encoding="utf-8")
        return {key: float(value) for key, value in _VALUE.findall(text)}

    def offline_per_s(self, model: Path, count: int) -> float:
        """Returns the Offline samples/s. --qps 1 and --time 1 request fewer samples than --count, so --count decides."""
        found = self.run(model, "Offline", count, "--time", "1", "--qps", "1")
        return found["result_samples_per_second"]

    def tail_ns(self, model: Path, rate: int, count: int) -> tuple[float, float]:
        """Returns the p50 and p99 of a Server run in ns."""
        seconds = str(max(1, 2 * count // rate))
        limits = ("--qps", str(rate), "--time", seconds, "--max-latency", "0.05")
        found = self.run(model, "Server", count, *limits)
        names = ("result_50.00_percentile_latency_ns", "result_99.00_percentile_latency_ns")
        p50_ns, p99_ns = (found[name] for name in names)
        return p50_ns, p99_ns


@contextmanager
def reference_images() -> Iterator[Path]:
    """Yields a folder of preprocessed noise images, and removes the folder afterwards."""
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as parent:
        for i in range(IMAGES):
            image = random.standard_normal((3, 224, 224), np.float32)
            np.save(Path(parent) / f"{i}.JPEG.npy", image)
        yield Path(parent)


def offline(
    name: str, count: int, bar: float, checkout: Path, turns: int, noise: Noise
) -> list[Row]:
    """Compares the Offline samples/s of `tune`'s plan and of the reference harness."""
    model = onnx_light.make(name)
    ask = ("--scenario", "offline", "--backend", "ort", "--model", str(model), "--rounds", "3")
    found = noise.quiet(partial(tune, *ask))
    with reference_images() as folder, tempfile.TemporaryDirectory() as kept:
        load = ("--config", found.written(kept), "--queries", str(count))
        theirs = Reference(checkout, folder)
        seen = pairs.alternate(
            lambda: noise.quiet(lambda: offline_rate(*load)),
            lambda: noise.quiet(lambda: theirs.offline_per_s(model, count)),
            turns,
        )
    return [
        Row(
            name=f"reference-{name}",
            what=f"{name}, offline samples/s over the reference harness's",
            unit="",
            limit="at least",
            bar=bar,
            found=pairs.compared(seen, ratio),
            aa=pairs.same(seen, ratio),
            neutral=1.0,
            beside={
                "tuned": found.content["taken"],
                "harness": estimate(seen.a).value,
                "reference": estimate(seen.b).value,
            },
            runs={"harness": seen.a, "reference": seen.b},
        )
    ]


SHARES = (0.2, 0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
"""The ladder's rates, relative to the samples/s of two bare instances with one thread each."""

QUERIES = 600
"""Number of queries per run; six of them may be late."""


def server(name: str, bound_ms: int, checkout: Path, _: int, noise: Noise) -> list[Row]:
    """Climbs the ladder with both sides in turn, each with its default settings, until p99 misses the bound twice.

    Returns a row with the ratio of both sides' highest rates.
    """
    model = onnx_light.make(name)
    (bare,) = noise.quiet(partial(script, "bare.py", str(model), "4", "2x1x1"))
    bare_per_s = float(bare["samples_per_s"])
    ladder = [round(share * bare_per_s) for share in SHARES]
    plan = (
        "--scenario",
        "server",
        "--backend",
        "ort",
        "--model",
        str(model),
        "--mode",
        "performance",
    )
    with reference_images() as folder:

        def ours(rate: int) -> float:
            load = ("--target-qps", str(rate), "--queries", str(QUERIES))
            run = harness(*plan, *load, "--slo", f"p99={bound_ms}ms")
            return float(run.result["latency_ns"]["p99"]) / 1e6

        reference = Reference(checkout, folder)
        sides: Mapping[str, Callable[[int], float]] = {
            "harness": ours,
            "reference": lambda rate: reference.tail_ns(model, rate, QUERIES)[1] / 1e6,
        }
        tails = _climbed(sides, ladder, bound_ms, noise)
    peaks = {side: _highest(of, bound_ms) for side, of in tails.items()}
    ratios = peaks["harness"] / max(peaks["reference"], ladder[0])
    return [
        Row(
            name=f"reference-server-{name}",
            what=f"{name}, highest rate with p99 ≤ {bound_ms} ms over the reference harness's",
            unit="",
            limit="at least",
            bar=SERVER_BAR,
            found=Estimate(ratios, ratios, ratios),
            decided="met" if ratios >= SERVER_BAR else "missed",
            beside={
                "bare, samples/s": bare_per_s,
                "share of bare": peaks["harness"] / bare_per_s,
                **{side: float(rate) for side, rate in peaks.items()},
            },
            runs={side: {str(r): v for r, v in of.items()} for side, of in tails.items()},
        )
    ]


SERVER_BAR = 1.05


def _climbed(
    sides: Mapping[str, Callable[[int], float]],
    ladder: Sequence[int],
    bound_ms: int,
    noise: Noise,
) -> dict[str, dict[int, list[float]]]:
    """Maps each side and rate to the p99 in ms of two runs, or of three if two disagree.

    The sides take turns at each rate, because the machine's speed drifts. A side stops once it has missed the bound at
    two rates.
    """
    seen: dict[str, dict[int, list[float]]] = {name: {} for name in sides}
    for rate in ladder:
        climbing = [name for name, of in seen.items() if not _gave_up(of, bound_ms)]
        for turn in climbing, climbing[::-1]:
            for name in turn:
                tail = noise.quiet(partial(sides[name], rate))
                seen[name].setdefault(rate, []).append(tail)
        for name in climbing:
            tails = seen[name][rate]
            if min(tails) <= bound_ms < max(tails):
                tails.append(noise.quiet(partial(sides[name], rate)))
    return seen


def _gave_up(seen: Mapping[int, Sequence[float]], bound_ms: int) -> bool:
    return len(seen) >= 2 and not any(_holds(tails, bound_ms) for tails in [*seen.values()][-2:])


def _holds(tails: Sequence[float], bound_ms: int) -> bool:
    return sum(tail <= bound_ms for tail in tails) > len(tails) / 2


def _highest(seen: Mapping[int, Sequence[float]], bound_ms: int) -> int:
    """Returns the highest rate that met the bound, or 0 if even the lowest rate missed the bound."""
    return max((rate for rate, tails in seen.items() if _holds(tails, bound_ms)), default=0)


def rows(checkout: Path) -> Mapping[str, Callable[[int, Noise], list[Row]]]:
    return {
        "reference-squeezenet": partial(offline, "squeezenet", 3_000, 1.3, checkout),
        "reference-resnet50": partial(offline, "resnet50", 320, 1.2, checkout),
        "reference-server-squeezenet": partial(server, "squeezenet", 50, checkout),
        "reference-server-resnet50": partial(server, "resnet50", 200, checkout),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(description="Compares with MLPerf's reference vision harness.")
    parser.add_argument("checkout", metavar="CHECKOUT", help="a checkout of mlcommons/inference")
    first = next((word for word in given if not word.startswith("-")), "")
    checkout = Path(first).absolute()
    if first and not (checkout / _FOLDER / "python/main.py").is_file():
        parser.error(
            f"{checkout} has no {_FOLDER}/python/main.py: pass a checkout of mlcommons/inference"
        )
    return command(rows(checkout), parser, given)


if __name__ == "__main__":
    sys.exit(main())
