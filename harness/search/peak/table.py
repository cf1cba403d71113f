"""Prints a search: a line when each run ends, and a table from peak.json at the end."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.core.codes import CLIENT_BOUND, HOPELESS, INTERRUPTED
from harness.core.config.parse import Slo, parse_slos, searched
from harness.core.units import NS_PER_S, counted, show_ns, show_percent, show_rate
from harness.results.evidence.stages import reported_percentile
from harness.results.pages.tables import Cell, Table, aligned, columns
from harness.results.slos.shown import has_several, met_text
from harness.results.steady.shown import NOT_STEADY
from harness.run.study import NOT_AT_REST, machine_text, shared_doubts, shared_lines
from harness.search import token_times
from harness.search.peak.content import Content, Probe
from harness.search.peak.search import PROBE_TOLERANCE, RUNS

IDLE_SHARE = 0.25
"""Instances that are busy for less than this share of the time count as idle, because they could handle four
times the rate. If the model limits the peak, the instances are busy for 50 % to 90 % of the time on two cores, because
handing out queries takes the rest.
"""

FAR_BELOW = 10
"""If the bound is more than this multiple of the median latency, queries hardly wait for each other."""

SHORTFALL = 0.02
"""If the completed rate is lower than the offered rate by at least this share, a queue remained at the end. The search
does not resolve smaller differences.
"""

MOST_LOADS = 2
"""The conclusion lists at most this many loads at which shorter runs failed."""

OTHER_RATE = 0.01
"""The offered rate is printed next to a peak if it differs from the requested rate by at least this share."""

_UNREST = f"the machine was {NOT_AT_REST}"
"""Beginning of the warning about the machine. It is also the beginning in peak.json of earlier versions."""

_SHOWN_KIND = {"probe": "short"}
"""Kinds of run that are shown under a different name than in peak.json, because `probe` is also a verb."""


def warnings(content: Content) -> Iterator[str]:
    """Yields warnings about the rate, or about a search that found no rate. content: the content of peak.json."""
    if content["peak"] is None:
        text = machine_text(content["probes"], _UNREST)
        has_failed = any(probe["passed"] is False for probe in content["probes"])
        if text and has_failed and not content.get("fastest_ns"):
            yield f"{text}: stop other programs and search again, because a load may pass without them"
        return
    run = confirming_run(content)
    if _is_idle(run, content):
        yield _idle_text(run, content)
    yield from _unrest(run, content)
    yield from _unsustained(run, content)
    yield from _cut_short(content)
    bound = [p["load"] or 0.0 for p in content["probes"] if p["ended"] == CLIENT_BOUND]
    if bound and max(bound) > content["peak"]:
        yield (
            f"the client was the limit at {show_rate(max(bound))} {content['unit']} ({CLIENT_BOUND}): the server may "
            "sustain more than the peak"
        )


def confirming_run(content: Content) -> Probe:
    """Returns the entry in `probes` for the full run that determines the peak. Raises ValueError without such a run."""
    runs = (p for p in content["probes"] if p["kind"] == "full" and p["passed"])
    found = next((run for run in runs if run["load"] == content["peak"]), None)
    if found is None:
        raise ValueError("no full run passed at its peak")
    return found


def _searched(slos: str) -> Slo:
    """Returns the SLO that the search used. slos: as in peak.json; at least one."""
    slo = searched(parse_slos(slos))
    assert slo is not None
    return slo


def is_idle(busy_share: float | None, p50_ns: float | None, bound_ns: int) -> bool:
    """Returns whether runs at this load or above miss the SLO because of isolated delays in the machine rather than
    because of the model.

    The evidence is that the instances were partly idle and that queries hardly waited for each other.
    """
    if busy_share is None or p50_ns is None:
        return False
    return busy_share < IDLE_SHARE and p50_ns * FAR_BELOW < bound_ns


def _is_idle(run: Probe, content: Content) -> bool:
    p50_ns = (run["latency_ns"] or {}).get("p50")
    return is_idle(run.get("busy_share"), p50_ns, _searched(content["slo"]).bound_ns)


def out_of_reach(slo: str, fastest_ns: float) -> str:
    """States the reason why no load meets the SLO, and what the user can do. fastest_ns: latency of the fastest answer,
    which exceeds the bound.
    """
    bound_ns = _searched(slo).bound_ns
    return (
        f"no load meets {slo}, because the fastest answer took {show_ns(fastest_ns)} and the bound is "
        f"{show_ns(bound_ns)}: raise --slo"
    )


def _idle_text(run: Probe, content: Content) -> str:
    share = run["busy_share"]
    assert share is not None  # because the run is idle
    p50_ns, bound_ns = (run["latency_ns"] or {})["p50"], _searched(content["slo"]).bound_ns
    p50, bound, able = (
        show_ns(p50_ns),
        show_ns(bound_ns),
        show_rate(_model_per_s(run, content, share)),
    )
    return (
        f"this is not the model's peak: its instances computed for {share * 100:.0f} % of "
        f"the time, with {run['mean_batch']:.1f} samples per batch and a p50 of {p50}, far below the bound "
        f"of {bound}; isolated delays made the runs above it fail, and the model alone could answer about "
        f"{able} {content['unit']}"
    )


def _offered_per_s(run: Probe, content: Content) -> float | None:
    """Returns the offered rate in queries/s; None if the search is for a count. With --streams, the offered rate counts
    frames, which must not be compared with a number of streams.
    """
    offered: float | None = run["scheduled_per_s"]
    return offered if is_rate(content["unit"]) else None


def _model_per_s(run: Probe, content: Content, busy_share: float) -> float:
    """Returns the load that the model alone could handle, from the bare loops or, if they are missing, from the
    instances' idle time.
    """
    loops_per_s = run.get("model_per_s") if _offered_per_s(run, content) is not None else None
    return loops_per_s or _peak(content) / busy_share


def _peak(content: Content) -> float:
    """Returns the peak of a search that found one."""
    peak = content["peak"]
    assert peak is not None
    return peak


def _unrest(run: Probe, content: Content) -> Iterator[str]:
    """Yields a warning if there is a doubt about the machine for the run at the peak or for the run that bounds the
    peak.
    """
    probes = content["probes"]
    near = [run, *(probe for probe in probes if probe["load"] == content["failed_above"])]
    if machine_text(near):
        yield (
            f"{machine_text(probes, _UNREST)}: stop other programs and search again, because a higher load may pass "
            "without them"
        )
        yield from _model_text(run, content)


def _model_text(run: Probe, content: Content) -> Iterator[str]:
    """Yields the peak as a share of the model's rate, unless the model's rate is unknown or `_idle_text` reports it."""
    model = run.get("model_per_s") if _offered_per_s(run, content) is not None else None
    if model and not _is_idle(run, content):
        yield (
            f"the peak is {show_percent(_peak(content) / model)} of the model's own rate: without LoadGen it "
            f"answered {show_rate(model)} queries/s"
        )


def _cut_short(content: Content) -> Iterator[str]:
    """Yields a warning if all runs were used before a load near the peak failed."""
    peak, above, made = _peak(content), content["failed_above"], len(content["probes"])
    if made < RUNS or (above is not None and above <= (1 + PROBE_TOLERANCE) * peak):
        return
    again = f" with --target-qps {peak:g}" if is_rate(content["unit"]) else ""
    yield (
        f"the search ended after {made} runs, before a load within {show_percent(PROBE_TOLERANCE)} above the peak failed, so "
        f"a higher load may pass: search again{again}"
    )


def _unsustained(run: Probe, content: Content) -> Iterator[str]:
    """Yields a warning if the system cannot sustain the peak.

    A run stays VALID as long as its growing queue stays within the bound. A run of D seconds can pass at up to 1 +
    bound / D times the capacity, because it completes the backlog after its last arrival.
    """
    offered, completed = run["scheduled_per_s"], run["completed_per_s"]
    if not offered or completed is None or completed >= (1 - SHORTFALL) * offered:
        return
    bound_ns = _searched(content["slo"]).bound_ns
    short = run["queries"] / offered * NS_PER_S < bound_ns / SHORTFALL
    advice = f", best to {show_ns(bound_ns / SHORTFALL)}" if short else ""
    yield (
        f"{show_rate(completed)} of {show_rate(offered)} offered queries/s were completed, and a queue was "
        f"left at the end, so the sustained rate is lower: lengthen --duration{advice}"
    )


def progress(number: int, probe: Probe, unit: str) -> str:
    kind, load, late = probe["kind"], probe["load"], probe["late"]
    outcome = _outcome(probe["passed"], probe["ended"]) or kind
    at = "" if load is None else f" at {show_rate(load)} {unit}"
    at += ", full" if kind == "full" else ""
    queries = "" if late is None else f", {late:,} of {probe['queries']:,} queries late"
    queries += " when it was ended" if HOPELESS in probe["reasons"] else ""
    return f"run {number}{at}: {outcome}{queries}, {probe['seconds']:.1f} s"


def _outcome(passed: bool | None, ended: str | None) -> str:
    """Returns the outcome in one word; '' for a successful calibration."""
    if ended is not None:
        return "stopped" if ended == INTERRUPTED else ended
    return {None: "", True: "passed", False: "failed"}[passed]


def lines(content: Content, folder: Path) -> Iterator[str]:
    head = (
        ("PEAK" if content["peak"] is not None else "NO PEAK") if content["finished"] else "STOPPED"
    )
    yield f"{head}  {content['scenario']}  {content['backend']}  {content['model']}  {content['slo']}"
    yield ""
    probes = probes_table(content)
    yield from aligned(probes.columns, probes.rows)
    yield ""
    yield from conclusion(content)
    yield f"{'results':<12}{folder}"


def probes_table(content: Content) -> Table:
    """Returns a table with one row per run in the search, in order."""
    unit, probes = content["unit"], content["probes"]
    percentile = reported_percentile(_searched(content["slo"]).percentile)
    has_rate = any(probe["scheduled_per_s"] for probe in probes)
    is_judged = has_several(content["slo"])
    offered = " offered/s [samples/s] |" if has_rate else ""
    heads = columns(
        f"run [count] | | {unit} [samples/s] |{offered} queries [count] | late [count] | p50 [ns]"
        f"| {percentile} [ns]"
    )
    more_heads, more_cells = token_times.columns_of(probes, content["slo"])
    heads += more_heads
    heads += columns(f"{'SLOs met | ' if is_judged else ''}took [s] | | ")
    shared = shared_doubts(probes)
    rows: list[list[Cell]] = []
    for number, probe in enumerate(probes, 1):
        latency_ns = probe["latency_ns"] or {}
        rows.append(
            [
                *(number, _SHOWN_KIND.get(probe["kind"], probe["kind"]), probe["load"]),
                *([probe["scheduled_per_s"]] if has_rate else []),
                *(_queries(probe), _late(probe)),
                *(latency_ns.get("p50"), latency_ns.get(percentile)),
                *more_cells(probe),
                *([met_text(probe)] if is_judged else []),
                *(f"{probe['seconds']:.1f} s", _outcome(probe["passed"], probe["ended"])),
                _doubts_text(probe, shared),
            ]
        )
    return Table("probes", "Runs of the search", "", heads, rows)


def _queries(probe: Probe) -> Cell:
    """Returns the number of queries. If late queries ended the run, returns the number of answered and planned queries."""
    answered, planned = probe.get("answered"), probe["queries"]
    if answered is None or HOPELESS not in probe["reasons"]:
        return planned
    return f"{answered:,} of {planned:,}"


def _late(probe: Probe) -> Cell:
    """Returns the number of late queries. If late queries ended the run, the number is a lower bound."""
    late: int | None = probe["late"]
    return f"≥ {late:,}" if late is not None and HOPELESS in probe["reasons"] else late


def conclusion(content: Content) -> Iterator[str]:
    """Yields the result, the warnings, and the doubts that all runs share."""
    yield from _summary(content)
    yield from shared_lines(content["probes"])


def _doubts_text(probe: Probe, shared: Sequence[str]) -> str:
    """Formats one run's doubts. shared: doubts that all runs share, which are printed below the table."""
    doubts = " ".join(code for code in probe["doubts"] if code not in shared)
    return f"doubts: {doubts}" if doubts else ""


