"""Times a single query after a pause like the pause between two queries of a run."""

import time
from collections.abc import Sequence

from harness.run.measured.answerer import Answerer

PAUSE_NS = 10_000
"""Time that LoadGen and the harness take between the end of a query and the next model call. Waiting threads may fall
asleep during this time, so a loop without pauses would make the model seem too fast.
"""


def query_ns(each: Answerer, batches: Sequence[Sequence[int]]) -> int:
    """Returns the time that it takes to answer one query in these batches. Excludes the pause before the query."""
    pause()
    return sum(each.time_ns(batch) for batch in batches)


def pause() -> None:
    """Keeps the core busy for PAUSE_NS, as LoadGen does. If the core slept, the next query would be slower."""
    end_ns = time.monotonic_ns() + PAUSE_NS
    while time.monotonic_ns() < end_ns:
        pass
