"""Reads the questions of the RAG benchmark, e2e-rag-qna, from `frames_dataset.tsv` in MLCommons' download.

The columns are named as in Google's FRAMES: Prompt, Answer, and wikipedia_link_* for the Wikipedia pages that contain
the facts. Retrieval and language models are part of the system under test.
"""

import csv
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from harness.datasets.parts import sources
from harness.datasets.parts.prompts.tokens import input_of
from harness.datasets.parts.rows import LoadedRows
from harness.errors import ConfigError
from harness.types import Array, Dataset, DatasetSetup

QUESTION, ANSWER, LINK = "Prompt", "Answer", "wikipedia_link_"
CHAT_INPUT = "request"
"""An input with this name receives a chat for the backend `openai`. An input with any other name receives only the
question.
"""

_MOST_BYTES = 2**30


class Question(NamedTuple):
    text: str
    answer: str
    links: tuple[str, ...]


class FramesDataset(LoadedRows):
    """Questions. --data-dir is the .tsv file, or a folder with one such file."""

    def __init__(self, setup: DatasetSetup) -> None:
        self._input = input_of(setup, "frames")
        self._setup = setup
        self._path = sources.one_file(setup, "frames", ".tsv", most_bytes=_MOST_BYTES)
        self._questions = list(questions(self._path))
        super().__init__(len(self._questions))

    def load(self, indices: Sequence[int]) -> None:
        texts = (self._questions[index].text for index in indices)
        self.hold_objects(indices, self._input, map(self._sample, texts))

    def _sample(self, text: str) -> bytes:
        if self._input != CHAT_INPUT:
            return text.encode()
        chat = {"messages": [{"role": "user", "content": text}]}
        return json.dumps(chat, ensure_ascii=False, separators=(",", ":")).encode()

    def lengths(self, indices: Sequence[int]) -> Array:
        return np.array([len(self._questions[i].text) for i in indices])

    def label(self, index: int) -> Mapping[str, object]:
        """Returns a mapping with the right answer (`text`), the question, the question's pages and the file."""
        question = self._questions[index]
        return {
            "text": question.answer,
            "question": question.text,
            "links": question.links,
            "file": str(self._path),
        }

    def describe(self) -> Mapping[str, object]:
        sizes = [len(question.text) for question in self._questions]
        return {
            "name": "frames",
            "count": len(self),
            "source": str(self._path),
            "lengths": {"min": min(sizes), "median": float(np.median(sizes)), "max": max(sizes)},
            "unit": "characters",
            "digest": sources.digest({self._path.name: self._path}, self._setup),
        }


def questions(path: Path) -> Iterator[Question]:
    """Yields the questions. Raises a ConfigError that lists each unusable row."""
    csv.field_size_limit(sys.maxsize)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file, delimiter="\t")
            names = list(rows.fieldnames or ())
            missing = [name for name in (QUESTION, ANSWER) if name not in names]
            if missing:
                raise ConfigError(
                    f"{path} has no column {' and '.join(missing)}: download frames_dataset.tsv again"
                )
            found = [(rows.line_num, row) for row in rows]
    except (OSError, UnicodeDecodeError, csv.Error) as e:
        raise sources.unreadable(path, e) from e
    links = [name for name in names if name.startswith(LINK)]
    bad = [line for line, row in found if not row[QUESTION] or not row[ANSWER]]
    sources.refuse([f"{path}:{line}: no question, or no answer" for line in bad])
    for line, row in found:
        if None in row.values():
            raise ConfigError(
                f"{path}:{line} has too few columns: download frames_dataset.tsv again"
            )
    if not found:
        raise ConfigError(f"{path} has no questions: nothing can be measured")
    for _, row in found:
        named = tuple(row[link] for link in links if row[link])
        yield Question(row[QUESTION], row[ANSWER], named)


_: type[Dataset] = FramesDataset
