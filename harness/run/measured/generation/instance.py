"""Generates the answers of a language or speech model. Samples join at any step and leave when they are answered.

The samples in progress do not form a batch. Each sample has a separate row in the journal, with the time stamp of its
first token. A sample's stage `infer` lasts from the step that computes the prompt to the last token. The stages of
several samples overlap, because the instance generates their tokens together.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from harness.core.clock import wall_ns
from harness.loadgen.answers import AnswerRow
from harness.models.generation.backend import TokenBackend
from harness.models.generation.engine import Answering
from harness.models.steps.postprocess import Postprocess
from harness.remote import Usage
from harness.run.journal import TokensWriter
from harness.run.measured.client.dispatch import TokenResponder
from harness.run.measured.client.tokens import NOTHING_COMPARED, Tokens
from harness.run.measured.dispatch.instance import Failures
from harness.types import Batch, Dataset, show_shape

SOURCE = "the engine"
"""Source of the token counts."""


class Sample(NamedTuple):
    """One sample that LoadGen has issued."""

    sample_id: int
    """LoadGen's ID of the sample."""
    dataset_index: int
    order: int
    """Position in the order of issue."""


class Generated:
    """Counts the tokens of a run for all instances. Any thread may call `add`."""

    def __init__(self, itl_bound_ns: int | None = None) -> None:
        """itl_bound_ns: bound of the SLO on the time between tokens; None without such an SLO."""
        self._tokens = Tokens(itl_bound_ns)
        self._lock = threading.Lock()

    def add(self, stamps_ns: Sequence[int], usage: Usage, index: int) -> int:
        """Adds an answer, and returns its number of late tokens.

        stamps_ns: time stamp of each token. index: dataset index of the sample.
        """
        with self._lock:
            return self._tokens.generated(stamps_ns, usage, index)

    def summary(self) -> Mapping[str, Any]:
        """Returns `tokens` for the `ended` message. The summary contains no comparison with prompts, because a run
        without a server has only these counts.
        """
        return {**self._tokens.summary(), **NOTHING_COMPARED}


class _InWork:
    """A sample in progress, and its wall-clock time stamps in ns."""

    __slots__ = ("begun_ns", "sample", "taken_ns", "tokens_ns")

    def __init__(self, sample: Sample, taken_ns: int) -> None:
        self.sample = sample
        self.taken_ns = self.begun_ns = taken_ns
        self.tokens_ns: list[int] = []


