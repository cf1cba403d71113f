"""Processes batches without LoadGen, through the dataset, backend and postprocessing of one instance."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from harness.errors import ConfigError, PluginUnavailable
from harness.loadgen.answers import AnswerRow, Answers
from harness.machine.threads import run_on
from harness.models.steps.postprocess import NOT_FINITE, Postprocess, wrong_count
from harness.run.measured.dispatch.instance import raised_in_batch
from harness.types import Backend, Batch, Dataset, HasOutputs, show_shape


def batch_of(dataset: Dataset, indices: Sequence[int]) -> Batch:
    """Returns the batch that the dataset makes from these samples. Raises PluginUnavailable with the dataset's name if
    the dataset raises an error.
    """
    try:
        return dataset.batch(indices)
    except (Exception, SystemExit) as e:
        raise PluginUnavailable(raised_in_batch(dataset, e)) from e


class Answerer(NamedTuple):
    """One instance, with its dataset and postprocessing. The methods do not catch the errors that plug-ins raise."""

    backend: Backend
    dataset: Dataset
    postprocess: Postprocess
    cpus: Sequence[int] = ()
    """Logical processors on which the instance runs; () for any."""

    def answer(self, indices: Sequence[int]) -> Answers:
        batch = batch_of(self.dataset, indices)
        if batch.size != len(indices):
            raise ConfigError(
                f"the dataset's batch of {len(indices)} samples has the size {batch.size!r}"
            )
        outputs = self.backend.infer(batch)
        answers = self.postprocess.answers(outputs, indices)
        self._check(answers)
        if self.postprocess.not_finite(outputs, answers):
            raise ConfigError(
                f"{NOT_FINITE}: correct the model, or pass a --dataset for which the model has answers"
            )
        if len(answers) != len(indices):
            raise ConfigError(wrong_count(len(answers), len(indices), self._name()))
        return answers

    def _check(self, answers: Answers) -> None:
        """Raises ConfigError if the batch gets one answer instead of one per sample, or if answers are not numbers."""
        if answers.shape == ():
            raise ConfigError(
                f"{self._output()} of the model has the shape [], which has no batch: "
                "state `batch_axis: none` for it in a manifest to answer each sample alone, "
                "or export the model with a batch dimension"
            )
        if answers.dtype.hasobject:
            raise ConfigError(
                f"{self._output()} of the model contains strings or other objects, but answers must be "
                "numbers: convert them in a manifest with the postprocessing step `hook` "
                "(--model FILE.yaml, docs/manifest.md)"
            )

    def no_numbers(self, row: AnswerRow) -> str:
        """Returns the error message for answers that contain no numbers."""
        shape = show_shape(("n", *row.shape))
        return (
            f"{self._output()} of the model has no numbers for any sample of the warm-up ({row.dtype} of shape "
            f"{shape}): correct the model or the manifest's postprocessing, or pass a --dataset for which the "
            "model has answers"
        )

    def _name(self) -> str | None:
        """Returns the name of the output that contains the answers: the manifest's output if set, otherwise the first
        output.
        """
        names = self.backend.outputs() if isinstance(self.backend, HasOutputs) else ()
        return self.postprocess.output or next(iter(names), None)

    def _output(self) -> str:
        name = self._name()
        return f"output {name!r}" if name is not None else "the output"

    def time_ns(self, indices: Sequence[int]) -> int:
        start_ns = time.monotonic_ns()
        self.answer(indices)
        return time.monotonic_ns() - start_ns


def run_in_threads(answerers: Sequence[Answerer], work: Callable[[int], None]) -> None:
    """Calls work(i) for all instances at the same time, each call on the processors of its instance.

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
