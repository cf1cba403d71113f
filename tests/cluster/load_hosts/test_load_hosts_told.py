"""The result judges each host that shared the load separately."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from harness.cluster.load_hosts import merged_messages
from harness.core.config.parse import LoadHosts, parse_load_hosts
from harness.core.config.run_config import RunConfig, to_plain
from harness.core.stats import percentile_ns
from harness.core.units import NS_PER_MS
from harness.errors import ConfigError
from harness.results.evidence.evidence import Evidence
from harness.results.load_hosts.section import HOST, section
from harness.results.pages.load_hosts import host_table
from harness.results.verdict import client
from harness.run import messages
from tests.builders.remote_runs import BOUND_NS, CLIENT, remote
from tests.builders.support import present


def shared(*clients: dict[str, Any], lost: str = "") -> Evidence:
    """Returns the golden run, with its queries spread over the hosts in turn. clients: each host's fields beyond
    CLIENT.
    """
    run = remote()
    assert run.done is not None
    turns = np.arange(len(run.done)) % len(clients)
    columns = {**run.done.columns, HOST: turns.astype(np.int16)}
    hosts = [
        {
            "name": f"local-{place}",
            "queries": int((turns == place - 1).sum()),
            "clock_offset_ns": 0,
            "clock_error_ns": 0,
            "lost": lost if place == 1 else "",
            "client": {**CLIENT, **told},
        }
        for place, told in enumerate(clients, 1)
    ]
    return replace(run, done=replace(run.done, columns=columns), load_hosts=hosts)


def test_a_host_is_summarised_from_its_own_samples() -> None:
    run = shared({}, {"busy_shares": [0.5], "ceiling_per_s": 9_000.0}, {})
    told = present(section(run))
    assert run.done is not None
    assert [host["name"] for host in told] == ["local-1", "local-2", "local-3"]
    assert sum(host["answered"] for host in told) == len(run.done)
    assert [host["busy_max"] for host in told] == [0.3, 0.5, 0.3]
    assert told[1]["ceiling_per_s"] == 9_000.0
    second = np.sort(run.done.latency_ns[run.done.columns[HOST] == 1])
    assert told[1]["p99_ns"] == percentile_ns(second, 0.99)
    assert told[1]["start_skew_ns"] == 1_000
    rates = [host["per_s"] or 0.0 for host in told]
    took_s = np.ptp(run.done.columns["completed_ns"]) / 1e9 + 5e-3
    assert sum(rates) == pytest.approx(len(run.done) / took_s, rel=0.01)


def test_a_run_of_one_process_names_no_hosts() -> None:
    assert section(remote()) is None
    assert host_table({}) is None


def test_a_host_that_is_the_bottleneck_makes_the_run_client_bound() -> None:
    """The two hosts together were busy for less than the limit."""
    idle: dict[str, Any] = {"busy_shares": [0.1] * 20}
    busy = {"busy_shares": [0.99] * 5}
    bound = [*client.reasons(shared(idle, busy, idle, idle), 2_000.0)]
    assert [reason.code for reason in bound] == ["client-bound"]
    assert bound[0].text.startswith("local-2: the client's receiving thread was busy")
    assert [*client.reasons(shared(idle, idle), 2_000.0)] == []


def test_a_hosts_ceiling_is_compared_with_its_own_share_of_the_rate() -> None:
    """The requested rate is 2,000 queries/s: 1,000 queries/s from each of two hosts."""
    doubts = [
        *client.doubts(shared({"ceiling_per_s": 2_500.0}, {"ceiling_per_s": 1_500.0}), BOUND_NS)
    ]
    assert [doubt.code for doubt in doubts] == ["client-busy"]
    assert doubts[0].text.startswith("local-2: the run requests 1,000 queries/s")


def test_the_table_names_a_lost_host_and_the_clock_error() -> None:
    run = shared({}, {}, lost="it was killed")
    hosts = present(section(run))
    hosts[1]["clock_error_ns"] = NS_PER_MS
    table = present(host_table({"load_hosts": hosts}))
    assert [row[0] for row in table.rows] == ["local-1", "local-2"]
    assert "known within 1.00 ms" in table.notes[0]
    assert table.notes[1] == "local-1 was lost: it was killed."


def test_load_hosts_are_a_count_or_a_list_of_addresses() -> None:
    assert parse_load_hosts("4") == LoadHosts(4)
    assert str(LoadHosts(4)) == "4"
    text = "10.0.0.1:7100,[fe80::1]:7100"
    assert parse_load_hosts(text).count == 2
    assert str(parse_load_hosts(text)) == text


@pytest.mark.parametrize("text", ["0", "2000", "a", "a:1,a:1", "a:1,", "a:0", "a:1,b", ""])
def test_other_load_host_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_load_hosts(text)


SERVED = {
    "scenario": "server",
    "backend": "kserve",
    "url": ["http://127.0.0.1:8000"],
    "load_hosts": "2",
}


def test_the_option_is_written_into_config_yaml() -> None:
    config = RunConfig.of(**SERVED)
    assert config.harness_scheduled
    assert to_plain(config)["load_hosts"] == "2"


def test_client_messages_of_hosts_are_merged_and_must_be_complete() -> None:
    """Bug: a host without `outage_s` ended the run with a KeyError, and `closes_after` was taken from the first host."""
    told = [
        {**CLIENT, "closes_after": replies, "outage_s": replies / 10, "peers": [], "tokens": None}
        for replies in (0, 100, 7)
    ]
    merged = merged_messages._client(told)
    assert (merged["closes_after"], merged["outage_s"]) == (7, 10.0)
    check = TypeAdapter(messages._Client).validate_python
    check(merged)
    for key in merged:
        with pytest.raises(ValidationError):
            check({name: value for name, value in merged.items() if name != key})


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"url": []}, "--load-hosts can only be used with a server: add --url, or drop --load-hosts"),
        ({"scenario": "offline"}, "--load-hosts belongs to --scenario server: drop it for offline"),
        ({"mlperf": True}, "--load-hosts cannot be set with --mlperf, because the rules require one LoadGen: drop one"),
        ({"concurrency": 4}, "--load-hosts cannot be set with --concurrency, because a closed loop has no schedule"),
        ({"mode": "accuracy"}, "--load-hosts cannot be set with --mode accuracy, because only the performance run"),
        ({"qdl": True}, "--load-hosts cannot be set with --qdl, because a QDL belongs to one LoadGen: drop one"),
    ],
)  # fmt: skip
def test_an_option_that_contradicts_load_hosts_is_reported_once(
    changed: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        RunConfig.of(**{**SERVED, **changed})
    lines = [line for line in str(raised.value).splitlines() if "--load-hosts" in line]
    assert len(lines) == 1
    assert problem in lines[0]
