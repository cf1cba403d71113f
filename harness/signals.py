"""Signals that end a run: the first one stops it, and none disturbs while its results are saved."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from harness.types import Reason


class Stopped(BaseException):
    """A signal to stop. Not an Exception, so that no handler for errors takes it for one."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum

    @property
    def reason(self) -> Reason:
        name = signal.Signals(self.signum).name
        return Reason("interrupted", f"stopped by {name} before the end of the run")


@contextmanager
def stoppable() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP raise Stopped once; while what was measured is saved, no more."""

    def stop(signum: int, _frame: object) -> None:
        for number in caught:
            signal.signal(number, signal.SIG_IGN)
        raise Stopped(signum)

    caught = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, stop) for number in caught}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
