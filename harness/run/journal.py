"""Defines the journal: the rows in shared memory that the measured process writes while it runs.

The journal is the only output of the measured process during the run. The supervisor creates the journal (a memfd
passed by descriptor, so that no file can be left behind) and may read it at any time, even after the measured process
has died. The journal has three parts:

    cells    counters, one cache line for the issuing thread and one for each worker
    samples  one row per sample in issue order: dataset index, callback entry (wall clock, ns)
    batches  one row per batch for each worker: its samples and their common time stamps; a server's batches
             have other stamps (REMOTE_ROW_DTYPE), a language model's have tokens (TOKENS_ROW_DTYPE), and the
             batches of a set of models have the model's origin (CACHED_ROW_DTYPE)

Each row and each counter has only one writer. A worker increments its row counter after it has written the row. On x86,
other processes see the row before they see the new counter. On Arm, other processes may see the counter first, and
Python offers no memory barrier that is cheap enough for the hot path. During the run, a reader therefore waits SETTLE_S
between reading a counter and reading the rows. By the end of this wait, the processor has made its pending stores
visible. After the process has ended, a reader need not wait.

Every table is sized for the longest possible run, because pages that are never written use no memory.
"""

import mmap
import os
from collections.abc import Sequence
from enum import Enum
from struct import Struct
from typing import Protocol

import numpy as np

from harness.types import Array

_LINE_CELLS = 8  # int64 cells in a 64-byte cache line
_CAPACITY, _WORKERS, _ISSUED, _LOADING, _START, _KIND, _ENDS = 0, 1, 2, 3, 4, 5, 6
_ROWS, _SAMPLES = 0, 1  # indices of cells in a worker's cache line

_ROW = Struct("<iHHqqqqq")
_ROW_BYTES = _ROW.size
ROW_DTYPE = np.dtype(
    [
        ("first", "<i4"),
        ("size", "<u2"),
        ("failed", "<u2"),
        ("taken_ns", "<i8"),
        ("gathered_ns", "<i8"),
        ("inferred_ns", "<i8"),
        ("postprocessed_ns", "<i8"),
        ("completed_ns", "<i8"),
    ]
)
"""first: position of the batch's first sample in issue order; a batch is contiguous in issue order."""

_REMOTE_ROW = Struct("<iHHqqqqqqqqiiii")
REMOTE_ROW_DTYPE = np.dtype(
    [
        ("first", "<i4"),
        ("size", "<u2"),
        ("failed", "<u2"),
        ("taken_ns", "<i8"),
        ("sent_ns", "<i8"),
        ("arrived_ns", "<i8"),
        ("read_ns", "<i8"),
        ("decoded_ns", "<i8"),
        ("completed_ns", "<i8"),
        ("first_token_ns", "<i8"),
        ("answer_token_ns", "<i8"),
        ("tokens", "<i4"),
        ("late_tokens", "<i4"),
        ("server", "<i4"),
        ("cancelled", "<i4"),
    ]
)
"""A batch that a server answered. arrived_ns: the kernel's time stamp of the reply; 0 if the kernel did not set one.

first_token_ns: time stamp of the first token; 0 if the reply was not a stream. answer_token_ns: time stamp of the first
token after the reasoning; 0 if no such token arrived, or if the reply was not a stream. tokens: number of tokens in the
answer; 0 if unknown. late_tokens: number of tokens that followed the previous token after more time than the SLO
allows.
server: number of the server in the order of --url or --nodes. cancelled: 1 if the client closed the connection before
the end of the answer (--cancel); tokens and first_token_ns then describe the part that arrived.
"""

_TOKENS_ROW = Struct("<iHHqqqqqqii")
TOKENS_ROW_DTYPE = np.dtype(
    [
        *((name, ROW_DTYPE[name]) for name in ROW_DTYPE.names or ()),
        ("first_token_ns", "<i8"),
        ("tokens", "<i4"),
        ("late_tokens", "<i4"),
    ]
)
"""One sample that a language model on this machine processed. The token fields have the same meaning as in
REMOTE_ROW_DTYPE, and are 0 if the sample failed.
"""

