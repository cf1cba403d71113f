"""Chooses the range of each synthetic input, and draws numbers from this range."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from harness.core.units import counted
from harness.types import Array, DatasetSetup, Interval, Table, TensorSpec

FLAG = "--input-range"

_ZERO_OR_ONE = Interval(0, 2)
_ONE = Interval(1, 2)


class Range(NamedTuple):
    """The range of an input's numbers."""

    interval: Interval
    source: str
    """Text that explains where the range comes from."""
    is_default: bool
    """True if nothing is known about the input, so the range is a default."""


def ranges_of(
    setup: DatasetSetup, padded: Collection[str], problems: list[str]
) -> dict[str, Range]:
    """Returns the range of every input. Omits inputs of unknown type, and floating-point inputs for which the user sets
    no range.

    padded: inputs whose samples differ in length; a mask input among these inputs is filled with ones. problems:
    receives one line for each range that the user sets but that does not fit its input.
    """
    types = dict(_known_types(setup.inputs))
    ranges = {}
    tables = setup.tables() if any(kind.kind in "iu" for kind in types.values()) else {}
    for name, dtype in types.items():
        if name in setup.ranges:
            problems += _misfits(name, setup.ranges[name], dtype, tables.get(name))
            ranges[name] = Range(setup.ranges[name], FLAG, is_default=False)
        elif dtype.kind != "f":
            is_mask = name in padded and "mask" in name.lower()
            table = tables.get(name) if dtype.kind in "iu" else None
            ranges[name] = _default(dtype, table, is_mask=is_mask)
    return ranges


def _known_types(inputs: Sequence[TensorSpec]) -> Iterator[tuple[str, np.dtype[Any]]]:
    for spec in inputs:
        try:
            yield spec.name, np.dtype(spec.dtype)
        # The size is unknown, which is reported together with the input's shape.
        except TypeError:
            continue


def _default(dtype: np.dtype[Any], table: Table | None, *, is_mask: bool) -> Range:
    if is_mask:
        return Range(_ONE, "default of a mask; its padding is 0", is_default=True)
    if table is None:
        return Range(_ZERO_OR_ONE, "default: no table is known", is_default=True)
    high = min(table.rows, _limits(dtype).high)
    source = f"the model's {table.operator} table of {counted(table.rows, 'row')}"
    return Range(Interval(0, high), source, is_default=False)


def _limits(dtype: np.dtype[Any]) -> Interval:
    """Returns the range of all integers of the type."""
    if dtype.kind == "b":
        return _ZERO_OR_ONE
    about = np.iinfo(dtype)
    return Interval(int(about.min), int(about.max) + 1)


def _misfits(
    name: str, interval: Interval, dtype: np.dtype[Any], table: Table | None
) -> Iterator[str]:
    """Yields the reasons why the user's range does not suit an input with this type and table."""
    given = f"{FLAG} {name}={interval}"
    if dtype.kind == "f":
        most = float(np.finfo(dtype).max)
        if max(-interval.low, interval.high) > most:
            yield f"{given}: the input is {dtype}, whose range is only {-most:g} to {most:g}"
    elif dtype.kind not in "iub":
        yield f"{given}: the input is {dtype}, which has no ranges: drop it"
    elif not isinstance(interval.low, int) or not isinstance(interval.high, int):
        yield f"{given}: the input is {dtype}: write whole numbers"
    else:
        low, high = _limits(dtype)
        if interval.low < low or interval.high > high:
            yield f"{given}: the input is {dtype}, whose range is only {low}:{high}"
        elif dtype.kind in "iu" and table is not None and interval.high > table.rows:
            yield (
                f"{given}: the model's {table.operator} table has {counted(table.rows, 'row')}: "
                f"pass at most {FLAG} {name}={min(interval.low, table.rows - 1)}:{table.rows}"
            )


def drawn_numbers(
    random: np.random.Generator, interval: Interval, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Array:
    """Draws uniform numbers in the interval, with the given shape and type."""
    low, high = interval
    if dtype.kind == "f":
        share = random.random(shape)
        drawn = np.asarray(float(low) * (1 - share) + float(high) * share, dtype)
        last: Array = np.nextafter(dtype.type(high), dtype.type(low))
        return np.asarray(np.minimum(drawn, last))
    wide = np.uint64 if high > 2**63 else np.int64
    return np.asarray(random.integers(int(low), int(high), shape, wide), dtype)


def described(ranges: Mapping[str, Range]) -> dict[str, object]:
    """Returns the ranges by input name, for describe()."""
    return {
        name: {**one.interval._asdict(), "source": one.source}
        for name, one in sorted(ranges.items())
    }
