"""Entry point of the process that starts --node-count nodes on a Ray cluster for a run.

receives   setup       ray://HOST:PORT, number of nodes, the run's configuration, the transport of the batches
sends      listening   the addresses of the nodes, or of tunnels to them     (or `error`)

The process ends the nodes when its parent process closes the channel. If both processes are killed, the cluster ends
the nodes.
"""

import select
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NoReturn

from harness.cluster.ray.client import AskerGone, ask, connected, placed, tunnel_ends
from harness.cluster.ray.tunnel import LOOPBACK, tunnels
from harness.core.child import Channel, serve

READY_LIMIT_S = 590.0
"""Time that the nodes may take to become ready. The limit is shorter than the parent process's limit, so that this
process can still report which node is late.
"""


def main() -> NoReturn:
    serve(_place)


def _place(channel: Channel) -> None:
    message = channel.receive()
    if message is None:
        return

    end = select.poll()  # unlike `select`, `poll` accepts descriptors above 1023
    end.register(channel, select.POLLIN)

    def is_gone() -> (
        bool
    ):  # the channel becomes readable only when it is closed, because no message follows `setup`
        return bool(end.poll(0))

    in_calls = message["transport"] == "actor"
    host = LOOPBACK if in_calls else ""
    setup = {"config": message["config"], "cwd": message["cwd"], "host": host}
    gpus = message["config"].get("device", "cpu") != "cpu"
    try:
        with (
            connected(message["nodes"]) as ray,
            placed(ray, message["count"], is_gone=is_gone, gpus=gpus) as hosts,
            ExitStack() as stack,
        ):
            answers = ask(ray, hosts, "serve", setup, READY_LIMIT_S, is_gone)
            addresses: Sequence[str] = [
                address for each in answers for address in each["addresses"]
            ]
            if in_calls:
                ports = [int(address.rpartition(":")[2]) for address in addresses]
                addresses = stack.enter_context(tunnels(tunnel_ends(ray, hosts, ports)))
            channel.send("listening", addresses=addresses)
            channel.receive()  # blocks until the run has ended
    except AskerGone:
        return
