"""Serves one supervisor: runs a function on its first message, and reports whatever it raises."""

import os
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from harness.core.child import Channel, die_with_parent
from harness.errors import HarnessError

Work = Callable[[Channel, Mapping[str, Any], int], None]
"""Takes the channel, the first message and the journal's descriptor."""


def serve(work: Work) -> None:
    """Never returns. argv ends with the descriptors of the socket and of the journal."""
    die_with_parent()
    channel = Channel(socket.socket(fileno=int(sys.argv[-2])))
    status = 0
    try:
        message = channel.receive()
        if message is not None:
            work(channel, message, int(sys.argv[-1]))
    except HarnessError as e:
        status = e.exit_status
        trace = "".join(traceback.format_exception(e.__cause__)) if e.__cause__ else ""
        channel.send("error", status=status, text=str(e), trace=trace)
    except BaseException as e:  # noqa: BLE001 - reported to the supervisor, which shows it
        status = 1
        channel.send("error", status=status, text=repr(e), trace=traceback.format_exc())
    sys.stdout.flush()
    os._exit(status)  # no destructors: LoadGen's and the frameworks' can hang
