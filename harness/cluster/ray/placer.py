"""Entry of the process that has a node of a Ray cluster serve a run, for each of --node-count.

receives   setup       ray://HOST:PORT, how many nodes, the run's configuration, what carries the batches
sends      listening   the addresses of the nodes, or of tunnels to them     (or `error`)

It ends the nodes when the other process closes its end, and is killed with it; then the cluster ends them.
"""

import select
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NoReturn

from harness.cluster.ray.client import AskerGone, ask, connected, placed, tunnel_ends
from harness.cluster.ray.tunnel import LOOPBACK, tunnels
from harness.core.child import Channel, serve

READY_LIMIT_S = 590.0
"""Less than the time after which the other process gives up: this one says which node is late."""


def main() -> NoReturn:
    serve(_place)


def _place(channel: Channel) -> None:
    message = channel.receive()
    if message is None:
        return

    end = select.poll()  # which takes a descriptor of any number, as `select` does not
    end.register(channel, select.POLLIN)

    def is_gone() -> bool:  # after `setup` nothing is sent: what can be read is the end
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
            channel.receive()  # blocks until the run is over
    except AskerGone:
        return
