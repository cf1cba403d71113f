"""Reads the data for MLPerf's Qwen3-VL: products with pictures, for which a model determines category and brand."""

import io
import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness.core.formats.prompt_fields import framed
from harness.datasets.parts import sources
from harness.datasets.parts.prompts.products import SAMPLING, messages
from harness.datasets.parts.prompts.tokens import input_of
from harness.datasets.parts.rows import LoadedRows
from harness.datasets.parts.sources import unreadable
from harness.errors import ConfigError
from harness.types import Dataset, DatasetSetup

_TEXTS = ("product_title", "product_description")
_CATEGORIES = "potential_product_categories"
_IMAGE = "product_image"
_ENCODED = ("product_image_base64", "product_image_format")
"""Columns that replace the picture in the table that mlcommons/endpoints caches."""

_TRUTHS = ("ground_truth_category", "ground_truth_brand")
_SPLITS = ("train", "test")
"""Splits of the data, in the benchmark's order."""


class _Group(NamedTuple):
    """A row group of a Parquet file."""

    path: Path
    number: int
    begin: int
    """Dataset index of the group's first row."""
    rows: int


class ProductCatalogueDataset(LoadedRows):
    """Products. --data-dir is a Parquet file, or a folder with the files of the splits train and test from the Hub.

    A sample is a chat with the product's texts, the possible categories and the picture. Pillow encodes the picture
    again in the same format, as MLPerf's client does. The label consists of the category and the brand.
    """

    def __init__(self, setup: DatasetSetup) -> None:
        self._input = input_of(setup, "product-catalogue")
        self._setup = setup
        self._files = _files(setup)
        self._groups = list(_groups(self._files))
        truths = [_column(path, name) for name in _TRUTHS for path in self._files]
        half = len(self._files)
        self._categories = [text for part in truths[:half] for text in part]
        self._brands = [text for part in truths[half:] for text in part]
        if not self._categories:
            raise ConfigError(f"{setup.data_dir} has no products: nothing can be measured")
        super().__init__(len(self._categories))

    def load(self, indices: Sequence[int]) -> None:
        """Loads samples. Raises a ConfigError if a picture is damaged."""
        places: dict[int, list[int]] = {}
        for place, index in enumerate(indices):
            places.setdefault(index, []).append(place)
        held = np.empty(len(indices), object)
        done = 0
        for group in self._groups:
            wanted = [i for i in range(group.begin, group.begin + group.rows) if i in places]
            for index, row in zip(wanted, _rows(group, wanted), strict=True):
                request = _request(row, f"{group.path}: product {index}")
                for place in places[index]:
                    held[place] = request
                done += 1
                self._setup.progress(done, len(places))
        self.hold(indices, {self._input: held})

    def label(self, index: int) -> Mapping[str, object]:
        return {"text": self._categories[index], "brand": self._brands[index]}

    def describe(self) -> Mapping[str, object]:
        return {
            "name": "product-catalogue",
            "count": len(self),
            "source": str(self._setup.data_dir),
            "draws_tokens": True,
            "digest": sources.digest({path.name: path for path in self._files}, self._setup),
        }


def _files(setup: DatasetSetup) -> list[Path]:
    """Returns the files in the benchmark's order, first the split train and then the split test."""
    given = sources.given_path(setup, "product-catalogue", "a .parquet file, or a folder with them")
    if given.is_file():
        return [given]
    found = sorted(p for p in given.rglob("*.parquet") if p.is_file())
    if not found:
        raise ConfigError(f"{given} has no .parquet files: name their folder")
    order = {p: next((n for n, s in enumerate(_SPLITS) if p.name.startswith(s)), -1) for p in found}
    unknown = [p.name for p, split in order.items() if split < 0]
    if unknown and len(found) > 1:
        raise ConfigError(
            f"{given}: {unknown[0]} belongs to neither split ({', '.join(_SPLITS)}): remove it"
        )
    return sorted(found, key=lambda path: (order[path], path.name))


def _opened(path: Path) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(path)
    except (OSError, ValueError) as e:  # pyarrow's errors are subclasses of ValueError
        raise unreadable(path, e) from e
    names = file.schema_arrow.names
    missing = [name for name in (*_TEXTS, _CATEGORIES, *_TRUTHS) if name not in names]
    if _IMAGE not in names and not {*_ENCODED} <= {*names}:
        missing.append(_IMAGE)
    if missing:
        raise ConfigError(f"{path} has no column {missing[0]!r}: it is not the product catalogue")
    return file


def _groups(files: Sequence[Path]) -> Iterator[_Group]:
    begin = 0
    for path in files:
        about = _opened(path).metadata
        for number in range(about.num_row_groups):
            rows = about.row_group(number).num_rows
            yield _Group(path, number, begin, rows)
            begin += rows


def _column(path: Path, name: str) -> list[str]:
    try:
        values: list[Any] = _opened(path).read(columns=[name]).column(name).to_pylist()
    except (OSError, ValueError) as e:
        raise unreadable(path, e) from e
    for row, value in enumerate(values):
        if not isinstance(value, str):
            raise ConfigError(f"{path}: row {row}: {name} is {value!r:.40}, but must be a string")
    return values


def _rows(group: _Group, wanted: Sequence[int]) -> list[Mapping[str, Any]]:
    """Returns the requested samples from a row group."""
    if not wanted:
        return []
    file = _opened(group.path)
    columns = [
        name
        for name in (*_TEXTS, _CATEGORIES, _IMAGE, *_ENCODED)
        if name in file.schema_arrow.names
    ]
    try:
        table = file.read_row_group(group.number, columns=columns)
        rows: list[Mapping[str, Any]] = table.take(
            pa.array([index - group.begin for index in wanted])
        ).to_pylist()
    except (OSError, ValueError) as e:
        raise unreadable(group.path, e) from e
    return rows


def _request(row: Mapping[str, Any], place: str) -> bytes:
    try:
        encoded, kind = _picture(row)
        categories = row[_CATEGORIES]
        if not isinstance(categories, str):
            categories = json.dumps(categories)
        title, description = (row[name] or "" for name in _TEXTS)
    except (OSError, ValueError, LookupError, TypeError) as e:
        raise ConfigError(f"{place} cannot be read: {e}") from e
    chat = messages(title, description, categories, f"data:image/{kind};base64,{encoded}")
    fields = framed(SAMPLING, {"messages": chat})
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def _picture(row: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the picture in base64, and Pillow's name for its format."""
    if row.get(_IMAGE) is None:
        encoded, kind = (str(row[name]) for name in _ENCODED)
        return encoded, kind
    from PIL import Image

    with Image.open(io.BytesIO(row[_IMAGE]["bytes"])) as image:
        kind, file = image.format or "JPEG", io.BytesIO()
        image.save(file, format=kind)
    return b64encode(file.getvalue()).decode(), kind


_: type[Dataset] = ProductCatalogueDataset
