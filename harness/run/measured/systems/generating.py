"""A language or speech model that runs in this process and generates its answers token by token."""

from collections.abc import Mapping
from typing import Any

from harness.loadgen.binding import responder_for
from harness.loadgen.scenario import scenario_named
from harness.models.generation.backend import TokenBackend
from harness.run.measured.dispatch.instance import Failures
from harness.run.measured.generation.dispatch import generating_dispatcher
from harness.run.measured.generation.instance import Generated, GeneratingInstance
from harness.run.measured.systems.one_model import OneModel
from harness.run.measured.systems.system import Dispatch, RunParts
from harness.run.setup import Setup


class GeneratingModel(OneModel):
    """Instances of a model that generates tokens. Sequences may join and leave each instance at any time."""

    no_schedule = "a model that answers token by token forms no batches"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        itl = (slo.bound_ns for slo in self.config.slo if slo.of == "itl")
        self._generated = Generated(next(itl, None))

    def dispatch(self, parts: RunParts) -> Dispatch:
        plan, preparation, journal, failures, complete = parts
        row, with_tokens = preparation.row, plan.token_latencies
        instances = []
        for i, each in enumerate(preparation.answerers):
            assert isinstance(each.backend, TokenBackend)
            instances.append(
                GeneratingInstance(
                    each.backend,
                    each.dataset,
                    each.postprocess,
                    responder_for(self.max_batch, row, complete),
                    journal.tokens_writer(i),
                    row,
                    failures,
                    self._generated,
                    each.cpus,
                    token_latencies=with_tokens,
                    first_tokens=with_tokens and not scenario_named(plan.scenario).all_at_once,
                )
            )
        dispatcher, name = generating_dispatcher(self._setup.dispatch, instances, journal.issuer())
        return Dispatch(dispatcher, name, self._group.issuer)

    def summary(self, _failures: Failures) -> Mapping[str, Any]:
        return {"tokens": self._generated.summary()}
