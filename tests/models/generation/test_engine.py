"""The engine for language models: a batch with a cache gives the same answers as single prompts without a cache."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from harness.errors import ConfigError
from harness.models.generation.backend import GeneratingBackend
from harness.models.generation.backend import generator as generator_of
from harness.models.generation.engine import Answering, Generator
from harness.models.generation.vocabulary import Vocabulary
from harness.models.manifest.lookup import load_model
from harness.models.manifest.schema import Generation
from harness.types import BackendSetup, Batch, Outputs, TensorSpec

ort = pytest.importorskip("onnxruntime")

MODEL = load_model("tinylm")
PATH = MODEL.path(("onnx",))
ABOUT: Any = MODEL.generation
ROWS = 3
PROMPTS = ("sort 40271=", "reverse 98=", "sort 1=", "?", "reverse 31415926535=", "sort 77777701=")


@pytest.fixture(scope="module")
def step() -> Any:
    from harness.backends.ort import OrtBackend

    with OrtBackend(BackendSetup(model=PATH, model_name="tinylm")) as backend:
        yield backend


@pytest.fixture
def generator(step: Any) -> Generator:
    return Generator(step.infer, step.signature(), ABOUT, ROWS)


def tokens_of(text: str) -> list[int]:
    return Vocabulary(ABOUT.pieces, ABOUT.unknown).encode(text)


@cache
def session() -> Any:
    return ort.InferenceSession(PATH, providers=["CPUExecutionProvider"])


def recomputed(prompt: Sequence[int], most: int, *, ignores_end: bool = False) -> list[int]:
    """Returns the answer computed without a cache, so that each step computes all tokens again."""
    past = {
        spec.name: np.zeros((1, spec.shape[1], 0, spec.shape[3]), np.float32)
        for spec in session().get_inputs()
        if spec.name.startswith("past")
    }
    answer: list[int] = []
    while len(answer) < most and (ignores_end or answer[-1:] != [ABOUT.end[0]]):
        tokens = np.array([[*prompt, *answer]])
        given = {
            "input_ids": tokens,
            "attention_mask": np.ones_like(tokens),
            "position_ids": np.arange(tokens.size)[np.newaxis],
        }
        (logits,) = session().run(["logits"], {**given, **past})
        answer.append(int(logits[0, -1].argmax()))
    return answer


def test_sequences_in_a_shared_batch_get_the_same_answers_as_alone(
    generator: Generator,
) -> None:
    """Six prompts of 1 to 13 tokens share three rows of the batch; one prompt arrives after each step."""
    waiting = [Answering(tokens_of(text), 5 + 4 * i) for i, text in enumerate(PROMPTS)]
    added: list[Answering] = []
    most = 0
    while waiting or not generator.is_idle:
        if waiting:
            added.append(waiting.pop(0))
            generator.add(added[-1])
        answered = generator.step()
        most = max(most, len(answered))
    assert most == ROWS
    for one in added:
        assert one.tokens == recomputed(one.prompt, one.most)
        is_ended = one.tokens[-1] in ABOUT.end
        assert one.finish_reason == ("stop" if is_ended else "length")
    assert {one.finish_reason for one in added} == {"stop", "length"}


def test_an_answer_ends_with_the_context(generator: Generator) -> None:
    prompt = tokens_of("reverse 31415926535=")
    one = Answering(prompt, 10**6, ignores_end=True)
    generator.add(one)
    while not generator.is_idle:
        generator.step()
    assert len(prompt) + len(one.tokens) == ABOUT.context
    assert one.finish_reason == "length"
    assert one.tokens == recomputed(prompt, one.most, ignores_end=True)


def test_abandoned_sequence_frees_its_row_for_the_next(generator: Generator) -> None:
    first = [Answering(tokens_of("sort 987654321="), 30, ignores_end=True) for _ in range(ROWS)]
    last = Answering(tokens_of("sort 21="), 3)
    for one in (*first, last):
        generator.add(one)
    generator.step()
    assert [len(one.tokens) for one in (*first, last)] == [1] * ROWS + [0]
    first[0].is_wanted = False
    assert list(generator.step()) == [first[2], first[1], last]
    while not generator.is_idle:
        generator.step()
    assert len(first[0].tokens) == 1
    assert first[1].tokens == recomputed(first[1].prompt, 30, ignores_end=True)
    assert last.tokens == recomputed(last.prompt, 3)


@pytest.mark.parametrize(
    ("prompt", "problem"),
    [
        ([], "the prompt has 0 tokens, but the model takes 1 to 47"),
        ([5] * 48, "the prompt has 48 tokens, but the model takes 1 to 47"),
        ([5, 15], "the prompt has a token outside the vocabulary of 15 tokens"),
        ([-1], "the prompt has a token outside the vocabulary of 15 tokens"),
    ],
)
def test_a_prompt_without_room_is_refused(
    prompt: list[int], problem: str, generator: Generator
) -> None:
    with pytest.raises(ValueError, match=f"^{problem}$"):
        generator.add(Answering(prompt, 4))
    assert generator.is_idle


def test_a_batch_in_process_is_answered_after_a_failed_batch() -> None:
    from harness.backends.ort import OrtBackend

    setup = BackendSetup(model=PATH, model_name="tinylm", max_batch=2)
    with GeneratingBackend(OrtBackend, ABOUT, setup) as backend:
        good = b'{"max_tokens":8,"prompt":"sort 40271="}'
        bad = b'{"prompt":[99]}'
        (alone,) = _answers(backend, good)
        with pytest.raises(ConfigError, match="outside the vocabulary of 15 tokens"):
            _answers(backend, good, bad)
        answers = _answers(backend, good, good, good)
        assert [answer.tolist() for answer in answers] == [alone.tolist()] * 3
        assert alone.dtype == np.int32
        assert backend.describe()["sequences"] == 2


LONG = (
    "the prompt has 48 tokens, but the model takes 1 to 47: use shorter prompts (--dataset-option input=24 of "
    "synthetic-prompts), or raise `generation.context` in the manifest"
)
OUTSIDE = (
    "the prompt has a token outside the vocabulary of 15 tokens: use other prompts (--dataset-option tokens=0:15 of "
    "synthetic-prompts), or correct `generation.vocabulary` in the manifest"
)


@pytest.mark.parametrize(("tokens", "problem"), [([5] * 48, LONG), ([99], OUTSIDE)])
def test_prompt_that_does_not_suit_the_manifest_names_the_field(
    tokens: list[int], problem: str
) -> None:
    """Bug: the error was `raised ValueError: …: see performance.log`, with the exit status of a failing plug-in."""
    from harness.backends.ort import OrtBackend

    setup = BackendSetup(model=PATH, model_name="tinylm", max_batch=2)
    refused = pytest.raises(ConfigError, match=f"^{re.escape(problem)}$")
    with GeneratingBackend(OrtBackend, ABOUT, setup) as backend, refused:
        _answers(backend, json.dumps({"prompt": tokens}).encode())


def _answers(backend: GeneratingBackend, *prompts: bytes) -> Any:
    return backend.infer(Batch(len(prompts), {"prompt": np.array(prompts, object)}))


SPEC = (
    TensorSpec("input_ids", "int64", ("batch", "new")),
    TensorSpec("past_key_values.0.key", "float32", ("batch", 2, "past", 4)),
)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, ""),
        ({"past_key_values.0.key": None}, "`generation` needs a model with the inputs input_ids and"),
        ({"input_ids": None}, "`generation` needs a model with the inputs input_ids and"),
        ({"image": TensorSpec("image", "float32", ("batch", 3))}, "`generation` needs a model"),
        ({"past_key_values.0.key": SPEC[1]._replace(shape=("batch", "heads", "past", 4))}, "input 'past_key_values.0.key' must have the shape"),
        ({"past_key_values.0.key": SPEC[1]._replace(dtype="int8")}, "input 'past_key_values.0.key' is int8, but a cache must be float32 or float16"),
    ],
)  # fmt: skip
def test_a_file_without_a_cache_is_refused(
    change: dict[str, TensorSpec | None], problem: str
) -> None:
    changed: dict[str, TensorSpec | None] = {**{spec.name: spec for spec in SPEC}, **change}
    specs = [spec for spec in changed.values() if spec is not None]

    def never(_batch: Batch) -> Outputs:
        raise AssertionError

    if not problem:
        Generator(never, specs, ABOUT, ROWS)
        return
    with pytest.raises(ConfigError, match=f"^{problem}"):
        Generator(never, specs, ABOUT, ROWS)


def test_a_file_without_logits_is_refused() -> None:
    class Step:
        def signature(self) -> tuple[TensorSpec, ...]:
            return SPEC

        def outputs(self) -> tuple[str, ...]:
            return ("scores", "present.0.key")

    problem = (
        "`generation` needs a model with the output logits; the file has scores, present.0.key"
    )
    step: Any = Step()
    with pytest.raises(ConfigError, match=f"^{problem}$"):
        generator_of(step, ABOUT, ROWS)


def test_texts_become_the_longest_pieces_and_come_back() -> None:
    words = Vocabulary(["", "a", "ab", "b", "c "], None)
    assert words.encode("abac b") == [2, 1, 4, 3]
    assert words.decode([2, 1, 4, 3, 0]) == "abac b"
    with pytest.raises(ValueError, match=r"^the model has no token for '\\n'$"):
        words.encode("a\nb")
    assert Vocabulary(["", "?", "a"], 1).encode("a\nb") == [2, 1, 1]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"pieces": ["a"]}, "pieces lists 1 tokens, but vocabulary is 15"),
        ({"end": [15]}, "end and unknown must be tokens below vocabulary, 15"),
        ({"unknown": 15}, "end and unknown must be tokens below vocabulary, 15"),
    ],
)
def test_a_manifests_tokens_are_in_its_vocabulary(change: Mapping[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Generation(**{"context": 48, "vocabulary": 15, **change})
