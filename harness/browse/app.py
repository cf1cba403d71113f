"""Serves the pages. Defines the routes, the folder's files, the live events, and the server with its address."""

import errno
import ipaddress
import os
import platform
import re
import socket
import sys
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp

from harness.browse import within
from harness.browse.guard import TOKEN, Guard, new_token
from harness.browse.index import Index, Missing
from harness.browse.live.watching import Watching
from harness.browse.protocol import MOST_CONNECTIONS, bounded
from harness.browse.selection import Selection
from harness.browse.texts import asset, render
from harness.browse.views import FILES, Views
from harness.core.console import say, show
from harness.core.files import reading
from harness.errors import ConfigError, HarnessError, PluginUnavailable, one_line
from harness.results.pages import page as pages
from harness.results.run_folder import RESULTS

DEFAULT_PORT = 9470
LOOPBACK = "127.0.0.1"
NICENESS = 10
"""Increase of this process's niceness, so that runs on the machine take precedence."""

MOST_STREAMS = 16
"""At most this many live pages can be open at the same time."""

_PAGE_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox allow-scripts"
)
"""Policy for a page that comes from the folder. Scripts on such a page are not trusted, so they cannot reach the
network, cookies or other pages.
"""

_TYPES = {".css": "text/css", ".js": "text/javascript", ".html": "text/html"}
_SCRIPT = re.compile(r"plotly-[\w.]+\.min\.js", re.ASCII)


def make_app(root: Path, *, token: str | None = None, cookie: str = "browse") -> ASGIApp:
    """Returns the ASGI application. token: if None, the application answers only requests to a loopback name."""
    return _Browse(root.resolve()).guarded(token, cookie)


class _Browse:
    def __init__(self, root: Path, *, is_awaited: bool = False) -> None:
        self._root = root
        self._index = Index(root, is_awaited=is_awaited)
        self._views = Views(self._index)
        self._watching = Watching(self._index)
        self._streams = 0

    def guarded(self, token: str | None, cookie: str) -> ASGIApp:
        return Guard(self._starlette(), token=token, cookie=cookie, is_public=self.is_public)

    def read(self) -> None:
        """Reads the folder; with thousands of runs, this takes seconds. Raises a ConfigError if the folder is not
        readable.
        """
        with reading(f"{self._root} cannot be read", also=(OSError,)):
            self._index.entries()

    def _starlette(self) -> Starlette:
        page = self._page
        views = self._views
        return Starlette(
            routes=[
                page("/", lambda r: views.runs(_selection(r))),
                Route("/run/{path:path}", self._run),
                page("/compare", lambda r: views.compare(_selection(r))),
                page("/history", lambda r: views.history(_selection(r))),
                page("/pareto", lambda r: views.pareto(_selection(r))),
                page("/studies", lambda r: views.studies(_selection(r))),
                page("/study/{path:path}", lambda r: views.study(r.path_params["path"])),
                page("/machines", self._machines),
                Route("/live/{path:path}", self._live),
                Route("/events/{path:path}", self._events),
                Route("/files/{path:path}", self._file),
                Route("/assets/{name}", self._asset),
            ],
            exception_handlers={
                Missing: _missing,
                HTTPException: _missing,
                HarnessError: _refused,
                OSError: _refused,
                Exception: _bug,
            },
        )

    def _page(self, path: str, make: Callable[[Request], str]) -> Route:
        async def answer(request: Request) -> Response:
            return HTMLResponse(await run_in_threadpool(make, request))

        return Route(path, answer)

    async def _run(self, request: Request) -> Response:
        path = request.path_params["path"]
        if moved := await run_in_threadpool(self._watching.moved_page, path):
            return RedirectResponse(moved)
        return HTMLResponse(await run_in_threadpool(self._views.run, path))

    async def _live(self, request: Request) -> Response:
        path = request.path_params["path"]
        if ended := await run_in_threadpool(self._watching.ended_page, path):
            return RedirectResponse(ended)
        return HTMLResponse(await run_in_threadpool(self._watching.page, path))

    def _machines(self, request: Request) -> str:
        whole = bool(request.query_params.get("all"))
        return self._views.machines(_selection(request), all_settings=whole)

    def is_public(self, path: str) -> bool:
        return path.startswith("/assets/") or _is_plotly(path.rpartition("/")[2])

    async def _asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        if _is_plotly(name):
            return _plotly()
        content = asset(name)
        if content is None:
            raise Missing(name)
        return Response(
            content, media_type=_TYPES.get(Path(name).suffix, "application/octet-stream")
        )

    async def _file(self, request: Request) -> Response:
        path = request.path_params["path"]
        name = path.rpartition("/")[2]
        if _is_plotly(name):
            return _plotly()
        if name not in FILES and not _SCRIPT.fullmatch(name):
            raise Missing(path)
        try:
            content = await run_in_threadpool(within.read_file, self._root, path)
        except OSError:
            raise Missing(path) from None
        if name.endswith(".html"):
            return HTMLResponse(content, headers={"Content-Security-Policy": _PAGE_POLICY})
        return Response(content, media_type=_TYPES.get(Path(name).suffix, "text/plain"))

    async def _events(self, request: Request) -> Response:
        path = request.path_params["path"]
        await run_in_threadpool(self._watching.check, path)
        if self._streams >= MOST_STREAMS:
            return Response(status_code=503)
        return StreamingResponse(self._stream(path), media_type="text/event-stream")

    async def _stream(self, path: str) -> AsyncIterator[str]:
        self._streams += 1
        try:
            async for event in self._watching.events(path):
                yield event
        finally:
            self._streams -= 1


