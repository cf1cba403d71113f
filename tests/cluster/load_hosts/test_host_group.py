"""A run from several load hosts continues after the coordinator's own queries end."""

import os
from dataclasses import replace
from pathlib import Path

from harness.cluster.load_hosts.host_group import Host, HostGroup
from harness.cluster.load_hosts.thinning import witness_plan
from harness.results.load_hosts import witness
from harness.results.load_hosts.witness import COORDINATOR
from harness.run.journal import RowKind
from harness.run.supervisor.completions import NewRows
from harness.run.supervisor.measured_process import MeasuredProcess
from harness.run.supervisor.watchdog import Watchdog
from tests.builders.support import plan
from tests.cluster.load_hosts.test_witness import honest, run_of

STATUS = 7


def main() -> None:
    """Entry point of the witness's process, which dies at once."""
    os._exit(STATUS)


def test_a_witness_that_dies_is_a_doubt_and_does_not_end_the_run(tmp_path: Path) -> None:
    """Bug: the run was INVALID, as if a load host had been lost."""
    own = witness_plan(plan("server", load_hosts=1), tmp_path)
    with MeasuredProcess({}, tmp_path / "log", __name__) as process:
        rows = NewRows(process.start(own, 1, RowKind.REPLY), own)
        lost = Host(COORDINATOR, process, tmp_path, watchdog=Watchdog(rows))
        group = HostGroup([], tmp_path, lost)
        while not lost.lost:
            group._look_at(lost, 60.0, 60.0, lambda _done, _total: None, 0.1)
        assert (group.pids, group.was_killed) == ([], False)
        told = group.witnessed()
    assert told is not None
    assert told["answered"] == 0
    run = run_of(1, 20, honest)
    (doubt,) = witness.doubts(replace(run, witness=told))
    assert doubt.code == "load-host-unwitnessed"
    assert f"exited with status {STATUS} in the run: it printed nothing" in doubt.text
    assert "only 0 answers can be compared" in doubt.text
