"""Entry point of the process that runs commands on several nodes of a Ray cluster and collects their files.

receives   setup    ray://HOST:PORT, number of nodes, the commands, the folder of their results
           stop     interrupt the command on every node, and keep its measurements
sends      log      a line that the command has printed on a node
           row      a command has ended, or was lost with its node
           ended    all commands have ended     (or `error`)

Either every node runs the same command, or each free node takes the next shared command. A node runs one command at a
time and is reserved for it. Files are fetched while the command runs, so that measurements survive the loss of a node.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from harness.cluster.ray.client import AskerGone, Host, ask, call, connected, placed
from harness.cluster.ray.command import inside, is_unfinished, listed, put, sealed, unsealed
from harness.core.child import Channel, serve
from harness.errors import ConfigError, HarnessError, one_line

LOOK_EVERY_S = 1.0

ANSWER_LIMIT_S = 60.0
"""A node that does not reply to a call within this time counts as lost."""


def main() -> NoReturn:
    serve(_gather)


class Asker:
    """The parent process. It may ask this process to stop, or may end without asking."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.is_gone = False
        self.stops = 0
        """Number of `stop` messages received so far. The user may press Ctrl-C several times."""

    def look(self, wait_s: float = 0.001) -> bool:
        """Receives messages from the parent process. Returns whether the parent process has ended."""
        while not self.is_gone:
            try:
                message = self._channel.receive(wait_s)
            except TimeoutError:
                break
            self.is_gone = message is None
            self.stops += message is not None
        return self.is_gone

    def wants_no_start(self) -> bool:
        return self.look() or self.stops > 0


class Node(NamedTuple):
    """A reserved node. name: the node's address, with a number if several nodes share the address."""

    name: str
    host: Host
    facts: Mapping[str, Any]


class NodeCommand:
    """A command on one node, and the copies of its files on this machine."""

    def __init__(self, ray: Any, node: Node, folder: Path, gone: Callable[[], bool]) -> None:
        self._ray, self._host, self._gone = ray, node.host, gone
        self.folder = folder
        facts = node.facts
        self.row: dict[str, Any] = {
            "folder": folder.name,
            "node": node.name,
            "address": facts["address"],
            "machine": facts["environment"]["machine"],
            "status": None,
            "lost": "",
        }
        self._known: dict[str, Sequence[int]] = {}
        self._log_to = 0
        self._log = ""

    def start(self, words: Sequence[str], out: str, cwd: str) -> None:
        """Sends the files that an earlier command left on this machine to the node, and starts the command."""
        for name in listed(self.folder):
            content = (self.folder / name).read_bytes()
            call(self._ray, self._host, "put", name, sealed(content))
        self._ask("start", words=words, out=out, cwd=cwd)

    def interrupt(self) -> None:
        self._ask("interrupt")

    def clear(self) -> bool:
        """Prepares the node for its next command. Returns whether the node can run another command."""
        if self.row["lost"]:
            return False
        with suppress(HarnessError):
            self._ask("clear")
            return True
        return False

    def look(self) -> list[str]:
        """Fetches new files. Returns the lines that the command has printed after the previous call."""
        state = self._ask("state", log_from=self._log_to)
        self._log_to = state["log_to"]
        lines: list[str]
        *lines, self._log = (self._log + state["log"]).split("\n")
        has_ended = state["status"] is not None
        for name, about in state["files"].items():
            if self._known.get(name) != about and (has_ended or not is_unfinished(name)):
                data = call(self._ray, self._host, "read", name)
                if isinstance(
                    data, bytes
                ):  # `data` is None if the file was renamed after `state` listed it
                    put(self.folder, name, unsealed(name, data))
                    self._known[name] = about
        if has_ended:
            for name in listed(self.folder).keys() - state["files"].keys():
                inside(self.folder, name).unlink()
            self.row["status"] = state["status"]
            lines += [self._log] if self._log else []
        # The folder on the node will be removed, so the lines show the folder on this machine.
        return [line.replace(state["folder"], str(self.folder)) for line in lines]

    def lose(self, error: Exception) -> None:
        self.row["lost"] = one_line(error)

    @property
    def is_open(self) -> bool:
        return self.row["status"] is None and not self.row["lost"]

    def _ask(self, method: str, **setup: Any) -> dict[str, Any]:
        return ask(self._ray, [self._host], method, setup, ANSWER_LIMIT_S, self._gone)[0]


def folder_names(addresses: Sequence[str]) -> Sequence[str]:
    """Returns a folder name for each node: its address, with a number if several nodes share the address."""
    return [
        address if (n := addresses[:i].count(address)) == 0 else f"{address}-{n + 1}"
        for i, address in enumerate(addresses)
    ]


def _gather(channel: Channel) -> None:
    setup = channel.receive()
    if setup is None:
        return
    asker = Asker(channel)
    try:
        with (
            connected(setup["nodes"]) as ray,
            placed(ray, setup["count"], is_gone=asker.wants_no_start, gpus=setup["gpus"]) as hosts,
        ):
            facts = ask(ray, hosts, "facts", {}, ANSWER_LIMIT_S, asker.look)
            names = folder_names([each["address"] for each in facts])
            nodes = [Node(*each) for each in zip(names, hosts, facts, strict=True)]
            _run(ray, nodes, setup, asker, channel)
            channel.send("ended")
    except AskerGone:
        return


def _run(
    ray: Any, nodes: Sequence[Node], setup: Mapping[str, Any], asker: Asker, channel: Channel
) -> None:
    """Runs the commands until all of them have ended or all nodes are lost. After a stop, does not start any more
    commands.
    """
    waiting = deque(setup["shared"] or [(node.name, setup["words"]) for node in nodes])
    free, running, stops = deque(nodes), dict[NodeCommand, Node](), 0
    while True:
        while waiting and free and not asker.stops:
            node, (name, words) = free.popleft(), waiting.popleft()
            command = NodeCommand(ray, node, Path(setup["folder"], name), asker.look)
            running[command] = node
            with _losing(command):
                command.start(words, setup["out"], setup["cwd"])
        if not running:
            return
        asker.look(LOOK_EVERY_S)
        if asker.is_gone:
            raise AskerGone
        has_to_stop, stops = asker.stops > stops, asker.stops
        for command, node in [*running.items()]:
            _go_on(command, channel, has_to_stop=has_to_stop)
            if not command.is_open:
                del running[command]
                channel.send("row", **command.row)
                if command.clear():
                    free.append(node)


def _go_on(command: NodeCommand, channel: Channel, *, has_to_stop: bool) -> None:
    with _losing(command):
        if has_to_stop and command.is_open:
            command.interrupt()
        if command.is_open:
            for line in command.look():
                channel.send("log", node=command.row["node"], text=line)


@contextmanager
def _losing(command: NodeCommand) -> Iterator[None]:
    """Marks the command as lost if its node causes an error."""
    try:
        yield
    except ConfigError:  # a file name that leads out of the folder is an attack
        raise
    except (HarnessError, OSError) as e:
        command.lose(e)
