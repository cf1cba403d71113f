"""Prints advise.json as text."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from harness.core.stats import LEVEL, median_interval
from harness.core.units import show_bytes, show_ns, show_percent, show_si
from harness.explain.advise.checks.self_checks import RERUNS
from harness.explain.advise.content import Content, Layer, Realised
from harness.explain.advise.output import apply
from harness.explain.advise.predict import CLOCKS, WITHIN, WORTH
from harness.explain.advise.record import share_saved
from harness.explain.profile.tables.tables import UNSTEADY
from harness.models.graph.flops import missing_text
from harness.results.pages.tables import Cell, Column, Table, aligned, columns

_LAYERS = 12
"""Maximum number of rows in the printed table of layers. advise.json contains all rows."""


def lines(advice: Content) -> Iterator[str]:
    """Yields the lines of the text. advice: the content of advise.json."""
    yield f"ADVISE  {advice['model']['name']}  {advice['runtime']}  {advice['now']}"
    yield from notes(advice)
    yield ""
    for one in advice["questions"]:
        yield f"{one['question']}  {one['asked']}"
        yield f"    {one['answer']}"
    yield ""
    yield from _advice(advice)
    yield ""
    yield from _layers(advice["layers"])
    yield ""
    yield from _coverage(advice)
    for name in _PARTS:
        if shown := list(_part(advice, name)):
            yield from ("", *shown)


def _part(advice: Content, name: str) -> Iterator[str]:
    """Yields the lines about one of _PARTS."""
    if why := _why_no_part(advice, name):
        yield f"{name}: no data: {why}"
    elif name == _CHECKS:
        yield from _checks(advice)
    else:
        table = _PART_TABLES[name](advice["parts"][name])
        yield from aligned(table.columns, table.rows) if table.rows else ()
        yield from table.notes


def _why_no_part(advice: Content, name: str) -> str:
    """Returns the reason why one of _PARTS lacks data; '' if it has data."""
    part = advice["parts"].get(name, {"failed": "not measured"})
    return part.get("failed") or "" if isinstance(part, Mapping) else ""


def other_tables(advice: Content) -> Iterator[Table]:
    """Yields each of the page's tables, except the table of the advice, that has rows or notes. The notes state why
    numbers are missing.
    """
    found = [_layers_table(advice["layers"])]
    found += [
        make(advice["parts"][name])
        for name, make in _PART_TABLES.items()
        if not _why_no_part(advice, name)
    ]
    yield from (table for table in found if table.rows or table.notes)


def facts(advice: Content) -> Iterator[str]:
    """Yields labelled lines about the work, the coverage, the checks, and parts without data."""
    yield from _coverage(advice)
    missing = {name: _why_no_part(advice, name) for name in _PARTS}
    yield from (f"{name:<12}no data: {why}" for name, why in missing.items() if why)
    if not missing[_CHECKS]:
        yield from _checks(advice)


def notes(advice: Content) -> Iterator[str]:
    """Yields labelled lines about the measured time, and reasons to doubt it."""
    measured = advice["measured"]
    cpu = f", CPU time {show_ns(measured['cpu_ns'])}" if measured["wall_over_cpu"] else ""
    yield (
        f"  measured    minimum {show_ns(measured['wall_ns'])}, "
        f"median {show_ns(measured['median_wall_ns'])}{cpu}; batch {advice['batch']}"
    )
    if advice["stopped"]:
        yield "  doubt       stopped by Ctrl-C: the tables cover what was measured by then"
    if measured["contended"]:
        yield (
            f"  doubt       contended: a call takes {measured['wall_over_cpu']:.2f} times its CPU "
            "time, because other processes used the cores, so only CPU times are compared"
        )
    elif (ratio := measured["median_wall_ns"] / max(measured["wall_ns"], 1)) > UNSTEADY:
        yield (
            f"  doubt       unsteady: the median call took {ratio:.2f} times the fastest one, because other processes "
            "may have used the cores: measure again"
        )
    if advice["lower_bound"]["why_none"]:
        yield (
            "  doubt       measured alone, the layers take longer than the model: "
            f"{advice['lower_bound']['why_none']}; use these times to rank layers, do not quote them"
        )
    if broken := (advice["accuracy"] or {}).get("broken"):
        yield f"  doubt       int8 breaks this model: {broken}; ignore its speed"
    if advice["model"]["has_random_weights"]:
        yield "  note        random weights: speeds are valid, answers are not"
    elsewhere = advice["counted"]["elsewhere"]
    if elsewhere:
        yield (
            f"  note        the database has {elsewhere:,} measurements of these layers from "
            "another machine or version, which are not used: the layers are measured again"
        )


def _advice(advice: Content) -> Iterator[str]:
    table = advice_table(advice)
    if table.rows:
        head, *shown = aligned([Column("  advice"), *table.columns[1:]], table.rows)
        yield head
        for one, line in zip(advice["advice"], shown, strict=True):
            yield line
            if one["needs"]:
                yield f"      decide first: {one['needs']}"
        yield table.notes[-1]
    yield outcome(advice)


def advice_table(advice: Content) -> Table:
    heads = columns(
        "setting | of | now [ns] | predicted [ns] | gain [share] | realised [share] | 95 % [share] | result | as predicted"
    )
    top = advice["top"]["setting"] if advice["top"] else None
    rows: list[list[Cell]] = [
        [
            f"{'*' if one['setting'] == top else ' '} {one['change']}",
            one["question"],
            one["now_ns"],
            one["predicted_ns"],
            show_percent(one["gain"], 1, signed=True),
            show_percent(one["realised"]["gain"], 1, signed=True) if one["realised"] else None,
            _interval(one["realised"]),
            one["verdict"] or "-",
            f"{_WITHIN[one['within']]} ({CLOCKS[one['clock']]})",
        ]
        for one in advice["advice"]
    ]
    told = [
        f"{one['change']}: decide first: {one['needs']}" for one in advice["advice"] if one["needs"]
    ]
    if rows:
        told.append(
            f"as predicted: the realised gain is within {show_percent(WITHIN)} of the predicted gain"
        )
    return Table("advice", "Settings tried", "", heads, rows, told)


def outcome(advice: Content) -> str:
    """States in one sentence what the user should do."""
    if top := advice["top"]:
        pairs = top["realised"]["pairs"] if top["realised"] else 0
        return f"* {_OUTCOMES[top['verdict']].format(pairs=pairs, more=3 * pairs)}"
    if advice["stopped"]:
        return "stopped before a setting with a predicted gain of at least 2 % was found"
    if advice["unpredicted"] and not advice["advice"]:
        return "no gain could be predicted: see the measured settings under Q2 to Q6"
    if any(one["gain"] >= WORTH and not one["needs"] for one in advice["advice"]):
        decide = [
            one["change"] for one in advice["advice"] if one["needs"] and one["verdict"] == "faster"
        ]
        but = f"; {decide[0]} was faster: read its line `decide first`" if decide else ""
        return f"no advice: no setting with a predicted gain of at least 2 % was faster when measured{but}"
    return "no setting is predicted to gain 2 %: keep the current settings"


def conclusion(advice: Content) -> str:
    """States the fastest measured setting. If no gain was measured, states what to do with the top advice."""
    best = apply.best_measured(advice)
    if best is None:
        top = f"{advice['top']['change']}: " if advice["top"] else ""
        return top + outcome(advice).removeprefix("* ")
    gain = show_percent(apply.realised_gain(best), 1)
    if interval := _interval(best["realised"], signed=False):
        gain = f"{gain} ({show_percent(LEVEL)}: {interval})"
    needs = f"; decide first {best['needs']}" if best["needs"] else ""
    return f"{best['change']} saves {gain} of the time, as measured{needs}"


_WITHIN = {True: "yes", False: "no", None: "-"}
_OUTCOMES = {
    "faster": "the top advice: it was applied and was faster when measured, so use it",
    "undecided": "the top advice by prediction, undecided after {pairs} pairs: pass --pairs {more}",
    "": "the top advice by prediction, which could not be measured",
}


def _interval(realised: Realised | None, *, signed: bool = True) -> str | None:
    """Formats the gain's 95 % interval, computed from the ratio's interval."""
    if realised is None or realised["low"] is None or realised["high"] is None:
        return None
    ends = realised["low"], realised["high"]
    return " to ".join(show_percent(share_saved(end), 1, signed=signed) for end in ends)


def _layers(rows: Sequence[Layer]) -> Iterator[str]:
    table = _layers_table(rows)
    yield from aligned(table.columns, table.rows) if table.rows else ()
    yield from table.notes


def _layers_table(rows: Sequence[Layer]) -> Table:
    heads = columns(
        "layers | makes | times [count] | now [ns] | best [ns] | under [level] | gain [ns] | MACs [1] | GFLOP/s [1]"
    )
    cells: list[list[Cell]] = [
        [
            row["ops"][:31],
            row["makes"][:23],
            row["count"],
            row["now_ns"],
            row["best_ns"],
            row["best"] or "-",
            row["gain_ns"],
            show_si(row["macs"], "") if row["macs"] else None,
            f"{row['flops'] / row['now_ns']:.1f}" if row["now_ns"] and row["flops"] else None,
        ]
        for row in rows[:_LAYERS]
    ]
    more = [f"... and {len(rows) - _LAYERS} more, in advise.json"] if len(rows) > _LAYERS else []
    return Table("layers", "Layers", "", heads, cells, more)


def _of_peak(share: float | None) -> str:
    """Formats a share of the fp32 peak that `machine` has stored, or returns '' if no peak is stored."""
    return "" if share is None else f", {show_percent(share)} of this machine's fp32 peak"


def _coverage(advice: Content) -> Iterator[str]:
    work, covered, counted = advice["work"], advice["coverage"], advice["counted"]
    yield (
        f"work        {_count(work['macs'])}MACs, {_count(work['flops'])}FLOPs, "
        f"{show_bytes(work['weight_bytes'])} of weights, {show_bytes(work['input_bytes'])} read, "
        f"{show_bytes(work['output_bytes'])} written; {work['gflops_per_s']:.1f} GFLOP/s"
        f"{_of_peak(work.get('of_peak'))}"
    )
    time = covered["work_time"]
    yield (
        f"coverage    the work is known for {show_percent(covered['work_nodes'], 1)} of the nodes and "
        f"{'-' if time is None else show_percent(time, 1)} of the kernels' time; layers measured alone "
        f"take {show_percent(covered['layers_time'], 1)} of it "
        f"({covered['layers_alone']} of {covered['layers']})"
    )
    yield from (f"            {line}" for line in missing_text(covered["work_missing"]))
    if covered["layers_missing"]:
        names = ", ".join(f"{count} {op}" for op, count in covered["layers_missing"].items())
        yield f"            not measured alone: {names}"
    yield from (f"            reason: {why}" for why in covered["why_missing"])
    yield (
        f"database    {counted['ran']:,} measurements made, {counted['found']:,} reused from earlier runs"
    )


def _count(number: float) -> str:
    """Formats a number with three digits and a prefix: 3857973248 -> '3.86 G'."""
    for prefix, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {prefix}"
    return f"{number:,.0f} "


def _weights(rows: Sequence[Mapping[str, Any]]) -> Table:
    heads = columns(
        "weights | elements [count] | zero [share] | near 0 [share] | channel ranges [1] | int8 SNR, tensor/channel [dB]"
    )
    largest = sorted(rows, key=lambda r: -r["elements"])[:_LAYERS]
    cells: list[list[Cell]] = [
        [
            row["name"][:35],
            row["elements"],
            row["zero_share"],
            row["near_zero_share"],
            " ".join(f"{r:.3g}" for r in row["channel_ranges"]),
            " / ".join(
                "-" if row["snr_db"][k] is None else f"{row['snr_db'][k]:.1f} dB"
                for k in ("per_tensor", "per_channel")
            ),
        ]
        for row in largest
        if "failed" not in row
    ]
    missing = _no_data((row["name"], row.get("failed")) for row in largest)
    return Table("weights", "Weights", "", heads, cells, missing)


def _no_data(reasons: Iterable[tuple[str, str | None]]) -> list[str]:
    """Returns the reasons why numbers are missing.

    reasons: pairs of a name and a reason, which is None or '' if the numbers exist.
    """
    return [f"{name}: no data: {why}" for name, why in reasons if why]


def _storage(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Tabulates the medians over the rounds; each round runs in a new process."""
    heads = columns(
        "storage | size [bytes] | load [ns] | first run [ns] | second run [ns] | peak memory [bytes]"
    )
    cells: list[list[Cell]] = [
        [
            row["format"],
            row["size_bytes"],
            *(
                median(r[name] for r in row["rounds"])
                for name in ("load_ns", "first_run_ns", "second_run_ns", "peak_bytes")
            ),
        ]
        for row in rows
        if not row.get("failed")
    ]
    missing = _no_data((row["format"], row.get("failed")) for row in rows)
    return Table("storage", "Storage", "", heads, cells, missing)


