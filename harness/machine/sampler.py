"""The supervisor's samplers: threads that read the machine while the measured process answers."""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import NamedTuple, Self

from harness.core import registry
from harness.core.clock import wall_ns
from harness.core.extras import how_to_install
from harness.core.registry import plugin
from harness.errors import ConfigError, HarnessError, PluginUnavailable, one_line
from harness.machine.power.energy import PowerLog, unique
from harness.types import PowerMeter, PowerSource

POWER_PERIOD_S = 0.05
"""Between two readings of a meter: 20 a second where reading takes no time."""

IDLE_S = 1.0
_IDLE_MARGIN_S = 0.2
"""Around the idle baseline, so that every meter has been read before it begins and after it ends."""


END_LIMIT_S = 5.0
"""For the last reading of each; then its thread is left behind, and ends with the supervisor."""


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
        self._thread.join(END_LIMIT_S)  # a device that does not answer must not keep the run

    def _run(self) -> None:
        self._look()
        while not self._stop.wait(self._period_s):
            self._look()
        self._look()  # once more: a window that ended just now is then bracketed


class PowerSampler:
    """Reads each meter on a thread of its own while entered. `log` grows meanwhile.

    A reading that fails is left out and remembered in `log.faults`; the next one is tried all the
    same, and the cut (harness/machine/power/energy.py) judges the gap. Nothing here ends a run.
    """

    def __init__(self, specs: Sequence[tuple[str, str]], period_s: float = POWER_PERIOD_S) -> None:
        """specs: (name, argument) of --meter."""
        self.log = PowerLog()
        self._specs, self._period_s = specs, period_s
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """A ConfigError names every meter that does not work here, and why."""
        with ExitStack() as stack:
            meters = open_meters(self._specs, stack)
            found = [list(opened.sources) for opened in meters]
            names = iter(unique([source for sources in found for source in sources]))
            for (name, _), (meter, _), own in zip(self._specs, meters, found, strict=True):
                sources = [next(names) for _ in own]
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
        """The second to come is the machine at rest: nothing of the run has been started yet."""
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
            except Exception as e:  # noqa: BLE001 - a plug-in's; the gap it leaves is judged
                self.log.faults |= {source.name: _told(e) for source in sources}
                return
            for source, value in values:
                try:
                    self._add(source, at_ns, value)
                except Exception as e:  # noqa: BLE001 - likewise, of this source alone
                    self.log.faults[source.name] = _told(e)

        return look

    def _add(self, source: PowerSource, at_ns: int, value: float | Exception | None) -> None:
        if value is None:
            return
        if isinstance(value, Exception):
            raise value
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"it read {value} {source.unit}")
        self.log.series[source.name].append((at_ns, float(value)))


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {one_line(error)}"


class Opened(NamedTuple):
    """A meter that was entered, and what it reads."""

    meter: PowerMeter
    sources: Sequence[PowerSource]


def open_meters(specs: Sequence[tuple[str, str]], stack: ExitStack) -> list[Opened]:
    """Entered, in order; `stack` leaves them. All problems at once: a ConfigError, or a
    PluginUnavailable where nothing but that is wrong.
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
    """[] where each is known by its name; else the `refusal`, so that whoever has to mend one sees
    all that is wrong.
    """
    try:
        for name, _ in specs:
            registry.check_name("meter", name)
    except HarnessError:
        return refusal(specs)
    return []


def refusal(specs: Sequence[tuple[str, str]]) -> list[str]:
    """Why these meters cannot be read here, all of them; [] where they can."""
    with ExitStack() as stack:
        try:
            open_meters(specs, stack)
        except HarnessError as e:
            return str(e).splitlines()
    return []


@contextmanager
def _leaving(meter: PowerMeter) -> Iterator[PowerMeter]:
    """Entered; a device that is gone when the meter is left has been read before, and ends no run."""
    entered = meter.__enter__()
    try:
        yield entered
    finally:
        with suppress(Exception):
            meter.__exit__(None, None, None)


_NEEDS_ARGUMENT = {"command"}


def availability() -> Iterator[tuple[str, str]]:
    """Each meter of ours, and whether it works here: '' or why not. Other packages' are not run."""
    for name, entry in registry.METERS.items():
        if not entry.installed:
            yield name, f"not installed: {how_to_install(entry.extra)}"
        elif name in _NEEDS_ARGUMENT:
            yield name, ""
        else:
            try:
                with ExitStack() as stack:
                    open_meters([(name, "")], stack)
                yield name, ""
            except HarnessError as e:
                yield name, f"not here: {str(e).removeprefix(f'meter {name!r}: ')}"
