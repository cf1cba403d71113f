"""Declares the options of `bricks`."""

from dataclasses import dataclass
from pathlib import Path

from harness.core.config.options import option
from harness.explain import option_kinds as kinds
from harness.explain.option_kinds import MOST_THREADS, number, path

CUTTING, _RUNNING, _RESULTS, _FILES = "cutting", "running", "results", "files of the bricks"
LAYERS, DATABASE = 8, Path("results/bricks.sqlite")


def parse_size(text: str) -> tuple[str, int]:
    """Parses 'sequence=128' into ('sequence', 128)."""
    name, equals, number = text.rpartition("=")
    if not equals or not name or not number.isdecimal() or int(number) < 1:
        raise ValueError(f"{text!r}: write NAME=N, e.g. sequence=128")
    return name, int(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrickOptions:
    most_layers: int = number("maximum number of layers in a brick", CUTTING, LAYERS)
    batch: int = number("samples per run", CUTTING, 1)
    size: tuple[tuple[str, int], ...] = option(
        "size of another symbolic dimension of the inputs, by name, e.g. sequence=128, or by position, e.g. "
        "ids[1]=128 (repeatable)",
        parse=parse_size,
        metavar="NAME=N",
        many=True,
        group=CUTTING,
    )
    threads: int = number("threads of ONNX Runtime", _RUNNING, 1, MOST_THREADS)
    rounds: int = number(
        "number of rounds; a round times each model and each of its bricks twice", _RUNNING, 8
    )
    structure: bool = option(
        "cut the models, but time nothing", flag=True, default=False, group=_RUNNING
    )
    database: Path = path(
        f"database of the bricks timed so far (default {DATABASE})",
        "FILE",
        _RUNNING,
        default=DATABASE,
    )
    out: Path | None = kinds.out("bricks-ort-MODELS", _RESULTS)
    source: Path | None = kinds.source(_RESULTS)
    json: bool = kinds.as_json(_RESULTS)
    publish: Path | None = path(
        "write the bricks as ONNX files without the weights of the models", "DIR", _FILES
    )
    publish_order: bool = option(
        "with --publish: add the order of the bricks in each model, so that others can compute the model's time",
        flag=True,
        default=False,
        group=_FILES,
    )
    synthetic: Path | None = path(
        "write a synthetic ONNX model with the same mix of operators as the model", "FILE", _FILES
    )
    synthetic_layers: int | None = number(
        "number of layers in the --synthetic model (default: as many as the model has)", _FILES
    )
