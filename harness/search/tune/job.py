"""Finds the best instances, threads, largest batch and backend options for a scenario and an SLO (`tune`).

Bare loops screen the whole grid (screening.py) with a forecast for an ideal dispatcher (candidates.py). Runs under
LoadGen judge the finalists (rounds.py, decision.py). The folder contains the winner as tuned.yaml, all measurements in
tune.json, and a page.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from typing import cast

from harness.core.config.parse import Slo, leading
from harness.core.config.run_config import SCHEMA_VERSION, RunConfig, to_plain
from harness.core.formats.strict_yaml import write_yaml
from harness.core.signals import Stopped
from harness.errors import ConfigError, HarnessError, RunInvalid
from harness.loadgen.scenario import Scenario
from harness.machine import cores
from harness.models.manifest.defaults import default_dataset, slos_of
from harness.models.opened import instances
from harness.models.opened.loading import model_file
from harness.models.opened.remote import remote_problems
from harness.results import resolved
from harness.results.evidence.stages import PERCENTILES
from harness.run.measured.placement.fewer_threads import LIMIT_NS, fewer, fewest
from harness.run.study import Ended, Study, unfit_options, write_page
from harness.run.supervisor import preflight
from harness.search.options import TuneOptions
from harness.search.tune import table
from harness.search.tune.candidates import (
    Forecast,
    Layout,
    Placement,
    batch_sizes,
    candidates,
    layouts,
)
from harness.search.tune.content import AimEntry, Content, FinalistEntry, GainEntry
from harness.search.tune.decision import Decision, Finalist, Gain, decide, gain
from harness.search.tune.peaks import least_sample_ns
from harness.search.tune.rounds import Rounds
from harness.search.tune.screening import Bare, Cut, Measured, time_layout

TUNE = "tune.json"
TUNED = "tuned.yaml"
_OF_ONE_RUN = ("mode", "duration", "queries")


def problems(config: RunConfig, _options: TuneOptions) -> Iterator[str]:
    yield from unfit_options(
        config,
        "tune",
        "tune makes quick runs: drop --mlperf, and use its tuned.yaml for an official run",
    )
    yield from remote_problems(config, "tune")
    if len(config.slo) > 1:
        yield "tune judges by one SLO: drop the others"
    if config.queries is not None:
        yield "tune sets the length of its runs with --duration: drop --queries"
    if config.batch_wait_ns:
        yield "tune finds the batches that pay, without waiting for them to fill: drop --batch-wait"
    if config.meter:
        yield "--meter is for a single run, and tune makes many: drop it"


class TuneJob(Study[TuneOptions]):
    file = TUNE

    def _begin(self) -> None:
        config = self._config = replace(self._config, mode="performance")
        self._dataset = config.dataset or default_dataset(self._model)
        preflight.check(config, self._model, self._dataset, None)
        self._cores = cores.available()
        self._default = instances.plan(config, self._scenario, self._model, self._cores)
        self._slo = leading(slos_of(self._scenario, config, self._model))
        _check_percentile(self._scenario, self._slo)
        samples = self._scenario.samples_per_query(config)
        self._forecast = Forecast(self._scenario, samples, self._slo, config.target_qps)
        self._results = self._new_folder(
            f"tune-{config.scenario}", config.backend, self._model.name
        )
        self._loops = 0
        max_batch = self._default.max_batch if config.max_batch is not None else None
        self._cut = Cut(self._forecast, self._time, partial(candidates, max_batch), self._progress)
        self._rounds = Rounds(
            config=config,
            scenario=self._scenario,
            slo=self._slo,
            make_run=self.make_run,
            time_left=self.time_left,
            folder=self.folder,
            say=self._say,
            save=self._save,
        )
        self._finalists: list[Finalist] = []
        self._decision: Decision | None = None

    def run(self) -> int:
        """Finds the plan. Returns 4 if no placement could be judged or the chosen plan misses the SLO, else 0."""
        try:
            with self._stopping.allowed():
                self._save()  # so that `browse` shows the search during the bare loops
                preflight.obtain_model(self._config, self._model)
                self._cut_down()
                self._rounds.judge(self._finalists, self._options.rounds)
        except (Stopped, Ended, HarnessError):
            self._save()
            raise
        return self._publish()

    def has_measured(self) -> bool:
        return self._cut.has_measured

    def lines(self) -> Iterator[str]:
        return table.lines(self.content(), self.folder)

    def _cut_down(self) -> None:
        """Chooses the finalists: the default placement and the best of the remaining placements."""
        config = self._config
        grid = layouts(config, self._scenario, self._cores, self._default)
        path = model_file(config, self._model)
        self._cut.least_ns = least_sample_ns(config, path)
        self._cut.run(grid, batch_sizes(config, self._scenario), dict(config.backend_option))
        ranked = [one for one in self._cut.ranked() if not self._cut.brings_nothing(one)]
        plain = self._without_tuning(grid[0])
        if plain.values:
            (size,) = candidates(self._default.max_batch, plain.service, self._cut.fixed_batch)
            value = self._forecast.of(plain.service, plain.layout.instances, size)
            self._finalists.append(Finalist(Placement(plain.layout, size), value, is_default=True))
        known = {one.plan for one in self._finalists}
        for one in ranked:
            if len(self._finalists) < self._options.finalists and one.plan not in known:
                self._finalists.append(Finalist(one.plan, one.predicted, is_default=False))
        aim = self._forecast.aim
        self._finalists.sort(key=lambda one: aim.gain(one.predicted, 1.0), reverse=True)
        self._save()

    def _without_tuning(self, planned: Layout) -> Measured:
        """Returns the layout that a run would use without tuning.

        This layout may differ from the planned layout, because a stream's warm-up may choose fewer threads.
        """
        measured, default = self._cut.measured, self._default
        if not default.may_drop_threads:
            return measured[planned]
        passes = {
            threads: [self._forecast.of(part, 1, default.max_batch) for part in one.parts]
            for threads in (planned.threads, *fewer(planned.threads))
            if (one := measured.get(planned._replace(threads=threads))) and one.parts
        }
        if min(passes.get(planned.threads, ()), default=inf) > LIMIT_NS:
            return measured[planned]
        return measured[planned._replace(threads=fewest(planned.threads, passes))]

    def _time(self, chosen: Layout, sizes: Sequence[int]) -> Bare:
        config = Placement(chosen, max(sizes)).applied(self._config)
        spec = instances.plan(config, self._scenario, self._model, self._cores)
        folder = self.folder / "bare"
        folder.mkdir(exist_ok=True)
        self._loops += 1
        most_ns = self._slo.bound_ns if self._slo and not self._scenario.streams else None
        output = folder / f"{self._loops:02}.log"
        return time_layout(config, self._dataset, spec, sizes, most_ns, output, self._progress)

    def _publish(self) -> int:
        """Writes tuned.yaml and completes the folder. If no placement was judged, the folder remains `.partial`."""
        aim = self._rounds.aim
        bound_ns = self._slo.bound_ns if self._slo and aim.unit == "ns" else None
        self._decision = decide(aim, self._finalists, bound_ns)
        self._save()
        if self._decision is None:
            self._end_early("no plan could be judged: the finalists state why")
            return RunInvalid.exit_status
        plan = self._decision.taken.plan
        config = replace(
            self._config, **resolved.absolute(self._config), slo=(self._slo,) if self._slo else ()
        )
        plain = to_plain(plan.applied(config))
        for key in _OF_ONE_RUN:
            plain.pop(key, None)
        write_yaml(self.folder / TUNED, plain)
        with suppress(OSError):
            (self.folder / "bare").rmdir()  # the folder is empty unless a process printed something
        self.folder = self._results.finish(newest=False)
        if not self._config.no_report:
            from harness.search.tune.page import write

            write_page(write, self.content(), self.folder)
        return RunInvalid.exit_status if table.missed_slo(self.content()) else 0

    def content(self) -> Content:
        aim, decision = self._rounds.aim, self._decision
        return {
            "schema_version": SCHEMA_VERSION,
            "started": self._started,
            "scenario": self._config.scenario,
            "backend": self._config.backend,
            "model": self._model.name,
            "slo": str(self._slo) if self._slo else None,
            "predicted": cast("AimEntry", self._forecast.aim._asdict()),
            "judged": cast("AimEntry", aim._asdict()),
            "rate_per_s": self._rounds.rate_per_s,
            "layouts": [one.to_json() for one in self._cut.measured.values()],
            "finalists": [self._finalist(one) for one in self._finalists],
            "best": str(decision.best.plan) if decision else None,
            "second": str(decision.second.plan) if decision and decision.second else None,
            "best_over_second": _gain(decision.gain) if decision else None,
            "second_is_beaten": decision.second_is_beaten if decision else None,
            "taken": str(decision.taken.plan) if decision else None,
            "taken_over_default": self._over_default(decision) if decision else None,
            "runs": self._rounds.runs,
        }

    def _over_default(self, decision: Decision) -> GainEntry | None:
        default = next((one for one in self._finalists if one.is_default), None)
        if default is None or default is decision.taken:
            return None
        return _gain(gain(self._rounds.aim, decision.taken, default))

    def _finalist(self, one: Finalist) -> FinalistEntry:
        best = self._decision.best if self._decision else None
        over = gain(self._rounds.aim, one, best) if best and best is not one else None
        return {
            "plan": str(one.plan),
            "is_default": one.is_default,
            "predicted": one.predicted,
            "values": {str(number): value for number, value in one.values.items()},
            "mean": one.mean,
            "over_best": _gain(over),
            "dropped": one.dropped,
            "failed": one.failed or None,
        }


def _check_percentile(scenario: Scenario, slo: Slo | None) -> None:
    """Raises a ConfigError if runs report no percentile as high as the SLO's."""
    name, most = max(PERCENTILES.items(), key=lambda item: item[1])
    if slo is not None and not scenario.all_at_once and slo.percentile > most + 1e-9:
        raise ConfigError(
            f"runs report percentiles up to {name}, but the SLO is {slo}: pass --slo with {name} or a "
            "lower percentile"
        )


tune = TuneJob.execute


def _gain(over: Gain | None) -> GainEntry | None:
    return cast("GainEntry", over._asdict()) if over else None
