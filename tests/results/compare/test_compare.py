"""`compare` does not report noise as a difference, calls a slower backend worse, and refuses incomparable runs."""

import json
import math
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import yaml

from benchmarks.coverage import alike
from harness.cli.main import main
from harness.core.codes import About, Kind, codes
from harness.core.console import PROGRAM_VARIABLE
from harness.core.stats import percentile_ns
from harness.errors import ConfigError, Regression, RunInvalid
from harness.machine.characterise import here
from harness.machine.characterise.database import Database, Key
from harness.machine.identity import machine_key
from harness.results import database
from harness.results.agreement import agreement
from harness.results.compare.change_text import interval, row, show_factors
from harness.results.compare.compare import (
    BETTER,
    MIXED,
    SAME,
    UNDECIDED,
    WORSE,
    Change,
    Comparison,
    compare,
)
from harness.results.compare.finished import FinishedRun, _percentiles, side
from harness.results.compare.limits import exit_status, judge, parse_limit
from harness.results.compare.noise import in_turns
from harness.results.compare.report import lines, notes
from harness.results.evidence.between_runs import EXTREME, between_runs
from harness.results.evidence.block_intervals import blocks, percentile_intervals
from harness.results.numbers import OPEN, Number
from harness.results.publish.copy import publish
from tests.builders.edited import edit, edited
from tests.builders.finished import answered_later
from tests.builders.refusals import Said
from tests.builders.result import stored_result
from tests.builders.support import present
from tests.golden.make_runs import FOLDERS

SLOW = """\
import time
from harness.backends.null import NullBackend

class Slow(NullBackend):
    def infer(self, batch):
        time.sleep(0.002)
        return super().infer(batch)
"""


def test_the_interval_of_a_change_has_its_stated_coverage() -> None:
    """Uses two runs of 20,000 queries, one of them 10 % slower."""
    rng = np.random.default_rng(4)
    block = blocks(np.arange(20_000))
    held = 0
    for _ in range(200):
        sides = []
        for slower in (1.0, 1.1):
            values = (alike(10)(rng, 20_000) * slower).astype(np.int64)
            low, high, *_ = percentile_intervals(values, block, {"p90": 0.9})["p90"]
            assert low is not None
            assert high is not None
            estimate = percentile_ns(np.sort(values), 0.9)
            sides.append(
                replace(a_run("a"), numbers={"p90": Number(estimate, "ns", "body", low, high)})
            )
        (change,) = compare([sides[0]], [sides[1]]).changes
        held += present(change.low) <= 0.1 <= present(change.high)
    assert 180 <= held < 200


def test_a_run_too_short_for_an_interval_is_judged_beyond_a_factor_only() -> None:
    """Bug: the interval of p99 from 64 queries ended at the largest latency, so the result was `better`."""
    (before, slow), (after, fast) = (
        next(
            _percentiles(
                {"p99": Number(64.0 * ns, "ns", "tail")},
                np.arange(1, 65) * ns,
                blocks(np.arange(64)),
            )
        )
        for ns in (9_000, 1_000)
    )
    assert (before, slow.high, fast.high) == (after, math.inf, math.inf)
    runs = [replace(a_run("a"), numbers={"p99": number}) for number in (slow, fast)]
    for noise in (None, 0.01):
        (change,) = compare(runs[:1], runs[1:], noise).changes
        assert (change.verdict, change.low, change.high) == (UNDECIDED, None, None)
        assert interval(change) == "-"
    much = slow._replace(value=slow.value * 2)
    (change,) = compare([replace(a_run("a"), numbers={"p99": much})], runs[1:]).changes
    assert change.verdict == BETTER


def test_noise_between_runs_is_students() -> None:
    assert between_runs([1.0], [2.0]) is None
    # The expected value is from a two-sample t-test with 2 + 2 runs: pooled deviation 0.1414, standard error 0.1414,
    # t(2) = 4.303.
    found = between_runs([1.0, 1.2], [1.0, 1.2])
    assert found == pytest.approx(4.303 * 0.02**0.5, rel=1e-3)
    many = [float(i % 2) for i in range(40)]
    error = (10 / 78 * 2 * 2 / 40) ** 0.5 * (many[1] - many[0])
    found = between_runs(many, many)
    # 1.9908 is t(78), as in any table of t.
    assert found == pytest.approx(1.9908 * error, rel=2e-3)


def a_run(
    name: str, *, doubts: tuple[str, ...] = (), started: str = "", **changed: float
) -> FinishedRun:
    """Returns a Server run without a folder, and therefore without answers."""
    numbers = {"p50": 100.0, "p99": 1000.0, "throughput": 500.0, "accuracy": 99.0} | changed
    kinds = {"p50": "body", "p99": "tail", "throughput": "rate", "accuracy": "exact"}
    made = {
        key: Number(
            value,
            "ns",
            kinds[key],
            None if key == "accuracy" else value * 0.98,
            None if key == "accuracy" else value * 1.02,
            higher_is_better=key in ("throughput", "accuracy"),
        )
        for key, value in numbers.items()
    }
    result = stored_result(
        started,
        slo="p99=50ms",
        doubts=[{"code": code, "text": ""} for code in doubts],
        throughput_per_s={},
        accuracy={"value": 99.0, "metric": "top1"},
    )
    files = {"result": result, "environment": {}, "config": {}}
    return FinishedRun(name=name, folder=Path(name), measured=uuid4().hex, numbers=made, **files)


def test_machines_are_compared_by_their_peaks_and_the_runs_p99() -> None:
    """The ratio appears only if `machine` has measured both machines."""

    def on(name: str, peaks: dict[str, float], p99: float = 1000.0) -> FinishedRun:
        machine = {"machine": {"fingerprint": name}}
        return replace(a_run(name, p99=p99), environment=machine, peaks=peaks)

    slow = on("slow", {"flops_per_s": 1e11, "bytes_per_s": 1e10})
    fast = on("fast", {"flops_per_s": 2.5e11, "bytes_per_s": 2e10}, p99=500.0)
    found = dict(notes(compare([slow], [fast]), []))
    assert found["promise"] == (
        "`machine` of A and B, all cores: fp32 peak 100 GFLOP/s and 250 GFLOP/s: 2.50 times, "
        "copies 10 GB/s and 20 GB/s: 2.00 times; the runs' p99: 0.50 times"
    )
    for other in (on("fast", {}), replace(slow, name="again")):
        assert "promise" not in dict(notes(compare([slow], [other]), []))


def test_stored_peak_of_a_machine_is_read_by_its_key(tmp_path: Path) -> None:
    machine = {"cpu": "x", "cores_usable": 2}
    database = tmp_path / "machine.sqlite"
    assert here.stored_of(machine, database) == {}
    settings = {"library": "ort", "precision": "fp32", "side": 256, "threads": 2}
    point = {"benchmark": "gemm", "settings": settings, "work": 1e9, "threads": 2}
    Database(database).add(
        [(Key(machine_key(machine), "ort 1", "s"), "p", {**point, "fastest_ns": 1e7, "facts": {}})]
    )
    assert here.stored_of(machine, database) == {"flops_per_s": 1e11}
    assert here.stored_of({**machine, "cpu": "y"}, database) == {}


