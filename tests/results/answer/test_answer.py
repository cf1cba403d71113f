"""The answer of a run: its number with interval, bound and load, the limiting factor, and one piece of advice."""

from typing import Any

import pytest

from harness.core.codes import CODES
from harness.core.units import show_ns
from harness.results.answer import answer_of, number_of, question_of
from harness.results.answer.answer import show_accuracy
from harness.results.answer.limits import limited_by
from tests.builders.golden_answers import BUSY, LATE, PADDED, golden, held_back, reference
from tests.builders.support import present
from tests.golden.make_runs import RUNS

PREEMPTED = {
    "code": "preempted",
    "text": "other threads took the cores 900 times: use fewer --threads",
}

QUIET_THEN_LOWER = "Stop other programs on this machine and run again. If it misses the bound again, lower the load or raise the bound."
LOWER = "Lower the load, or raise --slo; the verb peak finds the highest load within the SLO."


def p90(value_ns: int, high_ns: int | None) -> dict[str, Any]:
    """Returns a 90th percentile with its interval."""
    interval = {"block_interval": [value_ns - 20_000, high_ns]}
    return {
        "latency_ns": {"p90": value_ns},
        "latency_intervals_ns": {"level": 0.95, "p90": interval},
    }


def with_target() -> dict[str, Any]:
    """Returns the golden run's score with a target."""
    return {**golden("server")["accuracy"], "target": 98.5}


@pytest.mark.parametrize(
    ("options", "question"),
    [
        ({"mode": "accuracy"}, "How accurate are the answers?"),
        ({"slo": ["p50=1ms", "p90=2ms"]}, "Are 90 % of the queries answered within 2 ms?"),
        ({"target_qps": 20_000.0}, "How long does a query take at 20,000 queries/s?"),
        ({"slo": ["ttft:p99=1s", "p99=2s"]}, "Is TTFT p99 at most 1 s and p99 at most 2 s?"),
        ({"scenario": "single-stream"}, "How long does a query take, one query at a time?"),
    ],
)
def test_the_question_of_a_run_is_known_before_its_result(
    options: dict[str, Any], question: str
) -> None:
    assert question_of({"scenario": "server", **options}) == question


def test_the_answer_of_a_server_run_is_its_percentile_with_the_bound() -> None:
    measured = {**p90(507_000, 620_000), "accuracy": with_target()}
    answer = answer_of(golden("server", slo="p90=1ms", **measured))
    assert answer.question == "Are 90 % of the queries answered within 1 ms at 200 queries/s?"
    assert answer.headline.startswith("p90 507 us of 1 ms allowed (95 %: ")
    assert answer.headline.endswith(") at 200 queries/s")
    assert answer.accuracy == "top1 100.00 % (target 98.5 %), 20 samples"
    missed = answer_of(golden("server", slo="p90=100us", **measured))
    assert missed.headline.startswith("p90 507 us, above the 100 us allowed (95 %: ")
    few = [{"code": "early-stopping", "text": ""}]
    unproven = answer_of(
        golden("server", slo="p90=1ms", **measured, verdict="INVALID", reasons=few)
    )
    assert unproven.headline.startswith("p90 507 us, not proven to be within 1 ms (95 %: ")
    # Bug: a run that was ended because too many queries were late had a percentile within the bound as its answer.
    ended = golden("server", slo="p90=1ms", **measured, verdict="INVALID")
    ended["reasons"] = [{"code": "hopeless", "text": ""}]
    ended["queries"] |= {"late": 6}
    assert answer_of(ended).headline.startswith(
        "p90 507 us when the run was ended, with 6 queries above the 1 ms allowed"
    )


def test_an_estimate_above_the_bound_is_shown_beside_the_percentile() -> None:
    """Bug: an INVALID run printed `p99 19.3 ms of 20 ms allowed`, although LoadGen's estimate missed the bound."""
    headline = {"name": "p90 latency, early-stopping estimate", "unit": "ns", "value": 1_200_000}
    measured = {**p90(507_000, 620_000), "headline": headline}
    missed = answer_of(golden("single-stream", slo="p90=1ms", **measured))
    assert missed.headline.startswith(
        "p90 507 us measured, 1.20 ms with LoadGen's margin, above the 1 ms allowed (95 %: "
    )
    met = answer_of(golden("single-stream", slo="p90=2ms", **measured))
    assert met.headline.startswith("p90 507 us of 2 ms allowed (95 %: ")


