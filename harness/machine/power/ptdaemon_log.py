"""Reads spl.txt, which contains PTDaemon's readings at the wall socket, and computes the energy by MLPerf's formula."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.units import NS_PER_MS, show_ns
from harness.errors import type_and_text
from harness.machine.power.energy import Energy, NoReading, utc_ns
from harness.types import PowerSource

SPL = "spl.txt"
CLIENT_JSON = "client.json"
SOURCE = PowerSource(
    "ptdaemon", "everything wired to the analyser: at the wall, the whole system", "W"
)

GAP_NS = 2500 * NS_PER_MS
"""The samples do not cover the window if the time between two samples exceeds this limit. The analyser takes one sample
per second, and one sample may be lost.
"""


@dataclass(frozen=True, slots=True)
class PtdaemonLog:
    """Readings from the testing phase of a session."""

    session: str
    """Name of the session."""
    refused: tuple[str, ...] = ()
    """The checks in power-dev's check.py that failed."""
    samples: tuple[tuple[int, float], ...] = ()
    """Samples as (wall clock in ns, watts); each is a mean over one second."""
    fault: str = ""
    """The reason why samples are missing."""

    def to_json(self) -> dict[str, Any]:
        """Returns the fields that the session's own files do not contain."""
        return {"refused": list(self.refused)}

    @classmethod
    def from_files(cls, values: Mapping[str, Any], performance: Path) -> "PtdaemonLog":
        """Reads the log. values: the result of to_json. performance: the folder that contains power/ and run_1/."""
        session, refused = "", tuple(str(name) for name in values["refused"])
        try:
            client = json.loads((performance / "power" / CLIENT_JSON).read_text(encoding="utf-8"))
            session = str(client["session_name"])
            text = (performance / "run_1" / SPL).read_text(encoding="utf-8", errors="replace")
            samples = tuple(read_samples(text, f"{session}_testing"))
        except OSError as e:
            return cls(session, refused, fault=f"{e.filename}: {e.strerror}")
        except (ValueError, KeyError, TypeError) as e:
            return cls(session, refused, fault=type_and_text(e))
        return cls(session, refused, samples)

    def energy(self, window_ns: tuple[int, int]) -> Energy | NoReading:
        """Returns the energy, which is the mean power of the samples in the window multiplied by the window's length.
        peak_watts: the highest sample.

        Source: mlcommons/inference tools/submission, get_power_metric.
        """
        begin_ns, end_ns = window_ns
        inside = [(at, watts) for at, watts in self.samples if begin_ns < at < end_ns]
        reason = self.fault or unusable(inside, begin_ns, end_ns)
        if reason:
            return NoReading(reason)
        powers = [watts for _, watts in inside]
        mean = sum(powers) / len(powers)
        return Energy(mean * (end_ns - begin_ns) / 1e9, mean, max(powers), len(powers))


def unusable(inside: Sequence[tuple[int, float]], begin_ns: int, end_ns: int) -> str:
    """Returns the reason why the samples do not cover the window, or ''."""
    if not inside:
        return f"{SPL} has no sample between the run's start and end"
    dead = sum(watts <= 0 for _, watts in inside)
    if dead:
        return f"{dead} of the {len(inside)} samples in the run are not above 0 W"
    at = [begin_ns, *(at for at, _ in inside), end_ns]
    gap_ns = max(b - a for a, b in itertools.pairwise(at))
    if gap_ns > GAP_NS:
        return f"no sample for {show_ns(gap_ns)} in the run; at most {show_ns(GAP_NS)} is allowed"
    return ""


def read_samples(text: str, mark: str) -> Iterator[tuple[int, float]]:
    """Yields the samples: lines `Time,<when>,Watts,<sum of channels>,Volts,,Amps,,PF,,Mark,<mark>...`.

    Raises ValueError if a sample is malformed, out of order, or from another measurement.
    """
    latest_ns = 0
    for number, line in enumerate(text.splitlines(), 1):
        words = line.rstrip().split(",")
        if not line.startswith("Time"):
            continue
        try:
            at_ns, watts, _power_factor = utc_ns(words[1]), float(words[3]), float(words[9])
            named = (words[2], words[10], words[11])
        except (ValueError, IndexError, OverflowError):
            raise ValueError(f"{SPL}, line {number} is not in PTDaemon's format") from None
        if named != ("Watts", "Mark", mark):
            raise ValueError(f"{SPL}, line {number} is from a different measurement than {mark}")
        if not at_ns > latest_ns or not abs(watts) < float("inf"):
            raise ValueError(f"{SPL}, line {number} has an impossible time or power")
        latest_ns = at_ns
        yield at_ns, watts