def _operators(rows: Sequence[Mapping[str, Any]]) -> Table:
    names = ("l1", "l2", "largest", "relative")
    heads = columns(
        "operators | l1 [1] | l2 [1] | largest [1] | relative [1] | against ONNX's reference"
    )
    cells: list[list[Cell]] = [
        [
            row["op"],
            *(f"{row[name]:.1e}" for name in names),
            "same" if row["passed"] else "DIFFERENT",
        ]
        for row in rows
        if "skipped" not in row and "failed" not in row
    ]
    missing = _no_data((row["op"], row.get("failed") or row.get("skipped")) for row in rows)
    return Table("operators", "Operators", "", heads, cells, missing)


def _checks(advice: Content) -> Iterator[str]:
    """Yields labelled lines about the reruns, the harness's overhead and the batches."""
    found = advice["parts"][_CHECKS]
    for one in found["repeatability"]["outputs"]:
        text = one.get("failed") or (
            f"{one['varying']:,} of {one['values']:,} values vary, variance {one['variance']:.1e}"
        )
        yield f"{'reruns':<12}{one['output']}: over {RERUNS} runs {text}"
    yield _overhead(found["overhead"])
    batches = found["micro_batches"]
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


def _overhead(times: Mapping[str, Any]) -> str:
    """Compares CPU times, which exclude the work of other processes."""
    pairs = list(zip(times["harness"]["cpu_ns"], times["bare"]["cpu_ns"], strict=True))
    added, bare = [a - b for a, b in pairs], median(b for _, b in pairs)
    low, high = ("-" if ns is None else show_ns(ns) for ns in median_interval(added))
    return (
        f"{'overhead':<12}the harness's backend adds {show_ns(median(added))} of CPU time per call "
        f"to a bare session (95 %: {low} to {high}, {len(pairs)} pairs), "
        f"{show_percent(median(added) / bare, 1)} of its time"
    )


def _bytes(count: int | None) -> str:
    return "memory unknown" if count is None else show_bytes(count)


_PART_TABLES: Mapping[str, Callable[[Any], Table]] = {
    "weights": _weights,
    "storage": _storage,
    "operators": _operators,
}
_CHECKS = "checks"
_PARTS = (*_PART_TABLES, _CHECKS)
