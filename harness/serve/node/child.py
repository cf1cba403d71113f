"""Entry point of a node that another process on this machine starts; the node ends together with the other process.

receives   setup       the run's configuration, and the processors, name and address of the node
sends      listening   the node's address     (or `error`)
"""

import os
import signal
import threading
from contextlib import ExitStack
from typing import NoReturn

from harness.core.child import Channel, serve
from harness.core.config.parse import Endpoint
from harness.core.config.run_config import from_plain
from harness.serve.listening import BACKLOG, bound
from harness.serve.loop import Loop
from harness.serve.node.job import answering, open_node


def main() -> NoReturn:
    serve(_node)


def _node(channel: Channel) -> None:
    message = channel.receive()
    if message is None:
        return
    if message["cpus"]:
        os.sched_setaffinity(0, message["cpus"])
    with ExitStack() as stack:
        listening = stack.enter_context(bound(Endpoint(message["host"], 0)))
        opened = open_node(from_plain(message["config"]), message["name"], stack)
        listening.listen(BACKLOG)
        with answering(opened, listening) as loop:
            channel.send("listening", host=message["host"], port=loop.address[1])
            signal.signal(signal.SIGTERM, lambda *_: loop.stop())
            threading.Thread(target=_end_with, args=(channel, loop), daemon=True).start()
            loop.run()


def _end_with(channel: Channel, loop: Loop) -> None:
    """Stops the loop when the other process closes the channel or ends."""
    while channel.receive() is not None:
        pass
    loop.stop()
