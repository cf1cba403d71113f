"""Progress is a bar on a terminal, whose width may change, and plain lines elsewhere."""

import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.core import clock
from harness.core.config.parse import Slo
from harness.core.config.run_config import RunConfig
from harness.core.console import say
from harness.core.shown.status_line import StatusLine
from harness.core.units import NS_PER_S
from harness.loadgen.plan import Calibration, InstanceGroup, LoadPlan, Seeds
from harness.run import progress as module
from harness.run.bar import Bar
from harness.run.progress import Pace, Progress
from harness.run.supervisor.progress import RunProgress, announcement
from harness.run.supervisor.watchdog import Now

PLAN = LoadPlan(
    scenario="server",
    accuracy=False,
    query_count=1000,
    journal_samples=1000,
    total_count=100,
    performance_count=100,
    seeds=Seeds(1, 2, 3),
    expected_s=10.0,
)
HALF = Now(issued=500, completed=500, failed=0, p99_ns=1.5e6, idle_ns=0)


@pytest.mark.parametrize(
    ("count", "more", "told"),
    [
        (
            2010,
            {"slo": (Slo(0.99, 1, "ttft"),)},
            " (the minimum that can judge a p99; --duration alone",
        ),
        (
            2010,
            {"slo": (Slo(0.9, 1), Slo(0.999, 1, "ttft"))},
            " (the minimum that can judge a p99.9; ",
        ),
        (2010, {"queries": 2010}, ", at 10"),
        (88, {}, ", at 10"),
    ],
)
def test_announcement_gives_the_reason_for_a_run_longer_than_requested(
    count: int, more: dict[str, Any], told: str
) -> None:
    plan = replace(PLAN, query_count=count, target_qps=10.0)
    config = RunConfig(scenario="server", duration_ns=8 * NS_PER_S, **more)
    line = announcement(plan, Calibration(slowest_batch_ns=1), InstanceGroup(1, 1, 1), config)
    assert line.startswith(f"server: {count:,} queries{told}")


def test_announcement_names_every_slo_once_and_the_ramp() -> None:
    slos = (Slo(0.9, 10**9), Slo(0.9, 10**9, "ttft"), Slo(0.99, 10**7, "tpot"))
    plan = replace(PLAN, percentile=0.9, latency_bound_ns=10**9)
    config = RunConfig(scenario="server", slo=slos)
    of = (Calibration(slowest_batch_ns=1), InstanceGroup(1, 1, 1), config)
    told = ", SLO p90 ≤ 1.00 s, SLO ttft:p90 ≤ 1.00 s, SLO tpot:p99 ≤ 10.0 ms, "
    assert told in announcement(plan, *of)
    assert "SLO ttft" not in announcement(replace(plan, accuracy=True), *of)
    ramped = announcement(replace(PLAN, ramp={"start": 5.0}), *of)
    assert ramped.startswith(
        "server: at most 1,000 queries, at a rate that grows from 5.00/s until "
    )


class Terminal(io.StringIO):
    """Stands in for stderr; `columns` is the current width of the terminal."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
        super().__init__()
        self.columns = columns
        monkeypatch.setattr(
            os, "get_terminal_size", lambda _fd: os.terminal_size((self.columns, 24))
        )

    def fileno(self) -> int:
        return 2

    def written(self) -> str:
        """Returns the text written since the last call."""
        text = self.getvalue()
        self.seek(0)
        self.truncate()
        return text


class Seconds:
    """A stand-in for the monotonic clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        for place in (module, sys.modules[RunProgress.__module__]):
            monkeypatch.setattr(place, "monotonic_ns", lambda: int(self.now * NS_PER_S))


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    # Checks that the module uses the replaced clock.
    assert vars(module)["monotonic_ns"] is clock.monotonic_ns
    return Seconds(monkeypatch)


