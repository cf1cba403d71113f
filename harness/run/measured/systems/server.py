"""A model on one or more servers, which receive requests over connections."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from harness.core.registry import plugin
from harness.loadgen.plan import LoadPlan
from harness.models.opened.remote import check_hosts
from harness.run.measured.client.session import Session
from harness.run.measured.dispatch.instance import Failures
from harness.run.measured.preparation import Preparation
from harness.run.measured.systems.one_model import OneModel
from harness.run.measured.systems.system import Dispatch, RunParts
from harness.types import Backend
from harness.wire.remote_backend import RemoteBackend


class RemoteModel(OneModel):
    """The servers of --url."""

    no_schedule = "a server answers, and has its own queue"
    _session: Session

    @property
    def _takes_steps(self) -> bool:
        # With --qdl, the reply is the answer, whatever the server names its output.
        return not self.config.qdl

    def _backends(self, stack: ExitStack) -> Sequence[Backend]:
        backends = super()._backends(stack)
        if isinstance(backends[0], RemoteBackend):
            # Check the first server before the warm-up; the session checks all servers.
            check_hosts(self.config, [backends[0].peer()])
        return backends

    def connect(self, plan: LoadPlan, preparation: Preparation) -> None:
        self._session = self._new_session(preparation)
        with plugin(f"requests to {', '.join(self.config.url)}"):
            if plan.probe_rate:
                self._session.add_probes(plan.probe_rate)
            self._session.rehearse(preparation.row, preparation.loaded)

    def _new_session(self, preparation: Preparation) -> Session:
        first, connections = preparation.answerers[0], self._group.connections
        return Session(self.config, first, connections, self.max_batch, preparation.slowest_ns)

    def dispatch(self, parts: RunParts) -> Dispatch:
        inline = self._setup.dispatch == "inline"
        dispatcher = self._session.dispatcher(
            parts.plan, inline, parts.journal, parts.preparation.row, parts.failures, parts.complete
        )
        name = "remote, inline" if inline else "remote, direct"
        return Dispatch(dispatcher, name, self._group.issuer)

    def before_load(self) -> Callable[[Sequence[int]], None]:
        return self._session.prepare

    def sut_name(self) -> Callable[[], str] | None:
        nodes = self._session.nodes
        return nodes.sut_name if nodes is not None else None

    def begin_hold(self) -> None:
        self._session.count_anew()

    def summary(self, failures: Failures) -> Mapping[str, Any]:
        client = self._session.summary(failures, self.in_order() if self.in_order else None)
        self._session.write(self._setup.outdir)
        self._session.close()
        return {"client": client}
