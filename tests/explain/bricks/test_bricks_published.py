"""Published bricks on a different machine: order, database, and refused folders."""

import hashlib
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.cli.main import main
from harness.explain.bricks.cut import record
from harness.explain.bricks.published import read_published
from harness.explain.bricks.time import runs
from harness.models.graph.onnx_file import read
from tests.builders.models.nets import inception, residual
from tests.builders.refusals import Said

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def _published(folder: Path, *models: Path, with_order: bool = True) -> Path:
    public = folder / "public"
    words = ["bricks", *map(str, models), "-G", "4", "--structure", "--publish", str(public)]
    assert main([*words, *["--publish-order"] * with_order]) == 0
    return public


def _run(*words: str, out: Path) -> dict[str, Any]:
    base = str(out.with_name("b.sqlite"))
    assert main(["bricks", *words, "--rounds", "1", "--database", base, "--out", str(out)]) == 0
    content: dict[str, Any] = json.loads((out / "bricks.json").read_text())
    return content


@pytest.mark.parametrize("make", [residual, inception])
def test_published_bricks_rebuild_the_same_model(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    path = make(tmp_path / "secret.onnx")
    public = _published(tmp_path, path)
    own = record.cut("m", read(path), 4)
    (other,) = read_published(public)
    assert own.about is not None
    assert other.about is not None
    for output in ("layers", "op_types", "readers", "published_lengths"):
        assert other.about[output] == own.about[output], output
    for ours, theirs in zip(own.about["pieces"], other.about["pieces"], strict=True):
        assert [theirs[k] for k in ("brick", "layers")] == [ours[k] for k in ("brick", "layers")]
    text = (public / "index.json").read_text()
    assert not any(word in text for word in ("secret", "Conv0", "Relu1", "batch"))
    for digest, cut in own.by_digest.items():
        assert other.by_digest[digest].model() == cut.model()


def test_another_user_can_run_and_store_published_bricks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = residual(tmp_path / "secret.onnx")
    public = _published(tmp_path, path)
    content = _run(str(public), out=tmp_path / "theirs")
    output = capsys.readouterr().out
    model = content["models"][str(public)]
    assert model["whole"]["cpu_ns"] == []
    assert model["overhead"]["cpu_ns"]
    assert all(brick["fresh"] for brick in content["bricks"].values())
    assert "BRICKS  1 model  at most 4 layers" in output
    assert "construction" in output
    assert main(["bricks", "--from", str(tmp_path / "theirs")]) == 0
    assert output.endswith(capsys.readouterr().out)
    # The owner's model consists of the same bricks, so `bricks` runs none of them again.
    assert not any(
        b.get("fresh") for b in _run(str(path), "-G", "4", out=tmp_path / "o")["bricks"].values()
    )


def test_without_an_order_every_brick_is_reported_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], prints: Said, refuses: Said
) -> None:
    models = residual(tmp_path / "one.onnx"), inception(tmp_path / "two.onnx")
    public = _published(tmp_path, *models, with_order=False)
    assert "models" not in json.loads((public / "index.json").read_text())
    content = _run(str(public), out=tmp_path / "out")
    output = capsys.readouterr().out
    assert content["models"] == {}
    assert len(content["bricks"]) == len(list(public.glob("*.onnx")))
    assert "bricks: the slowest" in output
    assert "construction" not in output
    assert all(
        row["cpu_ns"] > 0
        for row in json.loads(prints("bricks", "--from", tmp_path / "out", "--json"))["bricks"]
    )
    again = ["bricks", str(public), "--structure", "--publish", str(tmp_path / "x")]
    assert "was published without its order" in refuses(*again, "--publish-order")


def test_several_published_models_are_listed_separately(tmp_path: Path) -> None:
    models = residual(tmp_path / "one.onnx"), inception(tmp_path / "two.onnx")
    public = _published(tmp_path, *models)
    content = _run(str(public), str(models[0]), "-G", "4", out=tmp_path / "out")
    names = [f"{public}#1", f"{public}#2", "one"]
    assert list(content["models"]) == names
    assert content["models"][names[2]]["whole"]["cpu_ns"]
    first, last = content["models"][names[0]], content["models"][names[2]]
    assert first["layers"] == last["layers"]


def _change(public: Path, change: Callable[[dict[str, Any]], object]) -> None:
    index = json.loads((public / "index.json").read_text())
    change(index)
    (public / "index.json").write_text(json.dumps(index))


