"""Each kernel is compared with the peak of the kernel's precision."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.explain.kernels import layers as ly
from harness.explain.kernels.layers import Layer, Peaks
from harness.explain.profile.measure.measure import highest
from harness.explain.profile.page import _name_sides
from harness.explain.profile.tables.work_checks import MOST_OF_PEAK
from harness.machine.characterise import here
from harness.machine.characterise.database import Database, Key
from harness.machine.characterise.measured import from_json
from harness.machine.characterise.versions import versions_of
from harness.machine.host import fingerprint
from harness.machine.identity import machine_key

PEAKS = Peaks(flops_per_s=100e9, bytes_per_s=10e9, int8_per_s=400e9)


def layer(*, is_integer: bool) -> Layer:
    """Returns a layer with 200 GFLOP/s at 10,000 FLOP/byte."""
    made = Layer.__new__(Layer)
    fields = dict.fromkeys(Layer.__dataclass_fields__) | {
        "latency_ns": 1e6,
        "flops": 200_000_000,
        "read_bytes": 10_000,
        "write_bytes": 10_000,
        "is_integer": is_integer,
    }
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


def test_an_integer_kernel_is_compared_with_the_integer_peak() -> None:
    assert ly.utilisation(layer(is_integer=False), PEAKS) == pytest.approx(2.0)
    assert ly.utilisation(layer(is_integer=True), PEAKS) == pytest.approx(0.5)
    assert ly.bound_of(layer(is_integer=True), PEAKS) == "compute"


def test_integer_kernels_without_a_peak_have_no_utilisation() -> None:
    unknown = PEAKS._replace(int8_per_s=None)
    assert ly.utilisation(layer(is_integer=True), unknown) is None
    assert ly.bound_of(layer(is_integer=True), unknown) is None


def test_the_peak_is_the_highest_of_new_and_stored_measurements() -> None:
    now = {"flops_per_s": 2.0, "bytes_per_s": 5.0, "int8_per_s": 8.0}
    stored = {"flops_per_s": 3.0, "bytes_per_s": 4.0}
    assert highest(now, now, stored) == {"flops_per_s": 3.0, "bytes_per_s": 5.0, "int8_per_s": 8.0}
    assert highest({"missing": "no module"}, stored) == stored
    assert highest({"missing": "no module"}, {}) == {"missing": "no module"}


def test_peaks_are_read_only_for_this_machine_and_these_versions(
    tmp_path: Path,
) -> None:
    path = tmp_path / "machine.sqlite"
    assert here.stored(1, path) == {}
    settings = {"library": "ort", "precision": "fp32", "side": 256, "threads": 1}
    point = {"benchmark": "gemm", "settings": settings, "work": 1000.0, "unit": "FLOP"}
    point |= {"repetitions_ns": [2.0, 2.0], "fastest_ns": 1.0, "facts": {}}
    name = from_json({"p": point})[0].name
    key = Key(machine_key(fingerprint()["machine"]), versions_of("ort"), "any")
    other = key._replace(versions="another")
    Database(path).add([(key, name, point), (other, name, {**point, "fastest_ns": 0.1})])
    assert here.stored(1, path) == {"flops_per_s": pytest.approx(1e12)}
    assert here.stored(2, path) == {}


@pytest.mark.slow
def test_layers_of_a_real_model_use_at_most_the_peak(tmp_path: Path) -> None:
    """Checks requirement TP2: a convolution uses more of the peak than an elementwise kernel."""
    pytest.importorskip("onnxruntime")
    words = ["profile", "--model", "light/squeezenet", "--levels", "layer", "--threads", "1"]
    assert main([*words, "--quiet", "--out", str(tmp_path / "p")]) == 0
    rows = json.loads((tmp_path / "p/tables.json").read_text())["kernels"]["rows"]
    shares = [row["of_peak_share"] for row in rows if row["of_peak_share"] is not None]
    assert all(0 <= share <= MOST_OF_PEAK for share in shares)
    of = {
        kind: [
            row["of_peak_share"]
            for row in rows
            if row["of_peak_share"] is not None and (("Conv" in row["nodes_of_the_file"]) == kind)
        ]
        for kind in (True, False)
    }
    assert max(of[True]) > max(of[False], default=0.0)


def test_names_of_the_roofline_overlap_no_marker() -> None:
    """Bug: the name of a slow kernel stood on the marker of another kernel."""

    def at(index: int, flops: int, moved_bytes: int) -> Layer:
        return replace(
            layer(is_integer=False), index=index, flops=flops, read_bytes=moved_bytes, write_bytes=0
        )

    alone, low = at(0, 10**9, 10**9), at(1, 10**6, 10**3)
    above = at(2, int(2.2 * 10**6), int(2.2 * 10**3))  # as intense as `low`, and faster
    found = _name_sides([alone, low], [alone, low, above], PEAKS)
    assert found == {0: "top center", 1: "bottom center"}
