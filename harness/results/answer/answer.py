"""Derives a run's answer from result.json: the number, the limit, and whether the run can be trusted. Has no side
effects.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from harness.core.codes import HOPELESS
from harness.core.config.parse import (
    STEADY,
    Slo,
    leading,
    parse_slo,
    parse_slos,
    until_share,
)
from harness.core.units import (
    counted,
    show_duration,
    show_ns,
    show_percent,
    show_rate,
    show_wait,
)
from harness.loadgen.scenario import Scenario, scenario_named
from harness.results.answer import doubts, limits
from harness.results.evidence.performance import completes
from harness.results.evidence.stages import PERCENTILES
from harness.types import Quantity

_NOTHING = "nothing was measured"
_OF_ACCURACY = "How accurate are the answers?"
_OF_RATE = frozenset(("slo-missed", "early-stopping"))
"""Codes of reasons that would disappear at a lower rate."""

_LONGEST_S = 300.0
"""If an interval needs a longer run, the advice is five runs of a minute (`--config thorough`) instead."""


class Answer(NamedTuple):
    """Short plain texts without markup, for a screen, a page, a notebook or a CI check."""

    verdict: str
    """VALID or INVALID."""
    question: str
    """The question that the run was made to answer."""
    headline: str
    """The measured number with its unit, interval, bound and load."""
    accuracy: str | None
    """The score and its target, or why the score is missing; None after a run with --mode performance."""
    limited_by: str | None
    """The part of the system that limited the run, and its effect; None if the run's files do not show what limited it.
    """
    doubts: str | None
    """Codes of the doubts, grouped by part of the run; None if the run has no doubts."""
    advice: str | None
    """Advice for the first reason or, if the run has no reasons, for the most serious doubt; None if nothing needs to
    be done.
    """

    def __str__(self) -> str:
        """Returns the lines for the screen: the verdict, the headline, and each other text that is not None."""
        rows = {"verdict": self.verdict, "answer": self.headline, "accuracy": self.accuracy}
        if self.accuracy == self.headline:
            del rows["accuracy"]
        rows |= {"limited by": self.limited_by, "doubts": self.doubts, "advice": self.advice}
        return "\n".join(f"{label:<12}{text}" for label, text in rows.items() if text)


def answer_of(result: Mapping[str, Any]) -> Answer:
    """Derives the `Answer` from a result. result: the content of result.json (harness/results/schema/result.py)."""
    scenario = scenario_named(result["scenario"])
    slos = parse_slos(result.get("slo") or "")
    accuracy = None if result["mode"] == "performance" else show_accuracy(result["accuracy"])
    if result["mode"] == "accuracy":
        question, headline = _OF_ACCURACY, accuracy or _NOTHING
    else:
        question = _question(result, scenario, slos, _load(result, scenario))
        headline = _headline(result, scenario, leading(slos))
    return Answer(
        verdict=result["verdict"],
        question=question,
        headline=headline,
        accuracy=accuracy,
        limited_by=limits.limited_by(result),
        doubts=doubts.grouped(result["doubts"]),
        advice=_told_by_numbers(result)
        or _other_rate(result)
        or doubts.advice(result["reasons"], result["doubts"])
        or _next_step(result),
    )


def headline_in_short(result: Mapping[str, Any]) -> str:
    """Returns the headline of `answer_of` for a row in a list. Leaves out the interval and who chose the rate."""
    scenario = scenario_named(result["scenario"])
    if result["mode"] == "accuracy":
        return answer_of(result).headline
    slo = leading(parse_slos(result.get("slo") or ""))
    return _headline(result, scenario, slo, in_short=True)


def number_of(result: Mapping[str, Any]) -> Quantity | None:
    """Returns the number at the start of `answer_of`'s headline; None without a performance run."""
    scenario = scenario_named(result["scenario"])
    slo = leading(parse_slos(result.get("slo") or ""))
    latency, rates = result.get("latency_ns"), result.get("throughput_per_s") or {}
    if scenario.all_at_once:
        rate = rates.get("completed")
        source = "throughput_per_s.completed"
        return None if rate is None else Quantity("throughput", rate, "samples/s", source)
    if not latency:
        return None
    if _token_bounds(result) and (rate := result["tokens"]["loadgen"]["tokens_per_s"]) is not None:
        return Quantity("throughput", rate, "tokens/s", "tokens.loadgen.tokens_per_s")
    known = (one for one in _token_slos(result) if one["value_ns"] is not None)
    if slo is None and (one := next(known, None)):
        return Quantity(_time_name(one["slo"]), one["value_ns"], "ns", "goodput.slos")
    name = percentile_name(scenario, slo)
    if (value_ns := latency.get(name)) is not None:
        return Quantity(f"{name} latency", value_ns, "ns", f"latency_ns.{name}")
    headline = result.get("headline") or {}
    return Quantity(**headline) if headline.get("unit") == "ns" else None