def test_an_answer_is_printed_as_lines_of_text() -> None:
    """Bug: `print(run.answer)` printed a tuple, although docs/python.md promises plain text."""
    answer = answer_of(golden("server"))
    lines = str(answer).splitlines()
    assert lines[:2] == [f"verdict     {answer.verdict}", f"answer      {answer.headline}"]
    assert "None" not in str(answer)
    bare = answer._replace(accuracy=answer.headline, limited_by=None, doubts=None, advice=None)
    assert str(bare).splitlines() == lines[:2]


def test_a_rate_that_the_harness_chose_is_named_a_demonstration() -> None:
    """Bug: a new user took the demonstration rate for the result of the run."""
    result = golden("server")
    result["calibration"]["rate_per_s"] = 800.0
    answer = answer_of(result)
    assert answer.headline.endswith(" at 200 queries/s (a demonstration rate)")
    assert answer.advice == (
        "The harness chose the rate: the verb peak finds the highest one within the bound."
    )


def test_a_chosen_rate_that_was_too_high_is_not_blamed_on_the_user() -> None:
    """Bug: the advice was `lower --target-qps` after a run without this option."""
    result = golden("server", verdict="INVALID", reasons=[LATE])
    result["calibration"]["rate_per_s"] = 800.0
    advice = "The harness chose this rate: pass a lower --target-qps, or let the verb peak find the highest one."
    assert answer_of(result).advice == advice
    result["doubts"] = [BUSY]
    assert answer_of(result).advice == QUIET_THEN_LOWER
    result["calibration"]["rate_per_s"] = None
    result["doubts"] = []
    assert answer_of(result).advice == LOWER


def of_tokens(**changed: Any) -> dict[str, Any]:
    """Returns an official Server run of a language task."""
    bounds = {"percentile": "p99", "ttft_ns": 2_000_000_000, "tpot_ns": 200_000_000}
    times = {"ttft_ns": {"p99": 1_210_000_000}, "tpot_ns": {"p99": 150_000_000}}
    loadgen = {"tokens_per_s": 5210.4, **times, "bounds": bounds, **changed}
    return golden("server", slo=None, tokens={"loadgen": loadgen})


@pytest.mark.parametrize(
    ("changed", "headline"),
    [
        ({}, "5,210 tokens/s, TTFT p99 1.21 s of 2 s allowed, TPOT p99 150 ms of 200 ms allowed"),
        ({"ttft_ns": {"p99": 2_310_000_000}}, "5,210 tokens/s, TTFT p99 2.31 s, above the 2 s allowed, TPOT p99 150 ms of 200 ms allowed"),
        ({"tpot_ns": None, "tokens_per_s": None}, "TTFT p99 1.21 s of 2 s allowed, TPOT not measured"),
    ],
)  # fmt: skip
def test_official_token_run_shows_loadgens_times_beside_the_bounds(
    changed: dict[str, Any], headline: str
) -> None:
    answer = answer_of(of_tokens(**changed))
    assert answer.headline == f"{headline} at 200 queries/s"
    assert answer.question == (
        "Do 99 % of the first tokens come within 2 s, and the other tokens within 200 ms each at 200 queries/s?"
    )


def with_token_slos(slo: str, *judged: tuple[float | None, bool], **more: Any) -> dict[str, Any]:
    """Returns a quick run. judged: value in ns and whether the SLO is met, for each SLO on a token time."""
    names = [one for one in slo.split() if ":" in one]
    slos = [
        {"slo": name, "value_ns": value_ns, "late": 0, "of": 10, "met": met, **more}
        for name, (value_ns, met) in zip(names, judged, strict=True)
    ]
    return golden("server", slo=slo, goodput={"per_s": 1.0, "share": 1.0, "slos": slos})


