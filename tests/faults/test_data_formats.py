"""Files of the user's that are missing, broken or of something else: one line each, exit status 2."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.faults.command import SERVER, SHORT, run

NULL = (*SERVER, *SHORT, "--backend", "null")
"""With the digits model: one input `image`, float32 of 1x8x8."""


def archive() -> bytes:
    file = io.BytesIO()
    np.savez(file, image=np.zeros((40, 64), np.float32), labels=np.zeros(40, int))
    return file.getvalue()


def table(row: str) -> bytes:
    header = ",".join(f"p{i}" for i in range(64)) + ",label\n"
    return (header + "0," * 64 + "0\n" + row + "\n").encode()


Made = Callable[[], bytes]


@pytest.mark.parametrize(
    ("dataset", "file", "content", "told"),
    [
        ("npz", "data.npz", lambda: archive()[:-30], " cannot be read: File is not a zip file"),
        ("csv", "data.csv", lambda: table("0," * 63 + "nan,1"), ":3: column 'p63' is 'nan', not a number"),
    ],
)  # fmt: skip
def test_a_broken_file_is_one_line(
    dataset: str, file: str, content: Made, told: str, tmp_path: Path
) -> None:
    path = tmp_path / file
    path.write_bytes(content())
    done = run(*NULL, "--dataset", dataset, "--data-dir", str(path), "--out", f"{tmp_path}/r")
    assert (done.status, done.printed) == (2, "")
    assert done.said == f"harness: {path}{told}\n"
    assert not (tmp_path / "r").exists()


def test_a_model_of_another_task_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "dev-v1.1.json").write_text(json.dumps({"data": []}))
    done = run(*NULL, "--dataset", "squad", "--data-dir", f"{tmp_path}", "--out", f"{tmp_path}/r")
    assert done.status == 2
    assert done.said == (
        "harness: dataset 'squad' needs a `tokenise` step for input 'image': declare it in the "
        "model's manifest\n"
    )


def test_options_of_synthetic_data_are_not_ignored_by_others(tmp_path: Path) -> None:
    (tmp_path / "data.npz").write_bytes(archive())
    done = run(
        *(*NULL, "--dataset", "npz", "--data-dir", f"{tmp_path}", "--out", f"{tmp_path}/r"),
        *("--input-shape", "image=1x1x8x8"),
    )
    assert done.status == 2
    assert done.said == "harness: --input-shape is of dataset 'synthetic': drop it for 'npz'\n"


@pytest.mark.slow
def test_a_name_of_the_hub_without_its_split_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("datasets.load")
    done = run(
        *(*NULL, "--dataset", "huggingface", "--data-dir", "hf:imdb", "--out", f"{tmp_path}/r"),
        *("--hang-timeout", "60s"),  # the package takes 8 s to import
    )
    assert done.status == 2
    assert done.said == (
        "harness: --data-dir hf:imdb: write hf:NAME@SPLIT or hf:NAME:CONFIGURATION@SPLIT\n"
    )
