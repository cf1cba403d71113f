"""A model that runs in this process, in batches."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import starmap
from typing import Any

from harness.core.registry import plugin
from harness.loadgen.binding import responder_for
from harness.loadgen.plan import LoadPlan
from harness.models.opened.loading import described, open_backends, plain
from harness.run.measured.answerer import Answerer
from harness.run.measured.dispatch.choose import NAMES, dispatcher_class, make_dispatcher
from harness.run.measured.dispatch.instance import Failures, Instance
from harness.run.measured.dispatch.shared import SharedDispatcher
from harness.run.measured.dispatch.threads import Dispatcher, QueuedDispatcher
from harness.run.measured.placement.fewer_threads import LOAD_LIMIT_S
from harness.run.measured.placement.wide import Wide
from harness.run.measured.preparation import Preparation
from harness.run.measured.systems.one_model import OneModel
from harness.run.measured.systems.system import Dispatch, Progress, RunParts
from harness.types import Backend, HasUse


class LocalModel(OneModel):
    """Instances of a model. Each instance processes one batch at a time."""

    _wide: Wide | None = None
    _dispatcher: type[Dispatcher]
    """Dispatcher class; set by `connect`."""
    _was_reopened = False

    def open(self, stack: ExitStack, progress: Progress) -> Mapping[str, Any]:
        message = super().open(stack, progress)
        if self._group.may_drop_threads and not self.separate and self.load_s[0] <= LOAD_LIMIT_S:
            self.reopen = self._reopened
        return message

    def _reopened(self, threads: int) -> Backend:
        self._instances.close()
        self._was_reopened = True
        group = self._group._replace(threads=threads)
        (backend,) = open_backends(
            self.config, self._setup.model, self._path, group, self._instances
        )
        self.answerers = [self.answerers[0]._replace(backend=backend)]
        return backend

    def described_again(self) -> Mapping[str, Any] | None:
        if not self._was_reopened:
            return None
        backend = self.answerers[0].backend
        about = described(backend, self.config.backend, self.dataset, self._setup.dataset)
        found: Mapping[str, Any] = about["backend"]
        return found

    def connect(self, plan: LoadPlan, preparation: Preparation) -> None:
        """Chooses the dispatcher, and opens the wide instance if the dispatcher is a QueuedDispatcher."""
        group = self._group
        self._dispatcher = dispatcher_class(
            self._setup.dispatch, self.config, group.instances, preparation.slowest_ns
        )
        if not group.wide or self._dispatcher is not QueuedDispatcher:
            return
        self._wide = Wide(group, self.config, self._setup.model, self._path)
        usual, sample = preparation.answerers[0], preparation.loaded[0]
        self._wide.open(usual, self.load_s[0], sample, plan, preparation.curve, self._stack)
        preparation.wide = self._wide.answerer

    def summary(self, _failures: Failures) -> Mapping[str, Any]:
        backends = [each.backend for each in self.answerers]
        with plugin(f"backend {self.config.backend!r}: used()"):
            used = [plain(each.used()) for each in backends if isinstance(each, HasUse)]
        found: dict[str, Any] = {"backend": _together(used)} if used else {}
        return found | ({"elastic": self._wide.about()} if self._wide is not None else {})

    def dispatch(self, parts: RunParts) -> Dispatch:
        plan, preparation, journal, failures, complete = parts
        row = preparation.row

        def instance(number: int, each: Answerer) -> Instance:
            responder = responder_for(self.max_batch, row, complete)
            return Instance(
                *(each.backend, each.dataset, each.postprocess, responder),
                *(journal.writer(number), row, failures, each.cpus),
            )

        answerers, wide = preparation.answerers, preparation.wide
        if wide is not None:
            places = zip(answerers, self._group.wide, strict=True)
            answerers = [each._replace(cpus=(cpu,)) for each, cpu in places]
        instances = list(starmap(instance, enumerate(answerers)))
        dispatcher = make_dispatcher(
            self._dispatcher,
            self.config,
            plan,
            instances,
            self.max_batch,
            journal,
            curve=preparation.curve,
            lengths=preparation.lengths,
            wide=instance(len(instances), wide) if wide is not None else None,
        )
        # With a SharedDispatcher, LoadGen's thread runs the first instance.
        issuer = instances[0].cpus if self._dispatcher is SharedDispatcher else self._group.issuer
        return Dispatch(dispatcher, NAMES[type(dispatcher)], issuer)


def _together(used: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Merges the summaries of all instances into one, which contains the maximum of each number and all texts."""
    merged: dict[str, Any] = {}
    for name in dict.fromkeys(name for each in used for name in each):
        values = [each[name] for each in used if name in each]
        texts = dict.fromkeys(value for value in values if isinstance(value, str) and value)
        is_text = all(isinstance(value, str) for value in values)
        merged[name] = "; ".join(texts) if is_text else max(values)
    return merged