def test_a_token_run_begins_with_its_token_times_beside_the_bounds() -> None:
    """Bug: the headline was the latency of whole answers, which no SLO bounded."""
    result = with_token_slos("ttft:p99=1ms tpot:p99=20ms", (7_250_000, False), (1_280_000, True))
    answer = answer_of(result)
    times = "TTFT p99 7.25 ms, above the 1 ms allowed, TPOT p99 1.28 ms of 20 ms allowed"
    assert answer.headline == f"{times} at 200 queries/s"
    assert (
        answer.question == "Is TTFT p99 at most 1 ms and TPOT p99 at most 20 ms at 200 queries/s?"
    )
    number = number_of(result)
    assert number is not None
    assert (number.name, number.value, number.unit) == ("TTFT p99", 7_250_000, "ns")


@pytest.mark.parametrize(
    ("slo", "judged", "more", "text"),
    [
        ("itl:p99=3ms", (None, False), {}, "ITL p99 above the 3 ms allowed at 200"),
        ("tpot:p99=3ms", (None, False), {"unknown": 10}, "TPOT p99 not measured at 200"),
        ("ttft:p99=3ms", (1e6, False), {}, "TTFT p99 1.00 ms of 3 ms allowed, missed at 200"),
    ],
)
def test_a_token_time_without_a_value_is_not_within_its_bound(
    slo: str, judged: tuple[float | None, bool], more: dict[str, Any], text: str
) -> None:
    assert answer_of(with_token_slos(slo, judged, **more)).headline.startswith(text)


def test_token_times_follow_a_latency_that_has_a_bound() -> None:
    result = with_token_slos("p99=5s ttft:p99=1s", (7_250_000, True))
    headline = answer_of(result).headline
    assert headline.startswith("p99 ")
    assert ", TTFT p99 7.25 ms of 1 s allowed at 200 queries/s" in headline


def test_latency_is_the_answer_without_bounds_of_tokens() -> None:
    assert answer_of(of_tokens(bounds=None)).headline.startswith("p99 ")


@pytest.mark.parametrize(
    ("until", "series", "text"),
    [
        ("2%", {"rate": {"half_width": 0.0184}}, " queries/s (±1.8 %) with"),
        ("2%", {"rate": {"half_width": 0.158}}, " (±15.8 %, wider than the 2% asked) with"),
        ("2%", {}, " queries/s (no interval) with"),
        ("steady", {"rate": {"half_width": 0.1}}, " queries/s with"),
    ],
)
def test_the_answer_has_the_interval_that_until_asked_for(
    until: str, series: dict[str, Any], text: str
) -> None:
    closed = golden("closed-loop")
    closed["arrivals"]["until"] = until
    closed["steady"] = {"series": series} if series else None
    assert text in answer_of(closed).headline


def test_the_answer_of_the_other_scenarios_is_their_own_metric() -> None:
    rate = {"throughput_per_s": {"asked": None, "completed": 21_390.4}}
    assert answer_of(golden("offline", **rate)).headline == "21,390 samples/s"
    stream = answer_of(golden("single-stream", **p90(136_400, None)))
    assert stream.question == "How long does a query take, one query at a time?"
    assert stream.headline.startswith("p90 136 us (95 %: ")
    assert stream.headline.endswith(" or more), one query at a time")
    closed = answer_of(golden("closed-loop", **rate))
    assert closed.headline.endswith(" at 21,390 queries/s with 4 in flight")
    failing = golden("closed-loop", **rate)
    failing["queries"] |= {"samples_failed": 12, "samples_answered": 100}
    headline = answer_of(failing).headline
    assert headline.startswith("12 of 100 samples failed: p90 ")
    assert headline.endswith(" with 4 in flight, including failed samples")
    replayed = golden("server")
    replayed["throughput_per_s"] |= {"asked": None, "completed": 171.6}
    # Bug: the result of an interrupted ramp said that its arrivals were "replayed from a file".
    assert answer_of(replayed).headline.endswith(" at 172 queries/s in a ramp")
    # Bug: a killed run, which has stored neither, was asked "in a ramp".
    assert (
        "ramp" not in answer_of({**replayed, "arrivals": None, "throughput_per_s": None}).headline
    )
    replayed["arrivals"] = {"schedule_sha256": "0" * 64, "concurrency": None}
    assert answer_of(replayed).headline.endswith(" at 172 queries/s, replayed from a file")


