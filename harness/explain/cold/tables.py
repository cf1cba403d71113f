"""Builds the tables of `cold` from the content of cold.json alone."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

from harness.core.stats import LEVEL
from harness.core.units import counted, show_bytes, show_ns, show_percent, show_rate
from harness.explain.cold import summary
from harness.explain.cold.benefit.estimate import Constants, pays
from harness.explain.cold.sharing.ways import SHARED, WAYS
from harness.explain.cold.summary import Estimate
from harness.explain.cold.trials.turns import COLD, WARM
from harness.results.pages.tables import Cell, Table, columns, lines

Content = Mapping[str, Any]


def text(content: Content) -> Iterator[str]:
    """Yields the tables as readable text."""
    yield f"COLD  {content['model']}  {framework(content)}  {counted(content['threads'], 'thread')}"
    yield from (f"  {'doubt':<11} {doubt}" for doubt in content["doubts"])
    yield ""
    yield from headlines(content)
    for table in tables(content):
        yield ""
        yield from lines(table)


def framework(content: Content) -> str:
    row = content["starts"][0]
    for temperature in (COLD, WARM):
        if row[temperature]:
            return str(row[temperature][0]["framework"] or row["backend"])
    return str(row["backend"])


def headlines(content: Content) -> Iterator[str]:
    """Yields a sentence for cold and for warm starts, with shares that add up to 100 %."""
    row = content["starts"][0]
    for temperature in (COLD, WARM):
        trials = row[temperature]
        if not trials:
            why = row["no_cold"] or row["failed"] or "not measured"
            yield f"{temperature:<6} no numbers: {why}"
            continue
        first, steady = summary.total(trials).mean, summary.one(trials, "steady").mean
        parts = ", ".join(
            f"{name} {show_percent(share, 1)}" for name, share in rounded(summary.shares(trials))
        )
        started = sum(summary.one(trials, phase.key).mean for phase in summary.OUTSIDE)
        yield (
            f"{temperature:<6} first answer after {show_ns(started + first)}; {show_ns(started)} until the framework is "
            f"imported, then {show_ns(first)}, split into {parts}; {show_rate(first / steady)} x a steady run of {show_ns(steady)}"
        )
    yield from _page_cache(row)
    if "failed" in content["benefit"]:
        yield f"benefit not measured: {content['benefit']['failed']}"
    fetch = content["fetch"]
    if "ns" in fetch:
        rate = fetch["bytes"] / fetch["ns"]
        yield f"fetch  {show_ns(fetch['ns'])} for {show_bytes(fetch['bytes'])}, {rate:.3g} GB/s, before the first answer"
    else:
        yield f"fetch  not measured: {fetch['absent']}"


def _page_cache(row: Mapping[str, Any]) -> Iterator[str]:
    """Yields the difference between cold and warm starts with its interval."""
    found = summary.saving(row[COLD], row[WARM])
    if found is None or found.half is None:
        return
    low_ns, high_ns = found.mean - found.half, found.mean + found.half
    interval = f"({show_percent(LEVEL)}: {show_ns(low_ns)} to {show_ns(high_ns)})"
    if low_ns <= 0 <= high_ns:
        text = f"not shown to change the time after the import {interval}: more --trials may decide"
    elif found.mean > 0:
        text = f"saves {show_ns(found.mean)} of the time after the import {interval}"
    else:
        text = f"adds {show_ns(-found.mean)} to the time after the import, which other work may cause {interval}"
    yield f"{'page cache':<12}{text}"


def rounded(shares: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Yields shares that are rounded to three digits and still add up to 1. The largest share absorbs the rounding
    error.
    """
    three = {name: round(share, 3) for name, share in shares.items()}
    largest = max(three, key=lambda name: three[name])
    three[largest] += 1 - sum(three.values())
    yield from three.items()


def tables(content: Content) -> Iterator[Table]:
    if any(content["starts"][0][temperature] for temperature in (COLD, WARM)):
        yield phases(content)
    if len(content["starts"]) > 1 or content["absent"]:
        yield formats(content)
    if content["sharing"]:
        yield sharing(content)
    if "predicted_ns" in content["benefit"]:
        yield benefit(content["benefit"])


