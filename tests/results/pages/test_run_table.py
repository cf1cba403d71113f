"""The screen at the end of a run shows the answer first, every number with --details, and colours on a terminal."""

import io
import json
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from harness.core import console
from harness.core.units import show_ns
from harness.results.evidence.stages import PERCENTILES
from harness.results.outcome import Finished
from harness.results.pages import run_table
from tests.builders.golden_answers import BUSY, PADDED, golden, held_back
from tests.builders.refusals import Said

FOLDER = Path("results/a-folder-with-a-name-that-is-never-broken-in-two")
LATE = {
    "code": "slo-missed",
    "text": "p90 is 507 us, above 100 us: lower --target-qps or raise --slo",
}


def screen(result: Any, **more: Any) -> list[str]:
    return list(run_table.lines(result, FOLDER, **more))


def test_the_first_screen_is_the_answer() -> None:
    lines = screen(golden("server", doubts=[BUSY, PADDED], reference=None))
    labels = [line[:12].strip() for line in lines]
    assert labels == [
        *("VALID  serve", "", "answer", "accuracy", "limited by", "doubts", "advice", ""),
        *("results", "details"),
    ]
    assert lines[5] == "doubts      machine (busy-machine), model (padded)"
    assert lines[-1] == f"details     python -m harness check {FOLDER} --details"


def test_run_without_a_first_query_advises_no_details_command() -> None:
    """Bug: the screen suggested a command that failed, because the folder had no config.yaml."""
    lines = screen(golden("server", verdict="INVALID", reasons=[LATE], calibration=None))
    assert lines[-1] == f"results     {FOLDER}"
    assert not any("--details" in line for line in lines)


def test_a_run_without_numbers_has_one_blank_line_before_the_results() -> None:
    """Bug: accuracy-only and interrupted runs printed two blank lines."""
    empty = {"calibration": None, "headline": None, "throughput_per_s": None, "reference": None}
    tables: dict[str, Any] = {"latency_ns": None, "stages_ns": None, "not_for_submission": []}
    lines = screen(golden("server", **empty, **tables))
    assert not any(pair == ("", "") for pair in pairwise(lines)), lines


def test_an_invalid_run_begins_with_its_reasons() -> None:
    first, second, *_ = screen(golden("server", verdict="INVALID", reasons=[LATE]))
    assert first.startswith("INVALID  server")
    assert second == f"  reason  slo-missed: {LATE['text']}"


def test_the_details_have_every_number() -> None:
    result = golden("server", doubts=[BUSY, PADDED])
    text = "\n".join(screen(result, details=True))
    for doubt in (BUSY, PADDED):
        assert f"  doubt   {doubt['code']}: {doubt['text']}\n" in text
    assert "  note    not for submission: a quick run, not under the official rules\n" in text
    assert "\nmetric      completed queries: 172 queries/s\n" in text
    assert "200/s requested, 172/s in the schedule drawn from the seed, 172/s completed\n" in text
    for name in PERCENTILES:
        one = result["latency_intervals_ns"][name]
        (line,) = [x for x in text.splitlines() if x.startswith(f"{name} ")]
        assert line.split()[1:3] == show_ns(result["latency_ns"][name]).split()
        assert line.endswith(f"  {show_ns(one['journal'])}")
    for stage in result["stages_ns"]:
        assert f"\n{stage}  " in text


@pytest.mark.parametrize("cpus", [[0, 1], None])
def test_details_name_the_queries_that_had_all_cores(cpus: Any) -> None:
    times = {"wide_ns": 5_070_000, "narrow_ns": 8_730_000}
    result = golden("server")
    result["plan"]["elastic"] = {"cpus": cpus, **times, "samples": 556, "reason": None}
    line = "alone       556 queries had all 2 cores: 5.07 ms instead of 8.73 ms"
    assert (line in screen(result, details=True)) == (cpus is not None)


def test_details_name_the_same_cause_as_the_first_screen() -> None:
    """Bug: the screen blamed the machine, whereas the details of the same run blamed the load generator."""
    section = {**golden("server")["reference"], **held_back()}
    (calm,) = _overhead(screen(golden("server", reference=section), details=True))
    assert calm.endswith("the load generator was the bottleneck; in the slowest 10 %, 190 us more in issue delay; "
                         "the model itself: 5.00 us more in infer")  # fmt: skip
    result = golden("server", reference=section, doubts=[BUSY])
    (busy,) = _overhead(screen(result, details=True))
    assert (
        "the machine was disturbed, and may have delayed the load generator; in the slowest 10 %, 190 us"
        in busy
    )
    assert any(line.startswith("limited by  the machine: ") for line in screen(result))


def _overhead(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("overhead ")]


def test_offline_prints_no_share_of_the_wait_for_its_own_samples() -> None:
    """Bug: every Offline run printed `queue 92.7 %`."""
    lines = screen(golden("offline"), details=True)
    assert not [line for line in lines if line.startswith(("queue", "issue_delay"))]
    shares = [float(line.split()[-2]) for line in lines if line.endswith(" %") and "us" in line]
    assert sum(shares) == pytest.approx(100, abs=0.3)


