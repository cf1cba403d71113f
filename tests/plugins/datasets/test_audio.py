"""LibriSpeech's layout: samples, lengths and transcripts; every error names the file."""

import json
import re
import shutil
import struct
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.core.extras import how_to_install
from harness.datasets.librispeech import LibrispeechDataset
from harness.datasets.parts.sound import decode
from harness.errors import ConfigError, PluginUnavailable
from harness.models.steps.steps import PREPROCESS
from harness.types import DatasetSetup, Step, TensorSpec
from tests.builders.refusals import refusals

RATE = 1000
SAMPLES = TensorSpec("wave", "float32", ("batch", 500))
LENGTH = TensorSpec("length", "int64", ("batch",))


def audio(**options: Any) -> Step:
    given = {"rate": RATE, "max_seconds": 0.5, **options}
    return Step("audio", PREPROCESS["audio"].model_validate(given).model_dump())


def setup(folder: Path, *specs: TensorSpec, **steps: tuple[Step, ...]) -> DatasetSetup:
    declared = {"wave": (audio(),), "length": (audio(gives="length"),), **steps}
    inputs = specs or (SAMPLES, LENGTH)
    return DatasetSetup(
        inputs=inputs, data_dir=folder, steps={s.name: declared.get(s.name, ()) for s in inputs}
    )


def ramp(count: int) -> list[int]:
    return [(i * 97) % 65536 - 32768 for i in range(count)]


def wav(path: Path, values: list[int], rate: int = RATE, channels: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, 2, rate, 0, "NONE", ""))
        file.writeframes(struct.pack(f"<{len(values)}h", *values))