def show_accuracy(accuracy: Mapping[str, Any]) -> str:
    """Returns the score and its target in one line. accuracy: the `accuracy` section of result.json."""
    if accuracy["value"] is None:
        return f"not measured: {accuracy['reason']}"
    target = accuracy["target"]
    unit = f" {accuracy['unit']}".rstrip()  # some metrics have no unit
    against = f" (target {target:g}{unit})" if target is not None else ""
    return f"{accuracy['metric']} {show_score(accuracy)}{against}, {accuracy['samples']:,} samples"


def show_score(accuracy: Mapping[str, Any]) -> str:
    """Returns the score with its unit. accuracy: the `accuracy` section of result.json, which must contain a score."""
    digits = 2 if accuracy["unit"] == "%" else 5
    return f"{accuracy['value']:.{digits}f} {accuracy['unit']}".rstrip()


def show_span(low_ns: float | None, high_ns: float | None) -> str:
    """Returns an interval of times: '1.80 to 1.92 ms', '1.80 ms or more'; empty if both ends are unknown."""
    low, high = (None if end is None else show_ns(end) for end in (low_ns, high_ns))
    if low is None or high is None:
        return f"{low} or more" if low else f"{high} or less" if high else ""
    number, unit = low.split(" ")
    return f"{number if high.endswith(f' {unit}') else low} to {high}"


def percentile_name(scenario: Scenario, slo: Slo | None) -> str:
    """Returns the name of the run's headline percentile, such as `p99`."""
    return f"p{(slo.percentile if slo else scenario.percentile) * 100:.10g}"


def question_of(options: Mapping[str, Any]) -> str:
    """Returns the question that an unfinished run will answer. options: the run's options by key, as in config.yaml."""
    scenario = scenario_named(options["scenario"])
    if options.get("mode") == "accuracy":
        return _OF_ACCURACY
    asked = options.get("slo") or ""
    slos = parse_slos(asked if isinstance(asked, str) else " ".join(asked))
    arrivals = {name: options.get(name) for name in ("streams", "concurrency")}
    known: Mapping[str, Any] = {
        "throughput_per_s": {"asked": options.get("target_qps")},
        "arrivals": arrivals,
        "queries": {"samples_per_query": options.get("samples_per_query") or 1},
    }
    has_load = not scenario.scheduled or any((options.get("target_qps"), *arrivals.values()))
    load = _load(known, scenario, in_short=True) if has_load else ""
    return _question({}, scenario, slos, load)


def _question(result: Mapping[str, Any], scenario: Scenario, slos: Sequence[Slo], load: str) -> str:
    """Returns the question that the run answers. load: result of `_load`."""
    if scenario.all_at_once:
        return "How many samples are answered in a second?"
    if bounds := _token_bounds(result):
        share = f"{float(bounds['percentile'][1:]):.10g} %"
        ttft, tpot = (show_duration(bounds[key]) for key in ("ttft_ns", "tpot_ns"))
        return f"Do {share} of the first tokens come within {ttft}, and the other tokens within {tpot} each{load}?"
    if any(one.of for one in slos):
        bounds_of = (f"{_time_name(str(one))} at most {_bound(one)}" for one in slos)
        return f"Is {' and '.join(bounds_of)}{load}?"
    if (slo := leading(slos)) is None:
        return f"How long does a query take{load}?"
    share = f"{slo.percentile * 100:.10g} %"
    return f"Are {share} of the queries answered within {_bound(slo)}{load}?"


