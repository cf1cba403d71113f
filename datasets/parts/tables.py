"""The base class for table datasets. Columns of numbers or strings become the inputs, and one column contains the
labels.

The steps named `column` choose the columns of each input. Without such steps, the model's only input uses every column
except the label column. Missing values, values that are not numbers, and ragged rows are reported by line.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np

from harness.core.extras import how_to_install
from harness.datasets.parts import classes, numbers, sources
from harness.datasets.parts.listing import twice
from harness.datasets.parts.rows import LoadedRows
from harness.datasets.parts.sources import one_file, own_step, refuse, unreadable
from harness.errors import ConfigError, PluginUnavailable
from harness.types import Array, DatasetSetup, TensorSpec, show_shape

LABEL = "label"
"""Name of the label column, unless a `column` step names another column. The column may be missing."""

STEPS = ("column", "tokenise", *numbers.STEPS)


class Choice(NamedTuple):
    """The columns that a dataset uses."""

    inputs: Mapping[str, tuple[str, ...]]
    """Maps an input name to its columns, in order."""
    label: str | None
    texts: tuple[str, ...]
    """Columns that are tokenised. All other columns are numbers."""

    @property
    def numeric(self) -> tuple[str, ...]:
        columns = dict.fromkeys(c for columns in self.inputs.values() for c in columns)
        return tuple(c for c in columns if c not in self.texts)


class Columns(NamedTuple):
    """The content of the chosen columns."""

    numeric: Mapping[str, Array]
    """Maps a column to an array (n,), or (n, width) for a column of lists."""
    texts: Mapping[str, Sequence[str]]
    labels: Sequence[object]
    """The (n,) labels; () without a label column."""
    rows: int


def choose(setup: DatasetSetup, header: Sequence[str], source: str) -> Choice:
    """Assigns columns to inputs. Raises a ConfigError that lists all problems."""
    problems = twice("it names column", header)
    label = _label_column(setup, header, problems)
    named = {spec.name: _named_columns(setup, spec.name, header) for spec in setup.inputs}
    for name, columns in named.items():
        absent = [c for c in columns if c not in header]
        problems += [
            f"input {name!r} needs column {c!r}, but the file has {_some(header)}" for c in absent
        ]
    taken = {label, *(c for columns in named.values() for c in columns)}
    left = tuple(c for c in header if c not in taken)
    tokenised = [n for n in named if own_step(setup, n, "tokenise") is not None]
    unnamed = [n for n, columns in named.items() if not columns and n not in tokenised]
    if len(unnamed) > 1:
        problems.append(
            f"inputs {', '.join(unnamed)} all take the remaining columns: list the columns of each input in a "
            "`column` step"
        )
    elif unnamed and not left:
        problems.append(f"no column is left for input {unnamed[0]!r}")
    problems += [
        f"input {n!r} is tokenised: name its only text column with a `column` step"
        for n in tokenised
        if len(named[n]) != 1
    ]
    refuse([f"{source}: {p}" for p in problems])
    texts = tuple(dict.fromkeys(c for n in tokenised for c in named[n]))
    return Choice({name: columns or left for name, columns in named.items()}, label, texts)


def _named_columns(setup: DatasetSetup, name: str, header: Sequence[str]) -> tuple[str, ...]:
    """Returns the columns in a `column` step, or the column with the input's name; () for all remaining columns."""
    step = own_step(setup, name, "column")
    if step is not None and step.options["names"]:
        return tuple(step.options["names"])
    return (name,) if len(setup.inputs) > 1 and name in header else ()


def _label_column(setup: DatasetSetup, header: Sequence[str], problems: list[str]) -> str | None:
    steps = (own_step(setup, spec.name, "column") for spec in setup.inputs)
    own = sorted({s.options["label"] for s in steps if s is not None} - {LABEL})
    if len(own) > 1:
        problems.append(f"the inputs name different label columns: {', '.join(own)}")
    elif own and own[0] not in header:
        problems.append(f"the file has no label column {own[0]!r}, only {_some(header)}")
    label = own[0] if own else LABEL
    return label if label in header else None


def _some(header: Sequence[str]) -> str:
    shown = ", ".join(header[:8])
    return f"{shown}, … ({len(header)} columns)" if len(header) > 8 else shown


