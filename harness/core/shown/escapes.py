"""Shows control characters as text, so that a plug-in's message cannot move the cursor or hide a line."""

import re

_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 controls (except tab and line feed), DEL and C1 controls
    # Line separators, and marks that reverse the direction of text.
    "\u2028\u2029\u202a-\u202e\u2066-\u2069"
    "\ud800-\udfff]"  # surrogates, which stand for file-name bytes that are not UTF-8
)


def visible(text: str) -> str:
    r"""Returns the text with control characters as escapes, such as `\x1b` for ESC and `\r` for a carriage return; tabs
    and line feeds stay.
    """
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)
