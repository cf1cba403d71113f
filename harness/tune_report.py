"""The table of `tune`. Everything in it is in tune.json."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.parse import parse_slo
from harness.tune_grid import Aim


def lines(content: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """content: of tune.json."""
    head = "TUNED" if content["taken"] else "NOT TUNED"
    words = [content["scenario"], content["backend"], content["model"], content["slo"] or ""]
    yield f"{head}  {'  '.join(words)}".rstrip()
    yield ""
    yield from _layouts(content)
    yield ""
    yield from _finalists(content)
    yield ""
    yield from said(content)
    if content["taken"]:
        yield f"{'tuned':<12}{folder / 'tuned.yaml'}: a run with it: --config {folder / 'tuned.yaml'}"
    yield f"{'results':<12}{folder}"


def _layouts(content: Mapping[str, Any]) -> Iterator[str]:
    """One line a layout: its best largest batch."""
    aim = Aim(**content["predicted"])
    yield f"{'bare loops: instances x threads':<40}{'batch':>7}{aim.what + ', predicted':>44}"
    known = [one for one in content["layouts"] if one["best_batch"]]
    best = {name_of(one): one["predicted"][str(one["best_batch"])] for one in known}
    for one in sorted(known, key=lambda one: -aim.gain(best[name_of(one)], 1.0)):
        value = aim.show(best[name_of(one)])
        more = f"  no larger batch: {one['larger_batches']}" if one["larger_batches"] else ""
        yield f"{name_of(one):<40}{one['best_batch']:>7}{value:>44}{more}"
    for one in content["layouts"]:
        if one["failed"]:
            yield f"{name_of(one):<40}{'-':>7}  failed: {one['failed']}"


def name_of(one: Mapping[str, Any]) -> str:
    """Of a layout in tune.json."""
    options = [f"{name}={value}" for name, value in one["options"].items()]
    return " ".join([f"{one['instances']} x {one['threads']}", *options])


def _finalists(content: Mapping[str, Any]) -> Iterator[str]:
    aim = Aim(**content["judged"])
    heads = f"{aim.what:>32}{'rounds':>8}{'against the best':>28}"
    yield f"{'LoadGen: plan':<40}{heads}"
    for one in content["finalists"]:
        mean = aim.show(one["mean"]) if one["mean"] is not None else "-"
        marks = "  not tuned" if one["is_default"] else ""
        marks += "  <- taken" if one["plan"] == content["taken"] else ""
        marks += f"  failed: {one['failed']}" if one["failed"] else ""
        told = against(one["over_best"]) if one["plan"] != content["best"] else "best"
        yield f"{one['plan']:<40}{mean:>32}{len(one['values']):>8}{told:>28}{marks}"


def against(gain: Mapping[str, float] | None) -> str:
    """How many times as good, with its interval."""
    if gain is None:
        return "-"
    return f"{gain['ratio']:.3f} [{gain['low']:.3f}, {gain['high']:.3f}]"


def said(content: Mapping[str, Any]) -> Iterator[str]:
    """How sure it is."""
    taken, best, second = content["taken"], content["best"], content["second"]
    gain = content["best_over_second"]
    if taken is None:
        yield "nothing is taken: it was stopped, or no plan was judged twice"
    elif gain is None:
        yield f"{'sure':<12}{taken}: there was no other plan to compare it with"
    elif taken != best:
        why = _why_taken(content, taken)
        yield f"{'sure':<12}no difference seen between {best} and {taken}: the {why} is taken"
    elif gain["low"] > 1:
        yield (
            f"{'sure':<12}{best} is {gain['ratio']:.3f} times as good as the next, {second}: "
            f"95 % interval {gain['low']:.3f} to {gain['high']:.3f}, {gain['rounds']} rounds"
        )
    else:
        yield (
            f"{'sure':<12}no difference seen between {best} and {second} "
            f"(95 % interval {gain['low']:.3f} to {gain['high']:.3f}): {best} is the "
            f"{_why_taken(content, best)}"
        )

    if content["slo"] and content["judged"]["unit"] == "ns":
        means = [one["mean"] for one in content["finalists"] if one["mean"] is not None]
        if means and min(means) > parse_slo(content["slo"]).bound_ns:
            yield f"{'warning':<12}{content['slo']} was met by no plan at the rate they were judged at"


def _why_taken(content: Mapping[str, Any], plan: str) -> str:
    """Of plans that no difference is seen between."""
    is_default = any(one["is_default"] and one["plan"] == plan for one in content["finalists"])
    return "one without tuning" if is_default else "simpler one"
