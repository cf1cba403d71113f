"""Processes a batch with one frame per stream on one copy of the model, and writes its journal row."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from harness.core.clock import wall_ns
from harness.loadgen.binding import Complete
from harness.models.sequences.backend import SequenceBackend
from harness.models.steps.postprocess import NOT_FINITE, Postprocess, wrong_count
from harness.run.journal import Writer
from harness.run.measured.dispatch.instance import Failures
from harness.run.measured.streams.playing import Playing, Streams


class StreamInstance:
    """One copy of the model. Only one thread at a time may call the methods. cpus: see `Instance`."""

    def __init__(
        self,
        backend: SequenceBackend,
        streams: Streams,
        postprocess: Postprocess,
        complete: Complete,
        writer: Writer,
        failures: Failures,
        cpus: Sequence[int] = (),
    ) -> None:
        """postprocess: the postprocessing steps of one frame. complete: receives the sequences that have ended."""
        self.cpus = cpus
        self._backend, self._streams = backend, streams
        self._postprocess = postprocess
        self._complete = complete
        self._write: Callable[..., None] = writer.batch
        self._failures = failures

    def answer(self, queries: Sequence[int], taken_ns: int) -> None:
        """Answers the frames of these adjacent queries, which belong to different streams.

        taken_ns: wall-clock time at which the frames were taken.
        """
        gathered = inferred = taken_ns
        indices, failed = [0] * len(queries), 0
        try:
            playing = [self._streams.frame_of(query) for query in queries]
            indices = [one.sample for one in playing]
            frames, states = [one.frame for one in playing], [one.states for one in playing]
            gathered = inferred = wall_ns()
            outputs, following = self._backend.advance(frames, states)
            inferred = wall_ns()
            answers = np.asarray(self._postprocess.answers(outputs, indices))
            self._check(answers, playing)
            ended = self._streams.move_on(playing, answers, following)
            postprocessed = completed = wall_ns()
            if ended:
                self._complete(ended)
        except BaseException as e:  # noqa: BLE001 - a failed batch is counted and makes the run INVALID
            failed = 1
            self._failures.add(e, len(queries))
            self._streams.drop(queries)
            postprocessed = completed = wall_ns()
        else:
            if self._postprocess.not_finite(outputs, answers):
                failed = 1
                self._failures.add(ValueError(NOT_FINITE), len(queries))
        self._write(
            queries[0], indices, failed, taken_ns, gathered, inferred, postprocessed, completed
        )

    @staticmethod
    def _check(answers: Any, playing: Sequence[Playing]) -> None:
        if len(answers) != len(playing):
            raise ValueError(wrong_count(len(answers), len(playing)))
