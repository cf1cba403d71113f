"""With the real ssh-keygen, a signed result folder shows who signed it and that no file has changed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.errors import ConfigError, PluginUnavailable
from harness.results.recheck import check
from harness.results.seal import digests, signature
from tests.builders.edited import edit
from tests.builders.refusals import Said
from tests.stand_ins.fake_peak import System

pytestmark = pytest.mark.skipif(
    shutil.which(signature.PROGRAM) is None, reason="ssh-keygen is not installed"
)
STREAM = (
    *("--scenario", "single-stream", "--queries", "300", "--quiet", "--no-metrics"),
    "--no-report",
)


def make_key(path: Path, passphrase: str = "") -> Path:
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "", "-f", str(path)]
    subprocess.run(words, check=True)
    return path


def allowed(path: Path, **keys: Path) -> Path:
    """Writes a file of allowed signers. keys: by principal."""
    lines = [f"{name} {key.with_suffix('.pub').read_text()}" for name, key in keys.items()]
    path.write_text("".join(lines))
    return path


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return make_key(tmp_path / "key")


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    """Returns a sealed folder with one file."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "result.json").write_text("{}")
    digests.write(folder)
    return folder


def fingerprint(key: Path) -> str:
    words = ["ssh-keygen", "-l", "-f", str(key)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[1]


def test_check_names_the_signer_of_a_run(
    key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], prints: Said
) -> None:
    run = tmp_path / "run"
    assert main([*STREAM, "--sign", str(key), "--out", str(run)]) == 0
    assert str(key) not in (run / "config.yaml").read_text() + (run / "findings.json").read_text()
    capsys.readouterr()
    signers = allowed(tmp_path / "signers", **{"ann@example.org": key})
    shown = prints("check", run, "--allowed-signers", signers).splitlines()
    assert shown[1] == f"{run} is signed by ann@example.org (ED25519 {fingerprint(key)})"
    # No other file contains this value, so only the seal reveals the edit.
    edit(run / "findings.json", lambda said: said["load"].update(others=0.0))
    assert check(run)[-1].startswith(f"{run}/findings.json was changed after the run")
    digests.write(run)  # new digests without the key remove the signature
    assert "is not signed" in prints("check", run, "--allowed-signers", signers, status=4)


def test_a_stranger_a_changed_seal_and_no_signature_differ(
    key: Path, sealed: Path, tmp_path: Path
) -> None:
    other = make_key(tmp_path / "other")
    signers = allowed(tmp_path / "signers", ann=other)
    assert signature.vouched(sealed, None) == ([], "")
    assert signature.vouched(sealed, signers)[0] == [
        f"{sealed} is not signed: one of {signers} must sign it"
    ]
    assert signature.sign(sealed, key) == ""
    shown = f"{sealed} is signed with the key ED25519 {fingerprint(key)}"
    assert signature.vouched(sealed, None) == ([], shown)
    (stranger,) = signature.vouched(sealed, signers)[0]
    assert f"which {signers} does not allow to sign" in stranger
    both = allowed(tmp_path / "signers", ann=other, ben=key)
    assert signature.vouched(sealed, both)[1].startswith(f"{sealed} is signed by ben (")
    (sealed / digests.SEAL).write_text("")
    for trusted in (None, both):
        (changed,) = signature.vouched(sealed, trusted)[0]
        assert "is not a signature of SHA256SUMS: " in changed


