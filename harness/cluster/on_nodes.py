"""Runs a command of the harness on several machines, and collects the results in one folder.

The command has two modes. In the first mode, every machine runs the same command and measures a whole study. Runs are
then ranked only against runs on the same machine. In the second mode, the machines share a list of values, and the next
free machine runs the command with the next value. The results folder contains one folder per node or value,
`nodes.json`, and a database that lists all runs. Repeating the command with the same --out continues an interrupted
study.
"""

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from operator import itemgetter
from pathlib import Path
from typing import Any

from harness.cluster.ray.command import is_unfinished
from harness.core import child, files
from harness.core.config.parse import MOST_NODES, RAY_NODES, parse_nodes, positive
from harness.core.console import say, show
from harness.core.files import free_name
from harness.core.signals import INTERRUPT_EXIT, Stopped, stoppable
from harness.core.units import counted
from harness.errors import (
    BY_EXIT_STATUS,
    ConfigError,
    PluginUnavailable,
    RunDied,
    RunInvalid,
    one_line,
    refuse,
)
from harness.results import database
from harness.results.pages.tables import aligned, columns
from harness.results.run_folder import PEAK, RESULT

GATHER_MODULE = "harness.cluster.ray.gather"
NODES = "nodes.json"
VERBS = ("run", "peak", "sweep", "tune", "profile", "bricks")
"""Verbs that write a results folder and accept --out."""

END_LIMIT_S = 15.0
"""After sending the rows, the process that calls Ray may take this long to end."""

_LOOK_EVERY_S = 0.5
_HEADS = columns("node | machine | CPU | status | results")
_SHARED_HEADS = columns("value | node | machine | CPU | status | results")

_NOT_LISTED: tuple[type[Exception], ...] = (
    sqlite3.Error,
    OSError,
    ConfigError,
    *files.WRONG_CONTENT,
)
"""Errors that a run's faulty files cause. A run that causes such an error is not added to the database."""

PLACE = "{}"
"""Placeholder in the command of `on --share`, which is replaced by a value. The command runs once for each value.
"""


def parsed(nodes: str, count: str) -> tuple[str, int]:
    """Returns ray://HOST:PORT and the number of nodes. Raises ConfigError for any other text."""
    try:
        return ray_head(nodes), positive(MOST_NODES)(count)
    except ValueError as e:
        raise ConfigError(f"on: {e}") from None


def ray_head(nodes: str) -> str:
    """Returns the address as ray://HOST:PORT. Raises ConfigError for any other text."""
    try:
        head = parse_nodes(nodes)
    except ValueError as e:
        raise ConfigError(f"on: {e}") from None
    if not head.startswith(RAY_NODES):
        raise ConfigError(
            f"on: {nodes} is not a Ray cluster: give the address of its head, e.g. ray://10.0.0.1"
        )
    return head


def execute(
    nodes: str, count: int, words: Sequence[str], folder: Path, values: Sequence[str] = ()
) -> int:
    """Runs the command on the nodes. Returns the commands' highest exit status, 5 if a command was lost, or the status
    for a signal.

    values: values of --share, or () if each node runs the whole command.
    """
    refuse([*_problems(words), *_share_problems(words, values)])
    verb = words[0] if not words[0].startswith("-") else "run"
    folder.mkdir(parents=True, exist_ok=True)
    asked = {"command": list(words), "shared": list(values)}
    rows = _earlier(folder, asked)
    names = folder_names(values)
    left = [
        (name, [word.replace(PLACE, value) for word in words])
        for name, value in zip(names, values, strict=True)
        if name not in rows
    ]
    signum = None
    if left or not values:
        count = min(count, len(left)) if values else count
        setup = {
            "nodes": nodes,
            "count": count,
            "gpus": _has_gpu(words),
            "words": list(words),
            "shared": left,
            "out": verb,
            "folder": str(folder.absolute()),
            "cwd": str(Path.cwd()),
        }
        say(f"placing {counted(count, 'node')} on {nodes}")
        for name, _ in left:
            _set_aside(folder / name)

        def keep(row: Mapping[str, Any]) -> None:
            rows[row["folder"]] = row
            files.write_json(folder / NODES, {**asked, "nodes": [*rows.values()]})
            _list_runs(folder, row["folder"])

        try:
            signum = _gathered(setup, keep)
        except Stopped as e:
            signum = e.signum
    if values:
        of_folder = dict(zip(names, values, strict=True))
        show("\n".join(_shared_lines(rows, of_folder, folder, verb)))
    elif rows:
        show("\n".join(_lines(rows, folder, verb)))
    if signum is not None:
        return INTERRUPT_EXIT + signum
    is_lost = any(row["lost"] for row in rows.values()) or len(rows) < len(values)
    lost = RunDied.exit_status if is_lost else 0
    return max([lost, *(row["status"] or 0 for row in rows.values())])


