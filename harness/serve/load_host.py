"""Opens the port of a load host, and serves runs until a signal arrives."""

from harness.cluster.load_hosts.agent import Agent
from harness.core.config.parse import Endpoint
from harness.core.console import say, show
from harness.serve.job import is_loopback, stopping
from harness.serve.listening import BACKLOG, bound, in_use


def serve(listen: Endpoint, allowed: frozenset[str]) -> int:
    """Serves until a signal arrives. Returns the exit status. Raises ConfigError if the address cannot be used.

    allowed: names of environment variables that a run may send to a server.
    """
    with bound(listen) as listening:
        with in_use(listen):
            listening.listen(BACKLOG)
        address, port, *_ = listening.getsockname()
        at = listen._replace(port=port)
        if not is_loopback(address):
            say(
                f"anyone who reaches {at} can make this machine load servers and send its data to "
                "them, without a password or encryption"
            )
        agent = Agent(listening, allowed)
        with stopping(agent):
            show(f"load host on {at}")
            agent.run()
    return 0
