"""Prints the table at the end of a run; result.json holds the same numbers."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.core.units import show_ns, show_percent, show_rate, show_si
from harness.loadgen.scenario import scenario_named
from harness.results.evidence import reference
from harness.results.power import NO_METER


def lines(result: Mapping[str, Any], folder: Path) -> Iterator[str]:
    yield f"{result['verdict']}  {result['scenario']}  {result['backend']}  {result['model']}"
    for reason in result["reasons"]:
        yield f"  reason  {reason['code']}: {reason['text']}"
    for doubt in result["doubts"]:
        yield f"  doubt   {doubt['code']}: {doubt['text']}"
    for note in result["not_for_submission"]:
        yield f"  note    not for submission: {note}"
    yield ""
    yield from _numbers(result)
    yield f"{'results':<12}{folder}"


def run_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """`python -m harness runs`: one line a run; `removed` where its folder is gone."""
    width = max(len("folder"), *(len(r["folder"]) for r in rows))
    yield f"{'folder':<{width}}  {'verdict':<8}{'headline':>22}{'p99':>11}{'accuracy':>10}  reasons"
    for row in rows:
        value, unit = row["headline_value"], row["headline_unit"]
        headline = _quantity({"value": value, "unit": unit}) if value is not None else "-"
        p99 = show_ns(row["p99_ns"]) if row["p99_ns"] is not None else "-"
        accuracy = f"{row['accuracy']:.2f}" if row["accuracy"] is not None else "-"
        gone = "(removed) " if row["removed"] else ""
        yield (
            f"{row['folder']:<{width}}  {row['verdict']:<8}{headline:>22}{p99:>11}{accuracy:>10}"
            f"  {gone}{row['reasons']}".rstrip()
        )


def _numbers(result: Mapping[str, Any]) -> Iterator[str]:
    headline = result["headline"]
    if headline:
        yield f"{'headline':<12}{headline['name']}: {_quantity(headline)}"
    throughput = result["throughput_per_s"]
    if throughput:
        yield f"{'throughput':<12}{_throughput(throughput)}"
    latency = result["latency_ns"]
    if latency:
        names = ("p50", "p90", "p95", "p97", "p99", "p99.9")
        per = "query" if scenario_named(result["scenario"]).by_query else "sample"
        text = "  ".join(f"{n} {show_ns(latency[n])}" for n in names)
        mean = show_ns(latency["mean"])
        yield f"{'latency':<12}{text}  ({_source(latency['source'])}, per {per}; mean {mean})"
    accuracy = result["accuracy"]
    if accuracy:
        yield f"{'accuracy':<12}{_accuracy(accuracy)}"
    yield from _power(result["power"], result["power_reason"])
    yield from _intervals(result.get("latency_intervals_ns"), latency)
    if result.get("reference"):
        rate = throughput["completed"] if throughput else None
        yield f"{'reference':<12}{reference.line(result['reference'], rate)}"
    stages = result["stages_ns"]
    if stages:
        yield ""
        yield f"{'stage':<14}{'p50':>10}{'p99':>12}{'share':>9}"
        for name, stage in stages.items():
            share = show_percent(stage["share"], 1)
            yield f"{name:<14}{show_ns(stage['p50']):>10}{show_ns(stage['p99']):>12}{share:>9}"
        yield ""


def _source(text: str) -> str:
    """LoadGen, harness (its own scheduler) or journal."""
    return "journal" if "from the journal" in text else text.split(maxsplit=1)[0]


def _intervals(found: Mapping[str, Any] | None, quoted: Mapping[str, Any] | None) -> Iterator[str]:
    """One line a percentile; `-` where the run is too short for an end. The journal's stamps may differ
    from LoadGen's by some us, so its intervals stand beside its own percentiles.
    """
    if not found:
        return
    level = show_percent(found["level"])
    heads = (f"{level} order statistic", f"{level} by blocks")
    yield ""
    if quoted and _source(quoted["source"]) != "journal":
        yield (
            f"Intervals of the percentiles by the journal, which has its own clock readings; quote those "
            f"above, by {_source(quoted['source'])}:"
        )
    yield f"{'':<6}{'journal':>10}{heads[0]:>24}{heads[1]:>24}{'early stopping':>18}"
    for name, one in found.items():
        if isinstance(one, Mapping):
            order, drawn = (_span(one[kind]) for kind in ("order_statistic", "block_interval"))
            early = one["early_stopping"]
            told = show_ns(early) if early is not None else "-"
            at = show_ns(one["estimate"])
            yield f"{name:<6}{at:>10}{order:>24}{drawn:>24}{told:>18}"


def _span(ends: Sequence[float | None]) -> str:
    return " to ".join("-" if end is None else show_ns(end) for end in ends)


def _power(power: Mapping[str, Any] | None, reason: str | None) -> Iterator[str]:
    """No lines without --meter."""
    if reason not in (None, NO_METER):
        yield f"{'power':<12}not measured: {reason}"
    for at, reading in enumerate(power["readings"] if power else ()):
        idle = reading["idle_watts"]
        told = [f"mean {show_si(reading['mean_watts'], 'W')}"]
        told.append(f"peak {show_si(reading['peak_watts'], 'W')}")
        told += [f"idle {show_si(idle, 'W')}"] if idle is not None else []
        told.append(
            f"{show_si(reading['joules'], 'J')}, {show_si(reading['joules_per_query'], 'J')} a query"
        )
        yield (
            f"{'' if at else 'power':<12}{'  '.join(told)}  ({reading['source']}, "
            f"{reading['provenance']})"
        )
    if power:
        yield from (f"{'':<12}{m['source']}: no reading: {m['reason']}" for m in power["missing"])
        yield f"{'':<12}{power['note']}"


def _quantity(quantity: Mapping[str, Any]) -> str:
    if quantity["unit"] == "ns":
        return show_ns(quantity["value"])
    return f"{show_rate(quantity['value'])} {quantity['unit']}"


def _throughput(rates: Mapping[str, Any]) -> str:
    names = ("asked", "scheduled", "completed")
    return "  ".join(f"{n} {show_rate(rates[n])}/s" for n in names if rates.get(n) is not None)


def _accuracy(accuracy: Mapping[str, Any]) -> str:
    if accuracy["value"] is None:
        return f"not measured: {accuracy['reason']}"
    target = accuracy["target"]
    digits = 2 if accuracy["unit"] == "%" else 5
    against = f" (target {target:g} {accuracy['unit']})" if target is not None else ""
    return (
        f"{accuracy['metric']} {accuracy['value']:.{digits}f} {accuracy['unit']}{against}, "
        f"{accuracy['samples']:,} samples"
    )
