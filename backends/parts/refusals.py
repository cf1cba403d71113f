"""Reports why a server refused a request: the server's text or a page's title, a redirect, and the time after which to
retry.
"""

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
    """Returns the error for a reply whose status is not OK."""
    return Refused(reply.status, said(reply))


def said(reply: Reply) -> str:
    """Returns the text of the reply as one line."""
    text = words(bytes(reply.body))
    location, again = reply.header("Location"), reply.header("Retry-After")
    if reply.status in _REDIRECTS and location:
        text = f"it redirects to {_address(location)}: pass the server's own address with --url"
    return f"{text} (Retry-After: {one_line(again)})" if again else text


def _address(location: str) -> str:
    """Returns the address without its query, which may contain a signature."""
    address, mark, _ = one_line(location).partition("?")
    return f"{address}{mark and '?…'}"


def words(body: bytes) -> str:
    """Returns the text of an error as one line; the error may be JSON, an HTML page or plain text."""
    try:
        return one_line(error_text(json.loads(body))) or "no text"
    except (ValueError, RecursionError):
        text = body[:_MOST_BYTES].decode("utf-8", "replace")
    if text.lstrip().startswith("<"):
        title = _TITLE.search(text)
        return f"a page, {one_line(unescape(_TAG.sub(' ', title[2] if title else text)))!r}"
    # The last character may be incomplete, because the text may have been cut.
    if any(ord(c) < 32 and not c.isspace() for c in text) or "\ufffd" in text[:-1]:
        return f"{len(body):,} bytes that are not text"
    return one_line(text) or "no text"


def _with_place(error: dict[str, object]) -> str:
    """Returns the message of one FastAPI error with the field that it concerns; '' if the error has no message."""
    message, place = error.get("msg"), error.get("loc")
    if not isinstance(message, str) or not isinstance(place, list) or not place:
        return message if isinstance(message, str) else ""
    return f"{message} ({'.'.join(map(str, place))})"


def error_text(content: object) -> str:
    """Returns the text of a JSON error."""
    error = content
    if isinstance(content, dict):
        found = (content.get(key) for key in ("error", "detail", "message", "errors"))
        error = next((value for value in found if value and value is not True), content)
    if (
        isinstance(error, list) and error and isinstance(error[0], dict)
    ):  # the form of FastAPI's errors
        error = _with_place(error[0]) or error
    if isinstance(error, dict):  # the form of OpenAI's errors
        error = error.get("message") or error
    return error if isinstance(error, str) else json.dumps(error)
