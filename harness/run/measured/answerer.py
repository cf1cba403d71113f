"""Answers batches without LoadGen: dataset, backend and postprocessing of one instance."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from harness.errors import ConfigError
from harness.loadgen.answers import Answers
from harness.machine.threads import run_on
from harness.models.steps.postprocess import Postprocess, wrong_count
from harness.types import Backend, Dataset


class Answerer(NamedTuple):
    """One instance. Its methods raise whatever the plug-ins raise."""

    backend: Backend
    dataset: Dataset
    postprocess: Postprocess
    cpus: Sequence[int] = ()
    """The instance's own logical processors, () for any."""

    def answer(self, indices: Sequence[int]) -> Answers:
        outputs = self.backend.infer(self.dataset.batch(indices))
        answers = self.postprocess.answers(outputs, indices)
        if self.postprocess.has_nan(outputs, answers):
            raise ValueError("the model's outputs hold NaN")
        if len(answers) != len(indices):
            raise ConfigError(wrong_count(len(answers), len(indices)))
        return answers

    def time_ns(self, indices: Sequence[int]) -> int:
        start_ns = time.monotonic_ns()
        self.answer(indices)
        return time.monotonic_ns() - start_ns


def run_in_threads(answerers: Sequence[Answerer], work: Callable[[int], None]) -> None:
    """Calls work(i) for every instance at the same time, each on its processors.

    Raises the first error.
    """
    errors: list[BaseException] = []

    def run(i: int) -> None:
        try:
            run_on(answerers[i].cpus)
            work(i)
        except BaseException as e:  # noqa: BLE001 - raised again below
            errors.append(e)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(answerers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
