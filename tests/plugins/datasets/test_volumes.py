"""Volumes by case: shapes differ, labels are segmentations, and pickles are refused."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.datasets.kits import MEMORY_LIMIT_BYTES, Case, KitsDataset
from harness.errors import ConfigError
from harness.models.steps.steps import PREPROCESS
from harness.types import DatasetSetup, Step, TensorSpec
from tests.builders.refusals import refusals
from tests.faults.command import run

VOLUME = TensorSpec("image", "float32", ("batch", 1, "d", "h", "w"))


def setup(folder: Path, *steps: Step, spec: TensorSpec = VOLUME) -> DatasetSetup:
    return DatasetSetup(inputs=(spec,), data_dir=folder, steps={spec.name: steps})


def case(root: Path, number: int, *shape: int, label: bool = True) -> Path:
    folder = root / f"case_{number:05}"
    folder.mkdir()
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    np.save(folder / "imaging.npy", values)
    if label:
        np.save(folder / "segmentation.npy", (values % 3).astype(np.uint8))
    return folder


def test_cases_are_volumes_with_a_channel_and_their_segmentations(tmp_path: Path) -> None:
    case(tmp_path, 2, 1, 3, 4, 5)
    case(tmp_path, 0, 2, 3, 4)
    clip = Step("clip", PREPROCESS["clip"].model_validate({"low": 1, "high": 20}).model_dump())
    data = KitsDataset(setup(tmp_path, clip))
    data.load([1, 0, 1])
    first, second = (data.batch([i]).inputs["image"] for i in (0, 1))
    assert (first.shape, second.shape) == ((1, 1, 2, 3, 4), (1, 1, 3, 4, 5))
    assert first.ravel().tolist() == np.clip(np.arange(24), 1, 20).tolist()
    label: Any = data.label(0)
    assert (label.shape, int(label.sum())) == ((2, 3, 4), 24)
    with pytest.raises(ConfigError, match=r"cannot form one batch: run with --max-batch 1$"):
        data.batch([0, 1])
    assert data.describe()["shapes"] == ["1x2x3x4", "1x3x4x5"]


def test_cases_without_segmentations_have_no_labels(tmp_path: Path) -> None:
    case(tmp_path, 0, 2, 3, 4, label=False)
    assert KitsDataset(setup(tmp_path)).label(0) is None
    case(tmp_path, 1, 2, 3, 4)
    assert refusals(KitsDataset, setup(tmp_path)) == [
        f"{tmp_path}/case_00000 has no segmentation.npy, but other cases do"
    ]


def test_case_that_is_not_a_preprocessed_volume_is_reported(tmp_path: Path) -> None:
    (tmp_path / "case_00000.pkl").write_bytes(pickle.dumps([np.zeros(1), np.zeros(1)]))
    (tmp_path / "case_00001").mkdir()
    (tmp_path / "case_00001/imaging.nii.gz").touch()
    case(tmp_path, 2, 4, 4)
    wrong = case(tmp_path, 3, 2, 2, 2)
    np.save(wrong / "segmentation.npy", np.zeros((2, 2, 3)))
    np.save(case(tmp_path, 4, 2, 2, 2) / "imaging.npy", np.array([[None]]))
    (case(tmp_path, 5, 2, 2, 2) / "imaging.npy").write_bytes(b"")
    case(tmp_path, 6, 2, 0, 2)
    at = tmp_path
    lines = refusals(KitsDataset, setup(tmp_path))
    assert lines[:5] == [
        (f"{at}/case_00000.pkl is a pickle, which runs code when it is read: if you trust it, write "
        "its two arrays with numpy.save to case_00000/imaging.npy and "
        "case_00000/segmentation.npy, then remove it"),
        (f"{at}/case_00001/imaging.nii.gz is a raw scan: preprocess it, and write the result to "
        "imaging.npy in its folder"),
        f"{at}/case_00002/imaging.npy is float32 of shape [4, 4], but input 'image' takes numbers of shape [1, d, h, w]",
        (f"{at}/case_00003/segmentation.npy is [2, 2, 3], but imaging.npy is [2, 2, 2]: they must belong to the "
        "same case"),
        (f"{at}/case_00004/imaging.npy cannot be read: Array can't be memory-mapped: Python objects "
        "in dtype."),
    ]  # fmt: skip
    assert lines[5].startswith(f"{at}/case_00005/imaging.npy cannot be read: ")
    assert "case_00006/imaging.npy" in lines[6]


def test_an_empty_folder_is_reported_in_one_line(tmp_path: Path) -> None:
    assert refusals(KitsDataset, setup(tmp_path)) == [
        f"{tmp_path} has no folders with imaging.npy: nothing can be measured"
    ]


def test_large_volumes_are_held_in_smaller_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    huge = Case("x", tmp_path, None, (1, 1, 1, 1), MEMORY_LIMIT_BYTES // 3)
    monkeypatch.setattr("harness.datasets.kits.read_cases", lambda *_: [huge] * 9)
    assert KitsDataset(setup(tmp_path)).performance_count == 3


def test_a_run_on_a_pickle_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    trap = b"cos\nsystem\n(S'touch " + bytes(tmp_path) + b"/ran'\ntR."
    (data / "case_00000.pkl").write_bytes(trap)
    done = run(
        "--scenario", "offline", "--queries", "500", "--dataset", "kits",
        "--data-dir", str(data), "--out", f"{tmp_path}/r",
    )  # fmt: skip
    assert done.status == 2
    assert done.said.splitlines()[-1].startswith(f"harness: {data}/case_00000.pkl is a pickle")
    assert not (tmp_path / "ran").exists()
