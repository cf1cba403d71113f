"""The dispatchers for language models answer each sample once, as if it were alone, with the times of its tokens."""

import os
import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from harness.core.clock import wall_ns
from harness.loadgen.answers import AnswerRow
from harness.models.generation.backend import GeneratingBackend
from harness.models.manifest.lookup import load_model
from harness.models.steps.postprocess import postprocessor
from harness.results.evidence.stages import covered_ns
from harness.run.journal import Journal, RowKind
from harness.run.measured.dispatch.instance import Failures
from harness.run.measured.generation.dispatch import generating_dispatcher
from harness.run.measured.generation.instance import Generated, GeneratingInstance
from harness.types import BackendSetup, Batch

pytest.importorskip("onnxruntime")

MODEL = load_model("tinylm")
ROWS = 4
REQUESTS = [
    f'{{"prompt":"{task} {digits}="}}'.encode()
    for task in ("sort", "reverse")
    for digits in (402, 98765, 3141592653, 111222)
]
RIGHT = ["024", "56789", "1123345569", "111222", "204", "56789", "3562951413", "222111"]
BAD = b'{"prompt":[99]}'


class Prompts:
    """A dataset with REQUESTS, followed by a request that no model accepts."""

    def batch(self, indices: Sequence[int]) -> Batch:
        rows = [REQUESTS[i] if i < len(REQUESTS) else BAD for i in indices]
        return Batch(len(rows), {"prompt": np.array(rows, object)})


class Completed:
    """Stands in for LoadGen."""

    def __init__(self) -> None:
        self.answers: dict[int, list[int]] = {}
        self.begun: dict[int, int | None] = {}
        """Maps the sample's id to the id of its first token, which precedes the answer."""
        self.counts: list[int] = []
        self._lock = threading.Lock()

    def complete(self, ids: Sequence[int], answers: Any) -> int:
        return self._note(ids, [row.tolist() for row in answers.rows])

    def first_tokens(self, ids: Sequence[int], tokens: Sequence[int | None]) -> None:
        with self._lock:
            assert not (self.answers.keys() | self.begun.keys()) & set(ids)
            self.begun |= dict(zip(ids, tokens, strict=True))

    def tokens(self, counts: Sequence[int]) -> None:
        with self._lock:
            self.counts += counts

    def complete_empty(self, ids: Sequence[int]) -> int:
        return self._note(ids, [[] for _ in ids])

    def _note(self, ids: Sequence[int], answers: Sequence[list[int]]) -> int:
        now_ns = wall_ns()
        with self._lock:
            for sample_id, answer in zip(ids, answers, strict=True):
                assert sample_id not in self.answers
                self.answers[sample_id] = answer
        return now_ns


@pytest.fixture(scope="module")
def backends() -> Iterator[list[GeneratingBackend]]:
    from harness.backends.ort import OrtBackend

    path = MODEL.path(("onnx",))
    setup = BackendSetup(model=path, model_name="tinylm", max_batch=ROWS)
    about = MODEL.generation
    assert about is not None
    first, second = (GeneratingBackend(OrtBackend, about, setup) for _ in range(2))
    with first, second:
        yield [first, second]


class Run:
    """A dispatcher with its journal and its completions."""

    def __init__(
        self,
        backends: Sequence[GeneratingBackend],
        dispatch: str,
        samples: int,
        *,
        itl_bound_ns: int | None = None,
        tells: bool = False,
    ) -> None:
        """tells: whether LoadGen requests token times."""
        self.completed, self.failures = Completed(), Failures()
        self.generated = Generated(itl_bound_ns)
        self._fd = Journal.create()
        Journal.resize(self._fd, samples, len(backends), RowKind.TOKENS)
        self.journal = Journal(self._fd)
        instances = [
            GeneratingInstance(
                backend,
                Prompts(),  # type: ignore[arg-type] # all of a dataset that is asked for
                postprocessor((), "tokens", None),
                self.completed,
                self.journal.tokens_writer(i),
                AnswerRow((None,), np.dtype(np.int32)),
                self.failures,
                self.generated,
                token_latencies=tells,
                first_tokens=tells,
            )
            for i, backend in enumerate(backends)
        ]
        self.dispatcher, self.name = generating_dispatcher(
            dispatch, instances, self.journal.issuer()
        )

    def rows(self) -> Any:
        found = np.concatenate([self.journal.rows(i) for i in range(self.journal.workers)])
        os.close(self._fd)
        return found[np.argsort(found["first"])]


