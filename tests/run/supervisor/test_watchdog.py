"""The watchdog counts a run's samples, and measures its running p99 and the time without a completion."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import RunHung
from harness.run.journal import Journal, Writer
from harness.run.supervisor.completions import NewRows
from harness.run.supervisor.measured_process import _goes_on, raise_if_stuck
from harness.run.supervisor.watchdog import Now, Watchdog
from tests.builders.support import journal, plan

START_NS = 1_800_000_000 * 10**9


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 0
        monkeypatch.setattr("harness.run.supervisor.watchdog.monotonic_ns", lambda: self.now_ns)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def answer(writer: Writer, first: int, size: int, latency_ns: int, failed: int = 0) -> None:
    stamps = [START_NS] * 4 + [START_NS + latency_ns]
    writer.batch(first, list(range(size)), failed, *stamps)


def test_idle_is_the_time_without_a_completion_while_something_waits(clock: Clock) -> None:
    view = journal(10, 1)
    issuer, writer = view.issuer(), view.writer(0)
    watchdog = Watchdog(NewRows(view, plan("offline")))
    clock.now_ns = 5
    assert watchdog.look().idle_ns == 0  # the time is 0, because no query has been issued yet
    issuer.issued(4, START_NS)
    clock.now_ns = 10
    # The time counts from the first reading that showed the query.
    assert watchdog.look().idle_ns == 0
    clock.now_ns = 40
    assert watchdog.look().idle_ns == 30
    answer(writer, 0, 1, 7)
    clock.now_ns = 50
    assert watchdog.look().idle_ns == 0
    clock.now_ns = 60
    assert watchdog.look().idle_ns == 10
    answer(writer, 1, 3, 7)
    clock.now_ns = 1000
    now = watchdog.look()
    assert (now.idle_ns, now.waiting, now.completed, now.issued) == (0, 0, 4, 4)


def test_time_after_the_end_begins_again_with_each_completion(clock: Clock) -> None:
    """Bug: the time counted from the first reading that showed the predicted number of answers."""
    view = journal(1000, 1)
    issuer, writer = view.issuer(), view.writer(0)
    watchdog = Watchdog(NewRows(view, plan("offline", query_count=500)))
    for first, size in ((0, 499), (499, 1), (500, 1)):
        issuer.issued(size, START_NS)
        answer(writer, first, size, 7)
        clock.now_ns += 100
        assert watchdog.look().finished_ns == 0
        clock.now_ns += 100
        assert watchdog.look().finished_ns == (100 if first else 0)
    issuer.issued(1, START_NS)
    clock.now_ns += 100
    # LoadGen has not finished, because it waits for the model.
    assert watchdog.look().finished_ns == 0
    now = Now(4, 4, 0, None, 0, finished_ns=120 * 10**9 + 1)
    with pytest.raises(RunHung, match="hung after its last completion"):
        raise_if_stuck(now, 10, 600)
    raise_if_stuck(now, 121, 600)


def test_accuracy_run_of_large_queries_plans_each_sample_once() -> None:
    """Bug: eight times too many samples were expected, so the progress ended at 12 %."""
    of_accuracy = plan("multi-stream", accuracy=True, query_count=20)
    assert of_accuracy.planned_samples == 20
    assert plan("multi-stream").planned_samples == 662 * 8
    view = journal(20, 1)
    view.issuer().issued(20, START_NS)
    answer(view.writer(0), 0, 20, 7)
    watchdog = Watchdog(NewRows(view, of_accuracy))
    watchdog._last_change_ns -= 50
    assert (watchdog.look().idle_ns, watchdog.look().finished_ns > 0) == (0, True)


def test_failed_samples_are_counted_once() -> None:
    view = journal(10, 2)
    view.issuer().issued(9, START_NS)
    watchdog = Watchdog(NewRows(view, plan("offline")))
    answer(view.writer(0), 0, 4, 7, failed=1)
    assert [watchdog.look().failed, watchdog.look().failed] == [4, 4]
    answer(view.writer(1), 4, 5, 7, failed=1)
    assert watchdog.look().failed == 9


def test_percentile_is_absent_before_the_first_completion() -> None:
    assert Watchdog(NewRows(journal(1, 1), plan("single-stream"))).look().p99_ns is None


def _one_by_one(view: Journal, latencies: list[int]) -> None:
    issuer, writer = view.issuer(), view.writer(0)
    for n, latency_ns in enumerate(latencies):
        issuer.issued(1, START_NS)
        answer(writer, n, 1, latency_ns)


@given(st.lists(st.integers(1_000, 10**12), min_size=1, max_size=300))
def test_running_p99_is_within_6_percent_of_loadgens_value(
    latencies: list[int],
) -> None:
    view = journal(len(latencies), 1)
    _one_by_one(view, latencies)
    shown = Watchdog(NewRows(view, plan("single-stream"))).look().p99_ns
    assert shown is not None
    true = sorted(latencies)[int(len(latencies) * 0.99)]
    assert true / 1.06 <= shown <= true * 1.06


def test_latencies_beyond_the_histogram_are_shown_as_its_end() -> None:
    view = journal(1, 1)
    _one_by_one(view, [10**14])
    assert Watchdog(NewRows(view, plan("single-stream"))).look().p99_ns == pytest.approx(1e12)


def test_batches_before_the_run_are_not_taken_for_a_blocked_dataset(clock: Clock) -> None:
    shown: list[tuple[int, int]] = []

    def show(done: int, total: int) -> None:
        shown.append((done, total))

    watchdog = Watchdog(NewRows(journal(10, 1), plan("offline")))
    watchdog.look()
    clock.now_ns = 50
    assert watchdog.look().loading_ns == 50
    assert not _goes_on({"event": "ended"}, watchdog, show)
    assert not _goes_on(None, watchdog, show)
    assert watchdog.look().loading_ns == 50
    assert _goes_on({"event": "alive"}, watchdog, show)
    assert (watchdog.look().loading_ns, shown) == (0, [])
    assert _goes_on({"event": "loading", "done": 1, "total": 2}, watchdog, show)
    assert shown == [(1, 2)]
