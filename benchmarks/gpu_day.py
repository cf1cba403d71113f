"""Measures everything that needs a GPU, in at most nine minutes: python benchmarks/gpu_day.py OUT [--limit 540]

Each section is kept in OUT/gpu_day.json as soon as it is measured, and sections that are there are left out: begin
again with the same OUT where the time ran out. --device cpu --short tries every section on a processor.
scripts/gpu_day.sh makes what it needs.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.command import HERE, ROOT
from harness.core.console import say
from harness.machine.gpus import Gpus

Facts = Mapping[str, Any]
_FASTEST = ("precision=f16", "layout=channels-last")
_RUN_LIMIT_S = 90
_SMI_PERIOD_MS = 100
_LEAST_S = 30
"""No run is begun with less time left."""


class Day(NamedTuple):
    """What the sections share."""

    out: Path
    device: str
    short: bool
    end_s: float
    """By the monotonic clock."""

    @property
    def models(self) -> Path:
        return self.out / "models"

    def left_s(self) -> float:
        return self.end_s - time.monotonic()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--limit", type=float, default=540.0, metavar="SECONDS")
    parser.add_argument("--only", default="", metavar="SECTION")
    given = parser.parse_args()
    end_s = time.monotonic() + given.limit
    day = Day(given.out.absolute(), given.device, given.short, end_s)
    day.out.mkdir(parents=True, exist_ok=True)
    path = day.out / "gpu_day.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    short = ["--short"] if day.short else []
    _python("gpu_models.py", str(day.models), *short)
    for name, section in SECTIONS.items():
        if name in found or given.only not in name:
            continue
        if day.left_s() < _LEAST_S:
            say(f"{name}: left out, the time is over; begin again with the same folder")
            continue
        began = time.monotonic()
        try:
            found[name] = section(day)
        except (subprocess.SubprocessError, OSError, KeyError, ValueError) as e:
            say(f"{name}: {type(e).__name__}: {e}")
            continue
        found[name]["seconds"] = round(time.monotonic() - began, 1)
        path.write_text(json.dumps(found, indent=1))
        say(f"{name}: {found[name]['seconds']} s")
    print(json.dumps(found))


def _python(script: str, *words: str) -> str:
    command = [sys.executable, "-P", str(HERE / script), *words]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_RUN_LIMIT_S, check=False
    )
    if done.returncode:
        raise ValueError(f"{script}: {done.stderr.strip()[-500:]}")
    return done.stdout


def run(day: Day, name: str, *words: str, seconds: float = 3.0) -> Facts:
    """The result.json of one run, or its end where it left none."""
    out = day.out / "runs" / name
    for old in (out, out.with_name(f"{name}.partial")):
        shutil.rmtree(old, ignore_errors=True)
    length = ("--queries", "30") if day.short else ("--duration", f"{seconds:g}s")
    command = [
        *(sys.executable, "-m", "harness", "--backend", "torch", "--device", day.device),
        *(*length, "--no-report", "--out", str(out), *words),
    ]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=_RUN_LIMIT_S, check=False
    )
    for folder in (out, out.with_name(f"{name}.partial")):
        if (folder / "result.json").is_file():
            result: Facts = json.loads((folder / "result.json").read_text())
            return result
    raise ValueError(f"{name}: exit status {done.returncode}: {done.stderr.strip()[-500:]}")


def _options(day: Day, *options: str) -> list[str]:
    """Options that a processor refuses are left out there."""
    of_gpus = ("cuda_graph", "spinning", "autotune", "precision=tf32", "precision=f16")
    takes = [o for o in options if day.device != "cpu" or not o.startswith(of_gpus)]
    return [word for option in takes for word in ("--backend-option", option)]


def brief(result: Facts) -> dict[str, Any]:
    """The numbers of a run that the tables show."""
    latency, about = result.get("latency_ns") or {}, result.get("backend_description") or {}
    gpus = (result.get("host") or {}).get("gpus") or [{}]
    power = (result.get("power") or {}).get("readings") or [{}]
    return {
        "verdict": result["verdict"],
        "codes": [one["code"] for one in (*result["reasons"], *result["doubts"])],
        "samples_per_s": (result.get("throughput_per_s") or {}).get("completed"),
        **{f"{p}_us": latency[p] / 1e3 for p in ("p50", "p90", "p99") if latency.get(p)},
        "precision": about.get("precision"),
        "cuda_graphs": about.get("cuda_graphs"),
        "gpu_memory_peak_bytes": about.get("gpu_memory_peak_bytes"),
        "busy_share": gpus[0].get("busy_share"),
        "peak_watts": gpus[0].get("peak_watts"),
        "slowdowns": gpus[0].get("slowdowns"),
        "joules_per_sample": power[0].get("joules_per_sample"),
    }


def device(day: Day) -> dict[str, Any]:
    import torch

    on_gpu = day.device != "cpu"
    gpus = Gpus(day.device)
    return {
        "name": torch.cuda.get_device_name() if on_gpu else "cpu",
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "gpus": gpus.about(),
        "missing": gpus.missing,
    }


def contract(day: Day) -> dict[str, Any]:
    del day
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line"]
    tests = ("tests/plugins/backends/test_gpu.py", "tests/plugins/backends/test_torch_cuda.py")
    done = subprocess.run(
        [*command, "--show-capture=no", *tests],
        cwd=ROOT, capture_output=True, text=True, timeout=2 * _RUN_LIMIT_S, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if "DEBUG" not in line]
    return {"summary": lines[-1], "failures": [x for x in lines if x.startswith(("FAILED", "E "))]}


def accuracy(day: Day) -> dict[str, Any]:
    """A trained network, whose answers are right or wrong, beside the processor."""
    found: dict[str, Any] = {}
    ways = ("f32",) if day.device == "cpu" else ("f32", "tf32", "f16", "bf16")
    for precision in ways:
        words = ("--scenario", "offline", "--model", "digits")
        options = _options(day, f"precision={precision}")
        result = run(day, f"digits-{precision}", *words, *options, seconds=1)
        found[precision] = (result["accuracy"]["value"], result["verdict"])
    return found


def scenarios(day: Day) -> dict[str, Any]:
    found: dict[str, Any] = {}
    configurations = {
        "resnet50 f16 channels-last": ("resnet50.pt2", _FASTEST),
        "resnet50 f32": ("resnet50.pt2", ("precision=f32",)),
        "bert f16": ("bert.pt2", ("precision=f16",)),
        "gpt f16": ("gpt.pt2", ("precision=f16",)),
    }
    for label, (file, options) in configurations.items():
        words = [*_model(day, file), *_options(day, *options)]
        rate = 1.0
        for scenario in ("single-stream", "multi-stream", "offline", "server"):
            if day.left_s() < _LEAST_S:
                return found
            more = ["--target-qps", f"{rate / 2:.6g}"] if scenario == "server" else []
            name = re.sub(r"\W", "-", f"{label}-{scenario}")
            at = ("--scenario", scenario, "--mode", "performance", *words, *more)
            found[f"{label}, {scenario}"] = row = brief(run(day, name, *at))
            if scenario == "offline":
                rate = row["samples_per_s"]
    return found


def _model(day: Day, file: str) -> list[str]:
    return ["--model", str(day.models / file)]


def bare(day: Day) -> dict[str, Any]:
    """The harness over a bare loop of the same work, in turns: Offline's rate, and a query alone."""
    found: dict[str, Any] = {}
    seconds = 2.0
    for file, precision, layout in (
        ("resnet50", "f16", "channels-last"),
        ("bert", "f16", "default"),
    ):
        if day.device == "cpu":
            return {"left out": "the bare loop is of a GPU"}
        options = _options(day, f"precision={precision}", f"layout={layout}")
        words = [*_model(day, f"{file}.pt2"), *options, "--mode", "performance"]
        rates, alone = [], []
        for turn in range(2):
            path = str(day.models / f"{file}.pt2")
            loop = json.loads(_python("bare_gpu.py", path, str(seconds), precision, layout, "64"))
            offline = run(day, f"bare-{file}-{turn}", "--scenario", "offline", *words)
            stream = run(day, f"bare-{file}-s{turn}", "--scenario", "single-stream", *words)
            rates.append((brief(offline)["samples_per_s"], loop["samples_per_s"]))
            alone.append((stream["latency_ns"]["p50"] / 1e3, loop["p50_ns"] / 1e3))
        found[file] = {
            "offline, samples/s": rates,
            "offline, harness over bare": fmean(a / b for a, b in rates),
            "single-stream p50, us": alone,
            "single-stream, harness less bare, us": fmean(a - b for a, b in alone),
        }
    return found


