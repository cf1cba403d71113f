"""Measures everything that needs a GPU: python benchmarks/gpu_day.py OUT [--limit 540]

The script writes each measured row to OUT/gpu_day.json immediately, and does not measure stored rows again. When the
time limit ends the script, start it again with the same OUT, or with a copy of gpu_day.json in a new one. At the end,
the script writes OUT/gpu_day.html. Models and runs are stored in --work, because they are large. All rows take about
half an hour, and most of this time is spent loading and warming up models. --device cpu --short tries every section on
a processor. scripts/gpu_day.sh installs the required packages.
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
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import bare_gpu, gpu_models, gpu_page
from benchmarks.command import HERE, ROOT
from harness.backends.parts.torch_cuda import take_rows
from harness.core.console import say
from harness.core.files import write_text
from harness.errors import HarnessError
from harness.machine.gpus import Gpus

Facts = Mapping[str, Any]
_FASTEST = ("precision=f16", "layout=channels-last")
FILE = "gpu_day.json"
_RUN_LIMIT_S = 90
_MODELS_LIMIT_S = 300
_SMI_PERIOD_MS = 100
_LEAST_S = 30
"""If less time than this remains, no further run starts."""


class OutOfTimeError(Exception):
    """Raised if too little time remains for another row."""


class Day(NamedTuple):
    """The folder, the device and the rows, which all sections share."""

    out: Path
    work: Path
    """Folder for models, runs and profiles."""
    device: str
    short: bool
    end_s: float
    """Time on the monotonic clock at which the script must end."""
    rows: dict[str, dict[str, Any]]
    """Stored rows: maps a section to its labels, and a label to its numbers."""

    @property
    def models(self) -> Path:
        return self.work / "models"

    @property
    def left_s(self) -> float:
        return self.end_s - time.monotonic()

    def command(
        self, *words: str | Path, limit_s: float = _RUN_LIMIT_S, check: bool = False
    ) -> "subprocess.CompletedProcess[str]":
        """Runs a Python command until its own limit or the end of the script's time, whichever is earlier."""
        command = [sys.executable, *map(str, words)]
        limit_s = max(1.0, min(limit_s, self.left_s))
        return subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=check
        )

    def row(self, section: str, label: str, measure: Callable[[], Any]) -> Any:
        """Returns the stored row if it exists, otherwise the result of `measure`; if `measure` fails, returns
        {"missing": reason}.
        """
        rows = self.rows.setdefault(section, {})
        if label in rows and "missing" not in rows[label]:
            return rows[label]
        if self.left_s < _LEAST_S:
            raise OutOfTimeError(f"{section}, {label}")
        try:
            rows[label] = measure()
        except (subprocess.SubprocessError, OSError, LookupError, TypeError, ValueError) as e:
            rows[label] = {"missing": f"{type(e).__name__}: {e}"}
            say(f"{section}, {label}: {rows[label]['missing']}")
        self.store()
        return rows[label]

    def store(self) -> None:
        write_text(self.out / FILE, json.dumps(self.rows, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--work", type=Path, help="default: OUT/work")
    parser.add_argument("--limit", type=float, default=540.0, metavar="SECONDS")
    parser.add_argument(
        "--only", nargs="+", choices=[*SECTIONS], default=[*SECTIONS], metavar="SECTION"
    )
    arguments = parser.parse_args()
    if arguments.device != "cpu" and not torch.cuda.is_available():
        parser.error("PyTorch finds no GPU here; `--device cpu --short` tries the script")
    out: Path = arguments.out.absolute()
    work: Path = (arguments.work or out / "work").absolute()
    out.mkdir(parents=True, exist_ok=True)
    stored = json.loads((out / FILE).read_text()) if (out / FILE).exists() else {}
    end_s = time.monotonic() + arguments.limit
    day = Day(out, work, arguments.device, arguments.short, end_s, stored)
    if not all((day.models / name).exists() for name in gpu_models.NAMES):
        sizes = ["--short"] if day.short else []
        make = ("-P", HERE / "gpu_models.py", day.models)
        day.command(*make, *sizes, limit_s=_MODELS_LIMIT_S, check=True)
    for name in arguments.only:
        began_s = time.monotonic()
        try:
            SECTIONS[name](day)
        except OutOfTimeError as e:
            say(f"the time is over at {e}: start again with the same folder")
            break
        say(f"{name}: {time.monotonic() - began_s:.0f} s")
    day.rows["targets"] = gpu_page.targets(day.rows)
    day.store()
    try:
        gpu_page.write(day.rows, (out / FILE).with_suffix(".html"))
    except HarnessError as e:
        say(f"no page: {e}")
    print(json.dumps(day.rows))


def run(day: Day, name: str, *words: str, seconds: float = 3.0) -> Facts:
    """Makes one run and returns its result.json. Raises a ValueError if the run wrote no result."""
    out = day.work / "runs" / name
    for old in (out, out.with_name(f"{name}.partial")):
        shutil.rmtree(old, ignore_errors=True)
    length = ("--queries", "30") if day.short else ("--duration", f"{seconds:g}s")
    at = ("-m", "harness", "--backend", "torch", "--device", day.device)
    done = day.command(*at, *length, "--no-report", "--out", out, *words)
    for folder in (out, out.with_name(f"{name}.partial")):
        if (folder / "result.json").is_file():
            result: Facts = json.loads((folder / "result.json").read_text())
            return result
    raise ValueError(f"{name}: exit status {done.returncode}: {done.stderr.strip()[-500:]}")


def _options(day: Day, *options: str) -> list[str]:
    """Returns the command-line words for the backend options; on a processor, omits options that only GPUs support."""
    of_gpus = ("cuda_graph", "spinning", "autotune", "precision=tf32", "precision=f16")
    takes = [o for o in options if day.device != "cpu" or not o.startswith(of_gpus)]
    return [word for option in takes for word in ("--backend-option", option)]


def brief(result: Facts) -> dict[str, Any]:
    """Returns the numbers of a run that the tables show."""
    latency, about = result.get("latency_ns") or {}, result.get("backend_description") or {}
    use = about.get("use") or {}
    gpus = (result.get("host") or {}).get("gpus") or [{}]
    power = (result.get("power") or {}).get("readings") or [{}]
    return {
        "verdict": result["verdict"],
        "instances": result["plan"]["instances"],
        "codes": [one["code"] for one in (*result["reasons"], *result["doubts"])],
        "samples_per_s": (result.get("throughput_per_s") or {}).get("completed"),
        **{f"{p}_us": latency[p] / 1e3 for p in ("p50", "p90", "p99") if latency.get(p)},
        "stages_p50_us": {
            name: one["p50"] / 1e3 for name, one in (result.get("stages_ns") or {}).items()
        },
        "precision": about.get("precision"),
        "cuda_graphs": use.get("cuda_graphs"),
        "cuda_graphs_reason": use.get("cuda_graphs_reason"),
        "sizes_not_warm": (result.get("warm_up") or {}).get("skipped"),
        "gpu_memory_peak_bytes": use.get("gpu_memory_peak_bytes"),
        "busy_share": gpus[0].get("busy_share"),
        "peak_watts": gpus[0].get("peak_watts"),
        "slowdowns": gpus[0].get("slowdowns"),
        "joules_per_sample": power[0].get("joules_per_sample"),
    }


def device(day: Day) -> None:
    def about() -> Facts:
        gpus = Gpus(day.device)
        return {
            "name": torch.cuda.get_device_name() if day.device != "cpu" else "cpu",
            "torch": torch.__version__,
            "cores": os.cpu_count(),
            "gpus": gpus.about(),
            "gpus_reason": gpus.missing,
        }

    day.row("device", "device", about)


def contract(day: Day) -> None:
    def tests() -> Facts:
        words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line", "--show-capture=no")
        files = [
            f"tests/plugins/backends/test_{name}.py" for name in ("gpu", "torch_cuda", "contract")
        ]
        # Of the contract tests, only those on a GPU are selected, by the device in their names.
        chosen = ("-k", "test_gpu or test_torch_cuda or -cuda]")
        done = day.command(*words, *chosen, *files, limit_s=2 * _RUN_LIMIT_S)
        lines = [line for line in done.stdout.splitlines() if "DEBUG" not in line]
        failures = [line for line in lines if line.startswith(("FAILED", "E "))]
        return {"summary": lines[-1], "failures": failures}

    day.row("contract", "tests", tests)


def accuracy(day: Day) -> None:
    """Measures the accuracy of a trained network in each precision."""

    def of(precision: str) -> Facts:
        words = ("--scenario", "offline", "--model", "digits")
        options = _options(day, f"precision={precision}")
        result = run(day, f"digits-{precision}", *words, *options, seconds=1)
        return {"percent": result["accuracy"]["value"], "verdict": result["verdict"]}

    for precision in ("f32",) if day.device == "cpu" else ("f32", "tf32", "f16", "bf16"):
        day.row("accuracy", precision, partial(of, precision))


def scenarios(day: Day) -> None:
    configurations = {
        "resnet50 f16 channels-last": ("resnet50.pt2", _FASTEST),
        "resnet50 f32": ("resnet50.pt2", ("precision=f32",)),
        "bert f16": ("bert.pt2", ("precision=f16",)),
        "gpt f16": ("gpt.pt2", ("precision=f16",)),
    }
    for label, (file, options) in [*configurations.items()][-1 if day.short else 0 :]:
        words = [*_model(day, file), *_options(day, *options)]
        rate = None
        for scenario in ("single-stream", "multi-stream", "offline", "server"):
            if scenario == "server" and not rate:
                continue
            more = ("--target-qps", f"{rate / 2:.6g}") if scenario == "server" and rate else ()
            row = _measured(day, "scenarios", f"{label}, {scenario}", scenario, *words, *more)
            rate = row.get("samples_per_s") if scenario == "offline" else None


def _measured(day: Day, section: str, label: str, scenario: str, *words: str) -> Facts:
    """Makes one performance run and returns its row."""
    name = re.sub(r"\W+", "-", f"{section} {label}")
    at = ("--scenario", scenario, "--mode", "performance", *words)

    def timed() -> Facts:
        began_s = time.monotonic()
        numbers = brief(run(day, name, *at))
        return {**numbers, "command_s": round(time.monotonic() - began_s, 1)}

    row: Facts = day.row(section, label, timed)
    return row


def _model(day: Day, file: str) -> list[str]:
    return ["--model", str(day.models / file)]


def bare(day: Day) -> None:
    """Compares the harness with a bare loop that does the same work, in alternation: the rate of Offline, and a single
    query.
    """
    if day.device == "cpu":
        return
    for file, layout in (("resnet50", "channels-last"), ("bert", "default")):
        path = day.models / f"{file}.pt2"
        words = [*_model(day, path.name), *_options(day, "precision=f16", f"layout={layout}")]
        words += ["--performance-count", str(bare_gpu.SAMPLES)]
        for turn in ("first", "second"):
            day.row("bare", f"{file}, loop, {turn}", partial(_loop, day, path, layout))
            for scenario in ("offline", "single-stream"):
                _measured(day, "bare", f"{file}, {scenario}, {turn}", scenario, *words)


def _loop(day: Day, path: Path, layout: str) -> Facts:
    script = HERE / "bare_gpu.py"
    done = day.command("-P", script, path, "2", "f16", layout, "64", check=True)
    found: Facts = json.loads(done.stdout)
    return found


def gather(day: Day) -> None:
    """Times the copy of a batch of 64 images from random places, by number of threads."""
    size = (16 if day.short else 64, 3, 224, 224)
    threads = torch.get_num_threads()

    def of(count: int) -> Facts:
        rows = np.random.default_rng(0).random((bare_gpu.SAMPLES, *size[1:]), np.float32)
        places = np.random.default_rng(1).permutation(bare_gpu.SAMPLES)
        pinned = torch.empty(size, pin_memory=day.device != "cpu").numpy()
        times_ns = []
        torch.set_num_threads(count)
        for batch in np.resize(places, (3 if day.short else 100, size[0])):
            began_ns = time.perf_counter_ns()
            take_rows(rows, batch, pinned)
            times_ns.append(time.perf_counter_ns() - began_ns)
        torch.set_num_threads(threads)
        return {"rows": size[0], "p50_us": median(times_ns) / 1e3}

    for count in sorted({1, min(4, threads), threads}):
        day.row("gather", f"threads {count}", partial(of, count))


def server(day: Day) -> None:
    """Measures p99 by load with the harness's own plan, and with other numbers of instances."""
    words = [*_model(day, "resnet50.pt2"), *_options(day, *_FASTEST)]
    capacity = _measured(day, "server", "capacity", "offline", *words).get("samples_per_s")
    if not capacity:
        return

    def at(label: str, share: float, *plan: str) -> None:
        rate = ("--target-qps", f"{share * capacity:.6g}")
        _measured(day, "server", label, "server", *rate, *plan, *words)

    for share in (0.5,) if day.short else (0.25, 0.5, 0.75, 0.85, 0.95):
        at(f"load {share}", share)
    for instances, share in [] if day.short else product(("1", "2", "4"), (0.5, 0.85)):
        at(f"load {share}, {instances} instances", share, "--instances", instances)


def options(day: Day) -> None:
    """Measures the configurations with and without each option."""
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
    for label, chosen in [*each.items()][: 2 if day.short else None]:
        words = [*_model(day, "resnet50.pt2"), *_options(day, *chosen)]
        for scenario in ("single-stream", "offline"):
            _measured(day, "options", f"{label}, {scenario}", scenario, *words)


def energy(day: Day) -> None:
    """Compares NVML's counter, read by the harness, with the power that nvidia-smi samples during the run."""

    def measured() -> Facts:
        words = [*_model(day, "gpt.pt2"), *_options(day, "precision=f16"), "--mode", "performance"]
        ask = ["nvidia-smi", "--query-gpu=power.draw.instant", "--format=csv,noheader,nounits"]
        with subprocess.Popen(
            [*ask, "-lms", str(_SMI_PERIOD_MS)], stdout=subprocess.PIPE, text=True
        ) as smi:
            try:
                at = ("--scenario", "offline", *words, "--meter", "nvml")
                result = run(day, "energy", *at, seconds=6)
            finally:
                smi.terminate()
            lines = [line.strip() for line in smi.stdout or ()]
        watts = [float(line) for line in lines if re.fullmatch(r"[\d.]+", line)]
        (reading,) = result["power"]["readings"]
        rows = round(result["power"]["seconds"] * 1000 / _SMI_PERIOD_MS)
        spans = (watts[n : n + rows] for n in range(max(1, len(watts) - rows)))
        return {
            "harness, mean W": reading["mean_watts"],
            "nvidia-smi, mean W of the busiest span as long": max(map(fmean, spans)),
            "joules_per_sample": reading["joules_per_sample"],
            "idle_watts": reading["idle_watts"],
        }

    if shutil.which("nvidia-smi") is not None:
        day.row("energy", "gpt f16, offline", measured)


def machine(day: Day) -> None:
    def points() -> Facts:
        out = day.work / "machine"
        shutil.rmtree(out, ignore_errors=True)
        which = "gpu" if day.device != "cpu" else "gemm/numpy/fp32/256/1"
        day.command("-m", "harness", "machine", "--filter", which, "--out", out, check=True)
        measured = json.loads((out / "machine.json").read_text())["points"]
        return {
            name: {"per_s": p["work"] / median(p["repetitions_ns"]) * 1e9, "unit": p["unit"]}
            for name, p in measured.items()
            if p.get("repetitions_ns")
        }

    day.row("machine", "points", points)


def profile(day: Day) -> None:
    """Uses the profiler to show how one batch spends its time."""

    def text() -> Facts:
        out = day.work / "profile"
        shutil.rmtree(out, ignore_errors=True)
        words = [*_model(day, "resnet50.pt2"), *_options(day, *_FASTEST)]
        at = ("--backend", "torch", "--device", day.device, "--duration", "1s", "--out", out)
        limit_s = 2 * _RUN_LIMIT_S
        done = day.command("-m", "harness", "profile", *at, *words, limit_s=limit_s, check=True)
        return {"text": done.stdout.splitlines()[:60]}

    day.row("profile", "resnet50 f16 channels-last", text)


SECTIONS: Mapping[str, Callable[[Day], None]] = {
    each.__name__: each
    for each in (
        device,
        contract,
        bare,
        scenarios,
        accuracy,
        gather,
        server,
        energy,
        machine,
        profile,
        options,
    )
}

if __name__ == "__main__":
    main()
