"""The first half of `tune`: bare loops over the whole grid, so that LoadGen need judge only a few."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.core.service_times import ServiceTimes, joined, together
from harness.core.units import show_ns
from harness.errors import HarnessError, RunInvalid, one_line
from harness.search.tune.bare_loops import Bare
from harness.search.tune.candidates import ALIKE, Forecast, Layout, Plan, best_batch

TimeLayout = Callable[[Layout, Sequence[int]], Bare]
"""Measures a layout at these batch sizes; raises a HarnessError where it cannot."""

WITH_OPTIONS = 2
"""The options of the backend are tried on so many of the best layouts."""


@dataclass(slots=True)
class Measured:
    """One layout. parts: of each pass. values: largest batch -> what is predicted for it.

    failed: why it was not measured, or can be no plan. ended: why larger batches were not measured.
    """

    layout: Layout
    parts: list[ServiceTimes] = field(default_factory=list)
    values: Mapping[int, float] = field(default_factory=dict)
    batch: int = 0
    failed: str = ""
    ended: str = ""

    @property
    def plan(self) -> Plan:
        return Plan(self.layout, self.batch)

    @property
    def predicted(self) -> float:
        return self.values[self.batch]

    @property
    def service(self) -> ServiceTimes:
        """Of every size all passes that timed it."""
        sizes = sorted({size for part in self.parts for size in part.sizes})
        return joined([together(*(p.only({s}) for p in self.parts if s in p.sizes)) for s in sizes])

    def to_json(self) -> dict[str, Any]:
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


class Cut:
    """measured: so far, the default first; it grows while `run` goes on. fixed_batch: samples, where
    the model file allows no other batch; known as soon as a layout could be loaded.
    """

    def __init__(
        self,
        forecast: Forecast,
        time_layout: TimeLayout,
        largest: Callable[[ServiceTimes, int | None], Sequence[int]],
        tell: Callable[[str], None],
    ) -> None:
        """largest: what to choose a largest batch from, by the times and the batch that the file fixes."""
        self.measured: dict[Layout, Measured] = {}
        self.fixed_batch: int | None = None
        self._forecast = forecast
        self._time_layout = time_layout
        self._largest = largest
        self._tell = tell
        self._tunable: Mapping[str, Sequence[str]] = {}
        self._errors: list[HarnessError] = []

    @property
    def has_measured(self) -> bool:
        return any(one.parts for one in self.measured.values())

    def run(
        self, layouts: Sequence[Layout], sizes: Sequence[int], configured: Mapping[str, str]
    ) -> None:
        """configured: backend options that the user has chosen, which are kept.

        Every layout is measured twice, the second time in reverse order, so that a machine that
        becomes slower or faster does so for all. Raises where none can be measured, or none
        can meet the SLO.
        """
        self._pass_twice(layouts, sizes)
        best = self._left()
        changes = [
            (name, value)
            for name, values in self._tunable.items()
            if name not in configured
            for value in values
        ]
        if not changes:
            return
        changed: list[Layout] = []
        for one in best[:WITH_OPTIONS]:
            changed += [one.layout._replace(options=(change,)) for change in changes]
            changed.append(one.layout)
        near = _near(sizes, best[:WITH_OPTIONS])
        self._pass_twice(changed, near)
        combined = self._all_that_helped(best[0].layout)
        if combined is not None:
            self._pass_twice([combined], near)
        self._left()  # the passes after the first two may have seen what rules a layout out

    def ranked(self) -> list[Measured]:
        """Those that could be measured, best prediction first."""
        aim = self._forecast.aim
        known = [one for one in self.measured.values() if one.values]
        return sorted(known, key=lambda one: aim.gain(one.predicted, 1.0), reverse=True)

    def _left(self) -> list[Measured]:
        """As `ranked`; raises why where there is none."""
        ranked = self.ranked()
        if ranked:
            return ranked
        slow = {one.layout: one.service for one in self.measured.values() if one.parts}
        if not slow:
            raise self._errors[0]
        alone_ns, layout = min((self._forecast.alone_ns(slow[one]), one) for one in slow)
        raise RunInvalid(
            f"no layout meets {self._forecast.slo}, not even where a query is alone: the fastest, "
            f"{layout}, takes {show_ns(alone_ns)}: raise --slo"
        )

    def brings_nothing(self, one: Measured) -> bool:
        """Its options are no better than doing without them."""
        plain = self.measured.get(one.layout._replace(options=()))
        if not one.layout.options or plain is None or not plain.values:
            return False
        return self._forecast.aim.gain(one.predicted, plain.predicted) <= 1 + ALIKE

    def _pass_twice(self, layouts: Sequence[Layout], sizes: Sequence[int]) -> None:
        for layout in (*layouts, *reversed(layouts)):
            one = self.measured.setdefault(layout, Measured(layout))
            if one.failed:
                continue
            self._tell(f"bare loops: {layout}")
            try:
                found = self._time_layout(layout, sizes)
            except HarnessError as e:
                self._errors.append(e)
                if one.parts:  # it went well the first time
                    one.ended = one_line(e)
                else:
                    one.failed = one_line(e)
                continue
            self.fixed_batch = found.fixed_batch
            self._tunable = found.tunable or self._tunable
            one.parts.append(found.service)
            one.ended = one.ended or found.ended
        self._predict(layouts)

    def _predict(self, layouts: Iterable[Layout]) -> None:
        for layout in layouts:
            one = self.measured[layout]
            if not one.parts:
                continue
            service = one.service
            one.values, one.batch, one.failed = {}, 0, self._forecast.hopeless(service)
            if not one.failed:
                sizes = self._largest(service, self.fixed_batch)
                one.values, one.batch = best_batch(self._forecast, service, layout.instances, sizes)

    def _all_that_helped(self, layout: Layout) -> Layout | None:
        """Where more than one option alone made it better."""
        helped = [
            one.layout.options[0]
            for one in reversed(self.ranked())  # of an option's values the best one stays
            if one.layout[:2] == layout[:2]
            and len(one.layout.options) == 1
            and not self.brings_nothing(one)
        ]
        options = tuple(dict(helped).items())
        return layout._replace(options=options) if len(options) > 1 else None


def _near(sizes: Sequence[int], best: Sequence[Measured]) -> Sequence[int]:
    """The smallest, and those up to a quarter and four times of what was best; others are settled."""
    least, most = min(one.batch for one in best), max(one.batch for one in best)
    return [s for s in sizes if s == sizes[0] or least / 4 <= s <= most * 4]
