"""Accepts only GET and HEAD requests that use one of this machine's names and, if a token is required, contain the
token.
"""

import hmac
import secrets
from collections.abc import Callable, Mapping
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_NAMES = frozenset(("127.0.0.1", "localhost", "[::1]"))
TOKEN = "token"  # noqa: S105 - the name of the parameter

_EMPTY_STYLE = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
"""Hash of an empty style element. plotly's script inserts its rules into such an element."""

_MAP_STYLE = "'sha256-ji27qzEtxXZW+7dun6UwjHXJ18e6WAin1VvNtkzIE/o='"
"""Hash of the style of maps, which plotly.js 7.1 inserts into every page. With another version, a page without maps looks
the same, and the browser's console has a message.
"""

POLICY = (
    f"default-src 'none'; script-src 'self'; style-src 'self' {_EMPTY_STYLE} {_MAP_STYLE}; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Content-Security-Policy for every page that browse makes."""

_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers for every response, unless the response itself sets these headers."""


def new_token() -> str:
    return secrets.token_urlsafe(24)


class Guard:
    """Wraps an ASGI application.

    token: None if the server listens only on loopback. `Host` must then be a loopback name. This blocks DNS rebinding,
    an attack in which another site's name points to 127.0.0.1, because the browser then sends that site's name.
    """

    def __init__(
        self, app: ASGIApp, *, token: str | None, cookie: str, is_public: Callable[[str], bool]
    ) -> None:
        """Stores the settings. is_public: returns whether the file at a path is the same in every installation. Such a
        file needs no token, because sandboxed pages load it without cookies.
        """
        self._app = app
        self._is_public = is_public
        self._token = token
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self._refusal(scope) or self._app
        await answer(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        """Returns the response that refuses a request; None if the request may reach the application."""
        headers = Headers(scope=scope)
        if scope["method"] not in ("GET", "HEAD"):
            text = "browse only reads: use GET or HEAD\n"
            return PlainTextResponse(text, 405, {"Allow": "GET, HEAD"})
        if self._token is None:
            host = headers.get("host", "").lower()
            name = host if host.endswith("]") else host.rpartition(":")[0] or host
            if name not in LOOPBACK_NAMES:
                text = "browse answers only at 127.0.0.1 and localhost: start it with --host for other addresses\n"
                return PlainTextResponse(text, 421)
            return None
        if self._is_public(scope["path"]) or self._is_token(_cookie_of(headers, self._cookie)):
            return None
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if self._is_token(next((text for name, text in pairs if name == TOKEN), "")):
            return self._welcome(scope["path"], [pair for pair in pairs if pair[0] != TOKEN])
        text = "browse needs the token: open the whole address that browse printed at its start\n"
        return PlainTextResponse(text, 401)

    def _is_token(self, text: str) -> bool:
        assert self._token is not None
        return hmac.compare_digest(text.encode(), self._token.encode())

    def _welcome(self, path: str, others: list[tuple[str, str]]) -> Response:
        """Stores the token in a cookie, and reloads the page at a URL without the token.

        Uses a refresh, because the browser does not send a Strict cookie after a redirect from another site.
        """
        query = f"?{urlencode(others)}" if others else ""
        target = "/" + quote(path.lstrip("/")) + query.replace("&", "&amp;")
        response = HTMLResponse(
            '<!doctype html><html lang="en"><head><title>browse</title>'
            f'<meta http-equiv="refresh" content="0; url={target}"></head>'
            f'<body><a href="{target}">Go on</a></body></html>\n'
        )
        response.set_cookie(self._cookie, self._token or "", httponly=True, samesite="strict")
        return response


def _cookie_of(headers: Headers, name: str) -> str:
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return morsel.value if morsel is not None else ""
