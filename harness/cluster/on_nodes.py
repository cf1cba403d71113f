"""Runs one command of the harness on each of several machines, and gathers the results in one folder.

A study is measured whole on each machine, so its runs are ranked with runs of the same machine only. The folder
has a folder for each node, and `nodes.json`; the same command with the same --out goes on where it was.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from harness.core import child, files
from harness.core.config.parse import MOST_NODES, RAY_NODES, parse_nodes, positive
from harness.core.console import say, show
from harness.core.signals import INTERRUPT_EXIT, stoppable
from harness.core.units import counted
from harness.errors import BY_EXIT_STATUS, ConfigError, PluginUnavailable, RunDied, refuse
from harness.results.pages.tables import aligned, columns

GATHER_MODULE = "harness.cluster.ray.gather"
NODES = "nodes.json"
VERBS = ("run", "peak", "sweep", "tune", "profile", "bricks")
"""Verbs that leave a folder of results at --out."""

END_LIMIT_S = 15.0
"""Time in which the process that asks Ray ends, once it has sent the rows."""

_LOOK_EVERY_S = 0.5
_HEADS = columns("node | machine | CPU | status | results")


def parsed(nodes: str, count: str) -> tuple[str, int]:
    """(ray://HOST:PORT, how many nodes). A ConfigError for anything else."""
    try:
        head, number = parse_nodes(nodes), positive(MOST_NODES)(count)
    except ValueError as e:
        raise ConfigError(f"on: {e}") from None
    if not head.startswith(RAY_NODES):
        raise ConfigError(f"on: {nodes} is no Ray cluster: name its head, e.g. ray://10.0.0.1")
    return head, number


def execute(nodes: str, count: int, words: Sequence[str], folder: Path) -> int:
    """Returns 0, the highest exit status of the nodes, 5 where one was lost, or that of a signal."""
    refuse(list(_problems(words)))
    verb = words[0] if not words[0].startswith("-") else "run"
    folder.mkdir(parents=True, exist_ok=True)
    _check_same(folder, words)
    setup = {
        "nodes": nodes,
        "count": count,
        "gpus": _has_gpu(words),
        "words": list(words),
        "out": verb,
        "folder": str(folder.absolute()),
        "cwd": str(Path.cwd()),
    }
    say(f"placing {counted(count, 'node')} on {nodes}")
    rows, signum = _gathered(setup)
    if signum is not None and not rows:
        return INTERRUPT_EXIT + signum
    files.write_json(folder / NODES, {"command": list(words), "nodes": rows})
    show("\n".join(_lines(rows, folder, verb)))
    if signum is not None:
        return INTERRUPT_EXIT + signum
    lost = RunDied.exit_status if any(row["lost"] for row in rows) else 0
    return max(lost, *(row["status"] or 0 for row in rows))


def _problems(words: Sequence[str]) -> Iterator[str]:
    verb = words[0] if words else ""
    if not verb or not (verb.startswith("-") or verb in VERBS):
        yield f"on: name what to run after `--`: {', '.join(VERBS)}, and its options"
    for flag, why in (
        ("--out", "pass it before `--`: it is the folder of all nodes"),
        ("--nodes", "a command runs on one machine"),
        ("--load-hosts", "a command runs on one machine"),
        ("--from", "it measures nothing"),
    ):
        if any(word == flag or word.startswith(f"{flag}=") for word in words):
            yield f"on: {flag} after `--`: {why}"


def _has_gpu(words: Sequence[str]) -> bool:
    return "--device=cuda" in words or any(
        word == "cuda" and words[i - 1] == "--device" for i, word in enumerate(words)
    )


def _check_same(folder: Path, words: Sequence[str]) -> None:
    path = folder / NODES
    if path.is_file():
        stored = files.read_json(path).get("command")
        if stored != list(words):
            raise ConfigError(f"{folder} holds the results of another command: pass another --out")
    elif any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty, and holds no {NODES}: pass another --out")
    else:
        files.write_json(path, {"command": list(words), "nodes": []})


def _gathered(setup: Mapping[str, Any]) -> tuple[Sequence[Mapping[str, Any]], int | None]:
    """(a row for each node, the signal that stopped it)."""
    process, channel = child.connect(GATHER_MODULE, new_session=True)
    with process, closing(channel), stoppable() as stopping:
        try:
            channel.send("setup", **setup)
            has_asked_to_stop = False
            while True:
                if stopping.caught is not None and not has_asked_to_stop:
                    say("stopping the command on every node")
                    channel.send("stop")
                    has_asked_to_stop = True
                try:
                    message = channel.receive(_LOOK_EVERY_S)
                except TimeoutError:
                    continue
                if message is None and stopping.caught is not None:
                    return (), stopping.caught  # before any node was ours
                if message is None:
                    raise PluginUnavailable(
                        f"on: the process that asks Ray ended with status {process.wait()}"
                    )
                if message["event"] == "log":
                    say(f"{message['node']}: {message['text'].removeprefix('harness: ')}")
                elif message["event"] == "error":
                    error = BY_EXIT_STATUS.get(message["status"])
                    if error is None:
                        raise RuntimeError(f"the process that asks Ray failed:\n{message['trace']}")
                    raise error(message["text"])
                else:
                    process.wait(END_LIMIT_S)
                    return message["rows"], stopping.caught
        except BaseException:
            process.kill()
            raise


def _lines(rows: Sequence[Mapping[str, Any]], folder: Path, verb: str) -> Iterator[str]:
    cells = [
        (
            row["node"],
            row["machine"]["fingerprint"],
            row["machine"]["cpu"],
            f"lost: {row['lost']}" if row["lost"] else f"exit {row['status']}",
            str(folder / row["node"] / verb),
        )
        for row in rows
    ]
    yield from aligned(_HEADS, cells)
    yield "each node measured by itself: runs are ranked within a node; numbers of two nodes compare their machines"