class GeneratingInstance:
    """One copy of a model, with everything needed to generate answers. Only one thread at a time may call the methods.

    Every sample is completed, even after an error, because LoadGen would wait forever for a lost sample.
    """

    def __init__(
        self,
        backend: TokenBackend,
        dataset: Dataset,
        postprocess: Postprocess,
        responder: TokenResponder,
        writer: TokensWriter,
        row: AnswerRow,
        failures: Failures,
        generated: Generated,
        cpus: Sequence[int] = (),
        *,
        token_latencies: bool = False,
        first_tokens: bool = False,
    ) -> None:
        """token_latencies: whether LoadGen needs the number of tokens of each answer.

        first_tokens: whether LoadGen also needs each first token.
        """
        self._counts_tokens, self._tells_first = token_latencies, first_tokens
        self.cpus = cpus
        self._note = generated.add
        self._backend, self._generator = backend, backend.generator
        self._dataset, self._to_batch = dataset, dataset.batch
        self._postprocess = postprocess.answers
        self._responder = responder
        self._write = writer.answer
        self._row = row
        self._failures = failures
        self._in_work: dict[Answering, _InWork] = {}

    @property
    def room(self) -> int:
        """Number of samples that can join at the next step."""
        return self._backend.max_batch - len(self._in_work)

    @property
    def is_idle(self) -> bool:
        return not self._in_work

    def add(self, samples: Sequence[Sample]) -> None:
        """Adds samples, which join at the next step. Completes a sample as failed if it cannot start."""
        taken_ns = wall_ns()
        for sample in samples:
            work = _InWork(sample, taken_ns)
            batch: Batch | None = None
            try:
                batch = self._to_batch([sample.dataset_index])
                (one,) = self._backend.begin(batch)
            except BaseException as e:  # noqa: BLE001 - a failed sample is counted and makes the run INVALID
                self._fail([work], e, self._dataset if batch is None else None)
            else:
                self._in_work[one] = work

    def step(self) -> None:
        """Generates one token for each active sample, and completes the samples whose answers are finished."""
        if self.is_idle:
            return
        begun_ns = wall_ns()
        try:
            answered = self._generator.step()
        except BaseException as e:  # noqa: BLE001 - as in `add`
            self._generator.drop_all()
            failed, self._in_work = [*self._in_work.values()], {}
            self._fail(failed, e)
            return
        stamp_ns = wall_ns()
        begun: list[tuple[int, int]] = []  # pairs of a sample's ID and the ID of its first token
        done: list[tuple[Answering, _InWork]] = []
        for one in answered:
            work = self._in_work[one]
            if not work.tokens_ns:
                work.begun_ns = begun_ns
                begun.append((work.sample.sample_id, one.tokens[0]))
            work.tokens_ns.append(stamp_ns)
            if one.finish_reason:
                done.append((one, self._in_work.pop(one)))
        if begun and self._tells_first:
            self._responder.first_tokens(*zip(*begun, strict=True))
        if done:
            self._answer(done)

    def _answer(self, done: Sequence[tuple[Answering, _InWork]]) -> None:
        works = [work for _, work in done]
        try:
            outputs = [self._backend.answer(one) for one, _ in done]
            answers = self._postprocess(outputs, [work.sample.dataset_index for work in works])
            if answers.shape != (len(done), *self._row.shape) or answers.dtype != self._row.dtype:
                raise ValueError(self._mismatch(answers, len(done)))
            if self._counts_tokens:
                self._responder.tokens([len(one.tokens) for one, _ in done])
            postprocessed_ns = wall_ns()
            completed_ns = self._responder.complete([w.sample.sample_id for w in works], answers)
        except BaseException as e:  # noqa: BLE001 - as in `add`
            self._fail(works, e)
            return
        for one, work in done:
            usage = Usage(len(one.prompt) or None, len(one.tokens), SOURCE, one.finish_reason)
            late = self._note(work.tokens_ns, usage, work.sample.dataset_index)
            self._write(
                work.sample.order,
                work.sample.dataset_index,
                0,
                work.taken_ns,
                work.begun_ns,
                work.tokens_ns[-1],
                postprocessed_ns,
                completed_ns,
                work.tokens_ns[0],
                len(one.tokens),
                late,
            )

    def _fail(
        self, works: Sequence[_InWork], error: BaseException, dataset: Dataset | None = None
    ) -> None:
        """Completes samples as failed. dataset: the dataset if its batch() raised the error; None if another part
        raised the error.
        """
        self._failures.add(error, len(works), dataset=dataset)
        if self._tells_first:  # LoadGen refuses an answer before its first token
            silent = [work.sample.sample_id for work in works if not work.tokens_ns]
            if silent:
                self._responder.first_tokens(silent, [None] * len(silent))
        now_ns = wall_ns()
        completed_ns = self._responder.complete_empty([work.sample.sample_id for work in works])
        for work in works:
            sample, stamps = work.sample, (work.taken_ns, work.begun_ns, now_ns, now_ns)
            self._write(sample.order, sample.dataset_index, 1, *stamps, completed_ns, 0, 0, 0)

    def _mismatch(self, answers: Any, count: int) -> str:
        return (
            f"the model's answers are {answers.dtype} of shape {show_shape(answers.shape)}, "
            f"but should be {self._row.dtype} of shape {show_shape((count, *self._row.shape))}"
        )
