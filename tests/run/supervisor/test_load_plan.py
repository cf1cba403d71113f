"""A plan has the right counts, seeds and bounds, or the harness refuses the plan."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from harness.core import registry
from harness.core.config.parse import LoadHosts, Slo, parse_slo
from harness.core.config.run_config import RunConfig
from harness.core.units import NS_PER_MS, NS_PER_S
from harness.errors import ConfigError
from harness.loadgen.plan import (
    Calibration,
    InstanceGroup,
    Loaded,
    LoadPlan,
    Seeds,
    performance_samples,
)
from harness.loadgen.scenario import scenario_named
from harness.loadgen.schedule import planned_ns
from harness.loadgen.versions import PINNED_VERSION, ROUNDS, seeds_of
from harness.models.manifest.defaults import slos_of
from harness.models.manifest.lookup import load_model
from harness.models.opened.resolved_run import ResolvedRun
from harness.run.supervisor.load_plan import (
    BYTES_PER_EVALUATED_SAMPLE,
    MEMORY_SHARE,
    accuracy_plan,
    check_disk,
    check_memory,
    check_sessions,
    hang_timeout_s,
    memory_bytes,
    performance_plan,
    plan_for,
)
from tests.builders.refusals import refusal
from tests.builders.support import SCENARIOS, plan

GB = 10**9


def test_an_accuracy_log_without_room_is_refused() -> None:
    """Bug: the message stated the 8,692 rows of the journal instead of the 500 samples of the dataset."""
    scenario = registry.load("scenario", "server")
    made = accuracy_plan(scenario, RunConfig(scenario="server"), None, loaded(500))
    check_disk(made, 100, 132_000)
    with pytest.raises(ConfigError) as caught:
        check_disk(made, 100, 131_999)
    assert str(caught.value).startswith("the accuracy log of 500 answers needs about ")


FOUND = Calibration(slowest_batch_ns=NS_PER_MS, rate_per_s=1000.0, latency_ns=NS_PER_MS)


def loaded(total: int = 500, held: int = 500) -> Loaded:
    nothing: dict[str, Any] = {
        "inputs": (),
        "fixed_batch": None,
        "synthetic": False,
        "backend": {},
        "dataset": {},
        "model_sha256": None,
        "model_bytes": 0,
    }
    return Loaded(total_count=total, performance_count=held, **nothing)


def plan_of(
    config: RunConfig, slo: Slo | None = None, calibration: Calibration = FOUND
) -> LoadPlan:
    scenario = registry.load("scenario", config.scenario)
    return performance_plan(scenario, config, slo or scenario.default_slo, loaded(), calibration)


@pytest.mark.parametrize(
    ("slo", "queries"),
    [("p90=1ms", 197), ("p95=1ms", 398), ("p99=1ms", 2010), ("p99.9=1ms", 20140)],
)
def test_a_quick_server_run_passes_early_stopping_with_ten_late_queries(
    slo: str, queries: int
) -> None:
    config = RunConfig(scenario="server", target_qps=1.0, duration_ns=NS_PER_S)
    assert plan_of(config, parse_slo(slo)).query_count == queries


@pytest.mark.parametrize(
    ("scenario", "slo", "queries"),
    [
        ("single-stream", None, 64),
        ("multi-stream", None, 662),
        ("single-stream", "p99=1ms", 662),
        ("multi-stream", "p90=1ms", 64),
        ("single-stream", "p99.9=1ms", 6636),
    ],
)
def test_a_quick_stream_has_an_estimate_although_one_query_is_slow(
    scenario: str, slo: str | None, queries: int
) -> None:
    config = RunConfig(scenario=scenario, duration_ns=1)
    assert plan_of(config, parse_slo(slo) if slo else None).query_count == queries


def test_closed_loop_without_a_length_uses_each_place_ten_times() -> None:
    """Bug: a run with 100,000 queries in flight issued 2,010 queries in one burst, and was VALID."""
    many = RunConfig(scenario="server", concurrency=100_000, duration_ns=NS_PER_S)
    assert plan_of(many).query_count == 1_000_000
    few = RunConfig(scenario="server", concurrency=4, duration_ns=NS_PER_S)
    assert plan_of(few).query_count == 2010
    load = RunConfig(scenario="server", concurrency=100, queries=100)
    assert plan_of(load).query_count == 100


durations = st.integers(1, 10**13)
rates = st.floats(0.1, 1e6)


@given(durations, rates)
def test_server_run_lasts_as_requested_or_as_its_verdict_needs(ns: int, qps: float) -> None:
    config = RunConfig(scenario="server", target_qps=qps, duration_ns=ns)
    load = plan_of(config, calibration=Calibration(slowest_batch_ns=1))
    assert load.target_qps == qps
    assert load.query_count >= 2010
    assert load.expected_s is not None
    assert load.expected_s >= ns / NS_PER_S * (1 - 1e-9)
    assert load.query_count == 2010 or load.expected_s <= ns / NS_PER_S + 1 / qps + 1e-6


@given(durations, st.integers(1_000, 10**10))
def test_stream_lasts_about_as_long_as_requested(ns: int, latency_ns: int) -> None:
    config = RunConfig(scenario="single-stream", duration_ns=ns)
    load = plan_of(config, calibration=Calibration(slowest_batch_ns=1, latency_ns=latency_ns))
    assert load.expected_s is not None
    assert load.expected_s * NS_PER_S >= ns * (1 - 1e-9)
    assert load.query_count == 64 or (load.query_count - 1) * latency_ns <= ns * (1 + 1e-9)


@pytest.mark.parametrize("scenario", ["single-stream", "offline"])
def test_known_cost_of_loadgen_is_part_of_the_plan(scenario: str) -> None:
    """Bug: with the null backend, `--duration 20s` took 272 s on a busy machine, because only the model was timed."""
    found = Calibration(slowest_batch_ns=1, latency_ns=1_000, rate_per_s=1e6, issued_per_s=50_000.0)
    load = plan_of(RunConfig(scenario=scenario, duration_ns=2 * NS_PER_S), calibration=found)
    assert (load.query_count, load.expected_s) == (100_000, 2.0)


@given(durations, rates)
def test_offline_run_lasts_about_as_long_as_requested(ns: int, rate: float) -> None:
    config = RunConfig(scenario="offline", duration_ns=ns)
    load = plan_of(config, calibration=Calibration(slowest_batch_ns=1, rate_per_s=rate))
    assert load.query_count >= 1
    assert load.expected_s is not None
    assert load.expected_s * NS_PER_S >= ns * (1 - 1e-9)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_requested_count_is_exact(scenario: str) -> None:
    load = plan_of(RunConfig(scenario=scenario, queries=7))
    assert load.query_count == 7
    assert load.journal_samples == 7 * load.samples_per_query
    assert load.samples_per_query == (8 if scenario == "multi-stream" else 1)


@pytest.mark.parametrize("scenario", ["offline", "single-stream", "multi-stream"])
def test_the_duration_of_a_given_count_is_unknown_and_not_zero(scenario: str) -> None:
    uncalibrated = Calibration(slowest_batch_ns=NS_PER_MS)
    assert (
        plan_of(RunConfig(scenario=scenario, queries=7), calibration=uncalibrated).expected_s
        is None
    )


@pytest.mark.parametrize(("capacity", "qps"), [(1000.0, 250.0), (1e6, 20_000.0)])
def test_server_without_a_rate_runs_at_a_quarter_of_the_capacity(
    capacity: float, qps: float
) -> None:
    calibration = Calibration(slowest_batch_ns=1, rate_per_s=capacity)
    assert plan_of(RunConfig(scenario="server"), calibration=calibration).target_qps == qps


SERVED = {"scenario": "server", "backend": "kserve", "url": ("http://127.0.0.1:1",)}


@pytest.mark.parametrize(
    ("values", "needed"),
    [
        ({"scenario": "server"}, True),
        ({"scenario": "server", "target_qps": 5.0}, False),
        ({**SERVED, "load_hosts": LoadHosts(2)}, True),
        ({**SERVED, "load_hosts": LoadHosts(2), "target_qps": 5.0}, False),
        ({"scenario": "server", "arrivals": Path("arrivals.csv")}, False),
        ({"scenario": "offline"}, True),
        ({"scenario": "offline", "queries": 5}, False),
        ({"scenario": "offline", "mlperf": True}, True),
        ({"scenario": "single-stream", "queries": 5}, False),
        ({"scenario": "multi-stream", "mlperf": True}, True),
    ],
)
def test_calibration_runs_only_if_its_result_is_used(values: dict[str, Any], needed: bool) -> None:
    config = RunConfig(**values)
    scenario = registry.load("scenario", config.scenario)
    assert scenario.needs_calibration(config) == needed


def test_an_accuracy_run_has_every_sample_and_room_for_padding() -> None:
    for name in SCENARIOS:
        scenario = registry.load("scenario", name)
        load = accuracy_plan(scenario, RunConfig(scenario=name), None, loaded(500, 64))
        assert load.accuracy
        assert load.query_count == load.total_count == 500
        padding = -(-500 // 64) * (load.samples_per_query - 1)
        assert load.journal_samples >= 500 + padding


ROUND = ROUNDS[PINNED_VERSION].seeds


@pytest.mark.parametrize(
    ("values", "seeds"),
    [
        ({}, ROUND),
        ({"seed": 7}, Seeds(7, 7, 7)),
        ({"seed": 0, "schedule_seed": 9}, Seeds(0, 0, 9)),
        ({"qsl_seed": 1, "sample_index_seed": 2, "schedule_seed": 0}, Seeds(1, 2, 0)),
        ({"mlperf": True, "qsl_seed": 1}, ROUND),
    ],
)
def test_seeds_are_the_rounds_unless_they_are_given(values: dict[str, Any], seeds: Seeds) -> None:
    assert seeds_of(RunConfig(scenario="server", **values)) == seeds


@pytest.mark.parametrize(
    ("scenario", "given_slo", "slo"),
    [
        ("server", None, "p99=50ms"),  # the manifest sets this bound
        ("server", "p90=1ms", "p90=1ms"),
        ("offline", None, None),
        ("single-stream", None, None),
        ("single-stream", "p90=1ms", "p90=1ms"),
    ],
)
def test_only_server_has_a_default_slo(
    scenario: str, given_slo: str | None, slo: str | None
) -> None:
    config = RunConfig(scenario=scenario, slo=(parse_slo(given_slo),) if given_slo else ())
    chosen = slos_of(registry.load("scenario", scenario), config, load_model("digits"))
    assert chosen == ((parse_slo(slo),) if slo else ())


def test_a_model_without_a_manifest_gets_loadgens_own_bound(tmp_path: Any) -> None:
    path = tmp_path / "net.onnx"
    path.touch()
    scenario = registry.load("scenario", "server")
    config = RunConfig(scenario="server")
    assert slos_of(scenario, config, load_model(str(path))) == (parse_slo("p99=100ms"),)


def sized(queries: int, scenario: str = "server", **changed: Any) -> LoadPlan:
    return plan(scenario, query_count=queries, **changed)


@given(st.integers(1, 10**9), st.integers(1, 100), st.integers(0, 10**12), st.booleans())
def test_a_run_that_does_not_fit_is_refused_with_the_longest_that_does(
    queries: int, more: int, model: int, offline: bool
) -> None:
    load = sized(queries, "offline" if offline else "single-stream")
    needed = memory_bytes(load, 1, model)
    check_memory(load, 1, model, int(needed / MEMORY_SHARE) + 1, counted=False)
    available = int(needed / MEMORY_SHARE / (1 + more / 100)) - 1
    with pytest.raises(ConfigError) as caught:
        check_memory(load, 1, model, available, counted=False)
    match = re.fullmatch(
        rf"{queries:,} queries need about \S+ k?[MG]?B of memory, more than 60 % of the \S+ k?[MG]?B "
        r"available: the most that fits is --queries (\d+)",
        str(caught.value),
    )
    assume(not str(caught.value).endswith("available: free some memory"))
    assert match is not None
    assert int(match[1]) > 0
    check_memory(
        dataclasses.replace(load, query_count=int(match[1])), 1, model, available, counted=False
    )


def test_refusal_of_a_run_sized_by_time_names_the_longest_time() -> None:
    load = sized(10**9, expected_s=50_000.0)
    assert memory_bytes(load, 8, 0) == 377 * GB
    message = (
        "1,000,000,000 queries need about 377 GB of memory, more than 60 % of the 100 GB available: "
        "the longest that fits is --duration 7957s"
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        check_memory(load, 8, 0, 100 * GB, counted=False)


def test_refusal_of_a_run_of_a_search_names_an_option_of_the_search() -> None:
    with pytest.raises(ConfigError, match=r"available: shorten --duration$"):
        check_memory(
            *(sized(10**9, expected_s=50_000.0), 8, 0, 100 * GB), counted=True, searched=True
        )


@pytest.mark.parametrize("searched", [False, True])
def test_refusal_of_a_large_closed_loop_names_the_most_in_flight(searched: bool) -> None:
    load = sized(10**7, concurrency=10**6, expected_s=100.0)
    available = int(memory_bytes(load, 8, 0) / MEMORY_SHARE / 2)
    with pytest.raises(ConfigError, match=r"the most that fits is --concurrency (\d+)$") as caught:
        check_memory(load, 8, 0, available, counted=searched, searched=searched)
    assert 499_000 <= int(str(caught.value).rsplit(maxsplit=1)[1]) <= 500_000


def test_refusal_of_a_long_closed_loop_names_the_longest_time() -> None:
    """The duration determines the number of queries, so fewer queries in flight would change nothing."""
    load = sized(10**9, concurrency=10, expected_s=50_000.0)
    with pytest.raises(ConfigError, match=r"the longest that fits is --duration \d+s$"):
        check_memory(load, 8, 0, 100 * GB, counted=False)


@pytest.mark.parametrize("expected_s", [None, 0.0, 2.0])
def test_refusal_never_advises_a_run_of_length_zero(expected_s: float | None) -> None:
    with pytest.raises(ConfigError) as caught:
        check_memory(sized(2010, expected_s=expected_s), 8, 10 * GB, GB, counted=False)
    assert not re.search(r"--(duration 0s|queries 0)$", str(caught.value))


def test_an_official_accuracy_run_has_no_length_to_advise_on() -> None:
    load = sized(10**9, "offline", model_key="resnet", accuracy=True, expected_s=None)
    with pytest.raises(ConfigError, match=r"free some memory$"):
        check_memory(load, 8, 0, 100 * GB, counted=False)


@pytest.mark.parametrize(
    ("scenario", "advice"),
    [
        (
            "single-stream",
            (
                r"if a query takes (?P<least>[\d.]+) ms or more on average, put "
                r"\*\.SingleStream\.target_latency = (?P<value>[\d.]+) \(ms\) into the --user-conf file; otherwise free some memory"
            ),
        ),
        (
            "offline",
            (
                r"if the model answers at most (?P<least>\d+) samples/s, put "
                r"\*\.Offline\.target_qps = (?P<value>\d+) into the --user-conf file; otherwise free some memory"
            ),
        ),
    ],
)
def test_an_official_run_that_is_too_large_is_not_made_too_short(
    scenario: str, advice: str
) -> None:
    """Bug: with the advised target_latency, a run was too small, and a fast model ended the run before 600 s."""
    load = sized(147_783_252, scenario, model_key="resnet", expected_s=600.0)
    with pytest.raises(ConfigError) as caught:
        check_memory(load, 8, 0, 24 * GB, counted=False)
    match = re.search(advice + "$", str(caught.value))
    assert match is not None, caught.value
    least, value = float(match["least"]), float(match["value"])
    if scenario == "single-stream":  # LoadGen generates 2 x 600 s / target_latency queries
        fits = 2 * 600e3 / value
        assert fits * least == pytest.approx(600e3, rel=0.01)
    else:  # LoadGen generates 1.1 x 600 s x target_qps queries
        fits = 1.1 * 600 * value
        assert fits >= 600 * least
    small = dataclasses.replace(load, query_count=int(fits * 0.99))
    check_memory(small, 8, 0, 24 * GB, counted=False)


@pytest.mark.parametrize(
    ("scenario", "found", "queries"),
    [
        ("single-stream", {"latency_ns": NS_PER_MS}, 5000),
        ("single-stream", {"latency_ns": 1000}, 100_000),
        ("single-stream", {"latency_ns": NS_PER_S}, 100),
        ("multi-stream", {"latency_ns": NS_PER_S}, 13),
        # A run of 5 s at a quarter of the capacity has 1,250 queries.
        ("server", {"rate_per_s": 1000.0}, 1250),
        ("offline", {"rate_per_s": 1000.0}, 5000),
    ],
)
def test_the_answers_of_an_official_run_are_checked_for_five_seconds(
    scenario: str, found: dict[str, Any], queries: int, tmp_path: Path
) -> None:
    run = ResolvedRun(
        config=RunConfig(scenario=scenario, mlperf=True, mlperf_model="resnet50"),
        model=load_model("digits"),
        scenario=registry.load("scenario", scenario),
        dataset="digits",
        metric="top1",
        slos=(),
        instances=InstanceGroup(1, 1, 64),
    )
    calibration = Calibration(slowest_batch_ns=1, **found)
    plans = [
        plan_for(run, loaded(50_000, 1024), calibration, tmp_path, role)
        for role in ("answers", "performance", "answers")
    ]
    short, official, again = plans
    assert (short.role, official.role) == ("answers", "performance")
    assert short.query_count == queries
    assert short.answers_seed != again.answers_seed
    assert (short.logged_answers, official.logged_answers) == (500, 0)
    kept = ("samples_per_query", "target_qps", "latency_bound_ns", "seeds", "performance_count")
    assert [getattr(short, key) for key in kept] == [getattr(official, key) for key in kept]


@pytest.mark.parametrize(("model", "equal"), [("3d-unet", True), ("resnet50", False)])
@pytest.mark.parametrize("scenario", ["offline", "server"])
def test_a_set_of_samples_that_is_filled_up_has_room(
    scenario: str, model: str, equal: bool, tmp_path: Path
) -> None:
    """LoadGen issues whole sets of the loaded samples if the rules of the benchmark require whole sets."""
    run = ResolvedRun(
        config=RunConfig(scenario=scenario, mlperf=True, mlperf_model=model),
        model=load_model("digits"),
        scenario=registry.load("scenario", scenario),
        dataset="digits",
        metric="top1",
        slos=(),
        instances=InstanceGroup(1, 1, 64),
    )
    calibration = Calibration(slowest_batch_ns=1, rate_per_s=1.0)
    roles = ("performance", "accuracy", "answers")
    official, accuracy, short = (
        plan_for(run, loaded(5000, 5000), calibration, tmp_path, role) for role in roles
    )
    assert [p.equal_issue for p in (official, accuracy, short)] == [equal, equal, False]
    held, queries = official.performance_count, official.query_count
    filled = -(-queries // held) * held if equal else queries
    assert official.journal_samples >= filled


@pytest.mark.parametrize(
    ("line", "equal"), [("*.*.sample_concatenate_permutation = 0", False), ("", True)]
)
def test_an_audit_may_issue_samples_unequally(line: str, equal: bool, tmp_path: Path) -> None:
    """Bug: MLPerf's TEST06 turns `sample_concatenate_permutation` off, but the log was compared with the value in the
    rules.
    """
    audit = tmp_path / "given.config"
    audit.write_text(f"*.*.mode = 2\n{line}\n")
    run = ResolvedRun(
        config=RunConfig(
            scenario="offline",
            mode="performance",
            mlperf=True,
            mlperf_model="llama2-70b",
            audit=audit,
        ),
        model=load_model("digits"),
        scenario=registry.load("scenario", "offline"),
        dataset="digits",
        metric="top1",
        slos=(),
        instances=InstanceGroup(1, 1, 64),
    )
    calibration = Calibration(slowest_batch_ns=1, rate_per_s=1.0)
    made = plan_for(run, loaded(5000, 5000), calibration, tmp_path, "performance")
    assert made.equal_issue is equal


def test_a_multi_stream_query_is_counted_with_all_its_samples() -> None:
    one, eight = (plan("multi-stream", samples_per_query=n) for n in (1, 8))
    assert memory_bytes(one, 8, 0) == 662 * 377
    assert memory_bytes(eight, 8, 0) == 662 * 8 * BYTES_PER_EVALUATED_SAMPLE


def test_a_closed_loop_is_sized_by_its_evaluation() -> None:
    """Bug: the plan assumed 84 bytes per query, and the supervisor was killed after the measurement."""
    closed = plan("server", concurrency=8, query_count=1_000_000)
    assert memory_bytes(closed, 1, 0) == 1_000_000 * BYTES_PER_EVALUATED_SAMPLE


@pytest.mark.parametrize(
    ("given_ns", "slowest_ns", "seconds"),
    [
        (None, NS_PER_MS, 10.0),
        (None, NS_PER_S, 20.0),
        (3 * NS_PER_S, NS_PER_S, 3.0),
        (NS_PER_MS, NS_PER_S, 0.001),
    ],
)
def test_hung_is_ten_seconds_or_twenty_slow_batches(
    given_ns: int | None, slowest_ns: int, seconds: float
) -> None:
    config = RunConfig(scenario="server", hang_timeout_ns=given_ns)
    assert hang_timeout_s(config, slowest_ns) == seconds


@pytest.mark.parametrize(
    ("options", "sessions", "samples"),
    [
        ({"concurrency": 3, "queries": 40}, True, 40),
        ({"target_qps": 5.0, "queries": 40}, True, 40),
        ({"scenario": "offline", "queries": 40}, False, 40),
    ],
)
def test_server_issues_the_turns_of_sessions(
    options: dict[str, Any], sessions: bool, samples: int
) -> None:
    config = RunConfig(**{"scenario": "server", **options})
    scenario = scenario_named(config.scenario)
    of_sessions = dataclasses.replace(loaded(), dataset={"sessions": 9, "turns": {"max": 4}})
    found = performance_plan(
        scenario, config, scenario.default_slo, of_sessions, Calibration(slowest_batch_ns=1)
    )
    assert (found.sessions, found.harness_scheduled) == (sessions, sessions)
    assert found.journal_samples == samples
    if sessions:
        assert planned_ns(found, 40) is None


def test_each_arrival_of_a_file_may_begin_the_longest_session() -> None:
    of_sessions = dataclasses.replace(loaded(), dataset={"turns": {"max": 4}})
    lengths = [
        performance_samples(10, of_sessions, sessions=sessions, from_file=from_file)
        for sessions, from_file in ((True, True), (True, False), (False, True))
    ]
    assert lengths == [40, 10, 10]


@pytest.mark.parametrize(("held", "refused"), [(3, True), (4, False)])
def test_sessions_have_to_be_held_whole(held: int, refused: bool) -> None:
    """Bug: if fewer samples were held than a session has turns, the measured process crashed."""
    of_sessions = dataclasses.replace(loaded(500, held), dataset={"turns": {"max": 4}})
    if not refused:
        check_sessions(of_sessions)
        return
    assert refusal(check_sessions, of_sessions) == (
        "the longest session has 4 turns, but only 3 samples are loaded: raise --performance-count"
    )
