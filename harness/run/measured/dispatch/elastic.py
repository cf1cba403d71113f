"""Dispatches Server queries. All cores work together on a query if no other query waits."""

from collections.abc import Sequence
from queue import SimpleQueue

from harness.core.batch_rule import BatchRule
from harness.core.clock import wall_ns
from harness.run.journal import Issuer
from harness.run.measured.dispatch.instance import Instance
from harness.run.measured.dispatch.threads import QueuedDispatcher


class ElasticDispatcher(QueuedDispatcher):
    """Passes a query to the wide instance if no other query waits and every instance is idle.

    The first worker calls the wide instance. Until the query is answered, no other worker takes a query, because the
    wide instance computes on all cores.

    A batch takes longer if two of its threads share a core, so every thread is bound to a core. Only the first worker
    may call the wide instance, because the other threads of the wide instance are bound to the other cores.
    """

    def __init__(
        self,
        instances: Sequence[Instance],
        max_batch: int,
        issuer: Issuer,
        rule: BatchRule | None,
        wide: Instance,
    ) -> None:
        """instances: bound to separate cores; the first instance is bound to the core of `wide`."""
        self._wide = wide
        self._first = id(instances[0])
        self._handing = 0
        self._handed: SimpleQueue[None] = SimpleQueue()
        super().__init__(instances, max_batch, issuer, rule)

    def _take(self, mine: int) -> tuple[list[int], list[int], int] | None:
        while True:
            with self._turn:
                if mine == self._first:
                    return self._take_as_first(mine)
                if not self._some_wait():
                    return None
                if not self._is_alone():
                    return self._sized(mine)
                self._handing += 1
            self._handed.get()  # blocks until the first worker has taken over

    def _take_as_first(self, mine: int) -> tuple[list[int], list[int], int] | None:
        while self._handing:
            self._handing -= 1
            self._handed.put(None)
        while self._some_wait():
            if not self._is_alone():
                return self._sized(mine)
            taken_ns = wall_ns()
            self._wide.answer(*self._cut(1), taken_ns)
        return None

    def _is_alone(self) -> bool:
        return len(self._ids) - self._next == 1 and not any(self._answering.values())
