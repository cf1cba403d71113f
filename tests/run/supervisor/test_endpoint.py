"""The metrics for Prometheus always agree with the journal and with LoadGen."""

import io
import itertools
import os
import re
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from harness.core.config.parse import Endpoint, Slo, parse_endpoint
from harness.core.config.run_config import RunConfig, to_plain
from harness.errors import ConfigError
from harness.machine.host_log import HostLog
from harness.machine.power.energy import PowerLog
from harness.models.cache.cache import ORIGINS
from harness.results.export import openmetrics
from harness.results.export.openmetrics import RUN_LABELS
from harness.results.run_files import read_files
from harness.run.journal import Journal, RowKind
from harness.run.supervisor.completions import NewRows
from harness.run.supervisor.metrics.endpoint import PAGE_LASTS_S, MetricsEndpoint
from harness.run.supervisor.metrics.exporter import Exporter
from harness.run.supervisor.metrics.histogram import Histogram
from harness.run.supervisor.metrics.live_counts import EDGES_NS, LiveCounts
from harness.run.supervisor.metrics.machine_series import HostSeries, PowerSeries
from tests.builders.finished import RUNS
from tests.builders.support import SCENARIOS, evidence, golden_journal, golden_log, journal, plan
from tests.faults.command import ROOT, result, start
from tests.stand_ins.holding import GARBAGE, connected, dripping, is_dropped

LABELS = {"run": "r1", "scenario": "server", "backend": "ort", "model": "digits"}
RESULT = {
    "verdict": "INVALID",
    "reasons": [{"code": "slo-missed"}, {"code": "slo-missed"}],
    "doubts": [{"code": "busy-machine"}],
    "accuracy": {"metric": "top1", "value": 99.2, "unit": "%", "target": 98.5},
    "goodput": {"per_s": 12.5},
    "tokens": {"ttft_ns": None, "itl_ns": {"p50": 5_000_000}},
}
FREE = Endpoint("127.0.0.1", 0)
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def golden_counts(scenario: str) -> LiveCounts:
    return LiveCounts(NewRows(golden_journal(scenario), plan(scenario)))


def parsed(page: str) -> Samples:
    """Returns every sample on a page by its name and its labels except LABELS."""
    return {
        (s.name, frozenset((k, v) for k, v in s.labels.items() if k not in LABELS)): s.value
        for family in text_string_to_metric_families(page)
        for s in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


def whole_exporter() -> Exporter:
    """Returns an exporter that contains every metric of a run."""
    exporter = Exporter()
    exporter.describe_run(LABELS, {"version": "1", "dataset": "digits", "mode": "both"})
    exporter.sources += [HostSeries(HostLog()), PowerSeries(PowerLog())]
    exporter.begin(golden_counts("server"), [Slo(0.99, 50_000_000), Slo(0.9, 10**9, "ttft")])
    exporter.end()
    exporter.conclude(RESULT)
    return exporter


@contextmanager
def serving(config: RunConfig) -> Iterator[tuple[MetricsEndpoint, str]]:
    with MetricsEndpoint(config, quiet=True) as endpoint:
        yield endpoint, endpoint.notice.removeprefix("metrics at ")


def config(**changed: object) -> RunConfig:
    return RunConfig(scenario="server", **changed)  # type: ignore[arg-type]


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:
        text: str = answer.read().decode()
    return text


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_percentiles_agree_with_loadgens_within_one_bucket(scenario: str) -> None:
    counts = golden_counts(scenario)
    counts.read()
    per = "per_query_latency_ns" if scenario == "multi-stream" else "latency_ns"
    for fraction, text in ((0.5, "50.00"), (0.9, "90.00"), (0.99, "99.00")):
        logged = golden_log(scenario).get(f"result_{text}_percentile_{per}")
        estimate = counts.latency.quantile(fraction)
        assert estimate is not None
        buckets = np.searchsorted(EDGES_NS, [estimate, logged])
        assert abs(int(buckets[0]) - int(buckets[1])) <= 1, (fraction, estimate, logged)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_counts_are_those_of_the_completions(scenario: str) -> None:
    counts = golden_counts(scenario)
    counts.finish()
    done = evidence(scenario).done
    assert done is not None
    per_query = counts.plan.samples_per_query
    assert (counts.issued, counts.completed, counts.failed) == (done.issued, len(done), 0)
    assert counts.latency.total == len(done) // per_query == counts.scheduled_queries
    assert {h.total for h in counts.stages.values()} == {len(done)}
    assert counts.batches.sum == len(done)
    assert counts.queued == 0
    spent_ns = sum(h.sum for h in counts.stages.values())
    if per_query == 1:
        assert spent_ns == counts.latency.sum
    busy_ns = done.columns["completed_ns"] - done.columns["taken_ns"]
    assert counts.busy_ns == int((busy_ns / done.columns["batch_size"]).sum().round())


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 10**9), st.booleans()), max_size=30),
    st.sets(st.integers(0, 29)),
)
def test_counts_do_not_depend_on_the_times_of_reading(
    batches: list[tuple[int, int, bool]], looks: set[int]
) -> None:
    view = journal(1200, 1)
    issuer, writer = view.issuer(), view.writer(0)
    often = LiveCounts(NewRows(view, plan("offline")))
    for n, (size, took_ns, failed) in enumerate(batches):
        first = issuer.issued(size, 10**18)
        stamps = [10**18, 10**18, *[10**18 + took_ns] * 3]
        writer.batch(first, list(range(size)), int(failed), *stamps)
        if n in looks:
            often.read()
    once = LiveCounts(NewRows(view, plan("offline")))
    for counts in (often, once):
        counts.finish()
    assert (often.latency.counts == once.latency.counts).all()
    assert (often.latency.sum, often.completed) == (once.latency.sum, once.completed)
    assert often.failed == sum(size for size, _, failed in batches if failed)


