"""Compares tuned plans with bare loops, the reference dispatcher and OpenVINO's benchmark tool.

python benchmarks/reach.py [--rows NAME,...] [--quick]
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import pairs, rates
from benchmarks.command import ROOT, Noise, environment, harness, script
from benchmarks.observer import watched
from benchmarks.pairs import estimate, neighbours, ratio
from benchmarks.report import Row, command
from benchmarks.tune import LAYOUTS, offline_rate, tune
from harness.models.made import onnx_light

SHARE = 0.8
"""The tail is compared with the reference dispatcher's at this share of the capacity."""


def tuned_offline(name: str, samples: int, count: int, noise: Noise) -> list[Row]:
    """Compares `tune`'s plan in the harness with the bare loop's best plan in the grid."""
    path = str(onnx_light.make(name))
    ask = ("--scenario", "offline", "--backend", "ort", "--model", path, "--rounds", "3")
    found = noise.quiet(partial(tune, *ask))
    grid = [f"{layout}x{batch}" for batch in (1, 2, 4, 8) for layout in LAYOUTS]
    bare = noise.quiet(partial(script, "bare.py", path, "1", *grid))
    best = max(bare, key=lambda plan: float(plan["samples_per_s"]))["plan"]
    with tempfile.TemporaryDirectory() as folder:
        load = ("--config", found.written(folder), "--queries", str(samples))
        seen = pairs.alternate(
            lambda: noise.quiet(lambda: offline_rate(*load)),
            lambda: noise.quiet(
                lambda: float(script("bare.py", path, "4", best)[0]["samples_per_s"])
            ),
            count,
        )
    return [
        Row(
            name=f"tuned-{name}",
            what="samples/s of the harness as tuned over the bare loop's best plan",
            unit="",
            limit="at least",
            bar=0.98,
            found=pairs.compared(seen, ratio),
            aa=pairs.same(seen, ratio),
            neutral=1.0,
            beside={
                "tuned": found.content["taken"],
                "bare": best,
                "harness, samples/s": estimate(seen.a).value,
                "bare, samples/s": estimate(seen.b).value,
            },
            runs={"harness": seen.a, "bare": seen.b, "grid": bare},
        )
    ]


def openvino(hint: str, count: int, noise: Noise) -> list[Row]:
    """Compares inferences/s on the same file, in f32, with one image at a time."""
    path = str(onnx_light.make("squeezenet"))
    ask = ("--backend", "openvino", "--model", path, "--mode", "performance", "--max-batch", "1")

    def ours() -> float:
        if hint == "throughput":
            run = harness("--scenario", "offline", "--queries", "1500", *ask)
            return float(run.result["throughput_per_s"]["completed"])
        run = harness("--scenario", "single-stream", "--duration", "5s", *ask)
        return 1e9 / float(run.result["latency_ns"]["mean"])

    seen = pairs.alternate(
        lambda: noise.quiet(ours),
        lambda: noise.quiet(lambda: _benchmark_app(path, hint, 5)),
        count,
    )
    return [
        Row(
            name=f"openvino-{hint}",
            what=f"SqueezeNet, inferences/s over benchmark_app's with the hint {hint}, f32",
            unit="",
            limit="at least",
            bar=0.97,
            found=pairs.compared(seen, ratio),
            aa=pairs.same(seen, ratio),
            neutral=1.0,
            beside={"harness": estimate(seen.a).value, "benchmark_app": estimate(seen.b).value},
            runs={"harness": seen.a, "benchmark_app": seen.b},
        )
    ]


