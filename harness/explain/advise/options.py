"""Declares the options of `advise`."""

from dataclasses import dataclass
from pathlib import Path

from harness.core.config.options import option
from harness.core.config.parse import parse_path, positive, words_of
from harness.explain.advise.layers.settings import AXES, PARALLEL, SEQUENTIAL
from harness.models.opened.ort_session import GRAPH_LEVELS

_MOST = 1_000_000
PARTS = ("weights", "storage", "operators", "checks")
"""The names of parts.PARTS, a module that is too slow to import for `--help`."""

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
    batch: int = option(
        "samples per call (default 1)", parse=positive(_MOST), default=1, metavar="N", group=_MODEL
    )
    graph: str = option(
        f"graph optimisation: {', '.join(GRAPH_LEVELS)} (default all)",
        choices=tuple(GRAPH_LEVELS),
        default="all",
        metavar="LEVEL",
        group=_TODAY,
    )
    threads: int | None = option(
        "threads of ONNX Runtime (default: all usable cores)",
        parse=positive(1024),
        metavar="N",
        group=_TODAY,
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
    samples: int = option(
        "samples for the accuracy of int8 (default 200)",
        parse=positive(_MOST),
        default=200,
        metavar="N",
        group=_MEASURED,
    )
    pairs: int = option(
        "pairs of timings per setting, today's and the new one in turns (default 7)",
        parse=positive(_MOST),
        default=7,
        metavar="N",
        group=_MEASURED,
    )
    passes: int = option(
        "passes over the layers (default 3)",
        parse=positive(_MOST),
        default=3,
        metavar="N",
        group=_MEASURED,
    )
    database: Path | None = option(
        "database of the layers that were timed before (default: in the cache folder)",
        parse=parse_path,
        metavar="FILE",
        group=_MEASURED,
    )
    skip: tuple[str, ...] = option(
        f"part to leave out: {', '.join(PARTS)} (repeatable)",
        choices=PARTS,
        metavar="PART",
        many=True,
        group=_MEASURED,
    )
    out: Path | None = option(
        "result folder, which must not exist yet (default results/TIME-advise-ort-MODEL)",
        parse=parse_path,
        metavar="DIR",
        group=_RESULTS,
    )
    source: Path | None = option(
        "run nothing; print the tables of this folder again",
        name="from",
        parse=parse_path,
        metavar="DIR",
        group=_RESULTS,
    )
    json: bool = option(
        "print advise.json instead of the tables", flag=True, default=False, group=_RESULTS
    )
    quiet: bool = option("print no progress", flag=True, default=False, group=_RESULTS)