def test_narrower_terminal_shows_no_left_over_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bug: a terminal with 25 columns wrapped 60 characters into three rows, and two of them were not erased."""
    terminal, line = Terminal(monkeypatch, 80), StatusLine()
    line.draw(terminal, ["x" * 60])
    assert terminal.written() == "\r\x1b[J" + "x" * 60
    terminal.columns = 25
    line.draw(terminal, ["y" * 24, "\x1b[1;35mz\x1b[0m"])
    assert terminal.written() == "\r\x1b[2A\x1b[J" + "y" * 24 + "\n\x1b[1;35mz\x1b[0m"
    line.clear(terminal)
    assert terminal.written() == "\r\x1b[1A\x1b[J"
    line.clear(terminal)
    assert terminal.written() == ""


def test_terminal_of_unknown_width_has_the_usual_width(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, line = Terminal(monkeypatch, 0), StatusLine()
    line.draw(terminal, ["x" * 79])
    line.draw(terminal, ["x"])
    assert terminal.written().endswith("\r\x1b[Jx")


@pytest.mark.parametrize("columns", [30, 79, 200])
def test_rows_fit_the_terminal(columns: int) -> None:
    bar = Bar(Console(file=io.StringIO(), force_terminal=True, no_color=True))
    for share in (None, 0.0, 0.45, 1.0):
        rows = bar.rows(columns, "performance", share, ["1,353/s", "p99 119 ms", "7 s left"])
        assert [len(re.sub(r"\x1b\[[0-9;]*m", "", row)) <= columns for row in rows] == [True]


def test_a_bar_has_share_rate_p99_and_time_left() -> None:
    bar = Bar(Console(file=io.StringIO(), color_system=None))
    (row,) = bar.rows(100, "performance", 0.45, ["1,353/s", "p99 119 ms", "7 s left"])
    assert re.fullmatch(r"performance \S+ +45 % 1,353/s  p99 119 ms  7 s left *", row)


def test_progress_without_a_terminal_is_a_line_at_5_s_then_every_10_s(
    seconds: Seconds, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: an official run printed no line for 600 s between the announcement and the result."""
    progress = Progress()
    lines = []
    for quarter in range(4 * 40):
        seconds.now = quarter / 4
        progress.show("performance", share=quarter / 160, details=["9/s"], left_s=40 - seconds.now)
        lines += [(seconds.now, line) for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        (5.0, "harness: performance 12 %, 9/s, 35 s left"),
        (15.0, "harness: performance 38 %, 9/s, 25 s left"),
        (25.0, "harness: performance 62 %, 9/s, 15 s left"),
        (35.0, "harness: performance 88 %, 9/s, 5 s left"),
    ]


