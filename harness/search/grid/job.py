"""Runs a grid, with a separate run for each batch size, precision, thread count, framework, input size and dataset
type.

The folder contains one result folder per cell in `cells/`, and one probe per model and precision in `probes/`. The
summary is in grid.json, grid.csv, heatmaps.json, grid.html and fastest.yaml. The same command with the same --out, or --resume
FOLDER, runs only the missing cells.
"""

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from harness.core import files
from harness.core.config.run_config import SCHEMA_VERSION, RunConfig, from_plain, to_plain
from harness.core.console import say
from harness.core.signals import INTERRUPT_EXIT
from harness.core.units import show_rate, show_wait
from harness.errors import ConfigError, HarnessError, PluginUnavailable, RunDied, RunInvalid
from harness.loadgen.scenario import scenario_named
from harness.models.made.operators import work_of
from harness.models.opened.remote import remote_problems
from harness.models.precision.ways import BASELINE, way
from harness.results.run_files import reading_run
from harness.run.study import (
    Ended,
    Study,
    other_reason,
    show_result,
    unfit_options,
    write_csv,
    write_page,
)
from harness.search.grid import fastest
from harness.search.grid.cells.cells import (
    CELLS,
    GRID,
    PROBES,
    Cell,
    Row,
    cells,
    folder_of,
    name_in,
    row_of,
)
from harness.search.grid.cells.options import MOST_CELLS, Axes, Grid, GridOptions
from harness.search.grid.variants import Variants, missing_tools
from harness.search.grid.view import report
from harness.search.grid.view.view import View, content_of, stored_view

_OWN = ("model", "backend", "threads", "input_shape")
"""Run options that become axes in a grid."""


def problems(config: RunConfig, grid: Grid) -> Iterator[str]:
    axes, options = grid
    yield from remote_problems(config, "sweep over a grid")
    scenario = scenario_named(config.scenario)
    if scenario.scheduled:
        yield f"a grid needs offline, single-stream or multi-stream: use `sweep --rate` for {config.scenario}"
    if scenario.streams and not scenario.by_query and axes.batch != (1,):
        yield f"{config.scenario} sends one sample per query: add --batch 1, or use multi-stream"
    replaced = {
        ("--max-batch", "--batch"): config.max_batch is not None,
        ("--samples-per-query", "--batch"): config.samples_per_query is not None,
        ("--backend-option precision", "--precision"): "precision" in dict(config.backend_option),
    }
    yield from (
        f"a grid takes {axis} in place of {flag}: drop {flag}"
        for (flag, axis), has in replaced.items()
        if has
    )
    yield from unfit_options(config, "a grid", "a grid makes quick runs: drop --mlperf")
    if config.mode == "performance" and axes.precision != (BASELINE,) and "real" in axes.data:
        yield "a precision changes answers, so its accuracy must be measured: drop --mode performance"
    if any(axes.shape) and "real" in axes.data:
        yield "--input-shape sizes synthetic data: add --data synthetic"
    if config.input_range and "real" in axes.data:
        yield "--input-range is for synthetic data: add --data synthetic"
    if options.calibration_dir is not None and "int8" not in axes.precision:
        yield "--calibration-dir is for int8: add int8 to --precision, or drop --calibration-dir"
    count = sum(1 for _ in cells(axes))
    if count > MOST_CELLS:
        yield f"{count:,} cells are requested, but at most {MOST_CELLS:,} are allowed: request fewer at a time"


def show_stored(folder: Path, options: GridOptions, *, as_json: bool = False) -> int:
    """Prints all tables from the files in `folder` (--from), and rewrites the tables' files if possible."""
    with reading_run(folder):
        view = stored_view(folder, options)
        try:
            write_tables(view, folder)
        except OSError as e:
            say(f"{folder} cannot be written ({e.strerror}): the tables are only printed")
        show_result(view.to_json, partial(report.lines, view, folder), as_json=as_json)
    return 0


