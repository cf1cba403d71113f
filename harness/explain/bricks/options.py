"""Declares the options of `bricks`."""

from dataclasses import dataclass
from pathlib import Path

from harness.core.config.options import option
from harness.core.config.parse import parse_path, positive

_MOST = 1_000_000
CUTTING, _RUNNING, _RESULTS, _FILES = "cutting", "running", "results", "files of the bricks"


def parse_size(text: str) -> tuple[str, int]:
    """'sequence=128' -> ('sequence', 128)."""
    name, equals, number = text.rpartition("=")
    if not equals or not name or not number.isdecimal() or int(number) < 1:
        raise ValueError(f"{text!r}: write NAME=N, e.g. sequence=128")
    return name, int(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrickOptions:
    """A schema without defaults: those are the defaults of job.Request."""

    most_layers: int | None = option(
        "largest number of layers in a brick (default 8)",
        parse=positive(_MOST),
        metavar="N",
        group=CUTTING,
    )
    batch: int | None = option(
        "samples in a run (default 1)", parse=positive(_MOST), metavar="N", group=CUTTING
    )
    size: tuple[tuple[str, int], ...] = option(
        "size of another symbolic dimension of the inputs, e.g. sequence=128 (repeatable)",
        parse=parse_size,
        metavar="NAME=N",
        many=True,
        group=CUTTING,
    )
    threads: int | None = option(
        "threads of ONNX Runtime (default 1)", parse=positive(1024), metavar="N", group=_RUNNING
    )
    rounds: int | None = option(
        "rounds in which each model and each of its bricks is timed twice (default 8)",
        parse=positive(_MOST),
        metavar="N",
        group=_RUNNING,
    )
    structure: bool = option(
        "cut the models and run nothing", flag=True, default=False, group=_RUNNING
    )
    database: Path | None = option(
        "database of the bricks that were timed before (default results/bricks.sqlite)",
        parse=parse_path,
        metavar="FILE",
        group=_RUNNING,
    )
    out: Path | None = option(
        "result folder, which must not exist yet (default results/TIME-bricks-ort-MODELS)",
        parse=parse_path,
        metavar="DIR",
        group=_RESULTS,
    )
    source: Path | None = option(
        "run nothing; print the tables of this result folder again",
        name="from",
        parse=parse_path,
        metavar="DIR",
        group=_RESULTS,
    )
    json: bool = option(
        "print the numbers of the tables as JSON", flag=True, default=False, group=_RESULTS
    )
    publish: Path | None = option(
        "write the bricks as ONNX files without any weight of the models",
        parse=parse_path,
        metavar="DIR",
        group=_FILES,
    )
    publish_order: bool = option(
        "with --publish: add the order of the bricks in each model, so that others can add up its time",
        flag=True,
        default=False,
        group=_FILES,
    )
    synthetic: Path | None = option(
        "write a made-up ONNX model with the same mix of operators as the model",
        parse=parse_path,
        metavar="FILE",
        group=_FILES,
    )
    synthetic_layers: int | None = option(
        "layers of the --synthetic model (default: as many as the model has)",
        parse=positive(_MOST),
        metavar="N",
        group=_FILES,
    )
