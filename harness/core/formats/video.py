"""Finds the MP4 file in a video-generation model's answer."""

from base64 import b64decode
from pathlib import Path

_MARK = b"ftyp"
_BOX = slice(4, 8)
"""Position of the first box's type in an MP4 file (ISO/IEC 14496-12)."""


def video_of(payload: bytes) -> bytes:
    """Returns an MP4 file: the answer itself, the answer decoded from base64, or the file that the answer names.

    Raises a ValueError or an OSError for any other answer.
    """
    if payload[_BOX] == _MARK:
        return payload
    is_path = payload.startswith(b"/")
    content = Path(payload.decode()).read_bytes() if is_path else _decoded(payload)
    if content[_BOX] != _MARK:
        raise ValueError("it is neither an MP4 file, nor MP4 in base64, nor the path of one")
    return content


def _decoded(payload: bytes) -> bytes:
    try:
        return b64decode(payload, validate=True)
    except ValueError:
        return b""
