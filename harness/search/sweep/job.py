"""`sweep`: latency against offered load, a run at each rate, ascending.

The folder holds the runs in `points/`, and what they say together in sweep.json, sweep.csv and
sweep.html. The same command with the same --out goes on where it was stopped, or adds rates.
"""

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

from harness.core import files
from harness.core.codes import INTERRUPTED
from harness.core.config.parse import parse_rate
from harness.core.config.run_config import (
    MAX_QUERIES,
    SCHEMA_VERSION,
    RunConfig,
    from_plain,
    to_plain,
)
from harness.core.console import say, show
from harness.core.signals import INTERRUPT_EXIT
from harness.core.stats import queries_needed
from harness.core.units import NS_PER_S, show_rate
from harness.errors import ConfigError, PluginUnavailable, RunInvalid, some_of
from harness.loadgen.scenario import scenario_named
from harness.models.manifest.defaults import slo_of
from harness.models.manifest.lookup import load_model
from harness.results import run_folder
from harness.results.outcome import Finished, Measure
from harness.run.jobs import conclude, keep_or_remove
from harness.search.options import PeakOptions, SweepOptions
from harness.search.peak.job import PeakJob
from harness.search.peak.probe import other_reason
from harness.search.sweep import report
from harness.search.sweep.points import Point, knee, point_of

SWEEP = "sweep.json"
_POINTS = "points"


def problems(config: RunConfig, _options: SweepOptions) -> Iterator[str]:
    """All that stands against a sweep with these options."""
    if not scenario_named(config.scenario).scheduled:
        yield f"sweep is for --scenario server: {config.scenario} has no rate to offer"
    if config.target_qps is not None:
        yield "--target-qps is one rate: sweep takes --rate, e.g. --rate 100..2000"
    if config.mlperf:
        yield "sweep makes quick runs: drop --mlperf"
    if config.mode == "accuracy":
        yield "sweep needs performance runs: drop --mode accuracy"
    if config.metrics_linger_ns:
        yield "--metrics-linger waits after one run, sweep makes many: drop it"


def sweep(
    config: RunConfig,
    options: SweepOptions,
    measure: Measure,
    *,
    as_json: bool = False,
    quiet: bool = False,
) -> int:
    """Runs what is missing, prints the table (or sweep.json) and returns the exit status."""
    job = _SweepJob(config, options, measure, quiet=quiet)
    with keep_or_remove(lambda: job.folder, lambda: any(job.folder.glob("*/*"))):
        return conclude(job, report.lines, as_json=as_json)


def show_stored(folder: Path, *, as_json: bool = False) -> int:
    """--from: the table again, from the result folders of the sweep's points alone."""
    said = files.read_json(folder / SWEEP)
    if not isinstance(said.get("config"), dict):
        raise ConfigError(f"{folder / SWEEP} is not what a sweep writes")
    config = from_plain({**said["config"], "out": str(folder)}, str(folder / SWEEP))
    content = _SweepJob(config, SweepOptions(), _measure_nothing, quiet=True).content()
    text = report.lines(content, folder)
    show(json.dumps(content, indent=2) if as_json else "\n".join(text))
    return 0


def _measure_nothing(_config: RunConfig, **_: object) -> Finished:
    raise AssertionError("--from measures nothing")


