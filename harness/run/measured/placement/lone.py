"""Times a query that is answered alone, after the pause that a run has between two queries."""

import time
from collections.abc import Sequence

from harness.run.measured.answerer import Answerer

PAUSE_NS = 10_000
"""Time from the end of a query to the model's next call in which LoadGen and the harness work. Threads that wait for
work may fall asleep in this time, so a loop without pauses would show a model that is too fast.
"""


def query_ns(each: Answerer, batches: Sequence[Sequence[int]]) -> int:
    """Returns the time of one query, which is answered in these batches, without the pause before it."""
    pause()
    return sum(each.time_ns(batch) for batch in batches)


def pause() -> None:
    """Computes for PAUSE_NS, as LoadGen does: a core that sleeps would also make the next query slower."""
    end_ns = time.monotonic_ns() + PAUSE_NS
    while time.monotonic_ns() < end_ns:
        pass
