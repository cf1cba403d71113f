"""Finds the MP4 file in the answer of a model that makes videos."""

from base64 import b64decode
from pathlib import Path

_MARK = b"ftyp"
_BOX = slice(4, 8)
"""The place of an MP4 file's first mark (ISO/IEC 14496-12)."""


def video_of(payload: bytes) -> bytes:
    """Returns an MP4 file: the answer itself, its base64, or the file that it names.

    Raises a ValueError or an OSError for any other answer.
    """
    if payload[_BOX] == _MARK:
        return payload
    if payload.startswith(b"/"):
        content = Path(payload.decode()).read_bytes()
    else:
        content = b64decode(payload, validate=True)
    if content[_BOX] != _MARK:
        raise ValueError("it is neither an MP4 file nor the path of one")
    return content