class _SweepJob:
    def __init__(
        self, config: RunConfig, options: SweepOptions, measure: Measure, *, quiet: bool
    ) -> None:
        self._config = replace(config, out=None)
        self._rates = options.rate
        self._peak = options.peak
        self._peak_is_measured = False
        self._measure = measure
        self._quiet = quiet
        model = load_model(config.model)
        self._model_name = model.name
        scenario = scenario_named(config.scenario)
        self._slo = slo_of(scenario, config, model)
        self._percentile = self._slo.percentile if self._slo else scenario.percentile
        self._plain = to_plain(self._config)
        self.folder = self._opened(config.out, model.name)

    def _opened(self, out: Path | None, model: str) -> Path:
        """A new folder, or that of the same sweep, begun before."""
        if out is not None and (out / SWEEP).is_file():
            said = files.read_json(out / SWEEP)
            before = said.get("config")
            if not isinstance(before, dict) or before != self._plain:
                other = sorted({*self._plain, *(before or {})})
                differ = [k for k in other if (before or {}).get(k) != self._plain.get(k)]
                raise ConfigError(
                    f"{out} is a sweep with another {', '.join(differ)}: pass another --out"
                )
            if self._peak is None:
                self._peak = said.get("peak")
                self._peak_is_measured = said.get("peak_is_measured", False)
            return out
        made = run_folder.new_folder(out, "sweep-server", self._config.backend, model)
        return made.finish(newest=False)  # never whole: rates can be added

    def run(self) -> int:
        if not (self.folder / SWEEP).is_file():
            self._save()  # by it the same command knows its folder, however early this one ends
        if self._rates.are_shares and self._peak is None:
            status = self._find_peak()
            if status:
                return status
            self._save()
        offered = self._offered()
        self._save()
        for number, rate in enumerate(offered, 1):
            if self._folder_of(rate) is None:
                status = self._run(rate, number)
                self._save()
                if status:
                    return status
        self._write_page()
        any_valid = any(point.verdict == "VALID" for point in self._points())
        return 0 if any_valid else RunInvalid.exit_status

    def _find_peak(self) -> int:
        """As `peak` does, below this folder; one found before is taken."""
        folder = self.folder / "peak"
        if not (folder / run_folder.PEAK).is_file():
            out = files.free_name(folder)
            config = replace(self._config, out=out)
            job = PeakJob(config, PeakOptions(), self._measure, quiet=self._quiet)
            status = job.run()
            if status == RunInvalid.exit_status:
                say(f"{job.folder}: no peak was found: --rate A..B in queries/s needs none")
            if status >= INTERRUPT_EXIT:
                self._say_stopped()
            if status:
                return status
            folder = job.folder
            for text in job.content()["warnings"]:
                say(f"{folder}: {text}")
        self._peak = float(files.read_json(folder / run_folder.PEAK)["peak"])
        self._peak_is_measured = True
        return 0

    def _offered(self) -> list[float]:
        """queries/s; a ConfigError with a line for each that no run can offer."""
        scale = (self._peak or 1.0) if self._rates.are_shares else 1.0
        rates = [float(f"{value * scale:.6g}") for value in self._rates.values]
        if problems := [problem for rate in rates for problem in self._problems(rate)]:
            raise ConfigError(some_of(problems))
        return rates

    def _problems(self, rate: float) -> Iterator[str]:
        try:
            parse_rate(f"{rate:.10g}")
        except ValueError as e:
            yield f"--rate: {e}"
        if (queries := self._queries(rate)) > MAX_QUERIES:
            yield (
                f"--rate: {rate:g} queries/s are {queries:,} queries in --duration, more than "
                f"{MAX_QUERIES:,}: shorten it"
            )

    def _queries(self, rate: float) -> int:
        config = self._config
        wanted = ceil(config.duration_ns / NS_PER_S * rate)
        return config.queries or max(wanted, queries_needed(1, self._percentile))

    def _run(self, rate: float, number: int) -> int:
        """A point. Not 0 where it was stopped, or failed for a reason that is not its rate."""
        if not self._quiet:
            say(f"rate {number} of {len(self._rates.values)}: {show_rate(rate)} queries/s")
        out = files.free_name(self.folder / _POINTS / f"{rate:g}")
        config = replace(self._config, target_qps=rate, queries=self._queries(rate), out=out)
        finished = self._measure(config)
        other = other_reason(finished.result)
        if other is None:
            return 0
        if other.code == INTERRUPTED:
            self._say_stopped()
        else:
            say(f"{finished.folder}: the sweep ends here: {other.code}: {other.text}")
        return finished.status or RunInvalid.exit_status

    def _say_stopped(self) -> None:
        say(f"stopped: the same command with --out {self.folder} goes on here")

    def _folder_of(self, rate: float) -> Path | None:
        """The finished run at that rate."""
        found = (p.folder for p in self._points() if p.rate_per_s == rate)
        return next((self.folder / folder for folder in found), None)

    def _points(self) -> list[Point]:
        """Of all finished runs here that say something about their rate, ascending."""
        made = [
            self._point(path)
            for path in sorted((self.folder / _POINTS).glob(f"*/{run_folder.RESULT}"))
            if not path.parent.is_symlink() and not path.parent.name.endswith(".partial")
        ]
        return sorted((p for p in made if p is not None), key=lambda p: p.rate_per_s)

    def _point(self, path: Path) -> Point | None:
        """path: of a result.json."""
        result = files.read_json(path)
        try:
            return point_of(result, path.parent, self.folder, self._peak)
        except (KeyError, TypeError, AttributeError):
            raise ConfigError(f"{path} is not what a run writes: `check` says more") from None

    def content(self) -> dict[str, Any]:
        """Of sweep.json. peak: the queries/s that shares are of, given with --peak or found by a search,
        None where neither. peak_is_measured: a search found it VALID. highest_valid: of the points,
        None where none was.
        """
        points = self._points()
        valid = [p.rate_per_s for p in points if p.verdict == "VALID"]
        return {
            "schema_version": SCHEMA_VERSION,
            "config": self._plain,
            "model": self._model_name,
            "slo": str(self._slo) if self._slo else None,
            "peak": self._peak,
            "peak_is_measured": self._peak_is_measured,
            "highest_valid": max(valid, default=None),
            "knee": knee(points),
            "points": [p._asdict() for p in points],
        }

    def _save(self) -> None:
        content = self.content()
        files.write_json(self.folder / SWEEP, content)
        with (self.folder / "sweep.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(Point._fields)
            for point in content["points"]:
                writer.writerow([_cell(value) for value in point.values()])

    def _write_page(self) -> None:
        from harness.search.sweep.page import write

        try:
            write(self.content(), self.folder)
        except PluginUnavailable as e:
            say(f"no page was made: {e}")


def _cell(value: object) -> object:
    return " ".join(value) if isinstance(value, tuple) else value