def _steadiness(run: Probe) -> Iterator[str]:
    if run.get("steady") == NOT_STEADY:
        yield f"{'steady':<12}no: the run at this load changed over time, and a longer run may miss the SLO"


def is_of_machine(content: Content) -> bool:
    """Returns whether delays of the machine set the peak, and not the model. content: of a peak.json that contains a
    peak.
    """
    return _is_idle(confirming_run(content), content)


def peak_text(content: Content) -> str:
    """Returns the peak with its unit, and what limited the peak besides the model. content: of a peak.json that
    contains a peak.
    """
    load, run = _peak(content), confirming_run(content)
    peak = f"{show_rate(load)} {content['unit']}"
    offered = _offered_per_s(run, content)
    if offered and abs(offered / load - 1) > OTHER_RATE:
        peak += f" (LoadGen offered {show_rate(offered)})"
    if is_of_machine(content):
        return f"{peak}, set by delays of the machine and not by the model"
    return f"{peak}, on a machine that was not at rest" if any(_unrest(run, content)) else peak


def tried_text(content: Content) -> str:
    """Returns the range in which the peak may lie, for a search in which no full run has passed."""
    probes = [one for one in content.get("probes", ()) if one["load"] is not None]
    passed = [one["load"] or 0.0 for one in probes if one["passed"] is True]
    lost = [(one["load"] or 0.0, one["kind"]) for one in probes if one["passed"] is False]
    failed = [load for load, _ in lost]
    unit = content["unit"] if probes else ""
    parts = [f"short runs passed up to {show_rate(max(passed))} {unit}"] if passed else []
    # A load that passes in a short run may fail at full length.
    is_longer = bool(passed) and (min(failed, default=0.0), "full") in lost
    length = " at full length" if is_longer else ""
    parts += [f"{show_rate(min(failed))} {unit} failed{length}"] if failed else []
    return f"no peak ({'; '.join(parts)})" if parts else "no peak"


