"""Runs power-dev's client.py, logs its output, and summarises failures in one line."""

import os
import re
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from harness.core.console import say
from harness.errors import BY_EXIT_STATUS, ConfigError, HarnessError, RunDied, RunInvalid, one_line

WORKLOAD = "workload.sh"
"""Name of the script that the client runs; the client's messages contain this name.
"""

END_LIMIT_S = 30.0
"""After SIGTERM, the client's run has this much time to save its measurements."""

_LINE = re.compile(r"client \S+ \S+ \[(?P<level>[A-Z]+)\] (?P<text>.*)")
_MODE = re.compile(r"Running workload in (\w+) mode")
_REPLY = re.compile(r"Got response: (['\"])(Error.*)\1$", re.MULTILINE)
_STATUS = re.compile(
    rf"{re.escape(WORKLOAD)}\S* returned non-zero exit status ([0-9]{{1,3}})\.$", re.MULTILINE
)
_ADVICE = {
    "Could not connect to the server": "start power-dev's server.py there, or correct director=",
    "Handshake failed": "use the same version of power-dev on both machines",
    "ynchroni": "let both machines' clocks follow one NTP server, or correct ntp=",
}
"""Maps words in the client's errors to advice. The user can correct all these errors before the first run."""


class PowerClient:
    """One execution of client.py."""

    def __init__(self, log: Path, *, quiet: bool) -> None:
        self.mode = ""  # the phase (ranging or testing); '' before the first phase
        self._log, self._quiet = log, quiet

    def run(self, words: Sequence[str]) -> int:
        """Runs the client and returns its exit status, which is 0 even after some failures.

        An exception during the call, for example from a signal, also stops the client.
        """
        with (
            self._log.open("w", encoding="utf-8") as log,
            subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,  # a new session, so that only the harness handles Ctrl-C
            ) as process,
        ):
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    log.write(line)
                    log.flush()
                    self._show(line.rstrip())
            except BaseException:
                _end(process)
                raise
        return process.returncode

    def _show(self, line: str) -> None:
        """Prints the client's phases, warnings and errors, and the runs' messages."""
        match = _LINE.fullmatch(line)
        mode = _MODE.fullmatch(match["text"]) if match else None
        if mode:
            self.mode = mode[1]
        matters = match["level"] != "INFO" if match else line.startswith("harness: ")
        if not self._quiet and (mode or matters):
            say(match["text"] if match else line.removeprefix("harness: "))

    def failure(self, status: int, *, has_run: bool) -> HarnessError:
        """Returns the error as one line with phase, message and advice.

        has_run: whether finished runs exist, which must not be deleted.
        """
        output = self._log.read_text(encoding="utf-8")
        phase = f"in the {self.mode} phase" if self.mode else "before the ranging phase"
        workload = _STATUS.search(output)
        if workload:
            last = re.findall(r"^harness: (.*)$", output, re.MULTILINE)[-1:]
            kind = BY_EXIT_STATUS.get(int(workload[1]), RunDied)
            return kind(": ".join([f"the run {phase} ended with status {workload[1]}", *last]))
        why = _errors(output) or f"it ended with status {status} and did not write its files"
        advice = next((a for words, a in _ADVICE.items() if words in why), "")
        text = f"MLPerf Power's client failed {phase}: {why}"
        if advice and not has_run:
            return ConfigError(f"{text}: {advice}")
        return RunInvalid(f"{text}: {advice or f'see {self._log}'}")


def _errors(output: str) -> str:
    """Returns the errors that the client logged, the director's error replies, and the last line of an exception."""
    lines = [line for line in output.splitlines() if line.strip()]
    logged = [m for line in lines if (m := _LINE.fullmatch(line))]
    errors = [m["text"] for m in logged if m["level"] in ("ERROR", "CRITICAL")]
    errors += [m[2] for m in _REPLY.finditer(output)]
    if lines and not _LINE.fullmatch(lines[-1]):
        errors.append(lines[-1])
    return one_line("; ".join(dict.fromkeys(errors)))


def _end(process: "subprocess.Popen[str]") -> None:
    """Stops the client and its run, so that the run saves its measurements and the director detects the end."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.communicate(timeout=END_LIMIT_S)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
