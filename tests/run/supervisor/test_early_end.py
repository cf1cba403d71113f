"""A run ends early only if it can no longer meet its SLO."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from harness.core.config.parse import parse_slo
from harness.core.config.run_config import RunConfig
from harness.core.units import NS_PER_MS, NS_PER_S
from harness.errors import RunDied, RunHopeless
from harness.loadgen.schedule import server_schedule_ns
from harness.machine import cgroup
from harness.machine.family import ANONYMOUS, Family
from harness.machine.host_log import HOST_PERIOD_S, HostLog
from harness.results.outcome import Finished
from harness.results.recheck import check
from harness.run.journal import Journal
from harness.run.supervisor.completions import NewRows
from harness.run.supervisor.early_end import UNSEEN_NS, LateLimit, MemoryLimit
from harness.run.supervisor.job import measure
from harness.run.supervisor.watchdog import Now
from harness.types import Array
from tests.builders.support import journal, plan
from tests.faults.command import FAULTY, children

START_NS = 1_800_000_000 * NS_PER_S
BOUND_NS = 50 * NS_PER_MS
SLOW = """\
import time
from harness.backends.null import NullBackend

class Slow(NullBackend):
    def infer(self, batch):
        time.sleep(0.02)
        return super().infer(batch)
"""


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    at = [START_NS]
    monkeypatch.setattr("harness.run.supervisor.early_end.wall_ns", lambda: at[0])
    return at


def server(queries: int, most_late: int) -> tuple[Journal, Array, LateLimit]:
    made = plan("server", query_count=queries, target_qps=1000.0)
    after_ns = server_schedule_ns(queries, 1000.0, made.seeds.schedule)
    rows = journal(queries, 2)
    return rows, after_ns, LateLimit(NewRows(rows, made), lambda _: most_late)


def issue(rows: Journal, after_ns: Array, late_ns: int = 0) -> None:
    """late_ns: the delay of every callback after the first."""
    issuer = rows.issuer()
    for number, at_ns in enumerate(after_ns.tolist()):
        issuer.issued(1, START_NS + at_ns + (late_ns if number else 0))


def answered(rows: Journal, worker: int, first: int, size: int, completed_ns: int) -> None:
    stamps = [*[START_NS] * 4, completed_ns]
    rows.writer(worker).batch(first, list(range(size)), 0, *stamps)


def test_late_queries_are_counted_from_the_schedule_not_from_the_callback(now: list[int]) -> None:
    rows, after_ns, limit = server(100, 100)
    issue(rows, after_ns, 30 * NS_PER_MS)
    answered(rows, 0, 0, 1, START_NS + NS_PER_MS)
    assert limit.count() == 0
    # At `end_ns`, the 60 samples before `after_ns[60]` are late.
    end_ns = START_NS + int(after_ns[60]) + BOUND_NS
    answered(rows, 1, 1, 99, end_ns)
    assert limit.count() == 59
    assert limit.count() == 59  # the count stays, because no new row arrived


def test_a_batch_read_twice_is_counted_once_and_too_many_end_the_run(now: list[int]) -> None:
    rows, after_ns, limit = server(100, 10)
    issue(rows, after_ns)
    answered(rows, 0, 0, 1, START_NS)
    limit.check()
    answered(rows, 1, 1, 98, START_NS + int(after_ns[11]) + BOUND_NS)
    limit.check()  # the run goes on, because ten samples may be late
    limit.check()
    rows, after_ns, limit = server(100, 10)
    issue(rows, after_ns)
    answered(rows, 0, 0, 99, START_NS + int(after_ns[12]) + BOUND_NS)
    with pytest.raises(RunHopeless) as caught:
        limit.check()
    assert str(caught.value) == (
        "ended early: 12 of 100 queries have already taken longer than 50.0 ms, but only 10 may"
    )


def test_queries_that_wait_and_are_overdue_count(now: list[int]) -> None:
    rows, after_ns, limit = server(100, 100)
    issue(rows, after_ns)
    answered(rows, 0, 0, 1, START_NS)
    now[0] = START_NS + int(after_ns[40]) + BOUND_NS + UNSEEN_NS
    assert limit.count() == 39  # 39 of the 40 due samples are late, because one sample is answered
    now[0] = START_NS + 10 * NS_PER_S
    assert limit.count() == 99


def test_finished_run_is_not_ended_early(now: list[int]) -> None:
    rows, after_ns, limit = server(100, 10)
    issue(rows, after_ns)
    answered(rows, 0, 0, 100, START_NS + 100 * NS_PER_S)
    limit.check()
    assert limit.count() == 100


def test_a_streams_query_is_as_late_as_its_last_batch(now: list[int]) -> None:
    made = plan("multi-stream", query_count=2, latency_bound_ns=BOUND_NS)
    rows = journal(16, 1)
    issuer, writer = rows.issuer(), rows.writer(0)
    limit = LateLimit(NewRows(rows, made), lambda _: 0)
    for query, latency_ns in enumerate((BOUND_NS, BOUND_NS + 1)):
        issuer.issued(8, START_NS)
        for first, completed_ns in ((0, 1), (6, latency_ns)):
            indices = list(range(6 if first == 0 else 2))
            stamps = [*[START_NS] * 4, START_NS + completed_ns]
            writer.batch(8 * query + first, indices, 0, *stamps)
        assert limit.count() == query
    now[0] = START_NS + 100 * NS_PER_S
    assert limit.count() == 1


def test_run_without_a_limit_is_never_ended(now: list[int]) -> None:
    rows = journal(100, 1)
    rows.issuer().issued(100, START_NS)
    answered(rows, 0, 0, 100, START_NS + 1000 * NS_PER_S)
    LateLimit(NewRows(rows, plan("offline")), None).check()
    LateLimit(NewRows(rows, plan("offline", latency_bound_ns=None)), lambda _: 0).check()


def test_hopeless_run_keeps_its_measurements_and_gives_the_reason(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    config = RunConfig(
        scenario="server",
        backend=f"{tmp_path / 'slow.py'}:Slow",
        mode="performance",
        slo=(parse_slo("p99=25ms"),),
        target_qps=400.0,
        queries=4000,
        instances=1,
        max_batch=1,
        out=tmp_path / "run",
        no_metrics=True,
    )
    finished = measure(config, most_late=lambda _: 3)
    (reason,) = finished.result["reasons"]
    assert reason["code"] == "hopeless"
    assert (finished.status, finished.folder) == (4, tmp_path / "run.partial")
    assert finished.result["latency_ns"]["source"] == "interrupted, from the journal"
    assert 0 < finished.result["queries"]["samples_answered"] < 4000
    assert check(finished.folder) == []


GB = 10**9


def looks(rows: list[tuple[int, float, float]], total_bytes: int = 10 * GB) -> MemoryLimit:
    """rows: number of issued samples, then the measured process's memory and the available memory in GB."""
    log = HostLog()
    limit = MemoryLimit(log, total_bytes)
    for issued, held, left in rows:
        row = {"wall_ns": 0, ANONYMOUS: held * GB, "memory_available_bytes": left * GB}
        log.rows.append(row)
        limit.check(Now(issued, max(0, issued - 1), 0, None, 0))
    return limit