def test_percentile_missing_in_loadgens_log_is_shown_as_late_queries() -> None:
    result = golden("server", slo="p99.5=2ms")
    result["queries"] |= {"late": 3, "counted_by_loadgen": 1_200}
    assert answer_of(result).headline == (
        "3 of 1,200 queries (0.25 %) took more than 2 ms (p99.5 allows 0.5 %) at 200 queries/s"
    )
    # The headline uses the harness's count, because LoadGen does not count late queries in a closed loop.
    closed = golden("closed-loop", slo="p99.5=2ms")
    assert answer_of(closed).headline.startswith(
        "0 of 64 queries (0 %) took more than 2 ms (p99.5 allows 0.5 %) at "
    )
    estimate = "p90 latency, early-stopping estimate"
    headline = {"name": estimate, "value": 370_000, "unit": "ns"}
    stream = answer_of(golden("single-stream", slo="p99.5=2ms", headline=headline))
    assert stream.headline == f"{estimate} 370 us, one query at a time"


def test_a_rate_that_was_not_kept_up_is_named() -> None:
    result = golden("server")
    result["throughput_per_s"] = {"asked": 900.0, "scheduled": 880.0, "completed": 170.0}
    assert answer_of(result).headline.endswith(" at 900 queries/s, but only 170/s completed")


def test_failures_come_before_a_latency_that_claims_no_bound() -> None:
    """Bug: although 354 of 400 requests had failed, the answer was `p50 36.8 us of 1 s allowed`."""
    result = golden("closed-loop")
    assert " allowed" in answer_of(result).headline
    result["queries"] |= {"samples_failed": 354, "samples_answered": 400}
    headline = answer_of(result).headline
    assert headline.startswith("354 of 400 samples failed: p")
    assert " allowed" not in headline


def test_rate_that_includes_failed_samples_shows_their_number() -> None:
    """Bug: for a run with 85 % failed queries, the text counted only the completed ones."""
    queries = {"samples_failed": 1_700, "samples_answered": 2_010}
    included = ", including failed samples"
    late = golden("server")
    late["throughput_per_s"] = {"asked": 100.0, "scheduled": 100.0, "completed": 80.5}
    late["queries"] |= queries
    headline = answer_of(late).headline
    assert headline.startswith("1,700 of 2,010 samples failed: ")
    assert headline.endswith(f" at 100 queries/s, but only 80.5/s completed{included}")
    offline = golden("offline", throughput_per_s={"completed": 21_390.0})
    offline["queries"] |= queries
    assert answer_of(offline).headline == f"21,390 samples/s{included} (1,700 of 2,010 samples)"


def test_samples_per_query_are_named_if_several() -> None:
    result = golden("single-stream")
    result["queries"]["samples_per_query"] = 8
    assert answer_of(result).headline.endswith(", one query of 8 samples at a time")


def test_a_score_without_a_unit_has_no_space_in_its_place() -> None:
    """Bug: the text was "mean_error 0.03200 , 500 samples"."""
    score = {**with_target(), "metric": "mean_error", "value": 0.032, "unit": "", "target": 0.05}
    assert show_accuracy(score) == "mean_error 0.03200 (target 0.05), 20 samples"


def test_an_accuracy_run_is_answered_by_its_score() -> None:
    answer = answer_of(golden("server", mode="accuracy", accuracy=with_target()))
    assert answer.question == "How accurate are the answers?"
    assert answer.headline == answer.accuracy == "top1 100.00 % (target 98.5 %), 20 samples"


def test_a_run_that_did_not_start_has_no_number() -> None:
    nothing = dict.fromkeys(
        ("latency_ns", "latency_intervals_ns", "throughput_per_s", "stages_ns", "reference")
    )
    no_score = {"value": None, "reason": "the run ended before it was scored"}
    died = {"code": "did-not-start", "text": "the model cannot be read"}
    for name in RUNS:
        result = golden(name, verdict="INVALID", reasons=[died], accuracy=no_score, **nothing)
        answer = answer_of(result)
        assert (answer.verdict, answer.headline) == ("INVALID", "nothing was measured")
        assert answer.limited_by is None
        assert answer.advice == "Read the text and performance.log."


