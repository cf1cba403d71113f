"""Prints the tables of `tune` from the content of tune.json."""

import math
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from harness.core.config.parse import parse_slo
from harness.core.console import program
from harness.core.units import counted
from harness.results.compare.change_text import show_factors
from harness.results.pages.tables import Cell, Table, aligned, columns
from harness.run.study import doubt_lines, machine_text
from harness.search.tune.candidates import Aim, Layout
from harness.search.tune.content import Content, FinalistEntry, GainEntry, LayoutEntry, RunEntry
from harness.search.tune.decision import ALIKE_PLANS
from harness.search.tune.screening import NOT_TRIED


def lines(content: Content, folder: Path) -> Iterator[str]:
    words = [content["scenario"], content["backend"], content["model"], content["slo"] or ""]
    yield f"{head(content).upper()}  {'  '.join(words)}".rstrip()
    for table in tables(content):
        yield ""
        yield table.title
        yield from aligned(table.columns, table.rows)
    yield ""
    yield from conclusion(content)
    if content["taken"]:
        file = folder / "tuned.yaml"
        if missed_slo(content):
            yield f"{'closest':<12}{file}: the plan that misses the SLO by least"
        else:
            yield f"{'tuned':<12}{program()} --config {shlex.quote(str(file))}  # a run with this plan"
    yield f"{'results':<12}{folder}"


def head(content: Content) -> str:
    """Returns the first words of the output."""
    if content["taken"] is None:
        return "Not tuned"
    return "SLO missed" if missed_slo(content) else "Tuned"


def tables(content: Content) -> list[Table]:
    """Returns two tables: the layouts that bare loops measured, and the placements that LoadGen judged."""
    return [_layouts(content), _finalists(content)]


def _why(failed: str) -> str:
    return failed if failed.startswith(NOT_TRIED) else f"failed: {failed}"


def _layouts(content: Content) -> Table:
    aim = Aim(**content["predicted"])
    known = [one for one in content["layouts"] if one["best_batch"]]
    best = {name_of(one): one["predicted"][str(one["best_batch"])] for one in known}
    heads = columns(f"instances x threads | batch [count] | {aim.what}, predicted [{aim.unit}] | ")
    rows: list[list[Cell]] = []
    for one in sorted(known, key=lambda one: -aim.gain(best[name_of(one)], 1.0)):
        ended = f"no larger batch: {one['larger_batches']}" if one["larger_batches"] else ""
        rows.append([name_of(one), one["best_batch"], aim.show(best[name_of(one)]), ended])
    rows += [
        [name_of(one), None, None, _why(one["failed"])]
        for one in content["layouts"]
        if one["failed"]
    ]
    return Table("layouts", "Layouts, predicted from bare loops", "", heads, rows)


def name_of(one: LayoutEntry) -> str:
    return str(Layout(one["instances"], one["threads"], tuple(one["options"].items())))


def _finalists(content: Content) -> Table:
    aim, predicted = Aim(**content["judged"]), Aim(**content["predicted"])
    heads = columns(
        f"plan | {aim.what} [{aim.unit}] | rounds [count] | against the best [ratio]"
        f"| {predicted.what}, predicted [{predicted.unit}] | "
    )
    rows: list[list[Cell]] = []
    missed, rival = missed_slo(content), _rival(content)
    # One plan is marked: the plan that the conclusion recommends.
    is_kept = rival is not None and not _is_only_to_meet(content, rival)
    for one in content["finalists"]:
        marks = ["not tuned"] if one["is_default"] else []
        if is_kept and one["is_default"]:
            marks.append("<- keep")
        if one["plan"] == content["taken"] and is_kept:
            why = "best mean" if one["plan"] == content["best"] else "simpler"
            marks.append(f"{why}, in tuned.yaml")
        elif one["plan"] == content["taken"]:
            marks.append("<- closest" if missed else "<- taken")
        marks += [f"failed: {one['failed']}"] if one["failed"] else []
        made = judged_runs(content, one["plan"])
        if invalid := len(invalid_runs(made)):
            marks.append(f"{invalid} of {len(made)} runs INVALID")
        rows.append(
            [
                one["plan"],
                None if one["mean"] is None else aim.show(one["mean"]),
                len(one["values"]),
                "best" if one["plan"] == content["best"] else against(one["over_best"]),
                predicted.show(one["predicted"]),
                "  ".join(marks),
            ]
        )
    return Table("finalists", "Plans, judged by LoadGen", "", heads, rows)


def against(gain: GainEntry | None) -> str:
    """Formats the factor of a gain with its interval."""
    if gain is None:
        return "-"
    return show_factors(gain["ratio"], gain["low"], gain["high"])


def headline(content: Content) -> str:
    """States the plan to take and its measured number, or that no plan meets the SLO or is shown to be better."""
    if content["taken"] is None:
        return outcome(content)
    missed, default, end = missed_slo(content), _default(content), "a plan is instances x threads"
    if (rival := _rival(content)) is not None:
        return f"{_unproven_text(content, rival)}; {_other_text(content, rival)}; {end}"
    is_default = default is not None and default["plan"] == content["taken"]
    kind = "the closest plan" if missed else "the plan to take"
    if is_default and not missed:
        kind = "which is the plan without tuning"
    return f"{outcome(content)}, {kind}; {end}"