_CACHED_ROW = Struct("<iHHqqqqqqii")
CACHED_ROW_DTYPE = np.dtype(
    [
        ("first", "<i4"),
        ("size", "<u2"),
        ("failed", "<u2"),
        ("taken_ns", "<i8"),
        ("gathered_ns", "<i8"),
        ("acquired_ns", "<i8"),
        ("inferred_ns", "<i8"),
        ("postprocessed_ns", "<i8"),
        ("completed_ns", "<i8"),
        ("origin", "<i4"),
        ("evicted", "<i4"),
    ]
)
"""One sample of a set of models. acquired_ns: time at which the sample's model was loaded and no other sample was using
the model. origin: index into ORIGINS of harness/models/cache/cache.py. evicted: number of models that were evicted to
make room for the sample's model, or when the sample ended.
"""


class RowKind(Enum):
    """The kind of rows that a journal contains."""

    BATCH = ROW_DTYPE
    """Batches of a model on this machine."""
    REPLY = REMOTE_ROW_DTYPE
    """Batches that a server answered."""
    TOKENS = TOKENS_ROW_DTYPE
    """Samples of a language model on this machine."""
    CACHED = CACHED_ROW_DTYPE
    """Samples that a set of models processed."""


_KINDS = tuple(RowKind)

SETTLE_S = 0.0005
"""During the run, a reader waits this long between reading a counter and reading the rows. A store stays pending in a
core for about a thousandth of this time.
"""

BYTES_PER_SAMPLE = 12


class JournalReader(Protocol):
    """The members of `Journal` that the supervisor reads during the run. `Journal` documents these members."""

    @property
    def workers(self) -> int: ...
    @property
    def stamps(self) -> Sequence[str]: ...
    @property
    def issued(self) -> int: ...
    @property
    def completed(self) -> int: ...
    @property
    def loading(self) -> bool: ...
    @property
    def start_ns(self) -> int: ...
    @property
    def entry_ns(self) -> Array: ...
    def row_counts(self) -> list[int]: ...
    def rows(self, worker: int, start: int = 0, end: int | None = None) -> Array: ...


