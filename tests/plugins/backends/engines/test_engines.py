"""The contract for every token engine, with the embedded language model in the engine's format.

The reference is the harness's engine on ONNX Runtime. An engine that is not installed is skipped.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.core import registry
from harness.errors import ConfigError, PluginUnavailable
from harness.models.generation.backend import GeneratingBackend
from harness.models.generation.engine import Answering
from harness.models.generation.vocabulary import Vocabulary
from harness.models.manifest.lookup import load_model
from harness.types import BackendSetup, Batch, Decoding, GeneratesTokens

pytest.importorskip("onnxruntime")

ROOT = Path(__file__).parents[4]
MODEL = load_model("tinylm")
ABOUT: Any = MODEL.generation
ENGINES = ("ort-genai", "openvino-genai", "llama-cpp")
SEQUENCES = 3
TEXTS = ("sort 40271=", "reverse 98=", "sort 1=", "?", "reverse 31415926535=", "sort 77777701=")


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    entry = registry.BACKENDS[name]
    if not entry.installed:
        pytest.skip(f"extra {entry.extra!r} is not installed")
    return name


def opened(name: str, **more: Any) -> GeneratingBackend:
    cls = registry.load("backend", name)
    values = {"model": MODEL.path(cls.formats), "model_name": "tinylm", "max_batch": SEQUENCES}
    return GeneratingBackend(cls, ABOUT, BackendSetup(**{**values, **more}))


@pytest.fixture
def backend(engine: str) -> Iterator[GeneratingBackend]:
    with opened(engine) as entered:
        yield entered


@pytest.fixture(scope="module")
def reference() -> Iterator[GeneratingBackend]:
    with opened("ort") as entered:
        yield entered


def tokens_of(text: str) -> list[int]:
    return Vocabulary(ABOUT.pieces, ABOUT.unknown).encode(text)


def answers(backend: GeneratingBackend, waiting: list[Answering]) -> list[list[int]]:
    """Answers the prompts, while a new prompt arrives at each step."""
    generator, every = backend.generator, [*waiting]
    while waiting or not generator.is_idle:
        if waiting:
            generator.add(waiting.pop(0))
        generator.step()
    return [one.tokens for one in every]


def prompts() -> list[Answering]:
    return [Answering(tokens_of(text), 5 + 4 * i) for i, text in enumerate(TEXTS)]


def test_answers_equal_those_of_the_own_engine(
    backend: GeneratingBackend, reference: GeneratingBackend
) -> None:
    assert isinstance(backend._step, GeneratesTokens)
    assert answers(backend, prompts()) == answers(reference, prompts())


def test_all_embedded_prompts_get_equal_answers(
    backend: GeneratingBackend, reference: GeneratingBackend
) -> None:
    path = ROOT / "datasets/parts/digit_strings.jsonl"
    asked = [json.loads(line)["input_ids"] for line in path.read_text().splitlines()[:100]]
    lines = np.array([json.dumps({"prompt": ids, "max_tokens": 24}) for ids in asked], object)
    batch = Batch(len(lines), {"prompt": lines})
    found, wanted = ([np.asarray(row).tolist() for row in each.infer(batch)] for each in (backend, reference))  # fmt: skip
    assert found == wanted


def test_an_answer_that_ignores_ends_has_the_wanted_length(
    engine: str, backend: GeneratingBackend, reference: GeneratingBackend
) -> None:
    def made() -> list[Answering]:
        return [Answering(tokens_of("sort 402="), 20, ignores_end=True)]

    (found,), (wanted,) = answers(backend, made()), answers(reference, made())
    assert len(found) == 20
    if engine != "llama-cpp":  # llama.cpp is left out, because it omits the end token
        assert found == wanted


def test_an_abandoned_answer_frees_its_place(
    backend: GeneratingBackend, reference: GeneratingBackend
) -> None:
    generator = backend.generator
    gone = [Answering(tokens_of("reverse 31415926535="), 30, ignores_end=True) for _ in range(SEQUENCES)]  # fmt: skip
    last = Answering(tokens_of("sort 21="), 3)
    for one in (*gone, last):
        generator.add(one)
    while not all(one.tokens for one in gone):
        generator.step()
    for one in gone:
        one.is_wanted = False
    while not generator.is_idle:
        generator.step()
    assert all(len(one.tokens) < 30 for one in gone)
    assert [last.tokens] == answers(reference, [Answering(tokens_of("sort 21="), 3)])


def test_each_step_gives_an_answer_at_most_one_token(backend: GeneratingBackend) -> None:
    generator, waiting = backend.generator, prompts()
    for one in waiting:
        generator.add(one)
    lengths = dict.fromkeys(waiting, 0)
    while not generator.is_idle:
        answered = [*generator.step()]
        assert answered
        assert len(answered) == len(set(answered))
        for one in answered:
            lengths[one] += 1
            assert len(one.tokens) == lengths[one]


def test_dropped_answers_do_not_disturb_the_next(
    backend: GeneratingBackend, reference: GeneratingBackend
) -> None:
    for one in prompts():
        backend.generator.add(one)
    backend.generator.step()
    backend.generator.drop_all()
    assert answers(backend, prompts()) == answers(reference, prompts())


def test_backend_can_be_left_and_entered_again(engine: str, reference: GeneratingBackend) -> None:
    backend, wanted = opened(engine), answers(reference, prompts())
    for _ in range(2):
        with backend:
            assert answers(backend, prompts()) == wanted


def test_instances_answer_in_threads_at_the_same_time(
    engine: str, reference: GeneratingBackend
) -> None:
    found: dict[int, list[list[int]]] = {}

    def work(number: int, backend: GeneratingBackend) -> None:
        found[number] = answers(backend, prompts())

    with opened(engine, instances=2) as one, opened(engine, instances=2) as other:
        threads = [threading.Thread(target=work, args=each) for each in enumerate((one, other))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [found[0], found[1]] == [answers(reference, prompts())] * 2


def test_backend_describes_itself(backend: GeneratingBackend) -> None:
    about = backend.describe()
    assert {"framework", "device", "precision", "threads", "math_library"} <= set(about)
    assert about["precision"] == "float32"
    assert about["threads"] == 1
    assert about["device"] == "cpu"
    assert any(c.isdigit() for c in str(about["framework"])), "the version"


def test_a_prompt_is_only_answered_with_generation(engine: str) -> None:
    cls = registry.load("backend", engine)
    setup = BackendSetup(model=MODEL.path(cls.formats), model_name="tinylm")
    with pytest.raises(
        ConfigError, match="needs a manifest with `generation`: write one with `init --model "
    ):
        cls(setup)


def _refusal(engine: str, **more: Any) -> str:
    with pytest.raises(ConfigError) as caught, opened(engine, **more):
        pass
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    return str(caught.value)


def test_unknown_options_devices_and_providers_are_refused(engine: str) -> None:
    assert "has no option 'nosuch': " in _refusal(engine, options={"nosuch": "1"})
    assert (
        _refusal(engine, device="cuda")
        == f"backend {engine!r} does not support --device cuda: choose from cpu"
    )
    assert "has no providers: drop --provider X" in _refusal(engine, provider="X")


MAIN_FILES = {"ort-genai": "genai_config.json", "openvino-genai": "openvino_model.xml"}


def broken(engine: str, folder: Path, content: bytes) -> Path:
    """Returns the model with different bytes in its main file."""
    good = MODEL.path(registry.load("backend", engine).formats)
    assert good is not None
    if good.is_file():
        path = folder / good.name
        path.write_bytes(content)
        return path
    for file in good.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / MAIN_FILES[engine]).write_bytes(content)
    return folder


@pytest.mark.parametrize("content", [b"", b"not a model", b"{}", b"GGUF\x03\x00\x00\x00"])
def test_a_corrupt_file_is_reported_in_one_line(
    engine: str, content: bytes, tmp_path: Path
) -> None:
    model = broken(engine, tmp_path, content)
    assert str(model) in _refusal(engine, model=model)


def test_a_cut_file_is_reported_in_one_line(engine: str, tmp_path: Path) -> None:
    good = MODEL.path(registry.load("backend", engine).formats)
    assert good is not None
    whole = good if good.is_file() else good / MAIN_FILES[engine]
    model = broken(engine, tmp_path, whole.read_bytes()[:500])
    said = _refusal(engine, model=model)
    assert str(model) in said
    assert "again" in said.rpartition(": ")[2]  # the advice


def test_an_absent_folder_is_reported_in_one_line(engine: str, tmp_path: Path) -> None:
    path = tmp_path / "nosuch.gguf"
    assert _refusal(engine, model=path).startswith((f"{path}: ", f"{path} does not contain "))


_COUNT = """
import sys, threading
from harness.models.generation.engine import Answering
sys.path.insert(0, sys.argv[1])
from tests.plugins.backends.engines.test_engines import opened, tokens_of
with opened(sys.argv[2], threads=int(sys.argv[3])) as backend:
    backend.rehearse(1)
    print(backend.describe()["threads"])
