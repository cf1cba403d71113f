"""Runs LoadGen, or the harness's scheduler, on a separate thread."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.loadgen.binding import Callbacks, settings_for, start_test
from harness.loadgen.plan import LoadPlan
from harness.machine.threads import run_on
from harness.run.measured.own_scheduler import Scheduler


def run_load(
    plan: LoadPlan,
    scheduler: Scheduler | None,
    calls: Callbacks,
    outdir: Path,
    name: Callable[[], str] | None = None,
) -> None:
    """Runs the load on a new thread, and waits until every query is answered. Raises the error that ended the run.

    name: see `start_test`.
    """
    settings = settings_for(plan) if scheduler is None else None

    def run() -> None:
        if scheduler is not None:
            scheduler.run(calls, outdir)
        else:
            start_test(plan, settings, outdir, calls, name)

    on_loadgens_thread(run)


def on_loadgens_thread(work: Callable[[], None], cpus: Sequence[int] = ()) -> None:
    """Calls `work` on a new thread named `loadgen`, and waits until it ends. Raises the error of `work`.

    cpus: logical processors of the thread; () for any.
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            run_on(cpus)
            work()
        except BaseException as e:  # noqa: BLE001 - raised again on the calling thread
            errors.append(e)

    thread = threading.Thread(target=run, name="loadgen")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
