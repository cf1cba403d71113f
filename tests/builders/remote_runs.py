"""Evidence of a run against a server."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from harness.core.units import NS_PER_MS, NS_PER_US
from harness.results.evidence.evidence import Evidence
from tests.builders.support import ENDED, evidence

BOUND_NS = 50 * NS_PER_MS
CLIENT: Mapping[str, Any] = {
    "dispatcher": "direct",
    "peers": [{"url": "http://server:8000", "address": "10.1.2.3", "local": False}],
    "sut_name": "",
    "connections": 64,
    "request_timeout_s": 10.0,
    "ceiling_per_s": 30_000.0,
    "floor_p50_ns": 60_000,
    "no_ceiling": "",
    "busy_shares": [0.2, 0.3, 0.1],
    "waited": 0,
    "resent": 0,
    "reopened": 0,
    "closes_after": 0,
    "outage_s": 0.0,
    "server_gone": "",
    "failures": {},
    "json_ns": None,
    "server_times": None,
}
TOKENS: Mapping[str, Any] = {
    "answers": 700,
    "input": 7000,
    "cached": 700,
    "cached_answers": 0,
    "one_token_answers": 0,
    "compared_prompts": 100,
    "changed_prompts": 0,
}


def remote(
    scenario: str = "server",
    notice_ns: int = 2 * NS_PER_US,
    latency_ns: int = 5 * NS_PER_MS,
    **told: Any,
) -> Evidence:
    """Returns the golden run as if a server had answered every sample in the same time."""
    run = evidence(scenario)
    assert run.done is not None
    columns = {
        name: values
        for name, values in run.done.columns.items()
        if name not in ("gathered_ns", "inferred_ns", "postprocessed_ns")
    }
    entry_ns = columns["entry_ns"] = columns["scheduled_ns"] + 1_000
    completed_ns = columns["completed_ns"] = columns["scheduled_ns"] + latency_ns
    columns |= {
        "taken_ns": entry_ns + 1_000,
        "sent_ns": entry_ns + 10_000,
        "arrived_ns": completed_ns - 5_000 - notice_ns,
        "read_ns": completed_ns - 5_000,
        "decoded_ns": completed_ns - 1_000,
    }
    done = replace(run.done, columns=columns)
    return replace(run, done=done, ended={**ENDED, "client": {**CLIENT, **told}})
