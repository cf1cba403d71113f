"""Prints a comparison as a table or JSON."""

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.core.console import CANONICAL, program
from harness.core.units import counted, show_percent, show_wait
from harness.results.compare.change_text import (
    against,
    columns,
    is_as_long,
    row,
    size,
    times,
    times_as_long,
)
from harness.results.compare.comparable import Difference, unstated
from harness.results.compare.compare import BETTER, MIXED, UNDECIDED, WORSE, Change, Comparison
from harness.results.compare.finished import FinishedRun
from harness.results.compare.limits import Judged
from harness.results.compare.noise import machine_of
from harness.results.pages.tables import aligned, show_cell
from harness.results.pages.words import unit_of, words

_KINDS: Mapping[str, str] = {
    "rate": "in rates",
    "tail": "in p95 and above",
    "body": "in other numbers",
}
"""Maps a kind of number to its name in the line about noise."""

_RUNS = 5
"""The suggested command makes this many runs per side if the number of runs needed is unknown."""

_OF_BACKEND = "backend."
_RATIOS = ("change", "low", "high")


def parse_prices(text: str, sides: int) -> list[float]:
    """Parses '1.20/h,0.85/h', the hourly price of each side's machine. Raises ValueError for any other text."""
    matches = [
        re.fullmatch(r"(\d+(?:\.\d+)?)/h", part.strip(), re.ASCII) for part in text.split(",")
    ]
    prices = [float(match[1]) for match in matches if match is not None]
    if len(prices) < len(matches) or not all(prices):
        raise ValueError(f"{text!r}: write a price per hour for each side, e.g. 1.20/h,0.85/h")
    if len(prices) != sides:
        raise ValueError(
            f"{text!r} has {counted(len(prices), 'price')} for {counted(sides, 'side')}: write one for each side"
        )
    return prices


def lines(comparison: Comparison, judged: Sequence[Judged], other: str = "B") -> Iterator[str]:
    """Yields the comparison as lines. other: letter of the second side, because A may be compared with several sides."""
    for name, runs in (("A", comparison.before), (other, comparison.after)):
        yield f"{name:<4}{_side(runs)}"
    yield ""
    heads = columns(other)
    yield from aligned(heads, [row(change) for change in comparison.changes])
    yield ""
    yield from (f"{label:<10}{text}" for label, text in notes(comparison, judged, other, program()))
    broken = ", ".join(one.limit.text for one in judged if one.broken)
    end = f"; broken: --fail-on {broken}" if broken else ""
    yield f"{'verdict':<10}{verdict(comparison, other)}{end}"


def facts(comparison: Comparison, other: str) -> Sequence[tuple[str, str]]:
    """Returns the notes for a page, which shows `reason_rows` and `difference_rows` as tables."""
    return [note for note in notes(comparison, [], other) if note[0] not in ("refused", "differs")]


def notes(
    comparison: Comparison,
    judged: Sequence[Judged],
    other: str = "B",
    called: str = CANONICAL,
) -> Iterator[tuple[str, str]]:
    """Yields (label, text) pairs about the answers, differing settings, noise, limits, and reasons against a ranking.

    called: name of the program in the suggested command.
    """
    if comparison.answers is not None:
        yield "answers", _answers(comparison)
    elif comparison.before[0].result["backend"] != comparison.after[0].result["backend"]:
        yield "answers", "not compared: both sides need an accuracy run (--mode both)"
    yield from _differences(comparison.differences, other)
    yield "noise", f"{comparison.noise.source}: {_margins(comparison)}"
    yield "intervals", _levels(comparison)
    if promised := _promised(comparison, other):
        yield "promise", promised
    if _is_unscored(comparison) and not comparison.refusals:
        yield "accuracy", "not compared: a side has none, so the limits judge only speed"
    yield from (("limit", one.line) for one in judged)
    yield from (("refused", _shortened(refusal.text)) for refusal in comparison.refusals)
    if comparison.verdict == UNDECIDED and not _is_one_run(comparison):
        yield "next", _next(comparison, judged, called)


