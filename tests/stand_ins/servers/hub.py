"""A stand-in for the HuggingFace Hub's HTTP API on 127.0.0.1: repositories, their file lists and their files.

Source: huggingface.co/docs/hub/api, and the requests that huggingface-hub 2.4 sends.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.stand_ins.servers.quiet import QuietHandler, in_thread

LFS_BYTES = 500
"""Files of at least this size are in Git LFS; the real Hub decides by .gitattributes and by size."""


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Hub:
    """Repositories that tests change while the server runs."""

    commits: dict[tuple[str, str], Mapping[str, bytes]] = field(default_factory=dict)
    """Maps (repository, commit) to contents by path."""
    branches: dict[tuple[str, str], str] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    """Method and path of each received request."""
    damaged: bool = False
    """If true, the last byte of each file is changed before it is sent."""
    address: str = ""

    def push(self, repository: str, files: Mapping[str, bytes], branch: str = "main") -> str:
        """Adds a commit with these files, and returns its hash."""
        listed = sorted((name, git_sha1(content)) for name, content in files.items())
        commit = hashlib.sha1(json.dumps([repository, listed]).encode()).hexdigest()
        self.commits[repository, commit] = dict(files)
        self.branches[repository, branch] = commit
        return commit

    def commit_of(self, repository: str, revision: str) -> str | None:
        if (repository, revision) in self.commits:
            return revision
        return self.branches.get((repository, revision))


def _sibling(name: str, content: bytes) -> dict[str, Any]:
    about: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": git_sha1(content)}
    if len(content) >= LFS_BYTES:
        sha256 = hashlib.sha256(content).hexdigest()
        about["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 130}
    return about


class _Handler(QuietHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path).strip("/")
        self.hub.requests.append(f"{self.command} {path}")
        if path.startswith(("api/models/", "api/datasets/")):
            name = path.split("/", 2)[2]
            repository, _, revision = name.partition("/revision/")
            self._list(repository, revision or "main")
        else:
            repository, _, rest = path.partition("/resolve/")
            revision, _, name = rest.partition("/")
            self._file(repository, revision, name)

    def _known(self, repository: str, revision: str) -> str | None:
        commit = self.hub.commit_of(repository, revision)
        if commit is None:
            exists = any(known == repository for known, _ in self.hub.commits)
            self._refuse("RevisionNotFound" if exists else "RepoNotFound")
        return commit

    def _list(self, repository: str, revision: str) -> None:
        if (commit := self._known(repository, revision)) is not None:
            files = self.hub.commits[repository, commit]
            siblings = [_sibling(*item) for item in files.items()]
            about = {"id": repository, "sha": commit, "siblings": siblings, "tags": []}
            self._send(200, json.dumps(about).encode(), {"Content-Type": "application/json"})

    def _file(self, repository: str, revision: str, name: str) -> None:
        if (commit := self._known(repository, revision)) is None:
            return
        content = self.hub.commits[repository, commit].get(name)
        if content is None:
            self._refuse("EntryNotFound")
            return
        headers = {"X-Repo-Commit": commit, "ETag": f'"{git_sha1(content)}"'}
        if len(content) >= LFS_BYTES:
            headers["X-Linked-Etag"] = f'"{hashlib.sha256(content).hexdigest()}"'
            headers["X-Linked-Size"] = str(len(content))
        if self.hub.damaged:
            content = content[:-1] + bytes([content[-1] ^ 1])
        self._send(200, content, headers)

    def _refuse(self, code: str) -> None:
        self._send(404, b"", {"X-Error-Code": code, "X-Error-Message": f"{code}: not here"})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@contextmanager
def serving() -> Iterator[Hub]:
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    with in_thread(server) as hub.address:
        yield hub
