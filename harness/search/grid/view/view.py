"""Reads a grid from its folder: each cell's row, and the comparisons between cells."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from harness.core import files
from harness.errors import ConfigError
from harness.models.network.network import Structure, difference
from harness.models.precision.ways import BASELINE
from harness.results.agreement import agreement
from harness.search.grid.cells.cells import (
    GRID,
    PROBES,
    Cell,
    Row,
    cells,
    folder_of,
    labels,
    row_of,
)
from harness.search.grid.cells.options import Axes, GridOptions
from harness.search.grid.same_network.divergence import Divergence, divergence
from harness.search.grid.view import tables

_KINDS = {"config": dict, "axes": dict, "precisions": dict, "absent": dict, "ops": dict}
_WEIGHTS = {"fp32": ("float32", "float64")}


def content_of(folder: Path) -> Mapping[str, Any]:
    """Returns the content of grid.json. Raises a ConfigError if the file is missing or not valid."""
    content = files.read_json(folder / GRID, "sweep")
    wrong = [name for name, kind in _KINDS.items() if not isinstance(content.get(name), kind)]
    if wrong:
        raise ConfigError(f"{folder / GRID} has no usable {', '.join(wrong)}")
    with files.reading(f"{folder / GRID}: its axes cannot be read"):
        Axes.from_json(content["axes"])
    return content


@dataclass(frozen=True, kw_only=True)
class View:
    content: Mapping[str, Any]
    """Content of grid.json."""
    options: GridOptions
    rows: Sequence[Row]
    """Rows for all cells that were run or that cannot run."""
    structures: Mapping[Cell, Structure | str]
    """Maps a variant to its network, or to the reason why the network is unknown."""
    same_answers: Mapping[Cell, float]
    """Maps a cell to the share of its answers that equal the fp32 answers."""
    divergences: Mapping[Cell, Divergence]
    """Maps a variant to the distance between its outputs and the baseline's."""

    @cached_property
    def strangers(self) -> Mapping[Cell, str]:
        return dict(strangers(self.structures))

    @cached_property
    def labels(self) -> Mapping[str, str]:
        """Maps a model to its name in the tables."""
        return labels(self.content["axes"]["model"])

    @cached_property
    def namesakes(self) -> Sequence[str]:
        """Lines about pairs of models that share a name but contain different networks."""
        return tuple(_namesakes(self.structures, self.labels))

    @cached_property
    def why_not(self) -> Mapping[Cell, str]:
        scored = any(row.accuracy is not None for row in self.rows)
        return tables.reasons(self.rows, self.strangers, scored=scored)

    @cached_property
    def ranked(self) -> Sequence[Row]:
        return [row for row in self.rows if row.cell not in self.why_not]

    def gflop_per_s(self, row: Row) -> float | None:
        """Returns an operator's speed at its fastest batch size, in GFLOP/s as in DeepBench; None if the operator's
        work is unknown.
        """
        about = self.content["ops"].get(row.model)
        if about is None or not row.forward_least_ns:
            return None
        return float(about["flop_per_sample"]) * row.batch / row.forward_least_ns

    def heat_maps(self) -> list[dict[str, Any]]:
        return tables.heat_maps(self.ranked)

    columns = (
        *Row._fields,
        "not_ranked",
        "same_answers",
        "relative_l2",
        "js_bits",
        "gflop_per_s",
        "weights",
        "macs",
    )

    def csv_rows(self) -> Iterator[list[Any]]:
        for row in self.rows:
            distance = self.divergences.get(row.cell.variant)
            network = self.structures.get(row.cell.variant)
            yield [
                *(" ".join(value) if isinstance(value, tuple) else value for value in row),
                self.why_not.get(row.cell, ""),
                self.same_answers.get(row.cell),
                distance.relative_l2 if distance else None,
                distance.js_bits if distance else None,
                self.gflop_per_s(row),
                sum(network.weights) if isinstance(network, Structure) else None,
                network.macs if isinstance(network, Structure) else None,
            ]

    def to_json(self) -> dict[str, Any]:
        return {
            **self.content,
            "cells": [dict(zip(self.columns, line, strict=True)) for line in self.csv_rows()],
            "heat_maps": self.heat_maps(),
        }


def stored_view(folder: Path, options: GridOptions) -> View:
    """Reads the view from the files in `folder` alone."""
    content = content_of(folder)
    known = list(cells(Axes.from_json(content["axes"])))
    rows = []
    for cell in known:
        run = folder_of(folder, cell)
        if run is not None:
            rows.append(row_of(cell, run, folder))
        elif cell.key in content["absent"]:
            rows.append(Row(*cell, absent=str(content["absent"][cell.key])))
    variants = dict.fromkeys(row.cell.variant for row in rows)
    return View(
        content=content,
        options=options,
        rows=rows,
        structures=dict(_structures(folder, variants)),
        same_answers=dict(_same_answers(folder, rows)),
        divergences=dict(_divergences(folder, variants)),
    )