@pytest.mark.parametrize("content", ["", "# none\n\n"])
def test_a_file_without_signers_is_reported_in_one_line(
    content: str, sealed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    signers = tmp_path / "signers"
    signers.write_text(content)
    assert main(["check", str(sealed), "--allowed-signers", str(signers)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"harness: --allowed-signers {signers}: it lists no key: add a line such as `ann@"
    )


def test_an_empty_name_of_a_file_of_signers_is_not_ignored(sealed: Path, refuses: Said) -> None:
    assert "name a file" in refuses("check", sealed, "--allowed-signers", "")


def test_a_signature_for_another_purpose_does_not_fit(key: Path, sealed: Path) -> None:
    words = [
        *("ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", "git"),
        str(sealed / "SHA256SUMS"),
    ]
    subprocess.run(words, check=True, capture_output=True)
    assert "is not a signature of" in signature.vouched(sealed, None)[0][0]


@pytest.mark.parametrize(
    "change", [lambda p: p.write_text(""), lambda p: p.write_bytes(b"\xff" * 99)]
)
def test_a_broken_signature_is_reported_in_one_line(key: Path, sealed: Path, change) -> None:  # type: ignore[no-untyped-def]
    signature.sign(sealed, key)
    change(sealed / digests.SIGNATURE)
    assert len(signature.vouched(sealed, None)[0]) == 1


def test_a_key_with_a_passphrase_does_not_hang_a_run_without_a_terminal(tmp_path: Path) -> None:
    key = make_key(tmp_path / "key", "secret")
    words = [sys.executable, "-m", "harness", *STREAM, "--sign", str(key), "--out", f"{tmp_path}/r"]
    env = {**os.environ, "DISPLAY": ":0", "SSH_ASKPASS": "/bin/cat"}
    done = subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        env=env,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"harness: --sign {key}: ")
    assert line.endswith("name a key without a passphrase, or add it to ssh-agent")
    assert not (tmp_path / "r").exists()


def test_a_key_of_the_agent_needs_its_public_half_only(
    key: Path, sealed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(key.with_name("agent"))])
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(key.with_name("agent")))
        for _ in range(100):
            added = subprocess.run(["ssh-add", "-q", str(key)], capture_output=True, check=False)
            if not added.returncode:
                break
        key.unlink()
        assert signature.problem(key.with_suffix(".pub")) == ""
        assert signature.sign(sealed, key.with_suffix(".pub")) == ""
    finally:
        agent.terminate()
        agent.wait()


def test_missing_ssh_keygen_is_reported_in_one_line(
    key: Path, sealed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signature.sign(sealed, key)
    monkeypatch.setenv("PATH", "")
    needs = "signatures need the program ssh-keygen: install OpenSSH"
    assert signature.problem(key) == f"--sign {key}: {needs}"
    assert needs in signature.sign(sealed, key)
    signature_path = sealed / digests.SIGNATURE
    signature_path.write_text("x")
    assert signature.vouched(sealed, None) == ([], f"{signature_path} was not checked: {needs}")
    with pytest.raises(PluginUnavailable, match="ssh-keygen"):
        signature.vouched(sealed, key)


def test_missing_key_is_named_before_the_run(tmp_path: Path) -> None:
    """Bug: if a folder had the name of the key, the message said that the file does not exist."""
    assert signature.problem(tmp_path / "no") == f"--sign {tmp_path}/no: the file does not exist"
    assert signature.problem(tmp_path) == f"--sign {tmp_path}: this is a folder: name a file in it"


@pytest.mark.parametrize("text", ["garbage", "# signers\nann ssh-ed25519 AAAA", "\xff\xfe"])
def test_a_file_that_lists_no_signers_is_reported_in_one_line(
    text: str, key: Path, sealed: Path, tmp_path: Path
) -> None:
    """Bug: the message said that the file does not allow the key."""
    signature.sign(sealed, key)
    signers = tmp_path / "signers"
    signers.write_text(f"{text}\n", encoding="latin-1")
    with pytest.raises(ConfigError, match=rf"{signers}: line \d has (no|invalid) key: write"):
        signature.vouched(sealed, signers)


def test_the_seal_of_a_study_is_signed_at_its_end(
    key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.run.supervisor.job.measure", System(100.0))
    words = ["--scenario", "server", "--backend", "null", "--mode", "performance", "--quiet"]
    words += ["--target-qps", "50", "--repeats", "2", "--sign", str(key)]
    assert main([*words, "--out", str(tmp_path / "all")]) == 0
    shown = f"{tmp_path}/all is signed with the key ED25519 {fingerprint(key)}"
    assert signature.vouched(tmp_path / "all", None) == ([], shown)
