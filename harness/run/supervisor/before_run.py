"""Performs the action of --before-run: resets the servers' prefix caches, or runs a command."""

import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing

from harness.core.config.run_config import RunConfig
from harness.core.shown.private import command_line
from harness.errors import ConfigError, HarnessError, one_line, type_and_text
from harness.models.opened.remote import servers_of
from harness.remote import Request
from harness.wire.connections import Server
from harness.wire.http1 import BadReply
from harness.wire.remote_backend import Link

RESETS = {"vllm": "/reset_prefix_cache", "sglang": "/flush_cache"}
"""Maps a kind of server to the path that empties its prefix cache."""

LIMIT_S = 60.0

_HINTS = {
    "vllm": "start vLLM with VLLM_SERVER_DEV_MODE=1; for another server, pass sglang or a command",
    "sglang": "if the server is not SGLang, pass vllm or a command",
}
_NOT_THERE = 404
_OK = range(200, 300)


def problems(config: RunConfig) -> Iterator[str]:
    """Yields a problem if the command of --before-run cannot be started. Does not start the command."""
    command = config.before_run
    if command is None or command in RESETS:
        return
    shown = f"--before-run {command_line(command)!r}"
    try:
        words = shlex.split(command)
    except ValueError as e:
        yield f"{shown}: {one_line(e)}"
        return
    if not words or shutil.which(words[0]) is None:
        missing = repr(words[0]) if words else "an empty command"
        yield f"--before-run: {missing} is not a program that can be run: write vllm, sglang or a command"


def perform(config: RunConfig) -> None:
    """Performs the action of --before-run. Raises a ConfigError if the action fails.

    Call this after the last preparing request, just before LoadGen starts.
    """
    if config.before_run is None:
        return
    if config.before_run not in RESETS:
        _run(config.before_run)
        return
    for server in servers_of(config):
        _reset(server, config.before_run)


def _reset(server: Server, kind: str) -> None:
    where = f"--before-run {kind}: {server.address}"
    try:
        with closing(Link(server, LIMIT_S, option="")) as link:
            status = link.exchange(Request(RESETS[kind])).status
    except (HarnessError, OSError, BadReply) as e:
        raise ConfigError(f"{where}: {type_and_text(e)}") from e
    if status not in _OK:
        hint = _HINTS[kind] if status == _NOT_THERE else "read the server's log"
        raise ConfigError(f"{where} answered {status} to {RESETS[kind]}: {hint}")


def _run(command: str) -> None:
    shown = f"--before-run {command_line(command)!r}"
    try:
        done = subprocess.run(
            shlex.split(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{shown} did not end within {LIMIT_S:g} s") from None
    except (OSError, ValueError) as e:
        raise ConfigError(f"{shown}: {one_line(e)}") from e
    if done.returncode:
        last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise ConfigError(
            f"{shown} ended with status {done.returncode}{f' ({one_line(last)})' if last else ''}: run it by itself, "
            "and correct it"
        )