def server(day: Day) -> dict[str, Any]:
    """p99 against load, and beside fixed plans at three quarters of the capacity."""
    words = [*_model(day, "resnet50.pt2"), *_options(day, *_FASTEST), "--mode", "performance"]
    capacity = brief(run(day, "server-offline", "--scenario", "offline", *words))["samples_per_s"]
    found: dict[str, Any] = {"capacity": capacity, "by load": {}, "by plan": {}}
    for share in (0.1, 0.25, 0.5, 0.75, 0.85, 0.95):
        rate = ("--scenario", "server", "--target-qps", f"{share * capacity:.6g}")
        found["by load"][str(share)] = brief(run(day, f"server-{share}", *rate, *words))
    rate = ("--scenario", "server", "--target-qps", f"{0.75 * capacity:.6g}")
    for instances, batch in product(("1", "2", "4"), ("32", "128")):
        if day.left_s() < _LEAST_S or (day.short and found["by plan"]):
            break
        plan = ("--instances", instances, "--max-batch", batch)
        name = f"{instances} x {batch}"
        found["by plan"][name] = brief(run(day, f"plan-{instances}-{batch}", *rate, *plan, *words))
    return found


def options(day: Day) -> dict[str, Any]:
    """Each option against the configuration without it."""
    found: dict[str, Any] = {}
    each = {
        "f16 channels-last": _FASTEST,
        "f16": ("precision=f16",),
        "bf16 channels-last": ("precision=bf16", "layout=channels-last"),
        "tf32": ("precision=tf32",),
        "f16 channels-last, no graph": (*_FASTEST, "cuda_graph=off"),
        "f16 channels-last, no spinning": (*_FASTEST, "spinning=off"),
        "f16 channels-last, autotune": (*_FASTEST, "autotune=on"),
        "f16 channels-last, compile": (*_FASTEST, "compile=on"),
    }
    for (label, chosen), scenario in product(each.items(), ("single-stream", "offline")):
        if day.left_s() < _LEAST_S or (day.short and len(found) == 4):
            break
        name = re.sub(r"\W", "-", f"option-{label}-{scenario}")
        words = [*_model(day, "resnet50.pt2"), *_options(day, *chosen), "--mode", "performance"]
        found[f"{label}, {scenario}"] = brief(
            run(day, name, "--scenario", scenario, *words, seconds=2)
        )
    return found


