"""A fetched file is complete, has the right checksum and comes from the manifest's address; otherwise it is not kept."""

import hashlib
import http.client
import io
import json
import urllib.error
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from harness.cli.main import main
from harness.errors import ConfigError
from harness.models.manifest import fetch as fetching
from harness.models.manifest.fetch import fetch, open_address
from harness.models.manifest.lookup import load_model
from harness.models.manifest.model import MODELS_DIR
from tests.builders.refusals import refusal
from tests.builders.refusals import refused as refused_command
from tests.faults.command import run_here

CONTENT = b"weights" * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
ADDRESS = "https://models.example/m.onnx"


class Answer(io.BytesIO):
    def __init__(self, content: bytes = CONTENT, length: int | None = len(CONTENT)) -> None:
        super().__init__(content)
        self.headers = Message()
        if length is not None:
            self.headers["Content-Length"] = str(length)


class Breaks(Answer):
    def read1(self, size: int | None = -1) -> bytes:
        if self.tell():
            raise http.client.IncompleteRead(b"")
        return super().read1(100)


class Drips(Answer):
    """Sends one byte every half minute, by a clock that the test controls."""

    now_s = 0.0

    def read1(self, size: int | None = -1) -> bytes:
        Drips.now_s += 29
        return super().read1(1)


def giving(answer: Any) -> Any:
    def opener(address: str, timeout_s: float) -> Any:
        assert (address, timeout_s) == (ADDRESS, fetching.TIMEOUT_S)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return opener


def refused(path: Path, answer: Any, sha256: str = SHA256) -> str:
    with pytest.raises(ConfigError) as caught:
        fetch(ADDRESS, sha256, path, lambda _: None, giving(answer))
    assert list(path.parent.iterdir()) == [], "neither a file nor a part of one"
    return str(caught.value)


def test_slow_server_is_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: each byte was allowed 30 s, but the whole transfer had no limit."""
    monkeypatch.setattr(f"{fetching.__name__}.time.monotonic", lambda: Drips.now_s)
    assert "(only 3 B arrived in 87 s, which is too slow)" in refused(tmp_path / "m", Drips())


def test_a_file_that_does_not_fit_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: the download filled the disk before it failed."""
    free = SimpleNamespace(free=5000)
    monkeypatch.setattr(f"{fetching.__name__}.shutil.disk_usage", lambda _: free)
    assert "(it has 7.00 kB, but only 5.00 kB are free on the disk)" in refused(
        tmp_path / "m", Answer()
    )


def test_complete_download_gets_its_name(tmp_path: Path) -> None:
    said: list[str] = []
    path = tmp_path / "new" / "m.onnx"
    fetch(ADDRESS, SHA256, path, said.append, giving(Answer()))
    assert path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path]
    assert said == [f"downloading 7.00 kB to {path}"]


def test_answer_without_a_length_is_read_to_its_end(tmp_path: Path) -> None:
    fetch(ADDRESS, SHA256, tmp_path / "m", lambda _: None, giving(Answer(length=None)))
    assert (tmp_path / "m").read_bytes() == CONTENT


def test_another_content_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    assert refused(path, Answer(), "0" * 64) == (
        f"{ADDRESS} has the SHA-256 {SHA256[:12]}…, but the manifest has 000000000000…: the file "
        f"at the address has changed; put the file at {path}"
    )


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (urllib.error.URLError("Name or service not known"), "Name or service not known"),
        (urllib.error.HTTPError(ADDRESS, 404, "Not Found", Message(), None), "status 404"),
        (TimeoutError("timed out"), "timed out"),
        (ConnectionResetError(104, "Connection reset by peer"), "Connection reset by peer"),
        (Breaks(), "IncompleteRead(0 bytes read)"),
        (Answer(CONTENT[:-1]), "it ended after 7.00 kB of 7.00 kB"),
        (Answer(length=17 << 30), "it has 18.3 GB, but at most 17.2 GB are allowed"),
    ],
    ids=lambda x: type(x).__name__ if not isinstance(x, str) else x[:20],
)
def test_failed_download_leaves_no_file(answer: Any, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    told = f"{ADDRESS} cannot be fetched ({reason}): put the file at {path}"
    assert refused(path, answer) == told


def test_a_download_larger_than_announced_or_allowed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "MAX_BYTES", 1000)
    assert "more than 1.00 kB" in refused(tmp_path / "m", Answer(length=None))


