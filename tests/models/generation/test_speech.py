"""Tests the harness with a speech engine that recognises one word per second."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from harness.errors import ConfigError
from harness.models.generation.speech import Heard, SpeechBackend
from harness.models.manifest.schema import Transcription
from harness.types import Array, BackendSetup, Batch, Outputs

WORD, END = 3, 7
RATE_HZ = 16_000


class Ear:
    """Recognises one word for each second of sound."""

    end = (END,)

    def __init__(self, setup: BackendSetup) -> None:
        self.setup = setup
        self.active: dict[int, int] = {}
        self.most_active = 0

    def __enter__(self) -> "Ear":
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def listen(self, key: int, sound: Array, most: int) -> None:
        assert sound.dtype == np.float32
        assert most == 4
        self.active[key] = int(np.count_nonzero(sound)) // RATE_HZ
        self.most_active = max(self.most_active, len(self.active))

    def step(self) -> Sequence[tuple[int, int]]:
        found = [(key, WORD if left else END) for key, left in self.active.items()]
        self.active = {key: left - 1 for key, left in self.active.items()}
        return found

    def leave(self, key: int) -> None:
        del self.active[key]

    def text(self, tokens: Sequence[int]) -> str:
        assert END not in tokens
        return " word" * len(tokens)

    def infer(self, batch: Batch) -> Outputs:
        raise AssertionError(batch)

    def describe(self) -> Mapping[str, object]:
        return {"framework": "ear 1.0"}


ABOUT = Transcription(language="en", max_tokens=4)


def sounds(*seconds: int) -> Array:
    rows = np.zeros((len(seconds), 10 * RATE_HZ), np.float32)
    for row, length in zip(rows, seconds, strict=True):
        row[: length * RATE_HZ] = 0.5
    return rows


def opened(**more: Any) -> SpeechBackend:
    return SpeechBackend(Ear, ABOUT, BackendSetup(model=None, model_name="ear", **more))


def test_answers_are_texts_without_ends_and_outer_spaces() -> None:
    with opened(max_batch=2) as backend:
        found = [np.asarray(row).tobytes() for row in backend.infer(Batch(4, {"audio": sounds(2, 0, 3, 9)}))]  # fmt: skip
        assert found == [b"word word", b" ", b"word word word", b"word word word word"]
        assert backend._engine.most_active == 2  # type: ignore[attr-defined]
        about = backend.describe()
    assert (about["framework"], about["sequences"]) == ("ear 1.0", 2)


def test_an_answer_ends_at_its_end_or_at_the_manifests_limit() -> None:
    with opened(max_batch=1) as backend:
        heard = [Heard(row, 100) for row in sounds(2, 9)]
        for one in heard:
            backend.generator.add(one)
        while not backend.generator.is_idle:
            backend.generator.step()
    assert [one.finish_reason for one in heard] == ["stop", "length"]
    assert [len(one.tokens) for one in heard] == [3, 4]


def test_the_engine_learns_language_and_limit() -> None:
    step: Any = opened()._step
    assert step.setup.transcribing == ("en", 4)
    assert step.setup.decoding is None


def test_a_backend_that_does_not_listen_is_refused() -> None:
    class Plain:
        def __init__(self, setup: BackendSetup) -> None:
            del setup

        def __enter__(self) -> "Plain":
            return self

        def __exit__(self, *exc: object) -> None:
            pass

    setup = BackendSetup(model=None, model_name="ear")
    with (
        pytest.raises(ConfigError, match="use --backend openvino-whisper or ort-whisper"),
        SpeechBackend(Plain, ABOUT, setup),  # type: ignore[arg-type]
    ):
        pass
