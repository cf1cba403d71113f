"""Reasons and doubts about a client that limits a run; a single change causes each of them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness.core.units import NS_PER_MS, NS_PER_US
from harness.results.evidence.evidence import Evidence
from harness.results.evidence.stages import REMOTE_STAGES, Completions, summarise
from harness.results.verdict import client, reasons
from tests.builders.remote_runs import BOUND_NS, TOKENS, remote
from tests.builders.support import evidence, present


def bound(run: Evidence, completed_per_s: float = 2_000.0) -> list[str]:
    return [reason.code for reason in client.reasons(run, completed_per_s)]


def doubted(run: Evidence) -> list[str]:
    return [doubt.code for doubt in client.doubts(run, BOUND_NS)]


def test_a_run_on_this_machine_has_no_client() -> None:
    run = evidence("server")
    assert client.section(run) is None
    assert bound(run) == doubted(run) == []


def test_a_client_with_time_to_spare_is_believed() -> None:
    assert bound(remote()) == doubted(remote()) == []


def test_the_stages_of_a_server_sum_to_the_latency() -> None:
    done = present(remote().done)
    assert tuple(done.edges) == REMOTE_STAGES
    assert sum(stage["share"] for stage in summarise(done).values()) == pytest.approx(1)
    begins, ends = zip(*done.edges.values(), strict=True)
    total = sum(done.columns[e] - done.columns[b] for b, e in zip(begins, ends, strict=True))
    assert np.array_equal(total, done.latency_ns)


def test_missing_kernel_stamps_leave_out_the_stage_notice() -> None:
    done = present(remote().done)
    columns = {name: values for name, values in done.columns.items() if name != "arrived_ns"}
    unstamped = Completions(columns, done.issued, done.answered_once)
    assert "notice" not in unstamped.edges
    assert unstamped.edges["remote"] == ("sent_ns", "read_ns")
    total = sum(columns[end] - columns[begin] for begin, end in unstamped.edges.values())
    assert np.array_equal(total, unstamped.latency_ns)
    section = present(client.section(replace(remote(), done=unstamped)))
    assert section["notice_p99_ns"] is None


@pytest.mark.parametrize(
    ("changed", "codes", "doubts"),
    [
        ({"notice_ns": 3 * NS_PER_MS}, ["client-bound"], ["client-busy"]),
        ({"notice_ns": 600 * NS_PER_US}, [], ["client-busy"]),
        ({"busy_shares": [0.96] + [0.1] * 4}, ["client-bound"], ["client-busy"]),
        ({"busy_shares": [0.96] + [0.1] * 19}, [], ["client-busy"]),
        ({"busy_shares": [0.71, 0.1]}, [], ["client-busy"]),
        ({"busy_shares": []}, [], []),
        ({"ceiling_per_s": 3_999.0}, [], ["client-busy"]),
        ({"ceiling_per_s": 4_001.0}, [], []),
        ({"ceiling_per_s": None, "no_ceiling": "OSError"}, [], []),
        ({"waited": 1}, [], ["few-connections"]),
        *(
            (
                {
                    "server_times": {
                        "source": s,
                        "requests": 9,
                        "queue_ns": q,
                        "compute_ns": c,
                        "total_ns": t,
                    }
                },
                [],
                ["server-times"] * odd,
            )
            for s, q, c, t, odd in (
                ("Server-Timing", 1_000_000, 2_000_000, 4_000_000, 0),
                (
                    "Server-Timing",
                    0,
                    0,
                    200,
                    1,
                ),  # the time is in ns, although the header's unit is ms
                ("Server-Timing", 10_000, 5_000_000, 3_000_000, 1),
                # The server's time of 9 ms exceeds the latency of 5 ms.
                ("Server-Timing", 0, 1_000, 9_000_000, 1),
                # A server time of 9 ms causes no doubt, because it is a mean and the latency of 5 ms is a median.
                ("statistics", 0, 1_000, 9_000_000, 0),
                ("statistics", 0, 0, 0, 1),
            )
        ),
        ({"outage_s": 0.2}, [], []),
        ({"outage_s": 0.3}, [], ["server-away"]),
        ({"resent": 3}, [], ["resent"]),
        ({"resent": 4}, ["resent-often"], ["resent"]),
        (
            {"peers": [{"url": "http://127.0.0.1:1", "address": "127.0.0.1", "local": True}]},
            [],
            ["loopback"],
        ),
    ],
)
def test_each_sign_of_a_bound_client_is_found(
    changed: Mapping[str, Any], codes: list[str], doubts: list[str]
) -> None:
    run = remote(**changed)
    assert bound(run) == codes
    assert doubted(run) == doubts


def test_offline_is_compared_with_the_ceiling_of_the_client() -> None:
    run = remote("offline", ceiling_per_s=1_000.0, notice_ns=3 * NS_PER_MS)
    assert bound(run, 801.0) == ["client-bound"]
    assert bound(run, 799.0) == []
    (reason,) = client.reasons(run, 900.0)
    assert "900 samples/s are more than 80 %" in reason.text
    assert "(1,000)" in reason.text


def test_samples_that_failed_after_the_server_died_do_not_bind_the_client() -> None:
    """Bug: the samples failed at once, and the rate of these failures was compared with the ceiling."""
    run = remote("offline", ceiling_per_s=1_000.0, server_gone="Connection refused\n")
    assert bound(run, 900.0) == []


def test_failed_requests_are_counted_by_kind() -> None:
    run = remote(failures={"timeout": 2, "refused": 5}, server_gone="Connection refused\n")
    failed = {
        **present(run.ended),
        "failed_samples": 7,
        "first_failure": "Traceback\nRefused: the server answered 503: busy",
    }
    first, gone = list(reasons.any_run(replace(run, ended=failed)))[:2]
    assert first.code == "requests-failed"
    assert first.text == (
        "performance run: 7 of 700 samples failed (5 refused, 2 timeout); the first failure: Refused: the server "
        "answered 503: busy"
    )
    assert (gone.code, gone.text) == (
        "server-gone",
        "performance run: the client gave up on the server: Connection refused",
    )


def test_prompts_from_a_cache_are_a_doubt_and_a_reason_under_the_rules() -> None:
    assert doubted(remote(tokens=TOKENS)) == []
    run = remote(tokens={**TOKENS, "cached_answers": 7})
    (doubt,) = client.doubts(run, BOUND_NS)
    assert doubt.code == "prefix-cache"
    assert doubt.text == (
        "for 7 of 700 answers, the server had already computed a part of the prompt, 10.0 % of all their tokens"
    )
    official = replace(run, plan=replace(run.plan, model_key="llama2-70b"))
    assert doubted(official) == []
    assert bound(official) == ["prompts-cached"]


def test_a_prompt_with_a_different_token_count_of_the_server_is_a_doubt() -> None:
    (doubt,) = client.doubts(remote(tokens={**TOKENS, "changed_prompts": 3}), BOUND_NS)
    assert doubt.code == "prompt-changed"
    assert doubt.text.endswith("than were sent for 3 of 100 prompts")


def test_tensors_as_json_are_a_doubt_with_their_cost() -> None:
    (doubt,) = client.doubts(remote(json_ns=NS_PER_MS), BOUND_NS)
    assert doubt.code == "json-tensors"
    assert "in 1.00 ms, 20 % of the latency's p50" in doubt.text


def test_users_without_a_connection_are_a_doubt() -> None:
    """Bug: with --concurrency 100 and 64 connections, 36 users silently waited in the client."""
    run = remote(waited=9)
    for users, codes in ((64, []), (100, ["few-connections"])):
        assert doubted(replace(run, plan=replace(run.plan, concurrency=users))) == codes


def test_only_servers_on_this_machine_are_local() -> None:
    """Bug: a server on this machine was reported among the programs that the user should stop."""
    assert client.local_servers(remote()) == []
    peers = [{**present(remote().ended)["client"]["peers"][0], "local": True, "url": "http://here"}]
    assert client.local_servers(remote(peers=peers)) == ["http://here"]
