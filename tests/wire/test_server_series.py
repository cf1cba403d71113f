"""The metrics pages of eight different servers are turned into the same columns."""

from pathlib import Path

import pytest

from harness.core.config.parse import parse_series
from harness.wire.server_series import Series, added, column_of, columns, parse

PAGES = Path(__file__).with_name("metrics_pages")

EXPECTED = {
    "vllm": {
        "running_requests": 4.0,
        "waiting_requests": 7.0,
        "kv_cache_share": 0.5,
        "generated_tokens": 1500.0,
        "answered_requests": 7.0,
        "cache_queried_tokens": 400.0,
        "cached_tokens": 100.0,
        "drafts": 100.0,
        "drafted_tokens": 300.0,
        "accepted_tokens": 150.0,
        "accepted_tokens_at_0": 80.0,
        "accepted_tokens_at_1": 70.0,
    },
    "sglang": {
        "running_requests": 3.0,
        "waiting_requests": 2.0,
        "kv_cache_share": 0.52,
        "acceptance_length": 2.5,
        "prompt_tokens": 4400.0,
        "generated_tokens": 900.0,
        "cached_tokens": 1100.0,
        "answered_requests": 44.0,
        "preemptions": 6.0,
    },
    "trtllm": {
        "running_requests": 5.0,
        "waiting_requests": 1.0,
        "kv_cache_share": 0.62,
        "answered_requests": 12.0,
        "prompt_tokens": 1800.0,
        "cached_tokens": 450.0,
        "generated_tokens": 30.0,
        "drafted_tokens": 20.0,
        "accepted_tokens": 15.0,
    },
    "triton_trtllm": {
        "running_requests": 4.0,
        # The page has two names for waiting requests, and only one of them counts.
        "waiting_requests": 9.0,
        "kv_cache_share": 0.4,
        "answered_requests": 12.0,
    },
    "triton": {
        "inferences": 640.0,
        "executions": 20.0,
        "waiting_requests": 4.0,
        "gpu_share": 0.75,
    },
    "llama_cpp": {
        "running_requests": 4.0,
        "waiting_requests": 46.0,
        "prompt_tokens": 512.0,
        "generated_tokens": 39080.0,
        "drafts": 100.0,
        "drafted_tokens": 300.0,
        "accepted_tokens": 150.0,
        "accepted_tokens_at_0": 80.0,
    },
    "tgi": {
        "running_requests": 4.0,
        "waiting_requests": 7.0,
        "prompt_tokens": 640.0,
        "generated_tokens": 8123.0,
        "answered_requests": 44.0,
    },
    "ovms": {"running_requests": 2.0, "answered_requests": 33.0},
}


def test_every_recorded_page_has_an_expectation() -> None:
    assert sorted(EXPECTED) == sorted(page.stem for page in PAGES.iterdir())


@pytest.mark.parametrize("server", EXPECTED)
def test_a_recorded_page_gives_the_servers_columns(server: str) -> None:
    text = (PAGES / f"{server}.txt").read_text(encoding="utf-8")
    assert parse(text) == EXPECTED[server]


def test_every_column_of_the_table_is_known_from_a_page() -> None:
    seen = {name for expected in EXPECTED.values() for name in expected}
    assert {name for name in columns() if not any(s.startswith(name) for s in seen)} == set()


def test_columns_of_labels_belong_to_their_table_row() -> None:
    assert column_of("accepted_tokens_at_3") is columns()["accepted_tokens_at"]
    assert column_of("running_requests") is columns()["running_requests"]
    assert column_of("running_requests_3") is None
    assert column_of('queue_size{model="a"}') is None


def test_shares_of_servers_are_not_added() -> None:
    rows = [{"kv_cache_share": 0.5, "drafts": 1.0}, {"kv_cache_share": 0.25, "drafts": 2.0}]
    assert added(rows) == {"kv_cache_share": 0.5, "drafts": 3.0}


def test_a_value_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="'4x'"):
        parse("nv_inference_count 4x\n")


def test_a_wanted_series_takes_the_samples_with_its_labels() -> None:
    page = 'size{model="a",kind="x"} 3\nsize{model="b"} 4\nother 5\n'
    wanted = [Series.parse(text) for text in ("size", 'size{model="a"}', "missing")]
    assert parse(page, wanted) == {"size": 7.0, 'size{model="a"}': 3.0}


@pytest.mark.parametrize("text", ["queue_size", 'vllm:x{a="1",b="2"}'])
def test_a_series_is_accepted_as_written(text: str) -> None:
    assert parse_series(f" {text} ") == text
    assert str(Series.parse(text)) == text


@pytest.mark.parametrize("text", ["", "1a", "a b", "a{}", "a{b=1}", 'a{b="1"'])
def test_a_text_that_is_not_a_series_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a series: write NAME or NAME\{label"):
        parse_series(text)
