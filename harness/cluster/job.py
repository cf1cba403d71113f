"""Executes one run on this machine, on the nodes in --nodes, or with the load from --load-hosts.

All verbs that measure a run call this module. The package `run` handles one measured process, and never imports
`cluster`.
"""

from typing import Any

from harness.cluster.load_hosts.hosts_run import HostsRun
from harness.cluster.nodes import ready_nodes
from harness.core.config.run_config import RunConfig
from harness.results.outcome import Finished
from harness.run.supervisor import job


def execute(config: RunConfig, **shown: Any) -> int:
    """Calls harness.run.supervisor.job.execute. Starts the nodes before the run, and ends the nodes after the run."""
    if config.nodes is None:
        return job.execute(config, **_performance_run(config), **shown)
    with ready_nodes(config) as ready:
        return job.execute(ready, **shown)


def measure(config: RunConfig, **how: Any) -> Finished:
    """Calls harness.run.supervisor.job.measure with the same options. Does not support nodes."""
    return job.measure(config, **_performance_run(config), **how)


def _performance_run(config: RunConfig) -> dict[str, Any]:
    """Returns the argument that `execute` and `measure` require for --load-hosts."""
    return {} if config.load_hosts is None else {"performance_run": HostsRun}
