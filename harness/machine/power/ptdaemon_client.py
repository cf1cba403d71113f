"""power-dev's client.py as a process: what it says is logged, and told where it matters."""

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
"""The script that the client runs, by its name in what the client says of it."""

END_LIMIT_S = 30.0
"""For the client's run to save what it has, once it is told to stop."""

_LINE = re.compile(r"client \S+ \S+ \[(?P<level>[A-Z]+)\] (?P<text>.*)")
_MODE = re.compile(r"Running workload in (\w+) mode")
_REPLY = re.compile(r"Got response: (['\"])(Error.*)\1$", re.MULTILINE)
_STATUS = re.compile(
    rf"{re.escape(WORKLOAD)}\S* returned non-zero exit status (\d+)\.$", re.MULTILINE
)
_ADVICE = {
    "Could not connect to the server": "start power-dev's server.py there, or correct director=",
    "Handshake failed": "take the same power-dev on both machines",
    "ynchroni": "let both machines' clocks follow one NTP server, or correct ntp=",
}
"""What to do, by what the client's errors say; before anything was run, they are the user's."""


class PowerClient:
    """One call of client.py. mode: the phase it has come to, ranging or testing; '' before that."""

    def __init__(self, log: Path, *, quiet: bool) -> None:
        self.mode = ""
        self._log, self._quiet = log, quiet

    def run(self, words: Sequence[str]) -> int:
        """Its exit status, which is 0 in some failures, too. Stopped by a signal, so is the client."""
        with (
            self._log.open("w", encoding="utf-8") as log,
            subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,  # Ctrl-C is ours to handle
            ) as process,
        ):
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    log.write(line)
                    log.flush()
                    self._heard(line.rstrip())
            except BaseException:
                _end(process)
                raise
        return process.returncode

    def _heard(self, line: str) -> None:
        """Shows the runs' notices, and of the client's own words those that matter."""
        match = _LINE.fullmatch(line)
        found = _MODE.fullmatch(match["text"]) if match else None
        if found:
            self.mode = found[1]
        matters = match["level"] != "INFO" if match else line.startswith("harness: ")
        if not self._quiet and (found or matters):
            say(match["text"] if match else line.removeprefix("harness: "))

    def failure(self, status: int, *, has_run: bool) -> HarnessError:
        """One line: what it said, in which phase, and what to do. has_run: there are runs to keep."""
        said = self._log.read_text(encoding="utf-8")
        phase = f"in the {self.mode} phase" if self.mode else "before the ranging phase"
        workload = _STATUS.search(said)
        if workload:
            told = re.findall(r"^harness: (.*)$", said, re.MULTILINE)[-1:]
            kind = BY_EXIT_STATUS.get(int(workload[1]), RunDied)
            return kind(": ".join([f"the run {phase} ended with status {workload[1]}", *told]))
        why = _words(said) or f"it ended with status {status} and without its files"
        advice = next((a for words, a in _ADVICE.items() if words in why), "")
        text = f"MLPerf Power's client failed {phase}: {why}"
        if advice and not has_run:
            return ConfigError(f"{text}: {advice}")
        return RunInvalid(f"{text}: {advice or f'see {self._log}'}")


def _words(said: str) -> str:
    """The errors that the client logged, what the director answered, and an exception's last line."""
    lines = [line for line in said.splitlines() if line.strip()]
    found = [m for line in lines if (m := _LINE.fullmatch(line))]
    words = [m["text"] for m in found if m["level"] in ("ERROR", "CRITICAL")]
    words += [m[2] for m in _REPLY.finditer(said)]
    if lines and not _LINE.fullmatch(lines[-1]):
        words.append(lines[-1])
    return one_line("; ".join(dict.fromkeys(words)))


def _end(process: "subprocess.Popen[str]") -> None:
    """The client with the run it made, which saves what it has; the director notices by itself."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.communicate(timeout=END_LIMIT_S)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
