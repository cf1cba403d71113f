"""Declares the options of `cold`."""

from dataclasses import dataclass
from pathlib import Path

from harness.core.config.options import option
from harness.explain.option_kinds import MOST_THREADS, number, path

_MODEL = "model and data"
_MEASURED = "measurement"
_RESULTS = "results"

RUN_OPTIONS = (
    *("model", "backend", "backend_option", "dataset", "data_dir"),
    *("input_shape", "input_range", "threads"),
)
"""Options that are parsed as the same options of a run."""


PARTS = ("formats", "sharing", "benefit")
"""What is measured beside the model's own file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdOptions:
    backend: str | None = option("a name of `list` (default ort)", group=_MODEL)
    backend_option: tuple[str, ...] = option(
        "option of the backend, as for a run (repeatable)",
        metavar="KEY=VALUE",
        many=True,
        group=_MODEL,
    )
    dataset: str | None = option(
        "a name of `list` (default: the manifest's, else synthetic)", group=_MODEL
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
    threads: int | None = number(
        "threads of the framework (default: all usable cores)", _MEASURED, most=MOST_THREADS
    )
    trials: int = number("trials of each start, in turns", _MEASURED, 5, most=1000)
    runs: int = number("steady runs after the first one, in each trial", _MEASURED, 10, most=10_000)
    skip: tuple[str, ...] = option(
        f"part to leave out: {', '.join(PARTS)} (repeatable)",
        choices=PARTS,
        metavar="PART",
        many=True,
        group=_MEASURED,
    )
    fetch: bool = option(
        "fetch the model's file once more from its manifest's address, to time that",
        flag=True,
        default=False,
        group=_MEASURED,
    )
    out: Path | None = path(
        "result folder, which must not exist yet (default results/TIME-cold-BACKEND-MODEL)",
        "DIR",
        _RESULTS,
    )
    source: Path | None = path(
        "run nothing; print the tables of this folder again", "DIR", _RESULTS, name="from"
    )
    json: bool = option(
        "print cold.json instead of the tables", flag=True, default=False, group=_RESULTS
    )
    quiet: bool = option("print no progress", flag=True, default=False, group=_RESULTS)