def energy(day: Day) -> dict[str, Any]:
    """NVML's counter through the harness, beside the power that nvidia-smi samples meanwhile."""
    words = [*_model(day, "gpt.pt2"), *_options(day, "precision=f16"), "--mode", "performance"]
    at = ("--scenario", "offline", *words)
    if shutil.which("nvidia-smi") is None:
        return {"left out": "there is no nvidia-smi"}
    ask = ["nvidia-smi", "--query-gpu=power.draw.instant", "--format=csv,noheader,nounits"]
    with subprocess.Popen(
        [*ask, "-lms", str(_SMI_PERIOD_MS)], stdout=subprocess.PIPE, text=True
    ) as smi:
        result = run(day, "energy", *at, "--meter", "nvml", seconds=6)
        smi.terminate()
        watts = [float(line) for line in smi.stdout or () if re.fullmatch(r"[\d.]+", line.strip())]
    (reading,) = result["power"]["readings"]
    rows = round(result["power"]["seconds"] * 1000 / _SMI_PERIOD_MS)
    busiest = max(
        (fmean(watts[n : n + rows]) for n in range(max(1, len(watts) - rows))), default=0.0
    )
    return {
        "harness, mean W": reading["mean_watts"],
        "nvidia-smi, mean W of the busiest span as long": busiest,
        "joules_per_sample": reading["joules_per_sample"],
        "idle_watts": reading["idle_watts"],
    }


def machine(day: Day) -> dict[str, Any]:
    out = day.out / "machine"
    shutil.rmtree(out, ignore_errors=True)
    which = "gpu" if day.device != "cpu" else "gemm/numpy/fp32/256/1"
    command = [sys.executable, "-m", "harness", "machine", "--filter", which, "--out", str(out)]
    subprocess.run(command, cwd=ROOT, capture_output=True, timeout=_RUN_LIMIT_S, check=True)
    points = json.loads((out / "machine.json").read_text())["points"]
    return {
        name: {"per_s": p["work"] / min(p["repetitions_ns"]) * 1e9, "unit": p["unit"]}
        for name, p in points.items()
        if p.get("repetitions_ns")
    }


def profile(day: Day) -> dict[str, Any]:
    """Where the time of one batch goes, by the profiler."""
    out = day.out / "profile"
    shutil.rmtree(out, ignore_errors=True)
    words = [*_model(day, "resnet50.pt2"), *_options(day, *_FASTEST)]
    at = ("--backend", "torch", "--device", day.device, "--duration", "1s", "--out", str(out))
    command = [sys.executable, "-m", "harness", "profile", *at, *words]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=_RUN_LIMIT_S, check=True
    )
    return {"text": done.stdout.splitlines()[:60]}


SECTIONS: Mapping[str, Callable[[Day], dict[str, Any]]] = {
    each.__name__: each
    for each in (
        device,
        contract,
        bare,
        scenarios,
        accuracy,
        server,
        energy,
        machine,
        profile,
        options,
    )
}

if __name__ == "__main__":
    main()
