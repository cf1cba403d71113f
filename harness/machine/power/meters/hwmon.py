"""Reads the power and energy of boards, sockets and power supplies from the kernel's hwmon sensors.

Source: Documentation/hwmon/sysfs-interface.rst: power in microwatts, energy in microjoules.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

from harness.errors import ConfigError
from harness.machine.kernel import text
from harness.machine.power.meters.base import HoldsNothing, micro, tried
from harness.types import PowerMeter, PowerSource

ROOT = Path("/sys/class/hwmon")

_FILE = re.compile(r"(energy|power)\d+_(input|average)")


class _Sensor(NamedTuple):
    path: str
    source: PowerSource


class HwmonMeter(HoldsNothing):
    """argument: the hwmon folder, for example a mounted folder of the host. '' means /sys/class/hwmon.

    If a sensor provides both powerN_input and powerN_average, the meter reads powerN_input, the current power.
    """

    def __init__(self, argument: str) -> None:
        self._root = Path(argument) if argument else ROOT
        self._sensors: list[_Sensor] = []

    def __enter__(self) -> Self:
        sensors: dict[str, _Sensor] = {}
        errors: list[tuple[Path, OSError | ValueError]] = []
        # `powerN_input` sorts after `powerN_average`, so its entry replaces the average.
        for path in sorted(self._root.glob("hwmon*/*")):
            if _FILE.fullmatch(path.name):
                try:
                    micro(str(path))
                except (OSError, ValueError) as e:
                    errors.append((path, e))
                    continue
                sensors[str(path).rpartition("_")[0]] = _Sensor(str(path), _source(path))
        self._sensors = [sensors[key] for key in sorted(sensors)]
        if not self._sensors:
            raise ConfigError(f"meter 'hwmon': {self._refusal(errors)}")
        return self

    def _refusal(self, errors: Sequence[tuple[Path, OSError | ValueError]]) -> str:
        """Returns the reason why no sensor can be read; for example, only root may read amd_energy's counters."""
        for path, error in errors:
            if isinstance(error, PermissionError):
                files = f"{self._root}/hwmon*/{path.name.partition('_')[0].rstrip('0123456789')}*"
                return (
                    f"only root may read {path}; this allows it until the next boot: sudo chmod a+r "
                    f"{files}"
                )
        detail = ""
        if errors:
            path, error = errors[0]
            why = error.strerror if isinstance(error, OSError) else error
            detail = f" that can be read ({path}: {why})"
        return (
            f"{self._root} has no power or energy sensor{detail}: few boards have such a sensor, and it "
            "needs its driver"
        )

    def sources(self) -> list[PowerSource]:
        return [sensor.source for sensor in self._sensors]

    def read(self) -> list[float | Exception]:
        return [tried(sensor.path) for sensor in self._sensors]


def _source(path: Path) -> PowerSource:
    """Names the source by chip and label, because hwmon's numbers may change when the machine reboots."""
    chip = text(path.parent / "name") or path.parent.name
    sensor = path.name.partition("_")[0]
    label = text(path.with_name(f"{sensor}_label"))
    return PowerSource(
        name=f"hwmon:{chip}/{label or sensor}",
        domain=f"{label or sensor} of the chip {chip}, as its driver defines it",
        unit="J" if sensor.startswith("energy") else "W",
    )


_: type[PowerMeter] = HwmonMeter
