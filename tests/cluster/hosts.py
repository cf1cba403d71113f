"""Nodes that a test starts by hand, as a user would, and node processes that a command leaves behind."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.builders.serving import Served, serving

SLEEPING = f"{Path(__file__).with_name('sleeping.py')}:Sleeping"


@contextmanager
def hosts(*words: tuple[str, ...], model: str = "digits") -> Iterator[list[Served]]:
    """Starts a host for each tuple of words."""
    with ExitStack() as stack:
        yield [stack.enter_context(serving(model, "--node", *own)) for own in words]


def names(served: list[Served]) -> str:
    """Returns the value for --nodes."""
    return ",".join(f"127.0.0.1:{each.port}" for each in served)


def node_processes(parent: int) -> list[int]:
    """Returns the ids of node processes that a command started and that still exist."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            is_node = b"harness.serve.node.child" in path.read_bytes()
            words = (path.parent / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if is_node and int(words[1]) == parent and words[0] != "Z":
            found.append(int(path.parent.name))
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
