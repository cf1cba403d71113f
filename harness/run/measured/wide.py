"""Opens the wide instance, with a thread on each core, where it answers a query that is alone sooner than one core does."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from harness.core import registry
from harness.core.config.run_config import RunConfig
from harness.core.registry import plugin
from harness.core.units import show_ns
from harness.errors import HarnessError, one_line
from harness.loadgen.plan import InstanceGroup
from harness.machine.threads import running_on
from harness.models.manifest.model import Model
from harness.models.opened.loading import open_backends
from harness.models.opened.separate_instance import SeparateInstance
from harness.run.measured.answerer import Answerer

WORTH = 0.8
"""Most time of the wide instance, as a share of a usual one's that has its core alone: other queries wait for it."""

LOAD_LIMIT_S = 5.0
"""Longest load of a usual instance, after which no other one is loaded: LoadGen's run waits for it."""

WARM_UP, ROUNDS = 3, 10
"""Rounds of a sample in each of the two, and how many of them only warm up."""

LIMIT_S = 1.0
"""After this long, the rounds made so far decide, if at least one followed a first one."""


class Wide:
    """The answerer, or the reason why there is none."""

    answerer: Answerer | None = None
    """Its `cpus` are the processor of the thread that calls it."""
    reason: str | None = None
    wide_ns: int | None = None
    narrow_ns: int | None = None
    """Median time of one sample, in the wide instance and in a usual one, nothing else computing."""

    def __init__(self, group: InstanceGroup) -> None:
        self._group = group

    def open(
        self,
        config: RunConfig,
        model: Model,
        path: Path | None,
        usual: Answerer,
        loaded_s: float,
        sample: int,
        stack: ExitStack,
    ) -> None:
        """usual: an open instance, which took loaded_s to load. sample: a dataset index that is loaded."""
        self.reason = _unsuitable(config, usual, loaded_s)
        if self.reason is not None:
            return
        cpus = self._group.wide
        alone = self._group._replace(instances=1, threads=len(cpus), pinned=(), owns_cores=True)
        try:
            with plugin("an instance on all cores"), running_on(cpus[:1]):
                (backend,) = open_backends(config, model, path, alone, stack, cpus=cpus)
                wide = usual._replace(backend=backend, cpus=cpus[:1])
                self.wide_ns, self.narrow_ns = _times_ns(wide, usual, sample)
        except HarnessError as e:  # the run does without
            self.reason = f"it does not work: {one_line(e)}"
            return
        if self.wide_ns > WORTH * self.narrow_ns:
            times = f"{show_ns(self.wide_ns)} on all cores, {show_ns(self.narrow_ns)} on one"
            self.reason = f"it gains too little: a sample takes {times}"
            return
        self.answerer = wide

    def about(self) -> Mapping[str, Any]:
        """`elastic` of the last message."""
        threads = len(self._group.wide) if self.answerer is not None else None
        times = {"wide_ns": self.wide_ns, "narrow_ns": self.narrow_ns}
        return {"threads": threads, **times, "reason": self.reason}


def _times_ns(wide: Answerer, usual: Answerer, sample: int) -> tuple[int, int]:
    """The median time of the sample in each, in turns."""
    times_ns: tuple[list[int], list[int]] = ([], [])
    deadline_s = time.monotonic() + LIMIT_S
    for rounds in range(ROUNDS):
        if rounds > 1 and time.monotonic() > deadline_s:
            break
        for each, mine in zip((wide, usual), times_ns, strict=True):
            with running_on(each.cpus):
                mine.append(each.time_ns([sample]))
    warm_up = min(WARM_UP, len(times_ns[0]) - 1)
    of_wide, of_usual = (int(median(mine[warm_up:])) for mine in times_ns)
    return of_wide, of_usual


def _unsuitable(config: RunConfig, usual: Answerer, loaded_s: float) -> str | None:
    if isinstance(usual.backend, SeparateInstance):
        return "instances in separate processes have no place for it"
    if not getattr(registry.load("backend", config.backend), "elastic", False):
        return f"backend {config.backend!r} cannot bind the threads of an instance to cores"
    if loaded_s > LOAD_LIMIT_S:
        return f"one more instance takes too long to load ({loaded_s:.3g} s)"
    return None
