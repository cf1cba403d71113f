"""Cost and energy per sample and per token."""

from typing import Any, cast

import pytest

from harness.core.config.parse import parse_price
from harness.results import cost
from harness.results.power import per_token
from harness.results.schema.client import Tokens
from harness.results.schema.machine import PowerSection
from harness.results.tokens.phases import Phases

HALF_AN_HOUR_NS = (0, 1_800 * 10**9)


def tokens(sent: int | None, made: int | None) -> Tokens:
    return cast("Tokens", {"input": sent, "output": made})


def test_the_cost_of_the_window_is_divided_by_each_count() -> None:
    found = cost.section(2.0, HALF_AN_HOUR_NS, 1_000, tokens(4_000_000, 1_000_000))
    assert found == pytest.approx(
        {
            "per_hour": 2.0,
            "total": 1.0,
            "per_million_samples": 1_000.0,
            "per_million_input_tokens": 0.25,
            "per_million_output_tokens": 1.0,
            "per_million_tokens": 0.2,
        }
    )
    assert cost.shown({**(found or {})}) == (
        "1.00 per million output tokens, 0.20 per million tokens, 1,000 per million samples, at 2.00 "
        "per hour"
    )


PHASES = Phases(0.25, 0.625, 0.125)


def test_the_parts_of_the_cost_add_up_to_the_total() -> None:
    known = cast("Tokens", {"input": 4_000_000, "output": 1_000_000, "cached": 3_000_000})
    found = cost.section(2.0, HALF_AN_HOUR_NS, 1_000, known, PHASES)
    assert found is not None
    assert found["parts"] == pytest.approx(
        {
            "input": 0.25,
            "output": 0.625,
            "idle": 0.125,
            "per_million_computed_input_tokens": 0.25,
            "per_million_output_tokens": 0.625,
        }
    )
    assert (cost.shown({**found}) or "").endswith(
        "(25 % before the first token, 62 % after it, 12 % idle)"
    )


def test_the_parts_of_an_energy_add_up_to_the_energy() -> None:
    section = cast("PowerSection", {"power": {"readings": [{"joules": 8.0}]}, "power_reason": None})
    known = cast("Tokens", {"input": 6, "output": 2, "cached": 4})
    found: Any = per_token(section, known, PHASES)
    assert found["power"]["readings"][0]["parts"] == {
        "input_joules": 2.0,
        "output_joules": 5.0,
        "idle_joules": 1.0,
        "joules_per_computed_input_token": 1.0,
        "joules_per_output_token": 2.5,
    }


@pytest.mark.parametrize("known", [None, tokens(None, 9), tokens(9, None)])
def test_unknown_tokens_have_no_cost(known: Tokens | None) -> None:
    found = cost.section(2.0, HALF_AN_HOUR_NS, 10, known)
    assert found is not None
    assert found["per_million_tokens"] is None


@pytest.mark.parametrize(
    ("price", "window", "samples"),
    [(None, HALF_AN_HOUR_NS, 1), (1.0, None, 1), (1.0, HALF_AN_HOUR_NS, 0)],
)
def test_a_run_without_a_price_or_an_end_has_no_cost(
    price: float | None, window: tuple[int, int] | None, samples: int
) -> None:
    assert cost.section(price, window, samples, None) is None
    assert cost.shown(None) is None


@pytest.mark.parametrize(("text", "price"), [("2/h", 2.0), (" 1.20/h ", 1.2)])
def test_a_price_is_an_amount_per_hour(text: str, price: float) -> None:
    assert parse_price(text) == price


@pytest.mark.parametrize(
    "text", ["", "2.5", "0/h", "-1/h", "2.5 dollars", "nan/h", "1/min", "1/hour"]
)
def test_a_text_that_is_not_a_price_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a price per hour"):
        parse_price(text)


def test_each_reading_has_its_energy_per_token() -> None:
    section = cast("PowerSection", {"power": {"readings": [{"joules": 8.0}]}, "power_reason": None})
    found: Any = per_token(section, tokens(6, 2))
    assert found["power"]["readings"] == [
        {
            "joules": 8.0,
            "joules_per_input_token": 8 / 6,
            "joules_per_output_token": 4.0,
            "joules_per_token": 1.0,
        }
    ]
    assert per_token(section, None) is section
    unknown: Any = per_token(section, tokens(None, 2))
    assert "joules_per_token" not in unknown["power"]["readings"][0]