def _rival(content: Content) -> FinalistEntry | None:
    """Returns the plan without tuning if the chosen plan meets the SLO but is not shown to be better; otherwise None."""
    is_open = not missed_slo(content) and is_unproven(content)
    return _default(content) if is_open else None


def _unproven_text(content: Content, default: FinalistEntry) -> str:
    """States that the chosen plan may be no better than the plan without tuning."""
    before = f"{default['plan']}, the plan without tuning"
    if _is_only_to_meet(content, default):
        return f"no plan is shown to be better than {before}"
    return f"keep {before}: no plan is shown to be better"


def _is_only_to_meet(content: Content, default: FinalistEntry) -> bool:
    """Returns whether the mean of the chosen plan meets the SLO, and the mean of the plan without tuning misses it."""
    taken, means = content["taken"], _means(content)
    before = means.get(default["plan"])
    return taken is not None and before is not None and means[taken] <= bound_ns(content) < before


def _number(content: Content, plan: str) -> str:
    aim = Aim(**content["judged"])
    return f"{aim.what} {aim.show(_means(content)[plan])} with {plan}"


def outcome(content: Content) -> str:
    """States the chosen plan and its measured number; without a chosen plan, the best plan so far."""
    aim, means = Aim(**content["judged"]), _means(content)
    if not means:
        why = content.get("ended_early")
        return f"no plan was judged: {why}" if why else "no plan has been judged yet"
    taken = content["taken"]
    plan = taken or max(means, key=lambda one: aim.gain(means[one], 1.0))
    number = _number(content, plan)
    missed = missed_slo(content)
    if (rival := _rival(content)) is not None:
        return f"{_unproven_text(content, rival)}; {_other_text(content, rival)}"
    return ": ".join(filter(None, (missed, "" if taken else "best plan so far", number)))


def is_unproven(content: Content) -> bool:
    """Returns whether the chosen plan may be no better than the plan without tuning."""
    over = content.get("taken_over_default")
    return content["taken"] is not None and over is not None and over["low"] <= 1


def _other_text(content: Content, default: FinalistEntry) -> str:
    """States the number of the chosen plan, and why it was chosen although it is not shown to be better."""
    taken = content["taken"]
    assert taken is not None  # because only a chosen plan has a rival
    number = _number(content, taken)
    if _is_only_to_meet(content, default):
        return f"{number}, whose mean meets {content['slo']}, as the other plan's mean does not"
    why = "best mean" if taken == content["best"] else "simpler and about as good"
    return f"{why}: {number}"


def _default(content: Content) -> FinalistEntry | None:
    return next((one for one in content["finalists"] if one["is_default"]), None)


def missed_slo(content: Content) -> str:
    """States that no plan, or not the chosen plan, meets the SLO that judges plans; "" if the chosen plan meets it."""
    slo, taken, means = content["slo"], content["taken"], _means(content)
    if means and min(means.values()) > bound_ns(content):
        return f"no plan met {slo}"
    missed = taken is not None and means[taken] > bound_ns(content)
    return f"{taken} misses {slo}" if missed else ""


def conclusion(content: Content, *, below_headline: bool = False) -> Iterator[str]:
    """below_headline: whether `headline` precedes, which already states a missed SLO."""
    if not below_headline and (missed := missed_slo(content)):
        rate = " at the rate of the judged runs" if content["rate_per_s"] else ""
        yield f"{'warning':<12}{missed}{rate}"
    if content["taken"] is not None and not missed_slo(content):
        yield f"{'gain':<12}{_gain(content)}"
    if not _is_said_by_gain(content):
        yield _sure(content)
    yield from _warnings(content)
    if text := machine_text(_judged(content)):
        yield (
            f"{'machine':<12}{text}: plans were compared within each round, so their order holds for a "
            "machine as busy as this one; on an idle machine a different plan may be the best"
        )
    yield from doubt_lines(_judged(content), f"{'doubt':<12}")


def _is_said_by_gain(content: Content) -> bool:
    """Returns whether the line `gain` already compares the best plan with the next, which is the plan without tuning."""
    default = _default(content)
    return (
        is_unproven(content)
        and not missed_slo(content)
        and content["taken"] == content["best"]
        and default is not None
        and default["plan"] == content["second"]
    )


