"""Verifies that the official client is unmodified: checks its commit, the state of its checkout, and a digest of its
files.
"""

import hashlib
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness.core.files import write_json
from harness.errors import ConfigError, one_line
from harness.submit.endpoints.environments import (
    environment_variables,
    is_environment,
    make_environment,
)
from harness.submit.endpoints.tables import limits

CHECKOUT, ENVIRONMENT = "client", "client-env"
"""Names of folders in WORK."""

_PROGRAM = "inference-endpoint"
_SOURCES = "src/inference_endpoint"
_GIT_LIMIT_S = 120.0


class Proof(NamedTuple):
    commit: str
    changed: Sequence[str]
    """Lines that `git status` prints; empty for a clean checkout."""
    digest: str
    """SHA-256 over the names and contents of all files in the commit, as stored on disk."""
    files: int

    @property
    def is_known(self) -> bool:
        """Whether the harness's list of published commits contains the commit."""
        return self.commit in limits()["client_commits"]

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "changed": list(self.changed), "is_known": self.is_known}


def prove(checkout: Path) -> Proof:
    """Reads the commit and state of a checkout, and digests its files. Raises a ConfigError if the folder is not a
    checkout.

    Hashes every file instead of trusting the file times that git caches, because a change may leave a file's size and
    time unchanged.
    """
    commit = _git(checkout, "rev-parse", "HEAD").strip()
    if not (checkout / _SOURCES).is_dir():
        raise ConfigError(f"{checkout} has no {_SOURCES}: pass a checkout of mlcommons/endpoints")
    changed = _git(checkout, "status", "--porcelain", "--untracked-files=all").splitlines()
    listed = _git(checkout, "ls-tree", "-r", "-z", "HEAD").split("\0")
    total, count = hashlib.sha256(), 0
    for row in filter(None, listed):
        about, _, name = row.partition("\t")
        mode, kind, blob = about.split()
        if kind != "blob":
            continue
        content = _content(checkout / name, is_link=mode == "120000")
        if content is None or _blob(content) != blob:
            changed.append(f"differs from the commit: {name}")
        total.update(f"{name}\0{len(content or b'')}\0".encode() + (content or b""))
        count += 1
    return Proof(commit, tuple(changed), total.hexdigest(), count)


def _content(path: Path, *, is_link: bool) -> bytes | None:
    try:
        return str(path.readlink()).encode() if is_link else path.read_bytes()
    except OSError:
        return None


def _blob(content: bytes) -> str:
    """Returns the object name that git gives to a file with this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _git(folder: Path, *words: str) -> str:
    # Git refuses to read a checkout that another user owns. The harness allows such a checkout, because this command
    # runs none of the checkout's hooks.
    command = ["git", "-c", f"safe.directory={folder.absolute()}", "-C", str(folder), *words]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=_GIT_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise ConfigError(f"{folder}: git did not run: {one_line(e)}") from e
    if done.returncode:
        raise ConfigError(f"{folder} is not a git checkout: {one_line(done.stderr)}")
    return done.stdout


def refuse_changed(proof: Proof, checkout: Path) -> None:
    if proof.changed:
        shown = "; ".join(proof.changed[:3])
        more = f" and {len(proof.changed) - 3} more" if len(proof.changed) > 3 else ""
        raise ConfigError(
            f"the rules require the unmodified client, but {checkout} is modified ({shown}{more}): use a fresh checkout"
        )


def program_of(work: Path) -> Path:
    return work / ENVIRONMENT / "bin" / _PROGRAM


def ensure_client(work: Path, source: Path | None) -> Proof:
    """Creates the client's checkout and environment in WORK, and returns the proof for the checkout.

    source: the user's checkout, which is copied with git and stays unchanged. None means that WORK already contains the
    copy.
    """
    checkout, environment = work / CHECKOUT, work / ENVIRONMENT
    if source is not None:
        proof = prove(source)
        refuse_changed(proof, source)
        _copy(source, checkout, proof.commit)
    elif not checkout.is_dir():
        raise ConfigError(
            f"{checkout} does not exist: pass --client, a checkout of mlcommons/endpoints"
        )
    if not (is_environment(environment) and program_of(work).exists()):
        # The editable installation runs the files of the checkout, so the client reports the checkout's commit.
        make_environment(environment, ("--editable", str(checkout)))
    proof = prove(checkout)
    refuse_changed(proof, checkout)
    write_json(work / "client.json", proof.to_json())
    return proof


def _copy(source: Path, checkout: Path, commit: str) -> None:
    if checkout.is_dir():
        if (has := prove(checkout).commit) != commit:
            raise ConfigError(
                f"{checkout} is at {has[:12]}, but --client {source} is at {commit[:12]}: pass a different --work, "
                "because all points need the same commit"
            )
        return
    words = ["git", "-c", "safe.directory=*", "clone", "--quiet", "--no-hardlinks"]
    try:
        done = subprocess.run(
            [*words, str(source.absolute()), str(checkout)],
            env=environment_variables(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=600,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise ConfigError(f"{checkout} cannot be created: {one_line(e)}") from e
    if done.returncode:
        raise ConfigError(f"{checkout} cannot be created: {one_line(done.stderr)}")
    _git(checkout, "checkout", "--quiet", "--detach", commit)