def _benchmark_app(path: str, hint: str, seconds: int) -> float:
    """Runs benchmark_app, a tool from the package openvino, and returns its inferences/s."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                str(Path(sys.executable).with_name("benchmark_app")), "-m", path, "-d", "CPU",
                "-hint", hint, "-infer_precision", "f32", "-t", str(seconds),
                "-shape", "[1,3,224,224]", "-json_stats", "-report_type", "no_counters",
                "-report_folder", folder,
            ],
            env=environment(),
            check=True,
            capture_output=True,
        )  # fmt: skip
        text = (Path(folder) / "benchmark_report.json").read_text(encoding="utf-8")
        return float(json.loads(text)["execution_results"]["throughput"])


def reference_tail(count: int, noise: Noise) -> list[Row]:
    """Compares the harness's p99 with the reference dispatcher's p99, which each run computes from bare loops before
    and after it.
    """
    path = str(onnx_light.make("squeezenet"))
    (bare,) = noise.quiet(partial(script, "bare.py", path, "4", "2x1x1"))
    rate = SHARE * float(bare["samples_per_s"])
    ask = (
        "--scenario", "server", "--backend", "ort", "--model", path, "--mode", "performance",
        "--instances", "2", "--threads", "1", "--max-batch", "8", "--slo", "p99=200ms",
        "--target-qps", f"{rate:.4g}", "--duration", "12s",
    )  # fmt: skip
    runs = [noise.quiet(lambda: harness(*ask)) for _ in range(count + 1)]
    found = [run.result["reference"] for run in runs]

    def row(name: str, what: str, told: Sequence[Mapping[str, float]]) -> Row:
        ratios = [float(one["ratio"]) for one in told]
        return Row(
            name=name,
            what=what,
            unit="",
            limit="at most",
            bar=1.15,
            found=estimate(ratios),
            aa=neighbours(ratios, ratio),
            neutral=1.0,
            beside={
                "queries/s": rate,
                "p99, ms": estimate([one["ours"] / 1e6 for one in found]).value,
                "reference, ms": estimate([one["reference"] / 1e6 for one in told]).value,
                "model's time in the run / in bare loops": estimate(
                    [one["model_ratio"] for one in found]
                ).value,
            },
            runs={"reference": found},
        )

    what = f"SqueezeNet server, p99 over the reference dispatcher's at {SHARE:.0%} of capacity"
    alike = [one["at_run_speed"] for one in found]
    return [
        row("reference-tail", what, found),
        row("reference-tail-at-run-speed", f"{what}, with the model's speed in the run", alike),
    ]


def peak_share(count: int, noise: Noise) -> list[Row]:
    """Alternates between a peak search and an Offline run with the same plan."""
    plan = ("--backend", "ort", "--instances", "2", "--threads", "1", "--max-batch", "64")
    shares, peaks, offlines = [], [], []
    for _ in range(count):
        peaks.append(noise.quiet(lambda: _peak(*plan, "--slo", "p99=10ms", "--duration", "5s")))
        offlines.append(noise.quiet(lambda: offline_rate(*plan, "--queries", "300000")))
        shares.append(peaks[-1] / offlines[-1])
    return [
        Row(
            name="peak-share",
            what="digits server, p99 ≤ 10 ms: peak rate over the offline rate of the same plan",
            unit="",
            limit="at least",
            bar=0.5,
            found=estimate(shares),
            aa=neighbours(shares, ratio),
            neutral=1.0,
            beside={"peak/s": estimate(peaks).value, "offline/s": estimate(offlines).value},
            runs={"peaks": peaks, "offline": offlines},
        )
    ]


def _peak(*arguments: str) -> float:
    """Returns the queries/s that `peak` finds, or 0 if `peak` finds none."""
    with tempfile.TemporaryDirectory() as parent:
        done = subprocess.run(
            [
                sys.executable, "-m", "harness", "peak", "--scenario", "server", *arguments,
                "--probe", "1500ms", "--no-metrics", "--no-report", "--json", "--quiet",
                "--out", str(Path(parent) / "peak"),
            ],
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
        if done.returncode not in (0, 4):
            raise RuntimeError(f"peak: status {done.returncode}: {done.stderr}")
        content: dict[str, Any] = json.loads(done.stdout)
        return float(content["peak"] or 0.0)


def watched_null(count: int, noise: Noise) -> list[Row]:
    """Measures the ladder of `server-null` while metrics, the machine and a meter are read."""
    bar, ladder = 120_000, (80_000, 120_000, 160_000)

    def one(rate: int) -> tuple[bool, float]:
        run = watched(
            (
                "--scenario", "server", "--backend", "null", "--mode", "performance",
                "--slo", f"p99={rates.BOUND_MS:g}ms", "--target-qps", str(rate),
                "--duration", f"{rates.DURATION_S}s",
            )
        )  # fmt: skip
        return run.result["verdict"] == "VALID", run.result["latency_ns"]["p99"] / 1e6

    seen = rates.search(one, ladder, count + 1, noise)
    return [rates.row("watched-null", "null backend, watched", bar, seen, {})]


ROWS: Mapping[str, Callable[[int, Noise], list[Row]]] = {
    "tuned-squeezenet": partial(tuned_offline, "squeezenet", 3_000),
    "tuned-resnet50": partial(tuned_offline, "resnet50", 320),
    "openvino-latency": partial(openvino, "latency"),
    "openvino-throughput": partial(openvino, "throughput"),
    "reference-tail": reference_tail,
    "peak-share": peak_share,
    "watched-null": watched_null,
}


def main(arguments: Sequence[str] | None = None) -> int:
    about = "Measures how close the harness comes to the limits of the machine."
    return command(ROWS, argparse.ArgumentParser(description=about), arguments)


if __name__ == "__main__":
    sys.exit(main())
