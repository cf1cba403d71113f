"""Bare loops of a placement, timed in a child process: the model without load generator."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.core.config.run_config import RunConfig, to_plain
from harness.core.service_times import ServiceTimes, joined
from harness.errors import HarnessError, one_line
from harness.loadgen.plan import Instances
from harness.run.supervisor.measured_process import START_LIMIT_S, MeasuredProcess


class Bare(NamedTuple):
    """tunable: backend option -> values to try beside the configured one. ended: why larger sizes
    were not measured although they were to be, '' where nothing was wrong. fixed_batch: samples,
    where the model file allows no other batch.
    """

    service: ServiceTimes
    tunable: Mapping[str, Sequence[str]]
    ended: str = ""
    fixed_batch: int | None = None


def time_layout(
    config: RunConfig,
    dataset: str,
    spec: Instances,
    sizes: Sequence[int],
    most_ns: int | None,
    output: Path,
) -> Bare:
    """config: with the layout in it. most_ns: no larger size where a batch takes longer.

    Raises what kept the first size from being measured.
    """
    setup = {
        "config": to_plain(config),
        "dataset": dataset,
        "spec": spec._asdict(),
        "sizes": list(sizes),
        "most_ns": most_ns,
        "streams": config.scenario.endswith("stream"),
    }
    given_ns = config.hang_timeout_ns
    limit_s = START_LIMIT_S if given_ns is None else given_ns / 1e9
    parts: list[ServiceTimes] = []
    ended = ""

    def ignore(_done: int, _total: int) -> None:
        """How far the dataset is."""

    with MeasuredProcess(setup, output, "harness.run.measured.bare_loops") as process:
        loaded = process.expect("loaded", limit_s, ignore)
        try:
            while (told := process.expect("timed", limit_s, ignore))["event"] != "done":
                parts.append(ServiceTimes.from_json(told["times"]))
        except HarnessError as e:
            if not parts:
                raise
            ended = one_line(e)
    return Bare(joined(parts), loaded["tunable"], ended, loaded["fixed_batch"])
