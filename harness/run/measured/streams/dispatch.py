"""Passes the frames of streams to instances in issue order, but never two frames of one stream at the same time.

A batch takes waiting frames from the front, up to the first frame whose stream is already in the batch or is being
answered. A batch is therefore contiguous in issue order, as the journal requires. While the first frame waits for its
stream, all later frames wait, too, because they are due later.
"""

import threading
from collections import deque
from collections.abc import Sequence

from harness.core.clock import wall_ns
from harness.machine.threads import run_on
from harness.run.journal import Issuer
from harness.run.measured.dispatch.threads import WORKER
from harness.run.measured.streams.instance import StreamInstance


class FrameDispatcher:
    """Dispatches frames to instances. Each instance runs on one thread."""

    def __init__(
        self, instances: Sequence[StreamInstance], max_batch: int, issuer: Issuer, streams: int
    ) -> None:
        """streams: number of streams; query q is a frame of stream q % streams."""
        self._issued = issuer.issued
        self._streams = streams
        # This limit keeps one instance from taking the frames of all streams.
        self._most = min(max_batch, -(-streams // len(instances)))
        self._changed = threading.Condition()
        self._waiting: deque[int] = deque()
        self._in_work = bytearray(streams)
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._work, args=(one,), name=f"{WORKER}{n}", daemon=True)
            for n, one in enumerate(instances)
        ]
        for thread in self._threads:
            thread.start()

    def issue(self, ids: list[int], _indices: list[int]) -> None:
        self._issued(len(ids), wall_ns())
        with self._changed:
            self._waiting.extend(ids)
            self._changed.notify_all()

    def _work(self, instance: StreamInstance) -> None:
        run_on(instance.cpus)
        while queries := self._take():
            instance.answer(queries, wall_ns())
            with self._changed:
                for query in queries:
                    self._in_work[query % self._streams] = 0
                self._changed.notify_all()

    def _take(self) -> list[int]:
        """Blocks until some frames can be answered, and takes these frames. Returns [] when the dispatcher is closed."""
        with self._changed:
            while not (size := self._ready()):
                if self._is_closed and not self._waiting:
                    return []
                self._changed.wait()
            queries = [self._waiting.popleft() for _ in range(size)]
            for query in queries:
                self._in_work[query % self._streams] = 1
            return queries

    def _ready(self) -> int:
        """Returns the size of the next batch; 0 if the next frame must wait."""
        # The first `most` waiting frames belong to different streams.
        most = min(self._most, len(self._waiting))
        for size in range(most):
            if self._in_work[self._waiting[size] % self._streams]:
                return size
        return most

    def stop(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
