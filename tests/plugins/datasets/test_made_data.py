"""Data made from a seed: drawn lines of text, and tones whose notes are known."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from harness.core import registry
from harness.datasets import text_lines, tones
from harness.datasets.text_lines import TextLinesDataset
from harness.datasets.tones import TonesDataset, tone
from harness.models.steps.steps import preprocess_step
from harness.types import DatasetSetup, HasCalibration, Step, TensorSpec
from tests.builders.refusals import refusal

NCHW = preprocess_step("layout", order="nchw")
TO_ONE = preprocess_step("normalise", scale=1 / 255)
RATE = 8000


def lines(
    shape: tuple[int | str | None, ...] = ("batch", 3, 48, 320),
    steps: tuple[Step, ...] = (TO_ONE, NCHW),
    **more: Any,
) -> DatasetSetup:
    options = {"count": "6", **more.pop("options", {})}
    spec = TensorSpec("x", more.pop("dtype", "float32"), shape)
    return DatasetSetup(inputs=(spec,), steps={"x": steps}, options=options, **more)


def clips(
    shape: tuple[int | str, ...] = ("batch", 16000, 1), seconds: float = 2.0, **more: Any
) -> DatasetSetup:
    step = preprocess_step("audio", rate=RATE, max_seconds=seconds)
    options = {"count": "6", **more.pop("options", {})}
    spec = TensorSpec("x", "float32", shape)
    return DatasetSetup(inputs=(spec,), steps={"x": (step,)}, options=options, **more)


def rows(data: Any) -> Any:
    indices = list(range(len(data)))
    data.load(indices)
    return data.batch(indices).inputs["x"]


@pytest.mark.parametrize(("name", "setup"), [("text-lines", lines()), ("tones", clips())])
def test_the_seed_of_the_data_decides_the_samples(name: str, setup: DatasetSetup) -> None:
    made = registry.load("dataset", name)
    first, again = made(setup), made(replace(setup, seed=99))
    other = made(replace(setup, options={"count": "6", "seed": "2"}))
    assert np.array_equal(rows(first), rows(again))
    assert first.describe() == again.describe()
    assert not np.array_equal(rows(first), rows(other))
    assert first.describe()["digest"] != other.describe()["digest"]
    assert [first.label(i) for i in range(6)] == [again.label(i) for i in range(6)]
    assert len(first) == first.describe()["count"] == 6


@pytest.mark.parametrize(("name", "setup"), [("text-lines", lines()), ("tones", clips())])
def test_a_sample_does_not_depend_on_the_count(name: str, setup: DatasetSetup) -> None:
    made = registry.load("dataset", name)
    few = made(replace(setup, options={"count": "2"}))
    assert np.array_equal(rows(few), rows(made(setup))[:2])
    assert len(made(replace(setup, options={}))) >= 128


@pytest.mark.parametrize(("name", "setup"), [("text-lines", lines()), ("tones", clips())])
def test_calibration_shares_no_sample_with_the_scored_data(name: str, setup: DatasetSetup) -> None:
    data = registry.load("dataset", name)(setup)
    assert isinstance(data, HasCalibration)
    ours, theirs = rows(data), rows(data.calibration())
    assert ours.shape == theirs.shape
    assert not any(np.array_equal(one, other) for one in ours for other in theirs)


@pytest.mark.parametrize(("name", "setup"), [("text-lines", lines()), ("tones", clips())])
def test_the_steps_are_part_of_the_digest(name: str, setup: DatasetSetup) -> None:
    made = registry.load("dataset", name)
    first, *rest = setup.steps["x"]
    more = preprocess_step("normalise", scale=0.5)
    changed = (more, *rest) if name == "text-lines" else (first, more)
    other = replace(setup, steps={"x": changed})
    assert made(setup).describe()["digest"] != made(other).describe()["digest"]


@pytest.mark.parametrize(("name", "setup"), [("text-lines", lines()), ("tones", clips())])
@pytest.mark.parametrize(("option", "value"), [("count", "0"), ("count", "ten"), ("seed", "-1")])
def test_option_that_is_not_a_number_is_refused(
    name: str, setup: DatasetSetup, option: str, value: str
) -> None:
    told = refusal(registry.load("dataset", name), replace(setup, options={option: value}))
    assert told.startswith(f"--dataset-option {option}={value} is not a whole number from 1 to ")


def test_lines_hold_words_and_numbers_that_fit_the_image() -> None:
    data = TextLinesDataset(lines(options={"count": "60"}))
    texts = [data.label(i) for i in range(60)]
    assert len(set(texts)) > 50
    assert any(text.isdecimal() for text in " ".join(texts).split())
    words = {word.lower() for word in " ".join(texts).split() if word.isalpha()}
    assert words <= set(text_lines.WORDS)
    assert len(words) > 20
    found = rows(data)
    assert found.shape == (60, 3, 48, 320)
    assert found.dtype == np.float32
    assert 0 <= found.min() < found.max() <= 1


def test_every_line_fits_its_image_and_can_be_seen() -> None:
    for line in TextLinesDataset(lines(options={"count": "60"}))._lines:
        sharp, blurred = (
            text_lines.drawn(one, 48, 320).astype(int)
            for one in (line._replace(blur_pixels=0.0), line)
        )
        ink = np.abs(sharp - line.paper).max(axis=2)
        assert ink.max() > 60
        edges = ink[:, -2:], ink[:2], ink[-2:]
        assert not any(edge.any() for edge in edges), line
        assert np.abs(blurred - line.paper).max() > 20


def test_line_in_another_layout_or_colour_is_the_same_image() -> None:
    colour = rows(TextLinesDataset(lines()))
    last = rows(TextLinesDataset(lines(("batch", 48, 320, 3), (TO_ONE,))))
    assert np.array_equal(colour, last.transpose(0, 3, 1, 2))
    bgr = (preprocess_step("decode", colour="bgr"), TO_ONE, NCHW)
    assert np.array_equal(rows(TextLinesDataset(lines(steps=bgr))), colour[:, ::-1])
    grey = (preprocess_step("decode", colour="grey"), NCHW)
    one = rows(TextLinesDataset(lines(("batch", 1, 48, 320), grey, dtype="uint8")))
    assert (one.shape, one.dtype) == ((6, 1, 48, 320), np.dtype(np.uint8))


@pytest.mark.parametrize(
    ("shape", "steps"),
    [
        (("batch", 3, 48, "width"), (NCHW,)),
        (("batch", 48, 320, 3), (NCHW,)),
        (("batch", 1, 48, 320), (NCHW,)),
        (("batch", 320), ()),
    ],
)
def test_input_without_a_fixed_size_is_refused_with_an_example(
    shape: tuple[int | str, ...], steps: tuple[Step, ...]
) -> None:
    told = refusal(TextLinesDataset, lines(shape, steps))
    assert told.startswith(
        "dataset 'text-lines' draws images as large as the model's input, but the input 'x' is [batch, "
    )
    example = "[batch, 3, 48, 320]" if steps else "[batch, 48, 320, 3]"
    assert told.endswith(f": write its sizes in the manifest, e.g. {example}")


def test_image_that_is_higher_than_wide_is_refused() -> None:
    told = refusal(TextLinesDataset, lines(("batch", 3, 64, 32)))
    assert "pixels high and at least as wide, but the input 'x' is [batch, 3, 64, 32]" in told


def test_lines_for_a_model_with_two_inputs_are_refused() -> None:
    setup = lines()
    two = replace(setup, inputs=(*setup.inputs, TensorSpec("y", "float32", ("batch", 2))))
    told = refusal(TextLinesDataset, two)
    assert told == (
        "dataset 'text-lines' has one image per sample, but the model takes x, y: choose a different --dataset"
    )


def test_resizing_step_is_refused() -> None:
    told = refusal(TextLinesDataset, lines(steps=(preprocess_step("resize", size=9), NCHW)))
    assert "dataset 'text-lines' has no step resize, only decode, normalise, layout" in told.replace("'resize'", "resize")  # fmt: skip


def test_decoder_for_images_that_are_drawn_is_refused() -> None:
    steps = (preprocess_step("decode", decoder="opencv", colour="bgr"), NCHW)
    told = refusal(TextLinesDataset, lines(steps=steps))
    assert told == (
        "dataset 'text-lines' draws its images: the step `decode` of input 'x' may set only `colour`"
    )


def test_clips_hold_their_notes_and_silence_elsewhere() -> None:
    data = TonesDataset(clips(options={"count": "40"}))
    found = rows(data)
    assert found.shape == (40, 16000, 1)
    assert 0.1 < np.abs(found).max() <= 1
    sizes = set()
    for index, clip in enumerate(found[..., 0]):
        notes = data.label(index)
        sizes.add(len(notes))
        sounding = np.zeros(len(clip), bool)
        for onset, end, pitch in notes:
            assert tones.MARGIN_SECONDS <= onset < end <= 2.0 - tones.MARGIN_SECONDS
            assert tones.LOWEST <= pitch <= tones.HIGHEST
            sounding[round(onset * RATE) : round(end * RATE)] = True
            assert np.abs(clip[round(onset * RATE) :][:160]).max() > 0.01
        assert not clip[~sounding].any()
    assert len(sizes) > 3


def test_events_of_a_clip_do_not_overlap() -> None:
    data = TonesDataset(clips(options={"count": "40"}))
    for index in range(40):
        times = sorted({(onset, end) for onset, end, _ in data.label(index)})
        assert all(end < later for (_, end), (later, _) in pairwise(times))


@pytest.mark.parametrize(("pitch", "hertz"), [(69, 440.0), (57, 220.0), (72, 523.2511)])
def test_tone_has_the_frequency_of_its_pitch(pitch: int, hertz: float) -> None:
    note = tones.Note(0, RATE, pitch, 0.5, 1.0)
    spectrum = np.abs(np.fft.rfft(tone(note, RATE) * np.hanning(RATE)))
    assert int(spectrum.argmax()) == pytest.approx(hertz, abs=0.5)
    assert np.abs(tone(note, RATE)).max() <= 1


def test_sound_is_of_16_bits() -> None:
    whole = rows(TonesDataset(clips())) * 32768
    assert np.array_equal(whole, whole.round())


def test_tones_of_another_length_than_the_input_are_refused() -> None:
    told = refusal(TonesDataset, clips(("batch", 999)))
    assert told == "input 'x' takes [999], but its step gives 16,000 audio samples"
    told = refusal(TonesDataset, clips(("batch", 4000), 0.5))
    assert told == (
        "dataset 'tones' needs clips of at least 0.9 s, but the step `audio` of input 'x' has 0.500 s: choose a "
        "different --dataset"
    )


@pytest.mark.parametrize("gives", ["length", ""])
def test_tones_without_an_audio_step_are_refused(gives: str) -> None:
    setup = clips()
    steps = (preprocess_step("audio", gives=gives),) if gives else ()
    told = refusal(TonesDataset, replace(setup, steps={"x": steps}))
    assert told == (
        "dataset 'tones' needs a model with one input that has an `audio` step: declare it in the model's manifest, which `init --model FILE` writes"
    )
