"""A served language model with a prefix cache reports the cache, counts its hits and empties it."""

from collections.abc import Iterator

import pytest

from harness.models.generation.prefixes import PrefixCache
from harness.serve.openai.completions import RESET
from harness.serve.options import parse_prefix_blocks
from harness.wire.server_series import parse
from tests.serve.conftest import Server, tinylm

PROMPT = [3, 4, 5, 6, 7, 8, 9, 10, 11]


@pytest.fixture
def caching() -> Iterator[Server]:
    with tinylm(prefixes=PrefixCache(4, 100)) as server:
        yield server


def cached(server: Server) -> int:
    usage = server.complete(PROMPT, max_tokens=4)["usage"]
    return int(usage["prompt_tokens_details"]["cached_tokens"])


def test_cached_tokens_are_reported_until_the_cache_is_emptied(caching: Server) -> None:
    assert [cached(caching) for _ in range(2)] == [0, 8]
    status, _ = caching.ask(RESET, method="POST")
    assert status == 200
    assert [cached(caching) for _ in range(2)] == [0, 8]
    page = parse(caching.ask("/metrics")[1].decode())
    assert (page["cached_tokens"], page["cache_queried_tokens"]) == (16, 36)


def test_a_stream_reports_the_cached_tokens_too(caching: Server) -> None:
    cached(caching)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *_, last = caching.stream({"model": "tinylm", "prompt": PROMPT, "max_tokens": 4, **options})
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 8}


def test_answers_to_one_prompt_count_it_once(caching: Server) -> None:
    usage = caching.complete([PROMPT, PROMPT], max_tokens=4, n=2)["usage"]
    assert usage["prompt_tokens"] == 18
    assert usage["prompt_tokens_details"] == {"cached_tokens": 8}


def test_a_server_without_the_cache_reports_none(server: Server) -> None:
    assert "prompt_tokens_details" not in server.complete(PROMPT)["usage"]
    assert server.ask(RESET, method="POST")[0] == 404


@pytest.mark.parametrize(("text", "size"), [("16", (16, 4096)), ("4:10", (4, 10))])
def test_the_size_of_the_cache_is_read(text: str, size: tuple[int, int]) -> None:
    assert parse_prefix_blocks(text) == size


@pytest.mark.parametrize("text", ["0", "4:0", "x", "-1", "4:", "4:4:4"])
def test_a_wrong_size_of_the_cache_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a block size in tokens"):
        parse_prefix_blocks(text)
