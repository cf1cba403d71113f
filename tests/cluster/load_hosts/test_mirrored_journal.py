"""A mirrored journal equals the other machine's journal converted to this machine's time, however its rows are split
into parts.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.cluster.load_hosts.merged_journal import Share, merged_completions
from harness.cluster.load_hosts.thinning import parts_of, plan_of
from harness.core.stats import percentile_ns
from harness.loadgen import schedule
from harness.results.evidence.stages import percentiles
from harness.run import journal_mirror
from harness.run.journal_mirror import Mirror, News
from harness.run.supervisor.completions import read_completions
from tests.builders.support import plan
from tests.cluster.load_hosts.test_merged_journal import START_NS, fill, remote_journal

HOSTS = ("a", "b", "c", "d")
ahead_ns = st.integers(-(10**12), 10**12)


@settings(max_examples=15, deadline=None)
@given(
    clocks=st.tuples(*(ahead_ns for _ in HOSTS)),
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    queries=st.integers(80, 400),
    seed=st.integers(0, 99),
)
def test_four_hosts_with_separate_clocks_merge_exactly(
    tmp_path_factory: pytest.TempPathFactory,
    clocks: tuple[int, ...],
    sizes: list[int],
    queries: int,
    seed: int,
) -> None:
    """The percentiles equal the percentiles of all raw latencies together, and the union of the schedules equals
    LoadGen's schedule to the ns.
    """
    whole = plan("server", query_count=queries, journal_samples=queries, load_hosts=4)
    shares, raw = [], []
    for part, clock_ns in zip(parts_of(whole, HOSTS), clocks, strict=True):
        own = plan_of(whole, part, tmp_path_factory.mktemp("host"))
        there = Share(own, part, remote_journal(len(part)))
        here = Share(own, part, remote_journal(len(part)))
        fill(there, sizes, seed, start_ns=START_NS + clock_ns)
        raw.append(read_completions(there.journal, own).latency_ns)
        mirror = Mirror(here.journal, clock_ns)
        for message in News(there.journal).read():
            mirror.add(message)
        shares.append(here)
    merged = merged_completions(shares)
    due_ns = schedule.planned_ns(whole, queries)
    assert due_ns is not None
    assert np.array_equal(merged.columns["scheduled_ns"], due_ns + START_NS)
    assert np.array_equal(merged.columns["index"], schedule.drawn_samples(whole))
    joined = np.sort(np.concatenate(raw))
    assert np.array_equal(np.sort(merged.latency_ns), joined)
    found = percentiles(merged.latency_ns)
    for name, fraction in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)):
        assert found[name] == percentile_ns(joined, fraction)


@pytest.fixture
def share(tmp_path: Path) -> Share:
    whole = plan("server", query_count=300, journal_samples=300, load_hosts=1)
    (part,) = parts_of(whole, ["a"])
    return Share(plan_of(whole, part, tmp_path), part, remote_journal(len(part)))


def test_news_in_small_messages_rebuilds_the_whole_journal(
    share: Share, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_mirror, "MOST_ROWS", 7)
    here = share._replace(journal=remote_journal(300))
    news, mirror = News(share.journal), Mirror(here.journal, 0)
    for message in news.read():  # the only message contains the size of the empty journal
        mirror.add(message)
    fill(share, [1, 3], 1)
    messages = [*news.read()]
    assert len(messages) > 60
    for message in messages:
        mirror.add(message)
    assert [set(message) for message in news.read()] == [{"start_ns", "loading"}]
    theirs = read_completions(share.journal, share.plan).columns
    ours = read_completions(here.journal, here.plan).columns
    assert ours.keys() == theirs.keys()
    for name, column in theirs.items():
        assert np.array_equal(ours[name], column), name


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"worker": 1}, "there is no worker 1"),
        ({"rows": "AAAA"}, "buffer size"),
        ({"rows": "?"}, "base64"),
        ({"indices": "AAAA"}, "buffer size"),
    ],
)
def test_impossible_news_is_refused(share: Share, changes: dict[str, Any], why: str) -> None:
    fill(share, [2], 1)
    *_, rows = News(share.journal).read()
    mirror = Mirror(remote_journal(300), 0)
    with pytest.raises(ValueError, match=why):
        mirror.add({**rows, **changes})
    with pytest.raises(ValueError, match="the journal has 10 samples"):
        Mirror(remote_journal(10), 0).add(rows)
