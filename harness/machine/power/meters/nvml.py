"""Reads the energy of NVIDIA GPUs through NVML, or their power if a board lacks an energy counter."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple, Self

from harness.core.units import counted
from harness.errors import ConfigError, one_line
from harness.types import PowerMeter, PowerSource


class _Gpu(NamedTuple):
    """One GPU, and the NVML function that reads it."""

    source: PowerSource
    read_milli: Callable[[Any], int]
    """Reads the energy in mJ since the driver was loaded (Volta and newer), or the current power in mW."""
    handle: Any


class NvmlMeter:
    """argument: the GPUs' numbers in nvidia-smi, such as `0,1`; '' means all GPUs."""

    def __init__(self, argument: str) -> None:
        words = argument.split(",") if argument else []
        if not all(word.strip().isdecimal() for word in words):
            raise ConfigError(f"--meter nvml={argument}: write GPU numbers, e.g. nvml=0,1")
        self._requested = [int(word) for word in words]
        self._gpus: list[_Gpu] = []

    def __enter__(self) -> Self:
        import pynvml

        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as e:
            raise ConfigError(f"meter 'nvml': {one_line(e)}: {_advice(e)}") from e
        with ExitStack() as stack:
            stack.callback(pynvml.nvmlShutdown)
            try:
                self._gpus = [self._gpu(number) for number in self._numbers()]
            except pynvml.NVMLError as e:
                raise ConfigError(f"meter 'nvml': the GPU reports no power: {one_line(e)}") from e
            stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._nvml.nvmlShutdown()

    def sources(self) -> list[PowerSource]:
        return [gpu.source for gpu in self._gpus]

    def read(self) -> list[float | Exception]:
        return [self._tried(gpu) for gpu in self._gpus]

    def _tried(self, gpu: _Gpu) -> float | Exception:
        """Returns the reading or the exception, so that the other GPUs are still read if one GPU drops off the bus."""
        try:
            return gpu.read_milli(gpu.handle) / 1e3
        except self._nvml.NVMLError as e:
            error: Exception = e
            return error

    def _numbers(self) -> list[int]:
        count = int(self._nvml.nvmlDeviceGetCount())
        missing = [n for n in self._requested if n >= count]
        if missing or not count:
            raise ConfigError(
                f"meter 'nvml': GPU {missing[0] if missing else 0} does not exist: this machine has "
                f"{counted(count, 'GPU')}"
            )
        return self._requested or list(range(count))

    def _gpu(self, number: int) -> _Gpu:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        name = nvml.nvmlDeviceGetName(handle)
        domain = f"GPU {number}, {name}: the board with its memory"
        if self._counts(handle):
            source = PowerSource(f"nvml:{number}", domain, "J")
            return _Gpu(source, nvml.nvmlDeviceGetTotalEnergyConsumption, handle)
        nvml.nvmlDeviceGetPowerUsage(handle)
        source = PowerSource(f"nvml:{number}", domain, "W")
        return _Gpu(source, nvml.nvmlDeviceGetPowerUsage, handle)

    def _counts(self, handle: Any) -> bool:
        """Returns whether the energy counter works; on some virtual GPUs, the counter stays at 0."""
        try:
            return bool(self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle) > 0)
        except self._nvml.NVMLError:
            return False


def _advice(error: Exception) -> str:
    """Returns advice on how to correct the cause of the error. NVML's text for NVML_ERROR_NO_PERMISSION shows that a
    permission is missing.
    """
    if "Insufficient Permissions" in str(error):
        return (
            "this allows it until the next boot: sudo chmod a+rw /dev/nvidiactl /dev/nvidia[0-9]*"
        )
    return "it needs an NVIDIA GPU and its driver"


_: type[PowerMeter] = NvmlMeter