def strangers(structures: Mapping[Cell, Structure | str]) -> Iterator[tuple[Cell, str]]:
    """Yields (variant, reason) for each variant whose network differs from the first variant's or cannot be identified."""
    for model in dict.fromkeys(variant.model for variant in structures):
        own = {v: s for v, s in structures.items() if v.model == model}
        first = next(iter(own))
        known = next((s for s in own.values() if isinstance(s, Structure)), None)
        for variant, network in own.items():
            if isinstance(network, str) or known is None:
                if variant.backend != first.backend:
                    yield variant, f"it is not known to be the same network: {network}"
            elif why := difference(known._replace(macs=_macs_of(own, variant)), network):
                yield variant, f"another network of the same name: {why}"
            elif why := _other_precision(variant, network):
                yield variant, why


def _namesakes(
    structures: Mapping[Cell, Structure | str], labels: Mapping[str, str]
) -> Iterator[str]:
    """Yields a line for each pair of different networks that share a name.

    The first variant with a known network represents its model.
    """
    first: dict[str, tuple[Cell, Structure]] = {}
    for variant, network in structures.items():
        if isinstance(network, Structure):
            first.setdefault(variant.model, (variant, network))
    for (one, (here, ours)), (other, (there, theirs)) in combinations(first.items(), 2):
        if labels[one].rpartition("/")[2] != labels[other].rpartition("/")[2]:
            continue
        is_same_input = (here.shape, here.data) == (there.shape, there.data)
        if why := difference(ours, theirs if is_same_input else theirs._replace(macs=None)):
            yield f"{labels[one]} and {labels[other]} are different networks of the same name: {why}"


def _macs_of(own: Mapping[Cell, Structure | str], variant: Cell) -> int | None:
    """Returns the number of multiplications in the first variant with the same input, because this number depends on
    the input size.
    """
    alike = (s for v, s in own.items() if (v.shape, v.data) == (variant.shape, variant.data))
    return next((s.macs for s in alike if isinstance(s, Structure) and s.macs), None)


def _other_precision(variant: Cell, network: Structure) -> str:
    expected = _WEIGHTS.get(variant.precision)
    if expected is None or not network.types or set(network.types) & set(expected):
        return ""
    return f"its weights are {' '.join(network.types)}, not {variant.precision}"


def _structures(
    folder: Path, variants: Mapping[Cell, None]
) -> Iterator[tuple[Cell, Structure | str]]:
    for variant in variants:
        path = folder / PROBES / f"{variant.key}.json"
        if not path.is_file():
            continue
        probe = files.read_json(path)
        with files.reading(f"{path} is not valid probe output"):
            stored = probe["structure"]
            structure = Structure.from_json(stored) if stored else str(probe["unknown"])
        yield variant, structure


def _same_answers(folder: Path, rows: Sequence[Row]) -> Iterator[tuple[Cell, float]]:
    """Yields the share of answers that agree with the fp32 answers, for complete accuracy runs with the same batch
    size, threads, framework and data.
    """
    for row in rows:
        base = folder_of(folder, row.cell._replace(precision=BASELINE))
        if row.precision == BASELINE or not row.folder or base is None:
            continue
        if (alike := agreement(base, folder / row.folder)) is not None:
            yield row.cell, alike.top1


def _divergences(folder: Path, variants: Mapping[Cell, None]) -> Iterator[tuple[Cell, Divergence]]:
    """Yields the distance between raw outputs and the fp32 outputs in the same framework. fp32 outputs are compared
    with the fp32 outputs of the first framework.
    """
    first = {variant.model: variant.backend for variant in reversed(list(variants))}
    for variant in variants:
        base = variant._replace(precision=BASELINE)
        if variant == base:
            base = base._replace(backend=first[variant.model])
        paths = [folder / PROBES / f"{one.key}.npz" for one in (base, variant)]
        if variant == base or not all(path.is_file() for path in paths):
            continue
        if (distance := divergence(*map(_outputs, paths))) is not None:
            yield variant, distance


def _outputs(path: Path) -> Any:
    problem = f"{path} is not valid probe output"
    with (
        files.reading(problem, also=(OSError,)),
        path.open("rb") as opened,
        np.load(opened, allow_pickle=False) as file,
    ):
        return file["outputs"]