def benefit(found: Mapping[str, Any]) -> Table:
    """Tabulates the estimated and the measured benefit of sharing the weights. The weights are in the page cache."""
    constants = Constants(found["read_bytes_per_s"], found["given_ns"], found["touched_ns"])
    rows: list[list[Cell]] = [
        _benefit_cells(
            *(found, constants.read_bytes_per_s, "page cache"),
            *(found["predicted_ns"], found["saved_ns"]),
        )
    ]
    if rate := found.get("disk_bytes_per_s"):
        saved_ns = found["bytes"] / rate * 1e9 - found["objects"] * constants.cost_ns
        rows.append(_benefit_cells(found, rate, "disk", saved_ns, None))
    heads = columns(
        "instead of reading from | at [B/s] | objects [count] | weights [bytes] | saves, estimate [ns] | measured [ns] | "
        "saves, memory [bytes] | share"
    )
    about = "savings of a worker that gets its weights from a process that holds them; negative: sharing costs more"
    note = (
        f"An object, here a {found['granularity']}, takes {show_ns(found['given_ns'])} to get and "
        f"{show_ns(found['touched_ns'])} to touch: sharing saves time from {show_bytes(constants.even_bytes)} "
        f"per object, and memory if the weights are larger than the owner process, {show_bytes(found['owner_bytes'])}"
    )
    return Table("benefit", "Benefit", about, heads, rows, [note])


def _benefit_cells(
    found: Mapping[str, Any],
    rate: float,
    source: str,
    estimate_ns: float,
    measured_ns: float | None,
) -> list[Cell]:
    memory_bytes = found["bytes"] - found["owner_bytes"]
    share = "yes" if pays(estimate_ns, found["bytes"], found["owner_bytes"]) else "no"
    cells: list[Cell] = [source, rate, found["objects"], found["bytes"], estimate_ns, measured_ns]
    return [*cells, memory_bytes, share]


def sharing(content: Content) -> Table:
    """Tabulates the second worker's memory, times and answer for each way to share and each framework."""
    rows = [_sharing_cells(row) for row in content["sharing"] if row["rounds"]]
    heads = columns(
        "way | backend | alone [bytes] | second [bytes] | its model [bytes] | of the file [share] | shares | "
        "load 1st [ns] | load 2nd [ns] | first run 2nd [ns] | steady 2nd [ns] | answer"
    )
    about = (
        "two workers; alone: memory (PSS) of the first one; second: memory that the second one adds, then the part of "
        "its model without its process; load: time until a worker with an imported framework can answer"
    )
    named = {way.name: way.about for way in WAYS.values()}
    used = [row["way"] for row in content["sharing"]]
    notes = [f"{name}: {about}" for name, about in named.items() if name in used]
    notes += [
        f"{row['way']} on {row['backend']}: {row['about']}"
        for row in content["sharing"]
        if row["rounds"] and row["about"] != named[row["way"]]
    ]
    notes += [
        f"{row['way']} on {row['backend']} is not possible: {row['failed']}"
        for row in content["sharing"]
        if row["failed"]
    ]
    return Table("sharing", "Sharing", about, heads, rows, notes)


def _sharing_cells(row: Mapping[str, Any]) -> list[Cell]:
    rounds = row["rounds"]
    of_model = mean([one["of_model_bytes"] for one in rounds])
    return [
        row["way"],
        row["backend"],
        mean([one["alone_bytes"] for one in rounds]),
        mean([one["growth_bytes"] for one in rounds]),
        of_model,
        of_model / row["size_bytes"],
        "yes" if of_model <= SHARED * row["size_bytes"] else "no",
        mean([one["first"]["load_ns"] for one in rounds]),
        mean([one["second"]["load_ns"] for one in rounds]),
        mean([one["second"]["first_ns"] for one in rounds]),
        mean([one["second"]["steady_ns"] for one in rounds]),
        _answers(row),
    ]