def test_a_query_of_several_samples_fails_once_and_is_as_late_as_its_last() -> None:
    view = journal(16, 1)
    issuer, writer = view.issuer(), view.writer(0)
    counts = LiveCounts(NewRows(view, plan("multi-stream")))
    for query in range(2):
        issuer.issued(8, 0)
        for part in range(2):  # each query has two batches, and a reading follows each batch
            end_ns = 20_000 * (part + 1)
            first = 8 * query + 4 * part
            writer.batch(first, [0] * 4, int(query == 1), 0, 0, end_ns, end_ns, end_ns)
            counts.read()
    assert (counts.failed, counts.failed_queries, counts.latency.total) == (8, 1, 2)
    assert counts.latency.sum == 2 * 40_000


def test_queue_depth_is_the_number_waiting_at_the_newest_batch() -> None:
    view = journal(10, 2)
    issuer = view.issuer()
    counts = LiveCounts(NewRows(view, plan("offline")))
    for n in range(6):
        issuer.issued(1, 100 + n)
    view.writer(0).batch(0, [0, 0], 0, 104, 104, 105, 105, 106)
    counts.read()
    assert (counts.queued, counts.issued - counts.completed) == (3, 4)
    view.writer(1).batch(2, [0, 0, 0, 0], 0, 107, 107, 108, 108, 109)
    counts.read()
    assert counts.queued == 0


def test_wide_instance_occupies_all_workers_and_is_not_a_worker() -> None:
    view = journal(2, 3)
    start_ns = 10**18
    for order, worker in enumerate((0, 2)):
        view.issuer().issued(1, start_ns)
        view.writer(worker).batch(
            order, [0], 0, start_ns, start_ns, start_ns, start_ns, start_ns + 100
        )
    counted = [LiveCounts(NewRows(view, plan("server")), has_wide=wide) for wide in (False, True)]
    for counts in counted:
        counts.read()
    assert [(counts.workers, counts.busy_ns) for counts in counted] == [(3, 200), (2, 300)]


def test_queries_that_are_due_but_not_issued_are_scheduled(monkeypatch: pytest.MonkeyPatch) -> None:
    view = journal(700, 1)
    rows = NewRows(view, plan("server"))
    due_ns = rows.due_ns
    assert due_ns is not None
    start_ns = 10**18
    view.issuer().issued(1, start_ns)
    view.writer(0).batch(0, [0], 0, *[start_ns] * 5)
    counts = LiveCounts(rows)
    monkeypatch.setattr(
        "harness.run.supervisor.metrics.live_counts.wall_ns", lambda: start_ns + int(due_ns[99])
    )
    counts.read()
    assert (counts.scheduled_queries, counts.issued) == (100, 1)


