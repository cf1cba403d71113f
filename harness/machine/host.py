"""Describes the machine: hardware, software, free memory, load, and noise before a run."""

import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from harness.core.shown.private import host_id
from harness.core.stats import percentile_ns
from harness.core.units import NS_PER_MS
from harness.machine import cgroup, cores
from harness.machine.identity import machine_key
from harness.machine.kernel import text

_CPUS = Path("/sys/devices/system/cpu")
_CPU_INFO = Path("/proc/cpuinfo")
_CLOCK_SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")

VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "GOMP_CPU_AFFINITY",
    "MALLOC_ARENA_MAX",
    "LD_AUDIT",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "PYTHONHOME",
    "PYTHONPATH",
    "PYTHONWARNINGS",
    "COVERAGE_PROCESS_START",
)
PACKAGES = (
    "mlcommons-loadgen",
    "numpy",
    "onnxruntime",
    "onnxruntime-gpu",
    "openvino",
    "tensorflow",
    "tensorflow-cpu",
    "torch",
    "ai-edge-litert",
    "executorch",
    "treelite",
    "xgboost",
    "xgboost-cpu",
    "lightgbm",
    "ncnn",
    "mnn",
    "tract",
    "onnxruntime-genai",
    "openvino-genai",
    "xllamacpp",
    "pillow",
    "mlperf-harness",
)


def available_memory_bytes() -> int:
    """Returns the amount of memory that can still be allocated within the cgroup's limit."""
    free = psutil.virtual_memory().available
    left = cgroup.memory_left_bytes()
    return free if left is None else min(free, left)


def memory_bytes() -> int:
    """Returns the size of the machine's memory, or the cgroup's limit if the limit is lower."""
    total, limit = psutil.virtual_memory().total, cgroup.memory_limit_bytes()
    return total if limit is None else min(total, limit)


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """The wake-up delay of sleeping threads on this machine, and the share of processor time that other guests take."""

    p50_ns: int
    p99_ns: int
    steal: float | None
    """Share of processor time that other guests take, or None if the kernel does not report it."""

    def to_json(self) -> Mapping[str, object]:
        return {"p50": self.p50_ns, "p99": self.p99_ns, "steal": self.steal}


def noise_floor(seconds: float) -> NoiseFloor:
    """Measures the noise by repeated sleeps of 1 ms, because any harness on this machine suffers from the delay with
    which a thread wakes up.
    """
    before = _cpu_times()
    late: list[int] = []
    end = time.monotonic_ns() + int(seconds * 1e9)
    while (start := time.monotonic_ns()) < end or not late:
        time.sleep(0.001)
        late.append(time.monotonic_ns() - start - NS_PER_MS)
    late.sort()
    steal = _steal(before, _cpu_times())
    return NoiseFloor(percentile_ns(late, 0.50), percentile_ns(late, 0.99), steal)


class SystemLoad:
    """Measures the processor time that other processes use during a run."""

    def __init__(self, *measured: int) -> None:
        """measured: IDs of the measured processes. These processes must have ended and been waited for before `since`
        is called.
        """
        self._before = _cpu_times()
        self._start = time.monotonic()
        self._throttled_s = cgroup.throttled_s()
        self._not_ours_s = _own_cpu_s() + sum(map(_family_cpu_s, measured))

    def since(self) -> Mapping[str, float | None]:
        """Returns how the machine was used since this object was created.

        steal, others: shares of all cores' time that other guests (steal) and other processes (others) used.
        throttled_s: time for which the cgroup's quota stopped this container. Unknown values are None.
        """
        after = _cpu_times()
        wall = max(time.monotonic() - self._start, 1e-9)
        busy = sum(after.get(k, 0) - self._before.get(k, 0) for k in ("user", "nice", "system"))
        own = _own_cpu_s() - self._not_ours_s
        others = max(0.0, busy - own) / (wall * (os.cpu_count() or 1))
        throttled_s = cgroup.throttled_s()
        if throttled_s is not None and self._throttled_s is not None:
            throttled_s -= self._throttled_s
        return {
            "steal": _steal(self._before, after),
            "others": others,
            "throttled_s": throttled_s,
        }