def test_unwritable_folder_is_reported_with_advice(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "m.onnx"
    with pytest.raises(
        ConfigError, match=r"m\.onnx cannot be written \(.*\): set XDG_CACHE_HOME to"
    ):
        fetch(ADDRESS, SHA256, path, lambda _: None, giving(Answer()))


@pytest.mark.parametrize("scheme", ["http", "ftp", "data"])
def test_only_https_and_file_are_opened(scheme: str) -> None:
    with pytest.raises(urllib.error.URLError, match="unknown url type"):
        open_address(f"{scheme}://localhost/x", 1.0)


@pytest.fixture
def manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Writes a manifest of the digits model whose file is fetched from a `file:` URL."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    content = yaml.safe_load((MODELS_DIR / "digits.yaml").read_text())
    content["name"] = "far"
    content["files"] = {
        "onnx": {
            "path": "sub/far.onnx",
            "sha256": content["files"]["onnx"]["sha256"],
            "source": (MODELS_DIR / "digits.onnx").as_uri(),
        }
    }
    path = tmp_path / "far.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_command_fetches_once_and_announces_it(manifest: Path, tmp_path: Path) -> None:
    words = ["--scenario", "offline", "--no-metrics", "--queries", "200", "--model", str(manifest)]
    home = tmp_path / "cache/mlperf-harness/models/far/sub/far.onnx"
    ended = run_here(*words, "--mode", "performance", "--out", str(tmp_path / "1"))
    assert ended.status == 0
    told = ended.said.splitlines()
    assert told[0] == f"harness: fetching {(MODELS_DIR / 'digits.onnx').as_uri()}, once"
    assert told[1].endswith(f" to {home}")
    assert home.read_bytes() == (MODELS_DIR / "digits.onnx").read_bytes()
    said: list[str] = []
    model = load_model(str(manifest))
    model.obtain(("onnx",), said.append)
    assert (said, model.path(("onnx",))) == ([], home)


def test_a_file_beside_the_manifest_is_not_fetched(manifest: Path, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/far.onnx").write_bytes((MODELS_DIR / "digits.onnx").read_bytes())
    model = load_model(str(manifest))
    assert not model.may_have_to_be_obtained
    assert model.path(("onnx",)) == tmp_path / "sub/far.onnx"


def test_failed_fetch_is_one_line_with_the_place_for_the_file(
    manifest: Path, tmp_path: Path
) -> None:
    manifest.write_text(manifest.read_text().replace("digits.onnx", "gone.onnx"))
    _, line = refused_command("--scenario", "offline", "--model", manifest)
    home = tmp_path / "cache/mlperf-harness/models/far/sub/far.onnx"
    assert line.endswith(f": put the file at {home}")
    assert not home.parent.exists() or list(home.parent.iterdir()) == []


def test_file_without_a_checksum_is_a_doubt(manifest: Path, tmp_path: Path) -> None:
    content = yaml.safe_load(manifest.read_text())
    content["files"] = {"onnx": {"path": "far.onnx", "sha256": None, "obtain": "ask Ada"}}
    manifest.write_text(yaml.safe_dump(content))
    words = ["--scenario", "offline", "--queries", "200", "--model", str(manifest), "--quiet"]
    out = tmp_path / "run"
    words += ["--mode", "performance", "--out", str(out)]
    assert refused_command(*words) == [
        f"model 'far' has no file far.onnx here: put it at {tmp_path}/far.onnx (ask Ada)"
    ]
    (tmp_path / "far.onnx").write_bytes((MODELS_DIR / "digits.onnx").read_bytes())
    assert main(words) == 0
    doubts = json.loads((out / "result.json").read_text())["doubts"]
    (text,) = [d["text"] for d in doubts if d["code"] == "model-not-pinned"]
    assert "bbb80374d5df…" in text
    assert main(["check", str(out)]) == 0


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        (
            {"path": "m", "sha256": None, "source": "https://models.example/m"},
            "field 'files.onnx': a source needs a sha256: the fetched file is checked against it",
        ),
        ({"sha256": None}, "field 'files.onnx.path' is missing"),
        (
            {"path": "m", "sha256": "0" * 64, "source": "http://models.example/m"},
            (
                r"field 'files.onnx.source': String should match pattern '^((https|file)://|pypi:|npm:)\S+$', not "
                "'http://models.example/m'"
            ),
        ),
    ],
)
def test_a_file_entry_that_cannot_be_trusted_is_refused(
    file: dict[str, Any], problem: str, manifest: Path
) -> None:
    content = yaml.safe_load(manifest.read_text())
    manifest.write_text(yaml.safe_dump({**content, "files": {"onnx": file}}))
    assert refusal(load_model, str(manifest)) == f"{manifest}: {problem}"


def test_a_path_into_the_cache_cannot_leave_it(manifest: Path) -> None:
    content = yaml.safe_load(manifest.read_text())
    content["files"]["onnx"]["path"] = "../../escaped.onnx"
    manifest.write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigError, match="is outside the manifest's folder"):
        load_model(str(manifest)).obtain(("onnx",), lambda _: None)
