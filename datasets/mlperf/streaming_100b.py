"""Reads the DLRM-v3 requests from MLCommons' `sampled_data`. A request lists the candidates that a user rates at a
timestamp. Only requests in the last tenth of the timestamps are sent. A request depends on the user's history before
the request's timestamp, so requests are issued in timestamp order, whichever samples LoadGen draws. Within a timestamp,
the order is shuffled with Python's random numbers and the seed 123, as in mlcommons/inference b66003e,
recommendation/dlrm_v3/main.py.
"""

import csv
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from harness.datasets.parts import sources
from harness.errors import ConfigError
from harness.types import Array, Batch, Dataset, DatasetSetup, HasOwnOrder, TensorSpec

OFFSETS, USERS = "offset.csv", "users_cumsum_per_ts.csv"
REQUESTS, REQUEST_OFFSETS = "requests_per_ts.csv", "requests_per_ts_offset.csv"
ORDER_SEED = 123
ANSWERED = 10
"""Only requests in the last 1 / ANSWERED of the timestamps are sent. The earlier timestamps were used for training."""

MOST_CANDIDATES = 2048
MOST_HISTORY = 16_384 - MOST_CANDIDATES - 1
"""Maximum lengths of a request's lists. The model's sequence has 16,384 items, including the user, so only the first
items of a longer list are kept.
"""

ITEMS_PER_CATEGORY = 1_000_000_000 // 128
ACTION_WEIGHTS = np.array([1, 2, 4, 8, 16])
"""Weights of the ratings 1 to 5."""

LIKED = 3.5
"""A candidate with at least this rating has the label 1."""

_AT_ONCE = 4096
"""Number of requests whose lists are read before these lists are joined into one array."""

IDENTITY_BYTES = 8
"""Number of bytes at the start of an answer that identify the request: the timestamp and the request's number within
the timestamp, each as float32.
"""

_USER = "user_id"
_OF_HISTORY = (
    *("item_id", "item_rating", "action_timestamp", "item_weights"),
    *("dummy_watch_time", "item_category_id"),
)
_OF_CANDIDATES = (
    *("item_candidate_id", "item_query_time", "item_dummy_watchtime"),
    "item_candidate_category_id",
)
_LENGTHS = ("history_length", "candidates_length")
FEATURES = (_USER, *_OF_HISTORY, *_OF_CANDIDATES, *_LENGTHS)
"""Names of a request's features in the reference. The candidates' ratings are the label."""


class Request(NamedTuple):
    """One sample: a user's request at a timestamp."""

    timestamp: int
    """Number of the timestamp among the timestamps whose requests are sent, from 0."""
    query: int
    """Number of the request within its timestamp."""
    user: int
    file: int
    """Number of the CSV file with the user's line."""


class Content(NamedTuple):
    """The lists in the line of a request, as int64."""

    history: Array
    history_ratings: Array
    candidates: Array
    ratings: Array


