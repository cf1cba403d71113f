"""Opens power meters, and lists the meters that do not work on this machine, with the reasons."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

from harness.core import registry
from harness.core.extras import how_to_install
from harness.core.registry import plugin
from harness.errors import ConfigError, HarnessError, PluginUnavailable
from harness.types import PowerMeter, PowerSource


class Opened(NamedTuple):
    """A meter that has been entered, and its sources."""

    meter: PowerMeter
    sources: Sequence[PowerSource]


def open_meters(specs: Sequence[tuple[str, str]], stack: ExitStack) -> list[Opened]:
    """Enters the meters in order, and registers each meter with `stack`, which leaves it later.

    Raises a single error with the problems of all meters: PluginUnavailable if all problems are of this type, otherwise
    ConfigError.
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
    """Returns [] if the names of all meters are known; otherwise returns the same problems as `refusal`."""
    try:
        for name, _ in specs:
            registry.check_name("meter", name)
    except HarnessError:
        return refusal(specs)
    return []


def refusal(specs: Sequence[tuple[str, str]]) -> list[str]:
    """Returns every reason why these meters cannot be read on this machine, or []."""
    with ExitStack() as stack:
        try:
            open_meters(specs, stack)
        except HarnessError as e:
            return str(e).splitlines()
    return []


@contextmanager
def _leaving(meter: PowerMeter) -> Iterator[PowerMeter]:
    """Enters the meter, and ignores errors on leaving the meter, because all readings have been made by then."""
    entered = meter.__enter__()
    try:
        yield entered
    finally:
        with suppress(Exception):
            meter.__exit__(None, None, None)


_NEEDS_ARGUMENT = {"command", "page"}


def availability() -> Iterator[tuple[str, str]]:
    """Yields the name of each built-in meter, and the reason why the meter does not work on this machine, or '' if it
    works.

    Skips meters from other packages, because a check would run the code of these packages.
    """
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
