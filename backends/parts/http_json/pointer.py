"""Finds a value in JSON with a pointer (RFC 6901), such as `/predictions/0/scores`."""

import re
from typing import Any
from urllib.parse import unquote

_INDEX = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)
_BAD_ESCAPE = re.compile(r"~(?![01])")


class Pointer:
    """A parsed pointer; '' or # points to the whole content. A pointer may also be written as a fragment: #/a is /a."""

    __slots__ = ("_tokens", "text")

    def __init__(self, text: str) -> None:
        """Raises a ValueError with a one-line message if the text is not a JSON pointer."""
        if text.startswith("#"):
            text = unquote(text[1:])
        if text and not text.startswith("/"):
            raise ValueError(f"{text!r} does not begin with /: write e.g. /predictions/0/scores")
        if _BAD_ESCAPE.search(text):
            raise ValueError(f"{text!r} has a ~ that is not part of ~0 (for ~) or ~1 (for /)")
        self.text = text or "#"
        self._tokens = tuple(
            token.replace("~1", "/").replace("~0", "~") for token in text.split("/")[1:]
        )

    def find(self, content: Any) -> Any:
        """Returns the value. Raises a LookupError if the content lacks the value."""
        for token in self._tokens:
            if isinstance(content, dict):
                content = content[token]
            elif isinstance(content, list) and _INDEX.fullmatch(token):
                content = content[int(token)]
            else:
                raise LookupError(token)
        return content

    def __bool__(self) -> bool:
        """Returns False if the pointer points to the whole content."""
        return bool(self._tokens)
