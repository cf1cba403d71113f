"""Samples the machine and its power meters on threads of the supervisor during a run."""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import NamedTuple, Self

from harness.core import registry
from harness.core.clock import wall_ns
from harness.core.registry import plugin
from harness.errors import ConfigError, HarnessError, PluginUnavailable, one_line
from harness.machine.power.energy import PowerLog, unique
from harness.types import PowerMeter, PowerSource

POWER_PERIOD_S = 0.05
"""Pause between two readings of a meter: 20 readings a second where reading takes no time."""

IDLE_S = 1.0
_IDLE_MARGIN_S = 0.2
"""Wait before and after the idle baseline, so that a reading of every meter lies on either side."""


END_LIMIT_S = 5.0
"""Limit of a meter's last reading; a thread that takes longer ends with the supervisor."""


class Repeated:
    """Calls `look` on a thread of its own, `period_s` after it last returned, until stopped."""

    def __init__(self, look: Callable[[], None], period_s: float, name: str) -> None:
        self._look, self._period_s = look, period_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join(END_LIMIT_S)  # a device that does not answer must not block the run

    def _run(self) -> None:
        self._look()
        while not self._stop.wait(self._period_s):
            self._look()
        self._look()  # the last reading lies behind the end of the window


class PowerSampler:
    """Reads each meter on a thread of its own into `log` while entered.

    A reading that fails is left out and noted in `log.faults`, and the next one is tried; the cut
    (harness/machine/power/energy.py) judges the gap. No failure of a meter ends the run.
    """

    def __init__(self, specs: Sequence[tuple[str, str]], period_s: float = POWER_PERIOD_S) -> None:
        """specs: (name, argument) of --meter."""
        self.log = PowerLog()
        self._specs, self._period_s = specs, period_s
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Open the meters; a ConfigError names every meter that does not work here, and why."""
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def idle_baseline(self, sleep: Callable[[float], object]) -> None:
        """Measure the machine at rest for a second, before any process of the run starts."""
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
            except Exception as e:  # noqa: BLE001 - of a plug-in; the cut judges the gap
                self.log.faults |= {source.name: _describe(e) for source in sources}
                return
            for source, value in values:
                try:
                    self._add(source, at_ns, value)
                except Exception as e:  # noqa: BLE001 - likewise, for this source alone
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
    return f"{type(error).__name__}: {one_line(error)}"


class Opened(NamedTuple):
    """An entered meter and its sources."""

    meter: PowerMeter
    sources: Sequence[PowerSource]


def open_meters(specs: Sequence[tuple[str, str]], stack: ExitStack) -> list[Opened]:
    """Enter the meters in order; `stack` leaves them.

    Raises one error with the problems of all meters: a ConfigError, or a PluginUnavailable where
    every problem is one.
    """
    meters: list[Opened] = []
    problems: list[HarnessError] = []
    for name, argument in specs:
        try:
            entry = registry.METERS.get(name)
            if entry is not None and not entry.installed:
                raise registry.missing_extra("meter", name, entry)
            with plugin(f"meter {name!r}"):
                meter = stack.enter_context(_leaving(registry.load("meter", name)(argument)))
                sources = list(meter.sources())
                if not sources:
                    raise ConfigError(f"meter {name!r} has nothing to read here")
                meters.append(Opened(meter, sources))
        except HarnessError as e:
            problems.append(e)
    if problems:
        kinds = (ConfigError, PluginUnavailable)
        kind = next(k for k in kinds if any(isinstance(e, k) for e in problems))
        raise kind("\n".join(dict.fromkeys(map(str, problems)))) from problems[0]
    return meters


def unknown(specs: Sequence[tuple[str, str]]) -> list[str]:
    """[] where every meter's name is known; else the `refusal`, with all problems of the meters."""
    try:
        for name, _ in specs:
            registry.check_name("meter", name)
    except HarnessError:
        return refusal(specs)
    return []


def refusal(specs: Sequence[tuple[str, str]]) -> list[str]:
    """Every reason why these meters cannot be read here; [] where they can."""
    with ExitStack() as stack:
        try:
            open_meters(specs, stack)
        except HarnessError as e:
            return str(e).splitlines()
    return []


@contextmanager
def _leaving(meter: PowerMeter) -> Iterator[PowerMeter]:
    """Enter the meter; ignore errors on leaving it, since all its readings are there by then."""
    entered = meter.__enter__()
    try:
        yield entered
    finally:
        with suppress(Exception):
            meter.__exit__(None, None, None)


_NEEDS_ARGUMENT = {"command"}


def availability() -> Iterator[tuple[str, str]]:
    """Yield the name of each built-in meter and why it does not work here, or ''.

    Meters of other packages are left out: checking them would run their code.
    """
    for name, entry in registry.METERS.items():
        if not entry.installed:
            yield name, f"not installed: extra {entry.extra!r}"
        elif name in _NEEDS_ARGUMENT:
            yield name, ""
        else:
            try:
                with ExitStack() as stack:
                    open_meters([(name, "")], stack)
                yield name, ""
            except HarnessError as e:
                yield name, f"not here: {str(e).removeprefix(f'meter {name!r}: ')}"
