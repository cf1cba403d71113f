"""Declares the options that `sweep` adds for a grid, and parses the lists of values that it accepts for a run's
options.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from harness.core.config.options import flag_name, option, option_key, resolved, visible_fields
from harness.core.config.parse import (
    parse_input_shape,
    parse_name,
    parse_path,
    parse_price,
    positive,
    words_of,
)
from harness.core.config.schema import MAX_BATCH
from harness.models.precision.ways import BASELINE, PRECISIONS

DATA = ("real", "synthetic")
DEFAULT_BATCHES = (1, 2, 4)
MOST_CELLS = 10_000
OPS = ("gemm", "conv", "lstm")

_thread_count = positive(1024)
_batch_size = positive(MAX_BATCH)


def parse_batches(text: str) -> tuple[int, ...]:
    """Parses '1,2,4..64' to (1, 2, 4, 8, 16, 32, 64). In a range with dots, each size is twice the previous size."""
    sizes: set[int] = set()
    for part in text.split(","):
        begin, dots, end = part.partition("..")
        first = _batch_size(begin)
        sizes.add(first)
        if dots:
            last = _batch_size(end)
            if last <= first:
                raise ValueError(f"{part!r}: write it in ascending order, e.g. 4..64")
            while first * 2 <= last:
                first *= 2
                sizes.add(first)
    return tuple(sorted(sizes))


def parse_precisions(text: str) -> tuple[str, ...]:
    """Parses 'fp32,int8' or 'all'."""
    return PRECISIONS if text.strip() == "all" else words_of(PRECISIONS)(text)


def parse_floor(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < 1e9:
        raise ValueError(f"{text!r} is not a score: write it in the metric's unit, e.g. 98.5")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class GridOptions:
    GROUP: ClassVar = "sweep over a grid"

    batch: tuple[int, ...] | None = option(
        "batch sizes, e.g. 1,2,4..64; a range doubles the size from start to end (default 1,2,4)",
        parse=parse_batches,
        metavar="SIZES",
    )
    precision: tuple[str, ...] | None = option(
        f"{', '.join(PRECISIONS)}, or all (default {BASELINE}); the harness makes missing variants of the model",
        parse=parse_precisions,
        metavar="NAMES",
    )
    data: tuple[str, ...] | None = option(
        "real, synthetic, or real,synthetic (default real if the model has data)",
        parse=words_of(DATA),
        metavar="KINDS",
    )
    ops: tuple[str, ...] | None = option(
        "run single operators as in DeepBench instead of a model: gemm, conv, lstm",
        parse=words_of(OPS),
        metavar="KINDS",
    )
    calibration_dir: Path | None = option(
        "folder, as for --data-dir, with the quantisation samples for int8, which are not scored",
        parse=parse_path,
        metavar="PATH",
    )
    accuracy_floor: float | None = option(
        "minimum score for the table of the fastest cells (default: the model's target)",
        parse=parse_floor,
        metavar="SCORE",
    )
    price: float | None = resolved(parse=parse_price)
    """Value of the run option --price. With --from, a different price may be set."""
    resume: Path | None = option(
        "continue the grid in this folder with its original options",
        parse=parse_path,
        metavar="DIR",
    )
    from_: Path | None = option(
        "run nothing; print the tables of this folder again",
        name="from",
        parse=parse_path,
        metavar="DIR",
    )


class Axes(NamedTuple):
    """Values that a grid combines into cells."""

    model: tuple[str, ...]
    backend: tuple[str, ...]
    precision: tuple[str, ...]
    batch: tuple[int, ...]
    threads: tuple[int, ...]
    shape: tuple[tuple[str, ...], ...]
    """Each entry contains the --input-shape values of one cell."""

    data: tuple[str, ...]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Axes":
        """Reads the axes. Raises KeyError, TypeError or ValueError if a value is of the wrong type, because folders are
        named after the values.
        """
        plain = {name: tuple(value) for name, value in values.items()}
        axes = cls(**{**plain, "shape": tuple(map(tuple, values["shape"]))})
        if not all(isinstance(text, str) for text in chain(axes.model, axes.backend, *axes.shape)):
            raise ValueError("a model, backend or shape is not a string")
        if not all(type(number) is int and number > 0 for number in (*axes.batch, *axes.threads)):
            raise ValueError("a batch or number of threads is not a whole number")
        if unknown := {*axes.precision, *axes.data} - {*PRECISIONS, *DATA}:
            raise ValueError(f"{unknown.pop()!r} is neither a precision nor a kind of data")
        return axes

    def joined(self, other: "Axes") -> "Axes":
        """Returns the union of the measured and the requested values."""
        values: dict[str, Any] = {
            name: tuple(dict.fromkeys((*getattr(self, name), *getattr(other, name))))
            for name in self._fields
        }
        return Axes(**values)


class Grid(NamedTuple):
    axes: Axes
    options: GridOptions


def names_grid(texts: Mapping[str, Any]) -> bool:
    """Returns whether the command line describes a grid instead of rates. texts: texts by option key."""
    if not texts.keys().isdisjoint(map(option_key, visible_fields(GridOptions))):
        return True
    lists = any("," in texts.get(name, "") for name in ("model", "backend", "threads"))
    return lists or any("/" in shape for shape in texts.get("input_shape", ()))


def take_lists(texts: dict[str, Any], problems: list[str]) -> dict[str, tuple[Any, ...]]:
    """Removes the lists from `texts`. If the common configuration needs one value from a list, uses the list's first
    value.
    """
    parsers = {"model": parse_name, "backend": parse_name, "threads": _thread_count}
    lists: dict[str, tuple[Any, ...]] = {}
    for name, parse in parsers.items():
        if not texts.get(name, "").strip():
            continue
        words = [word.strip() for word in texts.pop(name).split(",")]
        try:
            lists[name] = values = tuple(parse(word) for word in words)
        except ValueError as e:
            problems.append(f"{flag_name(name)}: {e}")
        else:
            twice = next((value for value in values if values.count(value) > 1), None)
            if twice is not None:
                problems.append(f"{flag_name(name)} lists {twice} twice: list each value once")
        if name != "threads":
            texts[name] = words[0]
    try:
        lists["shape"] = _shapes(texts.pop("input_shape", ()))
    except ValueError as e:
        problems.append(f"--input-shape: {e}")
    return lists


def _shapes(texts: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Parses ('a=1x8/1x16', 'b=1x8/1x16') to (('a=1x8', 'b=1x8'), ('a=1x16', 'b=1x16'))."""
    choices = []
    for text in texts:
        name, _, shapes = text.partition("=")
        choices.append([f"{name}={shape.strip()}" for shape in shapes.split("/")])
    for text in (one for each in choices for one in each):
        parse_input_shape(text)
    counts = {len(each) for each in choices if len(each) > 1}
    if len(counts) > 1:
        raise ValueError("inputs with several shapes must all have the same number of them")
    most = max(counts, default=1)
    if not choices:
        return ()
    return tuple(zip(*(each * most if len(each) == 1 else each for each in choices), strict=True))