@pytest.mark.parametrize(
    ("section", "doubts", "limited_by"),
    [
        (reference(), [], "the model: p90 would be as long without the load generator's cost"),
        (reference(), [BUSY], "the machine: other processes"),
        (held_back(), [], "the load generator: p90 would be 100 us without its cost; a query waits 190 us longer until it is issued"),
        (held_back(what="p99.9", queries=9), [], "the load generator: p99.9 would be 100 us without its cost; a query of the slowest 0.1 % waits 190 us longer until it is issued"),
        # bug: the p99 of the first queries appeared next to the p99 of all queries
        (held_back(queries=9, of_queries=10), [], "the load generator: a query of the slowest 10 % waits 190 us longer until it is issued"),
        (held_back(), [PREEMPTED], "the machine: other threads took the cores 900 times"),
        (held_back(), [PREEMPTED, BUSY], "the machine: other processes used 86 % of the cores during the run"),
        (held_back(lost_ns={"issue_delay": 1.0, "infer": 9.0}), [], "the model: its batches took longer in the run than alone"),
        (held_back(at_run_speed={"reference": 300_000, "ratio": 1.0}), [], "the model: its batches took longer in the run than alone"),
        (held_back(at_slower_loops={"reference": 290_000, "ratio": 1.04}), [], "the "),
        ({"reason": "the model is too slow"}, [BUSY], "the machine: other processes"),
        (None, [PADDED], "the "),
    ],
)  # fmt: skip
def test_limit_follows_from_the_reference_and_the_doubts(
    section: Any, doubts: list[dict[str, str]], limited_by: str
) -> None:
    found = answer_of(golden("server", reference=section, doubts=doubts)).limited_by
    assert found is not None
    assert found.startswith(limited_by)


def test_a_small_disturbance_far_from_the_bound_limits_nothing() -> None:
    """Bug: the machine limited a run with 0.5 % of the time allowed, on an idle machine."""
    none = {"reason": "a model that answers token by token forms no batches"}

    def limit(slo: str, doubt: dict[str, str]) -> str:
        judged = {"slo": slo, "value_ns": 5e6, "late": 0, "of": 200, "met": True}
        slos = {"slo": slo, "goodput": {"slos": [judged]}}
        made = golden("server", reference=none, doubts=[doubt], **slos)
        return present(limited_by(made))

    assert limit("p99=1s", PREEMPTED).startswith("the model: ")
    assert limit("p99=20ms", PREEMPTED).startswith("the machine: other threads")
    assert limit("p99=1s", BUSY).startswith("the machine: other processes")


def test_a_client_bound_run_is_limited_by_its_client() -> None:
    """Bug: `limited by the server and the network` was printed beside the reason `client-bound`."""
    text = "1 % of the replies waited in the kernel for more than 9.00 ms before the client read them, which is more than half of the latency's p99 (12.0 ms)"
    bound = {"code": "client-bound", "text": text}
    found = answer_of(golden("server", verdict="INVALID", reasons=[bound])).limited_by
    assert found == (
        "the client: 1 % of the replies waited in the kernel for more than 9.00 ms before the client read them"
    )


def test_a_short_run_has_the_length_that_an_interval_needs() -> None:
    """Bug: `too short for an interval` did not say how long a run has to be."""
    result = golden("server", queries={"took_s": 6.0})
    one = result["latency_intervals_ns"]["p90"]
    one |= {"block_interval_reason": "the run has about 3 independent parts: run 30 times as long"}
    assert "(no 95 % interval: run for at least 3 min)" in answer_of(result).headline
    assert (
        "(no 95 % interval: run for at least 30 times this length)"
        in answer_of({**result, "queries": None}).headline
    )
    # If a run would take more than five minutes, five runs of a minute are the better advice.
    longer = answer_of({**result, "queries": {**result["queries"], "took_s": 11.0}}).headline
    assert "(no 95 % interval: --config thorough gives one)" in longer
    # The next step after an INVALID run is to mend the reason.
    invalid = {**result, "verdict": "INVALID"}
    assert "interval" not in answer_of(invalid).headline


def test_the_length_for_an_interval_is_at_least_that_of_lower_percentiles() -> None:
    """Bug: the answer named a run of 20 s, whereas the note below the table named 30 s for the same percentile."""
    result = golden("server", queries={"took_s": 6.0})
    for name, times in (("p50", 30), ("p90", 20)):
        reason = f"the run has about 3 independent parts: run {times} times as long"
        result["latency_intervals_ns"][name] |= {"block_interval_reason": reason}
    assert "(no 95 % interval: run for at least 3 min)" in answer_of(result).headline


