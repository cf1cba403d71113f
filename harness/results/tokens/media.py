"""Summarises a run's sound, and compares the sound's duration with the time that the server needed.

Has no side effects.
"""

from collections.abc import Mapping
from typing import Any

from harness.core.units import NS_PER_S, show_ns
from harness.results.evidence.evidence import Evidence
from harness.results.schema.client import Media
from harness.results.tokens.facts import MEDIA


def section(run: Evidence) -> Media | None:
    """Returns the section of result.json; None for a run without sound."""
    done = run.done
    if not done:
        return None
    columns = done.columns
    right = columns["failed"] == 0
    client = (run.ended or {}).get("client") or {}
    spoken_ns = (client.get("tokens") or {}).get("media_ns") or 0
    heard_ns = int(columns[MEDIA][right].sum()) if MEDIA in columns else 0
    media_ns = heard_ns or spoken_ns
    if not media_ns:
        return None
    spent_ns = int((columns["completed_ns"] - columns["scheduled_ns"])[right].sum())
    took_ns = int(columns["completed_ns"].max()) - int(columns["scheduled_ns"].min())
    return {
        "of": "requests" if heard_ns else "answers",
        "seconds": media_ns / NS_PER_S,
        "per_s": media_ns / took_ns if took_ns else None,
        "real_time_factor": spent_ns / media_ns,
    }


def shown(result: Mapping[str, Any]) -> str | None:
    """Returns the sound and its speed in one line; None without sound."""
    media = result.get("media")
    if not media:
        return None
    words = [f"{show_ns(media['seconds'] * NS_PER_S)} in the {media['of']}"]
    first = (result.get("tokens") or {}).get("ttft_ns")
    if first is not None:
        words.insert(
            0, f"first piece {show_ns(first['p50'])} / {show_ns(first['p99'])} (p50 / p99)"
        )
    if media["per_s"] is not None:
        words.append(f"{media['per_s']:.3g} s of sound per second")
    words.append(f"real-time factor {media['real_time_factor']:.3g}")
    return ", ".join(words)