class TableDataset(LoadedRows):
    """A table that is held in memory. A subclass defines `header`, `read` and, if necessary, `find`."""

    name: str
    suffix: str

    def __init__(self, setup: DatasetSetup) -> None:
        sources.check_steps(setup, self.name, STEPS)
        self._setup = setup
        self._path = self.find(setup)
        try:
            self._choice = choose(setup, self.header(self._path), str(self._path))
            self._table = self.read(self._path, self._choice)
        except (OSError, UnicodeError) as e:
            raise unreadable(self._path, e) from e
        if not self._table.rows:
            raise ConfigError(f"{self._path} has no rows: nothing can be measured")
        self._labels = classes.numbered([*map(numbers.plain_label, self._table.labels)])
        self._tokens, self._vocabularies = self._tokenised()
        problems = (self._problem(spec) for spec in setup.inputs)
        refuse([f"{self._path}: {problem}" for problem in problems if problem])
        super().__init__(self._table.rows)

    def find(self, setup: DatasetSetup) -> Path:
        """Returns the table's file in --data-dir."""
        return one_file(setup, self.name, self.suffix)

    def files(self) -> Mapping[str, Path]:
        """Returns the files for the digest, by names that are the same on every machine."""
        return {self._path.name: self._path}

    @abstractmethod
    def header(self, path: Path) -> Sequence[str]:
        """Returns the column names."""

    @abstractmethod
    def read(self, path: Path, choice: Choice) -> Columns:
        """Returns the chosen columns. Raises a ConfigError that lists every line that cannot be used."""

    def where(self, row: int) -> str:
        """Returns the place of a row in the file, for messages. row: number of the row, from 0."""
        return f"row {row + 1}"

    def _problem(self, spec: TensorSpec) -> str:
        """Returns the reason why this input cannot use the chosen columns; '' if it can."""
        rows = self._matrix(spec.name)
        if numbers.row_shape(rows.shape[1:], spec) is None:
            have = show_shape(rows.shape[1:])
            return (
                f"input {spec.name!r} takes {numbers.shown_shape(spec.shape[1:])} per sample, "
                f"but its columns have {have}"
            )
        _, bad = numbers.cast(numbers.apply(rows, self._setup.steps.get(spec.name, ())), spec.dtype)
        if bad is None:
            return ""
        return f"{self.where(bad)}: {rows[bad].tolist()} does not fit input {spec.name!r}, which is {spec.dtype}"

    def _tokenised(self) -> tuple[dict[str, Array], dict[str, Path]]:
        """Returns the tokens by input name, and the vocabulary files, which are part of the digest."""
        tokens: dict[str, Array] = {}
        vocabularies: dict[str, Path] = {}
        encoded: dict[
            tuple[object, ...], dict[str, Array]
        ] = {}  # maps column and settings to IDs, mask and types
        for spec in self._setup.inputs:
            step = own_step(self._setup, spec.name, "tokenise")
            if step is None:
                continue
            wordpiece = _wordpiece(self.name)
            vocab = wordpiece.vocab_path(self._setup, step)
            length, lower = step.options["max_length"], step.options["lower"]
            (column,) = self._choice.inputs[spec.name]
            key = (column, vocab, length, lower)
            if key not in encoded:
                pieces = wordpiece.Wordpiece(vocab, lower=lower)
                encoded[key] = pieces.rows(self._table.texts[column], length)
            tokens[spec.name] = encoded[key][step.options["gives"]]
            vocabularies[f"vocabulary {step.options['vocab']}"] = vocab
        return tokens, vocabularies

    def _matrix(self, name: str) -> Array:
        """Returns (n, columns) numbers or (n, max_length) tokens of the input, before the input's steps."""
        if name in self._tokens:
            return self._tokens[name]
        parts = [self._table.numeric[c] for c in self._choice.inputs[name]]
        return numbers.joined([p.reshape(len(p), -1) for p in parts])

    def load(self, indices: Sequence[int]) -> None:
        chosen = np.asarray(indices)
        held = {}
        for spec in self._setup.inputs:
            rows = self._matrix(spec.name)[chosen]
            shape = numbers.row_shape(rows.shape[1:], spec)
            assert shape is not None  # `__init__` has checked the shape
            rows = numbers.apply(rows, self._setup.steps.get(spec.name, ()))
            rows, _ = numbers.cast(rows, spec.dtype)
            held[spec.name] = np.ascontiguousarray(rows.reshape(len(chosen), *shape))
        self.hold(indices, held)

    def label(self, index: int) -> object:
        return self._labels[index] if self._labels else None

    def class_names(self) -> Mapping[int, str]:
        return classes.class_names(self._labels)

    def describe(self) -> Mapping[str, object]:
        return {
            "name": self.name,
            "count": len(self),
            "source": str(self._path),
            "columns": {name: list(columns) for name, columns in self._choice.inputs.items()},
            "label": self._choice.label,
            "steps": sources.shown_steps(self._setup),
            "digest": sources.digest({**self.files(), **self._vocabularies}, self._setup),
        }


def _wordpiece(dataset: str) -> ModuleType:
    try:  # imported here, because only tables with text need its package
        from harness.datasets.parts import wordpiece
    except ModuleNotFoundError as e:
        raise PluginUnavailable(
            f"dataset {dataset!r} with a `tokenise` step needs the module {e.name!r}: "
            f"{how_to_install('text')}"
        ) from e
    return wordpiece