def texts(run: Run) -> list[str]:
    about = MODEL.generation
    assert about is not None
    return [
        "".join(about.pieces[i] for i in run.completed.answers[k])
        for k in range(len(run.completed.answers))
    ]


def test_token_slo_reports_tokens_to_loadgen_and_counts_late_ones(
    backends: list[GeneratingBackend],
) -> None:
    run = Run(backends[:1], "queued", 12, itl_bound_ns=1, tells=True)
    # One of the indices is beyond the requests, so its query cannot be answered.
    indices = [i % (len(REQUESTS) + 1) for i in range(12)]
    run.dispatcher.issue(list(range(12)), indices)
    run.dispatcher.stop()
    rows = run.rows()
    assert run.completed.begun == {
        i: next(iter(answer), None) for i, answer in run.completed.answers.items()
    }
    assert len(run.completed.begun) == 12
    right = rows[rows["failed"] == 0]
    assert 0 < len(right) < 12
    assert sorted(run.completed.counts) == sorted(right["tokens"].tolist())
    # Every token after the first is late, because no token arrives within 1 ns.
    assert right["late_tokens"].tolist() == (right["tokens"] - 1).tolist()
    assert not rows[rows["failed"] > 0]["late_tokens"].any()


@pytest.mark.parametrize("dispatch", ["queued", "sliced", "inline"])
def test_every_sample_is_answered_once_with_its_stamps(
    dispatch: str, backends: list[GeneratingBackend]
) -> None:
    """Forty samples share four or eight places, in calls with one sample, many samples, and more samples than places."""
    used = backends[:1] if dispatch == "inline" else backends
    run = Run(used, dispatch, 40)
    start = 0
    for count in (1, 3, 9, 1, 26):
        ids = list(range(start, start + count))
        run.dispatcher.issue(ids, [i % len(REQUESTS) for i in ids])
        start += count
    run.dispatcher.stop()
    assert texts(run) == [RIGHT[i % len(RIGHT)] for i in range(40)]
    assert run.journal.issued == run.journal.completed == 40
    rows = run.rows()
    assert rows["first"].tolist() == list(range(40))
    assert (rows["size"] == 1).all()
    assert not rows["failed"].any()
    assert rows["tokens"].tolist() == [len(RIGHT[i % len(RIGHT)]) + 1 for i in range(40)]
    stamps = (
        *("taken_ns", "gathered_ns", "first_token_ns", "inferred_ns", "postprocessed_ns"),
        "completed_ns",
    )
    for earlier, later in pairwise(stamps):
        assert (rows[earlier] <= rows[later]).all(), (earlier, later)
    assert (rows["first_token_ns"] < rows["inferred_ns"]).all()
    told = run.generated.summary()
    assert (told["answers"], told["output"]) == (40, int(rows["tokens"].sum()))
    assert told["finish_reasons"] == {"stop": 40}
    assert told["streams"]["tokens_per_chunk"] == 1
    assert told["streams"]["itl_ns"]["p50"] > 0
    assert run.name == ("inline, generating" if dispatch == "inline" else "generating")


def test_a_prompt_that_cannot_be_answered_fails_alone(backends: list[GeneratingBackend]) -> None:
    run = Run(backends[:1], "inline", 3)
    run.dispatcher.issue([0, 1, 2], [0, len(REQUESTS), 1])
    assert texts(run) == [RIGHT[0], "", RIGHT[1]]
    assert run.failures.samples == 1
    assert "outside the vocabulary of 15" in run.failures.first
    rows = run.rows()
    assert rows["failed"].tolist() == [0, 1, 0]
    assert rows["tokens"].tolist() == [4, 0, 6]


def test_step_that_raises_fails_only_the_samples_in_work(
    backends: list[GeneratingBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(backends[:1], "inline", 3)

    def failing() -> Any:
        raise RuntimeError("out of luck")

    with monkeypatch.context() as patch:
        patch.setattr(backends[0].generator, "step", failing)
        run.dispatcher.issue([0, 1], [0, 1])
    run.dispatcher.issue([2], [2])
    assert texts(run) == ["", "", RIGHT[2]]
    assert run.failures.samples == 2
    assert run.rows()["failed"].tolist() == [1, 1, 0]


def test_the_time_that_samples_share_counts_once() -> None:
    begin, end = np.array([0, 2, 3, 20, 0, 5]), np.array([10, 4, 12, 25, 7, 6])
    worker = np.array([0, 0, 0, 0, 1, 1])
    assert covered_ns(begin, end, worker) == 12 + 5 + 7
    assert covered_ns(begin[:0], end[:0], worker[:0]) == 0