def test_a_query_that_mostly_waits_is_limited_by_the_queue() -> None:
    result = golden("server", reference=reference())
    for name, stage in result["stages_ns"].items():
        stage["share"] = 0.7 if name == "queue" else 0.06
    assert answer_of(result).limited_by == "the queue: 70 % of a query's mean time"
    result["plan"]["batch_wait_ns"] = 20_000_000
    assert answer_of(result).limited_by == (
        "the queue: 70 % of a query's mean time; a batch waits up to 20.0 ms to fill (--batch-wait)"
    )


def test_idle_cores_of_a_plan_are_named_with_their_possible_gain() -> None:
    more = {"instances": 2, "reference": 3_100_000}
    result = golden("server", reference=reference(what="p99", on_all_cores=more))
    result["plan"] |= {"instances": 1, "threads": 1, "cores": 2}
    for name, stage in result["stages_ns"].items():
        stage["share"] = 0.7 if name == "queue" else 0.06
    assert answer_of(result).limited_by == (
        "the queue: 70 % of a query's mean time; the plan uses 1 of 2 cores: 2 instances would reach p99 3.10 ms"
    )
    rate = {"what": "samples/s", "unit": "samples/s", "lost_ns": {}}
    fast = reference(**rate, reference=22_000.0, ours=21_390.0, ratio=0.97)
    fast["on_all_cores"] = {"instances": 4, "reference": 44_000.0}
    result = golden("offline", reference=fast)
    result["plan"] |= {"instances": 2, "threads": 2, "cores": 8}
    assert answer_of(result).limited_by == (
        "the model: alone it answers 22,000 samples/s; the plan uses 4 of 8 cores: 4 instances would reach 44,000 samples/s"
    )


def test_fewer_threads_than_cores_are_explained_by_their_times() -> None:
    result = golden("single-stream", reference=reference(what="p90"))
    result["plan"] |= {"instances": 1, "threads": 1, "cores": 2}
    result["calibration"]["thread_latency_ns"] = [[2, 43_100], [1, 30_600]]
    for name, stage in result["stages_ns"].items():
        stage["share"] = 0.9 if name == "infer" else 0.02
    found = answer_of(result).limited_by
    assert found is not None
    assert found.endswith(
        "; the plan uses 1 of 2 cores: in the warm-up, a query took 30.6 us, but 43.1 us with 2 threads"
    )
    result["plan"]["threads"] = 2
    assert "cores" not in (answer_of(result).limited_by or "")


def test_busy_machine_is_ignored_if_the_model_takes_most_of_the_time() -> None:
    result = golden("server", reference=reference(), doubts=[BUSY])
    for name, stage in result["stages_ns"].items():
        stage["share"] = 0.9 if name == "infer" else 0.02
    assert answer_of(result).limited_by == "the model: 94 % of a query's mean time"


def test_offline_has_a_limit_only_if_the_reference_decides() -> None:
    """Bug: the queue's share of the time was printed, although this share means nothing in Offline, where it is 92 % in
    every run.
    """
    rate = {"what": "samples/s", "unit": "samples/s", "lost_ns": {}}
    fast = reference(**rate, reference=22_000.0, ours=21_390.0, ratio=0.97)
    assert answer_of(golden("offline", reference=fast)).limited_by == (
        "the model: alone it answers 22,000 samples/s"
    )
    slow = held_back(**rate, reference=60_000.0, ours=21_390.0, ratio=0.36)
    slow["at_run_speed"] = {"reference": 59_000.0, "ratio": 0.37}
    del slow["lost_ns"]
    assert answer_of(golden("offline", reference=slow)).limited_by == (
        "the load generator: the model alone answers 60,000 samples/s"
    )
    assert answer_of(golden("offline", reference=None)).limited_by is None


def test_the_null_backend_has_no_model_that_could_limit_it() -> None:
    limited = answer_of(golden("server", backend="null")).limited_by
    assert limited == "the load generator: the null backend has no model"