def _headline(
    result: Mapping[str, Any], scenario: Scenario, slo: Slo | None, *, in_short: bool = False
) -> str:
    """Returns the headline. in_short: leaves out the interval and who chose the rate."""
    rates, latency = result.get("throughput_per_s"), result.get("latency_ns")
    if scenario.all_at_once:
        rate = rates["completed"] if rates else None
        return _NOTHING if rate is None else f"{show_rate(rate)} samples/s{_failed(result)}"
    if not latency:
        return _NOTHING
    times = ", ".join(_token_time(one, result) for one in _token_slos(result))
    load = f"{_load(result, scenario, in_short=in_short)}{_completed(result)}"
    if bounds := _token_bounds(result):
        return f"{_of_tokens(result['tokens']['loadgen'], bounds)}{load}"
    failures = _failures(result)
    if times and slo is None:
        return f"{failures}{times}{load}"
    load = f", {times}{load}" if times else load
    name = percentile_name(scenario, slo)
    value_ns = latency.get(name)
    if value_ns is None:
        return f"{_without_percentile(result, slo)}{load}"
    bound = ""
    if slo is not None and (not failures or value_ns > slo.bound_ns):
        bound = beside_slo(result, name, value_ns, slo)
    interval = interval_of(result, name, value_ns) if not in_short else ""
    return f"{failures}{name} {show_ns(value_ns)}{bound}{interval}{load}"