def verdicts(
    ours: list[FinishedRun], theirs: list[FinishedRun], noise: float | None = None
) -> dict[str, str | None]:
    return {c.name: c.verdict for c in compare(ours, theirs, noise).changes}


def test_one_run_a_side_is_reported_and_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: 54 of 75 pairs of equal runs were `better` or `worse`, because the noise was assumed instead of measured."""
    found = compare([a_run("a")], [a_run("b", p99=1350, throughput=450)])
    assert {c.name: c.verdict for c in found.changes} == {
        "p50": UNDECIDED, "p99": UNDECIDED, "throughput": UNDECIDED, "accuracy": SAME
    }  # fmt: skip
    assert found.verdict == UNDECIDED
    printed = list(lines(found, []))
    assert "next      python -m harness rerun a b --repeats 5" in printed
    monkeypatch.setenv(PROGRAM_VARIABLE, "./run.sh")
    assert "next      ./run.sh rerun a b --repeats 5" in list(lines(found, []))
    assert ("next", "python -m harness rerun a b --repeats 5") in list(notes(found, []))
    assert printed[-1].startswith("verdict   undecided: B takes 1.35 x (")
    assert printed[-1].endswith(") as long as A at p99; 5 runs per side, in turns, may decide")


def test_one_run_a_side_is_judged_by_the_noise_that_the_user_gives() -> None:
    assert verdicts([a_run("a")], [a_run("b", p99=1150)], noise=0.05)["p99"] == WORSE
    assert verdicts([a_run("a")], [a_run("b", p99=1150)], noise=0.2)["p99"] == SAME


@pytest.mark.parametrize(
    ("name", "value"), [("p50", 100.0), ("p99", 1000.0), ("throughput", 500.0)]
)
def test_one_run_per_side_is_judged_beyond_the_known_spread_of_equal_runs(
    name: str, value: float
) -> None:
    kind = {"p50": "body", "p99": "tail", "throughput": "rate"}[name]
    factor = (1 + EXTREME[kind]) * 1.1
    slower: dict[str, Any] = {name: value / factor if kind == "rate" else value * factor}
    assert verdicts([a_run("a")], [a_run("b", **slower)])[name] == WORSE


@pytest.mark.parametrize("code", sorted(codes(Kind.DOUBT, About.MACHINE)))
def test_a_single_run_that_the_machine_disturbed_is_undecided(code: str) -> None:
    """Bug: the list that compare uses lacked `preempted` and `paged`."""
    disturbed = a_run("b", p99=99_000, doubts=(code,))
    assert verdicts([a_run("a")], [disturbed])["p99"] == UNDECIDED


@pytest.mark.parametrize("code", ["governor", "model-not-pinned", "clock-slewed", "of-tomorrow"])
def test_other_doubts_do_not_count_as_a_disturbed_machine(code: str) -> None:
    assert verdicts([a_run("a")], [a_run("b", p99=99_000, doubts=(code,))])["p99"] == WORSE


def side_of(name: str, times: str, p99: Sequence[float], **kwargs: Any) -> list[FinishedRun]:
    """times: one letter per run, in the order in which the runs started."""
    return [
        a_run(f"{name}{t}", started=t, p99=value, **kwargs)
        for t, value in zip(times, p99, strict=True)
    ]


def test_runs_in_turns_are_judged_by_their_spread() -> None:
    ours = side_of("a", "adeh", [1000, 1030, 990, 1010])
    theirs = side_of("b", "bcfg", [1110, 1100, 1130, 1120])
    found = compare(ours, theirs)
    assert (found.verdict, present(found.headline).name) == (WORSE, "p99")
    assert noise_line(found) == (
        "measured by 4 and 4 runs, made in turns: a change of less than 2 % is not judged"
    )
    slightly = compare(ours, side_of("b", "bcfg", [1012, 1030, 1020, 1035]))
    # The verdict is SAME, because the change and its interval are within 5 %.
    assert slightly.verdict == SAME


def test_five_runs_a_side_in_turns_find_ten_percent_and_no_equal_sides() -> None:
    """If equal runs have a standard deviation of 4 %, the power is 91 %, with less than 5 % false alarms."""
    noise = np.random.default_rng(1).normal(0, 0.04, (100, 2, 5))
    found = []
    for change in (0.0, math.log(1.1)):
        ours, theirs = 1e6 * np.exp(noise), 1e6 * np.exp(noise + change)
        sides = [
            (side_of("a", "adehi", a[0]), side_of("b", "bcfgj", b[1]))
            for a, b in zip(ours, theirs, strict=True)
        ]
        found.append(sum(compare(*pair).verdict in (BETTER, WORSE) for pair in sides))
    assert found[0] <= 7
    assert found[1] >= 85


def test_sides_without_turns_must_differ_more_than_runs_of_one_side() -> None:
    """Such sides must differ more, because a machine drifts between the runs of the two sides."""
    ours = [1000.0, 1010.0, 1080.0, 1005.0]
    assert (
        compare(side_of("a", "abcd", ours), side_of("b", "efgh", [1090.0] * 4)).verdict == UNDECIDED
    )
    assert compare(side_of("a", "aceg", ours), side_of("b", "bdfh", [1120.0] * 4)).verdict == WORSE
    assert compare(side_of("a", "abcd", ours), side_of("b", "efgh", [1190.0] * 4)).verdict == WORSE


def test_steady_drift_is_not_a_change() -> None:
    """The two sides differ by more than any two runs of the same side."""
    for runs in (2, 3, 5):
        times = "abcdefghij"
        drifting = [1000 * 1.03**number for number in range(2 * runs)]
        sides = (
            side_of("a", times[:runs], drifting[:runs]),
            side_of("b", times[runs : 2 * runs], drifting[runs:]),
        )
        assert compare(*sides).verdict == UNDECIDED


def test_disturbed_side_is_judged_only_if_sides_took_turns() -> None:
    ours, slow = [1000.0, 1010.0, 1005.0], [2000.0, 2010.0, 2005.0]
    busy = {"doubts": ("busy-machine",)}
    found = compare(side_of("a", "abc", ours), side_of("b", "def", slow, **busy))
    assert found.verdict == UNDECIDED
    assert noise_line(found) == (
        "unknown: the machine disturbed the runs of one side (busy-machine), and the sides did not take "
        "turns: nothing is judged"
    )
    both = compare(side_of("a", "abc", ours, **busy), side_of("b", "def", slow, **busy))
    assert both.verdict == WORSE
    assert compare(side_of("a", "adf", ours), side_of("b", "bce", slow, **busy)).verdict == WORSE


@pytest.mark.parametrize(
    ("ours", "theirs", "turns"),
    [
        ("ac", "bd", True),
        ("ad", "bc", True),
        ("adeh", "bcfg", True),
        ("ab", "cd", False),
        ("ace", "bd", False),
        ("abef", "cdgh", False),
    ],
)
def test_sides_alternated_if_each_run_is_next_to_a_run_of_the_other_side(
    ours: str, theirs: str, turns: bool
) -> None:
    sides = (side_of(n, times, [1.0] * len(times)) for n, times in (("x", ours), ("y", theirs)))
    assert in_turns(*sides) is turns


def test_undecided_comparison_names_the_sufficient_number_of_runs() -> None:
    ours = side_of("a", "adeh", [1000, 1200, 900, 1010])
    theirs = side_of("b", "bcfg", [1150, 1300, 1000, 1250])
    found = compare(ours, theirs)
    assert found.verdict == UNDECIDED
    assert found.runs_needed is not None
    assert 4 < found.runs_needed < 20
    assert dict(notes(found, []))["next"] == (
        f"python -m harness rerun aa bb --repeats {found.runs_needed}"
    )


def test_the_next_command_keeps_the_limits_and_states_its_time() -> None:
    """Bug: the command lacked `--fail-on`, so the limit was not applied to the runs that decided the comparison."""
    sides = [
        side_of("a", "adeh", [1000, 1200, 900, 1010]),
        side_of("b", "bcfg", [1150, 1300, 1000, 1250]),
    ]
    ours, theirs = (
        [replace(run, result={**run.result, "queries": {"took_s": 30.0}}) for run in side]
        for side in sides
    )
    found = compare(ours, theirs)
    needed = present(found.runs_needed)
    assert dict(notes(found, judge(found, [parse_limit("p99:+10%")])))["next"] == (
        f"python -m harness rerun aa bb --repeats {needed} --fail-on p99:+10%  # more than {needed} min"
    )


def test_quieter_machine_is_advised_if_no_number_of_runs_would_decide() -> None:
    ours = side_of("a", "adeh", [1000, 4000, 300, 2010])
    theirs = side_of("b", "bcfg", [4150, 300, 1000, 2250])
    assert dict(notes(compare(ours, theirs), []))["next"] == (
        "python -m harness rerun aa bb --repeats 5  # on a quieter machine: this noise hides a change of this size"
    )


def test_earlier_equal_runs_show_the_noise_of_single_runs(tmp_path: Path) -> None:
    """A pair of runs is judged if the two runs differ by more than any two equal runs in the database."""
    folders = []
    for number in range(12):
        folder = Path(shutil.copytree(QUIET, tmp_path / f"run-{number}"))
        answered_later(folder, number)
        result = json.loads((folder / "result.json").read_text())
        factor = 1 + 0.004 * (number % 5) if number < 11 else 3.0
        for name in ("p50", "p90", "p99"):
            result["latency_ns"][name] *= factor
        result["doubts"] = []
        result["started"] = f"2026-01-01T00:00:{number:02}.000+00:00"
        (folder / "result.json").write_text(json.dumps(result))
        edit(folder / "environment.json", lambda c: c["machine"].update(fingerprint="this one"))
        database.add(tmp_path, folder.name, result)
        folders.append(folder)
    first, alike, slow = (side(str(folders[number])) for number in (0, 10, 11))
    assert verdicts(first, alike)["p50"] == UNDECIDED
    assert verdicts(first, slow)["p50"] == WORSE
    source = compare(first, slow).noise.source
    assert source == f"measured by 10 earlier equal runs of {tmp_path / 'runs.sqlite'}"
    pair = []
    for run, value in ((first[0], 100.0), (alike[0], 115.0)):
        timed = Number(value, "ns", "tail", value - 1, value + 1)
        pair.append([replace(run, numbers={**run.numbers, "infer.p99": timed})])
    # The verdict is UNDECIDED, because the database does not contain this number.
    assert verdicts(pair[0], pair[1])["infer.p99"] == UNDECIDED
    for folder in folders[1:7]:  # the loop gives these runs a different configuration
        edit(folder / "config.yaml", lambda c: c.update(threads=9))
    assert verdicts(first, slow)["p50"] == UNDECIDED


def test_copies_of_earlier_runs_show_no_noise(tmp_path: Path) -> None:
    """Bug: ten copies of a folder counted as ten equal runs without any difference."""
    for number in range(12):
        folder = Path(shutil.copytree(QUIET, tmp_path / f"run-{number}"))
        result = json.loads((folder / "result.json").read_text()) | {"doubts": []}
        result["started"] = f"2026-01-01T00:00:{number:02}.000+00:00"
        (folder / "result.json").write_text(json.dumps(result))
        database.add(tmp_path, folder.name, result)
    answered_later(tmp_path / "run-1", 1)
    first, other = (side(str(tmp_path / f"run-{number}")) for number in (0, 1))
    assert compare(first, other).noise.source == (
        "unknown: one run per side does not show how much equal runs differ"
    )


def test_rows_are_corrected_for_their_number_and_chosen_ones_are_not() -> None:
    """Bug: one of thirty rows always differed by chance."""
    ours = side_of("a", "adeh", [1000, 1010, 990, 1005])
    theirs = side_of("b", "bcfg", [1000, 1010, 990, 1005])
    for run, p50 in zip([*ours, *theirs], [100, 103, 97, 100, 106, 109, 104, 107], strict=True):
        numbers = {**run.numbers, "p50": run.numbers["p50"]._replace(value=p50)}
        numbers |= {f"x{i}.p50": numbers["p99"] for i in range(28)}
        object.__setattr__(run, "numbers", numbers)
    assert {c.name: c.verdict for c in compare(ours, theirs).changes}["p50"] == UNDECIDED
    chosen = compare(ours, theirs, chosen=["p50"])
    assert {c.name: c.verdict for c in chosen.changes}["p50"] == WORSE
    assert chosen.verdict == SAME  # the verdict is SAME, because only the headline decides


def test_change_from_0_to_20_ns_is_at_most_a_factor_of_20() -> None:
    """Bug: the change was printed as x 2e+13, and as -100 % in the reverse order."""
    change = compare([a_run("a", p50=0)], [a_run("b", p50=20)]).changes[0]
    assert change.name == "p50"
    assert change.change == pytest.approx(19)
    change = compare([a_run("b", p50=20)], [a_run("a", p50=0)]).changes[0]
    assert change.change == pytest.approx(-0.95)


def noise_line(found: Comparison) -> str:
    (line,) = (x for x in lines(found, []) if x.startswith("noise"))
    return line.removeprefix("noise").strip()


@pytest.mark.parametrize(
    ("sides", "doubts", "line"),
    [
        ((1, 1), (), "one run per side does not show how much equal runs differ: a change of less than a factor of 2 in rates, a factor of 10 in p95 and above, a factor of 4 in other numbers is not judged"),
        ((2, 1), (), "two runs and one do not show how much equal runs differ: a change of less than a factor of 2 in rates, a factor of 10 in p95 and above, a factor of 4 in other numbers is not judged"),
        ((2, 1), ("steal",), "the machine disturbed a run (steal), and the sides did not take turns: nothing is judged"),
    ],
)  # fmt: skip
def test_noise_is_described_in_words(
    sides: tuple[int, int], doubts: tuple[str, ...], line: str
) -> None:
    ours, theirs = ([a_run(str(i), p99=1000 + i, doubts=doubts) for i in range(n)] for n in sides)
    assert noise_line(compare(ours, theirs)) == f"unknown: {line}"
    assert noise_line(compare(ours, theirs, 0.03)) == (
        "from --noise: a change of less than 3 % does not count as a difference"
    )


def test_one_more_wrong_answer_is_worse_and_the_verdict_can_be_mixed() -> None:
    found = compare([a_run("a")], [a_run("b", accuracy=98.8)])
    assert found.verdict == WORSE
    assert found.changes[-1].low == pytest.approx(-0.2 / 99)
    assert compare([a_run("a")], [a_run("b", accuracy=98.8, p99=10)]).verdict == MIXED


def test_an_undecided_comparison_may_fail_a_job() -> None:
    limit = parse_limit("undecided")
    ours = side_of("a", "adeh", [1000, 1030, 990, 1010])
    for theirs, broken, line in (
        ([1110.0, 900, 1330, 1120], True, "broken     undecided: the comparison is undecided"),
        ([1110.0, 1100, 1130, 1120], False, "kept       undecided: the comparison is worse"),
    ):
        comparison = compare(ours, side_of("b", "bcfg", theirs))
        (judged,) = judge(comparison, [limit])
        assert (judged.broken, judged.line) == (broken, line)
        assert exit_status([(comparison, [judged])]) == (Regression.exit_status if broken else 0)
        # Beside other limits, only noise that hides one of them breaks the limit.
        beside = judge(comparison, [limit, parse_limit("p99:+5%")])
        assert [one.broken for one in beside] == [not broken, broken]
    invalid = a_run("b")
    refused = compare(
        [a_run("a")], [replace(invalid, result={**invalid.result, "verdict": "INVALID"})]
    )
    assert judge(refused, [limit])[0].line == "unknown    undecided: the sides are not comparable"


def test_an_unmeasured_headline_is_undecided_and_takes_no_number() -> None:
    """Bug: the status was 0, and the message was "the sides are not comparable" although nothing had been refused."""
    ours, theirs = a_run("a"), a_run("b")
    del theirs.numbers["p99"]  # type: ignore[attr-defined]
    (judged,) = judge(compare([ours], [theirs]), [parse_limit("undecided")])
    assert judged == (
        parse_limit("undecided"),
        True,
        "broken     undecided: the number of the scenario was not measured on both sides",
        False,
    )
    with pytest.raises(ValueError, match="undecided takes no number"):
        parse_limit("undecided:+5%")


def test_last_line_says_which_side_is_faster_and_by_what_factor() -> None:
    ours = side_of("a", "adeh", [1000, 1030, 990, 1010])
    slower = list(lines(compare(ours, side_of("b", "bcfg", [1110, 1100, 1130, 1120])), []))[-1]
    assert re.fullmatch(
        r"verdict   worse: B takes 1\.1\d x \(1\.0\d to 1\.1\d\) as long as A at p99", slower
    )
    far = list(lines(compare(ours, side_of("b", "bcfg", [20_100, 19_900, 20_000, 20_050])), []))[-1]
    assert re.fullmatch(
        r"verdict   worse: B takes (19|20)\.\d x \(\d+\.\d to \d+\.\d\) as long as A at p99", far
    )
    alike = list(lines(compare(ours, side_of("b", "bcfg", [1012, 1030, 1020, 1035])), []))[-1]
    assert re.fullmatch(
        r"verdict   no difference: B is as fast as A at p99: 0\.98\d x \(0\.9\d* to 1[.0-9]*\)",
        alike,
    )
    noisy = list(lines(compare(ours, side_of("c", "bcfg", [1110, 900, 1330, 1120])), [], "C"))[-1]
    assert re.fullmatch(
        r"verdict   undecided: C takes 1\.10 x \(.*\) as long as A at p99; \d+ runs per side, "
        r"in turns, would decide",
        noisy,
    )


def test_contradicting_latency_makes_the_verdict_mixed() -> None:
    """Bug: a better p99 alone decided the verdict, although p50 was 17 % slower."""
    times = ("adeh", "bcfg")
    ours, theirs = (
        [
            a_run(
                f"{times[side]}{t}", started=t, p99=p99 * (1 + i / 1000), p50=p50 * (1 + i / 1000)
            )
            for i, t in enumerate(times[side])
        ]
        for side, (p99, p50) in enumerate([(1000, 500), (800, 585)])
    )
    found = compare(ours, theirs, chosen=("p50",))
    assert found.verdict == MIXED
    last = list(lines(found, []))[-1]
    assert re.fullmatch(
        r"verdict   better and worse: B is 1\.25 x \(.*\) as fast as A at p99; but p50 1\.17 x \(.*\) as long",
        last,
    )


def test_one_number_decides_and_the_others_are_shown_beside_it() -> None:
    """Bug: the verdict was `better: p99 better; p90 no difference`, although p50 was 17 % slower."""
    found = compare([a_run("a")], [a_run("b", p99=1010, throughput=1700)])
    assert found.verdict == UNDECIDED
    last = list(lines(found, []))[-1]
    assert last.startswith("verdict   undecided: B takes 1.01 x (")
    assert re.search(r"may decide; but throughput 3\.40 x \(.* to .*\) as high$", last)
    worse = list(lines(compare([a_run("a")], [a_run("b", accuracy=98.8)]), []))[-1]
    assert re.fullmatch(
        r"verdict   worse: B is 1.00 x \(.*\) as fast as A at p99, which is undecided; but accuracy -0.2 %",
        worse,
    )


def invalid(run: FinishedRun, *codes: str) -> FinishedRun:
    reasons = [{"code": code, "text": ""} for code in codes]
    return replace(run, result={**run.result, "verdict": "INVALID", "reasons": reasons})


def told(comparison: Comparison) -> list[str]:
    """Returns the lines that forbid a ranking."""
    return [refusal.text for refusal in comparison.refusals]


def test_the_only_side_that_misses_its_slo_is_worse_and_the_job_fails() -> None:
    """Bug: a candidate whose p99 was 17 times as high was "not comparable", with status 4."""
    ours, theirs = a_run("a"), invalid(a_run("b", p99=17_000), "slo-missed")
    found = compare([ours], [theirs])
    assert (found.verdict, exit_status([(found, [])])) == (WORSE, Regression.exit_status)
    last = list(lines(found, []))[-1]
    assert re.fullmatch(
        r"verdict   worse: B misses the SLO p99=50ms, which A meets; B takes 17\.0 x \(.*\) as long as A at p99",
        last,
    )
    back = compare([theirs], [ours])
    assert (back.verdict, exit_status([(back, [])])) == (BETTER, 0)
    assert list(lines(back, []))[-1].startswith("verdict   better: A misses the SLO p99=50ms, ")
    (judged,) = judge(found, [parse_limit("p99:+5%")])
    assert judged.broken


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["slo-missed"], ["slo-missed"]),
        ([], ["slo-missed", "client-bound"]),
        ([], ["early-stopping"]),
        (["client-bound"], ["slo-missed"]),
    ],
)
def test_other_invalid_runs_are_not_ranked(before: list[str], after: list[str]) -> None:
    ours, theirs = (
        invalid(a_run(name), *codes) if codes else a_run(name)
        for name, codes in (("a", before), ("b", after))
    )
    found = compare([ours], [theirs])
    assert found.verdict is None
    assert exit_status([(found, [])]) == RunInvalid.exit_status


def test_missed_slo_on_a_disturbed_machine_is_not_a_regression() -> None:
    theirs = invalid(a_run("b", doubts=("busy-machine",), p99=17_000), "slo-missed")
    (only,) = told(compare([a_run("a")], [theirs]))
    assert only.startswith("b is INVALID (slo-missed): the machine disturbed the run")


def test_missed_stricter_slo_is_not_a_regression() -> None:
    theirs = invalid(a_run("b"), "slo-missed")
    theirs = replace(theirs, result={**theirs.result, "slo": "p99=1us"})
    assert told(compare([a_run("a")], [theirs])) == ["b is INVALID (slo-missed)"]


def test_a_side_that_misses_its_slo_now_and_then_is_not_ranked() -> None:
    found = compare([a_run("a"), a_run("c")], [a_run("b"), invalid(a_run("d"), "slo-missed")])
    assert told(found) == ["d is INVALID (slo-missed)"]


def test_an_invalid_run_of_both_sides_is_named_once() -> None:
    run = invalid(a_run("a"), "client-bound")
    assert told(compare([run], [run])) == ["a is INVALID (client-bound)"]


def test_last_line_shows_the_accuracy_cost_of_an_optimised_side() -> None:
    def of(run: FinishedRun, precision: str, **config: object) -> FinishedRun:
        result = {**run.result, "backend_description": {"precision": precision}}
        return replace(run, result=result, config=config)

    ours = of(a_run("a"), "float32", model_sha256="e" * 64, max_batch=8)
    theirs = of(a_run("b", p99=50, accuracy=98.5), "int8", model_sha256="f" * 64, max_batch=1)
    refused = told(compare([ours], [theirs]))
    assert [line.partition(":")[0] for line in refused] == [
        "precision",
        "largest batch",
        "model digest",
    ]
    assert all("--optimised" in line for line in (refused[0], refused[2]))
    found = compare([ours], [theirs], optimised=True)
    assert (found.refusals, found.verdict) == ([], BETTER)
    assert re.fullmatch(
        r"verdict   better: B is 20.0 x \(.*\) as fast as A at p99; the accuracy goes from 99 to 98.5.*",
        list(lines(found, []))[-1],
    )
    same = compare([ours], [a_run("b", p99=50)], optimised=True)
    assert list(lines(same, []))[-1].endswith("; the accuracy stays at 99 ns")
    undecided = compare([ours], [a_run("b", p99=900)], optimised=True)
    assert dict(notes(undecided, []))["next"].endswith(" --repeats 5 --optimised")


def unscored(name: str, model_sha256: str, p99: float = 1000.0) -> FinishedRun:
    run = replace(a_run(name, p99=p99), config={"model_sha256": model_sha256})
    del run.numbers["accuracy"]  # type: ignore[attr-defined]
    return run


def test_an_optimised_side_without_accuracy_is_refused_in_one_line() -> None:
    """Bug: the line was printed once per run, and mentioned no limit on speed."""
    ours, theirs = a_run("a"), [unscored(name, "f" * 64) for name in ("b-1", "b-2")]
    for chosen in ((), ("undecided",), ("p99", "accuracy")):
        (refusal,) = told(compare([ours], theirs, chosen=chosen, optimised=True))
        assert refusal == (
            "accuracy: b-1 and 1 more have no score, so the accuracy lost for the speed is unknown: run both sides with "
            "--mode both on a dataset with labels, or judge only speed with --fail-on p99:+10%"
        )


def test_limits_on_speed_are_judged_for_a_changed_file_without_accuracy() -> None:
    """Bug: without labels, `--fail-on` never judged a changed model file."""
    ours, theirs = unscored("a", "e" * 64), unscored("b", "f" * 64, p99=20_000)
    (refusal,) = told(compare([ours], [theirs], chosen=["p99"]))
    assert refusal.endswith(
        "add --optimised, and run both sides with --mode both on a dataset with labels, or judge only speed with "
        "--fail-on p99:+10%"
    )
    found = compare([ours], [theirs], chosen=["p99"], optimised=True)
    judged = judge(found, [parse_limit("p99:+10%")])
    assert (found.refusals, exit_status([(found, judged)])) == ([], Regression.exit_status)
    assert dict(notes(found, judged))["accuracy"].startswith("not compared: ")
    assert list(lines(found, judged))[-1].endswith(
        " as long as A at p99; the accuracy was not compared; broken: --fail-on p99:+10%"
    )
    near = compare([ours], [unscored("b", "f" * 64)], chosen=["p99"], optimised=True)
    command = dict(notes(near, judge(near, [parse_limit("p99:+10%")])))["next"]
    assert command.endswith(" --optimised --fail-on p99:+10%")
    other = replace(theirs, result={**theirs.result, "model": "letters"})
    refusals = told(compare([ours], [other], chosen=["p99"], optimised=True))
    assert refusals == ["model: a digits, b letters"]


def test_a_useless_interval_is_not_printed() -> None:
    """Bug: two runs per side led to the interval `x 4.11e-08 to x 7.89e+07`."""
    assert show_factors(0.5, 0.028, 9.57) == "0.500 x (wider than x 100)"
    assert show_factors(0.5, 0.1, 9.57) == "0.500 x (0.100 to 9.57)"
    change = Change("p95", "ns", 1.0, 2.0, 1.0, -0.5, 99.0, 0.02, False, None)
    assert interval(change) == "wider than x 100"
    assert interval(change._replace(low=0.5)) == "x 1.5 to x 100"


@pytest.mark.parametrize("text", ["p99", "p99:5%", "p99:+5", "p99:+%", ":+5%"])
def test_a_limit_needs_name_sign_and_percent(text: str) -> None:
    with pytest.raises(ValueError, match="is not a limit: write number:change"):
        parse_limit(text)


QUIET = FOLDERS / "single-stream"
"""A run on a machine without other programs."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs on one machine with one workload: `fast`, `slow` (its backend sleeps for 2 ms), `slow-2` and `fast-2`."""
    folder = tmp_path_factory.mktemp("compare")
    (folder / "slow.py").write_text(SLOW)
    given = ["--scenario", "single-stream", "--mode", "performance", "--queries", "400", "--quiet"]
    slow = f"{folder}/slow.py:Slow"
    for name, backend in (("fast", "null"), ("slow", slow), ("slow-2", slow), ("fast-2", "null")):
        assert main([*given, "--backend", backend, "--out", str(folder / name)]) == 0
    return folder