def _is_one_run(comparison: Comparison) -> bool:
    return comparison.before[0].folder == comparison.after[0].folder


def _levels(comparison: Comparison) -> str:
    own = [f"95 % for {name}" for name in comparison.with_own_level]
    return ", ".join([*own, f"jointly 95 % for all {'others' if own else 'numbers'}"])


def _next(comparison: Comparison, judged: Sequence[Judged], called: str) -> str:
    """Returns the command for the runs that would decide the comparison."""
    runs = comparison.runs_needed or max(_RUNS, len(comparison.before))
    sides = (comparison.before, comparison.after)
    folders = " ".join(shlex.quote(str(side[0].folder)) for side in sides)
    command = f"{called} rerun {folders} --repeats {runs}"
    command += " --optimised" if comparison.optimised else ""
    command += "".join(f" --fail-on {shlex.quote(one.limit.text)}" for one in judged)
    took_s = [(side[0].result.get("queries") or {}).get("took_s") or 0.0 for side in sides]
    note = f"more than {show_wait(runs * sum(took_s))}" if all(took_s) else ""
    if comparison.noise.between and comparison.runs_needed is None:
        note += f"{note and ', '}on a quieter machine: this noise hides a change of this size"
    return f"{command}  # {note}" if note else command


_PEAKS = {
    "flops_per_s": ("fp32 peak", "FLOP/s"),
    "int8_per_s": ("int8 peak", "FLOP/s"),
    "bytes_per_s": ("copies", "B/s"),
}


def _promised(comparison: Comparison, other: str) -> str:
    """Returns the peaks of both machines if `machine` has measured both; '' if both sides ran on one machine."""
    one, two = comparison.before[0], comparison.after[0]
    if machine_of(one.environment) == machine_of(two.environment):
        return ""
    parts = [
        f"{name} {show_cell(ours, unit)} and {show_cell(theirs, unit)}: {theirs / ours:.2f} times"
        for key, (name, unit) in _PEAKS.items()
        if (ours := one.peaks.get(key)) and (theirs := two.peaks.get(key))
    ]
    if not parts:
        return ""
    headline = comparison.headline
    got = (
        f"; the runs' {headline.name}: {headline.after / headline.before:.2f} times"
        if headline
        else ""
    )
    return f"`machine` of A and {other}, all cores: {', '.join(parts)}{got}"


def _differences(differences: Sequence[Difference], other: str) -> Iterator[tuple[str, str]]:
    """Yields one entry per difference. Settings that only one of the two backends reports are combined into one entry
    per side.
    """
    alone: dict[str, list[str]] = {"A": [], other: []}
    for one in differences:
        if one.name == "doubts":
            words = ((one.before, "only A"), (one.after, f"only {other}"))
            named = ((codes.replace(" ", ", "), who) for codes, who in words if codes != "-")
            yield "doubts", "; ".join(f"{who}: {codes}" for codes, who in named)
        elif one.name.startswith(_OF_BACKEND) and "-" in one[1:]:
            name = one.name.removeprefix(_OF_BACKEND)
            if one.after == "-":
                alone["A"].append(f"{name}={_shortened(one.before)}")
            else:
                alone[other].append(f"{name}={_shortened(one.after)}")
        else:
            yield "differs", f"{one.name}: {_shortened(one.before)} -> {_shortened(one.after)}"
    for side, settings in alone.items():
        if settings:
            yield "differs", f"backend, only {side}: {', '.join(settings)}"


def _shortened(text: str) -> str:
    """Shortens SHA-256 digests to twelve characters, and commits to the seven that git shows."""
    text = re.sub(r"\b([0-9a-f]{12})[0-9a-f]{52}\b", r"\1…", text)
    return re.sub(r"\b([0-9a-f]{7})[0-9a-f]{33}\b", r"\1", text)