def _token_bounds(result: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Returns LoadGen's bounds on token times in an official run of a language task; None for other runs."""
    loadgen = (result.get("tokens") or {}).get("loadgen") or {}
    bounds: Mapping[str, Any] | None = loadgen.get("bounds")
    return bounds


def _of_tokens(loadgen: Mapping[str, Any], bounds: Mapping[str, Any]) -> str:
    """Returns LoadGen's tokens/s, which MLPerf publishes, and its TTFT and TPOT with their bounds."""
    rate, name = loadgen["tokens_per_s"], bounds["percentile"]
    parts = [] if rate is None else [f"{show_rate(rate)} tokens/s"]
    for key, time in (("ttft_ns", "TTFT"), ("tpot_ns", "TPOT")):
        if loadgen[key] is None:
            parts.append(f"{time} not measured")
        else:
            value_ns = loadgen[key][name]
            parts.append(f"{time} {name} {show_ns(value_ns)}{beside(value_ns, bounds[key])}")
    return ", ".join(parts)


def _token_slos(result: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Returns the judged SLOs on token times; empty without such an SLO."""
    judged = (result.get("goodput") or {}).get("slos") or ()
    return [one for one in judged if parse_slo(one["slo"]).of]


def _time_name(slo: str) -> str:
    """Returns the name of the time that an SLO bounds: `p99`, or `TTFT p99` for a token time."""
    of, _, percentile = parse_slo(slo).name.rpartition(":")
    return f"{of.upper()} {percentile}".strip()


def _token_time(one: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """Returns a token time with its bound. one: an SLO in `goodput` of result.json."""
    slo, value_ns = parse_slo(one["slo"]), one["value_ns"]
    name = _time_name(one["slo"])
    if one["of"] == one.get("unknown", 0):
        return f"{name} not measured"
    if value_ns is None:  # the time between tokens, for which only late tokens are counted
        return f"{name} {'within' if one['met'] else 'above'} the {_bound(slo)} allowed"
    # An answer that failed is late, although the percentile leaves it out.
    missed = "" if one["met"] or value_ns > slo.bound_ns else ", missed"
    text = beside(value_ns, slo.bound_ns, is_proven=not _is_unproven(result))
    return f"{name} {show_ns(value_ns)}{text}{missed}"


def beside_slo(result: Mapping[str, Any], name: str, value_ns: float, slo: Slo) -> str:
    """Returns the text that compares the percentile `name` with its bound. Adds LoadGen's estimate if the estimate
    exceeds the bound but the measured percentile does not.
    """
    estimate = result.get("headline") or {}
    is_estimate = estimate.get("name") == f"{name} latency, early-stopping estimate"
    if is_estimate and value_ns <= slo.bound_ns < estimate["value"]:
        margin = f"{show_ns(estimate['value'])} with LoadGen's margin"
        return f" measured, {margin}{beside(estimate['value'], slo.bound_ns)}"
    judged = [one["late"] for one in (result.get("goodput") or {}).get("slos") or ()]
    late = (result.get("queries") or {}).get("late") or (judged[0] if len(judged) == 1 else None)
    is_hopeless = any(reason["code"] == HOPELESS for reason in result["reasons"])
    if is_hopeless and late is not None and value_ns <= slo.bound_ns:
        above = counted(late, "query", "queries")
        return f" when the run was ended, with {above} above the {_bound(slo)} allowed"
    return beside(value_ns, slo.bound_ns, is_proven=not _is_unproven(result))


def _is_unproven(result: Mapping[str, Any]) -> bool:
    codes = {entry["code"] for entry in result["reasons"]}
    return "early-stopping" in codes or (bool(codes) and _few_samples(result) is not None)


def _few_samples(result: Mapping[str, Any]) -> str | None:
    """Returns the text that states how many queries the percentile needs; None if there were enough."""
    return next((one["text"] for one in result["doubts"] if one["code"] == "few-samples"), None)


def beside(value_ns: float, bound_ns: int, *, is_proven: bool = True) -> str:
    """Returns the bound to print after a time, as the end of a sentence: ` of 50 ms allowed`, `, above the 50 ms
    allowed`.
    """
    bound = show_duration(bound_ns)
    if value_ns > bound_ns:
        return f", above the {bound} allowed"
    return f" of {bound} allowed" if is_proven else f", not proven to be within {bound}"


def _bound(slo: Slo) -> str:
    return show_duration(slo.bound_ns)


def interval_of(result: Mapping[str, Any], name: str, value_ns: float) -> str:
    """Returns the interval in brackets, or why the interval is missing. An overloaded system's latency grows with the
    length of the run, so such a latency has no interval.
    """
    if not kept_up(result):
        return ""
    intervals = result.get("latency_intervals_ns") or {}
    one = intervals.get(name, {})
    if times_longer(one):
        if result["verdict"] == "INVALID":  # whose next step is to mend the reason
            return ""
        times = longest_needed(intervals, name)
        length_s = (result.get("queries") or {}).get("took_s")
        if length_s and times * length_s > _LONGEST_S:
            return " (no 95 % interval: --config thorough gives one)"
        return f" (no 95 % interval: run for at least {show_longer(times, length_s)})"
    low, high = one.get("block_interval", (None, None))
    span = show_span(low, high)
    holds = (low is None or low <= value_ns) and (high is None or value_ns <= high)
    return f" ({show_percent(intervals['level'])}: {span})" if span and holds else ""


def times_longer(interval: Mapping[str, Any]) -> int:
    """Returns how many times longer a run must be to get the interval; 0 if the percentile already has an interval.

    interval: a percentile's entry in `latency_intervals_ns` of result.json.
    """
    found = _TIMES.search(interval.get("block_interval_reason") or "")
    return int(found[1].replace(",", "")) if found else 0


_TIMES = re.compile(r"run ([\d,]+) times as long")


def longest_needed(intervals: Mapping[str, Any], name: str) -> int:
    """Returns how many times as long a run must be to get an interval for this percentile. A higher percentile needs at
    least as long a run as a lower one, even if the estimates say otherwise.
    """
    lower = [other for other in PERCENTILES if PERCENTILES[other] <= PERCENTILES[name]]
    return max(times_longer(intervals.get(other, {})) for other in lower)


def show_longer(times: int, length_s: float | None) -> str:
    """Returns the length of a run that is `times` as long as the finished run. length_s: length of the finished run;
    None if unknown.
    """
    return show_wait(times * length_s) if length_s else f"{times:,} times this length"


def _without_percentile(result: Mapping[str, Any], slo: Slo | None) -> str:
    """Returns a text for a run whose log lacks the percentile: the number of late queries, an early-stopping estimate
    or the p99.
    """
    queries, headline = result.get("queries") or {}, result.get("headline") or {}
    late, samples = queries.get("late"), queries.get("samples_answered")
    if slo is not None and late is not None and samples:
        count = queries["counted_by_loadgen"] or samples // queries["samples_per_query"]
        return (
            f"{late:,} of {count:,} queries ({late / max(count, 1) * 100:.3g} %) took more than {_bound(slo)} "
            f"(p{slo.percentile * 100:.10g} allows {(1 - slo.percentile) * 100:.4g} %)"
        )
    if headline.get("unit") == "ns":
        return f"{headline['name']} {show_ns(headline['value'])}"
    return f"p99 {show_ns(result['latency_ns']['p99'])}"


def kept_up(result: Mapping[str, Any]) -> bool:
    """Returns whether the system sustained the offered rate."""
    return completes(result.get("throughput_per_s"), in_sessions=bool(result.get("sessions")))


def _completed(result: Mapping[str, Any]) -> str:
    """Returns the completed rate if it is far below the offered rate, as the end of a sentence; otherwise ''."""
    if kept_up(result):
        return ""
    completed = result["throughput_per_s"]["completed"]
    return f", but only {show_rate(completed)}/s completed{included(result)}"


def _load(result: Mapping[str, Any], scenario: Scenario, *, in_short: bool = False) -> str:
    """Returns the load at which the latency was measured, as the end of a sentence: ` at 20,000 queries/s`."""
    rates, arrivals = result.get("throughput_per_s") or {}, result.get("arrivals") or {}
    if not scenario.scheduled:
        samples = (result.get("queries") or {}).get("samples_per_query", 1)
        return f", one query{f' of {samples} samples' if samples > 1 else ''} at a time"
    asked, completed = rates.get("asked"), rates.get("completed")
    in_sessions = bool(result.get("sessions"))
    if asked is not None and not in_sessions:
        is_chosen = not in_short and _harness_chose_rate(result, scenario)
        chosen = " (a demonstration rate)" if is_chosen else ""
        return f" at {show_rate(asked)} queries/s{chosen}"
    rate = f" at {show_rate(completed)} queries/s" if completed else ""
    if streams := arrivals.get("streams"):
        return f"{rate} from {counted(streams, 'stream')}"
    in_flight = arrivals.get("concurrency")
    if result.get("ramp"):
        return f"{rate}, held after a ramp"
    if in_flight:
        return f"{rate}{_of_rate(result)} with {in_flight:,} in flight{included(result)}"
    how = " in sessions" if in_sessions else ""
    if arrivals and not in_sessions:  # a run that was killed has stored no arrivals
        how = ", replayed from a file" if arrivals.get("schedule_sha256") else " in a ramp"
    return f"{rate}{how}"


def _of_rate(result: Mapping[str, Any]) -> str:
    """Returns the interval of a closed loop's rate, in brackets, if --until sets the interval's width; otherwise ''."""
    until = result["arrivals"].get("until", STEADY)
    if until == STEADY:
        return ""
    rate = ((result.get("steady") or {}).get("series") or {}).get("rate")
    if rate is None:
        return " (no interval)"
    half_width = rate["half_width"]
    wider = f", wider than the {until} asked" if half_width > until_share(until) else ""
    return f" (±{show_percent(half_width, 1)}{wider})"


def included(result: Mapping[str, Any]) -> str:
    """Returns a note that LoadGen counts failed samples as completed; '' if no sample failed."""
    return ", including failed samples" if _failures(result) else ""


def _failed(result: Mapping[str, Any]) -> str:
    """Returns the number of failed samples that LoadGen counts as completed; '' if no sample failed."""
    queries = result.get("queries") or {}
    failed, answered = queries.get("samples_failed"), queries.get("samples_answered")
    return f"{included(result)} ({failed:,} of {answered:,} samples)" if failed else ""


def _failures(result: Mapping[str, Any]) -> str:
    """Returns the number of failed samples as the start of a sentence; '' if no sample failed."""
    queries = result.get("queries") or {}
    failed, answered = queries.get("samples_failed"), queries.get("samples_answered")
    return f"{failed:,} of {answered:,} samples failed: " if failed else ""


def _harness_chose_rate(result: Mapping[str, Any], scenario: Scenario) -> bool:
    """Returns whether this is a Server run that calibrated the machine, and so needed no rate from the user."""
    rates, calibration = result.get("throughput_per_s") or {}, result.get("calibration") or {}
    return scenario.scheduled and bool(rates.get("asked") and calibration.get("rate_per_s"))


def _told_by_numbers(result: Mapping[str, Any]) -> str | None:
    """Returns advice if the run was too short for its percentile, or if no load can meet the bound; otherwise None. An idle
    machine would change neither.
    """
    codes = {reason["code"] for reason in result["reasons"]}
    if codes == {"loadgen-invalid"} and (few := _few_samples(result)):
        return f"Run longer, because {few}."
    slo = leading(parse_slos(result.get("slo") or ""))
    least_ns = (result.get("latency_ns") or {}).get("min") or 0
    if "slo-missed" in codes and slo is not None and not slo.of and least_ns > slo.bound_ns:
        return f"Raise --slo: even the fastest answer took {show_ns(least_ns)}."
    return None


def _other_rate(result: Mapping[str, Any]) -> str | None:
    """Returns advice if the harness chose too high a rate and no disturbance of the machine explains this; otherwise
    None.
    """
    codes = {reason["code"] for reason in result["reasons"]}
    if (
        codes
        and codes <= _OF_RATE
        and _harness_chose_rate(result, scenario_named(result["scenario"]))
        and doubts.disturbance(result["doubts"]) is None
    ):
        return "The harness chose this rate: pass a lower --target-qps, or let the verb peak find the highest one."
    return None


def _next_step(result: Mapping[str, Any]) -> str | None:
    if not _harness_chose_rate(result, scenario_named(result["scenario"])):
        return None
    return "The harness chose the rate: the verb peak finds the highest one within the bound."
