"""Generated chats contain media of the requested sizes, and equal media for equal seeds."""

import base64
import io
import json
import wave
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.cli.main import main
from harness.core import registry
from harness.datasets.text.synthetic_chats import SyntheticChatsDataset
from harness.errors import ConfigError
from tests.plugins.datasets.text.test_made_prompts import prompts, setup
from tests.run.test_token_runs import MANIFEST
from tests.stand_ins.servers.token_server import VLLM, TokenServer


def made(seed: int = 0, **options: Any) -> SyntheticChatsDataset:
    return SyntheticChatsDataset(setup({"count": "6", **options}, seed=seed))


def parts_of(row: dict[str, Any]) -> list[dict[str, Any]]:
    ((message),) = row["messages"]
    assert message["role"] == "user"
    parts: list[dict[str, Any]] = message["content"]
    return parts


def pixels(part: dict[str, Any]) -> Any:
    """Decodes a PNG with eight bits per colour and unfiltered rows."""
    head, _, text = part["image_url"]["url"].partition(",")
    assert head == "data:image/png;base64"
    file = base64.b64decode(text)
    width, height = np.frombuffer(file[16:24], ">u4").tolist()
    begin = file.index(b"IDAT") + 4
    size = int.from_bytes(file[begin - 8 : begin - 4])
    assert zlib.crc32(file[begin - 4 : begin + size]) == int.from_bytes(
        file[begin + size : begin + size + 4]
    )
    rows = np.frombuffer(zlib.decompress(file[begin : begin + size]), np.uint8)
    rows = rows.reshape(height, 1 + 3 * width)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, 3)


def test_images_have_their_size_and_differ() -> None:
    rows = prompts(made(images="2", size="40x24", words="5", output="9"))
    seen = set()
    for row in rows:
        *images, text = parts_of(row)
        assert row["max_tokens"] == 9
        assert len(text["text"].split()) == 5
        for image in images:
            found = pixels(image)
            assert found.shape == (24, 40, 3)
            seen.add(found.tobytes())
    assert len(seen) == 2 * len(rows)


def test_pillow_reads_the_images() -> None:
    image = pytest.importorskip("PIL.Image")
    (row, *_) = prompts(made(size="65x33"))
    part = parts_of(row)[0]
    text = part["image_url"]["url"].partition(",")[2]
    with image.open(io.BytesIO(base64.b64decode(text))) as opened:
        assert (opened.size, opened.mode) == ((65, 33), "RGB")
        assert (np.asarray(opened) == pixels(part)).all()


def test_sound_has_its_length_and_no_image_comes_with_it() -> None:
    rows = prompts(made(seconds="1.5"))
    sounds = set()
    for row in rows:
        audio, text = parts_of(row)
        assert (audio["type"], text["type"]) == ("input_audio", "text")
        assert audio["input_audio"]["format"] == "wav"
        file = base64.b64decode(audio["input_audio"]["data"])
        with wave.open(io.BytesIO(file)) as sound:
            assert (sound.getframerate(), sound.getnchannels()) == (16_000, 1)
            assert sound.getnframes() == 24_000
            frames = np.frombuffer(sound.readframes(24_000), "<i2")
        assert np.abs(frames).max() > 7_000
        sounds.add(file)
    assert len(sounds) == len(rows)
    both = parts_of(prompts(made(seconds="1", images="1"))[0])
    assert [part["type"] for part in both] == ["image_url", "input_audio", "text"]


def test_the_seed_alone_decides() -> None:
    options: dict[str, Any] = {"images": "1", "size": "32x32", "seconds": "0.1", "words": "3:9"}
    assert prompts(made(**options)) == prompts(made(**options))
    assert made(**options).describe() == made(**options).describe()
    assert prompts(made(**options)) != prompts(made(seed=1, **options))
    assert made(**options).describe()["digest"] != made(seed=1, **options).describe()["digest"]


@pytest.mark.parametrize(
    "option",
    [
        *("images=17", "images=-1", "size=512", "size=0x5", "size=9000x5", "seconds=x"),
        *("seconds=601", "words=0", "output=0", "count=0"),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(option: str) -> None:
    name, _, value = option.partition("=")
    with pytest.raises(ConfigError, match=f"--dataset-option {name}="):
        made(0, **{name: value})


def test_a_run_sends_the_media(tmp_path: Path) -> None:
    assert "synthetic-chats" in registry.DATASETS
    (tmp_path / "tiny.yaml").write_text(MANIFEST)
    of_data = ("size=64x64", "output=4", "count=8")
    words = [word for option in of_data for word in ("--dataset-option", option)]
    with TokenServer(VLLM) as server:
        words += ["--backend", "openai", "--url", server.url, "--dataset", "synthetic-chats"]
        words += ["--model", str(tmp_path / "tiny.yaml"), "--scenario", "single-stream"]
        words += ["--queries", "80", "--mode", "performance", "--no-metrics", "--no-report"]
        status = main([*words, "--out", str(tmp_path / "run")])
        chats = [body["messages"] for body in server.requests if "messages" in body]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert {reason["code"] for reason in result["reasons"]} <= {"client-bound"}
    assert status == (4 if result["reasons"] else 0)
    assert result["dataset_description"]["size"] == "64x64"
    sent = [chat[0]["content"][0] for chat in chats if isinstance(chat[0]["content"], list)]
    assert len(sent) >= 80
    assert pixels(sent[-1]).shape == (64, 64, 3)
