"""Opens the port of a load host, and lends it to runs until a signal ends it."""

from harness.cluster.load_hosts.agent import Agent
from harness.core.config.parse import Endpoint
from harness.core.console import say, show
from harness.serve.job import is_loopback, stopping
from harness.serve.listening import BACKLOG, bound, in_use


def serve(listen: Endpoint, allowed: frozenset[str]) -> int:
    """Returns the exit status. allowed: environment variables that a run may send to a server. Raises a ConfigError where the address cannot be used."""
    with bound(listen) as listening:
        with in_use(listen):
            listening.listen(BACKLOG)
        address, port, *_ = listening.getsockname()
        at = listen._replace(port=port)
        if not is_loopback(address):
            say(
                f"whoever reaches {at} can have this machine load servers, and send them its data: there is no password and no encryption"
            )
        agent = Agent(listening, allowed)
        with stopping(agent):
            show(f"load host on {at}")
            agent.run()
    return 0
