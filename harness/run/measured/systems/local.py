"""A model that runs in this process, in batches."""

from collections.abc import Mapping, Sequence
from typing import Any

from harness.core.registry import plugin
from harness.loadgen.binding import Complete, responder_for
from harness.loadgen.plan import LoadPlan
from harness.models.opened.loading import plain
from harness.run.journal import Journal
from harness.run.measured.dispatch.choose import NAMES, dispatcher_class, make_dispatcher
from harness.run.measured.dispatch.instance import Failures, Instance
from harness.run.measured.dispatch.shared import SharedDispatcher
from harness.run.measured.preparation import Preparation
from harness.run.measured.systems.one_model import OneModel
from harness.run.measured.systems.system import Dispatch
from harness.types import HasUse


class LocalModel(OneModel):
    """Instances of a model, each answering a batch at a time."""

    def summary(self, _failures: Failures) -> Mapping[str, Any]:
        backends = [each.backend for each in self.answerers]
        with plugin(f"backend {self.config.backend!r}: used()"):
            used = [plain(each.used()) for each in backends if isinstance(each, HasUse)]
        return {"backend": _together(used)} if used else {}

    def dispatch(
        self,
        plan: LoadPlan,
        preparation: Preparation,
        journal: Journal,
        failures: Failures,
        complete: Complete | None,
    ) -> Dispatch:
        row = preparation.row
        instances = [
            Instance(
                each.backend,
                each.dataset,
                each.postprocess,
                responder_for(self.max_batch, row, complete),
                journal.writer(i),
                row,
                failures,
                each.cpus,
            )
            for i, each in enumerate(preparation.answerers)
        ]
        how, slowest_ns = self._setup.dispatch, preparation.slowest_ns
        cls = dispatcher_class(how, self.config, len(instances), slowest_ns)
        dispatcher = make_dispatcher(
            cls,
            self.config,
            plan,
            instances,
            self.max_batch,
            journal,
            curve=preparation.curve,
            lengths=preparation.lengths,
        )
        # Under a shared dispatcher LoadGen's thread is the first instance's.
        issuer = instances[0].cpus if cls is SharedDispatcher else self._group.issuer
        return Dispatch(dispatcher, NAMES[cls], issuer)


def _together(used: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """One summary of all instances: the largest of each number, and all texts."""
    merged: dict[str, Any] = {}
    for name in dict.fromkeys(name for each in used for name in each):
        values = [each[name] for each in used if name in each]
        texts = dict.fromkeys(value for value in values if isinstance(value, str) and value)
        is_text = all(isinstance(value, str) for value in values)
        merged[name] = "; ".join(texts) if is_text else max(values)
    return merged