class Streaming100bDataset:
    """Requests for ratings of candidates. --data-dir is the folder `sampled_data`.

    The model's inputs are named after the reference's features. Lists are padded with zeros to the longest list in a
    batch; history_length and candidates_length are the lengths without padding. The candidates' ratings are not an
    input, because they are the label.
    """

    labelled = False
    """True if answers end with the labels, the weights and the number of candidates, as in an accuracy run."""

    def __init__(self, setup: DatasetSetup) -> None:
        sources.check_steps(setup, "streaming-100b", ())
        for spec in setup.inputs:
            if spec.name not in FEATURES or spec.dtype not in ("int64", "int32", "float32"):
                raise ConfigError(
                    f"dataset 'streaming-100b' has no input {spec.name!r} of {spec.dtype}: name the inputs after its "
                    f"features, and declare them as integers or float32: {', '.join(FEATURES)}"
                )
        self._setup = setup
        self._root = sources.given_folder(setup, "streaming-100b", f"{OFFSETS} and its tables")
        for name in (OFFSETS, USERS, REQUESTS, REQUEST_OFFSETS):
            if not (self._root / name).is_file():
                raise ConfigError(
                    f"{self._root} has no {name}: name the folder `sampled_data` of MLCommons' download"
                )
        self._tables = _Tables(self._root)
        self._requests = list(self._tables.requests())
        self._labels: dict[int, Array] = {}
        self._place = np.full(len(self._requests), -1, np.int64)
        self._held: dict[str, _Lists] = {}
        self._loaded = self._at = 0
        self.performance_count = len(self._requests)

    def __len__(self) -> int:
        return len(self._requests)

    def load(self, indices: Sequence[int]) -> None:
        """Loads samples in the order of the files, and restarts the stream."""
        wanted = sorted(dict.fromkeys(indices), key=lambda i: self._requests[i][2:])
        self._place[:] = -1
        self._place[wanted] = np.arange(len(wanted))
        chunks = [[_Lists.of([], spec) for spec in self._setup.inputs]]
        for begin in range(0, len(wanted), _AT_ONCE):
            rows = [self._row(index) for index in wanted[begin : begin + _AT_ONCE]]
            chunks.append([_Lists.of([r[s.name] for r in rows], s) for s in self._setup.inputs])
            self._setup.progress(begin, len(wanted))
        names = [spec.name for spec in self._setup.inputs]
        self._held = dict(zip(names, map(_Lists.joined, zip(*chunks, strict=True)), strict=True))
        self._loaded, self._at = len(wanted), 0

    def _row(self, index: int) -> Mapping[str, Array]:
        content = self._tables.content(self._requests[index])
        self._labels[index] = (content.ratings >= LIKED).astype(np.float32)
        return self._features(self._requests[index], content)

    def _features(self, request: Request, content: Content) -> Mapping[str, Array]:
        history, candidates = content.history, content.candidates
        now = np.int64(len(history) > 0)  # the reference gives time 1 to each action
        return {
            _USER: np.array(request.user),
            "item_id": history,
            "item_rating": content.history_ratings,
            "action_timestamp": np.ones_like(history),
            "item_weights": ACTION_WEIGHTS[content.history_ratings - 1],
            "dummy_watch_time": np.zeros_like(history),
            "item_category_id": history // ITEMS_PER_CATEGORY,
            "item_candidate_id": candidates,
            "item_query_time": np.full_like(candidates, now),
            "item_dummy_watchtime": np.ones_like(candidates),
            "item_candidate_category_id": candidates // ITEMS_PER_CATEGORY,
            "history_length": np.array(len(history)),
            "candidates_length": np.array(len(candidates)),
        }

    def unload(self, indices: Sequence[int]) -> None:
        self._place[:] = -1
        self._held, self._loaded = {}, 0

    def batch(self, indices: Sequence[int]) -> Batch:
        places = self._place[np.fromiter(indices, np.int64, len(indices))]
        if places.min() < 0:
            raise KeyError(f"sample {indices[int(places.argmin())]} is not loaded")
        return Batch(len(indices), {name: held.rows(places) for name, held in self._held.items()})

    def next(self, count: int) -> list[int]:
        """Returns the next requests in order of time. After the last request, the stream starts again."""
        total = len(self._requests)
        if self._loaded != total:
            raise ConfigError(
                f"the requests follow each other in time, so all {total:,} must be in memory, but {self._loaded:,} are: "
                f"pass --performance-count {total}"
            )
        begin, self._at = self._at, (self._at + count) % total
        return [(begin + i) % total for i in range(count)]

    def identified(self, answers: Sequence[Array], indices: Sequence[int]) -> list[Array]:
        """Returns each answer in the reference's format: timestamp, request number, and one score per candidate."""
        return [self._identified(row, i) for row, i in zip(answers, indices, strict=True)]

    def _identified(self, answer: Array, index: int) -> Array:
        request, labels = self._requests[index], self._labels[index]
        scores = np.asarray(answer, np.float32).reshape(-1)[: len(labels)]
        if len(scores) < len(labels):
            raise ValueError(f"{len(scores)} scores for {len(labels)} candidates")
        parts = [(request.timestamp, request.query), scores]
        if self.labelled:
            parts += [labels, np.ones_like(labels), (len(labels),)]
        return np.concatenate([np.asarray(part, np.float32) for part in parts])

    def label(self, index: int) -> Mapping[str, object]:
        """Returns the identity of the request, and 0 or 1 for each candidate."""
        request = self._requests[index]
        if index not in self._labels:
            ratings = self._tables.content(request).ratings
            self._labels[index] = (ratings >= LIKED).astype(np.float32)
        return {"identity": (request.timestamp, request.query), "liked": self._labels[index]}

    def describe(self) -> Mapping[str, object]:
        files = {path.name: path for path in sorted(self._root.glob("*.csv"))}
        return {
            "name": "streaming-100b",
            "count": len(self),
            "source": str(self._root),
            "timestamps": self._requests[-1].timestamp + 1,
            "order": "by time",
            "identity_bytes": IDENTITY_BYTES,
            "digest": sources.digest(files, self._setup),
        }


class _Lists(NamedTuple):
    """All lists of one feature. One array holds the lists one after another, because hundreds of thousands of small
    arrays would take several GB.
    """

    numbers: Array
    ends: Array
    """The ends of the lists, preceded by 0, (rows + 1,)."""
    is_list: bool
    """True if rows are lists instead of single numbers."""

    @classmethod
    def of(cls, rows: Sequence[Array], spec: TensorSpec) -> "_Lists":
        ends = np.cumsum([0, *(row.size for row in rows)])
        flat = [row.reshape(-1).astype(spec.dtype) for row in rows]
        return cls(np.concatenate([np.empty(0, spec.dtype), *flat]), ends, len(spec.shape) > 1)

    @classmethod
    def joined(cls, parts: Sequence["_Lists"]) -> "_Lists":
        ends = [part.ends[1:] for part in parts]
        begins = np.cumsum([0, *(len(part.numbers) for part in parts)])
        moved = [end + begin for end, begin in zip(ends, begins[:-1], strict=True)]
        numbers = np.concatenate([part.numbers for part in parts])
        return cls(numbers, np.concatenate([[0], *moved]), parts[0].is_list)

    def rows(self, places: Array) -> Array:
        """Returns one row per position in `places`. Lists are padded with zeros to the longest list."""
        if not self.is_list:
            return self.numbers[places]
        begins, ends = self.ends[places], self.ends[places + 1]
        if len(places) == 1:
            return self.numbers[begins[0] : ends[0]][np.newaxis]
        padded = np.zeros((len(places), int((ends - begins).max())), self.numbers.dtype)
        for row, begin, end in zip(padded, begins.tolist(), ends.tolist(), strict=True):
            row[: end - begin] = self.numbers[begin:end]
        return padded


