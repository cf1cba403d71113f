"""Chooses the backends, precisions and thread counts that `sweep` compares in alternating runs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from harness.core import registry
from harness.core.config.run_config import RunConfig
from harness.core.units import NS_PER_S, counted
from harness.errors import refuse
from harness.loadgen.scenario import scenario_named
from harness.machine import cores
from harness.models.manifest.defaults import default_dataset
from harness.models.manifest.formats import MADE_OF
from harness.models.manifest.lookup import is_path, load_model
from harness.models.manifest.model import Model
from harness.models.opened import instances
from harness.models.opened.formats_read import formats_in_source
from harness.models.opened.remote import remote_problems
from harness.models.precision.ways import BASELINE
from harness.run.study import unfit_options
from harness.search.grid.cells.axes import unknown
from harness.search.grid.cells.cells import Cell
from harness.search.grid.cells.options import GridOptions
from harness.search.options import RuntimesOptions

CELL_S = 10.0
CONTEST_S = 60.0
"""Default time limit in seconds: CELL_S for each cell, which runs twice, plus CONTEST_S for further rounds among the
cells that may still be the fastest.
"""

MOST_CELLS = 1000

_ANSWER_NOTHING = ("null",)


class Contest(NamedTuple):
    """One model's cells."""

    model: str
    cells: tuple[Cell, ...]
    left_out: Mapping[str, str]
    """Maps each backend that is not installed to instructions for installing it."""
    unread: Mapping[str, tuple[str, ...]]
    """Maps each backend that cannot read any of the model's files to the formats that the backend reads."""


class Plan(NamedTuple):
    contests: tuple[Contest, ...]
    rounds: int
    limit_s: float
    calibration_dir: str | None
    command: str

    @property
    def backends(self) -> list[str]:
        """Backends that are measured."""
        return list(dict.fromkeys(cell.backend for one in self.contests for cell in one.cells))

    @property
    def axes(self) -> dict[str, Any]:
        """Values that a continued comparison must share, in addition to the configuration."""
        cells = [cell for one in self.contests for cell in one.cells]
        return {
            "model": [one.model for one in self.contests],
            "backend": self.backends,
            "precision": list(dict.fromkeys(cell.precision for cell in cells)),
            "threads": list(dict.fromkeys(cell.threads for cell in cells)),
            "calibration_dir": self.calibration_dir,
        }

    @property
    def precisions(self) -> set[str]:
        return {cell.precision for one in self.contests for cell in one.cells}


def every_runtime() -> tuple[str, ...]:
    """Returns the names of all backends that compute on this machine, installed or not."""
    names = (name for name, _ in registry.rows("backend"))
    others = (*registry.REMOTE_BACKENDS, *_ANSWER_NOTHING)
    return tuple(name for name in names if name not in others)


def readable(models: str) -> tuple[str, ...]:
    """Returns the installed backends that can read a file for each of these models; if no installed backend can,
    returns all backends.

    models: value of --model, which may be a list; '' for the default.
    """
    names = models.split(",") if models.strip() else [RunConfig(scenario="offline").model]
    loaded = [load_model(name.strip()) for name in names]
    every = every_runtime()
    return tuple(n for n in every if not any(why_not(n, model) for model in loaded)) or every


def why_not(backend: str, model: Model) -> str:
    """Returns the reason why the backend cannot run the model, as far as this is known without importing the backend;
    '' if it may run the model.
    """
    if formats := unread(backend, model):
        return f"{model.name} has no file that this backend reads ({', '.join(formats)})"
    return missing(backend)


def unread(backend: str, model: Model, *, makes: bool = False) -> tuple[str, ...]:
    """Returns the formats that a backend reads if the backend cannot read any of the model's files; () if it can read
    one of the files or if this is unknown.

    makes: whether a file in a narrower precision may be made from a different format.
    """
    formats = formats_in_source(backend) or ()
    sources = [MADE_OF[one] for one in formats if one in MADE_OF] if makes else []
    return () if any(map(model.may_have, (*formats, *sources))) else formats


def missing(backend: str) -> str:
    """Returns how to install the backend's framework; '' if the framework is installed or not needed."""
    entry = registry.BACKENDS.get(backend)
    if entry is None or entry.installed:
        return ""
    text = str(registry.missing_extra("backend", backend, entry))
    return f"not installed: {text.partition(': ')[2]}"


