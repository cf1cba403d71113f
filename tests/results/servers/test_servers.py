"""Summaries of server metrics: the largest readings, the growth of counters, and shares."""

from harness.machine.host_log import HostLog
from harness.results.servers.section import section
from tests.builders.support import present

ROWS = [
    {"wall_ns": 0, "waiting_requests": 99.0, "inferences": 0.0, "executions": 0.0},
    {"wall_ns": 10, "waiting_requests": 2.0, "inferences": 100.0, "executions": 50.0},
    {"wall_ns": 20, "waiting_requests": 5.0, "inferences": 260.0, "executions": 70.0},
]


def test_only_loadgens_window_counts() -> None:
    found = present(section(HostLog([*ROWS]), (5, 25), ""))
    assert (found["rows"], found["waiting_requests_max"]) == (2, 5.0)
    assert (found["inferences"], found["executions"], found["batch_mean"]) == (160.0, 20.0, 8.0)
    assert found["kv_cache_share_max"] is found["generated_tokens"] is None


def test_restarted_counters_of_a_server_give_no_growth() -> None:
    restarted = {"wall_ns": 22, "waiting_requests": 0.0, "inferences": 3.0, "executions": 80.0}
    found = present(section(HostLog([*ROWS, restarted]), (5, 25), ""))
    assert found["inferences"] is found["batch_mean"] is None
    assert found["executions"] == 30.0


def test_missing_readings_have_a_reason_and_local_runs_no_section() -> None:
    found = present(section(None, (5, 25), "http://h/metrics: the server answered 404"))
    assert (found["rows"], found["absent"]) == (0, "http://h/metrics: the server answered 404")
    assert section(None, (5, 25), "") is None


def test_hits_and_drafts_of_the_window_become_shares() -> None:
    begin = {"cached_tokens": 10.0, "prompt_tokens": 100.0, "drafts": 5.0, "drafted_tokens": 15.0}
    begin |= {"accepted_tokens": 8.0, "accepted_tokens_at_0": 5.0, "accepted_tokens_at_1": 3.0}
    end = {"cached_tokens": 60.0, "prompt_tokens": 300.0, "drafts": 15.0, "drafted_tokens": 45.0}
    end |= {"accepted_tokens": 23.0, "accepted_tokens_at_0": 14.0, "accepted_tokens_at_1": 9.0}
    found = present(section(HostLog([{"wall_ns": 6, **begin}, {"wall_ns": 9, **end}]), (5, 25), ""))
    assert found["cache_hit_share"] == 50 / 200
    assert found["acceptance_share"] == 15 / 30
    assert found["acceptance_length"] == 1 + 15 / 10
    assert found["acceptance_by_position"] == [9 / 10, 6 / 10]


def test_acceptance_length_without_counters_is_the_servers_own() -> None:
    rows = [{"wall_ns": n, "acceptance_length": 2.0 + n / 10} for n in (6, 9)]
    found = present(section(HostLog([*rows]), (5, 25), ""))
    assert found["acceptance_length"] == 2.9
    assert found["acceptance_share"] is None
    assert found["acceptance_by_position"] is None
    assert found["cache_hit_share"] is None


def test_named_series_keep_their_readings() -> None:
    rows = [{"wall_ns": n, 'size{model="a"}': value} for n, value in ((6, 3.0), (7, 9.0), (8, 5.0))]
    found = present(section(HostLog([*rows]), (5, 25), ""))
    assert found["series"] == {'size{model="a"}': {"first": 3.0, "last": 5.0, "largest": 9.0}}
