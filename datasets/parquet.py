"""Reads Parquet tables with pyarrow."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness.core.formats.impostors import impostor
from harness.datasets.parts.sources import refuse
from harness.datasets.parts.tables import Choice, Columns, TableDataset
from harness.errors import ConfigError
from harness.types import Array, Dataset


class ParquetDataset(TableDataset):
    """A Parquet table. A column of lists with the same length n counts as n columns."""

    name = "parquet"
    suffix = ".parquet"

    def header(self, path: Path) -> Sequence[str]:
        try:
            names: Sequence[str] = pq.read_schema(path).names
        except pa.ArrowInvalid as e:
            raise ConfigError(f"{path} is not Parquet: {impostor(path, 'data') or e}") from None
        return names

    def read(self, path: Path, choice: Choice) -> Columns:
        try:
            table = pq.read_table(path, columns=used_columns(choice))
        except (pa.ArrowInvalid, OSError) as e:
            raise ConfigError(f"{path} cannot be read: {' '.join(str(e).split())[:200]}") from None
        return columns_of(table, choice, str(path))


def used_columns(choice: Choice) -> list[str]:
    columns = [*choice.numeric, *choice.texts]
    return columns if choice.label is None else [*columns, choice.label]


def columns_of(table: Any, choice: Choice, source: str) -> Columns:
    """Converts a pyarrow Table to arrays and labels. Raises a ConfigError that lists every unusable row."""
    problems: list[str] = []
    for name in used_columns(choice):
        problems += (f"{source}: {p}" for p in missing(table.column(name), name))
    refuse(problems)
    numeric = _numeric({name: table.column(name) for name in choice.numeric}, source, problems)
    texts = {name: table.column(name).to_pylist() for name in choice.texts}
    problems += (
        f"{source}: column {name!r} has the type {table.column(name).type}, not text"
        for name, values in texts.items()
        if not all(isinstance(value, str) for value in values)
    )
    refuse(problems)
    labels = table.column(choice.label).to_pylist() if choice.label is not None else ()
    return Columns(numeric, texts, labels, table.num_rows)


def _numeric(columns: Mapping[str, Any], source: str, problems: list[str]) -> dict[str, Array]:
    """Converts pyarrow columns to arrays. Adds a problem for each column that is ragged or not numeric."""
    arrays = {}
    for name, column in columns.items():
        try:
            arrays[name] = _array(column)
        except (ValueError, pa.ArrowInvalid) as e:
            problems.append(f"{source}: column {name!r}: {e}")
    return arrays


def missing(column: Any, name: str) -> list[str]:
    """Returns a problem for each row (counted from 1) that is null or NaN, or a list that contains null or NaN."""
    rows = np.asarray(column.is_null(nan_is_null=True).to_pylist(), bool)
    return [f"row {row + 1}: column {name!r} is missing" for row in np.flatnonzero(rows)]


def _array(column: Any) -> Array:
    """Returns a column as an array (n,), or as (n, width) if its values are lists. Raises a ValueError that states the
    problem.
    """
    values = column.combine_chunks()
    kind = values.type
    if pa.types.is_fixed_size_list(kind):
        return _flat(values.flatten()).reshape(len(values), kind.list_size)
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return _flat(values)
    lengths = values.value_lengths().to_numpy(zero_copy_only=False)
    ragged = np.flatnonzero(lengths != lengths[:1])
    if len(ragged):
        row = int(ragged[0])
        raise ValueError(f"row {row + 1} has {lengths[row]} values, but row 1 has {lengths[0]}")
    return _flat(values.flatten()).reshape(len(values), -1 if len(values) else 0)


def _flat(values: Any) -> Array:
    kind = values.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise ValueError(f"{kind} is not a number")
    array: Array = values.to_numpy(zero_copy_only=False)
    if values.null_count or (array.dtype.kind == "f" and not np.isfinite(array).all()):
        raise ValueError("a value is missing or not finite")
    return array


_: type[Dataset] = ParquetDataset