def test_a_run_that_could_not_be_saved_prints_every_number() -> None:
    unsaved = {"code": "not-saved", "text": "r cannot be written: No space left on device"}
    lines = screen(golden("server", verdict="INVALID", reasons=[unsaved]))
    assert [line for line in lines if line.startswith("p99.9 ")]


@pytest.mark.parametrize("columns", [40, 72, 200])
def test_sentences_are_wrapped_between_words_and_names_stay_whole(columns: int) -> None:
    """Bug: lines of 200 columns were broken in the middle of words."""
    result = golden("server", verdict="INVALID", reasons=[LATE], doubts=[BUSY, PADDED])
    wrapped = screen(result, details=True, columns=columns)
    plain = screen(result, details=True)
    assert " ".join(" ".join(wrapped).split()) == " ".join(" ".join(plain).split())
    assert f"results     {FOLDER}" in wrapped
    words = [line for line in wrapped if line.startswith(("  ", "answer", "doubts", "advice"))]
    assert max(map(len, words)) <= max(columns, 40)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("terminal", "environment", "coloured"),
    [
        (True, {}, True),
        (True, {"NO_COLOR": ""}, True),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (False, {}, False),
    ],
)
def test_verdict_has_a_colour_on_a_terminal_with_colours(
    *, terminal: bool, environment: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sources: no-color.org, and ECMA-48 for the codes."""
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    hostile = golden("server", doubts=[BUSY], model="\x1b[31mred")
    Finished(0, FOLDER, hostile).show(as_json=False)
    invalid = golden("server", verdict="INVALID", reasons=[LATE])
    Finished(4, FOLDER, invalid).show(as_json=False)
    printed = stream.getvalue()
    assert ("\x1b[32mVALID\x1b[0m  server" in printed) == coloured
    assert ("\x1b[33mdoubts\x1b[0m  " in printed) == coloured
    assert ("\x1b[31mINVALID\x1b[0m  server" in printed) == coloured
    assert ("\x1b[31m  reason  slo-missed:\x1b[0m" in printed) == coloured
    # A foreign text must not set colours, so its escape sequence is shown as text.
    assert "\\x1b[31mred" in printed
    assert printed.count("\x1b[0m") == (4 if coloured else 0)
    assert (console.columns() is not None) == terminal


def test_json_is_printed_without_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    result = golden("server")
    Finished(0, FOLDER, result).show(as_json=True, details=True)
    assert json.loads(capsys.readouterr().out) == result


def test_check_prints_the_details_of_a_finished_run(prints: Said) -> None:
    folder = Path(__file__).parents[2] / "golden/runs/closed-loop"
    agreed, _, *lines = prints("check", folder, "--details").splitlines()
    assert agreed.endswith("the run is VALID")
    result = json.loads((folder / "result.json").read_text())
    assert lines == list(run_table.lines(result, folder, details=True))


def test_details_of_several_runs_are_refused(refuses: Said) -> None:
    words = ["--scenario", "offline", "--repeats", "3", "--details"]
    assert refuses(*words) == ("--details prints the numbers of one run: drop it with --repeats")


def test_the_length_that_an_interval_needs_grows_with_the_percentile() -> None:
    """Bug: the advice was `for p50 run 4 times as long; for p95 run 2 times as long`, although a rarer event needs a
    longer run.
    """
    result = golden("server", queries={"took_s": 6.0})
    intervals = result["latency_intervals_ns"]
    for name, times in zip(PERCENTILES, ("4", None, "2", "6", "30", "1,200"), strict=True):
        reason = times and f"the run has about 3 independent parts: run {times} times as long"
        intervals[name] |= {"block_interval_reason": reason}
    told = "Too few independent parts for an interval: make a run of"
    (note,) = _notes(result)
    assert note == f"{told} 24 s for p50, p95; 36 s for p97; 3 min for p99; 2 h 00 min for p99.9."
    (note,) = _notes({**result, "queries": None})
    assert note.startswith(
        f"{told} 4 times this length for p50, p95; 6 times this length for p97; "
    )


def test_page_names_the_other_p99_that_its_plots_show() -> None:
    """Bug: the table had p99 13.5 ms, and the plot of the same page 13.4 ms, without a reason."""
    result = golden("server")
    result["latency_ns"]["p99"] = 13_529_252
    result["latency_intervals_ns"]["p99"]["journal"] = 13_379_633
    table = run_table.latency_table(result, journal=False)
    assert table is not None
    assert table.about.endswith(" The plots show the journal's latencies, whose p99 is 13.4 ms.")
    result["latency_intervals_ns"]["p99"]["journal"] = 13_529_000
    for journal in (False, True):
        table = run_table.latency_table(result, journal=journal)
        assert table is not None
        assert "plots" not in table.about


def _notes(result: Any) -> Sequence[str]:
    table = run_table.latency_table(result, journal=False)
    assert table is not None
    return table.notes
