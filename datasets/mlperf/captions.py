"""Reads descriptions from which a model makes images or videos, such as MLPerf's captions of COCO 2014 and VBench's
prompts.
"""

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness.datasets.parts import sources
from harness.datasets.parts.prompts.held import HeldPrompts, Prompt
from harness.datasets.parts.prompts.tokens import input_of
from harness.datasets.parts.sources import refuse, unreadable
from harness.datasets.text.prompts import Row, json_lines, prompt_of
from harness.errors import MOST_PROBLEMS, ConfigError
from harness.types import Dataset, DatasetSetup

MOST_FILE_BYTES = 2**30
"""Maximum size of a captions file. A larger file is refused before it is read, because all captions are kept in memory.
"""

_COCO = Path("captions/captions.tsv")
_COLUMN = "caption"
_SUFFIXES = (".tsv", ".txt", ".jsonl")
_OF_PROMPT = ("prompt", "reference", "body", "max_tokens")


class CaptionsDataset(HeldPrompts):
    """Captions. --data-dir is the folder of MLPerf's download of COCO 2014 (captions/captions.tsv), or a file.

    The file is a .tsv file with a column `caption`, a .txt file with one caption per line, or a .jsonl file. Each
    object in a .jsonl file contains `prompt` and, optionally, other fields of the request, such as `negative_prompt`.
    The label is the caption, against which images and videos are scored.
    """

    def __init__(self, setup: DatasetSetup) -> None:
        name = input_of(setup, "captions")
        self._setup = setup
        self._path = _path(setup)
        rows = _READERS[self._path.suffix](self._path)
        super().__init__(name, _read(self._path, rows))

    def describe(self) -> Mapping[str, object]:
        return {
            "name": "captions",
            "count": len(self),
            "source": str(self._path),
            "digest": sources.digest({self._path.name: self._path}, self._setup),
        }


def _path(setup: DatasetSetup) -> Path:
    given = setup.data_dir
    if given is not None and (given / _COCO).is_file():
        return given / _COCO
    return sources.one_file(setup, "captions", *_SUFFIXES, most_bytes=MOST_FILE_BYTES)


def _table(path: Path) -> Iterator[Row]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file, delimiter="\t")
            if _COLUMN not in (rows.fieldnames or ()):
                raise ConfigError(f"{path} has no column {_COLUMN!r}")
            for row in rows:
                if None in row.values():
                    raise ConfigError(
                        f"{path}:{rows.line_num} has too few columns: download the file again"
                    )
                yield f"{path}:{rows.line_num}", {"prompt": row[_COLUMN]}
    except (OSError, UnicodeError, csv.Error) as e:
        raise unreadable(path, e) from e


def _text(path: Path) -> Iterator[Row]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeError) as e:
        raise unreadable(path, e) from e
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield f"{path}:{number}", {"prompt": line.strip()}


def _objects(path: Path) -> Iterator[Row]:
    """Yields the lines of a .jsonl file. Keys other than `prompt` become fields of the request."""
    for place, row in json_lines(path):
        if not isinstance(row, dict) or "body" in row:
            yield place, row
            continue
        fields = {key: value for key, value in row.items() if key not in _OF_PROMPT}
        yield place, {**{key: row[key] for key in _OF_PROMPT if key in row}, "body": fields}


_READERS = {".tsv": _table, ".txt": _text, ".jsonl": _objects}


def _read(path: Path, rows: Iterator[Row]) -> list[Prompt]:
    """Returns the captions. Raises a ConfigError that lists each unusable row."""
    captions: list[Prompt] = []
    problems: list[str] = []
    for place, row in rows:
        try:
            captions.append(_caption(row))
        except ValueError as e:
            problems.append(f"{place}: {e}")
            if len(problems) == MOST_PROBLEMS:
                break
    refuse(problems)
    if not captions:
        raise ConfigError(f"{path} has no captions: nothing can be measured")
    return captions


def _caption(row: object) -> Prompt:
    kind, prompt = prompt_of(row)
    if kind != "prompt" or not isinstance(row, dict):
        raise ValueError("it needs `prompt`, a string")
    return prompt._replace(reference=prompt.reference or row["prompt"])


_: type[Dataset] = CaptionsDataset
