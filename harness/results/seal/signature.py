"""Signs a result folder's seal with an OpenSSH key, and finds out who signed it.

`ssh-keygen -Y sign` and `-Y verify` do the cryptographic work. The key is neither copied nor stored.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from harness.errors import ConfigError, PluginUnavailable
from harness.results.seal.digests import SEAL, SIGNATURE

NAMESPACE = "mlperf-harness"
"""Purpose of the signature. ssh-keygen includes it in the signed data. Verification therefore refuses a signature made
for a commit or an email.
"""

PROGRAM = "ssh-keygen"
LIMIT_S = 20.0
"""Time limit for ssh-keygen. ssh-keygen takes seconds if its agent waits for the user, for example to touch a security
key.
"""

_INSTALL = f"signatures need the program {PROGRAM}: install OpenSSH"
_LINE = "ann@example.org ssh-ed25519 AAAA..."
_WRONG_LINE = re.compile(r":(\d+): (\w+ key)")
_SIGNED_WITH = re.compile(r"with (\S+) key (SHA256:\S+)")


class Signed(NamedTuple):
    """Who signed a seal."""

    by: str
    """Principal from the allowed-signers file; empty without this file."""
    key: str
    """Type and fingerprint of the key, such as ED25519 SHA256:..."""

    def __str__(self) -> str:
        return f"signed by {self.by} ({self.key})" if self.by else f"signed with the key {self.key}"


def problem(key: Path) -> str:
    """Returns why the key cannot sign; empty if the key can sign, or if ssh-keygen can still ask for the key's
    passphrase.
    """
    if why := not_a_file(key):
        return f"--sign {key}: {why}"
    try:
        done = _run("sign", ["-f", str(key), "-n", NAMESPACE])
    except PluginUnavailable as e:
        return f"--sign {key}: {e}"
    if not done.returncode or _has_terminal():
        return ""
    return (
        f"--sign {key}: {_complaint(done)}: name a key without a passphrase, or add it to ssh-agent"
    )


def not_a_file(path: Path) -> str:
    """Returns why the path does not name a file; '' if the path names a file."""
    if path.is_dir():
        return "this is a folder: name a file in it"
    return "" if path.is_file() else "the file does not exist"


def names_no_signers(path: Path) -> str:
    """Returns why an allowed-signers file names no signers; '' if the file may name signers."""
    if why := not_a_file(path):
        return why
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as e:
        return f"it cannot be read: {e.strerror}"
    if any(line.strip() and not line.lstrip().startswith("#") for line in lines):
        return ""
    return f"it lists no key: add a line such as `{_LINE}`"


def sign(folder: Path, key: Path) -> str:
    """Signs the folder's seal. Returns why signing failed; '' if it succeeded."""
    words = ["-f", str(key), "-n", NAMESPACE, str(folder / SEAL)]
    try:
        # If the old signature remains, ssh-keygen asks whether to overwrite it.
        (folder / SIGNATURE).unlink(missing_ok=True)
        done = _run("sign", words, may_ask=_has_terminal())
    except PluginUnavailable as e:
        why = str(e)
    except OSError as e:
        why = str(e.strerror)
    else:
        if not done.returncode:
            return ""
        why = _complaint(done)
    by_hand = shlex.join([PROGRAM, "-Y", "sign", *words])
    return f"{folder} is not signed ({why}): `{by_hand}` signs it later"


def vouched(folder: Path, allowed: Path | None) -> tuple[list[str], str]:
    """Returns the differences, and a line that names the seal's signer. The line is empty if the seal is not signed.

    allowed: OpenSSH's allowed-signers file. If `allowed` is given, only a signature by one of the file's signers is
    accepted.
    """
    path = folder / SIGNATURE
    if not path.is_file() or not (folder / SEAL).is_file():
        return [f"{folder} is not signed: one of {allowed} must sign it"] if allowed else [], ""
    try:
        signer = _signed(folder, allowed)
    except PluginUnavailable as e:
        if allowed is not None:
            raise
        return [], f"{path} was not checked: {e}"
    return ([signer], "") if isinstance(signer, str) else ([], f"{folder} is {signer}")


def _signed(folder: Path, allowed: Path | None) -> Signed | str:
    """Returns the seal's signer, or a sentence that states what is wrong with the signature."""
    path = folder / SIGNATURE
    seal = (folder / SEAL).read_bytes()
    where = ["-n", NAMESPACE, "-s", str(path)]
    done = _run("check-novalidate", where, seal)
    match = _SIGNED_WITH.search(done.stdout.decode(errors="replace"))
    if done.returncode or match is None:
        return f"{path} is not a signature of {SEAL}: {_complaint(done)}"
    key = f"{match[1]} {match[2]}"
    if allowed is None:
        return Signed("", key)
    found = _run("find-principals", ["-s", str(path), "-f", str(allowed)])
    for principal in found.stdout.decode(errors="replace").split()[:1]:
        verified = _run("verify", ["-f", str(allowed), "-I", principal, *where], seal)
        if not verified.returncode:
            return Signed(principal, key)
    wrong = _WRONG_LINE.search(found.stderr.decode(errors="replace"))
    if found.returncode and wrong is not None:
        raise ConfigError(
            f"--allowed-signers {allowed}: line {wrong[1]} has {wrong[2].replace('missing', 'no')}: write e.g. "
            f"`{_LINE}` in each line"
        )
    return f"{path} was made with the key {key}, which {allowed} does not allow to sign {NAMESPACE}"


def _run(
    action: str, arguments: Sequence[str], content: bytes = b"", *, may_ask: bool = False
) -> "subprocess.CompletedProcess[bytes]":
    """Runs ssh-keygen. may_ask: whether it may ask for a passphrase on the terminal. If ssh-keygen may not ask, it gets
    neither a terminal nor a window, so that an unattended run does not wait for a passphrase.
    """
    words = [PROGRAM, "-Y", action, *arguments]
    try:
        if may_ask:
            return subprocess.run(words, check=False)
        return subprocess.run(
            words,
            input=content,
            capture_output=True,
            env={**os.environ, "SSH_ASKPASS_REQUIRE": "never", "LC_ALL": "C"},
            start_new_session=True,
            timeout=LIMIT_S,
            check=False,
        )
    except FileNotFoundError:
        raise PluginUnavailable(_INSTALL) from None
    except subprocess.TimeoutExpired:
        raise PluginUnavailable(f"{PROGRAM} did not end within {LIMIT_S:g} s") from None


def _has_terminal() -> bool:
    """Returns whether a user at a terminal can enter a passphrase. A process in the background cannot ask, because
    reading from the terminal would stop it.
    """
    with suppress(OSError, ValueError, AttributeError):
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    return False


def _complaint(done: "subprocess.CompletedProcess[bytes]") -> str:
    lines = (done.stderr or b"").decode(errors="replace").strip().splitlines()
    if not lines:
        return f"{PROGRAM} ended with status {done.returncode}"
    return re.sub(r"^Enter passphrase[^:]*: ", "", lines[-1].strip())
