"""`data check` refuses what a run would refuse."""

from pathlib import Path

import numpy as np
import pytest

from harness.cli.main import main
from harness.core.files import cache_dir

MANIFEST = """name: net
files: {}
inputs: [{name: x, dtype: float32, shape: [batch, 4], preprocess: [{normalise: {mean: 0.5, std: 0.5}}]}]
outputs: [{name: y, postprocess: [{hook: {file: hook.py, function: best}}]}]
dataset: npz
accuracy: {metric: METRIC, target: 50}
"""


def checked(
    folder: Path, labels: object, metric: str, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    """Returns the exit status of `data check` and its output."""
    (folder / "net.yaml").write_text(MANIFEST.replace("METRIC", metric))
    (folder / "hook.py").write_text("raise RuntimeError('data check runs no model')")
    np.savez(folder / "d.npz", x=np.zeros((2, 4)), labels=np.array(labels))
    model, data = str(folder / "net.yaml"), str(folder / "d.npz")
    status = main(["data", "check", "npz", "--model", model, "--data-dir", data])
    return status, "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("labels", "metric"),
    [
        ([0, 1], "top1"),
        ([[0], [1]], "top5"),
        ([0.0, 1.0], "top1"),
        (["a", "b"], "exact_match"),
        (["cat", "ant"], "top1"),
        ([[b"cat"], [b"ant"]], "top5"),
        (["10", "2"], "top1"),
    ],
)
def test_labels_that_the_metric_takes_pass_without_the_hook(
    labels: object, metric: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _ = checked(tmp_path, labels, metric, capsys)
    assert status == 0


@pytest.mark.parametrize(
    ("labels", "metric", "shown"),
    [
        ([[1, 0], [0, 1]], "top1", "the label of sample 0 is array([1, 0])"),
        ([0.5, 1], "top1", "the label of sample 0 is 0.5"),
        (
            ["cat", "7"],
            "top5",
            "the label of sample 1 is the string '7', which would be class 0 if read as a name",
        ),
        ([1, 2], "exact_match", "the label of sample 0 is not a string: 1"),
        ([1, 2], "wer", "the label of sample 0 is not a string: 1"),
    ],
)
def test_labels_that_the_metric_does_not_take_are_a_fault(
    labels: object, metric: str, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text = checked(tmp_path, labels, metric, capsys)
    assert status == 4
    assert f"metric '{metric}' cannot score the labels" in text
    assert shown in text


def test_labels_that_are_not_utf_8_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text = checked(tmp_path, [[b"\xff"], [b"a"]], "top1", capsys)
    assert status == 2
    assert "array 'labels' has bytes that are not UTF-8: store strings" in text


def test_the_number_of_each_text_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, text = checked(tmp_path, ["wasp", "ant"], "top1", capsys)
    assert "labels          0  ant         1\nlabels          1  wasp        1\n" in text


@pytest.mark.parametrize(("last", "status"), [(9, 0), (10, 2)])
def test_a_label_outside_the_model_classes_is_refused_before_the_run(
    last: int, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "d.npz", image=np.zeros((2, 1, 8, 8), np.float32), labels=[0, last])
    words = "--scenario single-stream --queries 64 --quiet --no-report --model digits --dataset npz"
    data, out = str(tmp_path / "d.npz"), str(tmp_path / "out")
    assert main([*words.split(), "--data-dir", data, "--out", out]) == status
    if status:
        assert (
            "the label of sample 1 is 10, outside the model's classes 0 to 9: number the labels like the model's classes"
            in capsys.readouterr().err
        )


@pytest.mark.parametrize("home", [None, "relative"])
def test_without_a_home_a_cache_folder_cannot_be_created(
    home: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path.replace("~", home or "~"))
    with pytest.raises(OSError, match=r"File exists|Not a directory"):
        cache_dir().mkdir(parents=True, exist_ok=True)


@pytest.mark.parametrize("kind", ["npz", "parquet"])
@pytest.mark.parametrize(
    ("content", "told"),
    [
        (
            b"version https://git-lfs.github.com/spec/v1\n",
            "it is a Git LFS pointer, not the data: run",
        ),
        (b"<!DOCTYPE html>", "it is a web page, not the data: fetch the file itself"),
        (b"", "the file is empty: fetch it again"),
    ],
)
def test_a_pointer_web_page_or_empty_file_is_refused_as_data(
    kind: str, content: bytes, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"d.{kind}"
    path.write_bytes(content)
    assert main(["data", "check", kind, "--model", "digits", "--data-dir", str(path)]) == 2
    assert told in capsys.readouterr().err
