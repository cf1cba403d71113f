"""Every transport returns the payload unchanged, and every way to pass an input leads to the same answer."""

from statistics import median

import pytest

from harness.machine.characterise.movement.dataset_batch import DatasetBatch
from harness.machine.characterise.movement.first_touch import FirstTouch
from harness.machine.characterise.movement.input_handling import InputHandling
from harness.machine.characterise.movement.transport import WAYS, Transport
from harness.machine.characterise.timing import Plan, timed
from harness.types import Point

QUICK = Plan(repeats=3, point_ns=15_000_000)


def result(point: Point) -> dict[str, float]:
    with point.open() as ready:
        return {"ns": median(timed(ready, QUICK)["repetitions_ns"]), **ready.facts}


def test_payload_returns_unchanged_and_in_process_is_the_fastest_way() -> None:
    """Checks requirement CS2: no transport is faster than the same process."""
    pytest.importorskip("grpc")
    points = {
        str(p.settings["way"]): p for p in Transport().points(2) if p.settings["bytes"] == 2**20
    }
    assert points.keys() == WAYS.keys()
    times = {way: result(point) for way, point in points.items()}
    assert all(one["came_back_the_same"] for one in times.values())
    # The order of pipes, sockets and HTTP is not checked, because it depends on what other tests run on the machine at
    # the same time.
    assert times["in process"]["ns"] < min(
        one["ns"] for way, one in times.items() if way != "in process"
    )


def test_a_copied_and_a_bound_input_give_identical_outputs() -> None:
    """Checks requirement CS3."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    points = list(InputHandling().points(2))
    assert {p.settings["input"] for p in points} == {"1x3x224x224", "64x3x224x224"}
    for point in points[:3]:
        assert result(point)["same_as_array"]


def test_the_first_write_to_a_page_is_measured_separately() -> None:
    """Checks requirement CS4."""
    by_state = {
        p.settings["pages"]: result(p)["ns"] for p in FirstTouch().points(1) if p.work == 2**20
    }
    assert by_state["new"] > by_state["touched"]


def test_samples_in_order_are_a_view_and_others_are_gathered() -> None:
    for point in DatasetBatch().points(1):
        if point.settings["batch"] == 8:
            assert result(point)["is_a_view"] == (point.settings["order"] == "in order")
