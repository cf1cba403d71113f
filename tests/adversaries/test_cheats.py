"""Each backend of cheats.py is INVALID by a reason that points at the cheat; `check` finds the same reasons."""

from pathlib import Path

import pytest

from harness.core.registry import SCENARIOS
from harness.results.recheck import check
from tests.faults.command import codes, only_all, result, run
from tests.stand_ins.clock import clock_library

CHEATS = Path(__file__).parent / "cheats.py"
SERVER = ("--scenario", "server", "--target-qps", "200", "--queries", "800", "--slo", "p99=50ms")
STREAM = ("--scenario", "single-stream", "--queries", "2000")
OFFICIAL = ("--mlperf", "--mode", "accuracy", "--scenario")
"""An official accuracy run has a short performance run beside it; the performance run itself takes 600 s."""

OFFLINE = ("--scenario", "offline", "--queries", "20000")


@pytest.mark.parametrize(
    ("name", "options", "code"),
    [
        ("PatchesBound", SERVER, "wrong-settings"),
        *only_all(
            ("EditsValidity", SERVER, "log-changed"),
            ("EditsRate", SERVER, "log-changed"),
            ("EditsRate", OFFLINE, "log-changed"),
            ("PatchesSamples", OFFLINE, "wrong-settings"),
            ("PatchesCount", STREAM, "wrong-settings"),
            ("PatchesSampling", STREAM, "wrong-settings"),
            ("PlantsAnswers", STREAM, "answers-differ"),
            ("AccOnlyBurn", STREAM, "answers-differ"),
            *(("AccOnlyBurn", (*OFFICIAL, name), "answers-differ") for name in SCENARIOS),
            ("MendsTheLog", STREAM, "log-changed"),
            ("AnswersEarly", STREAM, "journal-impossible"),
        ),
    ],
)
def test_a_cheat_is_invalid_by_its_own_reason(
    name: str, options: tuple[str, ...], code: str, tmp_path: Path
) -> None:
    """Bug: each of them was VALID, and `check` agreed."""
    done = run(*options, "--backend", f"{CHEATS}:{name}", "--out", f"{tmp_path}/r")
    assert done.status == 4, done.said + done.printed
    reasons = result(tmp_path / "r")["reasons"]
    assert code in [reason["code"] for reason in reasons]
    assert not any("reasons" in line for line in check(tmp_path / "r"))


@pytest.mark.slow
def test_a_clock_that_runs_slowly_is_invalid(tmp_path: Path) -> None:
    """Bug: VALID at four times the speed."""
    done = run(
        *("--scenario", "single-stream", "--queries", "8000", "--mode", "performance"),
        *("--out", f"{tmp_path}/r"),
        env={**clock_library(tmp_path), "SLOW_CLOCK": "1"},
    )
    assert done.status == 4, done.said + done.printed
    assert "clock-differs" in codes(tmp_path / "r")