def test_a_run_is_ended_before_it_takes_the_last_memory() -> None:
    """Bug: the kernel killed a run that collected cyclic garbage, and the message `killed by SIGKILL` named no cause."""
    said = (
        r"^the measured process was ended because only 150 MB of memory was left; its memory grew from 2.00 GB "
        r"to 3.50 GB during the run, in which Python does not collect cyclic garbage: find the data that the backend keeps"
    )
    with pytest.raises(RunDied, match=said):
        looks([(0, 0.5, 9), (1, 2, 8), (9, 3, 5), (99, 3.5, 0.15)])


@pytest.mark.parametrize(
    "rows",
    [
        # The memory grows before the first query, because the dataset loads its samples.
        [(0, 0.5, 9), (0, 3.5, 0.15)],
        # Other programs take the memory, and the process has grown by only 0.9 GB.
        [(1, 2, 8), (9, 2.9, 0.15)],
        [(1, 2, 8), (9, 8, 1)],  # the process has grown, but enough memory is available
    ],
)
def test_little_memory_without_a_growing_run_ends_no_run(
    rows: list[tuple[int, float, float]],
) -> None:
    looks(rows)


def test_growth_is_named_only_if_it_was_large() -> None:
    assert looks([(1, 2, 8), (9, 2.9, 5)]).growth() == ""
    assert (
        looks([(1, 2, 8), (9, 3.1, 5)])
        .growth()
        .startswith("; its memory grew from 2.00 GB to 3.10 GB")
    )
    assert MemoryLimit(HostLog(), GB).growth() == ""


def test_growth_is_that_of_the_last_reading_before_the_death() -> None:
    """Bug: a reading between the death of the process and its discovery hid the growth."""
    limit = looks([(1, 2, 8), (9, 5, 3), (9, 0, 8)])
    assert limit.growth().startswith("; its memory grew from 2.00 GB to 5.00 GB")


def container(folder: Path, left_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a container with 1 GB, in the files of its cgroup."""
    group = folder / "fs"
    group.mkdir()
    (folder / "own").write_text("0::/\n")
    (group / "memory.max").write_text("1000000000")
    (group / "memory.current").write_text(str(10**9 - left_bytes))
    monkeypatch.setattr(cgroup, "ROOT", group)
    monkeypatch.setattr(cgroup, "OWN", folder / "own")


def grow(folder: Path) -> Finished:
    return measure(
        RunConfig(
            scenario="single-stream",
            mode="performance",
            backend=f"{FAULTY}:Leaks",
            queries=5000,
            out=folder / "r",
            no_metrics=True,
        )
    )


@pytest.mark.slow
def test_a_real_run_that_grows_is_ended_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    container(tmp_path, 15 * 10**6, monkeypatch)
    finished = grow(tmp_path)
    assert finished.status == 5
    (reason,) = finished.result["reasons"]
    assert reason["code"] == "died"
    assert "because only 15.0 MB of memory was left; its memory grew from " in reason["text"]
    assert finished.result["queries"]["samples_answered"] > 100
    assert check(finished.folder) == []


@pytest.mark.slow
def test_death_by_sigkill_names_the_growth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: the message `killed by SIGKILL` named no cause, although 600 s of garbage had filled the memory."""
    container(tmp_path, 5 * 10**8, monkeypatch)

    others = {*children(os.getpid())}  # these processes are servers that earlier tests started

    def kill() -> None:
        while not (pids := [pid for pid in children(os.getpid()) if pid not in others]):
            time.sleep(0.1)
        # The limit is far above the memory that a model uses before its first query, and above a tenth of the
        # container's memory.
        while Family(pids[0]).read()[ANONYMOUS] < 6 * 10**8:
            time.sleep(0.1)
        time.sleep(5 * HOST_PERIOD_S)  # under load, some readings are late
        os.kill(pids[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    finished = grow(tmp_path)
    killer.join()
    (reason,) = finished.result["reasons"]
    assert reason["code"] == "died"
    assert "was killed by SIGKILL in the run: it printed nothing" in reason["text"]
    assert "; its memory grew from " in reason["text"]
