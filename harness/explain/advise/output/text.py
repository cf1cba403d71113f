"""The text of `advise`. Everything in it is in advise.json."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from harness.core.stats import interval_ranks
from harness.core.units import show_bytes, show_ns, show_percent, show_si
from harness.explain.advise.checks.self_checks import RERUNS
from harness.explain.advise.predict import WITHIN
from harness.models.graph.flops import missing_text

_LAYERS = 12
"""Rows of the table of layers; the file has all."""


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """found: of advise.json."""
    yield f"ADVISE  {found['model']['name']}  {found['runtime']}  {found['now']}"
    yield from _notes(found)
    yield ""
    for one in found["questions"]:
        yield f"{one['question']}  {one['asked']}"
        yield f"    {one['answer']}"
    yield ""
    yield from _advice(found)
    yield ""
    yield from _layers(found["layers"])
    yield ""
    yield from _coverage(found)
    for name, told in _PARTS.items():
        yield ""
        part = found["parts"].get(name, {"failed": "not measured"})
        failed = part.get("failed") if isinstance(part, Mapping) else None
        yield from ([f"{name}: no data: {failed}"] if failed else told(part))


def _notes(found: Mapping[str, Any]) -> Iterator[str]:
    measured = found["measured"]
    cpu = f", on a core {show_ns(measured['cpu_ns'])}" if measured["wall_over_cpu"] else ""
    yield (
        f"  measured    {show_ns(measured['wall_ns'])} at least, "
        f"{show_ns(measured['median_wall_ns'])} in the median{cpu}; batch {found['batch']}"
    )
    if found["stopped"]:
        yield "  doubt       stopped by Ctrl-C: what follows is of what had been measured by then"
    if measured["contended"]:
        yield (
            f"  doubt       contended: a call takes {measured['wall_over_cpu']:.2f} times its CPU "
            "time, others had the cores, too; CPU time is what is compared"
        )
    if found["lower_bound"]["why_none"]:
        yield (
            "  doubt       the layers alone take longer than the model: "
            f"{found['lower_bound']['why_none']}; rank, do not quote"
        )
    if broken := (found["accuracy"] or {}).get("broken"):
        yield f"  doubt       int8 breaks this model: {broken}; its speed says nothing"
    if found["model"]["has_random_weights"]:
        yield "  note        random weights: speed says something, answers say nothing"
    elsewhere = found["counted"]["elsewhere"]
    if elsewhere:
        yield (
            f"  note        the database has {elsewhere:,} measurements of these layers from "
            "another machine or version: not used, measured here anew"
        )


def _advice(found: Mapping[str, Any]) -> Iterator[str]:
    wide = max([len(one["change"]) for one in found["advice"]], default=len("advice")) + 2
    yield f"{'advice':<{wide + 2}}{'of':<10}{'now':>10}{'predicted':>11}{'gain':>8}{'realised':>10}{'95 %':>17}  {'measured':<11}as predicted"
    for one in found["advice"]:
        mark = "* " if found["top"] and one["setting"] == found["top"]["setting"] else "  "
        realised = one["realised"]
        yield (
            f"{mark}{one['change']:<{wide}}{one['question']:<10}{show_ns(one['now_ns']):>10}"
            f"{show_ns(one['predicted_ns']):>11}{show_percent(one['gain'], 1, signed=True):>8}"
            f"{_share(realised):>10}{_span(realised):>17}  "
            f"{one['verdict'] or '-':<11}{_within(one)}"
        )
        if one["needs"]:
            yield f"      decide first: {one['needs']}"
    yield f"as predicted: the realised gain is within {show_percent(WITHIN)} of the predicted one"
    if found["top"]:
        yield f"* {_OUTCOMES[found['top']['verdict']]}"
    else:
        yield _STOPPED if found["stopped"] else _NOTHING


_OUTCOMES = {
    "faster": "the top advice: it was applied, measured, and is faster: take it",
    "slower": "the top advice by prediction: it was applied, measured, and is slower: leave it",
    "undecided": "the top advice by prediction: the pairs cannot tell whether it is: --pairs 21",
    "": "the top advice by prediction: it could not be measured",
}
_STOPPED = "stopped before a setting was found that is predicted to gain 2 %"
_NOTHING = "no setting is predicted to gain 2 %: leave it as it is"


def _share(realised: Mapping[str, Any] | None) -> str:
    return "-" if realised is None else show_percent(realised["gain"], 1, signed=True)


def _span(realised: Mapping[str, Any] | None) -> str:
    """Of the gain, from that of the ratio."""
    if realised is None or realised["low"] is None or realised["high"] is None:
        return "-"
    return " ".join(show_percent(1 - 1 / realised[e], 1, signed=True) for e in ("low", "high"))


def _within(one: Mapping[str, Any]) -> str:
    told = {True: "yes", False: "no", None: "-"}[one["within"]]
    return f"{told} ({one['clock']} time)"


def _layers(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield f"{'layers':<32}{'makes':<24}{'times':>6}{'now':>10}{'best':>10}{'under':>10}{'gain':>10}{'MACs':>9}{'GFLOP/s':>9}"
    for row in rows[:_LAYERS]:
        now = row["now_ns"]
        rate = f"{row['flops'] / now:.1f}" if now and row["flops"] else "-"
        yield (
            f"{row['ops'][:31]:<32}{row['makes'][:23]:<24}{row['count']:>6}{_ns(now):>10}{show_ns(row['best_ns']):>10}"
            f"{row['best'] or '-':>10}{_ns(row['gain_ns']):>10}{show_si(row['macs'], '') if row['macs'] else '-':>9}"
            f"{rate:>9}"
        )
    if len(rows) > _LAYERS:
        yield f"... and {len(rows) - _LAYERS} more, in advise.json"


def _ns(ns: float | None) -> str:
    return "-" if ns is None else show_ns(ns)


def _coverage(found: Mapping[str, Any]) -> Iterator[str]:
    work, covered, counted = found["work"], found["coverage"], found["counted"]
    yield (
        f"work        {_count(work['macs'])}MACs, {_count(work['flops'])}FLOPs, "
        f"{show_bytes(work['weight_bytes'])} of weights, {show_bytes(work['input_bytes'])} read, "
        f"{show_bytes(work['output_bytes'])} written; {work['gflops_per_s']:.1f} GFLOP/s"
    )
    time = covered["work_time"]
    yield (
        f"coverage    work known of {show_percent(covered['work_nodes'], 1)} of the nodes and "
        f"{'-' if time is None else show_percent(time, 1)} of the kernels' time; layers measured alone "
        f"take {show_percent(covered['layers_time'], 1)} of it "
        f"({covered['layers_alone']} of {covered['layers']})"
    )
    yield from (f"            {line}" for line in missing_text(covered["work_missing"]))
    if covered["layers_missing"]:
        names = ", ".join(f"{count} {op}" for op, count in covered["layers_missing"].items())
        yield f"            not measured alone: {names}"
    yield from (f"            because: {why}" for why in covered["why_missing"])
    yield (
        f"database    {counted['ran']:,} measurements made, {counted['found']:,} taken from earlier "
        "ones"
    )


def _count(number: float) -> str:
    """Four digits and a prefix: 3857973248 -> '3.858 G'."""
    for prefix, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.4g} {prefix}"
    return f"{number:,.0f} "


def _weights(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield f"{'weights':<36}{'elements':>12}{'zero':>8}{'near 0':>8}{'channel ranges':>26}{'int8 SNR, tensor/channel':>26}"
    for row in sorted(rows, key=lambda r: -r["elements"])[:_LAYERS]:
        if "failed" in row:
            yield f"{row['name'][:35]:<36}{row['elements']:>12,}  {row['failed']}"
            continue
        ranges = " ".join(f"{r:.3g}" for r in row["channel_ranges"])
        snr = " / ".join(
            "-" if row["snr_db"][k] is None else f"{row['snr_db'][k]:.1f} dB"
            for k in ("per_tensor", "per_channel")
        )
        yield (
            f"{row['name'][:35]:<36}{row['elements']:>12,}{show_percent(row['zero_share'], 1):>8}"
            f"{show_percent(row['near_zero_share'], 1):>8}{ranges:>26}{snr:>26}"
        )


def _storage(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield f"{'storage':<12}{'size':>10}{'load':>10}{'first run':>11}{'second':>10}{'peak memory':>13}  fresh processes, medians"
    for row in rows:
        if row.get("failed"):
            yield f"{row['format']:<12}no data: {row['failed']}"
            continue
        load, first, second, peak = (
            median(r[name] for r in row["rounds"])
            for name in ("load_ns", "first_run_ns", "second_run_ns", "peak_bytes")
        )
        yield (
            f"{row['format']:<12}{show_bytes(row['size_bytes']):>10}{show_ns(load):>10}"
            f"{show_ns(first):>11}{show_ns(second):>10}{show_bytes(peak):>13}"
        )


def _operators(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield f"{'operators':<26}{'L1':>10}{'L2':>10}{'largest':>10}{'relative':>10}  against ONNX's reference"
    for row in rows:
        if "skipped" in row or "failed" in row:
            yield f"{row['op']:<26}{row.get('failed') or 'no data: ' + row['skipped']}"
            continue
        numbers = "".join(f"{row[name]:>10.1e}" for name in ("l1", "l2", "largest", "relative"))
        yield f"{row['op']:<26}{numbers}  {'same' if row['passed'] else 'DIFFERENT'}"


def _checks(checks: Mapping[str, Any]) -> Iterator[str]:
    for one in checks["repeatability"]["outputs"]:
        told = one.get("failed") or (
            f"{one['varying']:,} of {one['values']:,} values vary, variance {one['variance']:.1e}"
        )
        yield f"{'reruns':<12}{one['output']}: over {RERUNS} runs {told}"
    yield _overhead(checks["overhead"])
    batches = checks["micro_batches"]
    if "failed" in batches:
        yield f"{'batches':<12}no data: {batches['failed']}"
        return
    peak = batches["peak_bytes"]
    at_once, in_parts = (median(batches[side]["wall_ns"]) for side in ("at_once", "in_parts"))
    yield (
        f"{'batches':<12}{batches['batch']} at once {show_ns(at_once)} and {_bytes(peak['at_once'])}; in "
        f"{batches['parts']} parts {show_ns(in_parts)} and {_bytes(peak['in_parts'])}; largest relative "
        f"difference {batches['largest_difference']:.1e}"
    )


def _overhead(found: Mapping[str, Any]) -> str:
    """Of CPU time: what the wrapper does is work, and others on the machine do not count."""
    pairs = list(zip(found["harness"]["cpu_ns"], found["bare"]["cpu_ns"], strict=True))
    added, bare = sorted(a - b for a, b in pairs), median(b for _, b in pairs)
    ends = [None if r is None else added[r] for r in interval_ranks(len(added), 0.5, 0.95)]
    low, high = ("-" if ns is None else show_ns(ns) for ns in ends)
    return (
        f"{'overhead':<12}of the harness's backend over a bare session: {show_ns(median(added))} of "
        f"CPU time a call (95 %: {low} to {high}, {len(pairs)} pairs), "
        f"{show_percent(median(added) / bare, 1)} of it"
    )


def _bytes(count: int | None) -> str:
    return "memory not told" if count is None else show_bytes(count)


_PARTS: Mapping[str, Callable[[Any], Iterator[str]]] = {
    "weights": _weights,
    "storage": _storage,
    "operators": _operators,
    "checks": _checks,
}
