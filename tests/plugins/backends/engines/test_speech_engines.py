"""The contract for every speech engine, with a Whisper of random weights that the test writes in the engine's format.

The reference is the framework's pipeline on the same sound. An engine that is not installed is skipped.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from harness.backends.parts.http_json.sound import wav_of
from harness.core import registry
from harness.errors import ConfigError
from harness.models.generation.engine import Answering
from harness.models.generation.speech import Heard, SpeechBackend
from harness.models.manifest.schema import Transcription
from harness.types import Array, BackendSetup, Batch, TensorSpec, TranscribesSpeech

pytest.importorskip("onnx")
from tests.builders.models import whisper

pytestmark = pytest.mark.slow  # these tests are slow, because the frameworks take seconds to import

RATE_HZ = 16_000
MOST = 12
WRITERS: Mapping[str, Callable[[Path], Path]] = {
    "ort-whisper": whisper.write_genai,
    "openvino-whisper": whisper.write_openvino,
}


class Reference(NamedTuple):
    """Answers from the framework's own pipeline."""

    text: str
    tokens: int


def tone(number: int) -> Array:
    """Returns a chord of one to three seconds, rounded to 16 bits as PCM is."""
    times_s = np.arange(RATE_HZ * (1 + number % 3)) / RATE_HZ
    waves = [np.sin(2 * np.pi * 110 * (number + 1) * harmonic * times_s) for harmonic in (1, 2, 3)]
    swelling = np.minimum(1, times_s * (number + 1))
    return (np.rint(6000 * swelling * sum(waves)) / 32768).astype(np.float32)


SOUNDS = [tone(number) for number in range(6)]


@pytest.fixture(scope="module", params=[*WRITERS])
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    entry = registry.BACKENDS[name]
    if not entry.installed:
        pytest.skip(f"extra {entry.extra!r} is not installed")
    return name