class _Tables:
    """The tables in one folder. Each row of a table is a list of numbers."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._offsets = [_numbers(text, root / OFFSETS) for text in _cells(root / OFFSETS)]
        self._users = [_numbers(text, root / USERS) for text in _cells(root / USERS)]
        (starts,) = [_numbers(t, root / REQUEST_OFFSETS) for t in _cells(root / REQUEST_OFFSETS)]
        self._starts = starts
        if not self._offsets or len(self._users) != len(starts):
            raise ConfigError(
                f"{root / USERS} has {len(self._users)} timestamps, but {REQUEST_OFFSETS} has {len(starts)}: download the data again"
            )
        self._total = len(starts)
        self._trained = self._total - max(1, self._total // ANSWERED)
        self._per_file = len(self._offsets[0])

    def requests(self) -> Iterator[Request]:
        """Yields the requests in the order in which they are sent."""
        shuffle = random.Random(ORDER_SEED).shuffle
        for timestamp in range(self._trained, self._total):
            path = self._root / REQUESTS
            users = _numbers(_cell(_line(path, self._starts[timestamp]), path), path)
            ends = self._users[timestamp]
            if ends[-1] != len(users):
                raise ConfigError(
                    f"{path} has {len(users):,} requests at timestamp {timestamp}, but {USERS} has {ends[-1]:,}: download the data "
                    "again"
                )
            order = list(range(len(users)))
            shuffle(order)
            files = np.searchsorted(ends, order, side="right")
            for query, file in zip(order, files.tolist(), strict=True):
                yield Request(timestamp - self._trained, query, users[query], file)

    def content(self, request: Request) -> Content:
        path = self._root / f"{request.file}.csv"
        cells = next(csv.reader([self._line_of(request)]))
        if len(cells) != 4 * (self._total + 2):
            raise ConfigError(
                f"{path}: the line of user {request.user} has {len(cells)} cells, not {4 * (self._total + 2)}"
            )
        now = self._trained + request.timestamp
        # A line contains groups of four cells (candidates, their ratings, used items, their ratings): an initial group,
        # one group per timestamp, and a group for an evaluation after training.
        before = [*range(self._trained + 1), *range(self._trained + 2, now + 2)]
        history, history_ratings = (
            [n for i in before if cells[4 * i] for n in _numbers(cells[4 * i + part], path)]
            for part in (2, 3)
        )
        candidates, ratings = (_numbers(cells[4 * (now + 2) + part], path) for part in (0, 1))
        if len(history) != len(history_ratings) or len(candidates) != len(ratings):
            raise ConfigError(f"{path}: user {request.user} has items without ratings")
        if not candidates or not all(1 <= n <= len(ACTION_WEIGHTS) for n in history_ratings):
            raise ConfigError(
                f"{path}: user {request.user} has no candidates, or a rating beyond 5"
            )
        cut = (history, history_ratings), (candidates, ratings)
        arrays = [
            np.array(numbers[:most], np.int64)
            for numbers_of, most in zip(cut, (MOST_HISTORY, MOST_CANDIDATES), strict=True)
            for numbers in numbers_of
        ]
        return Content(*arrays)

    def _line_of(self, request: Request) -> str:
        offsets = self._offsets[request.file]
        return _line(self._root / f"{request.file}.csv", offsets[request.user % self._per_file])


def _line(path: Path, offset: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.readline().decode("ascii").rstrip("\r\n")
    except (OSError, ValueError) as e:
        raise sources.unreadable(path, e) from e


def _cells(path: Path) -> list[str]:
    """Returns the only cell of each row."""
    try:
        with path.open(encoding="ascii", newline="") as file:
            return [_cell(line.rstrip("\r\n"), path) for line in file if line.strip()]
    except (OSError, ValueError) as e:
        raise sources.unreadable(path, e) from e


def _cell(line: str, path: Path) -> str:
    csv.field_size_limit(sys.maxsize)
    cells = next(csv.reader([line]), [])
    if len(cells) != 1:
        raise ConfigError(f"{path} has a row with {len(cells)} cells, not one")
    return cells[0]


def _numbers(text: str, path: Path) -> list[int]:
    """Parses a list of whole numbers, such as [1, 2] or 1,2. Returns [] for an empty text."""
    try:
        found = json.loads(text if text.startswith("[") else f"[{text}]")
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(type(n) is int for n in found):
        raise ConfigError(f"{path} has {text[:40]!r} instead of whole numbers")
    return found


_: type[Dataset] = Streaming100bDataset
__: type[HasOwnOrder] = Streaming100bDataset
