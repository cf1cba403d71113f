"""The line of progress, on a terminal whose width changes while it is shown."""

import io
import os
import sys

import pytest

from harness.run.supervisor.progress import Line


class Terminal(io.StringIO):
    """Stands in for stderr; `columns` is its width by now."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
        super().__init__()
        self.columns = columns
        monkeypatch.setattr(sys, "stderr", self)
        monkeypatch.setattr(
            os, "get_terminal_size", lambda _fd: os.terminal_size((self.columns, 24))
        )

    def fileno(self) -> int:
        return 2

    def written(self) -> str:
        """Since the last call."""
        text = self.getvalue()
        self.seek(0)
        self.truncate()
        return text


def test_a_line_is_cropped_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(monkeypatch, 20)
    Line().draw("performance  13.5 s  1,353 of 3,000 samples")
    assert terminal.written() == "\r\x1b[Jperformance  13.5 s"


def test_no_half_line_stays_where_the_terminal_becomes_narrower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bug: 60 characters that a terminal of 25 columns had wrapped into three rows left two of them."""
    terminal, line = Terminal(monkeypatch, 80), Line()
    line.draw("x" * 60)
    assert terminal.written() == "\r\x1b[J" + "x" * 60
    terminal.columns = 25
    line.draw("y" * 60)
    assert terminal.written() == "\r\x1b[2A\x1b[J" + "y" * 24
    line.draw("")
    assert terminal.written() == "\r\x1b[J"


def test_a_terminal_that_tells_no_width_has_the_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(monkeypatch, 0)
    Line().draw("x" * 100)
    assert terminal.written() == "\r\x1b[J" + "x" * 79
