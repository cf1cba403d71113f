"""Declares the options of `advise`."""

from dataclasses import dataclass
from pathlib import Path

from harness.core.config.options import option
from harness.core.config.parse import words_of
from harness.explain import option_kinds as kinds
from harness.explain.advise.layers.settings import AXES, PARALLEL, SEQUENTIAL
from harness.explain.option_kinds import MOST_THREADS, number, path
from harness.models.opened.ort_session import GRAPH_LEVELS

PARTS = ("weights", "storage", "operators", "checks")
"""The names in job.PARTS. The names are repeated in this module because importing `job` would slow down `--help`."""

_MODEL = "model and data"
_TODAY = "current settings"
_MEASURED = "measurement"
_RESULTS = "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviseOptions:
    model: str | None = option(
        "a name from `list`, a manifest (.yaml) or an .onnx file", metavar="MODEL", group=_MODEL
    )
    dataset: str | None = kinds.dataset(_MODEL)
    data_dir: str | None = kinds.data_dir(_MODEL)
    input_shape: tuple[str, ...] = kinds.input_shape(_MODEL)
    input_range: tuple[str, ...] = kinds.input_range(_MODEL)
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
    samples: int = number(
        "number of samples on which the accuracy of int8 is measured", _MEASURED, 200
    )
    pairs: int = number(
        "pairs of timings per setting; the current and the new setting take turns", _MEASURED, 7
    )
    passes: int = number("passes over the layers", _MEASURED, 3)
    database: Path | None = path(
        "database of the layers timed so far (default: in the cache folder)",
        "FILE",
        _MEASURED,
    )
    skip: tuple[str, ...] = kinds.skip(PARTS, _MEASURED)
    out: Path | None = kinds.out("advise-ort-MODEL", _RESULTS)
    source: Path | None = kinds.source(_RESULTS)
    json: bool = kinds.as_json(_RESULTS, "print advise.json instead of the tables")
    quiet: bool = kinds.quiet(_RESULTS)