def stored(folder: Path) -> tuple[RunConfig, Grid]:
    """Returns the options of the grid stored in `folder` (--resume)."""
    content = content_of(folder)
    calibration_dir = content["calibration_dir"]
    options = GridOptions(calibration_dir=Path(calibration_dir) if calibration_dir else None)
    config = from_plain({**content["config"], "out": str(folder)}, str(folder / GRID))
    return config, Grid(Axes.from_json(content["axes"]), options)


class _GridJob(Study[Grid]):
    file = GRID
    continuation = "--resume {folder} continues it"

    def _begin(self) -> None:
        config, grid = self._config, self._options
        self._requested = self._axes = grid.axes
        self._absent: dict[str, str] = {}
        self._fastest = ""
        self._most_per_s = 0.0
        self._judged: tuple[str, bool] = "", False
        self._plugins_missing = 0
        images = grid.options.calibration_dir
        self._calibration_dir = str(images.absolute()) if images is not None else None
        common = replace(config, out=None)
        self._plain = {name: v for name, v in to_plain(common).items() if name not in _OWN}
        precisions: dict[str, Any] = {}
        models = [Path(model).stem for model in self._requested.model]
        model = models[0] if len(models) == 1 else "models"
        if self._open_folder(f"grid-{config.scenario}", "+".join(self._requested.backend), model):
            precisions |= self._take_stored(content_of(self.folder))
        self._variants = Variants(
            common=common,
            folder=self.folder,
            precisions=precisions,
            calibration_dir=self._calibration_dir,
            real="real" in self._axes.data,
            quiet=self._quiet,
        )

    def _take_stored(self, stored: Mapping[str, Any]) -> Mapping[str, Any]:
        """Adds the stored axes to the requested axes. Returns the precisions that have been converted so far."""
        ours = {**self._plain, "calibration_dir": self._calibration_dir}
        before = {**stored["config"], "calibration_dir": stored["calibration_dir"]}
        self._check_same("grid", ours, before)
        self._axes = Axes.from_json(stored["axes"]).joined(self._requested)
        self._absent = dict(stored["absent"])
        precisions: Mapping[str, Any] = stored["precisions"]
        return precisions

    def has_measured(self) -> bool:
        return any((self.folder / CELLS).glob("*/*"))

    def to_json(self) -> Mapping[str, Any]:
        return stored_view(self.folder, self._options.options).to_json()

    def lines(self) -> Iterator[str]:
        return report.lines(stored_view(self.folder, self._options.options), self.folder)

    def run(self) -> int:
        """Runs the missing cells. Returns 4 if no cell is VALID, and 0 otherwise.

        Raises a ConfigError if every cell failed to run, or PluginUnavailable if all cells need plug-ins that are
        missing.
        """
        for name in (CELLS, PROBES):
            (self.folder / name).mkdir(exist_ok=True)
        self._save()
        for cell in cells(self._axes):
            self._variants.pin(cell)
        missing = [cell for cell in cells(self._requested) if folder_of(self.folder, cell) is None]
        for line in missing_tools(missing):
            say(line)
        for cell in cells(self._axes):
            if (folder := folder_of(self.folder, cell)) is not None:
                self._rate(cell, row_of(cell, folder, self.folder))
        begun_s, left_s = time.monotonic(), None
        for number, cell in enumerate(missing, 1):
            self._progress.series(
                f"cell {number} of {len(missing)}: {name_in(self._axes, cell)}", left_s
            )
            try:
                self._run(cell)
            finally:
                self._save()
            left_s = _left_s(missing, number, time.monotonic() - begun_s)
            folder = folder_of(self.folder, cell)
            row = None if folder is None else row_of(cell, folder, self.folder)
            self._rate(cell, row)
            if not self._quiet:
                self._report(cell, row, number, len(missing), left_s)
        if missing and not any(folder_of(self.folder, cell) for cell in cells(self._axes)):
            if not self.has_measured():
                shutil.rmtree(self.folder / PROBES, ignore_errors=True)
            all_need_plugins = self._plugins_missing == len(missing)
            error = PluginUnavailable if all_need_plugins else ConfigError
            raise error("\n".join(dict.fromkeys(self._absent.values())))
        view = stored_view(self.folder, self._options.options)
        write_tables(view, self.folder)
        fastest.write(view, self.folder)
        self._fastest, self._judged = report.headline(view), report.judged(view)
        self._save()
        return 0 if any(row.verdict == "VALID" for row in view.rows) else RunInvalid.exit_status

    def _run(self, cell: Cell) -> None:
        """Runs a cell. If the cell cannot run, stores the cell as absent with the reason; the next command then tries
        the cell again.
        """
        self._absent.pop(cell.key, None)
        out = files.free_name(self.folder / CELLS / cell.key)
        try:
            with self._stopping.allowed():
                config = self._variants.config(cell)
            finished = self._measure(replace(config, out=out), progress=self._progress)
        except HarnessError as e:
            self._absent[cell.key] = str(e).replace("\n", "; ")
            self._plugins_missing += isinstance(e, PluginUnavailable)
            return
        if finished.status == RunDied.exit_status:
            self._absent[cell.key] = "; ".join(r["text"] for r in finished.result["reasons"])
        self._variants.pin(cell)
        if finished.status >= INTERRUPT_EXIT:
            reason = other_reason(finished.result)
            raise Ended(finished.status, reason.text if reason else "")

    def content(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "config": self._plain,
            "calibration_dir": self._calibration_dir,
            "axes": self._axes._asdict(),
            "ops": {model: about for model in self._axes.model if (about := work_of(model))},
            "precisions": self._variants.precisions,
            "absent": self._absent,
            "fastest": self._fastest,
            "judged": self._judged,
        }

    def _rate(self, cell: Cell, row: Row | None) -> None:
        """Stores the fastest cell so far, for `browse`; nothing for several models, whose rates cannot be compared."""
        if row is None or row.verdict != "VALID" or len(self._axes.model) > 1:
            return
        if (row.throughput_per_s or 0.0) > self._most_per_s:
            self._most_per_s = row.throughput_per_s or 0.0
            name = name_in(self._axes, cell)
            self._fastest = f"so far {show_rate(self._most_per_s)} samples/s with {name}"
            self._save()

    def _report(self, cell: Cell, row: Row | None, number: int, count: int, left_s: float) -> None:
        """Prints one line about a cell, with the remaining time estimated from the finished cells. row: None if the cell
        has no finished run.
        """
        if row is None:
            outcome = f"absent: {self._absent.get(cell.key, 'the run did not finish')}"
        else:
            speed = row.throughput_per_s
            outcome = " ".join([row.verdict, *row.reasons])
            outcome += f", {show_rate(speed)} samples/s" if speed is not None else ""
        left = f"; about {show_wait(left_s)} left" if number < count else ""
        say(f"cell {number} of {count}: {cell}: {outcome}{left}")


sweep = _GridJob.execute


def _left_s(cells: Sequence[Cell], done: int, took_s: float) -> float:
    """Estimates the remaining time from the first `done` cells. Cells that are known to be absent take no time."""
    takes_time = [not way(cell.backend, cell.precision).absent for cell in cells]
    return took_s / max(sum(takes_time[:done]), 1) * sum(takes_time[done:])


def write_tables(view: View, folder: Path) -> None:
    """Writes grid.csv, heatmaps.json and, if plotly is installed, grid.html."""
    write_csv(folder / "grid.csv", view.columns, view.csv_rows())
    files.write_json(folder / "heatmaps.json", {"maps": view.heat_maps()})
    from harness.search.grid.view.page import write

    write_page(write, view, folder)
