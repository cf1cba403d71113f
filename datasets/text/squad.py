"""Reads SQuAD v1.1 as MLPerf's BERT does, as windows that contain a question and a part of its context.

A sample is [CLS] question [SEP] part of the context [SEP]. Each part is as long as possible, and the parts of a context
begin `stride` pieces apart. The samples are in file order. With max_length 384, stride 128 and max_query_length 64, the
10,570 questions of the official dev set become 10,833 samples. Source: convert_examples_to_features in
mlcommons/inference, language/bert/create_squad_data.py (commit 2659c1b).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.datasets.parts import sources, wordpiece
from harness.datasets.parts.rows import LoadedRows
from harness.datasets.parts.sources import refuse
from harness.datasets.parts.wordpiece import Pieces
from harness.errors import ConfigError
from harness.types import Array, Dataset, DatasetSetup

DEV_FILE = "dev-v1.1.json"


class Question(NamedTuple):
    id: str
    text: str
    answers: tuple[str, ...]
    context: int
    """Position of the question's context in the list of contexts."""


class Window(NamedTuple):
    """A part of a context that begins at the piece `start` and contains `length` pieces."""

    question: int
    start: int
    length: int


class SquadDataset(LoadedRows):
    """Windows of SQuAD. --data-dir is the JSON file, or its folder. The folder may also contain vocab.txt, which is
    used if the manifest's folder does not contain a vocabulary.
    """

    def __init__(self, setup: DatasetSetup) -> None:
        sources.check_steps(setup, "squad", ("tokenise",))
        self._setup = setup
        step = wordpiece.tokenise_step(setup, "squad")
        options = step.options
        self._length, self._lower = options["max_length"], options["lower"]
        self._stride, most = options["stride"], options["max_query_length"]
        if self._length < most + 4:
            raise ConfigError(
                f"tokenise.max_length {self._length} leaves no room for a context in addition to "
                f"max_query_length {most} and three special pieces"
            )
        self._path = _dev_file(setup)
        self._vocab = wordpiece.vocab_path(setup, step)
        self._texts, self._questions = read_squad(self._path)
        encoder = wordpiece.Wordpiece(self._vocab, lower=self._lower)
        self._ends = encoder.cls_id, encoder.sep_id
        self._contexts = encoder.encode(self._texts)
        queries = encoder.encode([q.text for q in self._questions])
        self._queries = [Pieces(p.ids[:most], p.tokens[:most], p.offsets[:most]) for p in queries]
        empty = {q.context for q in self._questions if not self._contexts[q.context].ids}
        refuse([f"{self._path}: context {c + 1} has no words" for c in sorted(empty)])
        self._windows = [
            Window(i, *part) for i in range(len(self._questions)) for part in self._parts(i)
        ]
        super().__init__(len(self._windows))

    def _parts(self, question: int) -> list[tuple[int, int]]:
        """Returns (start, length) for each window of a question."""
        total = len(self._contexts[self._questions[question].context].ids)
        room = self._length - len(self._queries[question].ids) - 3
        return windows(total, room, self._stride)

    def load(self, indices: Sequence[int]) -> None:
        arrays = wordpiece.empty_arrays(len(indices), self._length, np.int64)
        cls_id, sep_id = self._ends
        for row, index in enumerate(indices):
            window = self._windows[index]
            context = self._contexts[self._questions[window.question].context]
            query = [cls_id, *self._queries[window.question].ids, sep_id]
            part = [*context.ids[window.start : window.start + window.length], sep_id]
            end = len(query) + len(part)
            arrays["ids"][row, :end] = query + part
            arrays["mask"][row, :end] = 1
            arrays["types"][row, len(query) : end] = 1
        steps = {spec: self._setup.steps[spec.name][0] for spec in self._setup.inputs}
        self.hold(
            indices,
            {s.name: arrays[t.options["gives"]].astype(s.dtype) for s, t in steps.items()},
        )

    def label(self, index: int) -> Mapping[str, object]:
        """Returns the label of a window. A question with a long context has several windows.

        id: id of the question. answers: texts of the right answers. context: the complete text.
        tokens: the wordpieces from [CLS] to the last [SEP].
        offsets: (start, end) of each of the max_length positions in characters of `context`, excluding the end; None if
        the position has no piece of the context.
        is_max_context: whether no other window has more context around the piece, for each position.
        lower: whether the pieces are in lower case and without accents, unlike the context.
        """
        window = self._windows[index]
        question = self._questions[window.question]
        context, query = self._contexts[question.context], self._queries[window.question]
        part = slice(window.start, window.start + window.length)
        before = len(query.ids) + 2
        after = self._length - before - window.length
        best = self._is_max_context(window)
        return {
            "id": question.id,
            "answers": question.answers,
            "context": self._texts[question.context],
            "tokens": ["[CLS]", *query.tokens, "[SEP]", *context.tokens[part], "[SEP]"],
            "offsets": [*[None] * before, *context.offsets[part], *[None] * after],
            "is_max_context": [*[False] * before, *best, *[False] * after],
            "lower": self._lower,
        }

    def _is_max_context(self, window: Window) -> list[bool]:
        parts = self._parts(window.question)
        best = best_windows(parts)[window.start : window.start + window.length]
        mine: list[bool] = (best == parts.index((window.start, window.length))).tolist()
        return mine

    def describe(self) -> Mapping[str, object]:
        return {
            "name": "squad",
            "count": len(self),
            "questions": len(self._questions),
            "source": str(self._path),
            "vocabulary": str(self._vocab),
            "steps": sources.shown_steps(self._setup),
            "digest": sources.digest(
                {self._path.name: self._path, "vocabulary": self._vocab}, self._setup
            ),
        }


