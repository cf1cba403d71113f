"""Connects a run to a load host on another machine, detects a lost connection quickly, and copies files."""

import re
import socket
from base64 import b64decode, b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.core.child import Channel
from harness.core.units import NS_PER_MS, NS_PER_S

LOST_S = 10.0
"""Maximum time for which a machine may send nothing before its connection counts as lost."""

MESSAGE_LIMIT_S = 10.0
MOST_MESSAGE_BYTES = 1 << 26
"""Size and time limits for a message; the time counts from its first byte. A peer that sends more slowly is
disconnected.
"""

_PROBE_EVERY_S = 3
_PIECE_BYTES = 2**19
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", re.ASCII)


def channel_over(connected: socket.socket) -> Channel:
    """Returns a channel over the connection. The kernel closes the connection if the other machine does not receive
    anything for LOST_S.
    """
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_EVERY_S)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_EVERY_S)
    lost_ms = int(LOST_S * NS_PER_S / NS_PER_MS)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, lost_ms)
    return Channel(connected, message_limit_s=MESSAGE_LIMIT_S, most_bytes=MOST_MESSAGE_BYTES)


def send_file(channel: Channel, path: Path) -> None:
    """Sends the file in pieces, each in a message `file`. The file may therefore be larger than memory."""
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            channel.send("file", name=path.name, piece=b64encode(piece).decode())


def append_piece(folder: Path, message: Mapping[str, Any]) -> None:
    """Appends the piece in a message `file` to the file that the message names. Raises ValueError if the name leads to
    a path outside the folder.
    """
    name = message["name"]
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r:.100} is not a file name")
    with (folder / name).open("ab") as file:
        file.write(b64decode(message["piece"], validate=True))