@given(st.lists(st.integers(0, 2 * 10**11), min_size=1), st.sampled_from([0.5, 0.9, 0.99]))
def test_a_quantile_lies_in_the_bucket_of_the_value(values: list[int], fraction: float) -> None:
    histogram = Histogram(EDGES_NS)
    histogram.add(np.array(values))
    estimate = histogram.quantile(fraction)
    true = sorted(values)[int(len(values) * fraction)]
    assert estimate is not None
    bucket = min(int(np.searchsorted(EDGES_NS, true)), len(EDGES_NS) - 1)
    assert EDGES_NS[bucket] >= estimate >= (EDGES_NS[bucket - 1] if bucket else 1_000)


def test_buckets_are_twenty_a_decade_from_10_us_to_100_s() -> None:
    assert (EDGES_NS[0], EDGES_NS[20], EDGES_NS[-1]) == (10_000, 100_000, 100 * 10**9)
    assert len(EDGES_NS) == 7 * 20 + 1
    assert (np.diff(np.log10(EDGES_NS)) < 0.053).all()


def test_every_name_is_documented_and_every_documented_name_exists() -> None:
    page = whole_exporter().page().decode()
    exported = io.StringIO()
    openmetrics.write(read_files(RUNS / "server"), exported)
    of_models = Exporter()
    of_models.describe_run(LABELS, {})
    of_models.begin(cached_counts(), [])
    page += of_models.page().decode()
    on_nodes = Exporter()
    on_nodes.describe_run(LABELS, {})
    on_nodes.begin(node_counts(), [])
    page += on_nodes.page().decode()
    cancelling = Exporter()
    cancelling.describe_run(LABELS, {})
    cancelling.begin(cancelled_counts(), [])
    page += cancelling.page().decode()
    served = set(re.findall(r"^# TYPE (\S+)", page + exported.getvalue(), re.MULTILINE))
    rows = re.findall(r"^\| `(harness_\w+)", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE)
    assert served == set(rows)
    assert len(rows) == len(set(rows))


def test_tokens_are_counted_while_answers_come() -> None:
    fd = Journal.create()
    try:
        Journal.resize(fd, 3, 1, RowKind.REPLY)
        remote = Journal(fd)
    finally:
        os.close(fd)
    ms, issuer, rows = 10**6, remote.issuer(), remote.remote_writer()
    for order, (first_ms, end_ms, tokens) in enumerate(((40, 90, 6), (20, 20, 1), (0, 80, 0))):
        issuer.issued(1, 1)
        stamps = [end_ms * ms] * 6
        first_ns = 1 + first_ms * ms if first_ms else 0
        rows.reply(order, [0], not tokens, *stamps, first_ns, 0, tokens, 0, 0, 0)
    counts = LiveCounts(NewRows(remote, plan("single-stream", query_count=3, journal_samples=3)))
    counts.finish()
    assert counts.tokens == 7
    assert (counts.token_times["ttft"].total, counts.token_times["ttft"].sum) == (2, 60 * ms)
    # The second answer has only one token, and the first answer took 50 ms for five tokens.
    assert (counts.token_times["tpot"].total, counts.token_times["tpot"].sum) == (1, 10 * ms - 1)
    exporter = Exporter()
    exporter.describe_run(LABELS, {})
    exporter.begin(counts, [])
    samples = parsed(exporter.page().decode())
    assert value(samples, "harness_tokens_total", phase="performance") == 7
    assert value(samples, "harness_token_time_seconds_count", phase="performance", time="ttft") == 2
    assert value(samples, "harness_token_time_seconds_count", phase="performance", time="tpot") == 1


def cancelled_counts() -> LiveCounts:
    """Returns the counts of three requests. The client cancelled the second request."""
    fd = Journal.create()
    Journal.resize(fd, 3, 1, RowKind.REPLY)
    made = Journal(fd)
    os.close(fd)
    issuer, rows = made.issuer(), made.remote_writer()
    for order in range(3):
        issuer.issued(1, 1)
        rows.reply(order, [0], 0, *[(1 + order) * 10**6] * 6, 10**6, 0, 4, 0, 0, order == 1)
    load = plan("server", query_count=3, journal_samples=3, target_qps=None, cancel_share=0.5)
    counts = LiveCounts(NewRows(made, load))
    counts.finish()
    return counts


