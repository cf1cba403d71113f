"""Defines a grid's cells: each run's configuration, and the row read from its folder."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.core import registry
from harness.core.config.parse import parse_input_shape
from harness.core.config.run_config import RunConfig
from harness.core.stats import percentile_ns
from harness.loadgen.scenario import scenario_named
from harness.models.manifest.lookup import is_path
from harness.models.precision.ways import Way
from harness.results import run_folder
from harness.results.database import energy_of
from harness.results.evidence.stages import Completions
from harness.results.optimal_batch import UNCERTAINTIES
from harness.results.run_files import RunFiles, read_files, reading_run
from harness.search.grid.cells.options import Axes
from harness.types import Array

GRID = "grid.json"
"""File that contains a grid's options, converted precisions and absent cells."""

CELLS = "cells"
PROBES = "probes"

BLOCKS = 20
"""The uncertainty is computed from the means of this many blocks of consecutive batches, because neighbouring batches
take similar times.
"""

JITTER = 1.4826
"""Factor that converts the median absolute deviation to the standard deviation of a normal distribution."""


class Cell(NamedTuple):
    """One cell of a grid. batch: in samples. threads: per instance. shape: as in --input-shape. data: real or
    synthetic.
    """

    model: str
    backend: str
    precision: str
    batch: int
    threads: int
    shape: tuple[str, ...]
    data: str

    @property
    def key(self) -> str:
        """Name of the cell's folder."""
        words = [_short(self.model), _short(self.backend), self.precision, self.data]
        words += [re.sub(r"[^A-Za-z0-9.]+", "_", text) for text in self.shape]
        return "-".join([*words, f"t{self.threads}", f"b{self.batch}"])

    @property
    def variant(self) -> "Cell":
        """Cell with the same model, framework, precision and input, but with batch size 1 and one thread."""
        return self._replace(batch=1, threads=1)

    def __str__(self) -> str:
        words = [Path(self.model).stem, self.backend, self.precision, self.data, *self.shape]
        return f"{' '.join(words)} threads {self.threads} batch {self.batch}"


def name_in(axes: Axes, cell: Cell) -> str:
    """Returns the cell's values on the axes with several values; all values if the grid has a single cell."""
    words = []
    for axis in axes._fields:
        if len(getattr(axes, axis)) > 1:
            value = getattr(cell, axis)
            texts = {"model": Path(str(value)).stem, "shape": " ".join(cell.shape)}
            words.append(texts.get(axis, f"{axis} {value}" if isinstance(value, int) else value))
    return " ".join(words) or str(cell)


def folder_of(grid: Path, cell: Cell) -> Path | None:
    """Returns the folder of the cell's finished run. This is the cell's own folder or, if an earlier run was not
    finished, a numbered folder next to it.
    """
    for folder in sorted((grid / CELLS).glob(f"{cell.key}*")):
        number = folder.name.removeprefix(cell.key)
        own = number == "" or (number.startswith("-") and number[1:].isdecimal())
        if own and (folder / run_folder.RESULT).is_file():
            return folder
    return None


def labels(models: Sequence[str]) -> dict[str, str]:
    """Returns the name that tables use for each model: the file's name, with enough parent folders to make it unique."""
    names = {}
    parts = {m: Path(m).with_suffix("" if is_path(m) else Path(m).suffix).parts for m in models}
    for model, own in parts.items():
        others = [other for name, other in parts.items() if name != model]
        ends = (own[-n:] for n in range(1, len(own) + 1))
        unlike = (end for end in ends if all(other[-len(end) :] != end for other in others))
        names[model] = "/".join(next(unlike, (model,)))
    return names


