"""Says why a server refused a request: its own words, the title of a page, where it leads, and when to ask again."""

import json
import re
from html import unescape

from harness.errors import one_line
from harness.remote import Refused, Reply

_REDIRECTS = (301, 302, 303, 307, 308)
_TITLE = re.compile(r"<(title|h1)\b[^>]*>(.*?)</\1", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
_MOST_BYTES = 2000


def refused(reply: Reply) -> Refused:
    """The error of a reply whose status is not OK."""
    return Refused(reply.status, said(reply))


def said(reply: Reply) -> str:
    """The reply's own words, as one line."""
    text = words(bytes(reply.body))
    location, again = reply.header("Location"), reply.header("Retry-After")
    if reply.status in _REDIRECTS and location:
        text = f"it leads to {_address(location)}: give the address of the server itself with --url"
    return f"{text} (Retry-After: {one_line(again)})" if again else text


def _address(location: str) -> str:
    """Without its query, which may be a signature."""
    address, mark, _ = one_line(location).partition("?")
    return f"{address}{mark and '?…'}"


def words(body: bytes) -> str:
    """The text of an error, whether it is JSON, a page or a line; as one line."""
    try:
        return one_line(error_text(json.loads(body))) or "no text"
    except (ValueError, RecursionError):
        text = body[:_MOST_BYTES].decode("utf-8", "replace")
    if text.lstrip().startswith("<"):
        title = _TITLE.search(text)
        return f"a page, {one_line(unescape(_TAG.sub(' ', title[2] if title else text)))!r}"
    # One character may be cut at the end.
    if any(ord(c) < 32 and not c.isspace() for c in text) or "\ufffd" in text[:-1]:
        return f"{len(body):,} bytes that are not text"
    return one_line(text) or "no text"


def error_text(content: object) -> str:
    """The text of an error that is JSON."""
    error = content
    if isinstance(content, dict):
        found = (content.get(key) for key in ("error", "detail", "message", "errors"))
        error = next((value for value in found if value and value is not True), content)
    if isinstance(error, list) and error and isinstance(error[0], dict):  # FastAPI's
        error = error[0].get("msg") or error
    if isinstance(error, dict):  # OpenAI's
        error = error.get("message") or error
    return error if isinstance(error, str) else json.dumps(error)
