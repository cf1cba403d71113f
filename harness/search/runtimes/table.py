"""Prints each model's cells, fastest first, and the leading cell."""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.core.units import show_percent, show_wait
from harness.results.compare.change_text import factors, show_factors
from harness.results.compare.compare import BETTER, SAME
from harness.results.numbers import SPEEDS
from harness.results.pages.tables import Cell as TableCell
from harness.results.pages.tables import Column, Table, aligned, columns, show_cell
from harness.run.study import doubt_lines, machine_text
from harness.search.grid.cells.cells import Cell
from harness.search.runtimes.standing import Entry, against, best_of, interval_of

SHOWN = ("throughput", "p50", "p90", "p99")
"""Names of the numbers shown for a cell. Offline shows only the first number."""

MOST_NAMES = 4
"""One sentence names at most this many cells."""

WIDEST = 1.0
"""An interval is not shown if half its width, as a share, exceeds this limit, because the ends of such an interval
differ by more than a factor of 4.
"""

WIDE = "> 100 %"

PLUS_MINUS = "+-"
"""Name of the column that follows a number and contains half the width of its 95 % interval."""

_SETTLED_ANEW = ("--rounds", "--time-limit", "--out")
"""Options that the command in `next` replaces or omits."""

RANKED, NOT_RANKED, ABSENT = "ranked", "not ranked", "absent"


def cells_of(entries: Sequence[Entry], label: Mapping[Cell, str]) -> list[dict[str, Any]]:
    """Returns the cells for JSON. Ranked cells come first, sorted by speed."""
    best = best_of(entries)
    found = [_cell(entry, best, label[entry.cell]) for entry in entries]
    states = (RANKED, NOT_RANKED, ABSENT)

    def place(cell: Mapping[str, Any]) -> tuple[int, float]:
        ratio = (cell["of_best"] or {}).get("ratio")
        return states.index(cell["state"]), -ratio if ratio is not None else math.inf

    return sorted(found, key=place)


def _cell(entry: Entry, best: Entry | None, name: str) -> dict[str, Any]:
    state = RANKED if entry.is_ranked else ABSENT if entry.absent else NOT_RANKED
    runs = [run for _, run in sorted(entry.runs.items())]
    numbers = {}
    for number in SHOWN:
        if runs and all(number in run.numbers for run in runs):
            interval = interval_of([run.numbers[number] for run in runs])
            if interval is not None:
                numbers[number] = {"unit": SPEEDS[number], **interval._asdict()}
    answers = entry.answers
    return {
        "name": name,
        "backend": entry.cell.backend,
        "precision": entry.cell.precision,
        "threads": entry.cell.threads,
        "framework": entry.about.get("framework"),
        "computes_in": entry.about.get("precision"),
        "state": state,
        "why": entry.why_not or None,
        "dropped": entry.dropped or None,
        "rounds": len(runs),
        "numbers": numbers,
        "of_best": _of_best(entry, best),
        "answers": None
        if answers is None
        else {**answers.agreement._asdict(), "limits": answers.limits._asdict()},
        "accuracy": runs[0].numbers["accuracy"].value
        if runs and "accuracy" in runs[0].numbers
        else None,
        "doubts": entry.doubts,
        "folders": [f"{run.folder.parent.name}/{run.folder.name}" for run in runs],
    }


def _of_best(entry: Entry, best: Entry | None) -> dict[str, Any] | None:
    """Returns a cell's speed relative to the best cell, over the rounds that both cells ran; None if the cell is not
    ranked.
    """
    if best is None or not entry.is_ranked:
        return None
    if entry is best:
        return {"ratio": 1.0, "low": None, "high": None, "verdict": None}
    over = against(best, entry)
    if over is None:
        return None
    ratio, low, high = factors(over.change)
    return {"ratio": ratio, "low": low, "high": high, "verdict": over.change.verdict}


