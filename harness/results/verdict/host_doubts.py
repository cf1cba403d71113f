"""Derives doubts about the machine's settings and behaviour during the run, from host.csv. Has no side effects."""

from collections.abc import Iterator, Mapping
from typing import Any

from harness.core.codes import Reason
from harness.core.units import counted, show_bytes, show_percent
from harness.loadgen.scenario import scenario_named
from harness.machine import gpus
from harness.results.verdict.doubts import OTHERS_SHARE

FREQUENCY_SHARE = 0.10
"""The run gets a doubt if the fastest core's frequency falls by more than this share from the first third of the run to
the last.
"""

PAGED_SHARE = 0.01
"""If at least this many page faults per sample require disk access, the faults determine the 99th percentile."""

PREEMPTED_PER_CPU_S = 200
"""The run gets a doubt if its involuntary context switches exceed this number per second of CPU time. On two cores in
Offline, an idle machine reached at most 60, and a machine that ran other programs reached 800 to 24,000.
"""

GPU_CLOCK_SHARE = 0.10
"""The run gets a doubt if a GPU's clock falls during the run by more than this share of its highest value."""

LEAK_SHARE = 0.05
LEAK_BYTES = 16 << 20
LEAK_BYTES_PER_SAMPLE = 400
"""Memory is leaking if its growth in the second half of a run, minus LEAK_BYTES_PER_SAMPLE per sample for LoadGen's
records, exceeds both LEAK_BYTES and LEAK_SHARE of the memory.
"""

_FEWEST_SWITCHES = 100
_STEADY = ("governor_performance", "governor_userspace")
"""Governors that do not lower the clock of an idle core."""


def host_doubts(
    host: Mapping[str, Any],
    scenario: str,
    samples: int,
    others: float | None = None,
    *,
    remote: bool = False,
) -> Iterator[Reason]:
    """Yields doubts about the machine. host: summary of host.csv. samples: number of answered samples. others: share of
    all cores that other processes used.

    remote: whether a server answers, so that the measured process is only the client.
    """
    yield from _frequency_doubts(host)
    yield from _setting_doubts(host, scenario)
    yield from _memory_doubts(host, samples)
    yield from _leak_doubts(host, samples)
    yield from _preemption_doubts(host, others, remote=remote)
    yield from _interference_doubts(host)
    for gpu in host.get("gpus", ()):  # files of older versions do not contain GPUs
        yield from _gpu_doubts(gpu)


def _frequency_doubts(host: Mapping[str, Any]) -> Iterator[Reason]:
    first, last = host["fastest_core_mhz"].values()
    if first is not None and last < (1 - FREQUENCY_SHARE) * first:
        yield Reason(
            "frequency-dropped",
            f"the fastest core ran at {first:,.0f} MHz in the first third of the run and at "
            f"{last:,.0f} in the last: let the machine settle with a longer run, or fix its frequency",
        )
    if host["thermal_throttles"]:
        hottest = host["hottest_celsius"]
        detail = f" (peak {hottest:.0f} °C)" if hottest is not None else ""
        yield Reason(
            "thermal-throttled",
            f"the CPU throttled {counted(int(host['thermal_throttles']), 'time')} because of heat{detail}: improve "
            "cooling, or report only runs that start after throttling has become steady",
        )


def _setting_doubts(host: Mapping[str, Any], scenario: str) -> Iterator[Reason]:
    governed = {n: v for n, v in host["settings"].items() if n.startswith("governor_")}
    slowing = {n.removeprefix("governor_"): v for n, v in governed.items() if n not in _STEADY}
    # Offline is left out, because its cores never wait for queries.
    if slowing and not scenario_named(scenario).all_at_once:
        names = " and ".join(map(repr, slowing))
        yield Reason(
            "governor",
            f"the governor {names} may slow down {sum(slowing.values()):.0f} of "
            f"{sum(governed.values()):.0f} cores between two queries, which lengthens latencies at low rates: run `cpupower "
            "frequency-set -g performance`",
        )
    if host["settings_changed"]:
        detail = ", ".join(
            f"{name} between {low:g} and {high:g}"
            for name, (low, high) in host["settings_changed"].items()
        )
        yield Reason(
            "settings-changed",
            f"settings of the machine changed during the run ({detail}): find the cause, such as a power "
            "daemon, and run again",
        )


def _memory_doubts(host: Mapping[str, Any], samples: int) -> Iterator[Reason]:
    faults = host["measured_major_faults"]
    if faults and faults > PAGED_SHARE * samples:
        left = host["memory_available_bytes"]
        detail = f", with at least {show_bytes(left)} of memory left" if left is not None else ""
        yield Reason(
            "paged",
            f"the measured process waited for the disk {faults:,.0f} times to read pages of its "
            f"memory or files, in {samples:,} samples{detail}: free memory, or hold fewer samples with "
            "--performance-count",
        )