def test_cancelled_requests_are_counted_apart() -> None:
    counts = cancelled_counts()
    assert (counts.issued, counts.completed, counts.cancelled, counts.failed) == (3, 2, 1, 0)
    assert (counts.latency.total, counts.tokens) == (2, 8)
    exporter = Exporter()
    exporter.describe_run(LABELS, {})
    exporter.begin(counts, [])
    samples = parsed(exporter.page().decode())
    assert value(samples, "harness_requests_cancelled_total", phase="performance") == 1
    assert value(samples, "harness_in_flight_samples", phase="performance") == 0
    assert value(samples, "harness_progress_ratio", phase="performance") == 1


def node_counts() -> LiveCounts:
    """Returns the counts of three batches of two samples on two nodes; the last batch on the second node failed."""
    fd = Journal.create()
    Journal.resize(fd, 6, 1, RowKind.REPLY)
    made = Journal(fd)
    os.close(fd)
    issuer, rows = made.issuer(), made.remote_writer()
    for first, (server, failed) in enumerate(((0, 0), (1, 0), (1, 2))):
        issuer.issued(2, 1)
        sent_ns, read_ns = 10**6, (2 + server) * 10**6
        rows.reply(2 * first, [0, 1], failed, 1, sent_ns, 0, *[read_ns] * 3, 0, 0, 0, 0, server, 0)
    cursor = NewRows(made, plan("offline", query_count=6, journal_samples=6))
    counts = LiveCounts(cursor, ["a:1", "b:2", "c:3"])
    counts.finish()
    return counts


def test_each_nodes_samples_and_times_are_counted() -> None:
    exporter = Exporter()
    exporter.describe_run(LABELS, {})
    exporter.begin(node_counts(), [])
    samples = parsed(exporter.page().decode())
    told = {"phase": "performance"}
    for node, completed, failed, count, sum_s in (
        ("a:1", 2, 0, 1, 1e-3),
        ("b:2", 4, 2, 1, 2e-3),  # the failed batch has no time, so the count is 1
        ("c:3", 0, 0, 0, 0),
    ):
        own = {**told, "node": node}
        assert value(samples, "harness_node_samples_completed_total", **own) == completed
        assert value(samples, "harness_node_samples_failed_total", **own) == failed
        assert value(samples, "harness_node_request_seconds_count", **own) == count
        assert value(samples, "harness_node_request_seconds_sum", **own) == sum_s


def cached_counts() -> LiveCounts:
    """Returns the counts of three samples in a set of models: loaded, resident, and loaded in place of two other
    models.
    """
    fd = Journal.create()
    Journal.resize(fd, 3, 1, RowKind.CACHED)
    made = Journal(fd)
    os.close(fd)
    issuer, rows = made.issuer(), made.cached_writer(0)
    for order, (origin, evicted) in enumerate((("local", 0), ("hit", 0), ("local", 2))):
        issuer.issued(1, 1)
        rows.sample(order, 0, 0, *[2] * 6, ORIGINS.index(origin), evicted)
    counts = LiveCounts(NewRows(made, plan("single-stream", query_count=3, journal_samples=3)))
    counts.finish()
    return counts


def test_requests_of_a_set_of_models_are_counted_by_origin() -> None:
    exporter = Exporter()
    exporter.describe_run(LABELS, {})
    exporter.begin(cached_counts(), [])
    samples = parsed(exporter.page().decode())
    of = {"phase": "performance"}
    assert value(samples, "harness_model_requests_total", **of, origin="local") == 2
    assert value(samples, "harness_model_requests_total", **of, origin="hit") == 1
    assert value(samples, "harness_model_requests_total", **of, origin="failed") == 0
    assert value(samples, "harness_model_evictions_total", **of) == 2
    assert value(samples, "harness_stage_seconds_count", **of, stage="acquire") == 3


def test_page_shows_how_the_run_ended() -> None:
    samples = parsed(whole_exporter().page().decode())
    assert value(samples, "harness_run_valid") == 0
    assert value(samples, "harness_run_reason", code="slo-missed") == 1
    assert value(samples, "harness_run_doubt", code="busy-machine") == 1
    assert value(samples, "harness_accuracy", metric="top1", unit="%") == 99.2
    assert value(samples, "harness_slo_seconds", quantile="0.99") == 0.05
    assert value(samples, "harness_token_slo_seconds", time="ttft", quantile="0.9") == 1
    assert value(samples, "harness_goodput_queries_per_second") == 12.5
    assert (
        value(samples, "harness_token_time_percentile_seconds", time="itl", quantile="0.5") == 0.005
    )
    assert value(samples, "harness_progress_ratio", phase="performance") == 1