class Journal:
    """A view of one journal.

    capacity: maximum number of samples. workers: number of workers that write batches.
    """

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, os.fstat(fd).st_size)
        self._view = memoryview(self._map)
        head = self._view[: _LINE_CELLS * 8].cast("q")
        self.capacity, self.workers = head[_CAPACITY], head[_WORKERS]
        self._row = _KINDS[head[_KIND]].value
        self._row_bytes = self._row.itemsize
        cells_end, entries_end, indices_end, _ = _layout(
            self.capacity, self.workers, self._row_bytes
        )
        self._cells = self._view[:cells_end].cast("q")
        self.entry_ns = np.frombuffer(self._map, "<i8", self.capacity, cells_end)
        self.index = np.frombuffer(self._map, "<i4", self.capacity, entries_end)
        self._rows_start = indices_end

    @staticmethod
    def create() -> int:
        """Returns the descriptor of an empty journal. Call `resize` before any process attaches."""
        return os.memfd_create("harness-journal", os.MFD_CLOEXEC)

    @staticmethod
    def resize(
        fd: int,
        capacity: int,
        workers: int,
        kind: RowKind = RowKind.BATCH,
    ) -> None:
        *_, size = _layout(capacity, workers, kind.value.itemsize)
        os.ftruncate(fd, size)
        os.pwrite(fd, Struct("<6q").pack(capacity, workers, 0, 0, 0, _KINDS.index(kind)), 0)

    @property
    def stamps(self) -> Sequence[str]:
        """Names of a row's fields after the first three: time stamps and, depending on the kind, counts."""
        assert self._row.names is not None
        return self._row.names[3:]

    @property
    def row_dtype(self) -> "np.dtype[np.void]":
        return self._row

    @property
    def issued(self) -> int:
        """Number of samples that LoadGen has issued."""
        return self._cells[_ISSUED]

    @issued.setter
    def issued(self, samples: int) -> None:
        self._cells[_ISSUED] = samples

    @property
    def completed(self) -> int:
        """Number of answered samples, including failed samples."""
        return sum(self._cells[self._line(w) + _SAMPLES] for w in range(self.workers))

    @property
    def loading(self) -> bool:
        """Whether LoadGen is waiting for samples to be loaded or unloaded. LoadGen does not count this wait as part of
        the run.
        """
        return bool(self._cells[_LOADING])

    @loading.setter
    def loading(self, now: bool) -> None:
        self._cells[_LOADING] = now

    @property
    def start_ns(self) -> int:
        """Wall-clock time at which the harness's scheduler started; 0 under LoadGen, which does not report a start
        time.
        """
        return self._cells[_START]

    @start_ns.setter
    def start_ns(self, now_ns: int) -> None:
        self._cells[_START] = now_ns

    @property
    def ends(self) -> bool:
        """Whether the supervisor has ended the run, so that the harness's scheduler issues no further queries."""
        return bool(self._cells[_ENDS])

    @ends.setter
    def ends(self, now: bool) -> None:
        self._cells[_ENDS] = now

    def row_counts(self) -> list[int]:
        """Returns the number of batches that each worker has completed."""
        return [self._cells[self._line(worker) + _ROWS] for worker in range(self.workers)]

    def rows(self, worker: int, start: int = 0, end: int | None = None) -> Array:
        """Returns a view of the batches that `worker` has completed, from row `start`, in completion order.

        end: a row count that was read at least SETTLE_S ago; required while the measured process runs.
        """
        count = (self._cells[self._line(worker) + _ROWS] if end is None else end) - start
        offset = self._worker_offset(worker) + start * self._row_bytes
        return np.frombuffer(self._map, self._row, count, offset)

    def add_rows(self, worker: int, rows: Array) -> None:
        """Appends rows that were read from another journal to the rows of `worker`."""
        line = self._line(worker)
        start = self._cells[line + _ROWS]
        self.rows(worker, start, start + len(rows))[:] = rows
        self._cells[line + _SAMPLES] += int(rows["size"].sum())
        self._cells[line + _ROWS] = start + len(rows)

    def issuer(self) -> "Issuer":
        return Issuer(self._cells, self.entry_ns)

    def writer(self, worker: int) -> "Writer":
        return Writer(self._rows_of(worker), self._cells, self._line(worker), self.index)

    def remote_writer(self) -> "RemoteWriter":
        """Returns the writer for replies; a run with a server has only one."""
        return RemoteWriter(self._rows_of(0), self._cells, self._line(0), self.index)

    def cached_writer(self, worker: int) -> "CachedWriter":
        return CachedWriter(self._rows_of(worker), self._cells, self._line(worker), self.index)

    def tokens_writer(self, worker: int) -> "TokensWriter":
        return TokensWriter(self._rows_of(worker), self._cells, self._line(worker), self.index)

    def _rows_of(self, worker: int) -> memoryview:
        offset = self._worker_offset(worker)
        return self._view[offset : offset + self.capacity * self._row_bytes]

    def _worker_offset(self, worker: int) -> int:
        return self._rows_start + worker * self.capacity * self._row_bytes

    @staticmethod
    def _line(worker: int) -> int:
        return _LINE_CELLS * (1 + worker)


