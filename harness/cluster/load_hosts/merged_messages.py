"""Merges messages of the same type from several load hosts into one message.

Counts are added. Percentiles that each host computed are dropped, because percentiles of different hosts cannot be
combined.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.errors import ConfigError

Message = Mapping[str, Any]

_SAME = ("inputs", "total_count", "performance_count", "fixed_batch", "model_sha256")
_SUMS = ("cpu_s", "voluntary_switches", "involuntary_switches", "rss_before_bytes")
_KNOWN_SUMS = ("rss_peak_bytes", "rss_run_peak_bytes", "cyclic_garbage_objects")
"""Resources that a host may not report. If any host does not report a resource, the total for this resource is unknown.
"""

_CLIENT_SUMS = ("connections", "waited", "resent", "reopened")


def loaded(messages: Mapping[str, Message]) -> dict[str, Any]:
    """Merges the messages `loaded`. Raises ConfigError if the hosts loaded different data. messages: validated messages
    by host name.
    """
    (first_name, first), *others = messages.items()
    problems = []
    for name, message in others:
        for what, theirs, ours in _differences(message, first):
            problems.append(
                f"load hosts {first_name} and {name} differ in {what} ({ours} and {theirs}): give "
                "both the same files and options"
            )
    if problems:
        raise ConfigError("\n".join(problems))
    return dict(first)


def _differences(one: Message, other: Message) -> Iterable[tuple[str, object, object]]:
    for key in _SAME:
        if one[key] != other[key]:
            yield key, one[key], other[key]
    digests = [message["dataset"].get("digest") for message in (one, other)]
    if digests[0] != digests[1]:
        yield "the dataset's digest", *digests


def calibrated(messages: Sequence[Message]) -> dict[str, Any]:
    """Merges the messages `calibrated`. The rates are added, because the hosts calibrate at the same time. messages:
    validated messages.
    """
    return {
        **messages[0],
        "slowest_batch_ns": max(m["slowest_batch_ns"] for m in messages),
        "answer_bytes": max(m.get("answer_bytes", 0) for m in messages),
        "rate_per_s": _sum(m.get("rate_per_s") for m in messages),
    }


def ended(messages: Mapping[str, Message], files: Mapping[str, str]) -> dict[str, Any]:
    """Merges the messages `ended`. messages: messages by host name. files: digests of the merged files, as in `ended`."""
    all_of = list(messages.values())
    failed = [f"{name}: {m['first_failure']}" for name, m in messages.items() if m["first_failure"]]
    unclosed = [f"{name}: {m['close_error']}" for name, m in messages.items() if m["close_error"]]
    return {
        **all_of[0],
        "used": _used([m["used"] for m in all_of]),
        "files": dict(files),
        "failed_samples": sum(m["failed_samples"] for m in all_of),
        "first_failure": failed[0] if failed else "",
        "close_error": "; ".join(unclosed),
        "client": _client([m["client"] for m in all_of]),
    }


def _used(used: Sequence[Message]) -> dict[str, Any]:
    """Returns the total resources that all hosts used, over the longest time that any host reports."""
    sums: dict[str, Any] = {key: sum(u[key] for u in used) for key in _SUMS}
    sums |= {key: _sum(u[key] for u in used) for key in _KNOWN_SUMS}
    if all("run_queue_s" in u for u in used):
        sums["run_queue_s"] = sum(u["run_queue_s"] for u in used)
    return {
        **sums,
        "wall_s": max(u["wall_s"] for u in used),
        "wall_offset_ns": max((u["wall_offset_ns"] for u in used), key=abs),
        "rss_run_peak_reason": _first(u["rss_run_peak_reason"] for u in used) or None,
    }


def _client(clients: Sequence[Message]) -> dict[str, Any]:
    ceilings = _sum(c["ceiling_per_s"] for c in clients)
    floors = [c["floor_p50_ns"] for c in clients]
    return {
        **clients[0],
        **{key: sum(c[key] for c in clients) for key in _CLIENT_SUMS},
        "request_timeout_s": max(c["request_timeout_s"] for c in clients),
        "closes_after": min(filter(None, (c["closes_after"] for c in clients)), default=0),
        "outage_s": max(c["outage_s"] for c in clients),
        "ceiling_per_s": ceilings,
        "floor_p50_ns": max(floors) if ceilings is not None else None,
        "no_ceiling": _first(c["no_ceiling"] for c in clients),
        "busy_shares": [share for c in clients for share in c["busy_shares"]],
        "server_gone": _first(c["server_gone"] for c in clients),
        "failures": _counts(c["failures"] for c in clients),
        "server_times": _server_times([c["server_times"] for c in clients]),
        "json_ns": _largest(c["json_ns"] for c in clients),
        "tokens": _tokens([c["tokens"] for c in clients]),
    }


def _server_times(times: Sequence[Message | None]) -> Message | None:
    """Returns a server's totals over the requests from all hosts. Medians become None, because each host's median
    covers only this host.
    """
    first = times[0]
    return first if first is not None and first["source"] == "statistics" else None


def _tokens(tokens: Sequence[Message | None]) -> dict[str, Any] | None:
    known = [t for t in tokens if t is not None]
    if not known:
        return None
    summed = (
        "answers",
        "cached_answers",
        "one_token_answers",
        "varied_prompts",
        "compared_prompts",
        "changed_prompts",
        "long_prompts",
        "long_answers",
        *("short_prompts", "short_answers", "bounded_prompts", "uncalled_prompts"),
        *("calling_prompts", "long_answered", "alike_prompts", "repeated_answers"),
        *("varied_answers", "named_replies", "same_names", "named_repeats", "same_names_of_prompt"),
    )
    counted = ("sources", "finish_reasons", "contradictions", "doubts", "signs")
    return {
        **{key: sum(t[key] for t in known) for key in summed},
        **{key: sum(t.get(key, 0) for t in known) for key in ("tails", "tails_at_once")},
        **{key: _sum(t[key] for t in known) for key in ("input", "output", "cached", "reasoning")},
        **{key: _counts(t[key] for t in known) for key in counted},
        "streams": _streams([t["streams"] for t in known if t["streams"] is not None]),
    }


def _streams(streams: Sequence[Message]) -> dict[str, Any] | None:
    if not streams:
        return None
    chunks = sum(s["chunks"] for s in streams)
    known = all(s["tokens_per_chunk"] is not None for s in streams)
    tokens = sum(s["tokens_per_chunk"] * s["chunks"] for s in streams) if known else None
    return {
        "chunks": chunks,
        "tokens_per_chunk": tokens / chunks if tokens is not None else None,
        "exact": all(s["exact"] for s in streams),
        **{
            key: sum(s[key] for s in streams) for key in ("several", "at_once", "long", "held_back")
        },
        "itl_ns": None,
        "second_gap_ns": None,
        "chunk_gap_ns": None,
    }


def _sum(values: Iterable[Any]) -> Any:
    """Returns the sum, or None if any value is None."""
    found = list(values)
    return None if any(value is None for value in found) else sum(found)


def _largest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _first(texts: Iterable[str | None]) -> str:
    return next((text for text in texts if text), "")


def _counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for each in counts:
        found.update(each)
    return dict(found)
