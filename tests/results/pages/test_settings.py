"""Settings and readings are shown as a reader would write them."""

from typing import Any

import pytest

from harness.results.pages.settings import flat


@pytest.mark.parametrize(
    ("name", "value", "row"),
    [
        ("memory_bytes", 25_276_514_304, ("memory", "25.3 GB")),  # bug: the raw number
        ("anonymous_bytes", [1e6, 2.5e6], ("anonymous", "1.00 MB, 2.50 MB")),
        ("batch_wait_ns", 1_500_000, ("batch_wait", "1.50 ms")),
        ("switch_interval_s", 0.005, ("switch_interval", "5.00 ms")),
        ("tokens", 25_713.0, ("tokens", "25713")),
        ("rate", 12_345_678.0, ("rate", "12345678")),  # bug: 1.23457e+07
        ("tolerance", 0.000_012, ("tolerance", "0.000012")),
        ("gpu_share_max", 0.1234, ("gpu_share_max", "12.3 %")),
        ("share_weights", False, ("share_weights", "no")),
        ("smt_active", "0", ("smt_active", "no")),
        ("turbo", 1.0, ("turbo", "yes")),
        ("is_set", [True, False], ("is_set", "yes, no")),  # bug: True, False
        ("postprocess", [{"argmax": {}}], ("postprocess", "argmax")),  # bug: {'argmax': {}}
        ("startup", [{"name": "a.pth", "size_bytes": None}], ("startup", "name a.pth")),
        ("load_s", "slow", ("load_s", "slow")),
    ],
)
def test_a_value_has_its_unit_and_no_code(name: str, value: Any, row: tuple[str, str]) -> None:
    assert flat({name: value}) == [row]


def test_nested_names_begin_with_the_outer_key_and_nothing_is_left_out() -> None:
    content = {"machine": {"cpu": "a", "limit_bytes": None, "turbo": ""}, "list": []}
    assert flat(content) == [("machine cpu", "a")]
