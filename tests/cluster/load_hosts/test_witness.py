"""The coordinator's own queries verify the load hosts' reports, and the result names a host that stopped."""

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.cli.main import main
from harness.cluster.load_hosts.thinning import samples_of, witness_plan
from harness.core.units import NS_PER_MS, NS_PER_S
from harness.loadgen import schedule
from harness.results.evidence.evidence import Evidence
from harness.results.evidence.stages import Completions
from harness.results.load_hosts import witness
from harness.results.load_hosts.section import HOST
from harness.results.verdict import client
from harness.types import Array
from tests.builders.serving import serving
from tests.builders.support import plan, present
from tests.cluster.load_hosts.agents import load_host
from tests.cluster.load_hosts.shared_runs import Started, children, named, result_of, words
from tests.cluster.load_hosts.test_load_hosts_told import shared
from tests.cluster.runs import codes
from tests.stand_ins.relay import relay

TRIP_NS = 200_000
AWAY_NS = 40 * NS_PER_MS


def times_of(count: int, seed: int, *, fast_ns: int = 10 * NS_PER_MS) -> Array:
    """Returns a server's times, (count,), in which every tenth time is much longer."""
    random = np.random.RandomState(seed)
    slow = random.random_sample(count) < 0.1
    return (fast_ns * (random.lognormal(0, 0.3, count) + 5 * slow)).astype(np.int64)


def completions(answer_ns: Array, first_ns: Array, host: Array) -> Completions:
    count = len(answer_ns)
    due_ns = np.arange(count) * NS_PER_MS
    columns: dict[str, Array] = {
        "order": np.arange(count),
        "failed": np.zeros(count, np.int16),
        HOST: host.astype(np.int16),
        "scheduled_ns": due_ns,
        "sent_ns": due_ns,
        "first_token_ns": due_ns + first_ns,
        "arrived_ns": due_ns + answer_ns,
        "completed_ns": due_ns + answer_ns,
    }
    return Completions(columns, count, True)