def chunks(path: Path, form: bytes, values: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"LIST\3\0\0\0abc\0"
    body += b"data" + struct.pack("<I", len(values)) + values
    path.write_bytes(b"RIFF" + struct.pack("<I", len(body)) + body)


def extensible(tag: int, bits: int) -> bytes:
    head = (0xFFFE, 1, RATE, RATE * bits // 8, bits // 8, bits, 22, bits, 4)
    guid = bytes.fromhex("000000001000800000aa00389b71")
    return struct.pack("<HHIIHHHHI", *head) + struct.pack("<H", tag) + guid


@pytest.mark.parametrize("name", ["1-2-0.wav", "1-2-0.WAV", "1-2-0.Wav"])
@pytest.mark.parametrize("bits", [16, 32])
def test_the_extensible_format_is_the_same_sound(name: str, bits: int, tmp_path: Path) -> None:
    values = np.array(ramp(10), "<i4") << (bits - 16)
    chunks(tmp_path / "1/2" / name, extensible(1, bits), values.astype(f"<i{bits // 8}").tobytes())
    (tmp_path / "1/2/1-2.trans.txt").write_text("1-2-0 A\n")
    data = LibrispeechDataset(setup(tmp_path))
    data.load([0])
    assert data.batch([0]).inputs["wave"][0, :10].tolist() == (np.array(ramp(10)) / 32768).tolist()


@pytest.mark.parametrize(
    ("form", "shown"),
    [
        (extensible(3, 32), "floats with 32 bits"),
        (struct.pack("<HHIIHH", 3, 1, RATE, RATE * 8, 8, 64), "floats with 64 bits"),
        (struct.pack("<HHIIHH", 7, 1, RATE, RATE, 1, 8), "mu-law with 8 bits"),
        (struct.pack("<HHIIHH", 99, 1, RATE, RATE, 1, 8), "of format 99 with 8 bits"),
    ],
)
def test_values_other_than_pcm_are_refused_with_advice(
    form: bytes, shown: str, tmp_path: Path
) -> None:
    chunks(tmp_path / "1/2/1-2-0.wav", form, bytes(64))
    (tmp_path / "1/2/1-2.trans.txt").write_text("1-2-0 A\n")
    (line,) = refusal(setup(tmp_path))
    assert line == (
        f"{tmp_path}/1/2/1-2-0.wav cannot be read: its values are {shown}: convert it to 16-bit PCM, "
        "e.g. with ffmpeg -c:a pcm_s16le"
    )


@pytest.mark.parametrize("text", ["THE\u2028CAT", "THE\u0085CAT", "THE\x0bCAT", "THE\x1cCAT"])
def test_a_transcript_ends_at_its_line_feed(text: str, tmp_path: Path) -> None:
    wav(tmp_path / "1/2/1-2-0.wav", ramp(10))
    content = f"\ufeff1-2-0 {text}\r\n"
    (tmp_path / "1/2/1-2.trans.txt").write_bytes(content.encode())
    assert LibrispeechDataset(setup(tmp_path)).label(0) == text


def chapter(folder: Path) -> Path:
    """Writes two speakers; the second utterance is longer than half a second."""
    wav(folder / "19/198/19-198-0001.wav", ramp(800))
    wav(folder / "19/198/19-198-0000.wav", ramp(300))
    wav(folder / "26/495/26-495-0000.wav", ramp(10))
    (folder / "19/198/19-198.trans.txt").write_text(
        "19-198-0000 NORTHANGER ABBEY\n\n19-198-0001 THIS LITTLE WORK\n"
    )
    (folder / "26/495/26-495.trans.txt").write_text("26-495-0000 A\n")
    return folder


def refusal(made: DatasetSetup) -> list[str]:
    return refusals(LibrispeechDataset, made)


def test_samples_are_cut_or_filled_and_have_their_length(tmp_path: Path) -> None:
    data = LibrispeechDataset(setup(chapter(tmp_path)))
    data.load([1, 0, 2])
    batch = data.batch([0, 1, 2]).inputs
    assert batch["length"].tolist() == [300, 500, 10]
    assert str(batch["length"].dtype) == "int64"
    expected = np.zeros((3, 500), np.float32)
    for row, count in enumerate((300, 500, 10)):
        expected[row, :count] = np.array(ramp(count)) / 32768
    assert batch["wave"].tobytes() == expected.tobytes()
    assert [data.label(i) for i in range(3)] == ["NORTHANGER ABBEY", "THIS LITTLE WORK", "A"]
    about = data.describe()
    assert (about["count"], about["cut"]) == (3, 1)


def test_every_width_of_pcm_is_the_same_sound(tmp_path: Path) -> None:
    values = [-128, -1, 0, 1, 127]
    packed = {
        1: bytes(v + 128 for v in values),
        2: struct.pack("<5h", *(v << 8 for v in values)),
        3: b"".join(struct.pack("<i", v << 16)[:3] for v in values),
        4: struct.pack("<5i", *(v << 24 for v in values)),
    }
    for width, content in packed.items():
        path = tmp_path / f"{width}.wav"
        with wave.open(str(path), "wb") as file:
            file.setparams((1, width, RATE, 0, "NONE", ""))
            file.writeframes(content)
        assert decode(path).tolist() == [v / 128 for v in values]


def test_every_fault_is_reported_with_its_file(tmp_path: Path) -> None:
    chapter(tmp_path)
    a, b = tmp_path / "19/198", tmp_path / "26/495"
    wav(a / "19-198-0000.wav", ramp(30), rate=8000)
    wav(a / "19-198-0001.wav", ramp(30), channels=2)
    wav(b / "26-495-0000.wav", [])
    wav(b / "26-495-0003.wav", ramp(3))
    (b / "26-495-0004.wav").write_bytes(b"RIFF")
    (b / "26-495.trans.txt").write_text(
        "26-495-0000 A\n26-495-0000 B\n26-495-0001\n26-495-0002 C\n26-495-0004 D\n"
    )
    text = b / "26-495.trans.txt"
    assert refusal(setup(tmp_path)) == [
        f"{text}:2: '26-495-0000' is also in {text}:1",
        f"{text}:3: no transcript after '26-495-0001'",
        f"{b}/26-495-0003.wav has no transcript",
        (f"{a}/19-198-0000.wav has a sampling rate of 8,000 Hz, but the audio step expects 1,000 Hz: convert the file, because "
        "resampling here would change the scores"),
        f"{a}/19-198-0001.wav has 2 channels: convert it to one channel",
        f"{b}/26-495-0000.wav has no audio samples",
        f"{text}:3: neither 26-495-0001.flac nor 26-495-0001.wav exists",
        f"{text}:4: neither 26-495-0002.flac nor 26-495-0002.wav exists",
        f"{b}/26-495-0004.wav cannot be read: not PCM in a WAV file",
    ]  # fmt: skip


def test_truncated_file_is_reported_at_loading(tmp_path: Path) -> None:
    data = LibrispeechDataset(setup(chapter(tmp_path)))
    path = tmp_path / "19/198/19-198-0000.wav"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(ConfigError, match=r"0000\.wav is truncated: it has 59[23] of 600 bytes$"):
        data.load([0])


def test_folder_without_speech_or_a_file_is_reported_in_one_line(tmp_path: Path) -> None:
    assert refusal(setup(tmp_path)) == [
        f"{tmp_path} has no .flac or .wav files and no *.trans.txt: name their folder"
    ]
    (tmp_path / "x.wav").touch()
    assert refusal(setup(tmp_path / "x.wav")) == [
        f"--data-dir {tmp_path}/x.wav is a file: dataset 'librispeech' needs folders <speaker>/<chapter>"
    ]


def test_two_files_of_one_name_are_reported(tmp_path: Path) -> None:
    chapter(tmp_path)
    wav(tmp_path / "26/198/19-198-0000.wav", ramp(5))
    assert refusal(setup(tmp_path)) == [
        (f"{tmp_path}/26/198/19-198-0000.wav and {tmp_path}/19/198/19-198-0000.wav have the same name: "
        "rename one")
    ]  # fmt: skip


def test_steps_that_do_not_fit_the_model_are_reported(tmp_path: Path) -> None:
    short = TensorSpec("wave", "float32", ("batch", 400))
    assert refusal(setup(tmp_path, short, TensorSpec("length", "int64", ("batch", 2)))) == [
        "input 'wave' takes [400], but its step gives 500 audio samples",
        "input 'length' takes [2], but its step gives one number",
    ]
    assert refusal(setup(tmp_path, SAMPLES, TensorSpec("y", "int64", ("batch",)))) == [
        "dataset 'librispeech' needs an `audio` step for input 'y': declare it in the model's manifest, which `init --model FILE` writes"
    ]
    assert refusal(setup(tmp_path, length=(audio(gives="length", rate=2000),))) == [
        "the inputs' audio steps differ in rate or max_seconds: make them equal"
    ]


def test_flac_is_the_same_sound_as_wav(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    chapter(tmp_path / "wav")
    shutil.copytree(tmp_path / "wav", tmp_path / "flac")
    for path in (tmp_path / "flac").rglob("*.wav"):
        values, rate = soundfile.read(str(path), dtype="int16")
        soundfile.write(str(path.with_suffix(".flac")), values, rate)
        path.unlink()
    one, other = (LibrispeechDataset(setup(tmp_path / kind)) for kind in ("wav", "flac"))
    one.load([0, 1, 2])
    other.load([0, 1, 2])
    inputs = zip(
        one.batch([0, 1, 2]).inputs.values(), other.batch([0, 1, 2]).inputs.values(), strict=True
    )
    assert all(a.tobytes() == b.tobytes() for a, b in inputs)
    assert one.describe()["digest"] != other.describe()["digest"]
    broken = tmp_path / "flac/26/495/26-495-0000.flac"
    broken.write_bytes(b"fLaC?")
    (line,) = refusal(setup(tmp_path / "flac"))
    assert line.startswith(f"{broken} cannot be read: ")


def test_flac_without_its_package_names_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chapter(tmp_path)
    path = tmp_path / "26/495/26-495-0000.wav"
    path.rename(path.with_suffix(".flac"))
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(PluginUnavailable, match=re.escape(f"{how_to_install('audio')}, or conv")):
        LibrispeechDataset(setup(tmp_path))


def test_mlperfs_list_of_clips_is_read_in_its_order(tmp_path: Path) -> None:
    clips = tmp_path / "dev-all-repack"
    for name in ("b.wav", "a.wav"):
        wav(clips / name, ramp(400))
    entries = [
        {
            "transcript": text,
            "files": [{"fname": name, "speed": 1}],
            "original_duration": seconds,
        }
        for name, text, seconds in (
            ("/data/dev-all-repack/b.wav", "it's 3 o'clock", 0.4),
            ("missing.wav", "too long", 30.1),
            ("dev-all-repack/a.wav", "caf\u00e9, Yes", 0.4),
        )
    ]
    (tmp_path / "dev-all-repack.json").write_text(json.dumps(entries))
    data = LibrispeechDataset(setup(tmp_path))
    assert [data.label(i) for i in range(len(data))] == ["it's 3 o'clock", "caf es"]
    named = LibrispeechDataset(setup(tmp_path / "dev-all-repack.json"))
    assert named.describe()["digest"] == data.describe()["digest"]
    data.load([1, 0])
    assert data.batch([0]).inputs["length"].tolist() == [400]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{}", "is not a list of utterances"),
        ("[", "cannot be read"),
        ("[{}]", "entry 0 is not an utterance"),
        ("[]", "has no utterances"),
        (
            '[{"transcript": "a", "files": [{"fname": "a.wav", "speed": 1}], "original_duration": 1}]',
            "the file a.wav does not exist",
        ),
    ],
)
def test_list_of_clips_that_cannot_be_read_is_named(
    content: str, told: str, tmp_path: Path
) -> None:
    (tmp_path / "list.json").write_text(content)
    (found,) = refusals(LibrispeechDataset, setup(tmp_path))
    assert told in found
