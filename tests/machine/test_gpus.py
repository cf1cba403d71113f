"""NVML's readings of the GPUs in a run, and the doubts that follow from them. NVML is replaced by a stand-in."""

import inspect
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from harness.machine.family import Row
from harness.machine.gpus import SLOWDOWNS, Gpus, summary
from harness.machine.host_log import HostReader
from harness.results.verdict.host_doubts import _gpu_doubts
from tests.stand_ins.nvml import H100, FakeNvml


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml(H100, {**H100, "uuid": "GPU-7b6d", "nvmlDeviceGetName": "second"})
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


def test_gpu_reports_its_model_and_settings(nvml: FakeNvml) -> None:
    del nvml
    (about,) = Gpus("cuda").about()
    assert about == {
        "number": 0,
        "name": "NVIDIA H100 80GB HBM3",
        "driver": "580.159.04",
        "memory_bytes": 85520809984,
        "sm_mhz_max": 1980,
        "memory_mhz_max": 2619,
        "power_limit_watts": 700.0,
        "power_limit_default_watts": 700.0,
        "ecc": True,
        "persistence": True,
        "mig": False,
        "pcie_generation": 5,
        "pcie_lanes": 16,
    }


def test_value_that_a_gpu_does_not_report_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small or virtual GPU supports only part of NVML."""
    few = {name: H100[name] for name in ("nvmlDeviceGetName", "nvmlDeviceGetTemperature")}
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(few))
    gpus = Gpus("cuda")
    assert gpus.about() == [{"number": 0, "name": "NVIDIA H100 80GB HBM3", "driver": "580.159.04"}]
    assert gpus.row([]) == {"gpu0_celsius": 38.0}
    (found,) = summary([gpus.row([])])
    assert found["hottest_celsius"] == 38.0
    assert found["busy_share"] is found["sm_mhz"] is found["other_processes"] is None
    assert found["slowdowns"] is None
    assert list(_gpu_doubts(found)) == []


@pytest.mark.parametrize(
    ("device", "visible", "names"),
    [
        ("cuda", None, ["NVIDIA H100 80GB HBM3"]),
        ("cuda:1,0", None, ["second", "NVIDIA H100 80GB HBM3"]),
        ("cuda", "1", ["second"]),
        ("cuda", "GPU-7b6d", ["second"]),
        ("cuda:1", "1,0", ["NVIDIA H100 80GB HBM3"]),
        ("cpu", None, []),
    ],
)
def test_numbers_are_those_of_cuda(
    nvml: FakeNvml,
    device: str,
    visible: str | None,
    names: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    del nvml
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    gpus = Gpus(device)
    assert [each["name"] for each in gpus.about()] == names
    assert gpus.missing == ""


@pytest.mark.parametrize(
    ("device", "fake", "missing"),
    [
        ("cuda:3", FakeNvml(H100), "NVML: Invalid Argument"),
        ("cuda", FakeNvml(refusal="Driver Not Loaded"), "NVML: Driver Not Loaded"),
        (
            "cuda",
            None,
            "the module 'pynvml', which reads them, is not installed: run ./run.sh install nvml",
        ),
    ],
)
def test_run_without_nvml_has_no_readings_but_a_reason(
    device: str, fake: FakeNvml | None, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpus = Gpus(device)
    assert (gpus.about(), gpus.row([]), gpus.missing) == ([], {}, missing)


def test_rows_of_the_host_have_the_gpus_state(nvml: FakeNvml) -> None:
    del nvml
    reader = HostReader(device="cuda:1")
    reader.look()
    (row,) = reader.log.rows
    assert {name: value for name, value in row.items() if name.startswith("gpu")} == {
        "gpu1_sm_mhz": 1980.0,
        "gpu1_memory_mhz": 2619.0,
        "gpu1_celsius": 38.0,
        "gpu1_busy_share": 0.97,
        "gpu1_watts": 123.742,
        "gpu1_memory_used_bytes": 503316480.0,
        "gpu1_slowdowns": 0.0,
        "gpu1_ecc_errors": 0.0,
        "gpu1_other_processes": 0.0,
        "gpu1_mig": 0.0,
    }


@pytest.mark.parametrize(
    ("running", "ours", "others"),
    [([], [5], 0), ([5], [5], 0), ([5, 9], [5], 1), ([5, 6, 9, 10], [5, 6], 2), ([900], [5], None)],
)
def test_other_processes_are_counted_if_the_numbers_are_this_machines(
    running: list[int], ours: list[int], others: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container, NVML reports the host's process ids, which do not include ours."""
    processes = [SimpleNamespace(pid=pid) for pid in running]
    fake = FakeNvml({**H100, "nvmlDeviceGetComputeRunningProcesses": processes})
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert Gpus("cuda").row(ours).get("gpu0_other_processes") == others


