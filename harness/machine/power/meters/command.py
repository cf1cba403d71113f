"""Reads the output of a program that prints watts or joules, such as ipmitool, a PDU client or a Redfish query."""

import os
import re
import select
import shlex
import signal
import subprocess
import time
from contextlib import suppress
from typing import Literal, Self

from harness.core.child import Guard
from harness.core.shown.private import command_line
from harness.errors import ConfigError
from harness.types import PowerMeter, PowerSource

_LINE = re.compile(r"\s*(\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)\s*(m|k)?([WJ])\s*")
_FACTORS = {"m": 1e-3, "k": 1e3, None: 1.0}

FIRST_LIMIT_S = 10.0
"""If the first reading takes longer, the meter fails; this limit is long because programs that query a device over a
network start slowly.
"""

READ_LIMIT_S = 1.0
_BYTES = 65_536
_SHOWN_CHARACTERS = 60
"""Messages show at most this many characters of a line that is not a reading."""


class CommandMeter:
    """argument: the program and its arguments, quoted as in a shell but not run by a shell.

    A line that consists of a number and one of the units W, mW, kW, J, mJ and kJ is a reading. All other lines are
    ignored. Joules are read as a counter. A program that keeps printing is read while it runs. A program that ends
    after printing a reading is started again for each reading.
    """

    def __init__(self, argument: str) -> None:
        try:
            self._words = shlex.split(argument)
        except ValueError as e:
            raise ConfigError(f"--meter command: {e}: quote its arguments as in a shell") from None
        if not self._words:
            raise ConfigError("--meter command: name the program, --meter 'command=PROGRAM ...'")
        self._shown = command_line(argument)
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None
        self._left = b""
        self._unit: Literal["J", "W"] | None = None
        self._has_read = False
        self._unread = ""
        """The last line that was not a reading."""

    def __enter__(self) -> Self:
        self._guard = Guard()
        try:
            first = self._next(FIRST_LIMIT_S)
        except OSError as e:
            self.__exit__()
            raise ConfigError(f"--meter command={self._words[0]}: {e}") from e
        self._unit = first[1]
        return self

    def __exit__(self, *exc: object) -> None:
        self._kill()
        if self._guard is not None:
            self._guard.close()

    def sources(self) -> list[PowerSource]:
        assert self._unit is not None
        name = os.path.basename(self._words[0])  # noqa: PTH119 - a word, not a file of ours
        return [PowerSource(f"command:{name}", self._shown, self._unit)]

    def read(self) -> list[float]:
        value, unit = self._next(READ_LIMIT_S)
        if unit != self._unit:
            raise ValueError(f"the program printed {self._unit} first and {unit} now")
        return [value]

    def _next(self, limit_s: float) -> tuple[float, Literal["J", "W"]]:
        """Returns the newest reading that the program has printed, or waits for a reading.

        Raises OSError if no reading arrives.
        """
        deadline = time.monotonic() + limit_s
        while True:
            try:
                lines = self._lines(deadline - time.monotonic())
            except TimeoutError:
                raise TimeoutError(
                    f"no line such as '12.3 W' or '456 J' came within {limit_s:g} s{self._printed()}"
                ) from None
            for line in reversed(lines):
                match = _LINE.fullmatch(line)
                if match is not None:
                    self._has_read = True
                    unit: Literal["J", "W"] = "J" if match[3] == "J" else "W"
                    return float(match[1]) * _FACTORS[match[2]], unit
            self._unread = next((line for line in reversed(lines) if line.strip()), self._unread)

    def _printed(self) -> str:
        """Returns the program's last output that is not a reading, for messages, or "" if the program has printed no
        such output.
        """
        text = self._unread or self._left.decode(errors="replace")
        return f"; it printed {text[:_SHOWN_CHARACTERS]!r}" if text.strip() else ""

    def _lines(self, limit_s: float) -> list[str]:
        """Waits for complete lines and returns them, or [] if the program has just ended.

        Raises TimeoutError after limit_s.
        """
        if self._process is None:
            self._start()
        assert self._process is not None
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        printed = select.poll()  # unlike `select`, `poll` supports descriptors above 1023
        printed.register(fd, select.POLLIN)
        if not printed.poll(max(0.0, limit_s) * 1000):
            raise TimeoutError
        chunk = os.read(fd, _BYTES)
        whole, newline, self._left = (self._left + chunk).rpartition(b"\n")
        if not chunk:
            whole, newline, self._left = self._left, b"", b""
            last = whole.decode(errors="replace")  # the last line is incomplete
            self._has_read |= _LINE.fullmatch(last) is not None
            self._unread = last or self._unread
            self._ended()
        return (whole + newline).decode(errors="replace").splitlines()

    def _start(self) -> None:
        self._left, self._has_read = b"", False
        self._process = subprocess.Popen(
            self._words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a new session, so that only the supervisor handles Ctrl-C
        )
        if self._guard is not None:
            self._guard.watch(self._process.pid)

    def _ended(self) -> None:
        assert self._process is not None
        process, has_read = self._process, self._has_read
        with suppress(
            subprocess.TimeoutExpired
        ):  # the program has closed its output but is still running
            process.wait(READ_LIMIT_S)
        self._kill()
        if not has_read:
            raise ChildProcessError(
                f"the program ended with status {process.returncode} and printed no line such as "
                f"'12.3 W' or '456 J'{self._printed()}: run it in a shell to see why"
            )

    def _kill(self) -> None:
        """Kills the process group, because the program may be a script that started other programs."""
        if self._process is None:
            return
        with suppress(ProcessLookupError, PermissionError):  # the process group has already ended
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._guard is not None:
            self._guard.watch(None)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None


_: type[PowerMeter] = CommandMeter