def plan_of(
    lists: Mapping[str, tuple[Any, ...]],
    of_grid: GridOptions,
    own: RuntimesOptions,
    config: RunConfig,
    command: str,
) -> Plan:
    """Builds the plan. lists: output of the grid's take_lists. Raises a ConfigError that lists every problem."""
    models = lists.get("model", (config.model,))
    backends = lists.get("backend", (config.backend,))
    refuse(unknown(models, backends))
    models = tuple(str(Path(name).absolute()) if is_path(name) else name for name in models)
    threads = lists.get("threads", (config.threads,))
    precisions = of_grid.precision or (BASELINE,)
    axes = [*product(threads, precisions)]
    contests = tuple(_contest(model, backends, axes, config) for model in models)
    count = sum(len(one.cells) for one in contests)
    limit_ns = own.time_limit_ns
    calibration_dir = of_grid.calibration_dir
    return Plan(
        contests=contests,
        rounds=own.rounds,
        limit_s=limit_ns / NS_PER_S if limit_ns else CONTEST_S + CELL_S * count,
        calibration_dir=str(calibration_dir.absolute()) if calibration_dir else None,
        command=command,
    )


def _contest(
    name: str, backends: Sequence[str], axes: Sequence[tuple[int | None, str]], config: RunConfig
) -> Contest:
    """Returns one model's cells.

    axes: pairs of --threads and precision. If --threads is None, the cell uses all cores, provided that the backend
    supports several threads.
    """
    model = load_model(name)
    makes = any(precision != BASELINE for _, precision in axes)
    unreadable = {b: formats for b in backends if (formats := unread(b, model, makes=makes))}
    left_out = {b: why for b in backends if b not in unreadable and (why := missing(b))}
    measured = [b for b in backends if b not in unreadable and b not in left_out]
    own = replace(config, model=name)
    batch = instances.plan(own, scenario_named(own.scenario), model, cores.available()).max_batch
    data = "synthetic" if (config.dataset or default_dataset(model)) == "synthetic" else "real"
    cells = [
        Cell(name, backend, precision, batch, threads or _most_threads(backend), (), data)
        for (threads, precision), backend in product(axes, measured)
    ]
    return Contest(name, tuple(cells), left_out, unreadable)


def _most_threads(backend: str) -> int:
    return 1 if backend in registry.OF_ONE_THREAD else cores.available().planned


def problems(config: RunConfig, plan: Plan) -> Iterator[str]:
    verb = "sweep over backends"
    for name in set(plan.backends).intersection(_ANSWER_NOTHING):
        yield f"backend {name!r} computes no answers, so its answers cannot be compared: drop it from --backend"
    if scenario_named(config.scenario).scheduled:
        yield (
            f"backends are compared in single-stream, multi-stream or offline, but {config.scenario} has a rate: "
            "find the rate of each backend with `peak`"
        )
    for backend in dict.fromkeys((config.backend, *plan.backends)):
        yield from remote_problems(replace(config, backend=backend), verb)
    yield from unfit_options(config, verb, "a sweep makes quick runs: drop --mlperf")
    if "precision" in dict(config.backend_option):
        yield "a sweep takes --precision in place of --backend-option precision: drop the option"
    if plan.calibration_dir is not None and "int8" not in plan.precisions:
        yield "--calibration-dir is for int8: add int8 to --precision, or drop --calibration-dir"
    yield from _model_problems(plan)
    count = sum(len(one.cells) for one in plan.contests)
    if count > MOST_CELLS:
        yield f"{counted(count, 'cell')} are requested, but at most {MOST_CELLS:,} are allowed: request fewer at a time"


def _model_problems(plan: Plan) -> Iterator[str]:
    for contest in plan.contests:
        if load_model(contest.model).generates:
            yield (
                f"model {contest.model!r} generates its answers token by token, but this sweep compares batches: "
                "make a run with each backend, and use `compare`"
            )
        elif not contest.cells:
            model = load_model(contest.model)
            reasons = [f"{b}: {why_not(b, model)}" for b in (*contest.left_out, *contest.unread)]
            yield f"no backend can run {model.name!r} here; {'; '.join(reasons)}"
