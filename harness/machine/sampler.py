"""Samples the machine and its power meters during a run, on threads of the supervisor."""

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Self

from harness.core.clock import wall_ns
from harness.errors import type_and_text
from harness.machine.power.energy import PowerLog, unique
from harness.machine.power.opening import open_meters
from harness.types import PowerMeter, PowerSource

POWER_PERIOD_S = 0.05
"""Pause between two readings of a meter, which allows at most 20 readings per second.
"""

IDLE_S = 1.0
_IDLE_MARGIN_S = 0.2
"""Waiting time before and after the idle baseline, so that every meter is read before and after the baseline."""

END_LIMIT_S = 5.0
"""If the last reading of a meter takes longer, the supervisor does not wait for the reading; the reading thread ends
with the supervisor.
"""


class Repeated:
    """Calls `look` repeatedly on a separate thread until stopped, with a pause of `period_s` between calls."""

    def __init__(self, look: Callable[[], None], period_s: float, name: str) -> None:
        self._look, self._period_s = look, period_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        # The wait is bounded, so that a silent device cannot block the run.
        self._thread.join(END_LIMIT_S)

    def _run(self) -> None:
        self._look()
        while not self._stop.wait(self._period_s):
            self._look()
        self._look()  # takes one more reading after the end of the window


class PowerSampler:
    """Reads each meter on a separate thread into `log` while the context is entered.

    A failed reading is omitted and recorded in `log.faults`, and the next reading is still tried. `cut`
    (harness/machine/power/energy.py) decides whether the resulting gap is too long. A meter that fails does not end the
    run.
    """

    def __init__(self, specs: Sequence[tuple[str, str]], period_s: float = POWER_PERIOD_S) -> None:
        """specs: name and argument of each --meter."""
        self.log = PowerLog()
        self._specs, self._period_s = specs, period_s
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Opens the meters. Raises a single ConfigError that lists all meters that do not work on this machine, with
        the reasons.
        """
        with ExitStack() as stack:
            meters = open_meters(self._specs, stack)
            named = iter(unique([source for opened in meters for source in opened.sources]))
            for (name, _), (meter, own) in zip(self._specs, meters, strict=True):
                sources = [next(named) for _ in own]
                self.log.sources += tuple(sources)
                self.log.series |= {source.name: [] for source in sources}
                look = self._looking(meter, sources)
                stack.enter_context(Repeated(look, self._period_s, f"meter {name}"))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def idle_baseline(self, sleep: Callable[[float], object]) -> None:
        """Measures the idle machine's power for a second, before any process of the run starts."""
        sleep(_IDLE_MARGIN_S)
        begin_ns = wall_ns()
        sleep(IDLE_S)
        self.log.idle_ns = begin_ns, wall_ns()
        sleep(_IDLE_MARGIN_S)

    def _looking(self, meter: PowerMeter, sources: Sequence[PowerSource]) -> Callable[[], None]:
        def look() -> None:
            try:
                values = list(zip(sources, meter.read(), strict=True))
                at_ns = wall_ns()
            except Exception as e:  # noqa: BLE001 - of a plug-in; `cut` judges the gap
                self.log.faults |= {source.name: _describe(e) for source in sources}
                return
            for source, value in values:
                try:
                    self._add(source, at_ns, value)
                except Exception as e:  # noqa: BLE001 - the same, for this source alone
                    self.log.faults[source.name] = _describe(e)

        return look

    def _add(self, source: PowerSource, at_ns: int, value: float | Exception | None) -> None:
        if value is None:
            return
        if isinstance(value, Exception):
            raise value
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"it read {value} {source.unit}")
        self.log.series[source.name].append((at_ns, float(value)))


def _describe(error: Exception) -> str:
    return type_and_text(error)