def _list_runs(folder: Path, name: str) -> None:
    """Adds the runs of one node or value to the database, with their paths relative to `folder`."""
    for path in sorted((folder / name).rglob(RESULT)):
        place = path.parent.relative_to(folder).as_posix()
        if (
            is_unfinished(place) or path.parent.parent.name == "probes"
        ):  # the list contains only the best run of a search, not its probes
            continue
        search = path.with_name(PEAK)
        try:
            peak = files.read_json(search)["peak"] if search.exists() else None
            database.add(folder, place, files.read_json(path), peak)
        except _NOT_LISTED as e:
            say(f"{database.path_in(folder)}: {place} was not added: {one_line(e)}")


def folder_names(values: Sequence[str]) -> Sequence[str]:
    """Returns a folder name for each value: the letters in the value, and a number if several values contain the same
    letters.
    """
    names: list[str] = []
    for value in values:
        plain = re.sub(r"[^A-Za-z0-9._-]+", "_", value).strip("._") or "value"
        same = [
            name
            for name in (plain, *(f"{plain}-{n}" for n in range(2, len(values) + 1)))
            if name not in names
        ]
        names.append(same[0])
    return names


def _earlier(folder: Path, asked: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Returns the rows of the shared commands that are complete, by folder. Omits commands that were lost, interrupted
    or failed.

    Raises ConfigError if the folder belongs to a different command.
    """
    path = folder / NODES
    if path.is_file():
        stored = files.read_json(path)
        if {"shared": [], **stored} != {**asked, "nodes": stored.get("nodes")}:
            raise ConfigError(
                f"{folder} contains the results of a different command: pass a different --out"
            )
        rows = stored["nodes"] if asked["shared"] else []
        measured = (0, RunInvalid.exit_status)
        return {row["folder"]: row for row in rows if row["status"] in measured}
    if any(folder.iterdir()):
        raise ConfigError(
            f"{folder} is not empty and does not contain {NODES}: pass a different --out"
        )
    files.write_json(path, {**asked, "nodes": []})
    return {}


def _set_aside(folder: Path) -> None:
    """Renames the folder of an interrupted or lost command, because another node may start the command again."""
    if folder.exists():
        folder.rename(free_name(folder.with_name(f"{folder.name}.stopped")))


def _problems(words: Sequence[str]) -> Iterator[str]:
    verb = words[0] if words else ""
    if not verb or not (verb.startswith("-") or verb in VERBS):
        yield f"on: the command is missing: after `--`, add one of {', '.join(VERBS)}, and its options"
    for flag, why in (
        ("--out", "pass it before `--`, because it is the folder of all nodes"),
        ("--nodes", "drop it, because a command runs on one machine"),
        ("--load-hosts", "drop it, because a command runs on one machine"),
        ("--from", "drop it, because it measures nothing"),
    ):
        if any(word == flag or word.startswith(f"{flag}=") for word in words):
            yield f"on: {flag} after `--`: {why}"


def _has_gpu(words: Sequence[str]) -> bool:
    return any(
        word.startswith("--device=cuda")
        or (word.startswith("cuda") and words[i - 1 : i] == ["--device"])
        for i, word in enumerate(words)
    )


def _share_problems(words: Sequence[str], values: Sequence[str]) -> Iterator[str]:
    takes_values = any(PLACE in word for word in words)
    if values and not takes_values:
        yield f"on: --share: put {PLACE} into the command in place of a value"
    if takes_values and not values:
        yield f"on: the command has {PLACE} in place of a value: list the values with --share"
    if "" in values:
        yield f"on: --share {','.join(values)} contains an empty value"
    if len(set(values)) < len(values):
        yield f"on: --share {','.join(values)} contains a value twice"


def _gathered(setup: Mapping[str, Any], keep: Callable[[Mapping[str, Any]], None]) -> int | None:
    """Runs the commands on the nodes. Returns the signal that stopped the commands, or None if no signal stopped them.
    A second signal raises Stopped.

    keep: called with each completed command's row.
    """
    process, channel = child.connect(GATHER_MODULE, new_session=True)
    with process, closing(channel), stoppable() as stopping:
        try:
            channel.send("setup", **setup)
            has_asked_to_stop = False
            while True:
                if stopping.caught is not None and not has_asked_to_stop:
                    stopping.go_on()
                    say("stopping the command on every node; a second Ctrl-C does not wait for it")
                    channel.send("stop")
                    has_asked_to_stop = True
                try:
                    with stopping.allowed(has_asked_to_stop):
                        message = channel.receive(_LOOK_EVERY_S)
                except TimeoutError:
                    continue
                if message is None and stopping.caught is not None:
                    return stopping.caught  # a signal came before any node was reserved
                if message is None:
                    raise PluginUnavailable(
                        f"on: the process that calls Ray ended with status {process.wait()}"
                    )
                if message["event"] == "log":
                    say(f"{message['node']}: {message['text'].removeprefix('harness: ')}")
                elif message["event"] == "row":
                    keep({name: value for name, value in message.items() if name != "event"})
                elif message["event"] == "error":
                    raise _error_of(message)
                else:
                    process.wait(END_LIMIT_S)
                    return stopping.caught
        except BaseException:
            process.kill()  # the cluster then ends the harness's actors on the nodes
            raise


def _error_of(message: Mapping[str, Any]) -> Exception:
    error = BY_EXIT_STATUS.get(message["status"])
    if error is None:
        return RuntimeError(f"the process that calls Ray failed:\n{message['trace']}")
    return error(message["text"])


def _lines(rows: Mapping[str, Mapping[str, Any]], folder: Path, verb: str) -> Iterator[str]:
    cells = [
        (*_about(row), _results(folder / row["folder"] / verb))
        for row in sorted(rows.values(), key=itemgetter("folder"))
    ]
    yield from aligned(_HEADS, cells)
    yield "each node measured alone: runs are ranked within a node; numbers of two nodes compare their machines"


def _shared_lines(
    rows: Mapping[str, Mapping[str, Any]], values: Mapping[str, str], folder: Path, verb: str
) -> Iterator[str]:
    """Yields the table for --share. values: maps a folder name to its value."""
    cells = [
        (value, *_about(rows[name]), _results(folder / name / verb))
        if name in rows
        else (value, "-", "-", "-", "not begun", "-")
        for name, value in values.items()
    ]
    yield from aligned(_SHARED_HEADS, cells)
    if len({row["node"] for row in rows.values()}) > 1:
        yield "several nodes measured, so their numbers also compare machines: rank the results of one node"
    if len(rows) < len(values) or any(row["lost"] for row in rows.values()):
        yield f"repeat the command with --out {folder} to measure the missing values"


def _results(path: Path) -> str:
    """Returns the path to the results folder, even if the results are incomplete, or '-' if the folder does not exist."""
    partial = path.with_name(path.name + files.PARTIAL)
    return str(next((found for found in (path, partial) if found.exists()), "-"))


def _about(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    status = f"lost: {row['lost']}" if row["lost"] else f"exit {row['status']}"
    return row["node"], row["machine"]["fingerprint"], row["machine"]["cpu"], status
