"""Redraws the terminal's last rows, which show the current status."""

import os
import re
from collections.abc import Sequence
from typing import TextIO

_USUAL_COLUMNS = 80
"""Assumed width of a terminal that does not report its width, such as a recorder's terminal."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def columns_of(stream: TextIO) -> int:
    return os.get_terminal_size(stream.fileno()).columns or _USUAL_COLUMNS


class StatusLine:
    """Rows on a terminal that replace the previously drawn rows.

    A terminal that became narrower has wrapped the previous rows, so all wrapped rows are cleared first.
    """

    def __init__(self) -> None:
        self._drawn: list[int] = []
        """Number of characters in each row that is on the terminal."""

    def draw(self, stream: TextIO, rows: Sequence[str]) -> None:
        """Draws rows. The rows must be narrower than the terminal, because a full row would move the cursor to the next
        row.
        """
        columns = columns_of(stream)
        above = sum(1 + max(0, length - 1) // columns for length in self._drawn) - 1
        up = f"\x1b[{above}A" if above > 0 else ""
        stream.write(f"\r{up}\x1b[J" + "\n".join(rows))
        stream.flush()
        self._drawn = [len(_COLOUR.sub("", row)) for row in rows]

    def clear(self, stream: TextIO) -> None:
        if self._drawn:
            self.draw(stream, ())