def _short(name: str) -> str:
    """Returns a short name for use in file names.

    If a plug-in or model is given by its path, a digest of the path is added to the name.
    """
    plain = re.sub(r"[^A-Za-z0-9._]+", "_", Path(name).name if "/" in name else name).strip("_")
    if not is_path(name) and ":" not in name:
        return plain
    return f"{plain}_{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def cells(axes: Axes) -> Iterator[Cell]:
    """Yields all cells. Cells that are compared with each other run close together, especially cells that differ in
    precision.

    If a backend computes on one thread only, all its cells use one thread.
    """
    known: set[Cell] = set()
    order = product(
        axes.model, axes.shape, axes.data, axes.threads, axes.batch, axes.backend, axes.precision
    )
    for model, shape, data, threads, batch, backend, precision in order:
        own_threads = 1 if backend in registry.OF_ONE_THREAD else threads
        cell = Cell(model, backend, precision, batch, own_threads, shape, data)
        if cell not in known:
            known.add(cell)
            yield cell


def config_of(cell: Cell, common: RunConfig, way: Way, file: Path | None) -> RunConfig:
    """Returns a run's configuration. By default, the run uses one instance. file: the model file in the cell's
    precision.
    """
    options = dict(common.backend_option) | dict(way.options)
    synthetic = cell.data == "synthetic"
    scenario = scenario_named(common.scenario)
    return replace(
        common,
        model=cell.model,
        backend=cell.backend,
        backend_option=tuple(options.items()),
        dataset="synthetic" if synthetic else common.dataset,
        data_dir=None if synthetic else common.data_dir,
        input_shape=tuple(parse_input_shape(text) for text in cell.shape),
        instances=None if scenario.streams else common.instances or 1,
        threads=cell.threads,
        max_batch=cell.batch,
        samples_per_query=cell.batch if "samples_per_query" in scenario.options else None,
        model_file=file,
    )


class Row(NamedTuple):
    """One cell's measurements. A number that was not measured is None."""

    model: str
    backend: str
    precision: str
    batch: int
    threads: int
    shape: tuple[str, ...]
    data: str
    verdict: str = ""
    reasons: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    throughput_per_s: float | None = None
    uncertainty: float | None = None
    """Standard error of the throughput, as a share of the throughput (see `spread`)."""
    jitter: float | None = None
    """Scatter of single batches, as a share of the throughput (see `spread`)."""
    batch_p50_ns: float | None = None
    """Median time from taking a batch to completing its answers."""
    batch_p99_ns: float | None = None
    forward_p50_ns: float | None = None
    """Median time that a batch spent inside the framework."""
    forward_least_ns: float | None = None
    accuracy: float | None = None
    """Accuracy in the metric's unit."""
    metric: str | None = None
    target: float | None = None
    lower_is_better: bool = False
    no_accuracy: str = ""
    joules_per_sample: float | None = None
    energy_source: str = ""
    no_energy: str = ""
    rss_bytes: int | None = None
    """Largest resident memory of the measured process."""
    cpu_over_wall: float | None = None
    """Mean number of cores that the process kept busy."""
    fixed_batch: int | None = None
    cores: int | None = None
    folder: str = ""
    """Path of the run, relative to the grid's folder."""
    absent: str = ""
    """Reason why the cell was not run; empty if the cell was run."""

    @property
    def noise(self) -> float:
        """About half of the width of the throughput's 95 % interval, as a share of the throughput; 0 if unknown."""
        return UNCERTAINTIES * (self.uncertainty or 0.0)

    @property
    def cell(self) -> Cell:
        return Cell(
            self.model,
            self.backend,
            self.precision,
            self.batch,
            self.threads,
            self.shape,
            self.data,
        )


def row_of(cell: Cell, folder: Path, below: Path) -> Row:
    """Reads a cell's row. Raises a ConfigError if the folder's files are not valid files of a run."""
    files = read_files(folder)
    with reading_run(folder):
        return Row(*cell)._replace(
            verdict=files.result["verdict"],
            reasons=tuple(r["code"] for r in files.result["reasons"]),
            doubts=tuple(d["code"] for d in files.result["doubts"]),
            throughput_per_s=(files.result["throughput_per_s"] or {}).get("completed"),
            **_batches(cell, files),
            **_accuracy(files.result),
            **_costs(files),
            folder=str(folder.relative_to(below)),
        )


