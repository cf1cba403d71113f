"""The servers' own metrics in the run: maximum readings, growth of counters, and no invented numbers."""

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
