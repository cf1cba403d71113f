"""Estimates the energy from busy CPU time on machines without a meter, and marks the result as `estimated`."""

import math
import os
from typing import Self

import psutil

from harness.errors import ConfigError
from harness.machine.power.meters.base import HoldsNothing
from harness.types import PowerMeter, PowerSource

WATTS_A_THREAD = 4.0
"""Power that is assumed for a hardware thread under load; codecarbon assumes the same for unknown processors."""


class EstimateMeter(HoldsNothing):
    """argument: power of the whole processor in watts when all hardware threads are busy. '' means 4 W per thread.

    The energy is the power per thread multiplied by the busy time of all threads. The estimate ignores idle power,
    memory, the rest of the machine, and frequency changes.
    """

    def __init__(self, argument: str) -> None:
        threads = os.cpu_count() or 1
        try:
            watts = float(argument) if argument else WATTS_A_THREAD * threads
        except ValueError:
            watts = math.nan
        if not 0 < watts <= 1e5:
            raise ConfigError(
                f"--meter estimate={argument}: write the processor's watts under full load, e.g. 65"
            )
        self._watts, self._threads = watts, threads

    def __enter__(self) -> Self:
        return self

    def sources(self) -> list[PowerSource]:
        domain = (
            f"an estimate: busy CPU time of the whole machine x {self._watts / self._threads:.3g} W "
            "per hardware thread; no power was measured"
        )
        return [PowerSource("estimate:cpu", domain, "J", provenance="estimated")]

    def read(self) -> list[float]:
        times = psutil.cpu_times()
        # Guest time is left out, because user time already includes it.
        busy_s = times.user + times.nice + times.system
        return [busy_s * self._watts / self._threads]


_: type[PowerMeter] = EstimateMeter