def windows(total: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Returns (start, length) for each part when `total` pieces are divided. A part has at most `room` pieces."""
    parts = []
    start = 0
    while start < total:
        length = min(room, total - start)
        parts.append((start, length))
        if start + length == total:
            break
        start += min(length, stride)
    return parts


def best_windows(parts: Sequence[tuple[int, int]]) -> Array:
    """Returns, for each piece, the window with the most context around the piece, (pieces,). If several windows are
    equal, returns the first window.

    The context is the number of pieces to the left or to the right, whichever is smaller, plus a hundredth of the
    window's length.
    """
    starts, lengths = np.array(parts).T[:, :, np.newaxis]
    ends = starts + lengths - 1
    at = np.arange(int(ends[-1, 0]) + 1)
    score = np.minimum(at - starts, ends - at) + 0.01 * lengths
    inside = (starts <= at) & (at <= ends)
    best: Array = np.where(inside, score, -np.inf).argmax(axis=0)
    return best


def _dev_file(setup: DatasetSetup) -> Path:
    named = sources.given_path(setup, "squad", f"{DEV_FILE}, or a folder with it") / DEV_FILE
    return named if named.is_file() else sources.one_file(setup, "squad", ".json")


def read_squad(path: Path) -> tuple[list[str], list[Question]]:
    """Returns the contexts, and the questions in the file's order.

    Raises a ConfigError that lists all problems with their places in the file.
    """
    try:
        content = json.loads(path.read_bytes())
    except json.JSONDecodeError as e:
        raise ConfigError(f"{path}:{e.lineno}: not valid JSON: {e.msg}") from None
    except (OSError, ValueError, RecursionError) as e:
        raise sources.unreadable(path, e) from e
    reader = _Reader()
    for article, at in reader.items(content, "data", ""):
        for paragraph, place in reader.items(article, "paragraphs", at):
            reader.paragraph(paragraph, place)
    if not reader.questions and not reader.problems:
        reader.problems.append("it has no questions: nothing can be measured")
    refuse([f"{path}: {p}" for p in reader.problems])
    return reader.contexts, reader.questions


class _Reader:
    """Collects contexts, questions and problems."""

    def __init__(self) -> None:
        self.contexts: list[str] = []
        self.questions: list[Question] = []
        self.problems: list[str] = []
        self._seen: dict[str, str] = {}

    def paragraph(self, paragraph: object, at: str) -> None:
        self.contexts.append(self._text(paragraph, "context", at))
        for entry, place in self.items(paragraph, "qas", at):
            name = self._text(entry, "id", place)
            answers = [
                self._text(answer, "text", where)
                for answer, where in self.items(entry, "answers", place)
            ]
            if isinstance(entry, dict) and entry.get("answers") == []:
                self.problems.append(f"{place} has no answers: only SQuAD v1.1 is read, not v2.0")
            if name in self._seen:
                self.problems.append(f"{place} repeats the id {name!r} of {self._seen[name]}")
            elif name:
                self._seen[name] = place
            text = self._text(entry, "question", place)
            self.questions.append(Question(name, text, tuple(answers), len(self.contexts) - 1))

    def items(self, owner: object, key: str, at: str) -> Iterator[tuple[Any, str]]:
        """Yields each entry of the list under `key` with the entry's place."""
        entries = owner.get(key) if isinstance(owner, dict) else None
        if not isinstance(entries, list):
            self.problems.append(f"{at or 'the file'} has no list {key!r}")
            return
        dot = "." if at else ""
        yield from ((item, f"{at}{dot}{key}[{i}]") for i, item in enumerate(entries))

    def _text(self, owner: object, key: str, at: str) -> str:
        text = owner.get(key) if isinstance(owner, dict) else None
        if isinstance(text, str) and text:
            return text
        self.problems.append(f"{at} has no string {key!r}")
        return ""


_: type[Dataset] = SquadDataset