def _layout(capacity: int, workers: int, row_bytes: int) -> tuple[int, int, int, int]:
    """Returns the byte offsets at which the cells, entry column, index column and batch tables end."""
    cells_end = 8 * _LINE_CELLS * (1 + workers)
    entries_end = cells_end + 8 * capacity
    indices_end = entries_end + -(-4 * capacity // 8) * 8
    return cells_end, entries_end, indices_end, indices_end + workers * capacity * row_bytes


class Issuer:
    """Records issued samples. Only LoadGen's issuing thread may call the methods."""

    __slots__ = ("_cells", "_column", "_entry_ns", "count")

    def __init__(self, cells: memoryview, entry_ns: Array) -> None:
        self._cells = cells
        self._column = entry_ns
        # An item is written three times as fast through a memoryview as through NumPy.
        self._entry_ns = memoryview(entry_ns.data)
        self.count = 0

    def issued(self, samples: int, entry_ns: int) -> int:
        """Records one callback, and returns the issue-order position of its first sample."""
        first = self.count
        self.count = end = first + samples
        if samples == 1:
            self._entry_ns[first] = entry_ns
        else:
            self._column[first:end] = entry_ns
        self._cells[_ISSUED] = end
        return first


class Writer:
    """Writes the rows of batches. Only one worker may call the methods."""

    __slots__ = ("_cells", "_column", "_index", "_line", "_pack", "_rows", "_rows_done", "_samples")

    def __init__(self, rows: memoryview, cells: memoryview, line: int, index: Array) -> None:
        self._rows = rows
        self._cells = cells
        self._line = line
        self._column = index
        self._index = memoryview(index.data)
        self._pack = _ROW.pack_into
        self._rows_done = 0
        self._samples = 0

    def batch(
        self,
        first: int,
        indices: Sequence[int],
        failed: int,
        taken_ns: int,
        gathered_ns: int,
        inferred_ns: int,
        postprocessed_ns: int,
        completed_ns: int,
    ) -> None:
        size = len(indices)
        if size == 1:
            self._index[first] = indices[0]
        else:
            self._column[first : first + size] = indices
        row = self._rows_done
        self._pack(
            self._rows,
            row * _ROW_BYTES,
            first,
            size,
            failed,
            taken_ns,
            gathered_ns,
            inferred_ns,
            postprocessed_ns,
            completed_ns,
        )
        self._rows_done = row + 1
        self._samples += size
        self._cells[self._line + _SAMPLES] = self._samples
        self._cells[self._line + _ROWS] = row + 1


class RemoteWriter(Writer):
    """Writes the rows of replies. Only one thread may call the methods."""

    __slots__ = ()

    def reply(self, first: int, indices: Sequence[int], failed: int, /, *values: int) -> None:
        """Writes the row of a reply. values: the fields of REMOTE_ROW_DTYPE, beginning with taken_ns."""
        size = len(indices)
        if size == 1:
            self._index[first] = indices[0]
        else:
            self._column[first : first + size] = indices
        row = self._rows_done
        offset = row * _REMOTE_ROW.size
        _REMOTE_ROW.pack_into(self._rows, offset, first, size, failed, *values)
        self._rows_done = row + 1
        self._samples += size
        self._cells[self._line + _SAMPLES] = self._samples
        self._cells[self._line + _ROWS] = row + 1


class TokensWriter(Writer):
    """Writes the rows of samples whose answers are generated token by token. Only one worker may call the methods."""

    __slots__ = ()

    def answer(self, order: int, index: int, failed: int, /, *values: int) -> None:
        """Writes the row of a sample. values: time stamps and counts, in the order of TOKENS_ROW_DTYPE."""
        self._index[order] = index
        row = self._rows_done
        offset = row * _TOKENS_ROW.size
        _TOKENS_ROW.pack_into(self._rows, offset, order, 1, failed, *values)
        self._rows_done = row + 1
        self._samples += 1
        self._cells[self._line + _SAMPLES] = self._samples
        self._cells[self._line + _ROWS] = row + 1


class CachedWriter(Writer):
    """Writes the rows of samples that a set of models processes. Only one worker may call the methods."""

    __slots__ = ()

    def sample(self, order: int, index: int, failed: int, /, *values: int) -> None:
        """Writes the row of a sample. values: the fields of CACHED_ROW_DTYPE, beginning with taken_ns."""
        self._index[order] = index
        row = self._rows_done
        offset = row * _CACHED_ROW.size
        _CACHED_ROW.pack_into(self._rows, offset, order, 1, failed, *values)
        self._rows_done = row + 1
        self._samples += 1
        self._cells[self._line + _SAMPLES] = self._samples
        self._cells[self._line + _ROWS] = row + 1
