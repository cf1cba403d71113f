"""Tests models from the HuggingFace Hub with the real client and a stand-in for the Hub's API, then without a network."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.errors import ConfigError
from harness.models.hub import repository
from harness.models.hub.name import HubName, parse_hub_model
from harness.models.manifest import candidates
from harness.models.manifest.lookup import load_model, model_from_json
from harness.models.manifest.model import MODELS_DIR
from tests.builders.models.external import split
from tests.builders.refusals import refusal
from tests.faults.command import SERVER, SHORT, result, run
from tests.stand_ins.servers.hub import LFS_BYTES, Hub, serving

DIGITS = (MODELS_DIR / "digits.onnx").read_bytes()
ONNX = ("onnx",)


def quiet(_: str) -> None:
    pass


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}/cache")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", f"{tmp_path}/hub")
    with serving() as server:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE
        address = template.replace(constants.ENDPOINT, server.address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address)
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        visit_again()
        yield server
    visit_again()


def visit_again() -> None:
    """Resets the client to its state in a new process."""
    repository.listing.cache_clear()


def leave_network(monkeypatch: pytest.MonkeyPatch) -> None:
    visit_again()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("hf:gpt2@main", HubName("gpt2", "main")),
        ("hf:a/b.c@refs/pr/1:x/y.onnx", HubName("a/b.c", "refs/pr/1", "x/y.onnx")),
        ("hf:a/b:x.onnx", HubName("a/b", None, "x.onnx")),
    ],
)
def test_names_are_read_as_they_are_written(text: str, name: HubName) -> None:
    assert parse_hub_model(text) == name
    assert str(name) == text


@pytest.mark.parametrize(
    "text", ["hf:", "hf:a/b/c@d", "hf:a@", "hf:a@b:../x.onnx", "hf:a@b:/x.onnx"]
)
def test_other_names_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"write hf:ORG/NAME@COMMIT or hf:ORG/NAME@COMMIT:FILE$"):
        parse_hub_model(text)


def test_a_branch_becomes_its_commit_and_works_without_network_afterwards(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commit = hub.push("org/net", {"README.md": b"text", "code.py": b"1/0", "net.onnx": DIGITS})
    model = load_model("hf:org/net@main")
    assert (model.name, model.resolved_name) == ("net", f"hf:org/net@{commit}:net.onnx")
    assert model.may_have_to_be_obtained
    model.obtain(ONNX, quiet)
    path = model.path(ONNX)
    assert path is not None
    assert path.read_bytes() == DIGITS
    assert "README.md" not in {p.name for p in path.parent.iterdir()}
    hub.push("org/net", {"net.onnx": DIGITS + b"\0"})
    leave_network(monkeypatch)
    before = len(hub.requests)
    again = load_model("hf:org/net@main")
    assert again.resolved_name == model.resolved_name
    assert not again.may_have_to_be_obtained
    assert again.path(ONNX) == path
    assert f"hf:org/net@main is assumed to be still at commit {commit}" in capsys.readouterr().err
    assert load_model(f"hf:org/net@{commit}").resolved_name == model.resolved_name
    assert len(hub.requests) == before


def test_file_of_a_commit_needs_no_request_and_loads_in_another_process(hub: Hub) -> None:
    commit = hub.push("org/net", {"net.onnx": DIGITS})
    name = f"hf:org/net@{commit}:net.onnx"
    model = load_model(name)
    assert hub.requests == []
    assert model_from_json(json.loads(json.dumps(model.to_json()))).resolved_name == name
    model.obtain(ONNX, quiet)
    there = model_from_json(json.loads(json.dumps(model.to_json())))
    assert there.path(ONNX) == model.path(ONNX)


def test_without_a_revision_the_refusal_names_the_commit(hub: Hub) -> None:
    commit = hub.push("org/net", {"net.onnx": DIGITS})
    assert refusal(load_model, "hf:org/net:net.onnx") == (
        "--model hf:org/net:net.onnx names no commit, so it may change: "
        f"write hf:org/net@{commit}:net.onnx"
    )


def test_several_model_files_are_listed(hub: Hub) -> None:
    files = ("a/one.onnx", "two.tflite", "ir.xml", "ir.bin", "page.xml")
    commit = hub.push("org/net", {name: name.encode() for name in files})
    name = f"hf:org/net@{commit}"
    assert refusal(load_model, "hf:org/net@main") == (
        f"--model {name} has 3 model files (a/one.onnx, ir.xml, two.tflite): name one, e.g. "
        f"{name}:a/one.onnx"
    )


def test_weights_that_no_backend_reads_are_refused(hub: Hub) -> None:
    hub.push("org/net", {"pytorch_model.bin": b"a pickle", "model.safetensors": b"1"})
    assert "has no file that a backend can read (.onnx, " in refusal(load_model, "hf:org/net@main")
    told = refusal(load_model, "hf:org/net@main:pytorch_model.bin")
    assert "no backend reads pytorch_model.bin: " in told


def test_refusal_by_the_hub_is_reported(hub: Hub) -> None:
    hub.push("org/net", {"net.onnx": DIGITS})
    for text in ("hf:org/gone@main", "hf:org/net@gone"):
        assert re.match(f"--model {text}: the hub refused it: ", refusal(load_model, text))
    commit = hub.branches["org/net", "main"]
    model = load_model(f"hf:org/net@{commit}:other.onnx")
    with pytest.raises(ConfigError, match=r"this commit has no file other\.onnx$"):
        model.obtain(ONNX, quiet)


def test_first_visit_without_network_is_refused_with_advice(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_network(monkeypatch)
    line = refusal(load_model, "hf:org/net@main")
    assert line.startswith("--model hf:org/net@main: the hub cannot be reached (")
    assert line.endswith(
        "and the model was not fetched before: connect once, or pass the path of a file"
    )


@pytest.mark.parametrize("content", [DIGITS, DIGITS[: LFS_BYTES - 1]], ids=["lfs", "git"])
def test_a_damaged_download_is_refused(hub: Hub, content: bytes) -> None:
    hub.push("org/net", {"net.onnx": content})
    hub.damaged = True
    model = load_model("hf:org/net@main")
    with pytest.raises(
        ConfigError, match=r"its digest is \w{12}…, but the hub's is \w{12}…: remove "
    ):
        model.obtain(ONNX, quiet)
    # The same error appears without a download, because the file is now in the cache.
    with pytest.raises(ConfigError, match="its digest is"):
        model.path(ONNX)


def test_files_that_a_model_reads_are_fetched_with_it(hub: Hub, tmp_path: Path) -> None:
    made = split(tmp_path)
    files = {f"onnx/{p.name}": p.read_bytes() for p in made.parent.iterdir() if p.is_file()}
    hub.push("org/net", {**files, "onnx/unread.bin": b"1"})
    model = load_model(f"hf:org/net@main:onnx/{made.name}")
    model.obtain(ONNX, quiet)
    path = model.path(ONNX)
    assert path is not None
    assert {f"onnx/{p.name}" for p in path.parent.iterdir()} == files.keys()
    assert model.sha256(path) == load_model(str(made)).sha256(made)
    (path.parent / next(p.name for p in path.parent.iterdir() if p != path)).unlink()
    assert model.may_have_to_be_obtained


def test_a_commit_without_a_file_that_the_model_reads_is_refused(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = hub.push("org/net", {"a/net.onnx": DIGITS})
    model = load_model("hf:org/net@main")
    monkeypatch.setattr(candidates, "external_data", lambda _: {"w.bin"})
    assert refusal(model.obtain, ONNX, quiet) == (
        f"hf:org/net@{commit}:a/net.onnx reads a/w.bin, which the commit does not contain: choose another version or "
        "another model"
    )


def test_a_model_may_not_read_files_outside_of_its_repository(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.push("org/net", {"net.onnx": DIGITS})
    model = load_model("hf:org/net@main")
    monkeypatch.setattr(candidates, "external_data", lambda _: {"../../secret"})
    with pytest.raises(ConfigError, match="which is not in its folder"):
        model.obtain(ONNX, quiet)


SAVED = MODELS_DIR / "digits_savedmodel"
TENSORFLOW = ("savedmodel", "keras")


def saved_model(prefix: str = "") -> dict[str, bytes]:
    """Returns the files of a repository that contains the digits model as a SavedModel below `prefix`, and other files."""
    files = (p for p in SAVED.rglob("*") if p.is_file())
    inside = {f"{prefix}{p.relative_to(SAVED).as_posix()}": p.read_bytes() for p in files}
    return {**inside, "README.md": b"text", f"{prefix}pytorch_model.bin": b"1", "other/x.pb": b"2"}


@pytest.mark.parametrize("prefix", ["", "tf/serving/"])
def test_a_saved_model_comes_as_a_folder_of_its_own(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    """Bug: the user had to download the folder and specify its path."""
    commit = hub.push("org/net", saved_model(prefix))
    model = load_model("hf:org/net@main")
    name = f"hf:org/net@{commit}:{prefix}saved_model.pb"
    assert model.resolved_name == name
    assert model.may_have("savedmodel")
    assert model.may_have_to_be_obtained
    with pytest.raises(ConfigError, match=r"saved_model.pb is a SavedModel: pass --backend tensor"):
        model.obtain(ONNX, quiet)
    model.obtain(TENSORFLOW, quiet)
    # README.md goes into the Hub's cache, and not into the model's cache.
    repository.download("org/net", commit, "README.md")
    path = model.path(TENSORFLOW)
    assert path is not None
    assert model.sha256(path) == load_model(str(SAVED)).sha256(SAVED)
    there = model_from_json(json.loads(json.dumps(model.to_json())))
    assert there.path(TENSORFLOW) == path
    leave_network(monkeypatch)
    again = load_model(name)
    assert not again.may_have_to_be_obtained
    assert again.path(TENSORFLOW) == path
    (path / "variables/variables.index").resolve().unlink()
    visit_again()
    assert load_model(name).may_have_to_be_obtained


def test_a_damaged_part_of_a_saved_model_is_refused(hub: Hub) -> None:
    hub.push("org/net", saved_model())
    model = load_model("hf:org/net@main")
    model.obtain(TENSORFLOW, quiet)
    path = model.path(TENSORFLOW)
    assert path is not None
    blob = (path / "variables/variables.index").resolve()
    blob.chmod(0o644)
    blob.write_bytes(blob.read_bytes() + b"x")
    with pytest.raises(ConfigError, match="its digest is"):
        model.path(TENSORFLOW)


@pytest.mark.slow
def test_a_run_of_a_saved_model(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    pytest.importorskip("tensorflow")
    env = {"HF_HOME": f"{tmp_path}/hf", "XDG_CACHE_HOME": f"{tmp_path}/cache"}
    with serving() as hub:
        commit = hub.push("org/net", saved_model())
        env["HF_ENDPOINT"] = hub.address
        words = ("--scenario", "offline", "--mode", "performance", "--queries", "200")
        model = ("--backend", "tensorflow", "--model", "hf:org/net@main")
        done = run(*words, *model, "--out", f"{tmp_path}/r", env=env)
    assert done.status == 0, done.said
    found = result(tmp_path / "r")
    assert found["model_source"] == f"hf:org/net@{commit}:saved_model.pb"
    config = yaml.safe_load((tmp_path / "r/config.yaml").read_text())
    assert config["model_sha256"] == load_model(str(SAVED)).sha256(SAVED)
    again = run("--config", f"{tmp_path}/r", "--out", f"{tmp_path}/again", env=env)
    assert again.status == 0, again.said


@pytest.mark.slow
def test_a_run_keeps_the_commit_and_is_repeated_without_network(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    pytest.importorskip("onnxruntime")
    env = {"HF_HOME": f"{tmp_path}/hf", "XDG_CACHE_HOME": f"{tmp_path}/cache"}
    run_of: tuple[Any, ...] = (*SERVER, *SHORT, "--mode", "performance")
    with serving() as hub:
        commit = hub.push("org/net", {"net.onnx": DIGITS})
        env["HF_ENDPOINT"] = hub.address
        first = run(*run_of, "--model", "hf:org/net@main", "--out", f"{tmp_path}/r", env=env)
    assert first.status == 0, first.said
    name = f"hf:org/net@{commit}:net.onnx"
    assert result(tmp_path / "r")["model_source"] == name
    config = tmp_path / "r" / "config.yaml"
    assert yaml.safe_load(config.read_text())["model"] == name
    again = run("--config", str(config), "--out", f"{tmp_path}/r2", env=env)
    assert again.status == 0, again.said
    # `check` needs only the run's files, and not the cache.
    assert run("check", f"{tmp_path}/r2").status == 0