def _selection(request: Request) -> Selection:
    return Selection.of(request.query_params.multi_items())


def _is_plotly(name: str) -> bool:
    """Returns whether this is the file name of the installed plotly script. A copy in the folder is named differently."""
    try:
        return name == pages.plotly_script()[1]
    except PluginUnavailable:
        return False


def _plotly() -> Response:
    headers = {
        "Cache-Control": "public, max-age=31536000, immutable",
        # A sandboxed page counts as a separate origin, and must still load the files of this server.
        "Cross-Origin-Resource-Policy": "cross-origin",
    }
    return Response(
        pages.plotly_script()[0].read_bytes(), media_type="text/javascript", headers=headers
    )


async def _missing(_: Request, __: Exception) -> Response:
    text = "This page or folder does not exist. The folder may have been renamed: a run's folder loses the suffix .partial at the end."
    return HTMLResponse(render("problem.html", title="Not found", text=text), 404)


async def _refused(_: Request, error: Exception) -> Response:
    return HTMLResponse(render("problem.html", title="Not shown", text=one_line(error)), 422)


async def _bug(_: Request, error: Exception) -> Response:
    traceback.print_exception(error, file=sys.stderr)
    text = "This is a fault of the harness. The terminal of browse shows the traceback."
    return HTMLResponse(render("problem.html", title="Fault", text=text), 500)


def serve(folder: Path, host: str, port: int | None) -> int:
    """Serves pages at low priority until a signal ends the server. Returns the exit status.

    port: None selects DEFAULT_PORT, or a free port if DEFAULT_PORT is taken. Raises a ConfigError if the address cannot
    be used or the folder does not exist. Only `results` may be missing, because the first run creates it.
    """
    is_awaited = not folder.exists() and folder.absolute() == Path(RESULTS).absolute()
    if not folder.is_dir() and not is_awaited:
        what = "is not a folder" if folder.exists() else "does not exist"
        raise ConfigError(f"{folder} {what}: pass a folder of results")
    listening = _listen(host, port)
    number = listening.getsockname()[1]
    token = None if _is_loopback(listening) else new_token()
    browse = _Browse(folder.resolve(), is_awaited=is_awaited)
    app = browse.guarded(token, f"browse-{number}")
    config = uvicorn.Config(
        app,
        log_level="critical",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        http=bounded(),
        loop="asyncio",
        proxy_headers=False,
        limit_concurrency=MOST_CONNECTIONS + 1,
        # Live pages never end by themselves, so the shutdown must not wait longer.
        timeout_graceful_shutdown=1,
    )
    os.nice(NICENESS)
    if is_awaited:
        say(f"browse reads {folder.absolute()}, which the first run creates")
    else:
        say(f"browse reads {folder}")
    browse.read()
    show(_address(host, number, token))
    say("Ctrl-C ends it")
    if token is not None:
        say("anyone with this address can see all runs, and the connection is not encrypted")
    with suppress(KeyboardInterrupt):  # uvicorn raises the signal again after its shutdown
        uvicorn.Server(config).run(sockets=[listening])
    return 0


def _listen(host: str, port: int | None) -> socket.socket:
    number = DEFAULT_PORT if port is None else port
    try:
        family, _, _, _, address = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as e:
        if port is None and e.errno == errno.EADDRINUSE:
            return _listen(host, 0)
        hint = (
            "choose a different --port"
            if e.errno == errno.EADDRINUSE
            else "choose a different --host"
        )
        raise ConfigError(f"{host}:{number} cannot be used ({e.strerror}): {hint}") from None


def _is_loopback(listening: socket.socket) -> bool:
    return ipaddress.ip_address(listening.getsockname()[0]).is_loopback


def _address(host: str, port: int, token: str | None) -> str:
    """Returns the URL that the user should open. If the server listens on all addresses, the URL contains the machine's
    name.
    """
    name = platform.node() if host in ("0.0.0.0", "::") else host  # noqa: S104 - compared, not bound
    name = f"[{name}]" if ":" in name else name
    return f"http://{name}:{port}/" + (f"?{TOKEN}={token}" if token else "")