def lines(content: Mapping[str, Any], folder: Path) -> Iterator[str]:
    for one in content["models"]:
        yield f"RUNTIMES  {content['scenario']}  {one['model']}  {content['config']['duration']} per run, in turns"
        for precision, about in _made(content, one):
            yield f"  {precision:<6}{about}"
        yield ""
        table = table_of(one)
        yield from aligned(table.columns, table.rows)
        yield ""
        yield from (f"{label:<12}{text}" for label, text in facts(one))
        yield ""
    yield f"{'time':<12}{_time(content)}"
    if command := next_command(content):
        yield f"{'next':<12}{command}"
    yield f"{'results':<12}{folder}"
    yield from headlines(content)


def _time(content: Mapping[str, Any]) -> str:
    took, limit = show_wait(content["took_s"]), show_wait(content["limit_s"])
    if content["took_s"] <= content["limit_s"]:
        return f"{took} of at most {limit}"
    return f"{took}, more than the limit of {limit}: two rounds are always made"


def next_command(content: Mapping[str, Any]) -> str:
    """Returns a command with enough rounds and time to settle every model that further rounds can settle. Returns '' if
    no such model exists.
    """
    rounds = max(
        (
            (one["ahead"] or {}).get("runs_needed")
            or (content["rounds"] if one["ended"] == "time" else 0)
            for one in content["models"]
        ),
        default=0,
    )
    made = max((cell["rounds"] for one in content["models"] for cell in one["cells"]), default=0)
    if not rounds or not made:
        return ""
    limit_s = max(content["limit_s"], content["took_s"] * rounds / made)
    words = _without(shlex.split(content["command"]), _SETTLED_ANEW)
    return f"{shlex.join(words)} --rounds {rounds} --time-limit {math.ceil(limit_s / 60)}min"


def _without(words: Sequence[str], options: Sequence[str]) -> list[str]:
    """Returns the words of a command without these options and their values."""
    given = [*words]
    kept = []
    while given:
        name, equals, _ = (word := given.pop(0)).partition("=")
        if name not in options:
            kept.append(word)
        elif not equals and given:
            given.pop(0)
    return kept