def is_rate(unit: str) -> bool:
    """Returns whether a load is a rate, which LoadGen's schedule meets only nearly. Other loads are counts, such as
    streams.
    """
    return unit.endswith("/s")


def _shorter_failed(content: Content, above: float) -> str:
    """Returns the loads below `above`, the lowest failed load, at which shorter runs failed; '' if there are none."""
    probes = [p for p in content["probes"] if p["kind"] == "probe" and p["passed"] is False]
    failed = {p["load"] for p in probes if p["load"] is not None}
    loads = [show_rate(load) for load in sorted(failed) if load < above]
    if not loads:
        return ""
    if len(loads) > MOST_LOADS:
        return f"; {len(loads)} shorter runs failed at {loads[0]} to {loads[-1]}"
    runs = "shorter runs" if len(loads) > 1 else "a shorter run"
    return f"; {runs} failed at {' and '.join(loads)}"


def _full_failed(content: Content) -> str:
    """Returns the highest load up to the peak at which a full run failed, and whether another full run passed there; ''
    if no full run failed there.
    """
    full = [p for p in content["probes"] if p["kind"] == "full" and p["load"] is not None]
    loads = [p["load"] or 0.0 for p in full if p["passed"] is False]
    below = max((load for load in loads if load <= _peak(content)), default=None)
    if below is None:
        return ""
    is_passed = any(p["passed"] and p["load"] == below for p in full)
    return f"; a full run failed at {show_rate(below)}{', and another passed there' if is_passed else ''}"