def _gain(content: Content) -> str:
    """States how much better the chosen plan is than a plan without tuning."""
    taken, over, aim = content["taken"], content.get("taken_over_default"), Aim(**content["judged"])
    default = _default(content)
    if default is None:
        return "not measured: the plan without tuning was not judged"
    if taken is None or default["plan"] == taken:
        return f"none: {taken} is the plan without tuning"
    if over is None:
        why = default["failed"] or "too few rounds measured both plans"
        return f"not measured for {default['plan']}, the plan without tuning: {why}"
    if is_unproven(content):
        is_only = _is_only_to_meet(content, default)
        gain = content["best_over_second"]
        why = ""
        if _is_said_by_gain(content) and gain is not None:
            why = f": {_why_best(content, taken, default['plan'], gain)}"
        advice = "but only its mean meets the SLO" if is_only else "so keep your present options"
        return (
            f"not shown, {advice}: {taken} is {against(over)} as good as "
            f"{default['plan']}, the plan without tuning ({over['rounds']} rounds){why}"
        )
    number = f"{aim.what} {aim.show(_means(content)[taken])}"
    return f"{taken} ({number}) is {against(over)} as good as {default['plan']}, the plan without tuning"


def _sure(content: Content) -> str:
    taken, best, second = content["taken"], content["best"], content["second"]
    gain = content["best_over_second"]
    if taken is None:
        return _why_none(content)
    if gain is None or best is None or second is None:
        return f"{'sure':<12}{taken}: there was no other plan to compare it with"
    if taken != best:
        return f"{'sure':<12}{best} and {taken} differ by at most {ALIKE_PLANS * 100:g} % (95 % interval): the simpler one is taken"
    if gain["low"] > 1:
        return f"{'sure':<12}{best} is {against(gain)} as good as the next, {second} ({gain['rounds']} rounds)"
    return (
        f"{'sure':<12}no difference seen: {best} is {against(gain)} as good as {second} ({gain['rounds']} rounds); "
        f"{_why_best(content, best, second, gain)}"
    )


def _why_none(content: Content) -> str:
    finalists = content["finalists"]
    if finalists and all(one["failed"] for one in finalists):
        first = finalists[0]
        return f"no plan was chosen: every plan failed; {first['plan']}: {first['failed']}"
    most = max((len(one["values"]) for one in finalists if not one["failed"]), default=0)
    if most < 2:
        timed = sum(bool(one["passes"]) for one in content["layouts"])
        stored = f"; tune.json has the times of {counted(timed, 'layout')}" if timed else ""
        return f"no plan was chosen: the search ended before a plan was judged twice{stored}"
    aim = Aim(**content["judged"])
    full = [one for one in finalists if len(one["values"]) == most and not one["failed"]]
    means = _means(content)
    best = max((one["plan"] for one in full), key=lambda plan: aim.gain(means[plan], 1.0))
    so_far = f"the best plan so far is {best}, {aim.what} {aim.show(means[best])}, {most} rounds"
    return f"no plan was chosen, because the search was stopped: {so_far}"


def _why_best(content: Content, best: str, second: str, over: GainEntry) -> str:
    """States the reason why the best plan is chosen although it is not measurably better than the next plan. over: the
    gain of the best plan over the next.
    """
    means = _means(content)
    if means[best] <= bound_ns(content) < means[second]:
        return f"{best} meets {content['slo']}"
    if content.get("second_is_beaten"):
        return f"no other plan is significantly better than {best}"
    if over["low"] >= 1 - ALIKE_PLANS and over["high"] <= 1 + ALIKE_PLANS:
        return f"their speeds are equal within the limit, and {best} is the simpler plan"
    return f"{best} has the better mean; more --rounds may decide"


def _warnings(content: Content) -> Iterator[str]:
    slo, taken = content["slo"], content["taken"]
    runs = judged_runs(content, taken)
    codes = Counter(code for run in invalid_runs(runs) for code in dict.fromkeys(run["reasons"]))
    missed = codes["slo-missed"]
    if missed and bound_ns(content) == math.inf:
        yield (
            f"{'warning':<12}{slo} was missed in {missed} of {len(runs)} runs of {taken}: Offline "
            "latency grows with the number of samples (--queries)"
        )
    elif codes and not missed_slo(content):
        named = ", ".join(f"{code} {count}" for code, count in codes.items())
        yield (
            f"{'warning':<12}{len(invalid_runs(runs))} of {len(runs)} runs of {taken} are INVALID ({named}), although "
            "its mean is good: run it for longer before you rely on it"
        )


def judged_runs(content: Content, plan: str | None) -> list[RunEntry]:
    """Returns the runs with which LoadGen judged the plan."""
    return [run for run in _judged(content) if run["plan"] == plan]


def invalid_runs(runs: Iterable[RunEntry]) -> list[RunEntry]:
    return [run for run in runs if run["verdict"] != "VALID"]


def _judged(content: Content) -> list[RunEntry]:
    return [run for run in content["runs"] if run["round"] is not None]


def _means(content: Content) -> dict[str, float]:
    """Returns the mean of each judged placement, by placement name."""
    means = ((one["plan"], one["mean"]) for one in content["finalists"])
    return {plan: mean for plan, mean in means if mean is not None}


def bound_ns(content: Content) -> float:
    """Returns the SLO's bound if placements are judged by the SLO's percentile; otherwise returns infinity."""
    if content["slo"] and content["judged"]["unit"] == "ns":
        return parse_slo(content["slo"]).bound_ns
    return math.inf
