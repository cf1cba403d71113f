"""Passes samples to language models, either within the callback (streams) or on one thread per instance."""

import threading
from collections import deque
from collections.abc import Iterator, Sequence

from harness.core.clock import wall_ns
from harness.machine.threads import run_on
from harness.run.journal import Issuer
from harness.run.measured.dispatch.threads import WORKER, Dispatcher
from harness.run.measured.generation.instance import GeneratingInstance, Sample

GENERATING, INLINE_GENERATING = "generating", "inline, generating"
"""Names of the dispatchers in result.json."""


def generating_dispatcher(
    dispatch: str, instances: Sequence[GeneratingInstance], issuer: Issuer
) -> tuple[Dispatcher, str]:
    """Returns a dispatcher and its name. dispatch: kind of the scenario."""
    if dispatch == "inline":
        return InlineGeneratingDispatcher(instances, issuer), INLINE_GENERATING
    return GeneratingDispatcher(instances, issuer), GENERATING


def _samples(ids: Sequence[int], indices: Sequence[int], first: int) -> Iterator[Sample]:
    """Yields the samples of one callback. first: issue order of the first sample."""
    return map(Sample, ids, indices, range(first, first + len(ids)))


class InlineGeneratingDispatcher:
    """Generates the answers to a query within the callback."""

    def __init__(self, instances: Sequence[GeneratingInstance], issuer: Issuer) -> None:
        self._instance = instances[0]
        self._issued = issuer.issued

    def issue(self, ids: list[int], indices: list[int]) -> None:
        instance = self._instance
        waiting = deque(_samples(ids, indices, self._issued(len(ids), wall_ns())))
        while waiting or not instance.is_idle:
            count = min(instance.room, len(waiting))
            instance.add([waiting.popleft() for _ in range(count)])
            instance.step()

    def stop(self) -> None:
        """Does nothing, because this dispatcher has no thread."""


class GeneratingDispatcher:
    """Runs one thread per instance. Before each step, the thread takes waiting samples until the instance is full.

    If several instances have room, each takes a share of the waiting samples.
    """

    def __init__(self, instances: Sequence[GeneratingInstance], issuer: Issuer) -> None:
        self._issued = issuer.issued
        self._changed = threading.Condition()
        self._waiting: deque[Sample] = deque()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, args=(i,), name=f"{WORKER}{n}", daemon=True)
            for n, i in enumerate(instances)
        ]
        for thread in self._threads:
            thread.start()

    def issue(self, ids: list[int], indices: list[int]) -> None:
        first = self._issued(len(ids), wall_ns())
        with self._changed:
            self._waiting.extend(_samples(ids, indices, first))
            self._changed.notify_all()

    def _work(self, instance: GeneratingInstance) -> None:
        run_on(instance.cpus)
        while (samples := self._take(instance)) is not None:
            instance.add(samples)
            instance.step()

    def _take(self, instance: GeneratingInstance) -> list[Sample] | None:
        """Takes samples. Waits for a sample only if the instance is idle. Returns None at the end of the run."""
        with self._changed:
            while not self._waiting:
                if not instance.is_idle:
                    return []
                if self._closed:
                    return None
                self._changed.wait()
            share = -(-len(self._waiting) // len(self._threads))
            count = min(instance.room, share)
            return [self._waiting.popleft() for _ in range(count)]

    def stop(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
