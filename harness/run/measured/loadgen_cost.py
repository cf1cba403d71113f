"""Measures LoadGen's time per query in a short run with empty answers.

If a model takes only microseconds, LoadGen takes more time per query than the model. If the number of queries were
computed from the model's time alone, the run would last several times longer than planned.
"""

import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from harness.loadgen.answers import AnswerRow
from harness.loadgen.binding import Callbacks, responder_for, settings_for, start_test
from harness.loadgen.plan import LoadPlan, Seeds
from harness.loadgen.scenario import scenario_named

QUERIES = 4000
SAMPLES = 20_000
"""Length of the short run: number of queries in a stream, or of samples in Offline's only query."""


def cost_ns(scenario: str, samples_per_query: int, max_batch: int, row: AnswerRow) -> float:
    """Returns the mean time per query (Offline: per sample) with empty answers.

    row: shape and type of the run's answers.
    """
    all_at_once = scenario_named(scenario).all_at_once
    plan = LoadPlan(
        scenario=scenario,
        accuracy=False,
        query_count=SAMPLES if all_at_once else QUERIES,
        journal_samples=SAMPLES,
        total_count=1,
        performance_count=1,
        seeds=Seeds(1, 1, 1),
        samples_per_query=samples_per_query,
    )
    responder = responder_for(max_batch, row)
    stamps: list[int] = []

    def issue(ids: list[int], _indices: list[int]) -> None:
        stamps.append(time.monotonic_ns())
        for start in range(0, len(ids), max_batch):
            responder.complete_empty(ids[start : start + max_batch])
        stamps.append(time.monotonic_ns())

    def nothing(_indices: list[int]) -> None:
        pass

    with tempfile.TemporaryDirectory() as folder:
        calls = Callbacks(issue, nothing, nothing)
        work = partial(start_test, plan, settings_for(plan), Path(folder), calls)
        has_ended = threading.Event()
        # The thread must not have the name of LoadGen's thread, because plug-ins would treat this measurement as a run.
        threading.Thread(target=_run_and_stay, args=(work, has_ended), daemon=True).start()
        has_ended.wait()
    return (stamps[-1] - stamps[0]) / plan.query_count


def _run_and_stay(work: Callable[[], None], has_ended: threading.Event) -> None:
    """Calls `work` and then keeps the thread alive until the process ends. Otherwise, LoadGen's next run may crash.

    If the thread ended earlier, LoadGen would free the thread's log buffers in the next run, and might access them
    afterwards.
    Source: logging.cc of LoadGen 6.0.17, where IOThread erases the logger of an ended thread and then swaps its
    buffers.
    """
    try:
        work()
    finally:
        has_ended.set()
    threading.Event().wait()
