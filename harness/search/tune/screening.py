"""Screens the whole `tune` grid with bare loops, so that LoadGen needs to judge only a few placements."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from harness.core.config.run_config import RunConfig, to_plain
from harness.core.service_times import QUANTILES, ServiceTimes, joined, together
from harness.core.units import show_ns
from harness.errors import HarnessError, RunInvalid, one_line
from harness.loadgen.plan import InstanceGroup
from harness.loadgen.scenario import scenario_named
from harness.run.progress import Pace, Progress
from harness.run.supervisor.measured_process import START_LIMIT_S, MeasuredProcess
from harness.run.supervisor.progress import RunProgress
from harness.search.tune.candidates import ALIKE, Forecast, Layout, Placement, best_batch
from harness.search.tune.content import LayoutEntry


class Bare(NamedTuple):
    service: ServiceTimes
    tunable: Mapping[str, Sequence[str]]
    """Maps a backend option to the values to try in addition to the configured value."""
    ended: str = ""
    """Error that prevented larger sizes from being measured; '' if no error occurred."""
    fixed_batch: int | None = None
    """Batch size in samples that the model file fixes; None if the file takes any batch size."""


def time_layout(
    config: RunConfig,
    dataset: str,
    spec: InstanceGroup,
    sizes: Sequence[int],
    most_ns: int | None,
    output: Path,
    progress: Progress,
) -> Bare:
    """Times a layout's batch sizes in bare loops.

    Raises HarnessError if not even the first size could be timed. config: includes the layout. most_ns: time limit per
    batch. If the batches of a size take longer than this limit, no larger size is timed.
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

    shown = RunProgress(progress, "bare loops")
    module = "harness.run.measured.bare_loops"
    with MeasuredProcess(setup, output, module, while_waiting=shown.show_step) as process:
        loaded = process.expect(["loaded"], limit_s, shown.show_loading)
        try:
            shown.begin_step("timing batches")
            while True:
                message = process.expect(["timed", "done"], limit_s, shown.show_loading)
                if message["event"] == "done":
                    break
                parts.append(ServiceTimes.from_json(message["times"]))
        except HarnessError as e:
            if not parts:
                raise
            ended = one_line(e)
    progress.clear()
    return Bare(joined(parts), loaded["tunable"], ended, loaded["fixed_batch"])


TimeLayout = Callable[[Layout, Sequence[int]], Bare]
"""Returns a layout's service times for the given batch sizes. Raises a HarnessError if the layout cannot be measured.
"""

NOT_TRIED = "not tried: "
"""Prefix of the reason if no process was started for a layout."""

WITH_OPTIONS = 2
"""The backend's options are tried for this many of the best layouts."""


@dataclass(slots=True)
class Measured:
    layout: Layout
    parts: list[ServiceTimes] = field(default_factory=list)
    """Service times of each pass."""
    values: Mapping[int, float] = field(default_factory=dict)
    """Forecasts for each largest batch size."""
    batch: int = 0
    """Best largest batch size; 0 if no forecast exists."""
    failed: str = ""
    """Reason why the layout was not measured, or why it cannot meet the SLO; empty if neither applies."""
    ended: str = ""
    """Reason why larger batches were not measured; empty if no such reason exists."""
    tunable: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Maps a backend option to the values to try in addition to the layout's values."""

    @property
    def plan(self) -> Placement:
        return Placement(self.layout, self.batch)

    @property
    def predicted(self) -> float:
        return self.values[self.batch]

    @property
    def service(self) -> ServiceTimes:
        """Service times of all passes by batch size."""
        sizes = sorted({size for part in self.parts for size in part.sizes})
        return joined([together(*(p.only({s}) for p in self.parts if s in p.sizes)) for s in sizes])

    def to_json(self) -> LayoutEntry:
        times = self.service if self.parts else None
        return {
            "instances": self.layout.instances,
            "threads": self.layout.threads,
            "options": dict(self.layout.options),
            "predicted": {str(size): value for size, value in self.values.items()},
            "best_batch": self.batch or None,
            "passes": len(self.parts),
            "service_ns": {str(n): times.median_ns(n) for n in times.sizes} if times else {},
            "repetitions": sum(times.counts) if times else 0,
            "failed": self.failed or None,
            "larger_batches": self.ended or None,
        }