def test_a_slower_backend_is_worse_and_the_gate_exits_6(runs: Path, prints: Said) -> None:
    fast, slow = (f"{runs / name},{runs / name}-2" for name in ("fast", "slow"))
    printed = prints("compare", fast, slow, "--fail-on", "p50:+5%", status=6)
    assert "limit     broken     p50 x " in printed
    assert "differs   backend: null -> " in printed
    (found,) = json.loads(
        prints(
            "compare", slow, fast, "--fail-on", "p50:+5%", "--fail-on", "infer.p50:+5%", "--json"
        )
    )
    assert found["noise_source"] == "measured by 2 and 2 runs, made in turns"
    assert found["changes"]["p50"]["verdict"] == BETTER
    assert found["changes"]["infer.p50"]["verdict"] == BETTER
    assert found["changes"]["infer.p50"]["high"] < -0.5


def test_run_compared_with_itself_shows_no_difference(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: no message said that both sides are the same run."""
    fast = runs / "fast"
    assert main(["compare", str(fast), str(fast), "--fail-on", "p90:+0%"]) == 0
    printed = capsys.readouterr()
    assert "verdict   undecided: both sides are the same run\n" in printed.out
    assert "limit     kept       p90 +0.0 % against +0 %\n" in printed.out
    # Bug: the harness advised the user to rerun the run against itself.
    assert "\nnext " not in printed.out
    same = fast.resolve()
    assert printed.err == f"harness: {same} is compared with itself: it appears more than once\n"


def moved(folder: Path) -> None:
    """Changes the run as if it had started one day later."""
    for name in ("result.json", "findings.json", "performance/run_1/run.json"):
        edit(folder / name, lambda c: c.update(started="2030-01-01T00:00:00.000+00:00"))
    path = folder / "performance/run_1/completions.npz"
    with np.load(path) as file:
        columns = {n: c + (86_400 * 10**9 if n.endswith("_ns") else 0) for n, c in file.items()}
    np.savez(path, **columns)


COPIES: dict[str, Callable[[Path, Path], object]] = {
    "copied": shutil.copytree,
    "published": publish,
    "moved in time": lambda run, copy: moved(Path(shutil.copytree(run, copy))),
}


@pytest.mark.parametrize("kind", COPIES)
def test_a_copy_is_the_same_run(
    kind: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: copies counted as several runs of one side, with no noise; if the date was changed, no message said so."""
    fast, copies = runs / "fast", [tmp_path / f"{n}" for n in (1, 2, 3)]
    for copy in copies:
        COPIES[kind](fast, copy)
    capsys.readouterr()
    every = ",".join(map(str, copies))
    assert main(["compare", f"{fast},{every}", str(runs / "slow"), "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == (
        f"harness: {fast.resolve()} was also given as {', '.join(map(str, copies))}, but a copy shows no noise: "
        "name each run once\n"
    )
    (found,) = json.loads(printed.out)
    assert found["noise_source"].startswith("unknown: ")
    assert main(["compare", f"{fast},{copies[0]}", f"{copies[1]},{copies[2]}", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["noise_source"].startswith("unknown: ")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda f: (f / "result.json").write_text((f / "result.json").read_text() + "\n"), "was changed after"),
        (lambda f: (f / "performance/run_1/completions.npz").unlink(), "is missing, but SHA256SUMS lists it"),
        (lambda f: (f / "config.yaml").write_text((f / "config.yaml").read_text() + "#\n"), "was changed after"),
    ],
)  # fmt: skip
def test_a_run_that_was_changed_after_it_ended_is_named(
    change: Callable[[Path], object],
    said: str,
    runs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Bug: an edited accuracy was reported as "better", and only `check` found the edit."""
    copy = Path(shutil.copytree(runs / "slow", tmp_path / "edited"))
    change(copy)
    main(["compare", str(runs / "fast"), str(copy)])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"harness: {copy}")
    assert said in line
    assert line.endswith(f": do not trust its numbers; `check {copy}` shows all")


def shown(before: float, after: float, low: float, high: float) -> list[str]:
    about: dict[str, Any] = {"name": "issue_delay.p50", "unit": "ns", "higher_is_better": False}
    about |= {"before": before, "after": after, "change": after / (before or 1) - 1}
    return list(row(Change(**about, low=low, high=high, noise=0.05, verdict=None)))


def test_ratio_to_zero_is_not_shown() -> None:
    """Bug: the ratio of 111 us to 0 ns was `x 1.11e+05`, as if 1 ns had been measured."""
    row = ["issue_delay.p50", "0 ns", "111 us", "-", "-", "not ranked"]
    assert shown(0, 111_000, 1.03e5, 1.28e5) == row
    assert shown(111_000, 0, -1, -0.9)[3:5] == ["-", "-"]


def test_a_stage_that_took_no_time_in_any_run_is_0() -> None:
    """Bug: the lower limit used for logarithms was printed: `issue_delay 1 ns`."""
    before, after = (
        [replace(a_run(f"{side}{i}"), numbers={"p50": Number(0.0, "ns")}) for i in (1, 2)]
        for side in "ab"
    )
    (change,) = compare(before, after).changes
    assert list(row(change)[1:4]) == ["0 ns", "0 ns", "-"]


def test_intervals_of_the_whole_run_are_those_of_its_report(tmp_path: Path) -> None:
    """Bug: `compare` stretched the interval to LoadGen's number, whereas the report moved it to LoadGen's clock."""
    copy = shutil.copytree(FOLDERS / "server", tmp_path / "server")
    ends = {"p99": [900_000, 1_000_000], "p99.9": [None, None]}
    edit(
        copy / "result.json",
        lambda r: [r["latency_intervals_ns"][n].update(block_interval=e) for n, e in ends.items()],
    )
    (run,) = side(str(copy))
    assert [(run.numbers[name].low, run.numbers[name].high) for name in ends] == [
        (900_000, 1_000_000),
        OPEN,
    ]


def test_a_row_has_one_notation() -> None:
    """Bug: the interval of a change was `+92.5 % to x 2.29`."""
    assert shown(100, 198, 0.93, 1.29)[3:5] == ["x 1.98", "x 1.93 to x 2.29"]
    assert shown(100, 150, 0.4, 0.6)[3:5] == ["+50.0 %", "+40.0 % to +60.0 %"]


@pytest.mark.parametrize(
    ("name", "change", "line"),
    [
        ("config.yaml", lambda c: c.update(model_sha256="f00"), "model digest: fast -, other f00"),
        ("config.yaml", lambda c: c.update(max_batch=9), "largest batch: fast 1, other 9"),
        ("config.yaml", lambda c: c.update(target_qps=5.0), "offered rate: fast -, other 5"),
        ("config.yaml", lambda c: c.update(target_qps=12350.83378608207), "offered rate: fast -, other 12,350.8"),
        # Bug: a run was "better" because the client cancelled requests and thereby relieved the server.
        (
            "config.yaml",
            lambda c: c.update(cancel="10%@500ms"),
            "cancelled requests: fast -, other 10%@500ms",
        ),
        ("config.yaml", lambda c: c.update(probe_rate=5.0), "probes beside the load: fast -, other 5"),
        ("config.yaml", lambda c: c.update(arrivals="ramp:5"), "growing rate: fast -, other ramp:5"),
        (  # Bug: an audit that issues one sample again and again was "better".
            "config.yaml",
            lambda c: c.update(audit="/a/TEST04.config"),
            "audit: fast -, other TEST04.config",
        ),
        ("config.yaml", lambda c: c.update(dataset_digest="0"), "dataset digest: fast "),
        ("environment.json", lambda c: c["loadgen"].update(seeds={"qsl": 1}), "seeds: fast qsl="),
        ("result.json", lambda c: c["backend_description"].update(precision="int8"), "precision: fast none, other int8"),
        ("result.json", lambda c: c.update(verdict="INVALID", reasons=[{"code": "late", "text": ""}]), "other is INVALID (late)"),
    ],
)  # fmt: skip
def test_incomparable_runs_are_not_ranked(
    runs: Path, tmp_path: Path, prints: Said, name: str, change: Callable[[Any], None], line: str
) -> None:
    other = edited(runs / "fast", tmp_path / "other", name, change)
    printed = prints("compare", runs / "fast", other, "--fail-on", "p90:+5%", status=4).splitlines()
    assert any(one.startswith(f"refused   {line}") for one in printed)
    assert printed[-1] == "verdict   not comparable: nothing is ranked"
    rows = [one for one in printed if not one.startswith("noise")]
    assert not any(one.endswith((SAME, WORSE, UNDECIDED)) for one in rows)


def reseeded(run: Path, copy: Path, seed: int) -> Path:
    """Copies a run and changes its arrival seed, so that it counts as a different run."""
    edited(run, copy, "environment.json", lambda c: c["loadgen"]["seeds"].update(schedule=seed))
    edit(copy / "config.yaml", lambda c: c.update(schedule_seed=seed))
    answered_later(copy, seed)
    return copy


def test_schedule_seed_counts_only_in_scenarios_with_a_schedule(
    tmp_path: Path, prints: Said
) -> None:
    """Bug: in single-stream, three runs made with --repeats could not be compared with one run."""
    for name, status in (("single-stream", 0), ("offline", 0), ("server", 4)):
        sides = [reseeded(FOLDERS / name, tmp_path / f"{name}-{seed}", seed) for seed in (1, 2)]
        printed = prints("compare", f"{sides[0]},{sides[1]}", FOLDERS / name, status=status)
        assert ("refused   arrivals: schedule seeds differ " in printed) == (status == 4)
        assert ("differs   schedule_seed: " in printed) == (status == 4)


def test_two_repeats_of_one_study_have_their_own_remedy(tmp_path: Path, prints: Said) -> None:
    """Bug: the remedy for two runs that are themselves repeats was to make repeats."""
    sides = [reseeded(FOLDERS / "server", tmp_path / f"run-{seed}", seed) for seed in (1, 2)]
    assert "make the same number of --repeats" in prints("compare", *sides, status=4)
    (tmp_path / "repeats.json").write_text("{}")
    assert "these are repeats of one study" in prints("compare", *sides, status=4)


def test_schedule_seed_does_not_count_in_a_closed_loop(tmp_path: Path, prints: Said) -> None:
    """Bug: one run with --concurrency could not be compared with three runs made with --repeats."""
    runs = [reseeded(FOLDERS / "server", tmp_path / f"{seed}", seed) for seed in (1, 2)]
    for run in runs:
        edit(run / "config.yaml", lambda c: c.update(concurrency=4))
    printed = prints("compare", *runs)
    assert "refused" not in printed
    assert "differs   schedule_seed" not in printed


def test_a_side_of_two_configurations_is_refused(runs: Path, tmp_path: Path, prints: Said) -> None:
    other = edited(runs / "fast", tmp_path / "other", "config.yaml", lambda c: c.update(threads=9))
    answered_later(other, 1)
    assert "fast and other have different configurations: threads" in prints(
        "compare", f"{runs / 'fast'},{other}", runs / "slow", status=4
    )


def test_a_pattern_names_finished_runs_once(runs: Path) -> None:
    assert [run.name for run in side(f"{runs}/*")] == ["fast", "fast-2", "slow", "slow-2"]
    assert len(side(f"{runs}/fast,{runs}/fast")) == 1
    with pytest.raises(ConfigError, match=r"matches no finished run: see `runs`$"):
        side(f"{runs}/nothing-*")


def powered(source: str, joules: float) -> Callable[[Any], None]:
    """Returns a function that changes a result as if this power source had been read."""

    def change(content: Any) -> None:
        energy = {"joules_per_query": joules, "joules_per_sample": joules, "mean_watts": 20.0}
        content["power"] = {"readings": [{"source": source, **energy}]}

    return change


def test_numbers_a_core_a_watt_and_a_price(tmp_path: Path, prints: Said) -> None:
    ours = edited(QUIET, tmp_path / "a", "result.json", powered("rapl:psys", 0.5))
    theirs = edited(QUIET, tmp_path / "b", "result.json", powered("rapl:psys", 0.75))
    cores = json.loads((theirs / "environment.json").read_text())["machine"]["cores_usable"]
    more = 1000 * cores  # the change exceeds the noise of a short run
    edit(theirs / "environment.json", lambda c: c["machine"].update(cores_usable=more))
    words = ["compare", str(ours), str(theirs), "--price", "2/h,0.5/h", "--json"]
    limit = "joules_per_sample.rapl:psys:+10%"
    (found,) = json.loads(prints(*words, "--noise", "1%", "--fail-on", limit, status=6))
    changes = found["changes"]
    rate = changes["throughput"]["before"]
    assert changes["throughput_per_core"]["before"] == pytest.approx(rate / cores)
    assert changes["throughput_per_core"]["change"] == pytest.approx(-0.999)
    assert changes["throughput_per_core"]["verdict"] == WORSE
    assert changes["throughput_per_watt.rapl:psys"]["after"] == pytest.approx(rate / 20)
    assert changes["samples_per_price"]["before"] == pytest.approx(rate * 1800)
    assert changes["samples_per_price"]["after"] == pytest.approx(rate * 7200)
    assert changes["joules_per_sample.rapl:psys"]["verdict"] == WORSE
    assert changes["joules_per_query.rapl:psys"]["change"] == pytest.approx(0.5)
    table = prints(*words[:-1])
    assert "joules_per_sample.rapl:psys" in table
    assert "500 mJ" in table


def test_a_cheaper_machine_makes_no_run_better(tmp_path: Path, prints: Said) -> None:
    calm = edited(QUIET, tmp_path / "calm", "result.json", lambda c: c.update(doubts=[]))
    words = ["compare", str(calm), str(calm), "--price", "200/h,1/h", "--json"]
    (found,) = json.loads(prints(*words))
    assert found["changes"]["samples_per_price"]["verdict"] == BETTER
    assert found["verdict"] == UNDECIDED


def test_energy_of_different_sources_is_not_compared(
    runs: Path, tmp_path: Path, prints: Said
) -> None:
    ours = edited(runs / "fast", tmp_path / "a", "result.json", powered("rapl:psys", 0.5))
    theirs = edited(runs / "fast", tmp_path / "b", "result.json", powered("estimate:cpu", 0.1))
    (found,) = json.loads(prints("compare", ours, theirs, "--json"))
    assert [name for name in found["changes"] if "joules" in name or "watt" in name] == []


def test_gpu_run_has_no_throughput_per_core(runs: Path, tmp_path: Path) -> None:
    (cpu,) = side(str(runs / "fast"))
    on_gpu = {"device": "cuda"}
    other = edited(runs / "fast", tmp_path / "gpu", "config.yaml", lambda c: c.update(on_gpu))
    (gpu,) = side(str(other))
    assert "throughput_per_core" in cpu.numbers
    assert set(cpu.numbers) - set(gpu.numbers) == {"throughput_per_core"}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["fast"], "compare needs two sides: name a second run"),
        (["fast", "slow", "--fail-on", "p9:+5%"], "--fail-on p9:+5%: p9 was not measured on both sides: did you mean p99?"),
        (["fast", "slow", "--fail-on", "p99:-5%"], "--fail-on p99:-5%: such a change is an improvement: write p99:+5%"),
        (["fast", "slow", "--noise", "much"], "--noise much: write a percentage from 0 up, e.g. 5%"),
        (["fast", "slow", "--price", "2/h"], "--price: '2/h' has 1 price for 2 sides: write one for each side"),
        (["fast", "slow", "--price", "2,3"], "--price: '2,3': write a price per hour for each side, e.g. 1.20/h,0.85/h"),
        (["fast", "slow", "--price", "0/h,3/h"], "--price: '0/h,3/h': write a price per hour for each side, e.g. 1.20/h,0.85/h"),
        (["fast", "gone"], "gone does not exist"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_in_one_line(
    runs: Path, monkeypatch: pytest.MonkeyPatch, refuses: Said, words: list[str], line: str
) -> None:
    monkeypatch.chdir(runs)
    assert refuses("compare", *words) == line


@pytest.mark.parametrize("content", ["[]", "{}", "{", '{"verdict": 3, "reasons": [3]}'])
def test_a_broken_result_is_reported_in_one_line(
    runs: Path, tmp_path: Path, refuses: Said, content: str
) -> None:
    other = Path(shutil.copytree(runs / "fast", tmp_path / "other"))
    (other / "result.json").write_text(content)
    refuses("compare", runs / "fast", other)


@pytest.mark.parametrize(("verb", "sides"), [("compare", 2), ("report", 1)])
def test_unknown_scenario_is_reported_in_one_line(
    runs: Path, tmp_path: Path, refuses: Said, verb: str, sides: int
) -> None:
    """Bug: if every side had an unknown scenario, the verb ended with a KeyError."""
    change = {"scenario": "tea-break"}
    other = edited(runs / "fast", tmp_path / "other", "result.json", lambda c: c.update(change))
    assert refuses(verb, *[str(other)] * sides) == (
        f"{other}/result.json has no usable scenario ('tea-break'): run `check` for details"
    )


def _answered(folder: Path, rows: Any) -> Path:
    (folder / "accuracy").mkdir(parents=True)
    log = [{"seq_id": i, "qsl_idx": i, "data": row.tobytes().hex()} for i, row in enumerate(rows)]
    (folder / "accuracy/mlperf_log_accuracy.json").write_text(json.dumps(log))
    ended = {"ended": {"answer_dtype": str(rows.dtype)}}
    (folder / "accuracy/run.json").write_text(json.dumps(ended))
    return folder


def test_agreement_of_labels_and_of_scores(tmp_path: Path) -> None:
    labels = np.arange(10)
    ours = _answered(tmp_path / "a", labels)
    found = agreement(ours, _answered(tmp_path / "b", np.where(labels == 3, 0, labels)))
    assert found == (10, 9, 0.9, None, None, 0.9)
    scores = np.eye(4, dtype=np.float32)
    moved = scores + np.float32(0.5) * np.roll(scores, 1, axis=1)
    found = present(agreement(_answered(tmp_path / "c", scores), _answered(tmp_path / "d", moved)))
    assert found[:3] == (4, 0, 1.0)
    assert found[3:] == pytest.approx((0.5, 0.5, 0.0))
    assert agreement(ours, tmp_path) is None


def test_answers_of_a_forged_type_are_refused(tmp_path: Path) -> None:
    ours = _answered(tmp_path / "a", np.arange(3))
    (ours / "accuracy/run.json").write_text('{"ended": {"answer_dtype": "O"}}')
    with pytest.raises(ConfigError, match="its answers cannot be read: answers cannot be object"):
        agreement(ours, ours)


def test_rerun_runs_the_same_configuration_and_compares(
    runs: Path, tmp_path: Path, prints: Said
) -> None:
    shorter = {"queries": 64}
    source = edited(runs / "fast", tmp_path / "fast", "config.yaml", lambda c: c.update(shorter))
    (tmp_path / "latest").symlink_to("fast")
    again = tmp_path / "fast-rerun"
    words = ["rerun", str(tmp_path / "latest"), "--quiet", "--fail-on"]
    printed = prints(*words, "p50:+100000%")
    assert f"A   {source}  (single-stream null digits)" in printed
    assert f"B   {again}  (single-stream null digits)" in printed
    assert yaml.safe_load((again / "config.yaml").read_text())["queries"] == 64


def test_rerun_of_a_changed_model_is_refused_as_any_run_is(
    runs: Path, tmp_path: Path, refuses: Said
) -> None:
    copy = tmp_path / "copy"
    source = edited(runs / "fast", copy, "config.yaml", lambda c: c.update(dataset_digest="f" * 64))
    assert "the dataset has changed" in refuses("rerun", source, "--quiet")
    assert [p.name for p in tmp_path.iterdir()] == ["copy"]


@pytest.mark.slow
def test_rerun_of_two_runs_makes_new_ones_in_turns_and_compares_those(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = [
        str(edited(runs / name, tmp_path / name, "config.yaml", lambda c: c.update(queries=64)))
        for name in ("fast", "slow")
    ]
    words = ["rerun", *sources, "--repeats", "2", "--trust", f"{runs}/slow.py:Slow"]
    assert main([*words, "--quiet", "--fail-on", "p50:+100%"]) == 6
    folder = tmp_path / "fast-turns"
    printed = capsys.readouterr().out
    assert f"A   2 runs in {folder}: a-1, a-2  (single-stream null digits)" in printed
    assert "noise     measured by 2 and 2 runs, made in turns" in printed
    seeds = [
        json.loads((folder / name / "environment.json").read_text())["loadgen"]["seeds"]["schedule"]
        for name in ("a-1", "b-1", "a-2", "b-2")
    ]
    assert seeds == [seeds[0], seeds[0], seeds[0] + 1, seeds[0] + 1]


@pytest.mark.parametrize("number", ["0", "-1", "many", "1.5", "1001"])
def test_rerun_refuses_an_invalid_number_of_repeats(runs: Path, refuses: Said, number: str) -> None:
    assert refuses("rerun", runs / "fast", f"--repeats={number}") == (
        f"--repeats {number}: write a number of runs from 1 to 1,000"
    )
