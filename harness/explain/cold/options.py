"""Declares the options of `cold`."""

from dataclasses import dataclass
from pathlib import Path

from harness.core.config.options import option
from harness.explain import option_kinds as kinds
from harness.explain.option_kinds import MOST_THREADS, number

_MODEL = "model and data"
_MEASURED = "measurement"
_RESULTS = "results"

RUN_OPTIONS = (
    *("model", "backend", "backend_option", "dataset", "data_dir"),
    *("input_shape", "input_range", "threads"),
)
"""Options that are parsed like the run options with the same names."""


PARTS = ("formats", "sharing", "benefit")
"""Parts that are measured in addition to the model's file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdOptions:
    backend: str | None = option("a name from `list` (default ort)", group=_MODEL)
    backend_option: tuple[str, ...] = option(
        "option of the backend, as for a run (repeatable)",
        metavar="KEY=VALUE",
        many=True,
        group=_MODEL,
    )
    dataset: str | None = kinds.dataset(_MODEL)
    data_dir: str | None = kinds.data_dir(_MODEL)
    input_shape: tuple[str, ...] = kinds.input_shape(_MODEL)
    input_range: tuple[str, ...] = kinds.input_range(_MODEL)
    threads: int | None = number(
        "threads of the framework (default: all usable cores)", _MEASURED, most=MOST_THREADS
    )
    trials: int = number(
        "number of trials of each kind of start; the kinds take turns", _MEASURED, 5, most=1000
    )
    runs: int = number(
        "number of steady runs after the first run of each trial", _MEASURED, 10, most=10_000
    )
    skip: tuple[str, ...] = kinds.skip(PARTS, _MEASURED)
    fetch: bool = option(
        "download the model's file again from the address in its manifest, to time the download",
        flag=True,
        default=False,
        group=_MEASURED,
    )
    out: Path | None = kinds.out("cold-BACKEND-MODEL", _RESULTS)
    source: Path | None = kinds.source(_RESULTS)
    json: bool = kinds.as_json(_RESULTS, "print cold.json instead of the tables")
    quiet: bool = kinds.quiet(_RESULTS)