def test_sources_add_their_families() -> None:
    from prometheus_client.core import GaugeMetricFamily

    def watts(labels: object) -> Iterator[GaugeMetricFamily]:
        assert labels == LABELS
        yield GaugeMetricFamily("harness_power_watts", "of this moment", value=7.0)

    exporter = whole_exporter()
    exporter.sources.append(watts)
    assert b"\nharness_power_watts 7.0\n" in exporter.page()


def test_page_is_empty_before_the_run_is_known() -> None:
    assert Exporter().page() == b""


def test_taken_port_is_refused_on_request_and_replaced_by_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = Endpoint(*taken.getsockname())
        with pytest.raises(
            ConfigError,
            match=rf"^--metrics {endpoint} cannot be used \(Address already in use\): choose a different address, or use --no-metrics$",
        ):
            MetricsEndpoint(config(metrics=endpoint), quiet=False)
        monkeypatch.setattr("harness.run.supervisor.metrics.endpoint.DEFAULT", endpoint)
        with MetricsEndpoint(config(), quiet=False) as moved:
            told = re.fullmatch(
                rf"metrics at (http://127\.0\.0\.1:\d+/metrics), because port {endpoint.port} is taken",
                moved.moved,
            )
            assert told is not None
            assert moved.notice == ""
            moved.exporter.describe_run(LABELS, {"version": "1", "dataset": "d", "mode": "both"})
            assert "harness_run_info" in fetch(told[1])


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("127.0.0.1:9464", Endpoint("127.0.0.1", 9464)),
        ("localhost:0", Endpoint("localhost", 0)),
        ("[::1]:9464", Endpoint("::1", 9464)),
    ],
)
def test_address_to_listen_on_is_parsed(text: str, endpoint: Endpoint) -> None:
    assert parse_endpoint(text) == endpoint
    assert str(endpoint) == text


@pytest.mark.parametrize("text", ["9464", ":9464", "localhost", "::1:9464", "a:65536", "a:-1"])
def test_invalid_address_to_listen_on_is_refused(text: str) -> None:
    with pytest.raises(
        ValueError,
        match=f"^{text!r} is not an address: write HOST:PORT, e.g. 127.0.0.1:9464$",
    ):
        parse_endpoint(text)


def test_metrics_address_of_a_run_is_not_repeated() -> None:
    watched = config(metrics=FREE, metrics_linger_ns=10**9)
    assert to_plain(watched) == to_plain(config(no_metrics=True)) == to_plain(config())


def test_no_metrics_contradicts_options_of_metrics() -> None:
    with pytest.raises(
        ConfigError,
        match=r"^--no-metrics opens no port: drop it, or drop --metrics and --metrics-linger$",
    ):
        config(no_metrics=True, metrics=FREE)


def test_the_port_is_free_again_at_the_end() -> None:
    with serving(config(metrics=FREE)) as (_, url):
        assert fetch(url) == ""
        port = int(url.split(":")[2].split("/")[0])
    with serving(config(metrics=Endpoint("127.0.0.1", port))) as (_, again):
        assert again == url


def test_other_paths_are_not_found() -> None:
    with serving(config(metrics=FREE)) as (_, url):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            fetch(url.replace("/metrics", "/config.yaml"))
        assert fetch(url.replace("/metrics", "/")) == ""


def test_head_is_get_without_the_page() -> None:
    with serving(config(metrics=FREE)) as (endpoint, url):
        endpoint.exporter.describe_run(dict.fromkeys(RUN_LABELS, "x"), {"version": "1"})
        page = fetch(url)
        request = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(request, timeout=5) as reply:
            assert reply.status == 200
            assert reply.read() == b""
            assert int(reply.headers["Content-Length"]) == len(page.encode())
        request = urllib.request.Request(url + "x", method="HEAD")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(request, timeout=5)


