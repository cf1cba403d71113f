"""Reads the wall clock and the monotonic clock, and detects when they drift apart.

LoadGen's time stamps come from the wall clock (high_resolution_clock in libstdc++). Times that are compared with
LoadGen's time stamps are therefore CLOCK_REALTIME in ns. All other times are monotonic. A step in the wall clock would
make the run's latencies wrong.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from harness.core.units import NS_PER_MS

wall_ns = time.time_ns
monotonic_ns = time.monotonic_ns

JUMP_NS = NS_PER_MS
"""If REALTIME - MONOTONIC changes by more than this between two samples, the clock counts as stepped, not slewed."""

MAX_SLEW_PPM = 500
"""Maximum rate at which the kernel slews the clock (adjtimex(2)). A faster change counts as a step."""

SLEW_PPM = 100
"""If the mean slew rate exceeds this value, the run gets a doubt. NTP slews a clock by at most 500 ppm."""


def utc_text(timespec: str = "seconds") -> str:
    """Returns the current time in UTC, such as '2026-11-26T19:40:00+00:00'."""
    return datetime.now(UTC).isoformat(timespec=timespec)


def wall_offset_ns() -> int:
    """Returns REALTIME - MONOTONIC. Makes three attempts, and uses the attempt with the shortest time between its two
    readings.
    """
    best_width, best = None, 0
    for _ in range(3):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        if best_width is None or after - before < best_width:
            best_width, best = after - before, wall - (before + after) // 2
    return best


@dataclass(slots=True)
class ClockWatch:
    """Measures the wall clock's largest step and mean slew between the first and the last `sample`."""

    largest_step_ns: int = 0
    _samples: list[tuple[int, int]] = field(default_factory=list)

    def sample(self) -> None:
        self.add(time.monotonic_ns(), wall_offset_ns())

    def add(self, at_ns: int, offset_ns: int) -> None:
        if self._samples:
            before_ns, before_offset_ns = self._samples[-1]
            step_ns = offset_ns - before_offset_ns
            # After a long gap between samples, for example because the supervisor was suspended, slew alone can change
            # the offset by this amount.
            slewed_ns = (at_ns - before_ns) * MAX_SLEW_PPM / 1e6
            if abs(step_ns) > max(abs(self.largest_step_ns), slewed_ns):
                self.largest_step_ns = step_ns
        self._samples.append((at_ns, offset_ns))

    def to_json(self) -> dict[str, object]:
        """Returns the largest step, and the two samples from which the slew is computed."""
        ends = [self._samples[0], self._samples[-1]] if self._samples else []
        return {"largest_step_ns": self.largest_step_ns, "ends": [list(e) for e in ends]}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "ClockWatch":
        return cls(int(values["largest_step_ns"]), [(int(a), int(b)) for a, b in values["ends"]])

    @property
    def slew_ppm(self) -> float:
        """Mean drift rate over all samples, or 0 if the samples cover less than two seconds."""
        if len(self._samples) < 2:
            return 0.0
        (start, first), (end, last) = self._samples[0], self._samples[-1]
        return (last - first) / (end - start) * 1e6 if end - start >= 2e9 else 0.0