def run_of(hosts: int, witnesses: int, forge: Callable[[Array], Array], what: str = "") -> Evidence:
    """Returns a run of 2,000 queries whose first host falsifies its times. what: "first" falsifies only the times to
    the first token.
    """
    count = 2000
    answer_ns, host = times_of(count, 1), np.arange(count) % hosts
    first_ns = answer_ns // 4
    forged = host == 0
    first_ns[forged] = forge(first_ns[forged])
    if what != "first":
        answer_ns[forged] = forge(answer_ns[forged])
    seen_ns = times_of(witnesses, 2)
    seen = witness.seen(completions(seen_ns, seen_ns // 4, np.zeros(witnesses)))
    run = shared(*[{}] * hosts)
    told = [{**each, "clock_error_ns": TRIP_NS // 2} for each in run.load_hosts]
    done = completions(answer_ns, first_ns, host)
    return replace(run, done=done, load_hosts=told, witness=json.loads(json.dumps(seen)))


def doubted(run: Evidence) -> list[str]:
    return [doubt.text.split(":")[0] for doubt in witness.doubts(run)]


def scaled(ns: Array) -> Array:
    return ns * 2 // 5


def subtracted(ns: Array) -> Array:
    less: Array = np.maximum(ns - 4 * NS_PER_MS, NS_PER_MS)
    return less


def tail_cut(ns: Array) -> Array:
    cut: Array = np.minimum(ns, 20 * NS_PER_MS)
    return cut


def honest(ns: Array) -> Array:
    return ns


@pytest.mark.parametrize("hosts", [1, 2, 4])
@pytest.mark.parametrize("witnesses", [20, 200])
def test_honest_hosts_are_not_doubted(hosts: int, witnesses: int) -> None:
    assert doubted(run_of(hosts, witnesses, honest)) == []


@pytest.mark.parametrize(
    ("forge", "what", "hosts", "witnesses"),
    [
        (scaled, "", 1, 20),
        (scaled, "", 2, 20),
        (subtracted, "", 1, 40),
        (tail_cut, "", 1, 200),
        (tail_cut, "", 3, 1),  # the times of the two honest hosts reveal the forgery
        (scaled, "", 3, 1),
        (scaled, "first", 1, 20),
        (scaled, "first", 2, 1),
    ],
)
def test_only_the_host_that_shortens_its_times_is_doubted(
    forge: Callable[[Array], Array], what: str, hosts: int, witnesses: int
) -> None:
    assert doubted(run_of(hosts, witnesses, forge, what)) == ["load host local-1"]


def test_the_doubt_has_both_numbers() -> None:
    (doubt,) = witness.doubts(run_of(1, 20, scaled))
    assert doubt.code == "load-host-faster"
    assert "from request to answer it reports a p50 of " in doubt.text
    assert " of the coordinator's 20 queries took more than 1.25 times as long" in doubt.text


def test_a_coordinator_that_is_far_away_doubts_no_host() -> None:
    """The witness's queries take one additional round trip, which the pings between the machines show."""
    run = run_of(1, 200, honest)
    assert run.witness is not None
    far = {**run.witness, "remote_ns": [ns + AWAY_NS for ns in run.witness["remote_ns"]]}
    far["first_token_ns"] = [ns + AWAY_NS for ns in run.witness["first_token_ns"]]
    assert doubted(replace(run, witness=far)) == ["load host local-1"]
    hosts = [{**host, "clock_error_ns": AWAY_NS // 2} for host in run.load_hosts]
    assert doubted(replace(run, witness=far, load_hosts=hosts)) == []


@pytest.mark.parametrize(("queries", "count"), [(10, 2), (100, 20), (2000, 20), (50_000, 500)])
def test_the_coordinator_asks_for_a_small_share_over_the_whole_run(
    tmp_path: Path, queries: int, count: int
) -> None:
    whole = plan("server", query_count=queries, journal_samples=queries, load_hosts=2)
    own = witness_plan(whole, tmp_path)
    stored = schedule.read_stored(present(own.schedule))
    due_ns = present(schedule.planned_ns(whole, queries))
    assert stored.samples is not None
    assert own.query_count == len(stored.after_ns) == count
    assert (np.diff(stored.after_ns) >= 0).all()
    assert 0 <= stored.after_ns[0] <= stored.after_ns[-1] <= due_ns[-1]
    assert set(stored.samples) <= set(samples_of(whole))
    assert own.logged_answers == 0


def still(run: Evidence, host: int, stood_ns: int, share: float) -> Evidence:
    """Returns the run with a host that issued no query in the first `stood_ns`, so that a share of the host's queries
    waited.
    """
    assert run.done is not None
    columns = {name: column.copy() for name, column in run.done.columns.items()}
    own = np.flatnonzero(columns[HOST] == host)
    own = own[: int(share * len(own))]
    until_ns = columns["scheduled_ns"][own[0]] + stood_ns
    late_ns = np.maximum(until_ns - columns["entry_ns"][own], 0)
    for name, column in columns.items():
        if name.endswith("_ns") and name != "scheduled_ns":
            column[own] += late_ns
    return replace(run, done=replace(run.done, columns=columns))


def test_a_host_that_stood_still_is_named_and_makes_the_run_client_bound() -> None:
    run = still(shared({}, {}), 1, 2 * NS_PER_S, 1.0)
    (reason,) = client.reasons(run, 2_000.0)
    assert reason.code == "client-bound"
    assert reason.text.startswith(
        "local-2: the client stood still for 2.00 s: 1.0 % of the queries"
    )
    (doubt,) = client.standstill_doubts(run)
    assert (doubt.code, doubt.text) == (
        "stalled",
        "load host local-2 stood still for 2.00 s: it issued nothing although queries were due",
    )


def test_a_standstill_that_no_percentile_shows_is_only_a_doubt() -> None:
    run = still(shared({}, {}), 0, 2 * NS_PER_S, 0.005)
    assert [*client.reasons(run, 2_000.0)] == []
    assert [doubt.code for doubt in client.standstill_doubts(run)] == ["stalled"]


@pytest.mark.parametrize("delay_ns", [0, 200 * NS_PER_MS])
def test_a_server_that_stood_still_is_not_the_clients_fault(delay_ns: int) -> None:
    run = shared({}, {})
    assert run.done is not None
    columns = {name: column.copy() for name, column in run.done.columns.items()}
    for name in ("arrived_ns", "read_ns", "decoded_ns", "completed_ns"):
        columns[name] += delay_ns
    run = replace(run, done=replace(run.done, columns=columns))
    assert [*client.reasons(run, 2_000.0)] == [*client.standstill_doubts(run)] == []


LOAD = ("--target-qps", "60", "--mode", "performance")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("forging", "code"),
    [
        (["scaled"], "load-host-faster"),
        (["late_dropped"], "samples-lost"),
        (["before_its_time"], "journal-impossible"),
    ],
)
def test_a_run_whose_host_forges_its_rows_does_not_pass(
    tmp_path: Path, forging: list[str], code: str
) -> None:
    out = tmp_path / "run"
    with ExitStack() as stack:
        served = stack.enter_context(serving("digits", "--backend", "ort", "--max-batch", "16"))
        through = stack.enter_context(relay(served.port, 0.01))
        hosts = [stack.enter_context(load_host(forging=kind)) for kind in forging]
        url = f"http://127.0.0.1:{through.port}"
        load = (*LOAD, "--queries", "400", "--slo", "p99=2s", "--connections", "32")
        main(words(url, out, *load, *named(*(host.port for host in hosts))))
    result = result_of(out)
    found = codes(result) | {doubt["code"] for doubt in result["doubts"]}
    assert code in found, result["doubts"]
    assert main(["check", str(out)]) == 0


def stop_process(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    time.sleep(2.5)
    os.kill(pid, signal.SIGCONT)


@pytest.mark.slow
@pytest.mark.parametrize("stopped", ["host", "server", "run"])
def test_the_part_that_stood_still_is_found(tmp_path: Path, stopped: str) -> None:
    """The pause of a host does not count as server latency; the pause of the server does."""
    out = tmp_path / "run"
    load = (*LOAD, "--duration", "12s", "--slo", "p99=20s", "--connections", "32")
    with (
        serving("digits", "--backend", "ort", "--max-batch", "16") as served,
        load_host() as one,
        load_host() as other,
    ):
        url = f"http://127.0.0.1:{served.port}"
        with Started(url, out, *load, *named(one.port, other.port)) as started:
            started.until(r"performance [1-9]\d* %")
            stop_process(
                {
                    "host": lambda: children(other)[0].pid,
                    "server": lambda: served.process.pid,
                    "run": lambda: started.process.pid,
                }[stopped]()
            )
            assert started.end() in {0, 4}, started.printed
    result: dict[str, Any] = result_of(out)
    texts = [reason["text"] for reason in result["reasons"] if reason["code"] == "client-bound"]
    still_texts = [d["text"] for d in result["doubts"] if d["code"] == "stalled"]
    name = f"127.0.0.1:{other.port}"
    if stopped == "host":
        assert any(text.startswith(f"{name}: the client stood still for 2.") for text in texts)
        assert any(text.startswith(f"load host {name} stood still for 2.") for text in still_texts)
    else:
        assert not any("issued nothing" in text for text in still_texts)
        assert not any("the client stood still" in text for text in texts)
        assert result["latency_ns"]["p99"] > NS_PER_S or stopped == "run"
