"""`init` writes a manifest for the files of token engines and speech engines, without the engine."""

import json
import shutil
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.cli.start.init import init
from harness.core.formats import gguf
from harness.errors import ConfigError
from harness.models.manifest.lookup import load_model
from harness.models.manifest.model import Model
from harness.models.manifest.schema import Generation
from harness.models.opened import engine_files
from harness.models.opened.template import manifest_of

ENGINES = {"genai": "ort-genai", "openvino-genai": "openvino-genai", "gguf": "llama-cpp"}


def copied(kind: str, folder: Path) -> Path:
    """Returns a copy of the embedded language model in an engine's format."""
    source = load_model("tinylm").path((kind,))
    assert source is not None
    path = folder / source.name
    (shutil.copytree if source.is_dir() else shutil.copyfile)(source, path)
    return path


def generation(manifest: Path) -> Generation:
    about = load_model(str(manifest)).generation
    assert about is not None
    return about


def described(path: Path) -> tuple[Model, str]:
    manifest = path.with_name("written.yaml")
    text = manifest_of(path, manifest, {})
    manifest.write_text(text)
    return load_model(str(manifest)), text


@pytest.mark.parametrize("kind", ENGINES)
def test_manifest_of_an_engine_has_the_facts_of_its_files(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: `init` was refused with "name a manifest with `generation`", which the user had asked it to write."""
    path, manifest = copied(kind, tmp_path), tmp_path / "lm.yaml"
    assert init(["--model", str(path), "--out", str(manifest)]) == 0
    about = generation(manifest)
    assert (about.context, about.vocabulary, about.end) == (48, 15, (0,))
    words = f"--backend {ENGINES[kind]} --scenario offline --dataset-option tokens=0:15"
    assert words in capsys.readouterr().out


def test_folder_without_values_gets_marked_guesses(tmp_path: Path) -> None:
    folder = tmp_path / "lm"
    folder.mkdir()
    (folder / "genai_config.json").write_text('{"model": {"eos_token_id": [2, 40000]}}')
    model, text = described(folder)
    assert model.generation is not None
    assert model.generation.end == (2,)
    assert text.count("# a guess") == 2


def test_large_context_is_limited_because_engines_reserve_it(tmp_path: Path) -> None:
    folder = tmp_path / "lm"
    folder.mkdir()
    about = {"context_length": 131072, "vocab_size": 9}
    (folder / "genai_config.json").write_text(json.dumps({"model": about}))
    model, text = described(folder)
    assert model.generation is not None
    assert model.generation.context == engine_files.MOST_CONTEXT
    assert "the model allows 131,072, which needs more memory" in text
    assert "  # end: [2] # " in text


def test_values_of_a_model_that_reads_images_are_in_its_text_section(tmp_path: Path) -> None:
    folder = tmp_path / "lm"
    folder.mkdir()
    for name in ("openvino_model.xml", "generation_config.json"):
        (folder / name).write_text("{}")
    text = {"max_position_embeddings": 64, "vocab_size": 9, "eos_token_id": 3}
    (folder / "config.json").write_text(json.dumps({"text_config": text}))
    about = described(folder)[0].generation
    assert about is not None
    assert (about.context, about.vocabulary, about.end) == (64, 9, (3,))


def test_speech_folder_gets_a_transcription(tmp_path: Path) -> None:
    folder = tmp_path / "whisper"
    folder.mkdir()
    (folder / "genai_config.json").write_text('{"model": {"type": "whisper"}}')
    model, _ = described(folder)
    assert model.transcription is not None
    assert model.dataset == "librispeech"


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("lm/genai_config.json", b"{", "genai_config.json cannot be read "),
        ("lm.gguf", b"GGUF\x03\0\0\0", "lm.gguf: the file is truncated: fetch it again"),
    ],
)
def test_broken_file_of_an_engine_is_refused(
    name: str, content: bytes, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        described(tmp_path / name.partition("/")[0])
    assert problem in str(caught.value)


def test_shape_of_an_input_is_refused_for_an_engine(tmp_path: Path) -> None:
    path = copied("gguf", tmp_path)
    with pytest.raises(ConfigError, match=r"^tinylm.gguf takes prompts .*: drop --input-shape$"):
        manifest_of(path, tmp_path / "lm.yaml", {"x": (1, 2)})


def header(values: Mapping[str, Any]) -> bytes:
    """Returns a GGUF file without weights. values: whole numbers and lists of texts."""

    def parts() -> Iterator[bytes]:
        yield b"GGUF" + struct.pack("<IQQ", 3, 0, len(values))
        for key, value in values.items():
            yield struct.pack("<Q", len(key)) + key.encode()
            if isinstance(value, str):
                yield struct.pack("<IQ", 8, len(value)) + value.encode()
            elif isinstance(value, list):
                yield struct.pack("<IIQ", 9, 8, len(value))
                yield from (struct.pack("<Q", len(one)) + one.encode() for one in value)
            else:
                yield struct.pack("<II", 4, value)

    return b"".join(parts())


def test_gguf_without_a_vocabulary_size_counts_its_tokens(tmp_path: Path) -> None:
    path = tmp_path / "lm.gguf"
    ends = {"tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.eot_token_id": 1}
    path.write_bytes(
        header({"general.architecture": "llama", "llama.context_length": 64, "tokenizer.ggml.tokens": ["a", "b", "c"], **ends})
    )  # fmt: skip
    assert gguf.read(path).lengths == {"tokenizer.ggml.tokens": 3}
    about = described(path)[0].generation
    assert about is not None
    assert (about.context, about.vocabulary, about.end) == (64, 3, (1, 2))