def _another_brick(public: Path, index: dict[str, Any]) -> None:
    """Stores a different brick under the first brick's name, with a matching checksum."""
    first, second = index["bricks"][:2]
    shutil.copyfile(public / second["file"], public / first["file"])
    first["sha256"] = hashlib.sha256((public / first["file"]).read_bytes()).hexdigest()


def _a_name_that_is_no_text(public: Path, index: dict[str, Any]) -> None:
    """Stores a name that is not valid text, so protobuf returns the name as bytes."""
    first = index["bricks"][0]
    path = public / first["file"]
    path.write_bytes(path.read_bytes().replace(b"Conv", b"Con\xff"))
    first["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()


_BAD: dict[str, tuple[Callable[[Path, dict[str, Any]], object], str]] = {
    "checksum": (
        lambda public, index: (public / index["bricks"][0]["file"]).write_bytes(b"\0"),
        "is not the published file: its SHA-256 differs",
    ),
    "digest": (_another_brick, "contains layers that the index does not list"),
    "missing": (lambda public, index: (public / index["bricks"][0]["file"]).unlink(), "cannot be"),
    "path": (
        lambda _, index: index["bricks"][0].update(brick="../../x"),
        "is not a brick's digest",
    ),
    "words": (lambda _, index: index["bricks"].append(3), "lists an invalid brick"),
    "schema": (lambda _, index: index.update(schema=9), "was not written by this version of"),
    "empty": (lambda _, index: index.update(bricks=[]), "lists no bricks"),
    "no number": (
        lambda _, index: index["models"][0]["pieces"][0].update(inputs=["x"]),
        "lists an invalid model",
    ),
    "no brick": (lambda _, index: index["models"][0]["pieces"][0].update(brick="0"), "lists an"),
    "too many": (
        lambda _, index: index["models"][0]["pieces"][0].update(inputs=[0, 1, 2]),
        "lists an invalid model",
    ),
    "twice": (
        lambda _, index: index["models"][0]["pieces"].append(index["models"][0]["pieces"][0]),
        "has two producers, or a consumer before its producer",
    ),
    "lengths": (
        lambda _, index: index["models"][0].update(published_lengths=[1]),
        "published_lengths do not add up to the layers of the pieces",
    ),
    "models": (lambda _, index: index.update(models=5), "lists an invalid model"),
    "infinite": (
        lambda _, index: index["models"][0]["pieces"][0].update(inputs=[math.inf]),
        "is not valid JSON: Infinity is not a finite number",
    ),
    "no text": (_a_name_that_is_no_text, "is not an ONNX model: a name in it is not UTF-8 text"),
}


@pytest.mark.parametrize("kind", _BAD)
def test_a_changed_publication_is_refused_before_anything_runs(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "measure", lambda *_: pytest.fail("it was run"))
    change, output = _BAD[kind]
    public = _published(tmp_path, residual(tmp_path / "net.onnx"))
    _change(public, lambda index: change(public, index))
    base, out = tmp_path / "b.sqlite", tmp_path / "out"
    capsys.readouterr()
    assert main(["bricks", str(public), "--database", str(base), "--out", str(out)]) == 2
    assert output in capsys.readouterr().err
    assert not out.exists()
    assert not base.exists()


def test_tensors_that_do_not_fit_together_are_refused(tmp_path: Path, refuses: Said) -> None:
    """The first piece has a stride of two, so its output is smaller than the input of the next piece."""
    one, two = residual(tmp_path / "1.onnx", stride=2), residual(tmp_path / "2.onnx")
    public = _published(tmp_path, one, two)

    def swap(index: dict[str, Any]) -> None:
        first, second = (model["pieces"] for model in index["models"])
        first[1]["brick"] = second[1]["brick"]

    _change(public, swap)
    assert "a piece reads float32" in refuses("bricks", public, "--structure")


def test_options_that_would_change_nothing_are_refused(tmp_path: Path, refuses: Said) -> None:
    public = _published(tmp_path, residual(tmp_path / "net.onnx"))
    words = ["bricks", str(public), "--structure"]
    assert "published bricks cannot be changed: drop --most-layers, --batch" in refuses(
        *words, "--batch", "4", "-G", "2"
    )
    assert "--publish-order needs --publish" in refuses(*words, "--publish-order")
