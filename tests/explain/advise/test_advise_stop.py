"""`advise` stopped by Ctrl-C keeps its measurements and does not repeat them."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from harness.cli.main import main
from harness.explain.advise import job as advise_job
from harness.explain.advise import measure
from harness.explain.advise.checks import weights
from harness.explain.advise.layers import bench
from tests.builders.models.nets import inception
from tests.builders.refusals import Said

pytest.importorskip("onnxruntime")

_PARTS = ("weights", "storage", "operators", "checks")


def _words(folder: Path, out: str, *more: str) -> list[str]:
    skipped = [word for part in _PARTS for word in ("--skip", part)]
    files = ["--database", str(folder / "l.sqlite"), "--out", str(folder / out)]
    few = ["--threads", "1", "--vary", "graph", "--pairs", "1", "--samples", "1", "--passes", "2"]
    return ["advise", "--model", str(folder / "net.onnx"), *few, *files, *skipped, *more]


class _Counting:
    """Stands in for the measurement of a layer. until: number of measured layers before it raises KeyboardInterrupt."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, until: int | None = None) -> None:
        self.keys: list[Any] = []
        self._until = until
        self._timed = bench._layer_times
        monkeypatch.setattr(bench, "_layer_times", self)

    def __call__(self, cut: Any, setting: Any, *others: Any) -> Any:
        if self._until is not None and len(self.keys) == self._until:
            raise KeyboardInterrupt
        self.keys.append((cut.brick.digest, setting))
        return self._timed(cut, setting, *others)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench, "_ENOUGH_NS", 0)
    monkeypatch.setattr(bench, "_LEAST_RUNS", 2)
    inception(tmp_path / "net.onnx", modules=1)


@pytest.mark.parametrize("until", [0, 5, 20])
def test_layers_measured_before_are_not_measured_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], until: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        stopped = _Counting(patch, until)
        assert main(_words(tmp_path, "one", "--quiet")) == 130
    output = capsys.readouterr().err
    folder = tmp_path / "one.partial"
    assert f"stopped: advise --from {folder} shows the results so far" in output
    assert not (tmp_path / "one").exists()
    assert len(stopped.keys) == until
    content = json.loads((folder / "advise.json").read_text())
    assert content["counted"]["ran"] == len(set(stopped.keys))
    assert content["stopped"]
    assert main(["advise", "--from", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "stopped by Ctrl-C" in text
    assert "keep the current settings" not in text
    with pytest.MonkeyPatch.context() as patch:
        rest = _Counting(patch)
        assert main(_words(tmp_path, "two", "--quiet")) == 0
    all_keys = [*stopped.keys, *rest.keys]
    assert {all_keys.count(key) for key in all_keys} == {2}, "two passes of each, in all"
    assert not json.loads((tmp_path / "two/advise.json").read_text())["stopped"]


def test_every_table_is_rebuilt_from_the_stored_files(tmp_path: Path, prints: Said) -> None:
    words = _words(tmp_path, "one", "--quiet")
    del words[-9:-1]  # the slice is an option with all its values
    output, out = prints(*words, "--skip", "storage"), tmp_path / "one"
    files = {name: (out / name).read_bytes() for name in ("advise.json", "advise.html")}
    for name in files:
        (out / name).unlink()
    assert prints("advise", "--from", out) == output
    assert {name: (out / name).read_bytes() for name in files} == files
    assert prints("advise", "--from", out, "--json").encode() == files["advise.json"]


def test_the_int8_file_is_in_the_folder(tmp_path: Path) -> None:
    """Bug: the file was only in the cache, and faster.yaml named a missing file."""
    words = _words(tmp_path, "one", "--quiet")
    words[words.index("graph")] = "precision"
    assert main(words) == 0
    measured = json.loads((tmp_path / "one/measured.json").read_text())
    content = (tmp_path / "one/int8.onnx").read_bytes()
    assert hashlib.sha256(content).hexdigest() == measured["accuracy"]["sha256"]


@pytest.mark.parametrize("where", ["_pairs", "_profiles"])
def test_a_stop_keeps_a_folder_only_after_a_measurement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, where, stop)
    assert main(_words(tmp_path, "one", "--quiet")) == 130
    output, folder = capsys.readouterr().err, tmp_path / "one.partial"
    assert folder.exists() == (where == "_pairs"), "nothing was measured yet: nothing is left"
    assert ("advise --from" in output) == (where == "_pairs")
    if folder.exists():
        assert json.loads((folder / "advise.json").read_text())["advice"]


def test_a_stop_in_the_parts_keeps_the_earlier_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(advise_job, "PARTS", {"weights": weights.check, "checks": stop})
    words = _words(tmp_path, "one", "--quiet")
    del words[-9:-1]
    assert main(words) == 130
    parts = json.loads((tmp_path / "one.partial/advise.json").read_text())["parts"]
    assert list(parts) == ["weights"]
    assert parts["weights"]