def test_nothing_is_shown_with_quiet(seconds: Seconds, capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(quiet=True)
    seconds.now = 100.0
    assert not progress.is_due
    progress.show("performance")
    assert capsys.readouterr() == ("", "")


def test_run_of_a_series_shows_its_number_and_the_time_left_for_all(
    seconds: Seconds, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = Progress()
    progress.series("run 2 of 3", 90.0)
    seconds.now = 30.0
    progress.show("performance", share=0.5)
    assert (
        capsys.readouterr().err == "harness: run 2 of 3, about 60 s left in all: performance 50 %\n"
    )


def test_a_run_that_takes_longer_than_predicted_counts_in_the_time_left(
    seconds: Seconds, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: the line was "at most 0 s left in all: performance 50 %, 2 min left"."""
    progress = Progress()
    progress.series("run 2 of at most 3", 20.0, "at most")
    seconds.now = 30.0
    progress.show("performance", share=0.5, left_s=120.0)
    seconds.now = 45.0
    progress.show("performance")
    assert capsys.readouterr().err.splitlines() == [
        "harness: run 2 of at most 3, at most 2 min left in all: performance 50 %, 2 min left",
        "harness: run 2 of at most 3: performance",
    ]


def test_a_run_that_ended_early_does_not_shorten_other_runs() -> None:
    pace = Pace()
    pace.ended(took_s=2.0, planned_s=100.0)
    assert pace.left_s([10.0, 20.0]) == 30


def test_pace_of_ended_runs_predicts_the_time_left() -> None:
    pace = Pace()
    assert pace.left_s([10.0]) is None
    pace.ended(took_s=13.0, planned_s=10.0)
    pace.ended(took_s=8.0, planned_s=3.0)
    assert pace.left_s([10.0, 20.0]) == 10 + 4 + 20 + 4
    assert pace.left_s([]) == 0


def _shown(seconds: Seconds, plan: LoadPlan, now: Now) -> RunProgress:
    run = RunProgress(Progress(), "performance")
    run.begin_run(plan)
    seconds.now = 4.0
    run.show(Now(issued=0, completed=0, failed=0, p99_ns=None, idle_ns=0))
    seconds.now = 10.0
    run.show(now)
    return run


def test_a_run_shows_its_share_its_rate_p99_and_the_time_left(
    seconds: Seconds, capsys: pytest.CaptureFixture[str]
) -> None:
    run = _shown(seconds, PLAN, HALF)
    told = "harness: performance 50 %, 83.3/s, p99 1.50 ms, 0 waiting, 6 s left\n"
    assert capsys.readouterr().err == told
    seconds.now = 20.0
    run.show(replace(HALF, issued=910, completed=900, failed=2))
    told = "harness: performance 90 %, 40.0/s, p99 1.50 ms, 10 waiting, 2 FAILED, 2 s left\n"
    assert capsys.readouterr().err == told


def test_progress_of_offline_shows_no_p99(
    seconds: Seconds, capsys: pytest.CaptureFixture[str]
) -> None:
    """The latencies of Offline only reflect how many samples are issued at once."""
    _shown(seconds, replace(PLAN, scenario="offline"), HALF)
    assert capsys.readouterr().err == "harness: performance 50 %, 83.3/s, 0 waiting, 6 s left\n"


def test_an_official_run_is_not_nearly_over_while_its_least_duration_lasts(
    seconds: Seconds, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only LoadGen knows how many queries it will issue, so the planned queries are answered long before the run ends."""
    _shown(seconds, replace(PLAN, model_key="resnet50", expected_s=600.0), HALF)
    assert capsys.readouterr().err.startswith("harness: performance 1 %, ")


def _read_all(ours: int) -> str:
    """Returns the text written to the terminal, whose other side is closed or will be closed."""
    written = b""
    with suppress(OSError), os.fdopen(ours, "rb", buffering=0) as terminal:
        while chunk := terminal.read(65536):
            written += chunk
    return written.decode()


def _in_terminal(action: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns what `action` prints on a real terminal."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        action()
    return _read_all(ours)


def test_message_is_printed_on_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    def action() -> None:
        progress = Progress()
        progress.series("run 2 of 3", None)
        progress.show("performance", share=0.5)
        say("a message")
        # Less than a second has passed, so nothing is drawn.
        progress.show("performance", share=0.6)
        progress.show("accuracy", share=0.1)
        progress.clear()

    written = _in_terminal(action, monkeypatch)
    assert re.search(r"run 2 of 3\r\nperformance .*50 %", written)
    assert "\r\x1b[1A\x1b[Jharness: a message\r\n\r\x1b[Jrun 2 of 3\r\naccuracy" in written
    assert written.endswith("\r\x1b[1A\x1b[J")


def test_a_terminal_that_was_closed_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        progress = Progress()
        progress.show("performance")
        os.close(ours)
        progress.show("accuracy")
        progress.clear()
        monkeypatch.undo()
        with suppress(OSError):
            stderr.close()


def test_rich_is_imported_for_a_terminal_only() -> None:
    code = (
        "import sys\n"
        "from harness.run.supervisor import job\n"
        "from harness.run.progress import Progress\n"
        "with Progress() as progress: progress.show('performance')\n"
        "assert not [name for name in sys.modules if name.partition('.')[0] == 'rich']\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stderr=subprocess.PIPE)


RUN = (sys.executable, "-m", "harness", "--scenario", "server", "--backend", "null", "--no-metrics")


@pytest.mark.slow
def test_a_run_in_a_pipe_has_lines_only_on_stderr(tmp_path: Path) -> None:
    """A run of 12 s must print one to three lines of progress."""
    command = [*RUN, "--target-qps", "100", "--queries", "1200", "--json", "--out", "run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    lines = [
        line for line in done.stderr.splitlines() if re.match(r"harness: performance \d+ %", line)
    ]
    assert 1 <= len(lines) <= 3
    assert all(re.search(r" \d+ s left$", line) for line in lines)
    # Stdout contains only the result, and no progress.
    assert json.loads(done.stdout)["schema_version"] == 1


@pytest.mark.slow
def test_a_run_on_a_terminal_has_a_bar_and_the_time_left(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [*RUN, "--target-qps", "100", "--queries", "400", "--out", "run"]
    with subprocess.Popen(
        command, cwd=tmp_path, stderr=theirs, stdout=subprocess.DEVNULL
    ) as process:
        os.close(theirs)
        written = _read_all(ours)
        assert process.wait() in (0, 4)
    text = re.sub(r"\x1b\[[0-9;]*m", "", written)
    assert re.search(r"performance ━+.* \d+ % .*/s  p99 .* \d s left", text)
    assert "performance: loading the model" in text
    assert text.endswith("\x1b[J")
