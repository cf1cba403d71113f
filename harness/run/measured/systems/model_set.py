"""A set of models in this process. Each model is loaded when a query needs it, and is kept in a cache."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from harness.loadgen.binding import responder_for
from harness.models.cache.model_set import ModelSet
from harness.run.measured.answerer import Answerer
from harness.run.measured.dispatch.choose import NAMES
from harness.run.measured.dispatch.instance import Failures
from harness.run.measured.dispatch.threads import QueuedDispatcher
from harness.run.measured.models.instance import OF_THE_MODELS, SetInstance, cache_summary
from harness.run.measured.models.opening import Opened, open_set
from harness.run.measured.systems.system import Dispatch, Progress, RunParts, System


class SetOfModels(System):
    """The models of --models."""

    no_schedule = "a cache of models answers, and its times depend on its content"
    no_probe = "each model of the set has different inputs"
    _opened: Opened

    def open(self, stack: ExitStack, progress: Progress) -> Mapping[str, Any]:
        models, group = self._setup.model, self._group
        assert isinstance(models, ModelSet)
        self._opened = opened = open_set(self.config, models, group, stack, progress)
        self.load_s, self.slowest_ns = opened.load_s, opened.slowest_ns
        # The type is `Any`, because the batches of this backend also contain a model number.
        backend: Any = opened.backend
        dataset: Any = opened.dataset
        self.dataset, self.held = dataset, len(opened.dataset)
        self.answerers = [Answerer(backend, dataset, OF_THE_MODELS)] * group.instances
        of_an_instance = -(-opened.resident_bytes // group.instances)
        return self._loaded_message(backend, (), None, of_an_instance)

    def dispatch(self, parts: RunParts) -> Dispatch:
        """Makes a QueuedDispatcher, so that LoadGen's thread never loads a model."""
        _, preparation, journal, failures, complete = parts
        instances = [
            SetInstance(
                self._opened.models,
                self._opened.dataset,
                responder_for(1, preparation.row, complete),
                journal.cached_writer(i),
                failures,
            )
            for i in range(self._group.instances)
        ]
        dispatcher = QueuedDispatcher(instances, 1, journal.issuer())
        return Dispatch(dispatcher, NAMES[QueuedDispatcher], self._group.issuer)

    def before_load(self) -> Callable[[Sequence[int]], None]:
        return lambda _indices: self._opened.models.reset()

    def summary(self, _failures: Failures) -> Mapping[str, Any]:
        return {"models": cache_summary(self._opened.models)}