def _summary(content: Content) -> Iterator[str]:
    unit, above = content["unit"], content["failed_above"]
    if content["peak"] is None:
        fastest_ns = content.get("fastest_ns")
        if fastest_ns is not None:
            yield out_of_reach(content["slo"], fastest_ns)
            yield from _warned(content)
            return
        failed_at = [p["load"] for p in content["probes"] if p["passed"] is False]
        least = min((load for load in failed_at if load is not None), default=None)
        if content["finished"] and least is not None:
            # A warning advises what to do about the machine.
            end = ", on a machine that was not at rest" if content["warnings"] else ": raise --slo"
            yield f"no full run passed, down to {show_rate(least)} {unit}{end}"
            yield from _warned(content)
        elif judged := [p for p in content["probes"] if p["passed"] is not None]:
            failed, made = sum(not p["passed"] for p in judged), counted(len(judged), "run")
            ended = f"{failed} of {made} failed" if failed else f"{made} passed at short length"
            yield f"no peak yet: no full run has passed; {ended}"
            yield from _warned(content)
        return
    run, peak = confirming_run(content), peak_text(content)
    short = " (a short run)" if content["failed_above_kind"] == "probe" else ""
    others = _shorter_failed(content, above) if above is not None else ""
    what = "full run" if others and not short else "load"
    others += _full_failed(content)
    if above is None:
        yield f"{'peak':<12}{peak}: VALID at full length; no load above it failed{others}"
    else:
        yield (
            f"{'peak':<12}{peak}: VALID at full length; the lowest failed {what} above it: "
            f"{show_rate(above)} {unit}{short}{others}"
        )
    yield from _steadiness(run)
    if content["ended_early"] is not None:
        yield f"{'ended early':<12}{content['ended_early']}"
    yield from _warned(content)


def _warned(content: Content) -> Iterator[str]:
    """Yields the warnings with their labels."""
    about_machine = _UNREST.removesuffix(NOT_AT_REST)
    for text in content["warnings"]:
        label = "machine" if text.startswith(_UNREST) else "warning"
        yield f"{label:<12}{text.removeprefix(about_machine)}"
