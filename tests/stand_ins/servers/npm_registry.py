"""A stand-in for an npm registry on 127.0.0.1, for `npm pack`: package descriptions and tarballs.

Source: github.com/npm/registry, docs/responses/package-metadata.md.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.stand_ins.servers.quiet import QuietHandler, in_thread


class _Handler(QuietHandler):
    packages: Mapping[str, tuple[str, Path]]
    """Maps a name to its version and tarball."""

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path).strip("/")
        if path.endswith(".tgz"):
            content = next(p for _, p in self.packages.values() if p.name == path).read_bytes()
            return self.reply(content)
        if path not in self.packages:
            return self.reply(b'{"error": "Not found"}', 404)
        return self.reply(json.dumps(self._about(path)).encode())

    def _about(self, name: str) -> Mapping[str, object]:
        version, tarball = self.packages[name]
        digest = hashlib.sha512(tarball.read_bytes()).digest()
        dist = {
            "tarball": f"http://{self.headers['Host']}/{tarball.name}",
            "integrity": f"sha512-{base64.b64encode(digest).decode()}",
        }
        one = {"name": name, "version": version, "dist": dist}
        return {"name": name, "dist-tags": {"latest": version}, "versions": {version: one}}


@contextmanager
def serving(packages: Mapping[str, tuple[str, Path]]) -> Iterator[str]:
    """Yields the address of the registry. packages: maps a name to its version and tarball."""
    handler = type("Handler", (_Handler,), {"packages": packages})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    with in_thread(server) as address:
        yield address
