"""Reads the GPUs of a run through NVML: the model and settings once, and the state every second."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from harness.errors import one_line
from harness.machine.family import Row

_IDLE = 0x1
SLOWDOWNS: Mapping[int, str] = {
    0x2: "applications clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "heat (driver)",
    0x40: "heat (hardware)",
    0x80: "power brake",
    0x100: "display clocks",
}
"""Maps bits of nvmlClocksEventReasons, except the bit for idle, to names."""

PROTECTIVE = frozenset({"hardware slowdown", "heat (driver)", "heat (hardware)", "power brake"})
"""Slowdowns that protect the GPU."""

_SM, _MEMORY, _CORE_TEMPERATURE = 1, 2, 0
"""Numbers of nvmlClockType_t and nvmlTemperatureSensors_t."""


class _Unknown(Exception):
    """Raised if a reading is meaningless on this machine."""


class Gpu(NamedTuple):
    number: int
    """CUDA device index of the GPU in this process."""
    handle: Any


class Gpus:
    """The GPUs that a run uses. NVML stays open until the process ends.

    device: the run's --device. missing: the reason why NVML cannot be read, or '' if NVML can be read.
    """

    def __init__(self, device: str = "cpu") -> None:
        self.missing = ""
        self._gpus: Sequence[Gpu] = ()
        if device == "cpu":
            return
        # By default, CUDA numbers the fastest GPU first; this setting selects NVML's order, by PCI bus.
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        try:
            import pynvml
        except ImportError:
            self.missing = (
                "the module 'pynvml', which reads them, is not installed: run ./run.sh install nvml"
            )
            return
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
            numbers = device.partition(":")[2] or "0"
            self._gpus = [Gpu(int(n), self._handle(int(n))) for n in numbers.split(",")]
        except (pynvml.NVMLError, IndexError) as e:
            self.missing = f"NVML: {one_line(e)}"

    def _handle(self, number: int) -> Any:
        """Returns the NVML handle for a GPU. CUDA_VISIBLE_DEVICES hides and reorders GPUs for CUDA, but NVML counts all
        GPUs.
        """
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        name = visible.split(",")[number].strip() if visible else str(number)
        if name.isdecimal():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(name))
        return self._nvml.nvmlDeviceGetHandleByUUID(name)

    def about(self) -> list[dict[str, Any]]:
        """Returns the model and settings of each GPU, without values that NVML does not support."""
        return [dict(self._about(gpu)) for gpu in self._gpus]

    def _about(self, gpu: Gpu) -> Iterator[tuple[str, Any]]:
        n, handle = self._nvml, gpu.handle
        yield "number", gpu.number
        tries: dict[str, Callable[[], Any]] = {
            "name": lambda: n.nvmlDeviceGetName(handle),
            "driver": n.nvmlSystemGetDriverVersion,
            "memory_bytes": lambda: n.nvmlDeviceGetMemoryInfo(handle).total,
            "sm_mhz_max": lambda: n.nvmlDeviceGetMaxClockInfo(handle, _SM),
            "memory_mhz_max": lambda: n.nvmlDeviceGetMaxClockInfo(handle, _MEMORY),
            "power_limit_watts": lambda: n.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3,
            "power_limit_default_watts": (
                lambda: n.nvmlDeviceGetPowerManagementDefaultLimit(handle) / 1e3
            ),
            "ecc": lambda: bool(n.nvmlDeviceGetEccMode(handle)[0]),
            "persistence": lambda: bool(n.nvmlDeviceGetPersistenceMode(handle)),
            "mig": lambda: self._is_divided(handle),
            "pcie_generation": lambda: n.nvmlDeviceGetMaxPcieLinkGeneration(handle),
            "pcie_lanes": lambda: n.nvmlDeviceGetMaxPcieLinkWidth(handle),
        }
        for name, tried in tries.items():
            with suppress(n.NVMLError, AttributeError):
                yield name, tried()

    def row(self, pids: Sequence[int]) -> Row:
        """Returns the GPU columns of host.csv. pids: the measured processes and their children."""
        row: dict[str, float] = {}
        for gpu in self._gpus:
            row |= {f"gpu{gpu.number}_{name}": v for name, v in self._state(gpu.handle, pids)}
        return row

    def _state(self, handle: Any, pids: Sequence[int]) -> Iterator[tuple[str, float]]:
        n = self._nvml
        tries: dict[str, Callable[[], float]] = {
            "sm_mhz": lambda: n.nvmlDeviceGetClockInfo(handle, _SM),
            "memory_mhz": lambda: n.nvmlDeviceGetClockInfo(handle, _MEMORY),
            "celsius": lambda: n.nvmlDeviceGetTemperature(handle, _CORE_TEMPERATURE),
            "busy_share": lambda: n.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
            "watts": lambda: n.nvmlDeviceGetPowerUsage(handle) / 1e3,
            "memory_used_bytes": lambda: n.nvmlDeviceGetMemoryInfo(handle).used,
            "slowdowns": lambda: self._slowdowns(handle) & ~_IDLE,
            "ecc_errors": lambda: n.nvmlDeviceGetTotalEccErrors(handle, 1, 0),
            "mig": lambda: self._is_divided(handle),
            "other_processes": lambda: _others(
                n.nvmlDeviceGetComputeRunningProcesses(handle), pids
            ),
        }
        for name, tried in tries.items():
            with suppress(n.NVMLError, AttributeError, _Unknown):
                yield name, float(tried())

    def _is_divided(self, handle: Any) -> bool:
        """Returns whether the handle is one of several instances of a GPU (MIG), or a GPU divided into instances."""
        with suppress(self._nvml.NVMLError, AttributeError):  # older drivers lack this function
            if self._nvml.nvmlDeviceIsMigDeviceHandle(handle):
                return True
        return bool(self._nvml.nvmlDeviceGetMigMode(handle)[0])

    def _slowdowns(self, handle: Any) -> int:
        n = self._nvml
        try:
            return int(n.nvmlDeviceGetCurrentClocksEventReasons(handle))
        except n.NVMLError:  # the driver is older than 535 and lacks this function
            return int(n.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def _others(processes: Sequence[Any], pids: Sequence[int]) -> int:
    """Returns the number of processes outside the run that use the GPU.

    Raises _Unknown if NVML lists no process of the run, because NVML reports the host's process IDs even inside a
    container.
    """
    running = {process.pid for process in processes}
    if running <= {*pids}:
        return 0
    ours = running & _with_children(pids)
    if not ours:
        raise _Unknown
    return len(running - ours)


def _with_children(pids: Sequence[int]) -> set[int]:
    import psutil

    found = {*pids}
    for pid in pids:
        with suppress(psutil.Error):
            found |= {child.pid for child in psutil.Process(pid).children(recursive=True)}
    return found


def summary(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Returns `gpus` in result.json: the state of each GPU during LoadGen's window. A value is None if it was not read."""
    names = dict.fromkeys(name for row in rows for name in row if name.startswith("gpu"))
    numbers = sorted({int(name[3:].partition("_")[0]) for name in names})
    return [_summary(number, rows) for number in numbers]


def _summary(number: int, rows: Sequence[Row]) -> dict[str, Any]:
    def values(name: str) -> list[float]:
        column = f"gpu{number}_{name}"
        return [row[column] for row in rows if column in row]

    clocks, busy, slowdowns = values("sm_mhz"), values("busy_share"), values("slowdowns")
    errors = values("ecc_errors")
    return {
        "number": number,
        "busy_share": sum(busy) / len(busy) if busy else None,
        "sm_mhz": {"lowest": min(clocks), "highest": max(clocks)} if clocks else None,
        "hottest_celsius": max(values("celsius"), default=None),
        "peak_watts": max(values("watts"), default=None),
        "memory_used_bytes": max(values("memory_used_bytes"), default=None),
        "slowdowns": {
            text: sum(bool(int(v) & bit) for v in slowdowns) / len(slowdowns)
            for bit, text in SLOWDOWNS.items()
            if any(int(v) & bit for v in slowdowns)
        }
        if slowdowns
        else None,
        "ecc_errors": errors[-1] - errors[0] if errors else None,
        "other_processes": max(values("other_processes"), default=None),
        "mig": any(divided) if (divided := values("mig")) else None,
    }