def _made(content: Mapping[str, Any], one: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the precision of each file that was made from a model, and how the file was made."""
    for key, about in content["precisions"].items():
        model, *_, precision = key.split(" ")
        if Path(model).stem == one["model"].rpartition("/")[2] or model == one["model"]:
            yield precision, str(about["about"])


def headlines(content: Mapping[str, Any]) -> Iterator[str]:
    """Yields one sentence per model that names the leading cell."""
    several = len(content["models"]) > 1
    for one in content["models"]:
        yield f"{one['model']}: {headline(one)}" if several else headline(one)


def headline(one: Mapping[str, Any]) -> str:
    ahead = one["ahead"]
    if ahead is None:
        return "nothing is ranked"
    if ahead["next"] is None:
        return f"only {ahead['best']} is ranked{_contradicted(one)}"
    at = "in samples/s" if ahead["number"] == "throughput" else f"at {ahead['number']}"
    times = show_factors(ahead["ratio"], ahead["low"], ahead["high"])
    said = f"{ahead['best']} is {times} as fast as {ahead['next']} {at}"
    if ahead["verdict"] == BETTER:
        return said + _contradicted(one)
    names: list[str] = [ahead["best"], *ahead["alike"]]
    judged = SAME if ahead["verdict"] == SAME else "undecided"
    more = f"; {ahead['runs_needed']} rounds would decide" if ahead["runs_needed"] else ""
    return f"{judged} between {_listed(names)}: {said}{more}{_contradicted(one)}"


def _contradicted(one: Mapping[str, Any]) -> str:
    """Returns the last clause of the headline if no other backend gives the answers of the ranked cells; otherwise ''."""
    doubt = one.get("reference_doubt")
    return (
        ", but no other backend confirms its answers" if doubt and not doubt["is_confirmed"] else ""
    )


def _listed(names: Sequence[str]) -> str:
    if len(names) > MOST_NAMES:
        return f"{names[0]} and {len(names) - 1} others"
    return f"{', '.join(names[:-1])} and {names[-1]}"


def table_of(one: Mapping[str, Any]) -> Table:
    """Returns one model's table."""
    cells = [cell for cell in one["cells"] if cell["state"] != ABSENT]
    shown = {
        name: _has_intervals(cells, name)
        for name in SHOWN
        if any(name in cell["numbers"] for cell in cells)
    }
    heads = [Column("runtime"), *_axis_columns(cells)]
    for name, has_intervals in shown.items():
        unit = SPEEDS[name]
        heads.append(Column("samples/s" if name == "throughput" else name, unit))
        if has_intervals:
            heads.append(Column(PLUS_MINUS, "share"))
    scored = any(cell["accuracy"] is not None for cell in cells)
    heads += columns("as fast as the best [ratio] | equal [share]")
    heads += [Column("score", "count")] if scored else []
    heads += columns("rounds [count] | ")
    rows = [
        [*_words(cell, cells), *_numbers(cell, shown), *_rest(one, cell, scored=scored)]
        for cell in cells
    ]
    about = "Each runtime made one run per round; the fastest comes first."
    return Table("runtimes", f"Runtimes of {one['model']}", about, heads, rows)


def _axis_columns(cells: Sequence[Mapping[str, Any]]) -> list[Column]:
    return [Column(axis) for axis in _varying(cells)]


def _varying(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    return [axis for axis in ("precision", "threads") if len({cell[axis] for cell in cells}) > 1]


def _words(cell: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]) -> list[TableCell]:
    return [cell["name"].partition(" ")[0], *(str(cell[axis]) for axis in _varying(cells))]


def _has_intervals(cells: Sequence[Mapping[str, Any]], name: str) -> bool:
    return any(_half(cell["numbers"].get(name)) is not None for cell in cells)


def _numbers(cell: Mapping[str, Any], shown: Mapping[str, bool]) -> Iterator[TableCell]:
    """Yields a cell's numbers. shown: for each number, whether a column for its interval follows."""
    for name, has_intervals in shown.items():
        number = cell["numbers"].get(name)
        yield None if number is None else number["mean"]
        if has_intervals:
            yield _half(number)


def _half(number: Mapping[str, Any] | None) -> float | str | None:
    """Returns half of an interval's width as a share; WIDE if the interval is too wide to be useful; None if an end of
    the interval is unknown.
    """
    if number is None or number["low"] is None or number["high"] is None:
        return None
    half = math.sqrt(number["high"] / number["low"]) - 1
    return WIDE if half > WIDEST else half


def _rest(one: Mapping[str, Any], cell: Mapping[str, Any], *, scored: bool) -> Iterator[TableCell]:
    over = cell["of_best"]
    if over is None:
        yield None
    elif over["verdict"] is None:
        yield "1"
    else:
        yield show_factors(over["ratio"], over["low"], over["high"])
    if cell["answers"] is not None:
        yield cell["answers"]["alike"]
    else:
        yield "the first" if cell["name"] == one["compared_with"] else None
    if scored:
        yield None if cell["accuracy"] is None else f"{cell['accuracy']:.2f}"
    yield cell["rounds"]
    yield "" if cell["state"] == RANKED else NOT_RANKED


def facts(one: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields labels and texts about intervals, answers, unranked cells and the machine."""
    cells = one["cells"]
    measured = [cell for cell in cells if cell["rounds"]]
    if any(_has_intervals(measured, name) for name in SHOWN):
        yield "+-", _interval_text(measured)
    if text := _contradictions(one):
        yield "but", text
    if text := _answers_text(one):
        yield "answers", text
    if text := _reference_text(one):
        yield "reference", text
    yield from _left_out(one)
    if one["ended"] == "time":
        yield "time limit", "the rounds ended at the time limit: the command below makes more"
    runs = [{"verdict": "VALID", "doubts": codes} for cell in cells for codes in cell["doubts"]]
    if text := machine_text(runs):
        yield (
            "machine",
            f"{text}: the runtimes took turns, so all met the same load; on an idle machine their order may differ",
        )
    for line in doubt_lines(runs, ""):
        yield "doubt", line


def _contradictions(one: Mapping[str, Any]) -> str:
    """Names the cells that beat the leading cell in throughput or p50; '' if none does."""
    ranked = [cell for cell in one["cells"] if cell["state"] == RANKED]
    found = []
    for name, most in (("throughput", True), ("p50", False)):
        means = {c["name"]: c["numbers"][name]["mean"] for c in ranked if name in c["numbers"]}
        if not means:
            continue
        best = (max if most else min)(means, key=means.__getitem__)
        if best != one["ahead"]["best"]:
            value = show_cell(means[best], SPEEDS[name])
            found.append(
                f"{best} has the most samples/s ({value})"
                if most
                else f"{best} has the lowest {name} ({value})"
            )
    return f"{'; '.join(found)}: {one['decides']} decides" if found else ""


def _interval_text(measured: Sequence[Mapping[str, Any]]) -> str:
    few = [
        cell["name"]
        for cell in measured
        if not any(number["of_rounds"] for number in cell["numbers"].values())
    ]
    text = "half of the 95 % interval over the rounds"
    if len(few) == len(measured):
        text = "half of the 95 % interval within the runs (over the rounds, if there are three or more)"
    elif few:
        text += f"; within the runs of {', '.join(few)}, with fewer than three rounds"
    halves = [_half(number) for cell in measured for number in cell["numbers"].values()]
    wide = WIDE in halves
    return f"{text}; {WIDE}: the ends differ by more than a factor of 4" if wide else text


def _answers_text(one: Mapping[str, Any]) -> str:
    found = [cell["answers"] for cell in one["cells"] if cell["answers"] is not None]
    if not found:
        return ""
    samples = min(each["samples"] for each in found)
    limits = sorted({(each["limits"]["share"], each["limits"]["far"]) for each in found})
    (share, far), *narrow = [
        (show_percent(share), show_percent(far)) for share, far in reversed(limits)
    ]
    text = (
        f"{samples} samples, compared with {one['compared_with']}: {share} of the answers must be equal, and floats "
        f"may differ by at most {far}"
    )
    return text + "".join(
        f"; at 16 bits or fewer, {share} of the answers must be equal, and floats may differ by at most {far}"
        for share, far in narrow
    )


def _reference_text(one: Mapping[str, Any]) -> str:
    """Returns the reason why the first cell's answers may be the wrong ones; '' without such a reason."""
    doubt, first = one.get("reference_doubt"), one["compared_with"]
    if not doubt:
        return ""
    if doubt["against"]:
        groups = "; ".join(f"{_listed(names)} agree with each other" for names in doubt["against"])
        return f"{groups}, but not with {first}: check the file of {first}"
    return (
        f"no other backend agrees with {first}, so the answers of {first} may be the wrong ones: add a backend to "
        "--backend, or with real data, compare the scores of --mode both"
    )


def _left_out(one: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    by_reason: dict[tuple[str, str], list[str]] = {}
    for cell in one["cells"]:
        if cell["state"] != RANKED:
            by_reason.setdefault((cell["state"], cell["why"]), []).append(cell["name"])
    for (state, why), names in by_reason.items():
        yield state, f"{', '.join(names)}: {why}"
    for name, why in one["left_out"].items():
        yield "left out", f"{name}: {why}"
    if one["unread"]:
        formats = [f"{name} ({', '.join(formats)})" for name, formats in one["unread"].items()]
        yield "no file", f"{one['model']} has no file in a format of {', '.join(formats)}"


def csv_of(content: Mapping[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Returns the column names and rows of runtimes.csv, with every cell and every number."""
    plain = (
        "backend",
        "precision",
        "threads",
        "framework",
        "computes_in",
        "state",
        "why",
        "rounds",
    )
    parts = ("mean", "low", "high")
    numbers = [f"{name}_{part}" for name in SHOWN for part in parts]
    heads = ["model", *plain, *numbers, "ratio", "ratio_low", "ratio_high", "alike", "accuracy"]
    rows = []
    for one in content["models"]:
        for cell in one["cells"]:
            over, answers = cell["of_best"] or {}, cell["answers"] or {}
            values = [cell["numbers"].get(name, {}).get(part) for name in SHOWN for part in parts]
            ratios = [over.get(key) for key in ("ratio", "low", "high")]
            own = [cell[key] for key in plain]
            rows.append(
                [one["model"], *own, *values, *ratios, answers.get("alike"), cell["accuracy"]]
            )
    return heads, rows