def test_doubts_are_grouped_and_the_cause_has_the_advice() -> None:
    """Bug: the advice for `preempted`, fewer threads, was printed although other programs took the cores."""
    answer = answer_of(golden("server", doubts=[PREEMPTED, PADDED, BUSY, BUSY]))
    assert answer.doubts == "machine (preempted, busy-machine), model (padded)"
    assert answer.advice == "Stop other programs on this machine and run again."
    assert answer_of(golden("server", doubts=[PADDED])).advice == (
        "Export the model with a symbolic batch dimension."
    )
    calm = answer_of(golden("server"))
    assert (calm.doubts, calm.advice) == (None, None)


def test_preemption_by_a_server_on_this_machine_does_not_limit_the_run() -> None:
    """Bug: every run over loopback was reported as limited by `other threads took the cores`."""
    local = {"code": "loopback", "text": "http://127.0.0.1:8000 is on this machine"}
    for more, expected in (([], True), ([local], False)):
        answer = answer_of(golden("server", doubts=[PREEMPTED, *more]))
        assert (answer.limited_by or "").startswith("the machine") == expected
        assert (answer.advice or "").startswith("Stop other programs") == expected


def test_a_reason_has_the_advice_unless_the_machine_was_disturbed() -> None:
    failed = golden("server", verdict="INVALID", reasons=[LATE], doubts=[PADDED])
    assert answer_of(failed).advice == LOWER
    failed["doubts"] = [BUSY]
    assert answer_of(failed).advice == QUIET_THEN_LOWER


def test_too_few_queries_have_their_advice_on_any_machine() -> None:
    """Bug: the advice was to stop other programs, which does not make 100 queries sufficient for p99."""
    few = {"code": "early-stopping", "text": "100 queries are too few to prove p99"}
    advice = answer_of(golden("server", verdict="INVALID", reasons=[few], doubts=[BUSY])).advice
    assert (
        advice
        == "Run longer: the text states how many queries and seconds are needed. If these are too many, lower the load."
    )


def test_too_few_queries_for_loadgen_are_named_with_their_number() -> None:
    """Bug: a single-stream run of 30 queries was advised to stop other programs and to lower its load."""
    short = {
        "code": "loadgen-invalid",
        "text": "LoadGen reports INVALID: not satisfied: early stopping",
    }
    few = {"code": "few-samples", "text": "30 queries are too few for p90: 44 are needed"}
    run = golden(
        "single-stream", verdict="INVALID", reasons=[short], doubts=[BUSY, few], slo="p90=1s"
    )
    assert (
        answer_of(run).advice
        == "Run longer, because 30 queries are too few for p90: 44 are needed."
    )
    assert "not proven to be within 1 s" in answer_of(run).headline


def test_a_bound_below_the_fastest_answer_is_the_advice_on_any_machine() -> None:
    """Bug: a run with a bound of 1 ns was advised to stop other programs."""
    run = golden("server", verdict="INVALID", reasons=[LATE], doubts=[BUSY], slo="p99=1ns")
    assert run["latency_ns"]["min"] > 1
    assert (
        answer_of(run).advice
        == f"Raise --slo: even the fastest answer took {show_ns(run['latency_ns']['min'])}."
    )


def test_a_folder_that_could_not_be_written_explains_the_other_reasons() -> None:
    reasons = [{"code": code, "text": ""} for code in ("accuracy-failed", "not-saved")]
    advice = answer_of(golden("server", verdict="INVALID", reasons=reasons)).advice
    assert advice == "Free disk space or pass a different --out, then run again."


def test_a_lost_server_explains_the_other_reasons() -> None:
    codes = ("accuracy-failed", "requests-failed", "server-gone", "slo-missed")
    reasons = [{"code": code, "text": ""} for code in codes]
    advice = answer_of(golden("server", verdict="INVALID", reasons=reasons)).advice
    assert advice == "Find out why the server stopped, and run again."


def test_every_code_has_plain_advice_and_unknown_codes_are_accepted() -> None:
    for code in CODES:
        text = answer_of(golden("server", doubts=[{"code": code, "text": "text"}])).advice
        assert text
        assert not set(text) & set("`[]")
    unknown = answer_of(golden("server", doubts=[{"code": "of-tomorrow", "text": "text"}]))
    assert (unknown.doubts, unknown.advice) == ("other (of-tomorrow)", None)
