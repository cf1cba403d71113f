"""Reads Weka's traces of coding agents (kv-cache-tester, AIPerf), which have one JSON object per session.

`requests` contains calls (`n` for normal, `s` for streaming) with `t` in seconds, `in`, `out`, `hash_ids` and
`api_time` in seconds. `requests` also contains entries `subagent` with calls of the same kinds. The times show which
calls each call waited for.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from harness.core.units import NS_PER_S
from harness.datasets.parts.sessions.timeline import Interval, waits
from harness.datasets.parts.sessions.turns import Blocks, Turn, ids_of, list_of, number_of, whole_of


class _Call(NamedTuple):
    interval: Interval
    number: int
    """Number of the call in file order."""
    row: Mapping[str, Any]


def session(content: Mapping[str, Any], scope: int) -> list[Turn]:
    """Reads a session. scope: scope of the block IDs, because equal IDs mean equal blocks only within one session."""
    block_tokens = whole_of(content, "block_size")
    if not block_tokens:
        raise ValueError("block_size is 0, but must be a number of tokens")
    if content.get("hash_id_scope", "local") != "local":
        raise ValueError(
            "hash_id_scope must be 'local': ids that several sessions share are unknown here"
        )
    calls = sorted(_calls(content))
    if not calls:
        raise ValueError("its `requests` has no calls")
    found = waits([call.interval for call in calls])
    return [
        Turn(
            {"max_tokens": max(1, whole_of(call.row, "out"))},
            wait.after,
            wait.delay_ns,
            blocks=Blocks(scope, ids_of(call.row), block_tokens, max(1, whole_of(call.row, "in"))),
        )
        for call, wait in zip(calls, found, strict=True)
    ]


def _calls(content: Mapping[str, Any]) -> Iterator[_Call]:
    number = 0
    for entry in list_of(content, "requests"):
        if not isinstance(entry, dict):
            raise ValueError(f"requests contains {entry!r:.40}, but must contain objects")
        kind = entry.get("type")
        if kind == "subagent":
            inner, from_s = list_of(entry, "requests"), number_of(entry, "t")
        elif kind in ("n", "s"):
            inner, from_s = [entry], 0.0
        else:
            raise ValueError(f"requests has the type {kind!r:.40}: it must be n, s or subagent")
        for row in inner:
            if not isinstance(row, dict):
                raise ValueError(f"requests contains {row!r:.40}, but must contain objects")
            at_s = number_of(row, "t")
            # Older traces count time from the start of the subagent.
            if at_s + 1e-6 < from_s:
                at_s += from_s
            took_s = number_of(row, "api_time", 0) if row.get("api_time") is not None else 0.0
            start_ns = round(at_s * NS_PER_S)
            yield _Call(Interval(start_ns, start_ns + round(took_s * NS_PER_S)), number, row)
            number += 1