def _batches(cell: Cell, files: RunFiles) -> dict[str, Any]:
    """Returns the batches' times, and the batch size that the model file fixes if it differs from the cell's batch size
    (`fixed_batch`).
    """
    run = files.performance
    planned = (files.result["plan"] or {}).get("max_batch")
    fixed = {"fixed_batch": planned if planned not in (None, cell.batch) else None}
    if run is None or not run.done:
        return fixed
    took_ns, forward_ns, end_ns = times_ns(run.done, cell.batch)
    if not len(took_ns):
        return fixed
    uncertainty, jitter = spread(took_ns[np.argsort(end_ns)])
    in_order = np.sort(took_ns)
    return {
        **fixed,
        "uncertainty": uncertainty,
        "jitter": jitter,
        "batch_p50_ns": percentile_ns(in_order, 0.50),
        "batch_p99_ns": percentile_ns(in_order, 0.99),
        "forward_p50_ns": percentile_ns(np.sort(forward_ns), 0.50),
        "forward_least_ns": int(forward_ns.min()),
    }


def times_ns(done: Completions, size: int) -> tuple[Array, Array, Array]:
    """Returns three (n,) arrays for the batches with `size` samples: duration, time in the framework, end."""
    _, first = np.unique(done.columns["batch"], return_index=True)
    first = first[done.columns["batch_size"][first] == size]
    at = {name: done.columns[f"{name}_ns"][first] for name in ("taken", "gathered", "inferred")}
    end_ns = done.columns["completed_ns"][first]
    return end_ns - at["taken"], at["inferred"] - at["gathered"], end_ns


def spread(took_ns: Array) -> tuple[float | None, float | None]:
    """Returns the throughput's uncertainty and jitter as shares; both are None for fewer than two batches.

    took_ns: (n,) durations of the batches, in order of time. Uncertainty is the standard error of the mean over blocks
    of neighbouring batches, and includes stalls. Jitter is 1.4826 times the median absolute deviation of single
    batches, divided by the batches' median.

    Source: the columns with the same names in tf_cnn_benchmarks, which computes both from single steps.
    """
    if len(took_ns) < 2:
        return None, None
    blocks = np.array_split(took_ns, min(BLOCKS, len(took_ns)))
    rates = np.array([len(block) / float(block.sum()) for block in blocks])
    error = rates.std(ddof=1) / len(rates) ** 0.5
    speeds = 1.0 / took_ns
    median = np.median(speeds)
    jitter = JITTER * np.median(np.abs(speeds - median)) / median
    return float(error / rates.mean()), float(jitter)


def _accuracy(result: Mapping[str, Any]) -> dict[str, Any]:
    accuracy = result["accuracy"] or {}
    if accuracy.get("value") is None:
        return {"no_accuracy": accuracy.get("reason") or "not measured"}
    return {
        "accuracy": accuracy["value"],
        "metric": accuracy["metric"],
        "target": accuracy["target"],
        "lower_is_better": bool(accuracy.get("lower_is_better")),
    }


def _costs(files: RunFiles) -> dict[str, Any]:
    """Returns the cell's energy, memory and CPU time. The energy comes from the same source as in runs.sqlite."""
    energy = energy_of(files.result.get("power") or {})
    used = (files.performance.ended or {}).get("used", {}) if files.performance else {}
    process = files.result.get("measured_process") or {}
    return {
        "joules_per_sample": energy.get("joules_per_sample"),
        "energy_source": f"{energy['source']}, {energy['provenance']}" if energy else "",
        "no_energy": "" if energy else files.result.get("power_reason") or "not measured",
        "rss_bytes": used.get("rss_peak_bytes"),
        "cpu_over_wall": process.get("cpu_over_wall"),
        "cores": (files.environment.get("machine") or {}).get("cores_usable"),
    }