def _answers(row: Mapping[str, Any]) -> str:
    """States whether the second worker's answer equals the first worker's answer and the answer after a plain load."""
    alike = all(one["first"]["sha256"] == one["second"]["sha256"] for one in row["rounds"])
    if not alike:
        return "second differs from first"
    difference = row.get("difference")
    if difference is None:
        return "both alike"
    return "bit-identical" if not difference else f"both alike; {difference:.1g} from a plain load"


def formats(content: Content) -> Table:
    """Tabulates each storage format with its cold and its warm start."""
    rows: list[list[Cell]] = []
    for row in content["starts"]:
        cells: list[Cell] = [row["name"], row["backend"], row["size_bytes"]]
        for temperature in (COLD, WARM):
            trials = row[temperature]
            first = summary.total(trials) if trials else None
            cells += [first and first.mean, first and first.half]
        trials = row[WARM] or row[COLD]
        cells += [
            summary.loading(trials).mean if trials else None,
            summary.one(trials, "steady").mean if trials else None,
            summary.estimate([trial["peak_bytes"] for trial in trials]).mean if trials else None,
        ]
        rows.append(cells)
    heads = columns(
        "format | backend | size [bytes] | cold [ns] | ± cold [ns] | warm [ns] | ± warm [ns] | "
        "load, warm [ns] | steady [ns] | peak [bytes]"
    )
    about = "first answer of a fresh process, by storage format; peak: memory of the whole process"
    notes = [
        f"{row['name']} on {row['backend']}: {row['failed'] or row['no_cold']}"
        for row in (*content["starts"], *content["absent"])
        if row["failed"] or row["no_cold"]
    ]
    return Table("formats", "Formats", about, heads, rows, notes)


def phases(content: Content) -> Table:
    row = content["starts"][0]
    by_key = {temperature: _estimates(row[temperature]) for temperature in (COLD, WARM)}
    named = [*summary.PHASES, *summary.OUTSIDE]
    titles = {one.key: one.title for one in named} | {
        "total": "total, after the import",
        "steady": "steady run",
    }
    order = [*(one.key for one in summary.PHASES), "total", "steady"]
    order += [one.key for one in summary.OUTSIDE]
    shown = [key for key in order if any(key in by_key[t] for t in (COLD, WARM))]
    rows: list[list[Cell]] = []
    for key in shown:
        cells: list[Cell] = [titles[key]]
        for temperature in (COLD, WARM):
            cells += _cells(key, by_key[temperature])
        rows.append(cells)
    heads = columns(
        "phase | cold [ns] | ± cold [ns] | share cold [share] | warm [ns] | ± warm [ns] | share warm [share]"
    )
    # The trials are counted, because Ctrl-C may leave fewer trials than requested.
    made = max(len(row[COLD]), len(row[WARM]))
    about = (
        f"mean of {counted(made, 'trial')} in turns, each in a fresh process, ± half of the 95 % "
        "interval; cold: the file was not in the page cache"
    )
    return Table("phases", "Phases", about, heads, rows, list(_notes(row)))


def _estimates(trials: Sequence[Mapping[str, Any]]) -> Mapping[str, Estimate]:
    if not trials:
        return {}
    return {
        **{phase.key: value for phase, value in summary.phase_times(trials)},
        "total": summary.total(trials),
        "steady": summary.one(trials, "steady"),
        **{phase.key: summary.one(trials, phase.key) for phase in summary.OUTSIDE},
    }


def _cells(key: str, by_key: Mapping[str, Estimate]) -> Iterator[Cell]:
    value = by_key.get(key)
    yield value.mean if value else None
    yield value.half if value else None
    part = any(key == phase.key for phase in summary.PHASES) or key == "total"
    yield value.mean / by_key["total"].mean if value and part else None


def _notes(row: Mapping[str, Any]) -> Iterator[str]:
    yield row["note"]
    yield (
        "The start of the process (Python and the harness's modules) and the import of the framework come before "
        "the first answer, and are the same for every model; the framework's own libraries stay in the page cache"
    )
