"""Stands in for the module `pynvml` of nvidia-ml-py: GPUs report the values that a test sets."""

from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

H100: Mapping[str, Any] = {
    "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3",
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=85520809984, used=503316480),
    "nvmlDeviceGetMaxClockInfo": {1: 1980, 2: 2619},
    "nvmlDeviceGetClockInfo": {1: 1980, 2: 2619},
    "nvmlDeviceGetEnforcedPowerLimit": 700_000,
    "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
    "nvmlDeviceGetEccMode": [1, 1],
    "nvmlDeviceGetPersistenceMode": 1,
    "nvmlDeviceGetMigMode": [0, 0],
    "nvmlDeviceIsMigDeviceHandle": 0,
    "nvmlDeviceGetMaxPcieLinkGeneration": 5,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetTemperature": {0: 38},
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=97, memory=40),
    "nvmlDeviceGetPowerUsage": 123_742,
    "nvmlDeviceGetCurrentClocksEventReasons": 0x1,
    "nvmlDeviceGetTotalEccErrors": 0,
    "nvmlDeviceGetComputeRunningProcesses": [],
}
"""Replies of a real GPU by function name; the keys of a mapping are the function's first numeric argument."""


class FakeNvml(ModuleType):
    """answers: by GPU, in NVML's order. refusal: nvmlInit's error, or '' if it succeeds."""

    class NVMLError(Exception):
        pass

    def __init__(self, *answers: Mapping[str, Any], refusal: str = "") -> None:
        super().__init__("pynvml")
        self._answers, self._refusal = [dict(each) for each in answers], refusal

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's name, and so below
        if self._refusal:
            raise self.NVMLError(self._refusal)

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.159.04"

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:  # noqa: N802
        if index >= len(self._answers):
            raise self.NVMLError("Invalid Argument")
        return self._answers[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> dict[str, Any]:  # noqa: N802
        return next(each for each in self._answers if each.get("uuid") == uuid)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith(("nvmlDeviceGet", "nvmlDeviceIs")):
            raise AttributeError(name)

        def call(handle: Mapping[str, Any], number: int = 0, *_more: int) -> Any:
            if name not in handle:
                raise self.NVMLError("Not Supported")
            answer = handle[name]
            return answer[number] if isinstance(answer, Mapping) else answer

        return call