def reason_rows(comparison: Comparison) -> Sequence[tuple[str, str, str, str]]:
    """Returns (what, first side, second side, remedy) for each reason against a ranking. Several INVALID runs share a
    row.
    """
    rows = (
        (one.what, _shortened(one.before), _shortened(one.after), one.remedy)
        for one in comparison.refusals
    )
    return list(dict.fromkeys(rows))


def difference_rows(comparison: Comparison) -> Sequence[tuple[str, str, str]]:
    """Returns (setting, first side, second side) in words for each difference that is not a reason against a ranking."""
    found = unstated(comparison.differences, comparison.refusals)
    return [
        (words(one.name), _shown(one.name, one.before), _shown(one.name, one.after))
        for one in found
        if one.name != "doubts"
    ]


def _shown(name: str, value: str) -> str:
    """Returns the value with the unit that `words` removes from the name. All digits stay, because rounded values may
    look equal.
    """
    text, unit = _shortened(value), unit_of(name.rpartition(".")[2])
    return f"{text} {unit}" if unit and text != "-" else text


def verdict(comparison: Comparison, other: str = "B") -> str:
    """Returns the verdict in one sentence, with the second side's main number relative to the first side's and the
    certainty of the result.

    Adds other numbers that contradict or replace the main number's verdict, and the accuracy that an optimised side
    lost.
    """
    headline = comparison.headline
    if comparison.refusals:
        return "not comparable: nothing is ranked"
    if _is_one_run(comparison):
        return f"{UNDECIDED}: both sides are the same run"
    if headline is None:
        return "none: the number of the scenario was not measured on both sides"
    says_less = headline.verdict not in (BETTER, WORSE)
    more = [
        f"{change.name} {against(change)}"
        for change in comparison.changes
        if change.verdict in (BETTER, WORSE) and change is not headline and change.is_whole
        if says_less or change.verdict != headline.verdict or change is comparison.accuracy
        if not (comparison.optimised and change is comparison.accuracy)
    ]
    who = _named(comparison, other)
    parts = [f"{comparison.verdict}: {who} {_judgement(comparison, headline)}"]
    if comparison.missing is not None:
        slo = comparison.before[0].result["slo"]
        misses, meets = (who, "A") if comparison.missing is comparison.after else ("A", who)
        parts = [
            f"{comparison.verdict}: {misses} misses the SLO {slo}, which {meets} meets",
            f"{other} {_judgement(comparison, headline)}",
        ]
    if more:
        word = "but" if comparison.verdict == MIXED or says_less else "and"
        parts.append(f"{word} {', '.join(more)}")
    if comparison.optimised:
        parts.append(_paid(comparison.accuracy))
    return "; ".join(parts)


def _is_unscored(comparison: Comparison) -> bool:
    """Returns whether a faster version of the model is compared without its accuracy."""
    return comparison.optimised and comparison.accuracy is None


def _paid(accuracy: Change | None) -> str:
    if accuracy is None:
        return "the accuracy was not compared"
    before, after = (f"{value:.6g}" for value in (accuracy.before, accuracy.after))
    if before == after:
        return f"the accuracy stays at {after} {accuracy.unit}".rstrip()
    return f"the accuracy goes from {before} to {after} {accuracy.unit}".rstrip()


def _judgement(comparison: Comparison, headline: Change) -> str:
    """Returns the part of `verdict`'s sentence that compares the second side's main number with the first side's."""
    name = headline.name
    if name == "accuracy":
        return f"has an accuracy of {size(headline)} against A"
    if not headline.has_ratio:
        return f"cannot be compared with A at {name}, which is 0 on one side"
    if headline.verdict not in (BETTER, WORSE, UNDECIDED):
        return f"is as fast as A at {name}: {times(headline)}"
    speed = f"is {times(headline)} as fast as A at {name}"
    if is_as_long(headline):
        speed = f"takes {times_as_long(headline)} as long as A at {name}"
    if headline.verdict != UNDECIDED:
        return speed
    is_open = comparison.verdict == UNDECIDED
    return f"{speed}; {_would_do(comparison)}" if is_open else f"{speed}, which is undecided"


