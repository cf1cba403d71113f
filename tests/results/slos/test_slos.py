"""SLOs and goodput are counted query by query, independently of LoadGen's verdict."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness.core.config.parse import Slo, leading, parse_slos, searched
from harness.core.units import NS_PER_MS, show_rate
from harness.loadgen.scenario import scenario_named
from harness.results.evidence.evidence import Evidence
from harness.results.evidence.stages import Completions
from harness.results.schema.client import Goodput
from harness.results.slos.judged import good_queries, judged
from harness.results.slos.reasons import reasons
from harness.results.slos.section import section
from harness.results.slos.shown import shown
from harness.results.verdict import token_counts
from harness.types import Array
from tests.builders.support import ENDED, evidence

SLOS = parse_slos("p90=80ms ttft:p90=50ms tpot:p90=5ms itl:p50=1ms")
COUNT = 200


def streams(seed: int = 0) -> dict[str, Array]:
    """Returns answers of 1 to 9 tokens. Every twentieth answer failed before its first token."""
    draw = np.random.default_rng(seed)
    scheduled_ns = np.arange(COUNT) * 3 * NS_PER_MS
    first_ns = scheduled_ns + draw.integers(1, 70 * NS_PER_MS, COUNT)
    tokens = draw.integers(1, 10, COUNT)
    failed = draw.random(COUNT) < 0.05
    completed_ns = first_ns + draw.integers(0, 8 * NS_PER_MS, COUNT) * (tokens - 1)
    return {
        "order": np.arange(COUNT),
        "failed": failed.astype(np.uint16),
        "scheduled_ns": scheduled_ns,
        "completed_ns": completed_ns,
        "first_token_ns": np.where(failed, 0, first_ns),
        "tokens": np.where(failed, 0, tokens).astype(np.int32),
        "late_tokens": np.where(failed, 0, draw.integers(0, tokens)).astype(np.int32),
    }


def done(columns: Mapping[str, Array]) -> Completions:
    return Completions(columns, COUNT, True)


def row(columns: Mapping[str, Array], i: int) -> dict[str, int]:
    return {name: int(values[i]) for name, values in columns.items()}


def is_late(one: Mapping[str, int], slo: Slo) -> bool | None:
    """Returns whether one answer missed the SLO, by definition; None if the SLO does not apply."""
    if not slo.of:
        return bool(one["failed"]) or one["completed_ns"] - one["scheduled_ns"] > slo.bound_ns
    if one["failed"]:
        return True
    if slo.of == "ttft":
        return one["first_token_ns"] - one["scheduled_ns"] > slo.bound_ns
    if one["tokens"] < 2:
        return None
    each_ns = (one["completed_ns"] - one["first_token_ns"]) // (one["tokens"] - 1)
    return each_ns > slo.bound_ns


@pytest.mark.parametrize("slo", SLOS[:3], ids=str)
def test_late_answers_are_counted_one_by_one(slo: Slo) -> None:
    columns = streams()
    late = [is_late(row(columns, i), slo) for i in range(COUNT)]
    found = judged(done(columns), 1, slo)
    assert (found.late, found.of) == (late.count(True), COUNT - late.count(None))
    assert found.is_met == (found.late < found.of - int(found.of * 0.9))


def test_late_tokens_are_counted_of_those_after_the_first() -> None:
    columns = streams()
    found = judged(done(columns), 1, SLOS[3])
    assert found.late == columns["late_tokens"].sum()
    assert found.of == np.maximum(columns["tokens"] - 1, 0).sum()
    assert found.value_ns is None


def test_a_good_query_met_every_slo_with_all_its_answers() -> None:
    columns = streams(1)

    def is_good(i: int) -> bool:
        one = row(columns, i)
        gaps = max(0, one["tokens"] - 1)
        return not any(is_late(one, slo) for slo in SLOS[:3]) and (
            one["late_tokens"] <= gaps // 2 and not one["failed"]
        )

    good = [is_good(i) for i in range(COUNT)]
    assert 5 < sum(good) < COUNT
    assert good_queries(done(columns), 1, SLOS) == sum(good)
    pairs = sum(a and b for a, b in zip(good[::2], good[1::2], strict=True))
    assert good_queries(done(columns), 2, SLOS) == pairs


def run(
    scenario: str = "server", columns: Mapping[str, Array] | None = None, **plan: Any
) -> Evidence:
    """Returns the golden run with a language model's answers in place of the recorded ones."""
    made = evidence(scenario)
    return replace(
        made,
        plan=replace(made.plan, **plan),
        done=done(columns if columns is not None else streams()),
        ended={**ENDED, "client": {"tokens": {"streams": {"itl_ns": {"p50": 1}}}}},
    )


