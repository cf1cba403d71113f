"""Times a single query, after the pause that a run has between two queries."""

import time
from collections.abc import Sequence

from harness.run.measured.answerer import Answerer

PAUSE_NS = 10_000
"""Time between the end of a query and the next call of the model, in which LoadGen and the harness work. Waiting
threads may fall asleep in this time, so the model would seem too fast in a loop without pauses.
"""


def query_ns(each: Answerer, batches: Sequence[Sequence[int]]) -> int:
    """Returns the time of one query, answered in these batches, without the pause before it."""
    pause()
    return sum(each.time_ns(batch) for batch in batches)


def pause() -> None:
    """Computes for PAUSE_NS, as LoadGen does, because a sleeping core would also make the next query slower."""
    end_ns = time.monotonic_ns() + PAUSE_NS
    while time.monotonic_ns() < end_ns:
        pass
