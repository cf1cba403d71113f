"""Executes the performance run with the load from the hosts in --load-hosts."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness.cluster.load_hosts.host_group import Host, HostGroup
from harness.cluster.load_hosts.remote_process import RemoteProcess
from harness.cluster.load_hosts.thinning import parts_of
from harness.core.codes import Reason
from harness.core.config.parse import Endpoint
from harness.errors import HarnessError, refuse
from harness.loadgen.plan import Calibration, Loaded, LoadPlan
from harness.results.evidence.evidence import Evidence
from harness.results.load_hosts.witness import COORDINATOR
from harness.run.supervisor.loadgen_run import LoadGenRun
from harness.run.supervisor.measured_process import Measured
from harness.run.supervisor.watchdog import Watchdog


class HostsRun(LoadGenRun):
    """A performance run with several load hosts."""

    _group: HostGroup

    @contextmanager
    def _process(self) -> Iterator[Measured]:
        load_hosts = self._findings.config.load_hosts
        assert load_hosts is not None
        with ExitStack() as stack:
            witness = None
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="mlperf-load-hosts-")))
            if load_hosts.addresses:
                hosts = self._remote(stack, folder, load_hosts.addresses)
                witness = self._local(stack, folder, COORDINATOR)
            else:
                numbers = range(1, load_hosts.count + 1)
                hosts = [self._local(stack, folder, f"local-{n}") for n in numbers]
            self._group = HostGroup(hosts, self.outdir, witness)
            self._with.host.pids = self._group.pids
            yield self._group

    def _local(self, stack: ExitStack, folder: Path, name: str) -> Host:
        outdir = folder / name
        outdir.mkdir()
        process = self._spawn(stack, outdir, f"{self._role}-{name}")
        return Host(name, process, outdir)

    def _remote(self, stack: ExitStack, folder: Path, addresses: Sequence[Endpoint]) -> list[Host]:
        """Connects to the hosts. If hosts do not respond or refuse the run, raises a single ConfigError that lists
        them.
        """
        hosts, problems = [], []
        for n, address in enumerate(addresses, 1):
            outdir = folder / str(n)
            outdir.mkdir()
            log = self._keeper.folder.path / f"{self._role}-host-{n}.log"
            try:
                process = RemoteProcess(
                    address, self._setup(outdir), outdir, log, self._progress.show_step
                )
            except HarnessError as e:
                problems.append(str(e))
                continue
            hosts.append(Host(str(address), stack.enter_context(process), outdir))
        refuse(problems)
        return hosts

    def _plan(self, loaded: Loaded, calibration: Calibration) -> LoadPlan:
        plan = super()._plan(loaded, calibration)
        parts_of(plan, self._group.names)  # this call raises ConfigError before any host starts
        return plan

    def _evidence(
        self,
        process: Measured,
        plan: LoadPlan,
        ended: dict[str, Any] | None,
        failure: Reason | None,
        watchdog: Watchdog,
    ) -> Evidence:
        evidence = super()._evidence(process, plan, ended, failure, watchdog)
        return replace(evidence, load_hosts=self._group.summary(), witness=self._group.witnessed())