def codes(evidence: Evidence, slos: tuple[Slo, ...]) -> list[str]:
    scenario = scenario_named(evidence.plan.scenario)
    return [reason.code for reason in reasons(scenario, evidence, slos)]


def test_slo_that_loadgen_judges_is_not_judged_again() -> None:
    tight = parse_slos("p99=1ns p50=1ns")
    assert codes(run(), tight[:1]) == []
    assert codes(run(), tight) == ["slo-missed"]
    # If LoadGen measures token times, it judges only token times.
    assert codes(run(token_latencies=True), tight[:1]) == ["slo-missed"]


def test_missed_token_slo_shows_the_number_of_late_answers() -> None:
    found = [*reasons(scenario_named("server"), run(), parse_slos("ttft:p90=1ns itl:p90=1ms"))]
    assert [reason.code for reason in found] == ["slo-missed", "slo-missed"]
    assert found[0].text == (
        "200 of 200 first tokens did not come within 1 ns, but ttft:p90 allows at most 19"
    )
    assert "tokens did not come within 1.00 ms of the previous token" in found[1].text


def test_too_few_answers_are_not_enough_to_be_sure() -> None:
    fine = {**streams(), "failed": np.zeros(COUNT, np.uint16)}
    fine["first_token_ns"] = fine["scheduled_ns"] + 1
    (reason,) = reasons(scenario_named("server"), run(columns=fine), parse_slos("ttft:p99=1s"))
    assert reason.code == "early-stopping"
    assert reason.text.startswith(
        "200 first tokens are too few to prove ttft:p99, although none was late: "
    )
    assert codes(run(columns=fine), parse_slos("ttft:p90=1s")) == []


def test_goodput_is_a_share_of_the_rate_that_loadgen_reports() -> None:
    """Bug: all files and tables except one line showed goodput as N / T beside a throughput of (N - 1) / T."""
    found = section(run(columns=streams(2)), SLOS, 76.6)
    assert found is not None
    assert 0 < found["share"] < 1
    assert found["per_s"] == pytest.approx(76.6 * found["share"])
    result = {"scenario": "server", "slo": " ".join(map(str, SLOS)), "goodput": found}
    assert str(shown(result)).startswith(f"{show_rate(found['per_s'] or 0)} queries/s")


def uncounted(answers: int) -> dict[str, Array]:
    """Returns answers that arrive in time. The last `answers` answers lack a token count."""
    columns = streams()
    first_ns = columns["scheduled_ns"] + NS_PER_MS
    tokens = np.where(np.arange(COUNT) < COUNT - answers, 4, 0).astype(np.int32)
    columns |= {"first_token_ns": first_ns, "completed_ns": first_ns + 3 * NS_PER_MS}
    return columns | {"tokens": tokens, "failed": np.zeros(COUNT, np.uint16)}


def test_an_answer_without_a_count_is_not_known_to_be_in_time() -> None:
    """Bug: a server that omitted `usage` from slow answers met any bound on the time per token."""
    slos = parse_slos("tpot:p90=5ms")
    for answers, expected in (
        (0, []),
        (10, []),
        (20, ["slo-not-measured"]),
        (100, ["slo-not-measured"]),
    ):
        made = run(columns=uncounted(answers))
        assert codes(made, slos) == expected
        (one,) = (section(made, slos) or {"slos": []})["slos"]
        assert (one["of"], one.get("unknown", 0), one["met"]) == (COUNT, answers, answers < 20)
    found = section(run(columns=uncounted(100)), slos)
    assert found is not None
    assert found["share"] == 0.5
    told = str(shown({"scenario": "server", "slo": "tpot:p90=5ms", "goodput": found}))
    assert (
        "known to have met every SLO: tpot:p90 1.00 ms of 5 ms, 100 of 200 answers not counted"
        in told
    )
    whole = section(run(columns=uncounted(COUNT)), slos)
    assert whole is not None
    # Bug: the share was 100 %, although no answer could be judged.
    assert (whole["share"], whole["per_s"]) == (
        0,
        0,
    )
    told = str(shown({"scenario": "server", "slo": "tpot:p90=5ms", "goodput": whole}))
    assert told.endswith("known to have met every SLO: tpot:p90 not measured")


