"""Reads RAPL, the energy counters of Intel and AMD processors, from the kernel's powercap."""

from pathlib import Path
from typing import Self

from harness.errors import ConfigError
from harness.machine.power.meters.base import HoldsNothing, micro, tried
from harness.types import PowerMeter, PowerSource

ROOT = Path("/sys/class/powercap")

_DOMAINS = {
    "package": "processor package: cores, caches, memory controller, integrated GPU",
    "core": "processor cores",
    "uncore": "integrated GPU",
    "dram": "memory",
    "psys": "whole platform, as the mainboard counts it",
}
"""Maps the first word in a zone's name to a description (Documentation/power/powercap/powercap.rst)."""


class RaplMeter(HoldsNothing):
    """argument: the powercap folder, for example a mounted folder of the host. '' means /sys/class/powercap. This
    folder contains all zones: `intel-rapl:0`, for example, is a package, and `intel-rapl:0:2` is one of its parts.
    """

    def __init__(self, argument: str) -> None:
        self._root = Path(argument) if argument else ROOT
        self._counters: list[str] = []
        self._sources: list[PowerSource] = []

    def __enter__(self) -> Self:
        """Finds the zones, and skips zones that the kernel cannot read (some of intel-rapl-mmio)."""
        detail = ""
        for counter in sorted(self._root.glob("*rapl*:*/energy_uj")):
            try:
                micro(str(counter))
                self._sources.append(self._source(counter.parent))
                self._counters.append(str(counter))
            except PermissionError as e:
                raise ConfigError(
                    f"meter 'rapl': only root may read {e.filename}; this allows it until the next boot: "
                    f"sudo chmod a+r {self._root}/*/energy_uj"
                ) from e
            except (OSError, ValueError) as e:
                detail = f" that can be read ({counter}: {e})"
        if not self._counters:
            raise ConfigError(
                f"meter 'rapl': {self._root} has no energy counters{detail}: most virtual machines "
                "have none; measure on the host, or use a different meter"
            )
        return self

    def sources(self) -> list[PowerSource]:
        return self._sources

    def read(self) -> list[float | Exception]:
        return [tried(path) for path in self._counters]

    def _source(self, zone: Path) -> PowerSource:
        name = (zone / "name").read_text().strip()
        control, _, number = zone.name.partition(":")
        domain = _DOMAINS.get(name.partition("-")[0], name)
        if ":" in number:
            parent = (self._root / zone.name.rpartition(":")[0] / "name").read_text().strip()
            name, domain = f"{parent}/{name}", f"{domain} of {parent}"
        return PowerSource(
            name=f"{control.removeprefix('intel-')}:{name}",
            domain=domain,
            unit="J",
            wraps_at_joules=micro(str(zone / "max_energy_range_uj")),
        )


_: type[PowerMeter] = RaplMeter
