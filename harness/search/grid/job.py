"""`sweep` over a grid: batch x precision x threads x framework x input size x data, a fresh run each.

The folder holds a result folder for each cell in `cells/`, what was found out about each model and
precision in `probes/`, and what they say together in grid.json, grid.csv, heatmaps.json and
grid.html. The same command with the same --out, or --resume FOLDER, runs only what is missing.
"""

import csv
import json
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.core import files
from harness.core.config.run_config import SCHEMA_VERSION, RunConfig, from_plain, to_plain
from harness.core.console import say, show
from harness.core.signals import INTERRUPT_EXIT, Stopped
from harness.core.units import show_rate, show_wait
from harness.errors import ConfigError, HarnessError, PluginUnavailable, RunDied, RunInvalid
from harness.loadgen.scenario import scenario_named
from harness.models.made.operators import work_of
from harness.models.precision.ways import BASELINE, way
from harness.results import run_folder
from harness.results.compare.run_files import fitting
from harness.results.outcome import Measure
from harness.search.grid.cells.cells import Cell, cells, row_of
from harness.search.grid.cells.folder import CELLS, GRID, PROBES, folder_of
from harness.search.grid.cells.options import MOST_CELLS, Axes, Grid, GridOptions
from harness.search.grid.variants import Variants, missing_tools
from harness.search.grid.view import report
from harness.search.grid.view.view import View, content_of, stored_view

_OWN = ("model", "backend", "threads", "input_shape")
"""Options of a run that a grid has axes for."""


def problems(config: RunConfig, grid: Grid) -> Iterator[str]:
    """All that stands against a grid with these options."""
    axes, options = grid
    scenario = scenario_named(config.scenario)
    if scenario.scheduled:
        yield f"a grid is for offline, single-stream or multi-stream: {config.scenario} is swept by --rate"
    if scenario.streams and not scenario.by_query and axes.batch != (1,):
        yield f"{config.scenario} asks one sample at a time: add --batch 1, or take multi-stream"
    given = {
        ("--max-batch", "--batch"): config.max_batch is not None,
        ("--samples-per-query", "--batch"): config.samples_per_query is not None,
        ("--backend-option precision", "--precision"): "precision" in dict(config.backend_option),
    }
    yield from (
        f"{flag} is what {axis} says in a grid: drop it"
        for (flag, axis), has in given.items()
        if has
    )
    if config.mlperf or config.audit:
        yield "a grid makes quick runs: drop --mlperf and --audit"
    if config.mode == "accuracy":
        yield "a grid needs performance runs: drop --mode accuracy"
    if config.mode == "performance" and axes.precision != (BASELINE,) and "real" in axes.data:
        yield "a precision changes answers, so its accuracy belongs to it: drop --mode performance"
    if config.metrics_linger_ns:
        yield "--metrics-linger waits after one run, a grid makes many: drop it"
    if any(axes.shape) and "real" in axes.data:
        yield "--input-shape sizes synthetic data: add --data synthetic"
    if options.calibration_dir is not None and "int8" not in axes.precision:
        yield "--calibration-dir is for int8: add it to --precision, or drop it"
    count = sum(1 for _ in cells(axes))
    if count > MOST_CELLS:
        yield f"{count:,} cells are more than {MOST_CELLS:,}: ask for fewer at a time"


def sweep(
    config: RunConfig, grid: Grid, measure: Measure, *, as_json: bool = False, quiet: bool = False
) -> int:
    """Runs what is missing, prints the tables (or grid.json's rows) and returns the exit status."""
    job = _GridJob(config, grid, measure, quiet=quiet)
    try:
        status = job.run()
    except (ConfigError, PluginUnavailable):
        if not any((job.folder / CELLS).glob("*/*")):  # a user's mistake leaves nothing
            shutil.rmtree(job.folder, ignore_errors=True)
        raise
    except OSError as e:
        why = f"{job.folder} cannot be written: {e.strerror}: pass --out elsewhere"
        raise RunInvalid(why) from e
    view = stored_view(job.folder, grid.options)
    _show(view, job.folder, as_json=as_json)
    if not status and not any(row.verdict == "VALID" for row in view.rows):
        return RunInvalid.exit_status
    return status


def show_stored(folder: Path, options: GridOptions, *, as_json: bool = False) -> int:
    """--from: every table from the files of `folder`, which are written anew where that is allowed."""
    with fitting(folder):
        view = stored_view(folder, options)
        try:
            write_tables(view, folder)
        except OSError as e:
            say(f"{folder} cannot be written: {e.strerror}: the tables are only shown")
        _show(view, folder, as_json=as_json)
    return 0


def stored(folder: Path) -> tuple[RunConfig, Grid]:
    """--resume: what the grid in `folder` was asked for."""
    said = content_of(folder)
    there = said["calibration_dir"]
    options = GridOptions(calibration_dir=Path(there) if there is not None else None)
    config = from_plain({**said["config"], "out": str(folder)}, str(folder / GRID))
    return config, Grid(Axes.from_json(said["axes"]), options)


def _show(view: View, folder: Path, *, as_json: bool) -> None:
    if as_json:
        show(json.dumps(view.to_json(), indent=2))
    else:
        show("\n".join(report.lines(view, folder)))


