"""Provisioned power: the formula on worked examples, the defaults, and what a descriptor must not contain."""

from typing import Any

import pytest

from harness.submit.endpoints.power.descriptor import descriptor
from harness.submit.endpoints.power.formula import system_power
from harness.submit.endpoints.power.values import accelerator_default, cpu_default, switch_default

URL = "https://example.org/x"


def watts(value: float) -> dict[str, Any]:
    return {"value_w": value, "source_type": "vendor_spec", "source": URL}


def one_set(**changes: Any) -> dict[str, Any]:
    return {
        "node_set_id": 0,
        "system_node_ensemble_id": 0,
        "nodes_provisioned": 1,
        "power_method": "component_sum",
        "components": {
            "cpu": {"count_per_node": 1, "tdp_per_unit": watts(200)},
            "accelerator": {"count_per_node": 4, "tdp_per_unit": watts(300)},
            "scale_up_network": {"method": "none"},
        },
        **changes,
    }


def whole(*sets: dict[str, Any], **changes: Any) -> dict[str, Any]:
    fabric = {"present": False}
    return {
        "system_desc_id": "box",
        "cooling": "air",
        "node_sets": list(sets),
        "scale_out": fabric,
        **changes,
    }


FABRIC = {
    "present": True,
    "cabling": "passive",
    "required_bandwidth_tbps": 0.8,
    "nics": {"count_per_node": 1, "bandwidth_per_nic_gbps": 400, "counted": True},
    "switches": [{"model": "SN5610", "count": 1, "bandwidth_tbps": 51.2}],
}


@pytest.mark.parametrize(
    ("content", "kw"),
    [
        (whole(one_set()), 2.1),  # 2.1 kW are (200 + 4 x 300) W x 1.5
        (whole(one_set(), cooling="liquid"), 1.82),
        (whole(one_set(power_method="published_system", published_power=watts(5000))), 5.0),
        (whole(one_set(power_method="node_scaling", published_power=watts(8000), nodes_in_published_rack=4)), 2.0),
        # 5.33 kW are 2 x 1.5 x (1400 + 75) W + 900 W.
        (whole(one_set(nodes_provisioned=2), scale_out=FABRIC), 5.33),
        (whole(one_set(), declared_provisioned_power={**watts(0), "value_w": 7000}), 7.0),
    ],
)  # fmt: skip
def test_the_formula_gives_worked_numbers(content: dict[str, Any], kw: float) -> None:
    found = system_power(content)
    assert found.problems == []
    assert found.kw == pytest.approx(kw, abs=0.005)


def test_a_bandwidth_is_read_in_bytes() -> None:
    energy = {"value_pj": 5, "source_type": "vendor_spec", "source": URL}
    network = {
        "method": "bandwidth_estimate",
        "aggregate_bandwidth_tbps": 14.4,
        "energy_per_bit_pj": energy,
    }
    content = one_set()
    content["components"]["scale_up_network"] = network
    found = system_power(whole(content))
    assert found.kw == pytest.approx((1400 + 576) * 1.5 / 1000, abs=0.005)


def test_a_part_of_the_nodes_has_a_part_of_the_power() -> None:
    found = system_power(
        whole(one_set(nodes_provisioned=4), scale_out={**FABRIC, "required_bandwidth_tbps": 1.6})
    )
    assert found.kw is not None
    assert found.point_kw({0: 1}) == pytest.approx(found.kw / 4, abs=0.01)
    assert found.point_kw() == found.kw


@pytest.mark.parametrize(
    ("model", "cores", "expected"),
    [
        ("AMD EPYC 9654 96-Core", None, 500),
        ("Intel Xeon Gold", 32, 350),
        ("NVIDIA Grace", 72, 300),
        ("NVIDIA Grace", 144, None),
        ("unknown", 8, None),
        ("Intel Xeon", None, None),
    ],
)
def test_defaults_of_processors_follow_name_and_cores(
    model: str, cores: int | None, expected: float | None
) -> None:
    found = cpu_default(model, cores)
    assert (found.watts if found else None) == expected


def test_the_longest_name_of_an_accelerator_wins() -> None:
    assert [
        d.watts for m in ("NVIDIA GB300", "B300", "TPU v7") if (d := accelerator_default(m))
    ] == [1400, 1100, 1000]
    assert accelerator_default("H200") is None
    assert switch_default("SN5400", "active_optical") is None


def test_defaults_mark_the_power_as_estimated() -> None:
    content = one_set()
    content["components"]["accelerator"] = {"count_per_node": 8, "model": "NVIDIA B200"}
    file, found = descriptor({"cooling": "air", "node_sets": [content]}, "box")
    assert found.kw == pytest.approx((200 + 8000) * 1.5 / 1000)
    assert (file["mlc_estimated_power"], file["provisioned_power_kw"]) == (True, found.kw)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (whole(one_set(), cooling="steam"), "cooling is 'steam'"),
        (whole(), "has no node set"),
        (whole(one_set(), one_set()), "appears twice"),
        (whole(one_set(nodes_provisioned=0)), "at least 1"),
        (whole(one_set(power_method="guess")), "not one of component_sum"),
        (whole(one_set(components={"cpu": {"count_per_node": 1}})), "needs cpu and accelerator"),
        (whole(one_set(nodes_provisioned=2)), "nothing else connects"),
        (whole(one_set(), scale_out={}), "present must be"),
        (whole(one_set(), provisioned_power_kw=9), "the formula gives 2.1"),
        (whole(one_set(), computed={"total_system_power_w": 1}), "computed.total_system_power_w"),
        (whole(one_set(nodes_provisioned=2), scale_out={**FABRIC, "required_bandwidth_tbps": 0.1}), "below the 0.8"),
    ],
)  # fmt: skip
def test_a_wrong_descriptor_has_no_power(content: dict[str, Any], text: str) -> None:
    found = system_power(content)
    assert found.kw is None
    assert text in "; ".join(found.problems)