@dataclass
class Cut:
    forecast: Forecast
    time_layout: TimeLayout
    largest: Callable[[ServiceTimes, int | None], Sequence[int]]
    """Returns the candidates for the largest batch size, from the service times and the fixed batch size."""
    progress: Progress
    least_ns: Callable[[Layout], float | None] = lambda _layout: None
    """Returns the minimum time per sample in one instance of a layout; None if unknown."""
    measured: dict[Layout, Measured] = field(default_factory=dict)
    """Layouts measured so far, the default first."""
    fixed_batch: int | None = None
    """Batch size in samples if the model file fixes the size. The value is known after a layout has been loaded."""
    _errors: list[HarnessError] = field(default_factory=list)
    _best: tuple[float, Layout] | None = None
    """Best forecast among the layouts timed so far."""

    @property
    def has_measured(self) -> bool:
        return any(one.parts for one in self.measured.values())

    def run(
        self, layouts: Sequence[Layout], sizes: Sequence[int], configured: Mapping[str, str]
    ) -> None:
        """Screens the layouts. configured: backend options that the user has set, which are not varied.

        Measures every layout twice, the second time in reverse order, so that a drift in the machine's speed affects
        all layouts equally. Raises an error if no layout could be measured or none can meet the SLO.
        """
        self._pass_twice(layouts, sizes)
        best = self._left()
        changed: list[Layout] = []
        for one in best[:WITH_OPTIONS]:
            changes = [
                (name, value)
                for name, values in one.tunable.items()
                if name not in configured
                for value in values
            ]
            changed += [one.layout._replace(options=(change,)) for change in changes]
            changed += [one.layout] if changes else []
        if not changed:
            return
        near = _near(sizes, best[:WITH_OPTIONS])
        self._pass_twice(changed, near)
        combined = self._all_that_helped(best[0].layout)
        if combined is not None:
            self._pass_twice([combined], near)
        self._left()  # this second call is needed because later passes may have ruled out a layout

    def ranked(self) -> list[Measured]:
        """Returns the layouts with a forecast, best first."""
        aim = self.forecast.aim
        known = [one for one in self.measured.values() if one.values]
        return sorted(known, key=lambda one: aim.gain(one.predicted, 1.0), reverse=True)

    def _left(self) -> list[Measured]:
        """Returns `ranked`. If the list is empty, raises an error with the cause."""
        ranked = self.ranked()
        if ranked:
            return ranked
        slow = {one.layout: one.service for one in self.measured.values() if one.parts}
        if not slow:
            raise self._errors[0]
        alone_ns, layout = min((self.forecast.alone_ns(slow[one]), one) for one in slow)
        raise RunInvalid(
            f"no layout meets {self.forecast.slo}, not even for a single query; the fastest, "
            f"{layout}, takes {show_ns(alone_ns)}: raise --slo"
        )

    def brings_nothing(self, one: Measured) -> bool:
        """Returns whether the layout's options bring no gain."""
        plain = self.measured.get(one.layout._replace(options=()))
        if not one.layout.options or plain is None or not plain.values:
            return False
        return self.forecast.aim.gain(one.predicted, plain.predicted) <= 1 + ALIKE

    def _pass_twice(self, layouts: Sequence[Layout], sizes: Sequence[int]) -> None:
        """Times each layout twice, unless it fails or its fastest batch is slower than the bound."""
        pace, both = Pace(), (*layouts, *reversed(layouts))
        for number, layout in enumerate(both, 1):
            one = self.measured.setdefault(layout, Measured(layout))
            if one.failed or self.forecast.is_beyond(one.parts):
                continue
            if not one.parts and (why := self._too_slow(layout, sizes)):
                one.failed = why
                continue
            # The runs by LoadGen take longer, so the time left for the loops says little.
            self.progress.series(f"bare loops {number} of {len(both)}: {layout}", None)
            begun_s = time.monotonic()
            try:
                bare = self.time_layout(layout, sizes)
            except HarnessError as e:
                self._errors.append(e)
                if one.parts:  # the times of an earlier, successful pass are kept
                    one.ended = one_line(e)
                else:
                    one.failed = one_line(e)
                continue
            self.fixed_batch = bare.fixed_batch
            one.tunable = bare.tunable or one.tunable
            pace.ended(time.monotonic() - begun_s)
            one.parts.append(bare.service)
            if self.least_ns(layout) is not None:
                self._note(layout, bare.service)
            one.ended = one.ended or bare.ended
        self._predict(layouts)

    def _forecast(self, layout: Layout, service: ServiceTimes) -> float | None:
        if self.forecast.hopeless(service):
            return None
        sizes = self.largest(service, self.fixed_batch)
        values, batch = best_batch(self.forecast, service, layout.instances, sizes)
        return values[batch]

    def _note(self, layout: Layout, service: ServiceTimes) -> None:
        value = self._forecast(layout, service)
        if value and (self._best is None or self.forecast.aim.gain(value, self._best[0]) > 1):
            self._best = value, layout

    def _too_slow(self, layout: Layout, sizes: Sequence[int]) -> str:
        """Returns the reason why the layout, even at the machine's peaks, would be slower than a measured layout; '' if
        it may be faster.
        """
        least_ns = self.least_ns(layout)
        if least_ns is None or self._best is None:
            return ""
        ns = np.outer(sizes, np.full(QUANTILES, least_ns))
        value = self._forecast(layout, ServiceTimes(tuple(sizes), ns, (1,) * len(sizes)))
        best, fastest = self._best
        if not value or self.forecast.aim.gain(value, best) >= 1:
            return ""
        show = self.forecast.aim.show
        return (
            f"{NOT_TRIED}{show(value)} at the machine's peaks, but {fastest} reaches {show(best)}"
        )

    def _predict(self, layouts: Iterable[Layout]) -> None:
        for layout in layouts:
            one = self.measured[layout]
            if not one.parts:
                continue
            service = one.service
            one.values, one.batch, one.failed = {}, 0, self.forecast.hopeless(service)
            if not one.failed:
                sizes = self.largest(service, self.fixed_batch)
                one.values, one.batch = best_batch(self.forecast, service, layout.instances, sizes)

    def _all_that_helped(self, layout: Layout) -> Layout | None:
        """Returns the layout with all options that helped individually; None if fewer than two options helped."""
        helped = [
            one.layout.options[0]
            # The worst come first, so that `dict` keeps the best value of each option.
            for one in reversed(self.ranked())
            if one.layout[:2] == layout[:2]
            and len(one.layout.options) == 1
            and not self.brings_nothing(one)
        ]
        options = tuple(dict(helped).items())
        return layout._replace(options=options) if len(options) > 1 else None


def _near(sizes: Sequence[int], best: Sequence[Measured]) -> Sequence[int]:
    """Returns the smallest size, and all sizes from a quarter of the best sizes to four times the best sizes."""
    least, most = min(one.batch for one in best), max(one.batch for one in best)
    return [s for s in sizes if s == sizes[0] or least / 4 <= s <= most * 4]
