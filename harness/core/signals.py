"""Signals that end a run: the first one stops it, where it can be stopped without losing anything."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from harness.core.codes import INTERRUPTED, Reason

INTERRUPT_EXIT = 128
"""Exit statuses of what a signal ended begin here: this plus its number."""

_CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A signal to stop. Not an Exception, so that no handler for errors takes it for one."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum

    @property
    def exit_status(self) -> int:
        return INTERRUPT_EXIT + self.signum

    @property
    def reason(self) -> Reason:
        name = signal.Signals(self.signum).name
        return Reason(INTERRUPTED, f"stopped by {name} before the end of the run")


class Stopping:
    """Whether a signal may stop the run now; one that comes when it may not is kept until then.

    caught: the last signal, whether it has stopped something or not.
    """

    def __init__(self, caught: int | None = None) -> None:
        """caught: by what this run is a part of: it ends as soon as it may."""
        self.caught = caught
        self._allowed = False
        self._waiting = caught

    @contextmanager
    def allowed(self, yes: bool = True) -> Iterator[None]:
        """`allowed(False)` inside of it: while what was measured is saved."""
        before = self._allowed
        self._allow(yes)
        try:
            yield
        except BaseException:
            self._allowed = before
            raise
        self._allow(before)

    def _allow(self, yes: bool) -> None:
        self._allowed = yes
        if yes and self._waiting is not None:
            self._stop(self._waiting)

    def _stop(self, signum: int) -> None:
        for number in _CAUGHT:
            signal.signal(number, signal.SIG_IGN)
        raise Stopped(signum)

    def on_signal(self, signum: int, _frame: object) -> None:
        self.caught = signum
        if self._allowed:
            self._stop(signum)
        self._waiting = signum

    def pass_on(self, outer: "Stopping | None") -> None:
        """What this one has caught also ends what it is a part of, but not in the middle of a word."""
        if outer is not None and self.caught is not None:
            outer.caught = outer._waiting = self.caught  # noqa: SLF001 - the same class


@contextmanager
def stoppable() -> Iterator[Stopping]:
    """SIGINT, SIGTERM and SIGHUP raise Stopped, once, where `allowed`.

    One inside of another, as a run in a search: a signal that came between two runs ends the next
    at its beginning, and one that came when a run had nothing left to stop ends the one after it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield Stopping()
        return
    outer = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
    outer = outer if isinstance(outer, Stopping) else None
    stopping = Stopping(outer.caught if outer is not None else None)
    before = {number: signal.signal(number, stopping.on_signal) for number in _CAUGHT}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        stopping.pass_on(outer)
