"""Times bare loops of a layout in a child process: the model without load generator."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.core.config.run_config import RunConfig, to_plain
from harness.core.service_times import ServiceTimes, joined
from harness.errors import HarnessError, one_line
from harness.loadgen.plan import InstanceGroup
from harness.loadgen.scenario import scenario_named
from harness.run.supervisor.measured_process import START_LIMIT_S, MeasuredProcess


class Bare(NamedTuple):
    service: ServiceTimes
    tunable: Mapping[str, Sequence[str]]
    """Backend option -> values to try beside the configured one."""
    ended: str = ""
    """The error that kept larger sizes from being measured, '' without one."""
    fixed_batch: int | None = None
    """Samples, where the model file allows no other batch."""


def time_layout(
    config: RunConfig,
    dataset: str,
    spec: InstanceGroup,
    sizes: Sequence[int],
    most_ns: int | None,
    output: Path,
) -> Bare:
    """config: includes the layout. most_ns: a size whose batches take longer is the last one.

    Raises the HarnessError that kept the first size from being measured.
    """
    setup = {
        "config": to_plain(config),
        "dataset": dataset,
        "spec": spec._asdict(),
        "sizes": list(sizes),
        "most_ns": most_ns,
        "streams": scenario_named(config.scenario).streams,
    }
    hang_ns = config.hang_timeout_ns
    limit_s = START_LIMIT_S if hang_ns is None else hang_ns / 1e9
    parts: list[ServiceTimes] = []
    ended = ""

    def ignore(_done: int, _total: int) -> None:
        """Progress of loading the dataset."""

    with MeasuredProcess(setup, output, "harness.run.measured.bare_loops") as process:
        loaded = process.expect("loaded", limit_s, ignore)
        try:
            while (message := process.expect("timed", limit_s, ignore))["event"] != "done":
                parts.append(ServiceTimes.from_json(message["times"]))
        except HarnessError as e:
            if not parts:
                raise
            ended = one_line(e)
    return Bare(joined(parts), loaded["tunable"], ended, loaded["fixed_batch"])