"""


def test_the_requested_number_of_threads_is_described(engine: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", _COUNT, str(ROOT), engine, "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ))
    assert done.stdout.split()[-1] == "2"


def test_an_engine_that_ends_unasked_is_reported(engine: str) -> None:
    """The manifest lacks the end token, so llama.cpp ends early without being asked, and the other engines continue."""
    cls = registry.load("backend", engine)
    decoding = Decoding(ABOUT.context, ABOUT.vocabulary, ())
    setup = BackendSetup(model=MODEL.path(cls.formats), model_name="tinylm", decoding=decoding)
    tokens: list[int] = []
    with cls(setup) as backend:
        backend.begin(0, tokens_of("sort 213="), 8, ignores_end=False)
        while len(tokens) < 4:
            tokens += [token for _, token in backend.step()]
        if engine == "llama-cpp":
            with pytest.raises(PluginUnavailable, match="the manifest's `end` does not list"):
                backend.step()
        else:
            assert backend.step()
    assert tokens == [*tokens_of("123"), ABOUT.end[0]]


@pytest.mark.parametrize("option", ["f16"])
def test_a_narrower_cache_is_described(engine: str, option: str) -> None:
    if engine == "ort-genai":
        pytest.skip("the file fixes the type of its cache")
    options: Mapping[str, str] = {"cache": option}
    with opened(engine, options=options) as backend:
        assert backend.describe()["cache"] == "float16"
        assert all(len(tokens) > 1 for tokens in answers(backend, prompts()[:2]))
