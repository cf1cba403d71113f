"""Declares the options of `advise`."""

from dataclasses import dataclass
from pathlib import Path

from harness.core.config.options import option
from harness.core.config.parse import words_of
from harness.explain.advise.layers.settings import AXES, PARALLEL, SEQUENTIAL
from harness.explain.option_kinds import MOST_THREADS, number, path
from harness.models.opened.ort_session import GRAPH_LEVELS

PARTS = ("weights", "storage", "operators", "checks")
"""The names of job.PARTS, a module that is too slow to import for `--help`."""

_MODEL = "model and data"
_TODAY = "settings of today"
_MEASURED = "measurement"
_RESULTS = "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviseOptions:
    model: str | None = option(
        "a name of `list`, a manifest (.yaml) or an .onnx file", metavar="MODEL", group=_MODEL
    )
    dataset: str | None = option(
        "a name of `list` (default: the manifest's, else synthetic)", metavar="NAME", group=_MODEL
    )
    data_dir: str | None = option("file or folder of the dataset", metavar="PATH", group=_MODEL)
    input_shape: tuple[str, ...] = option(
        "shape of an input with symbolic dimensions, e.g. ids=1x128 (repeatable)",
        metavar="NAME=1xDIM",
        many=True,
        group=_MODEL,
    )
    input_range: tuple[str, ...] = option(
        "synthetic data: range of an input's numbers, as for a run (repeatable)",
        metavar="NAME=LOW:HIGH",
        many=True,
        group=_MODEL,
    )
    batch: int = number("samples per call", _MODEL, 1)
    graph: str = option(
        f"graph optimisation: {', '.join(GRAPH_LEVELS)} (default all)",
        choices=tuple(GRAPH_LEVELS),
        default="all",
        metavar="LEVEL",
        group=_TODAY,
    )
    threads: int | None = number(
        "threads of ONNX Runtime (default: all usable cores)", _TODAY, most=MOST_THREADS
    )
    execution: str = option(
        f"{SEQUENTIAL} (default) or {PARALLEL}",
        choices=(SEQUENTIAL, PARALLEL),
        default=SEQUENTIAL,
        metavar="MODE",
        group=_TODAY,
    )
    vary: tuple[str, ...] = option(
        "settings that the advice may change (default: all): "
        + "; ".join(f"{name} ({about})" for name, about in AXES.items()),
        parse=words_of(tuple(AXES)),
        default=tuple(AXES),
        metavar="AXIS,...",
        group=_MEASURED,
    )
    samples: int = number("samples for the accuracy of int8", _MEASURED, 200)
    pairs: int = number(
        "pairs of timings per setting, today's and the new one in turns", _MEASURED, 7
    )
    passes: int = number("passes over the layers", _MEASURED, 3)
    database: Path | None = path(
        "database of the layers that were timed before (default: in the cache folder)",
        "FILE",
        _MEASURED,
    )
    skip: tuple[str, ...] = option(
        f"part to leave out: {', '.join(PARTS)} (repeatable)",
        choices=PARTS,
        metavar="PART",
        many=True,
        group=_MEASURED,
    )
    out: Path | None = path(
        "result folder, which must not exist yet (default results/TIME-advise-ort-MODEL)",
        "DIR",
        _RESULTS,
    )
    source: Path | None = path(
        "run nothing; print the tables of this folder again", "DIR", _RESULTS, name="from"
    )
    json: bool = option(
        "print advise.json instead of the tables", flag=True, default=False, group=_RESULTS
    )
    quiet: bool = option("print no progress", flag=True, default=False, group=_RESULTS)