def _leak_doubts(host: Mapping[str, Any], samples: int) -> Iterator[Reason]:
    """Yields a doubt if memory grows evenly until the end of the run. Requires even growth,
    because the memory of an allocator that is only warming up grows ever more slowly.
    """
    held = host["measured_anonymous_bytes"]
    if held is None:
        return
    begin, _, middle, late, end = held
    grown = end - middle - LEAK_BYTES_PER_SAMPLE * samples / 2
    steady = min(late - middle, end - late) >= grown / 4 and grown >= (middle - begin) / 2
    if steady and grown > max(LEAK_BYTES, LEAK_SHARE * middle):
        yield Reason(
            "leak",
            f"the measured process's memory grew from {show_bytes(begin)} to {show_bytes(middle)} in the first "
            f"half of the run and to {show_bytes(end)} in the second: the backend keeps data from each "
            "batch, or leaves it to Python's garbage collection, which is off in a run",
        )


def _preemption_doubts(
    host: Mapping[str, Any], others: float | None, *, remote: bool
) -> Iterator[Reason]:
    switches, cpu_s = host["measured_involuntary_switches"], host["measured_cpu_s"]
    if cpu_s and switches and switches >= max(_FEWEST_SWITCHES, PREEMPTED_PER_CPU_S * cpu_s):
        advice = ": use fewer --instances and --threads, or stop other programs"
        if remote:
            advice = ": run the server and the client on different cores, or stop other programs"
        if others is not None and others > OTHERS_SHARE:
            advice = f"; other processes used {show_percent(others)} of the cores: stop them"
        yield Reason(
            "preempted",
            f"other threads took the cores {switches:,.0f} times ({switches / cpu_s:,.0f} per second of CPU "
            f"time){advice}",
        )


def _interference_doubts(host: Mapping[str, Any]) -> Iterator[Reason]:
    """Yields doubts about other programs that interfered with the measured threads."""
    confined, lowered, stopped = (
        host[f"measured_{name}"]
        for name in ("confined_threads", "lowered_threads", "stopped_looks")
    )
    if confined:
        yield Reason(
            "cores-lost",
            f"measured threads lost the right to use some of their cores {confined:,.0f} times: they had fewer cores for a "
            "part of the run",
        )
    if lowered:
        yield Reason(
            "priority-lowered",
            f"the priority of a measured thread was lowered {lowered:,.0f} times during the run",
        )
    if stopped:
        yield Reason(
            "stalled",
            f"a signal or a debugger had stopped the measured process at {stopped:,.0f} of {host['rows']:,} checks, "
            "one per second",
        )


def _gpu_doubts(gpu: Mapping[str, Any]) -> Iterator[Reason]:
    """Yields doubts about one GPU. gpu: an entry of the summary's `gpus`."""
    name = f"GPU {gpu['number']}"
    slowdowns = gpu["slowdowns"] or {}
    slowed = {why: share for why, share in slowdowns.items() if why in gpus.PROTECTIVE}
    if slowed:
        why = ", ".join(f"{text} in {show_percent(share)}" for text, share in slowed.items())
        at = gpu["hottest_celsius"]
        yield Reason(
            "gpu-throttled",
            f"{name} lowered its clock to protect itself ({why} of the seconds)"
            + (f", peak {at:.0f} °C" if at is not None else ""),
        )
    clocks = gpu["sm_mhz"]
    if clocks is not None and clocks["lowest"] < (1 - GPU_CLOCK_SHARE) * clocks["highest"]:
        others = [why for why in slowdowns if why not in gpus.PROTECTIVE]
        yield Reason(
            "gpu-clocks",
            f"{name} ran at {clocks['lowest']:,.0f} to {clocks['highest']:,.0f} MHz in the run"
            + (f" ({', '.join(others)})" if others else ""),
        )
    if gpu["other_processes"]:
        yield Reason(
            "gpu-shared",
            f"{counted(int(gpu['other_processes']), 'other process', 'other processes')} computed on {name} during the run",
        )
    if gpu.get("mig"):
        yield Reason(
            "gpu-divided",
            f"{name} is divided into instances (MIG): other instances share its clock and its power, and NVML does not "
            "report the load of one instance",
        )
    if gpu["ecc_errors"]:
        yield Reason(
            "gpu-errors",
            f"{name} counted {counted(int(gpu['ecc_errors']), 'memory error')} that ECC could not correct",
        )
