"""Masks the user's secrets, in any encoding, in texts that come from outside the harness.

A server's reply may repeat the request, including headers whose values come from the environment. Known secrets are
masked when a text leaves the process, either to the screen or to the supervisor.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from html.entities import codepoint2name
from typing import Any
from urllib.parse import unquote

MASK = "***"

_FEWEST = 4
"""Shorter values are not masked, because they also occur in ordinary texts."""

_WHOLE = 8
"""Number of leading characters of a secret that are masked even if the text ends before the secret does. A shorter
secret may be an ordinary word, so it is masked only as a whole word, not within another word and not in an encoded
form.
"""

_LONG = 64
_TO_THE_END = r"""[^\s"'<>]*"""
"""Matches the rest of a secret after its first `_LONG` characters. The rest is masked without comparing it."""

_GAP = r"""[\s"'+,\\]{0,6}?"""
"""Matches the characters between parts of a secret that is split or wrapped over several lines. The match is lazy,
because a backslash may begin an escape.
"""

_BACKSLASHES = r"\\{1,8}"
"""Matches the backslashes before an escape; JSON in JSON in JSON has four. The number is limited, because matching
would otherwise take quadratic time.
"""

_HEX_GAP = r"""[\s"'+,\\:;.-]{0,6}(?:0x)?"""
"""Matches the characters between hexadecimal bytes."""

_LIST_GAP = r"""[\s,;]{1,6}"""
"""Matches the characters between bytes that are written as decimal numbers."""

_USER = re.compile(r"://([^/?#\s]+)@")
_QUERY = re.compile(
    r"[?&][\w.-]*(?:token|key|secret|passw|pwd|sig|auth|credential)[\w.-]*=([^&#\s]+)",
    re.IGNORECASE,
)
"""Matches the value of a query parameter whose name suggests that the value is a secret."""

_known: set[str] = set()
_patterns: list[tuple[re.Pattern[str], bool]] = []
"""Pairs of a pattern and whether the secret is short."""


def learn(value: str) -> None:
    """Masks the secret from now on, and also the parts of a `Basic` or `Bearer` value."""
    value = value.strip()
    if len(value) < _FEWEST or value in _known:
        return
    _known.add(value)
    is_short = len(value) < _WHOLE
    forms = [rf"(?<!\w){re.escape(value)}(?!\w)"] if is_short else _forms(value)
    _patterns.extend((re.compile(form, re.IGNORECASE), is_short) for form in forms)
    scheme, space, rest = value.partition(" ")
    if space:
        learn(rest)
    if scheme.lower() == "basic":
        try:
            _, _, password = base64.b64decode(rest, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return
        learn(password)


def learn_from_urls(texts: Iterable[str]) -> None:
    """Masks the secrets in the URLs of these texts from now on. Secrets are passwords, user names without a password
    (tokens), and query parameters with names such as `token` or `key`.
    """
    for text in texts:
        for value in _QUERY.findall(text):
            learn(value)
            learn(unquote(value))
        for found in _USER.findall(text):
            user, colon, password = found.partition(":")
            value = password if colon else user
            learn(value)
            learn(unquote(value))


def masked(text: str, short: bool = True) -> str:
    """Returns the text with each secret replaced by `***`. short: whether to mask short secrets, too."""
    for pattern, is_short in _patterns:
        if short or not is_short:
            text = pattern.sub(MASK, text)
    return text


def masked_values(value: Any) -> Any:
    """Returns a JSON value after applying `masked` to every text in it, except the keys of objects.

    Short secrets are not masked in a text that is a single word, because programs may read such names, paths, URLs,
    types and digests. The values of all keys are masked, because servers may repeat secrets under any key, even in
    names.
    """
    if not _patterns:
        return value
    if isinstance(value, str):
        return masked(value, short=len(value.split()) > 1)
    if isinstance(value, Mapping):
        return {key: masked_values(one) for key, one in value.items()}
    return [masked_values(one) for one in value] if isinstance(value, list | tuple) else value


def _forms(value: str) -> Iterable[str]:
    """Yields patterns that match the value: as text with any escapes, as byte numbers, and in base64 or base32 at any
    offset.
    """
    yield _sequence([_character(char) for char in value])
    raw = value.encode()
    yield _sequence([re.escape(digit) for digit in raw.hex()])
    yield _sequence([f"{byte:02x}" for byte in raw], _HEX_GAP)
    yield rf"\b{_sequence([f'{byte}' for byte in raw], _LIST_GAP)}"
    for before in range(3):
        text = base64.b64encode(bytes(before) + raw).decode()
        # The first and last digits are omitted, because they also encode bits of adjacent, unknown bytes.
        start, end = -(-8 * before // 6), 8 * (before + len(raw)) // 6
        yield _sequence([_digit(char) for char in text[start:end]])
    for before in range(5):
        text = base64.b32encode(bytes(before) + raw).decode()
        start, end = -(-8 * before // 5), 8 * (before + len(raw)) // 5
        yield _sequence([re.escape(char) for char in text[start:end]])


def _sequence(parts: list[str], gap: str = _GAP) -> str:
    """Returns a pattern that matches the first `_WHOLE` parts and any parts after them, up to the end of a long value."""
    needed, more = parts[:_WHOLE], parts[_WHOLE:_LONG]
    end = _TO_THE_END if len(parts) > _LONG else ""
    return gap.join(needed) + "".join(f"(?:{gap}{part})?" for part in more) + end


def _character(char: str) -> str:
    """Returns a pattern that matches the character, either plain or escaped as in JSON, Python, JavaScript, C, URLs,
    email or HTML.
    """
    code = ord(char)
    percent = "".join(f"%(?:25){{0,4}}{byte:02x}" for byte in char.encode())
    octets = "".join(f"{_BACKSLASHES}x{byte:02x}" for byte in char.encode())
    quoted = "".join(f"={byte:02x}" for byte in char.encode())
    octal = "".join(f"{_BACKSLASHES}{byte:03o}" for byte in char.encode())
    forms = [percent, octets, f"{_BACKSLASHES}u{code:04x}", f"{_BACKSLASHES}x{code:02x}"]
    forms += [f"{_BACKSLASHES}u\\{{0*{code:x}\\}}", f"{_BACKSLASHES}U{code:08x}", f"%u{code:04x}"]
    forms += [quoted, octal]
    forms += [f"&(?:amp;)?#0*{code};?", f"&(?:amp;)?#x0*{code:x};?"]
    if code in codepoint2name:
        forms.append(f"&(?:amp;)?{codepoint2name[code]};")
    if char == " ":
        forms.append(r"\+")
    # The plain character comes last, because `&` also begins the longer forms.
    return f"(?:{'|'.join([*forms, re.escape(char)])})"


def _digit(char: str) -> str:
    """Returns a pattern that matches a base64 digit, also in the URL-safe alphabet."""
    other = {"+": "-", "/": "_"}.get(char)
    return f"(?:{_character(char)}|{other})" if other else re.escape(char)