@pytest.fixture(scope="module")
def folder(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return WRITERS[engine](tmp_path_factory.mktemp("whisper") / engine)


def opened(name: str, folder: Path, language: str | None = "en", **more: Any) -> SpeechBackend:
    about = Transcription(language=language, max_tokens=MOST)
    inputs = (TensorSpec("audio", "float32", (None, 480_000)),)
    values = {"model": folder, "model_name": "whisper", "inputs": inputs, "max_batch": 2}
    cls = registry.load("backend", name)
    return SpeechBackend(cls, about, BackendSetup(**{**values, **more}))


@pytest.fixture(scope="module")
def backend(engine: str, folder: Path) -> Iterator[SpeechBackend]:
    with opened(engine, folder) as entered:
        yield entered


@pytest.fixture(scope="module")
def reference(engine: str, folder: Path) -> Callable[[Array], Reference]:
    return by_openvino(folder) if engine == "openvino-whisper" else by_onnx_runtime(folder)


def by_openvino(folder: Path) -> Callable[[Array], Reference]:
    import openvino_genai

    pipeline = openvino_genai.WhisperPipeline(str(folder), "CPU")

    def answer(sound: Array) -> Reference:
        asked = {"language": "<|en|>", "task": "transcribe", "max_new_tokens": MOST}
        found = pipeline.generate(sound.tolist(), **asked)
        return Reference(found.texts[0].strip(), found.perf_metrics.get_num_generated_tokens())

    return answer


def by_onnx_runtime(folder: Path) -> Callable[[Array], Reference]:
    import onnxruntime_genai as genai

    model = genai.Model(str(folder))
    processor = model.create_multimodal_processor()
    prompt = "<|startoftranscript|><|en|><|transcribe|><|notimestamps|>"

    def answer(sound: Array) -> Reference:
        whole = np.pad(sound, (0, 480_000 - len(sound)))
        inputs = processor([prompt], audios=genai.Audios.open_bytes(wav_of(whole)))
        params = genai.GeneratorParams(model)
        params.set_search_options(do_sample=False, num_beams=1, max_length=4 + MOST, batch_size=1)
        generator = genai.Generator(model, params)
        generator.set_inputs(inputs)
        while not generator.is_done():
            generator.generate_next_token()
        tokens = generator.get_sequence(0)[4:]
        # An answer with fewer than MOST tokens ended with the end token, which the generator does not keep.
        ended = len(tokens) < MOST
        return Reference(processor.decode(tokens).strip(), len(tokens) + ended)

    return answer


def text(answer: Any) -> str:
    return np.asarray(answer, np.uint8).tobytes().decode()


def transcribed(backend: SpeechBackend, sounds: list[Array]) -> list[str]:
    """Returns the texts of sounds that the engine receives one after another, as rows of equal length."""
    rows = np.zeros((len(sounds), max(map(len, sounds))), np.float32)
    for row, sound in zip(rows, sounds, strict=True):
        row[: len(sound)] = sound
    return [text(answer) for answer in backend.infer(Batch(len(rows), {"audio": rows}))]


def test_texts_and_tokens_equal_those_of_the_own_pipeline(
    backend: SpeechBackend, reference: Callable[[Array], Reference]
) -> None:
    assert isinstance(backend._step, TranscribesSpeech)
    wanted = [reference(sound) for sound in SOUNDS]
    heard = [Heard(sound, MOST) for sound in SOUNDS]
    for one in heard:
        backend.generator.add(one)
    while not backend.generator.is_idle:
        assert backend.generator.step()
    found = [Reference(text(backend.answer(one)).strip(), len(one.tokens)) for one in heard]
    assert found == wanted
    assert len({one.text for one in wanted}) > 2, "the answers must depend on the sound"
    assert len({one.tokens for one in wanted}) > 1, "an answer must end before its limit"
    assert {one.finish_reason for one in heard} == {"stop", "length"}
    assert all(word in whisper.WORDS for one in wanted for word in one.text.split())


def test_silence_behind_a_sound_changes_nothing(backend: SpeechBackend) -> None:
    apart = [transcribed(backend, [sound])[0] for sound in SOUNDS]
    assert transcribed(backend, SOUNDS) == apart


def test_both_engines_hear_the_same_words(tmp_path: Path) -> None:
    found = []
    for name, write in WRITERS.items():
        if not registry.BACKENDS[name].installed:
            pytest.skip(f"{name} is not installed")
        with opened(name, write(tmp_path / name)) as backend:
            found.append(transcribed(backend, SOUNDS))
    same = sum(one == other for one, other in zip(*found, strict=True))
    # The features of the two engines differ by rounding, which may change one text.
    assert same >= len(SOUNDS) - 1, found


def test_an_answer_has_at_most_the_wanted_tokens(backend: SpeechBackend) -> None:
    heard = [Heard(sound, 2) for sound in SOUNDS]
    for one in heard:
        backend.generator.add(one)
    while not backend.generator.is_idle:
        backend.generator.step()
    assert {len(one.tokens) for one in heard} <= {1, 2}
    whole = transcribed(backend, SOUNDS)
    for one, all_words in zip(heard, whole, strict=True):
        assert all_words.startswith(text(backend.answer(one)).strip())


def test_an_abandoned_answer_does_not_disturb_the_next(backend: SpeechBackend) -> None:
    wanted = transcribed(backend, SOUNDS)
    gone: list[Answering] = [Heard(sound, MOST) for sound in SOUNDS[:2]]
    for one in gone:
        backend.generator.add(one)
    backend.generator.step()
    for one in gone:
        one.is_wanted = False
    assert transcribed(backend, SOUNDS) == wanted
    backend.generator.add(Heard(SOUNDS[0], MOST))
    backend.generator.step()
    backend.generator.drop_all()
    assert transcribed(backend, SOUNDS) == wanted


def test_each_step_gives_an_answer_at_most_one_token(backend: SpeechBackend) -> None:
    heard = [Heard(sound, MOST) for sound in SOUNDS]
    for one in heard:
        backend.generator.add(one)
    lengths = dict.fromkeys(heard, 0)
    while not backend.generator.is_idle:
        for answered in backend.generator.step():
            assert isinstance(answered, Heard)
            lengths[answered] += 1
            assert len(answered.tokens) == lengths[answered]


def test_backend_can_be_left_and_entered_again(engine: str, folder: Path) -> None:
    backend, found = opened(engine, folder), []
    for _ in range(2):
        with backend:
            found.append(transcribed(backend, SOUNDS[:2]))
    assert found[0] == found[1]


def test_instances_answer_in_threads_at_the_same_time(
    engine: str, folder: Path, backend: SpeechBackend
) -> None:
    found: dict[int, list[str]] = {}

    def work(number: int, own: SpeechBackend) -> None:
        found[number] = transcribed(own, SOUNDS)

    with opened(engine, folder, instances=2) as one, opened(engine, folder, instances=2) as other:
        threads = [threading.Thread(target=work, args=each) for each in enumerate((one, other))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [found[0], found[1]] == [transcribed(backend, SOUNDS)] * 2


def test_backend_describes_itself(backend: SpeechBackend) -> None:
    about = backend.describe()
    assert {"framework", "device", "precision", "threads", "math_library"} <= set(about)
    assert (about["precision"], about["threads"], about["device"]) == ("float32", 1, "cpu")
    assert any(c.isdigit() for c in str(about["framework"])), "the version"


def refusal(engine: str, folder: Path, **more: Any) -> str:
    with pytest.raises(ConfigError) as caught, opened(engine, folder, **more):
        pass
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    return str(caught.value)


@pytest.mark.parametrize("language", ["fr", None])
def test_a_language_that_does_not_fit_is_refused(
    engine: str, folder: Path, language: str | None
) -> None:
    if engine == "ort-whisper" and language is None:
        pytest.skip("its files do not show whether a model knows several languages")
    found = refusal(engine, folder, language=language)
    assert found.startswith(f"{folder}: ")
    assert "transcription" in found
    assert (language is None) or engine == "ort-whisper" or found.endswith("lists de, en")


def test_unknown_options_devices_and_providers_are_refused(engine: str, folder: Path) -> None:
    assert "has no option 'nosuch': " in refusal(engine, folder, options={"nosuch": "1"})
    assert "does not support --device cuda: choose from cpu" in refusal(
        engine, folder, device="cuda"
    )
    assert "has no providers: drop --provider X" in refusal(engine, folder, provider="X")


def test_a_sound_above_half_a_minute_is_refused(engine: str, folder: Path) -> None:
    inputs = (TensorSpec("audio", "float32", (None, 480_001)),)
    assert "at most 30 s (480,000 samples)" in refusal(engine, folder, inputs=inputs)


def test_a_model_without_transcription_is_refused(engine: str, folder: Path) -> None:
    cls = registry.load("backend", engine)
    with pytest.raises(
        ConfigError, match="needs a manifest with `transcription`: write one with `init --model "
    ):
        cls(BackendSetup(model=folder, model_name="whisper"))


@pytest.mark.parametrize("content", [None, b"", b"not a model", b"{}"])
def test_each_broken_file_is_reported_in_one_line(
    engine: str, folder: Path, tmp_path: Path, content: bytes | None
) -> None:
    """content: None removes the file."""
    needed = {
        "ort-whisper": (
            *("genai_config.json", "encoder.onnx", "decoder.onnx"),
            *("tokenizer.json", "audio_processor_config.json"),
        ),
        "openvino-whisper": (
            *("openvino_encoder_model.xml", "openvino_decoder_model.xml"),
            *("generation_config.json", "openvino_detokenizer.xml"),
        ),
    }
    for name in needed[engine]:
        copy = tmp_path / name.partition(".")[0]
        copy.mkdir()
        for file in folder.iterdir():
            if file.name != name or content is not None:
                (copy / file.name).write_bytes(
                    file.read_bytes() if file.name != name else content or b""
                )
        found = refusal(engine, copy)
        assert str(copy) in found, (name, found)


def test_an_absent_folder_is_reported_in_one_line(engine: str, tmp_path: Path) -> None:
    assert refusal(engine, tmp_path / "nosuch").startswith(
        f"{tmp_path / 'nosuch'} does not contain "
    )