def test_a_single_token_cannot_miss_a_time_per_token() -> None:
    columns = uncounted(0)
    columns["tokens"][:50] = 1
    # Each answer now ends 16 ms after its first token.
    columns["completed_ns"] = columns["completed_ns"] + NS_PER_MS * 13
    assert good_queries(done(columns), 1, parse_slos("tpot:p90=1ms")) == 50


def test_times_that_answers_do_not_have_are_a_reason() -> None:
    one_token = {**streams(), "tokens": np.ones(COUNT, np.int32)}
    one_token["failed"] = np.zeros(COUNT, np.uint16)
    one_token["first_token_ns"] = one_token["scheduled_ns"] + 1
    made = run(columns=one_token)
    assert codes(made, parse_slos("tpot:p90=1s")) == ["slo-not-measured"]
    unknown = replace(made, ended={**ENDED, "client": {"tokens": {"streams": None}}})
    assert codes(unknown, parse_slos("itl:p90=1s")) == ["slo-not-measured"]


def test_answers_of_one_token_are_a_reason_if_loadgen_counts_tokens() -> None:
    ended = {**ENDED, "client": {"tokens": {"one_token_answers": 3}}}
    made = replace(run(), ended=ended)
    assert [*token_counts.one_token_answers(made)] == []
    counted = replace(made, plan=replace(made.plan, token_latencies=True))
    (reason,) = token_counts.one_token_answers(counted)
    assert reason.text.startswith("3 of 200 answers have one token")


def test_the_section_has_the_rate_of_good_queries() -> None:
    columns = streams(2)
    made = section(run(columns=columns), SLOS)
    assert made is not None
    good = good_queries(done(columns), 1, SLOS)
    took_ns = int(columns["completed_ns"].max() - columns["scheduled_ns"].min())
    assert made["share"] == good / COUNT
    assert made["per_s"] == pytest.approx(good * 1e9 / took_ns)
    assert [one["slo"] for one in made["slos"]] == [*map(str, SLOS)]
    assert section(run(), ()) is None


def test_the_line_needs_more_than_one_slo_on_the_latency() -> None:
    goodput: Goodput = {
        "per_s": 12.0,
        "share": 0.75,
        "slos": [
            {"slo": "p99=50ms", "value_ns": 40 * NS_PER_MS, "late": 1, "of": 4, "met": True},
            {"slo": "itl:p90=5ms", "value_ns": None, "late": 9, "of": 9, "met": False},
        ],
    }
    result = {"scenario": "server", "slo": "p99=50ms itl:p90=5ms", "goodput": goodput}
    assert shown(result) == (
        "12.0 queries/s, 75.0 % met every SLO: p99 40.0 ms of 50 ms, itl:p90 above 5 ms"
    )
    assert shown({**result, "slo": "p99=50ms"}) is None
    goodput["slos"][1] |= {"of": 0}
    assert shown(result) == (
        "12.0 queries/s, 75.0 % met every SLO that was measured: p99 40.0 ms of 50 ms, itl:p90 not measured"
    )
    assert shown({"slo": None}) is None


def test_search_follows_the_latency_if_an_slo_has_one() -> None:
    assert leading(parse_slos("p50=1ms p99=2ms ttft:p99.9=1s")) == Slo(0.99, 2 * NS_PER_MS)
    assert leading(parse_slos("ttft:p99=1s")) is None
    assert searched(parse_slos("ttft:p90=1s tpot:p99=1ms")) == Slo(0.99, NS_PER_MS, "tpot")


def test_failed_answers_are_not_counted_as_late() -> None:
    """Bug: for failed requests, the message said that their first tokens were late, and advised a lower rate."""
    columns = streams()
    ttft = Slo(0.9, 100 * NS_PER_MS, "ttft")
    failed = int((columns["failed"] > 0).sum())
    assert judged(done(columns), 1, ttft).late == failed
    columns["failed"] = np.where(np.arange(COUNT) < 40, 1, columns["failed"])
    failed = int((columns["failed"] > 0).sum())
    for counted, expected in ((failed, []), (0, ["slo-missed"])):
        run = replace(
            evidence("server"), done=done(columns), ended={**ENDED, "failed_samples": counted}
        )
        told = [one.code for one in reasons(scenario_named("server"), run, (ttft,))]
        assert told == expected
