"""Traces: each public format yields the same requests, and errors name their lines."""

import json
from pathlib import Path

import pytest

from harness.core.formats.traces import is_trace, read_trace
from harness.errors import ConfigError
from tests.builders.refusals import refusals

MOONCAKE = "".join(
    json.dumps({"timestamp": ms, "input_length": i, "output_length": o, "hash_ids": ids}) + "\n"
    for ms, i, o, ids in ((27482, 6955, 52, [46, 47]), (30535, 6472, 26, [46, 2365]))
)
BURSTGPT = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5.5,ChatGPT,472,18,490,Conversation log\n"
    "45,ChatGPT,1087,0,1087,Conversation log\n"
    "45,ChatGPT,1088,230,1318,Conversation log\n"
)
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:17:03.9799600,4808,10\r\n"
    "2023-11-16 18:17:04.0319600,3180,8\r\n"
)
AZURE_2024 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2024-05-10 00:00:00.009930+00:00,2162,5\n"
    "2024-05-10 00:00:00.017335+00:00,2399,6\n"
)


def trace_file(folder: Path, text: str) -> Path:
    path = folder / "trace"
    path.write_bytes(text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "name", "gap_ns", "tokens"),
    [
        (MOONCAKE, "Mooncake", 3_053_000_000, [(6955, 52), (6472, 26)]),
        (BURSTGPT, "BurstGPT", 39_500_000_000, [(472, 18), (1088, 230)]),
        (AZURE, "Azure", 52_000_000, [(4808, 10), (3180, 8)]),
        ("\ufeff" + AZURE_2024, "Azure", 7_405_000, [(2162, 5), (2399, 6)]),
    ],
)
def test_public_trace_formats_are_read(
    tmp_path: Path, text: str, name: str, gap_ns: int, tokens: list[tuple[int, int]]
) -> None:
    assert is_trace(text[:200])
    trace = read_trace(trace_file(tmp_path, text))
    assert trace.format == name
    assert trace.times_ns[1] - trace.times_ns[0] == gap_ns
    assert list(zip(trace.input_tokens, trace.output_tokens, strict=True)) == tokens
    assert trace.blocks == (((46, 47), (46, 2365)) if name == "Mooncake" else ())
    assert trace.left_out == (1 if name == "BurstGPT" else 0)


def test_requests_are_sorted_by_time_and_then_by_line(tmp_path: Path) -> None:
    rows = "".join(
        json.dumps({"timestamp": ms, "input_length": n, "output_length": 1}) + "\n"
        for n, ms in enumerate((7, 3, 7, 3), 1)
    )
    trace = read_trace(trace_file(tmp_path, rows))
    assert trace.input_tokens.tolist() == trace.lines.tolist() == [2, 4, 1, 3]


@pytest.mark.parametrize("text", ["", "arrival,sample\n0,1\n", "0.25\n", "# x\n", "a,b\n"])
def test_other_files_are_refused_as_traces(tmp_path: Path, text: str) -> None:
    assert not is_trace(text)
    with pytest.raises(ConfigError, match=r"is not a trace: .* ContextTokens"):
        read_trace(trace_file(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ('{"timestamp": true}\n[]\n', ["1: timestamp is True, but must be a time in milliseconds"]),
        ('{"timestamp": 1e30}', ["1: timestamp is 1e+30, which is not a time from 1970 to 2116"]),
        (
            '{"timestamp": 1, "input_length": "9"}\n\n[]\n{',
            [
                "1: input_length is '9', but must be a number of tokens, at most 10,000,000",
                "3: it is not a JSON object",
                "4: it is not valid JSON",
            ],
        ),
        ('{"timestamp": 1, "hash_ids": [1.5], "input_length": 1, "output_length": 1}', ["1: hash_ids must be a list of whole numbers"]),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n2023-11-16,-1,2\n2023-11-16,1\n",
            [
                "2: 'yesterday' is not a date and time",
                "3: ContextTokens is '-1', but must be a number of tokens",
                "4: it has 2 columns, but the header has 3: write decimals with a point",
            ],
        ),
        (
            "Timestamp,Request tokens,Response tokens\nnan,1,2\n-1,1,2\n1_000,1,2\n0,25,472,18\n",
            [
                "2: 'nan' is not a time in seconds",
                "3: '-1' is not a time in seconds",
                "4: '1_000' is not a time in seconds",
                "5: it has 4 columns, but the header has 3: write decimals with a point",
            ],
        ),
    ],
)  # fmt: skip
def test_every_bad_line_is_named(tmp_path: Path, text: str, problems: list[str]) -> None:
    path = trace_file(tmp_path, text)
    found = refusals(read_trace, path)
    assert found[: len(problems)] == [f"{path}:{problem}" for problem in problems]


def test_a_trace_without_a_complete_request_is_refused(tmp_path: Path) -> None:
    path = trace_file(tmp_path, "Timestamp,Request tokens,Response tokens\n1,5,0\n")
    with pytest.raises(ConfigError, match="has no request with a prompt and an answer"):
        read_trace(path)


@pytest.mark.parametrize("text", ["0.1\r0.2\r", "arrival\r0.1\r", "\r\r", "\n", ""])
def test_files_with_foreign_line_ends_are_not_traces(text: str) -> None:
    """Bug: a file with CR line endings ended the command with an exception."""
    assert not is_trace(text)