def _would_do(comparison: Comparison) -> str:
    if comparison.runs_needed is not None:
        return f"{comparison.runs_needed} runs per side, in turns, would decide"
    if comparison.noise.between:
        return "the noise hides a change of this size"
    return f"{_RUNS} runs per side, in turns, may decide"


def _named(comparison: Comparison, other: str) -> str:
    """Returns the second side's letter, followed by its backend or model if that differs from the first side's."""
    ours, theirs = (side[0].result for side in (comparison.before, comparison.after))
    own = [theirs[key] for key in ("backend", "model") if theirs[key] != ours[key]]
    return f"{other} ({', '.join(own)})" if own else other


def to_json(comparison: Comparison, judged: Sequence[Judged]) -> Mapping[str, Any]:
    """Returns the comparison as JSON objects. Changes, intervals and noise are shares: 0.05 means 5 % more than on the
    first side. If a number's noise is null, changes in this number are not judged.
    """
    headline = comparison.headline
    return {
        "a": [str(run.folder) for run in comparison.before],
        "b": [str(run.folder) for run in comparison.after],
        "verdict": comparison.verdict,
        "headline": headline.name if headline else None,
        "refusals": [refusal.text for refusal in comparison.refusals],
        "noise_source": comparison.noise.source,
        "runs_needed": comparison.runs_needed,
        "optimised": comparison.optimised,
        "missing_slo": None
        if comparison.missing is None
        else [str(run.folder) for run in comparison.missing],
        "changes": {
            change.name: {
                k: v if (change.has_ratio or k not in _RATIOS) and v != math.inf else None
                for k, v in change._asdict().items()
                if k not in ("name", "is_scheduled")
            }
            for change in comparison.changes
        },
        "differences": [one._asdict() for one in comparison.differences],
        "answers": comparison.answers._asdict() if comparison.answers else None,
        "limits": [
            {"limit": one.limit.text, "broken": one.broken, "text": one.line} for one in judged
        ],
    }


def _side(runs: Sequence[FinishedRun]) -> str:
    result = runs[0].result
    about = f"{result['scenario']} {result['backend']} {result['model']}"
    if len(runs) == 1:
        return f"{runs[0].folder}  ({about})"
    parents = {run.folder.parent for run in runs}
    if len(parents) == 1:
        names = ", ".join(run.folder.name for run in runs)
        return f"{len(runs)} runs in {parents.pop()}: {names}  ({about})"
    return f"{len(runs)} runs: {', '.join(str(run.folder) for run in runs)}  ({about})"


def _answers(comparison: Comparison) -> str:
    same = comparison.answers
    assert same is not None
    distance = ""
    if same.l2 is not None:
        relative = f" ({same.relative_l2:.3g} of their length)" if same.relative_l2 else ""
        distance = f", mean L2 distance {same.l2:.3g}{relative}"
    return (
        f"top-1 agreement on {show_percent(same.top1, 2)} of {same.samples:,} samples, {same.identical:,} "
        f"identical{distance}"
    )


def _margins(comparison: Comparison) -> str:
    """Returns the smallest change that gets a verdict for each kind of number."""
    noise = comparison.noise
    if math.isinf(noise.smallest["rate"]):
        return "nothing is judged"
    margins = {
        kind: f"{share * 100:.3g} %" if share < 1 else f"a factor of {1 + share:.3g}"
        for kind, share in noise.smallest.items()
    }
    if len(set(margins.values())) == 1:
        text = margins["rate"]
    else:
        text = ", ".join(f"{margins[kind]} {words}" for kind, words in _KINDS.items())
    return f"a change of less than {text} {'does not count as a difference' if noise.is_given else 'is not judged'}"
