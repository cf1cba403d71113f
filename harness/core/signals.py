"""Converts signals that end a program into an orderly stop that saves all measurements."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from harness.core.codes import INTERRUPTED, Reason

INTERRUPT_EXIT = 128
"""The exit status of a run that a signal stopped is this number plus the signal's number."""

_CAUGHT = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGABRT,
)
"""Signals from terminals, operators or process supervisors that end a process by default."""


def signal_name(number: int) -> str:
    """Returns the signal's name, such as SIGTERM for 15. Returns the signal's number if Python does not define a name,
    as for most real-time signals.
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Terminated(KeyboardInterrupt):
    """Raised on SIGTERM and SIGHUP. Terminated is a KeyboardInterrupt, so that code that cleans up after Ctrl-C also
    runs after these signals.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


@contextmanager
def terminable() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP raise Terminated inside the block, unless these signals are already ignored or handled."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in taken:
        signal.signal(number, _terminate)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _terminate(signum: int, _frame: object) -> None:
    signal.signal(signum, signal.SIG_DFL)  # a second signal then ends the process immediately
    raise Terminated(signum)


class Stopped(BaseException):
    """Raised when a signal stops the run. Stopped is a BaseException, so that error handlers for Exception do not catch
    it.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum

    @property
    def exit_status(self) -> int:
        return INTERRUPT_EXIT + self.signum

    @property
    def reason(self) -> Reason:
        name = signal_name(self.signum)
        return Reason(INTERRUPTED, f"stopped by {name} before the end of the run")


class Stopping:
    """Lets signals stop the run only inside `allowed` blocks. A signal that arrives outside these blocks takes effect
    in the next `allowed` block.
    """

    def __init__(self, caught: int | None = None) -> None:
        """caught: a signal that an outer `Stopping` has received. The signal stops this run as soon as `allowed`
        permits.
        """
        # The last signal received, even if the signal has not stopped the run yet.
        self.caught = caught
        self._allowed = False
        self._waiting = caught

    @contextmanager
    def allowed(self, yes: bool = True) -> Iterator[None]:
        """Permits signals to stop the block. Inside this block, `allowed(False)` protects code that saves measurements."""
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

    def go_on(self) -> None:
        """Discards the pending signal, so that only another signal stops the run."""
        self._waiting = None

    def on_signal(self, signum: int, _frame: object) -> None:
        self.caught = signum
        if self._allowed:
            self._stop(signum)
        self._waiting = signum

    def pass_on(self, outer: "Stopping | None") -> None:
        """Passes the caught signal to `outer`, which stops at its next `allowed` block."""
        if outer is not None and self.caught is not None:
            outer.caught = outer._waiting = self.caught  # noqa: SLF001 - the same class


@contextmanager
def stoppable() -> Iterator[Stopping]:
    """Makes a signal that would end the process raise Stopped once, inside a `Stopping.allowed` block.

    This context may be nested, such as for a run inside a search. A signal that arrives between two runs, or at the
    very end of a run, stops the next run when it begins.
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
            # None means a handler that Python did not install and cannot restore, such as faulthandler's.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        stopping.pass_on(outer)
