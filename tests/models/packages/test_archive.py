"""Files from wheels and npm packages are read only as data, only inside the archive, and only within limits."""

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.models.packages import archive
from harness.models.packages.archive import Member, opened
from tests.builders.models.packages import tarball, wheel

FILES = {"net/model.onnx": b"weights" * 1000, "net/__init__.py": b"raise SystemExit"}


def members(path: Path) -> dict[str, Member]:
    with opened(path) as content:
        return dict(content.members())


def copied(path: Path, name: str) -> bytes:
    out = io.BytesIO()
    with opened(path) as content:
        content.copy({name: out})
    return out.getvalue()


def refusal(path: Path, name: str | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        members(path) if name is None else copied(path, name)
    (line,) = str(caught.value).splitlines()
    return line


def test_files_of_a_wheel_have_size_and_digest(tmp_path: Path) -> None:
    path = wheel(tmp_path, "net", "1.0", FILES)
    found = members(path)
    assert {name for name in found if "dist-info" not in name} == FILES.keys()
    model = found["net/model.onnx"]
    assert (model.size_bytes, len(model.sha256 or "")) == (7000, 64)
    assert copied(path, "net/model.onnx") == FILES["net/model.onnx"]


@pytest.mark.parametrize("top", ["package", "vad-web"])
def test_the_first_folder_of_an_npm_package_is_dropped(tmp_path: Path, top: str) -> None:
    path = tarball(tmp_path, "net-1.0.0.tgz", FILES, top)
    assert members(path) == {name: Member(len(c), None) for name, c in FILES.items()}
    assert copied(path, "net/model.onnx") == FILES["net/model.onnx"]


@pytest.mark.parametrize("name", ["../up.onnx", "/root.onnx", "a/../../up.onnx", "a\\up.onnx"])
def test_names_that_lead_out_of_an_archive_are_not_files(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as out:
        out.writestr(name, b"1")
        out.writestr("net.onnx", b"2")
    assert members(tmp_path / "a.whl").keys() == {"net.onnx"}
    path = tarball(tmp_path, "a.tgz", {name.lstrip("/"): b"1", "net.onnx": b"2"}, "/package")
    assert members(path) == {}
    path = tarball(tmp_path, "a.tgz", {name.replace("/", "//../"): b"1", "net.onnx": b"2"})
    assert members(path).keys() == {"net.onnx"}


def test_links_and_devices_of_a_tar_file_are_not_files(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as out:
        for number, kind in enumerate((tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE)):
            info = tarfile.TarInfo(f"package/{number}.onnx")
            info.type, info.linkname = kind, "/etc/passwd"
            out.addfile(info)
    assert members(tmp_path / "a.tgz") == {}


def test_a_file_of_a_wheel_that_expands_too_far_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "FREE_EXPANSION_BYTES", 1 << 20)
    path = wheel(tmp_path, "net", "1.0", {"zeros.onnx": bytes(5 << 20)})
    assert "zeros.onnx expands from " in refusal(path, "zeros.onnx")
    monkeypatch.setattr(archive, "FREE_EXPANSION_BYTES", 5 << 20)
    assert copied(path, "zeros.onnx") == bytes(5 << 20)


def test_a_tar_file_that_expands_too_far_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "FREE_EXPANSION_BYTES", 1 << 20)
    path = tarball(tmp_path, "a.tgz", {"zeros.onnx": bytes(5 << 20), "net.onnx": b"1"})
    assert "it expands to more than " in refusal(path)
    assert "zeros.onnx expands from " in refusal(path, "zeros.onnx")


def test_a_header_that_wants_all_memory_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("package/long")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1 << 40
    (tmp_path / "a.tgz").write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024)))
    assert "it requests 1,100 GB at once" in refusal(tmp_path / "a.tgz")


def test_a_file_above_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MOST_BYTES", 6999)
    paths = (wheel(tmp_path, "net", "1.0", FILES), tarball(tmp_path, "a.tgz", FILES))
    for path in paths:
        assert "net/model.onnx has 7.00 kB, more than 7.00 kB" in refusal(path, "net/model.onnx")


def test_a_file_that_does_not_fit_on_the_disk_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = wheel(tmp_path, "net", "1.0", FILES)
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    assert "but only 10 B are free on the disk" in refusal(path, "net/model.onnx")


def test_an_archive_with_too_many_files_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MOST_FILES", 1)
    for path in (wheel(tmp_path, "net", "1.0", FILES), tarball(tmp_path, "a.tgz", FILES)):
        assert "it has more than 1 files" in refusal(path)


def test_two_files_of_one_name_in_a_wheel_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as out:
        out.writestr("net.onnx", b"1")
        with pytest.warns(UserWarning, match="Duplicate"):
            out.writestr("net.onnx", b"2")
    assert "two of its files have the same name" in refusal(tmp_path / "a.whl")


@pytest.mark.parametrize("name", ["a.whl", "a.tgz"])
@pytest.mark.parametrize("content", [b"", b"<html>no</html>", b"PK\3\4 cut", b"\x1f\x8b\x08 cut"])
def test_other_content_is_refused_in_one_line(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    line = refusal(tmp_path / name)
    assert line.startswith(f"{tmp_path / name} cannot be read (")
    assert line.endswith("): remove it and try again")


@pytest.mark.parametrize("kind", ["wheel", "tarball"])
def test_a_cut_archive_is_refused(tmp_path: Path, kind: str) -> None:
    whole = (
        wheel(tmp_path, "net", "1.0", FILES)
        if kind == "wheel"
        else tarball(tmp_path, "a.tgz", FILES)
    )
    whole.write_bytes(whole.read_bytes()[:-60])
    assert "cannot be read (" in refusal(whole, "net/model.onnx")
