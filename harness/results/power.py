"""Computes the `power` section of result.json: the energy per source, and whether it may be quoted. Has no side
effects.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from harness.core.codes import Reason
from harness.machine.power import ptdaemon_log
from harness.machine.power.energy import Energy, NoReading, PowerLog, window_ns
from harness.machine.power.ptdaemon_log import PtdaemonLog
from harness.results.cost import computed
from harness.results.schema.client import Tokens
from harness.results.schema.machine import (
    EnergyParts,
    MissingReading,
    Power,
    PowerReading,
    PowerSection,
)
from harness.results.tokens.phases import Phases
from harness.types import PowerSource

MOST_WATTS = 200e3
"""The run gets a doubt if a source's mean power exceeds this value. A rack of accelerators draws about 130 kW, and the
largest power supply in a server delivers 15 kW.
"""

LEAST_WATTS = 0.3
"""The run gets a doubt if a whole computer's mean power lies below this value. The smallest boards that run Linux draw
0.4 W when idle.
"""

_WHOLE = ("command", ptdaemon_log.SOURCE.name)
"""Meters that cover the whole computer. Other meters' sensors may cover a part that draws only milliwatts."""

NO_METER = "no meter was requested: pass --meter NAME; `list` shows which meters work here"
NOT_OFFICIAL = "not an MLPerf Power result: it was not measured at the wall by PTDaemon"
ON_ANOTHER_MACHINE = "it is on a different machine, but the meters read this machine, unless they measure the mains supply of both"
OFFICIAL = (
    "ptdaemon: measured by MLPerf Power's procedure and accepted by its checker; an MLPerf result only "
    "after MLCommons has verified it"
)


def report(
    log: PowerLog | None,
    loadgen: Mapping[str, Any],
    queries: int,
    samples: int,
    ptdaemon: PtdaemonLog | None = None,
    *,
    elsewhere: Sequence[str] = (),
    under_rules: bool = False,
    scheduler: str = "LoadGen",
) -> PowerSection:
    """Returns the section without energy per token.

    loadgen: values from the performance run's log; {} if they cannot be used. queries, samples: how many the run
    answered. elsewhere: servers and nodes on other machines. under_rules: whether the run is official. scheduler: name
    of the program that wrote the log.
    """
    if log is None and ptdaemon is None:
        return {"power": None, "power_reason": NO_METER}
    window = window_ns(loadgen)
    if window is None or not queries:
        return {
            "power": None,
            "power_reason": f"{scheduler}'s log does not contain the start and the end of the run",
        }
    readings: list[PowerReading] = []
    missing: list[MissingReading] = [
        {"source": name, "reason": ON_ANOTHER_MACHINE} for name in elsewhere if log is not None
    ]
    for source, energy, idle in _energies(log, ptdaemon, window):
        if isinstance(energy, NoReading):
            missing.append({"source": source.name, "reason": energy.reason})
        else:
            readings.append(_reading(source, energy, idle, queries, samples))
    if not readings:
        reasons = "; ".join(f"{m['source']}: {m['reason']}" for m in missing)
        return {"power": None, "power_reason": reasons or "the meters have nothing to read"}
    power: Power = {
        "readings": readings,
        "missing": missing,
        "seconds": (window[1] - window[0]) / 1e9,
        "window": f"{scheduler}'s power_begin to power_end",
        "note": _note(readings, ptdaemon, under_rules),
    }
    return {"power": power, "power_reason": None}


def per_token(
    section: PowerSection, tokens: Tokens | None, phases: Phases | None = None
) -> PowerSection:
    """Adds to each reading its parts and its energy per token, if the token counts are known.

    phases: shares of the window by phase of the requests; None if unknown.
    """
    power = section["power"]
    if power is None or tokens is None:
        return section
    sent, made = tokens["input"], tokens["output"]
    counts = {
        "joules_per_input_token": sent,
        "joules_per_output_token": made,
        "joules_per_token": sent + made if sent is not None and made is not None else None,
    }
    readings = [
        cast(
            "PowerReading",
            {
                **one,
                **{name: one["joules"] / count for name, count in counts.items() if count},
                **({"parts": _parts(one["joules"], tokens, phases)} if phases else {}),
            },
        )
        for one in power["readings"]
    ]
    return {**section, "power": {**power, "readings": readings}}


def _parts(joules: float, tokens: Tokens, phases: Phases) -> EnergyParts:
    new, made = computed(tokens), tokens["output"]
    input_joules, output_joules = joules * phases.input, joules * phases.output
    return {
        "input_joules": input_joules,
        "output_joules": output_joules,
        "idle_joules": joules * phases.idle,
        "joules_per_computed_input_token": input_joules / new if new else None,
        "joules_per_output_token": output_joules / made if made else None,
    }


def doubts(section: PowerSection) -> Iterator[Reason]:
    """Yields a doubt for each mean power that no computer can draw, because the unit, a factor or the device must then
    be wrong.
    """
    power = section["power"]
    for reading in power["readings"] if power is not None else ():
        watts = reading["mean_watts"]
        is_whole = reading["source"].partition(":")[0].partition("#")[0] in _WHOLE
        if watts > MOST_WATTS or (is_whole and watts < LEAST_WATTS):
            bound = (
                f"more than {MOST_WATTS / 1e3:g} kW, above a full rack"
                if watts > MOST_WATTS
                else f"less than {LEAST_WATTS:g} W, below the smallest idle board"
            )
            yield Reason(
                "power-implausible",
                f"{reading['source']} read {watts:.3g} W on average, {bound}: check its unit and what it is connected to",
            )


def _energies(
    log: PowerLog | None, ptdaemon: PtdaemonLog | None, window: tuple[int, int]
) -> Iterator[tuple[PowerSource, Energy | NoReading, Energy | NoReading | None]]:
    """Yields each source with its energy in the window and in the idle baseline."""
    if ptdaemon is not None:
        yield ptdaemon_log.SOURCE, ptdaemon.energy(window), None
    if log is None:
        return
    for source in log.sources:
        idle = log.energy(source, log.idle_ns) if log.idle_ns is not None else None
        yield source, log.energy(source, window), idle


def _reading(
    source: PowerSource, energy: Energy, idle: Energy | NoReading | None, queries: int, samples: int
) -> PowerReading:
    return {
        "source": source.name,
        "domain": source.domain,
        "provenance": source.provenance,
        "joules": energy.joules,
        "mean_watts": energy.mean_watts,
        "peak_watts": energy.peak_watts,
        "readings": energy.readings,
        "idle_watts": idle.mean_watts if isinstance(idle, Energy) else None,
        "joules_per_query": energy.joules / queries,
        "joules_per_sample": energy.joules / samples,
    }


def _note(readings: Sequence[PowerReading], ptdaemon: PtdaemonLog | None, under_rules: bool) -> str:
    """Returns the note about the readings. Readings are official only if they come from PTDaemon in an official run and
    PTDaemon's checker accepts them.
    """
    if ptdaemon is None or readings[0]["source"] != ptdaemon_log.SOURCE.name:
        return NOT_OFFICIAL
    if ptdaemon.refused:
        return f"not an MLPerf Power result: power-dev's checker reported {', '.join(ptdaemon.refused)}"
    if not under_rules:
        return "not an MLPerf Power result: a quick run, not under the official rules"
    return OFFICIAL + ("; the others are not" if len(readings) > 1 else "")
