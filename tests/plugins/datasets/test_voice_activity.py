"""The dataset of a voice that speaks intermittently: equal in each process, with labels that follow the sound."""

import numpy as np
import pytest

from harness.datasets.voice_activity import COUNT, FRAMES, HOP, VoiceActivityDataset
from harness.errors import ConfigError
from harness.types import Dataset, DatasetSetup, TensorSpec


def made(*shape: int | str, seed: int = 0, dtype: str = "float32") -> VoiceActivityDataset:
    spec = TensorSpec("input", dtype, ("batch", *shape))
    return VoiceActivityDataset(DatasetSetup(inputs=(spec,), seed=seed))


def test_a_sample_is_the_same_in_each_order_and_process() -> None:
    one, other = made(20, 576), made(20, 576)
    one.load([3, 4])
    other.load([4])
    assert np.array_equal(one.batch([4]).inputs["input"], other.batch([4]).inputs["input"])
    assert one.describe()["digest"] == other.describe()["digest"]
    assert one.describe()["digest"] != made(20, 576, seed=1).describe()["digest"]


def test_a_frame_begins_with_the_end_of_the_frame_before() -> None:
    dataset = made(8, 576)
    dataset.load([0])
    (rows,) = dataset.batch([0]).inputs["input"]
    assert rows.shape == (8, 576)
    assert rows.dtype == np.float32
    assert np.array_equal(rows[1:, :64], rows[:-1, HOP:])
    assert not rows[0, :64].any()


def test_labels_follow_the_loudness_of_the_voice() -> None:
    """Speech is louder than the room; pauses that contain another sound are left out."""
    dataset = made("frames", HOP)
    labels = np.concatenate([dataset.label(i) for i in range(6)])
    dataset.load(list(range(6)))
    rows = dataset.batch(list(range(6))).inputs["input"].reshape(-1, HOP)
    assert len(labels) == 6 * FRAMES == len(rows)
    assert 0.3 < labels.mean() < 0.8
    quiet = np.sqrt((rows**2).mean(axis=1)) < 0.002
    assert labels[quiet].mean() < 0.15


@pytest.mark.parametrize(
    ("shape", "dtype"), [((20, 100), "float32"), ((20, 576), "int16"), ((576,), "float32")]
)
def test_a_model_that_takes_no_sound_is_refused(shape: tuple[int, ...], dtype: str) -> None:
    with pytest.raises(ConfigError, match="dataset 'voice-activity' has float32 sequences"):
        made(*shape, dtype=dtype)


def test_it_is_a_dataset() -> None:
    dataset: Dataset = made(4, 576)
    assert len(dataset) == COUNT