@pytest.mark.parametrize(
    "changed",
    [
        {"nvmlDeviceGetMigMode": [1, 1]},
        {"nvmlDeviceIsMigDeviceHandle": 1, "nvmlDeviceGetMigMode": None},
    ],
    ids=["a GPU in MIG mode", "an instance, named by CUDA_VISIBLE_DEVICES"],
)
def test_a_divided_gpu_is_doubted(
    changed: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {name: value for name, value in {**H100, **changed}.items() if value is not None}
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(answers))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpus = Gpus("cuda")
    assert gpus.about()[0]["mig"]
    (found,) = summary([gpus.row([])])
    assert found["mig"]
    assert [doubt.code for doubt in _gpu_doubts(found)] == ["gpu-divided"]


def test_older_driver_reports_the_reasons_for_a_low_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    old = {**H100, "nvmlDeviceGetCurrentClocksThrottleReasons": 0x24}
    del old["nvmlDeviceGetCurrentClocksEventReasons"]
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(old))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert Gpus("cuda").row([])["gpu0_slowdowns"] == 0x24


def test_calls_and_numbers_are_those_of_the_real_library(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Any = pytest.importorskip("pynvml")
    called: dict[str, tuple[Any, ...]] = {}

    class Recorded(FakeNvml):
        def __getattr__(self, name: str) -> Any:
            call = super().__getattr__(name)

            def recorded(*args: Any) -> Any:
                called[name] = args
                return call(*args)

            return recorded

    old = {n: v for n, v in H100.items() if n != "nvmlDeviceGetCurrentClocksEventReasons"}
    monkeypatch.setitem(sys.modules, "pynvml", Recorded(old))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpus = Gpus("cuda")
    gpus.about()
    gpus.row([])
    assert {*H100, "nvmlDeviceGetCurrentClocksThrottleReasons"} <= called.keys()
    for name, args in called.items():
        inspect.signature(getattr(real, name)).bind(*args)
    assert called["nvmlDeviceGetMaxClockInfo"][1] == real.NVML_CLOCK_MEM
    assert called["nvmlDeviceGetTotalEccErrors"][1:] == (
        real.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        real.NVML_VOLATILE_ECC,
    )
    assert [bit for bit, name in SLOWDOWNS.items() if name.startswith("heat")] == [
        real.nvmlClocksThrottleReasonSwThermalSlowdown,
        real.nvmlClocksThrottleReasonHwThermalSlowdown,
    ]


def rows(**columns: list[float]) -> list[Row]:
    return [
        {f"gpu0_{name}": values[n] for name, values in columns.items()}
        for n in range(len(next(iter(columns.values()))))
    ]


@pytest.mark.parametrize(
    ("seen", "doubts"),
    [
        (rows(slowdowns=[0, 0], sm_mhz=[1980, 1980], celsius=[40, 41]), {}),
        (rows(slowdowns=[4, 4], sm_mhz=[1700, 1665]), {}),
        (
            rows(slowdowns=[0x20, 0, 0, 0x24], celsius=[80, 85, 90, 88]),
            {
                "gpu-throttled": "GPU 0 lowered its clock to protect itself (heat (driver) in 50 % of the "
                "seconds), peak 90 °C"
            },
        ),
        (
            rows(slowdowns=[4, 0], sm_mhz=[1500, 1980]),
            {"gpu-clocks": "GPU 0 ran at 1,500 to 1,980 MHz in the run (power cap)"},
        ),
        (
            rows(other_processes=[0, 2, 1]),
            {"gpu-shared": "2 other processes computed on GPU 0 during the run"},
        ),
        (
            rows(ecc_errors=[3, 4]),
            {"gpu-errors": "GPU 0 counted 1 memory error that ECC could not correct"},
        ),
    ],
)
def test_doubts_follow_from_the_readings(seen: list[Row], doubts: Mapping[str, Any]) -> None:
    (gpu,) = summary(seen)
    assert {reason.code: reason.text for reason in _gpu_doubts(gpu)} == doubts
