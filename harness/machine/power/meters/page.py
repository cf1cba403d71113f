"""Reads watts or joules from a page of Prometheus metrics, for example from DCGM's exporter or node_exporter on the
server's machine.
"""

import time
from typing import Literal, NamedTuple, Self

from harness.core.config.address import Address, parse_address
from harness.core.config.parse import parse_series
from harness.errors import ConfigError, HarnessError, type_and_text
from harness.remote import Request
from harness.types import PowerMeter, PowerSource
from harness.wire.connections import Server, tls_context
from harness.wire.remote_backend import Link
from harness.wire.server_series import Page, Sample, Series

LIMIT_S = 1.0
"""A reading fails if it takes longer than this."""

EVERY_S = 0.1
"""Readings are at least this far apart, because the measured machine may serve the page."""

_Unit = Literal["J", "W"]
_UNITS: dict[str, tuple[_Unit, float]] = {
    "W": ("W", 1.0),
    "mW": ("W", 1e-3),
    "uW": ("W", 1e-6),
    "kW": ("W", 1e3),
    "J": ("J", 1.0),
    "mJ": ("J", 1e-3),
    "uJ": ("J", 1e-6),
    "kJ": ("J", 1e3),
}

_KNOWN = (
    (("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "mJ"), ("DCGM_FI_DEV_POWER_USAGE", "W")),
    (("node_rapl_package_joules_total", "J"), ("node_hwmon_power_average_watt", "W")),
    (("kepler_node_cpu_joules_total", "J"), ("kepler_node_package_joules_total", "J")),
    (("scaph_host_energy_microjoules", "uJ"), ("scaph_host_power_microwatts", "uW")),
    (("nvidia_smi_power_draw_watts", "W"),),
)
"""Known series of each exporter, with their units. The first series that the page contains is used. Sources:
dcgm-exporter's default-counters.csv, node_exporter's collectors rapl and hwmon, and the metrics of Kepler, Scaphandre
and nvidia_gpu_exporter.
"""

_SHOWN_LABELS = ("gpu", "index", "zone", "path", "chip", "sensor", "name", "modelName", "device")
"""Labels that distinguish the samples on a page; all other labels name machines."""


class _Read(NamedTuple):
    """One sample on the page."""

    series: Series
    """The series, with all labels of this sample."""
    unit: _Unit
    factor: float


class PageMeter:
    """argument: the page's address, such as `http://10.0.0.2:9400/metrics`. An unknown series and its unit follow the
    address, as in `http://10.0.0.2:9100/metrics my_power{gpu="0"} mW`.

    A series in a unit of energy is treated as a counter. Each sample of a series counts as a separate source.
    """

    def __init__(self, argument: str) -> None:
        url, _, rest = argument.strip().partition(" ")
        if not url:
            raise ConfigError("--meter page: name the page, --meter page=http://HOST:9400/metrics")
        try:
            self._address = _address(url)
            self._wanted = [_wanted(rest)] if rest.strip() else []
        except ValueError as e:
            raise ConfigError(f"--meter page: {e}") from None
        tls = tls_context(insecure=False) if self._address.tls else None
        self._link = Link(Server(address=self._address, tls=tls), LIMIT_S, option="")
        self._reads: list[_Read] = []
        self._sources: list[PowerSource] = []
        self._due_s = 0.0

    def __enter__(self) -> Self:
        try:
            page = self._page()
        except (HarnessError, OSError, ValueError) as e:
            self._link.close()
            raise ConfigError(f"--meter page={self._address}: {type_and_text(e)}") from e
        groups = [self._wanted] if self._wanted else _KNOWN
        for group in groups:
            self._find(page, group)
        if not self._reads:
            self._link.close()
            what = f"no series {self._wanted[0][0]}" if self._wanted else "no known power series"
            raise ConfigError(
                f"--meter page={self._address}: the page has {what}: name a series and its unit after the address"
            )
        return self

    def __exit__(self, *exc: object) -> None:
        self._link.close()

    def sources(self) -> list[PowerSource]:
        return self._sources

    def read(self) -> list[float | Exception]:
        time.sleep(max(0.0, self._due_s - time.monotonic()))
        self._due_s = time.monotonic() + EVERY_S
        page = self._page()
        return [self._value(page, one) for one in self._reads]

    @staticmethod
    def _value(page: Page, one: _Read) -> float | Exception:
        found = page.samples(one.series)
        if not found:
            return ValueError(f"the page no longer has {one.series.name}")
        return found[0].value * one.factor

    def _find(
        self, page: Page, group: "tuple[tuple[str, str], ...] | list[tuple[str, str]]"
    ) -> None:
        for text, unit in group:
            samples = page.samples(Series.parse(text))
            for number, sample in enumerate(samples):
                self._add(Series.parse(text), sample, unit, number)
            if samples:
                return

    def _add(self, series: Series, sample: Sample, unit: str, number: int) -> None:
        kind, factor = _UNITS[unit]
        labels = frozenset(sample.labels.items())
        self._reads.append(_Read(Series(series.name, labels), kind, factor))
        shown = [
            f"{name} {sample.labels[name]}" for name in _SHOWN_LABELS if sample.labels.get(name)
        ]
        name = f"page:{series.name}" if not number else f"page:{series.name}:{number}"
        about = ", ".join(shown) or "as the page's exporter defines it"
        self._sources.append(PowerSource(name, about, kind))

    def _page(self) -> Page:
        reply = self._link.exchange(Request("", method="GET"))
        if reply.status != 200:
            raise ValueError(f"the page answered {reply.status}")
        return Page(bytes(reply.body).decode("utf-8", "replace"))


def _address(url: str) -> Address:
    address = parse_address(url)
    if address.grpc:
        raise ValueError(f"{url!r} is not the address of a metrics page: write it with http://")
    return address if address.prefix else address._replace(prefix="/metrics")


def _wanted(text: str) -> tuple[str, str]:
    series, _, unit = text.strip().rpartition(" ")
    if unit not in _UNITS or not series.strip():
        raise ValueError(f"{text.strip()!r} is not a series followed by one of {', '.join(_UNITS)}")
    return str(parse_series(series.strip())), unit


_: type[PowerMeter] = PageMeter