def _own_cpu_s() -> float:
    """Returns the processor time of this process and of all children that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _family_cpu_s(pid: int) -> float:
    """Returns the processor time of a process and all its descendants that are running or have been waited for."""
    used_s = 0.0
    process = psutil.Process(pid)
    for each in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            used_s += times.user + times.system + times.children_user + times.children_system
    return used_s


def _cpu_times() -> dict[str, float]:
    return dict(psutil.cpu_times()._asdict())


def _steal(before: Mapping[str, float], after: Mapping[str, float]) -> float | None:
    """Returns the share of processor time that other guests took, or None if the kernel does not report it."""
    if "steal" not in after:
        return None
    # Guest time is left out, because user time already includes it.
    total = sum(after[k] - before[k] for k in after if not k.startswith("guest"))
    return (after["steal"] - before["steal"]) / total if total > 0 else 0.0


def fingerprint() -> Mapping[str, Any]:
    """Returns the content of environment.json: machine, system, software versions, and settings that affect the speed."""
    usable = cores.available()
    about = _about(usable)
    return {
        "machine": {**about, "fingerprint": machine_key(about)},
        "system": {
            "os": _os_name(),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "switch_interval_s": sys.getswitchinterval(),
            "clock_source": text(_CLOCK_SOURCE) or None,
        },
        "packages": _package_versions(),
        "variables": {k: _names(os.environ[k]) for k in VARIABLES if k in os.environ},
        "harness": _harness_version(),
    }


def _about(usable: cores.Cores) -> dict[str, Any]:
    """Describes the machine, but omits the key under which the verb `machine` stores its measurements."""
    return {
        "host": host_id(),
        "cpu": _cpu_model(),
        "architecture": platform.machine(),
        "cores_online": os.cpu_count(),
        "cores_usable": usable.threads,
        "cores_physical": len(usable.groups),
        "smt_active": text(_CPUS / "smt/active") or None,
        "governor": text(_CPUS / "cpu0/cpufreq/scaling_governor") or None,
        "turbo": turbo(),
        "memory_bytes": psutil.virtual_memory().total,
        "hypervisor": "hypervisor" in text(_CPU_INFO),
        "cgroup_cpu_cores": cgroup.cpu_limit(),
        "cgroup_memory_bytes": cgroup.memory_limit_bytes(),
    }


def _names(variable: str) -> str:
    """Removes the folders from an environment variable; for example, '/opt/x/libtcmalloc.so:/y/z.so' becomes
    'libtcmalloc.so:z.so'.
    """
    return re.sub(r"[^\s:]*/", "", variable)


def turbo(cpus: Path = _CPUS) -> bool | None:
    """Returns whether cores may exceed their nominal frequency, or None if the kernel does not report it."""
    off, on = text(cpus / "intel_pstate/no_turbo"), text(cpus / "cpufreq/boost")
    return off == "0" if off else on == "1" if on else None


def _package_versions() -> Mapping[str, str]:
    found = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _harness_version() -> Mapping[str, object]:
    """Returns the harness's version and, in a checkout, the commit and whether files differ from the commit."""
    from harness import __version__

    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return {"version": __version__, "commit": None}
    commit = _git(root, "rev-parse", "HEAD")
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    return {
        "version": __version__,
        "commit": commit,
        "changed": None if changed is None else bool(changed),
    }


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _cpu_model() -> str:
    for line in text(_CPU_INFO).splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def cpu_flags() -> frozenset[str]:
    """Returns the kernel's names for the instruction sets (x86 "flags", Arm "Features"), or an empty set if they are
    unknown.
    """
    for line in text(_CPU_INFO).splitlines():
        name, _, flags = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(flags.split())
    return frozenset()


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()