class _GridJob:
    def __init__(self, config: RunConfig, grid: Grid, measure: Measure, *, quiet: bool) -> None:
        self._config = replace(config, out=None)
        self._options = grid.options
        self._asked = self._axes = grid.axes
        self._measure = measure
        self._quiet = quiet
        self._absent: dict[str, str] = {}
        self._plugins_missing = 0
        there = grid.options.calibration_dir
        self._calibration_dir = str(there.absolute()) if there is not None else None
        plain = to_plain(self._config)
        self._plain = {name: value for name, value in plain.items() if name not in _OWN}
        precisions: dict[str, Any] = {}
        self.folder = self._opened(config.out, precisions)
        self._variants = Variants(
            *(self._config, self.folder, precisions, self._calibration_dir),
            real="real" in self._axes.data,
            quiet=quiet,
        )

    def _opened(self, out: Path | None, precisions: dict[str, Any]) -> Path:
        """A new folder, or that of the same grid, begun before: then with what was made for it."""
        if out is None or not (out / GRID).is_file():
            names = (f"grid-{self._config.scenario}", "+".join(self._asked.backend))
            models = [Path(model).stem for model in self._asked.model]
            made = run_folder.new_folder(out, *names, models[0] if len(models) == 1 else "models")
            return made.finish(newest=False)  # never whole: cells can be added
        said = content_of(out)
        ours = {**self._plain, "calibration_dir": self._calibration_dir}
        before = {**said["config"], "calibration_dir": said["calibration_dir"]}
        differ = sorted(k for k in {**ours, **before} if ours.get(k) != before.get(k))
        if differ:
            told = ", ".join(differ)
            raise ConfigError(f"{out} is a grid with another {told}: pass another --out")
        self._axes = Axes.from_json(said["axes"]).joined(self._asked)
        self._absent = dict(said["absent"])
        precisions |= said["precisions"]
        return out

    def run(self) -> int:
        """0, or the status of what stopped it.

        Where no cell could be run at all a ConfigError; a PluginUnavailable where all want plug-ins.
        """
        for name in (CELLS, PROBES):
            (self.folder / name).mkdir(exist_ok=True)
        self._save()
        for cell in cells(self._axes):
            self._variants.pin(cell)
        missing = [cell for cell in cells(self._asked) if folder_of(self.folder, cell) is None]
        for line in missing_tools(missing):
            say(line)
        begun_s = time.monotonic()
        for number, cell in enumerate(missing, 1):
            status = self._run(cell)
            self._save()
            if status >= INTERRUPT_EXIT:
                say(f"stopped: --resume {self.folder} goes on here")
                return status
            if not self._quiet:
                left_s = _left_s(missing, number, time.monotonic() - begun_s)
                self._tell(cell, number, len(missing), left_s)
        if missing and not any(folder_of(self.folder, cell) for cell in cells(self._axes)):
            all_want_plugins = self._plugins_missing == len(missing)
            error = PluginUnavailable if all_want_plugins else ConfigError
            raise error("\n".join(dict.fromkeys(self._absent.values())))
        write_tables(stored_view(self.folder, self._options), self.folder)
        return 0

    def _run(self, cell: Cell) -> int:
        """The run's status; what cannot be run is absent with its reason, and tried again next time."""
        self._absent.pop(cell.key, None)
        out = files.free_name(self.folder / CELLS / cell.key)
        try:
            finished = self._measure(replace(self._variants.config(cell), out=out), quiet=True)
        except KeyboardInterrupt:  # while something was made: a run ends itself
            return Stopped(signal.SIGINT).exit_status
        except HarnessError as e:
            self._absent[cell.key] = str(e).replace("\n", "; ")
            self._plugins_missing += isinstance(e, PluginUnavailable)
            return 0
        if finished.status == RunDied.exit_status:
            self._absent[cell.key] = "; ".join(r["text"] for r in finished.result["reasons"])
        self._variants.pin(cell)
        return finished.status

    def _save(self) -> None:
        files.write_json(
            self.folder / GRID,
            {
                "schema_version": SCHEMA_VERSION,
                "config": self._plain,
                "calibration_dir": self._calibration_dir,
                "axes": self._axes._asdict(),
                "ops": {model: about for model in self._axes.model if (about := work_of(model))},
                "precisions": self._variants.precisions,
                "absent": self._absent,
            },
        )

    def _tell(self, cell: Cell, number: int, count: int, left_s: float) -> None:
        """One line, with the time left as the cells so far had it."""
        folder = folder_of(self.folder, cell)
        if folder is None:
            told = f"absent: {self._absent.get(cell.key, 'the run did not finish')}"
        else:
            row = row_of(cell, folder, self.folder)
            speed = row.throughput_per_s
            told = " ".join([row.verdict, *row.reasons])
            told += f", {show_rate(speed)} samples/s" if speed is not None else ""
        left = f"; about {show_wait(left_s)} left" if number < count else ""
        say(f"cell {number} of {count}: {cell}: {told}{left}")


def _left_s(cells: Sequence[Cell], done: int, took_s: float) -> float:
    """As the first `done` had it; what is known to be absent takes no time."""
    takes_time = [not way(cell.backend, cell.precision).absent for cell in cells]
    return took_s / max(sum(takes_time[:done]), 1) * sum(takes_time[done:])


def write_tables(view: View, folder: Path) -> None:
    """grid.csv, heatmaps.json and, where plotly is installed, grid.html."""
    with (folder / "grid.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(view.columns)
        writer.writerows(view.csv_rows())
    files.write_json(folder / "heatmaps.json", {"maps": view.heat_maps()})
    from harness.search.grid.view.page import write

    try:
        write(view, folder)
    except PluginUnavailable as e:
        say(f"no page was made: {e}")