def test_slow_client_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a client that sent one byte per second made all other clients wait."""
    monkeypatch.setattr("harness.run.supervisor.metrics.endpoint.CLIENT_LIMIT_S", 0.5)
    with serving(config(metrics=FREE)) as (_, url):
        port = int(url.split(":")[2].split("/")[0])
        with socket.create_connection(("127.0.0.1", port)) as client:
            dripped = 0
            with suppress(ConnectionError):
                while dripped < 100:
                    client.sendall(b"G")
                    dripped += 1
                    time.sleep(0.1)
            assert dripped < 50
        assert fetch(url) == ""


def test_a_storm_of_scrapes_makes_few_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    times_s: list[float] = []

    def page(_: Exporter) -> bytes:
        times_s.append(time.monotonic())
        return b"page"

    monkeypatch.setattr(Exporter, "page", page)
    with serving(config(metrics=FREE)) as (_, url):
        end = time.monotonic() + 1
        got: list[str] = []

        def scrape() -> None:
            while time.monotonic() < end:
                got.append(fetch(url))

        threads = [threading.Thread(target=scrape) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(got) >= 10
    assert all(b - a > PAGE_LASTS_S for a, b in itertools.pairwise(times_s))


def test_silent_client_does_not_delay_others_for_long() -> None:
    with serving(config(metrics=FREE)) as (_, url):
        port = int(url.split(":")[2].split("/")[0])
        with socket.create_connection(("127.0.0.1", port)):
            assert fetch(url) == ""


def test_real_run_is_scraped_during_the_run_and_after_its_verdict(tmp_path: Path) -> None:
    process = start(
        "--scenario", "server", "--target-qps", "1000", "--queries", "3000", "--slo", "p99=1s",
        "--metrics", "127.0.0.1:0", "--metrics-linger", "60s", "--out", str(tmp_path / "r"),
    )  # fmt: skip
    assert process.stderr is not None
    url = process.stderr.readline().split()[-1]
    seen: list[Samples] = []
    while not seen or ("harness_run_valid", frozenset()) not in seen[-1]:
        assert process.poll() is None
        seen.append(parsed(fetch(url)))
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=30)
    assert process.returncode == 0, printed + errors

    of_performance = ("harness_queries_completed_total", frozenset({("phase", "performance")}))
    counts = [samples[of_performance] for samples in seen if of_performance in samples]
    assert counts == sorted(counts)
    assert any(0 < count < 3000 for count in counts), "no scrape during the run"
    assert counts[-1] == 3000
    written = parsed((tmp_path / "r/metrics.prom").read_text())
    assert {key for key in written if key[0].startswith("harness_host_cpu_s")}
    of_the_run = [
        {key: number for key, number in page.items() if not key[0].startswith("harness_host_")}
        for page in (written, seen[-1])
    ]
    assert of_the_run[0] == of_the_run[1]
    content = result(tmp_path / "r")
    assert value(written, "harness_accuracy", metric="top1", unit="%") == 99.2
    for name, quantile in (("p50", "0.5"), ("p90", "0.9"), ("p99", "0.99")):
        scraped = value(
            written,
            "harness_latency_percentile_seconds",
            phase="performance",
            quantile=quantile,
        )
        assert scraped * 1e9 == pytest.approx(content["latency_ns"][name], rel=0.26), name


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.1\r\n"])
def test_clients_that_hold_the_port_keep_no_scrape_waiting(sent: bytes) -> None:
    with (
        serving(config(metrics=FREE)) as (_, url),
        connected(parse_endpoint(url.split("/")[2]).port, 40, sent) as clients,
    ):
        began_s = time.monotonic()
        fetch(url)
        # 40 clients may take 2 s each, but they must not delay this client.
        assert time.monotonic() - began_s < 10
        assert all(is_dropped(client, 20) for client in clients)


def test_slow_sender_is_dropped() -> None:
    with (
        serving(config(metrics=FREE)) as (_, url),
        dripping(parse_endpoint(url.split("/")[2]).port, b"GET /metrics" + b"x" * 500) as client,
    ):
        assert is_dropped(client, 20)


def test_garbage_is_dropped_without_a_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    with serving(config(metrics=FREE)) as (_, url):
        for sent in GARBAGE:
            with connected(parse_endpoint(url.split("/")[2]).port, 1, sent) as (client,):
                assert is_dropped(client, 20), sent[:80]
        fetch(url)
    assert "Traceback" not in capfd.readouterr().err
