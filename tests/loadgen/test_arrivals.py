"""Files for --arrivals are read exactly, problems are reported by line, and `arrivals` writes such files."""

import errno
import hashlib
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cli.main import main
from harness.core.config.run_config import RunConfig
from harness.core.units import NS_PER_S
from harness.errors import ConfigError
from harness.loadgen import arrivals, schedule
from harness.loadgen.arrival_kinds import KINDS
from harness.loadgen.arrival_profiles import Profile, lines
from harness.loadgen.schedule import server_schedule_ns
from harness.loadgen.versions import PINNED_VERSION, ROUNDS
from harness.models.manifest.lookup import load_model
from harness.run.supervisor import preflight
from tests.builders.support import plan

ADVICE = "write seconds or a time with its unit, e.g. 0.25 or 250ms"
COMMA = "if the comma is a decimal comma, write a point"


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "schedule.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def problems(folder: Path, content: str | bytes) -> list[str]:
    path = written(folder, content)
    with pytest.raises(ConfigError) as caught:
        arrivals.read(path)
    return str(caught.value).replace(str(path), "FILE").splitlines()


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0", 0),
        ("0.25", 250_000_000),
        ("1.", NS_PER_S),
        ("1732190400.123456789", 1732190400123456789),
        ("250ms", 250_000_000),
        ("1.5 us", 1_500),
        ("2min", 120 * NS_PER_S),
        ("1.5e-3", 1_500_000),
        ("1E3", 1000 * NS_PER_S),
        ("0.0000000004", 0),
        ("0.00000000051", 1),
        ("1e-400", 0),
    ],
)
def test_a_time_is_parsed_to_the_nanosecond(text: str, ns: int) -> None:
    assert arrivals.parse_time_ns(text) == ns


@given(st.integers(0, 2**62))
def test_nanoseconds_written_as_seconds_are_read_back(ns: int) -> None:
    assert arrivals.parse_time_ns(f"{ns // NS_PER_S}.{ns % NS_PER_S:09d}") == ns


@pytest.mark.parametrize(
    "text", ["", "nan", "NaN", "NAN", "inf", "-inf", "INF", "abc", "1 2", "0x1"]
)
def test_invalid_time_is_refused(text: str) -> None:
    message = re.escape(f"{text!r} is not a time: {ADVICE}")
    with pytest.raises(ValueError, match=f"^{message}$"):
        arrivals.parse_time_ns(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0,00\n0,01\n", f"'00' is not a sample: a dataset index has no leading zero; {COMMA}"),
        ("arrival,sample\n0,0\n0,05\n", f"'05' is not a sample: a dataset index has no leading zero; {COMMA}"),
        ("arrival\n0,5\n", f"has 2 columns instead of 1: write arrival[,sample]; {COMMA}"),
        ("0,5e-3\n", f"'5e-3' is not a sample: write its dataset index, from 0; {COMMA}"),
        ("1,234.5\n", f"'234.5' is not a sample: write its dataset index, from 0; {COMMA}"),
        ('"0,5"\n', f"'\"0' is not a time: {ADVICE}"),
    ],
)  # fmt: skip
def test_a_decimal_comma_is_not_read_as_two_columns(
    text: str, problem: str, tmp_path: Path
) -> None:
    first, *_ = problems(tmp_path, text)
    assert first.partition(": ")[2] == problem


@pytest.mark.parametrize(
    "text",
    ["0,0\n0,1\n0,9\n1,0\n", "5,1\n7,25\n", "1,234\n", "999,5\n1.000,5\n", "1.000,5\n2.000,7\n"],
)
def test_columns_that_may_be_decimals_need_the_heading(text: str, tmp_path: Path) -> None:
    (line,) = problems(tmp_path, text)
    first = text.partition("\n")[0]
    time, sample = first.split(",")
    assert line == (
        f"FILE line 1: {first} may be the time {time} s and sample {sample}, or one time with a "
        f"decimal comma: add the heading arrival,sample, or write {time.replace('.', '')}.{sample}"
    )
    written(tmp_path, f"arrival,sample\n{first}\n")
    assert arrivals.read(tmp_path / "schedule.csv").samples is not None


@pytest.mark.parametrize("text", ["0.000,5\n1.000,7\n", "0,5\n0.5,7\n", "0ms,5\n"])
def test_a_time_with_a_point_or_a_unit_shows_that_the_comma_parts_columns(
    text: str, tmp_path: Path
) -> None:
    found = arrivals.read(written(tmp_path, text))
    assert found.samples is not None
    assert found.samples[0] == 5


@pytest.mark.parametrize(
    "heading", ["arrival_ms,sample", "Ankunft;Probe", '"arrival","sample"', "时间"]
)
def test_an_unknown_heading_is_refused_by_name(heading: str, tmp_path: Path) -> None:
    assert problems(tmp_path, f"{heading}\n0\n1\n") == [
        f"FILE line 1: the heading {heading!r} is not known: write arrival or arrival,sample, and times in seconds or with their unit, e.g. 250ms"
    ]


@pytest.mark.parametrize("line", ["0,5;3", "0.5\t3", "0.5;3"])
def test_another_separator_than_the_comma_is_named(line: str, tmp_path: Path) -> None:
    assert problems(tmp_path, f"{line}\n") == [
        f"FILE line 1: {line!r} has a semicolon or a tab: separate the columns with commas, and write a point before decimals"
    ]


@pytest.mark.parametrize("text", ["1_000", "٣", "1d", "1e", "--1", "1.2.3", "1,5", "9" * 90 + "ms"])
def test_a_malformed_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=" is not a time: "):
        arrivals.parse_time_ns(text)


def test_a_trace_gives_times_and_its_requests_are_the_samples(tmp_path: Path) -> None:
    rows = "".join(
        f'{{"timestamp": {ms}, "input_length": 3, "output_length": 2}}\n' for ms in (500, 40, 90.5)
    )
    found = arrivals.read(written(tmp_path, rows))
    assert found.after_ns.tolist() == [0, 50_500_000, 460_000_000]
    assert found.samples is not None
    assert found.samples.tolist() == [0, 1, 2]
    assert found.lines.tolist() == [2, 3, 1]
    assert found.load(2).query_count == 2
    days = "Timestamp,Request tokens,Response tokens\n0,1,1\n700000,1,1\n"
    assert problems(tmp_path, days) == [
        "FILE line 3 is more than seven days after the first arrival: shorten the file"
    ]


@pytest.mark.parametrize("text", ["1e999999", "1e30", "9" * 50, "9" * 5000, "99999999999h"])
def test_a_huge_time_is_refused_before_it_fills_the_memory(text: str) -> None:
    with pytest.raises(ValueError, match=" is too large: "):
        arrivals.parse_time_ns(text)


def test_comments_a_heading_and_empty_lines_are_skipped(tmp_path: Path) -> None:
    text = "\ufeff# a comment\r\narrival, sample\r\n\r\n10.5,3\r\n 10.5 , 0\r\n11s,4\r\n# end\r\n"
    path = written(tmp_path, text)
    found = arrivals.read(path)
    assert found.after_ns.tolist() == [0, 0, 500_000_000]
    assert found.samples is not None
    assert found.samples.tolist() == [3, 0, 4]
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_file_without_a_second_column_names_no_samples(tmp_path: Path) -> None:
    assert arrivals.read(written(tmp_path, "0\n1ms")).samples is None


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", [f"FILE has no arrivals: {ADVICE}, one per line"]),
        ("# nothing\n\narrival\n", [f"FILE has no arrivals: {ADVICE}, one per line"]),
        ("0\n1\n0.5\n", ["FILE line 3 is earlier than line 2: sort the file by time"]),
        ("0\n-1\n", ["FILE line 2: '-1' is negative: times count up from 0"]),
        ("0\nnan\n", [f"FILE line 2: 'nan' is not a time: {ADVICE}"]),
        ("0\n1e300\n", [f"FILE line 2: '1e300' is too large: {ADVICE}"]),
        (
            "0\n8e5\n",
            ["FILE line 2 is more than seven days after the first arrival: shorten the file"],
        ),
        ("0s,1\n1\n", ["FILE line 2: has 1 column instead of 2: write arrival[,sample]"]),
        ("0\n1,1\n", [f"FILE line 2: has 2 columns instead of 1: write arrival[,sample]; {COMMA}"]),
        ("0,1,2\n", [f"FILE line 1: has 3 columns instead of 2: write arrival[,sample]; {COMMA}"]),
        (
            "0,-1\n",
            [f"FILE line 1: '-1' is not a sample: write its dataset index, from 0; {COMMA}"],
        ),
        (
            "0,1.0\n",
            [f"FILE line 1: '1.0' is not a sample: write its dataset index, from 0; {COMMA}"],
        ),
        ("0\narrival\n", [f"FILE line 2: 'arrival' is not a time: {ADVICE}"]),
        (b"\xff\xfe0\n", [f"FILE is not text: {ADVICE}, one arrival per line"]),
        (
            "x\n" * 10,
            [
                *(f"FILE line {n}: 'x' is not a time: {ADVICE}" for n in (1, 2, 3)),
                "FILE: 7 more lines like these",
            ],
        ),
    ],
)
def test_problems_of_a_file_are_reported_by_line(
    content: str | bytes, expected: list[str], tmp_path: Path
) -> None:
    assert problems(tmp_path, content) == expected


def test_path_without_a_file_is_reported_in_one_line(tmp_path: Path) -> None:
    advice = "pass a file with one arrival time per line"
    for path, expected in ((tmp_path, "is not a file"), (tmp_path / "none", "does not exist")):
        with pytest.raises(ConfigError, match=f"^--arrivals {path} {expected}: {advice}$"):
            arrivals.read(path)


def test_too_many_arrivals_and_too_large_a_file_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "MOST_ARRIVALS", 2)
    assert problems(tmp_path, "0\n0\n0\n") == ["FILE has more than 2 arrivals: shorten it"]
    monkeypatch.setattr(arrivals, "LARGEST_BYTES", 3)
    assert problems(tmp_path, "0\n0\n") == ["FILE has 4 B, but at most 3 B are allowed: shorten it"]


def test_a_verbs_own_duration_does_not_contradict_arrivals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: tune and profile refused a --duration that the user had not set."""
    words = ["--scenario", "server", "--arrivals", str(written(tmp_path, "0\n1\n"))]
    assert main(["tune", *words]) == 2
    refusal = "tune uses Poisson arrivals: drop --arrivals, --concurrency and --streams"
    assert capsys.readouterr().err == f"harness: {refusal}\n"
    file = tmp_path / "replay.yaml"
    file.write_text(f"scenario: server\narrivals: {words[-1]}\n")
    assert main(["tune", "--config", str(file)]) == 2
    assert capsys.readouterr().err == f"harness: {refusal} ({file} sets --arrivals)\n"
    asked: list[RunConfig] = []
    monkeypatch.setattr(
        "harness.cli.many_runs.execute", lambda _verb, call, *_: asked.append(call.config)
    )
    main(["profile", *words])
    assert asked[0].duration_ns == 10 * NS_PER_S  # 10 s is the default in RunConfig
    main(["tune", "--config", str(file), "--target-qps", "100"])
    assert asked[1].duration_ns == 1_500_000_000, "its own, where no file says how long"
    left_out = f"{file}: --arrivals left out, because the command line sets --target-qps"
    assert capsys.readouterr().err == f"harness: {left_out}\n"
    assert main(["profile", *words, "--duration", "2s"]) == 2
    message = (
        "--duration cannot be set with --arrivals: the file sets the duration; --queries N "
        "replays its first N arrivals"
    )
    assert capsys.readouterr().err == f"harness: {message}\n"


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "0\n1\n")
    sha256 = arrivals.read(path).sha256
    assert arrivals.read(path, sha256).sha256 == sha256
    path.write_text("0\n2\n")
    with pytest.raises(ConfigError, match=f"^{path} has changed: its digest is .*{sha256[:12]}…"):
        arrivals.read(path, sha256)


def test_a_long_file_is_read_back_exactly(tmp_path: Path) -> None:
    after_ns = np.arange(100_000) * 1000
    found = arrivals.read(written(tmp_path, "\n".join(lines(after_ns, "many"))))
    assert found.after_ns.tolist() == after_ns.tolist()


def test_queries_takes_the_first_arrivals_and_at_most_all(tmp_path: Path) -> None:
    found = arrivals.read(written(tmp_path, "1,0\n1.5,1\n3,2\n"))
    assert (found.load(None).query_count, found.load(None).expected_s) == (3, 2.0)
    assert found.load(2).expected_s == 0.5
    with pytest.raises(ConfigError, match=r"^--queries 4 is too high: .* has only 3 arrivals$"):
        found.load(4)
    made = found.put(plan("server", query_count=2, target_qps=None), tmp_path)
    assert made.arrivals_sha256 == found.sha256
    assert made.schedule is not None
    stored = schedule.read_stored(made.schedule)
    assert stored.samples is not None
    assert (stored.after_ns.tolist(), stored.samples.tolist()) == ([0, 500_000_000], [0, 1])
    assert made.harness_scheduled
    planned = schedule.planned_ns(made, 2)
    assert planned is not None
    assert planned.tolist() == stored.after_ns.tolist()


def test_a_sample_outside_of_memory_is_refused(tmp_path: Path) -> None:
    found = arrivals.read(written(tmp_path, "# two\n0s,5\n\n1s,20\n"))
    message = "line 4: sample 20 is not in memory: the performance run holds samples 0 to 19 \\(--performance-count\\)"
    with pytest.raises(ConfigError, match=f"schedule.csv {message}$"):
        found.put(plan("server", query_count=2), tmp_path)
    # The second line of the schedule is not used, because the plan has one query.
    found.put(plan("server", query_count=1), tmp_path)


def test_a_closed_loop_needs_at_least_as_many_queries_as_places() -> None:
    config = RunConfig(scenario="server", backend="null", concurrency=1000, queries=999)
    expected = "^--queries 999 is less than --concurrency 1,000: raise it, or lower --concurrency$"
    with pytest.raises(ConfigError, match=expected):
        preflight.check(config, load_model("digits"), "digits", None)
    preflight.check(replace(config, queries=1000), load_model("digits"), "digits", None)


@pytest.mark.parametrize(
    ("count", "queries", "expected"),
    [
        (20, None, [21, 22, 23, None]),
        (24, None, [25]),
        (20, 20, []),
        (25, None, []),
        (None, None, []),
    ],
)
def test_samples_outside_of_memory_are_refused_before_the_run(
    count: int | None, queries: int | None, expected: list[int | None], tmp_path: Path
) -> None:
    path = written(tmp_path, "\n".join(f"{n}s,{n}" for n in range(25)))
    config = RunConfig(
        scenario="server", backend="null", arrivals=path, performance_count=count, queries=queries
    )
    printed: list[str] = []
    try:
        preflight.check(config, load_model("digits"), "digits", None)
    except ConfigError as e:
        printed = str(e).splitlines()
    assert printed == [
        f"{path}: 2 more lines like these"
        if line is None
        else f"{path} line {line}: sample {line - 1} is not in memory: the performance run holds "
        f"samples 0 to {(count or 0) - 1} (--performance-count)"
        for line in expected
    ]


def test_a_broken_stored_schedule_is_reported_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / schedule.SCHEDULE
    path.write_bytes(b"PK\x03\x04nothing")
    with pytest.raises(ConfigError, match=f"^{path} cannot be read: "):
        schedule.read_stored(str(path))


def profile(kind: str, rates: tuple[float, ...], **more: object) -> Profile:
    given: dict[str, object] = {"duration_ns": 5 * NS_PER_S, "cv": None, "seed": 1, **more}
    return Profile(kind=kind, rates=rates, **given)  # type: ignore[arg-type]


RATES = {
    "constant": (500.0,),
    "steps": (200.0, 1000.0, 400.0),
    "ramp": (100.0, 900.0),
    "gamma": (500.0,),
    "loadgen": (500.0,),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def of(kind: str, seed: int = 1) -> Profile:
    return profile(kind, RATES[kind], cv=2.0 if kind == "gamma" else None, seed=seed)


@each_kind
def test_a_schedule_starts_at_0_ascends_and_ends_in_time(kind: str) -> None:
    after_ns = of(kind).after_ns()
    assert after_ns[0] == 0
    assert bool((np.diff(after_ns) >= 0).all())
    assert kind == "loadgen" or after_ns[-1] < 5 * NS_PER_S


@each_kind
def test_the_seed_determines_the_file(kind: str) -> None:
    same = list(lines(of(kind).after_ns(), of(kind).title()))
    assert list(lines(of(kind).after_ns(), of(kind).title())) == same
    assert (of(kind, seed=2).after_ns().tolist() == of(kind).after_ns().tolist()) == (
        kind == "constant"
    )


@each_kind
def test_the_number_of_arrivals_follows_from_the_rates(kind: str) -> None:
    counts = [len(of(kind, seed=seed).after_ns()) for seed in range(20)]
    expected = 5 * float(np.mean(RATES[kind]))
    spread = {"constant": 0.0, "loadgen": 0.0, "gamma": 2.0}.get(kind, 1.0) * expected**0.5
    assert abs(float(np.mean(counts)) - expected) <= max(1.0, 4 * spread / 20**0.5)


def test_constant_arrivals_are_evenly_spaced() -> None:
    assert profile("constant", (4.0,), duration_ns=NS_PER_S).after_ns().tolist() == [
        0,
        250_000_000,
        500_000_000,
        750_000_000,
    ]


def test_each_step_has_its_rate_in_its_part_of_the_time() -> None:
    after_s = profile("steps", (1000.0, 4000.0), duration_ns=20 * NS_PER_S).after_ns() / 1e9
    first, second = int((after_s < 10).sum()), int((after_s >= 10).sum())
    assert first == pytest.approx(10_000, rel=0.05)
    assert second == pytest.approx(40_000, rel=0.05)


@pytest.mark.parametrize("rates", [(1000.0, 3000.0), (3000.0, 1000.0), (2000.0, 2000.0)])
def test_a_ramp_rises_or_falls_linearly(rates: tuple[float, float]) -> None:
    after_s = profile("ramp", rates, duration_ns=20 * NS_PER_S).after_ns() / 1e9
    quarters = np.histogram(after_s, np.linspace(0, 20, 5))[0] / 5
    middles = [rates[0] + (rates[1] - rates[0]) * at for at in (0.125, 0.375, 0.625, 0.875)]
    assert quarters.tolist() == pytest.approx(middles, rel=0.05)


@pytest.mark.parametrize("cv", [0.3, 1.0, 3.0])
def test_the_gaps_of_gamma_have_the_coefficient_of_variation(cv: float) -> None:
    gaps = np.diff(profile("gamma", (2000.0,), duration_ns=30 * NS_PER_S, cv=cv).after_ns())
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)


@given(st.integers(0, 2**64 - 1), st.floats(1, 5000))
def test_the_kind_loadgen_is_loadgens_own_schedule(seed: int, rate: float) -> None:
    found = profile("loadgen", (rate,), seed=seed, duration_ns=NS_PER_S // 10).after_ns()
    assert found.tolist() == server_schedule_ns(len(found), rate, seed).tolist()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("ramp --rate 5", ["--rate has 1 rate, but ramp needs 2"]),
        ("steps --rate 5", ["--rate has 1 rate, but steps needs 2 or more"]),
        ("constant --rate 1,500", ["--rate has 2 rates, but constant needs 1"]),
        ("gamma --rate 5", ["gamma needs --cv"]),
        ("constant --rate 5 --cv 2", ["--cv applies to gamma only: drop it for constant"]),
        (
            "constant --rate 5 --cv 2 --seed 1",
            [
                "--cv applies to gamma only: drop it for constant",
                "--seed applies to random gaps only: drop it for constant",
            ],
        ),
        (
            "constant --rate 1e9 --duration 1h",
            [
                "about 3,600,000,000,000 arrivals would be generated, but at most 10,000,000 are allowed: lower --rate or --duration"
            ],
        ),
        (
            "gamma --rate x --cv 0 --seed -1 --duration 5",
            ["--rate: 'x' is", "--duration: '5'", "--cv: 0 must be", "--seed: -1 must be"],
        ),
    ],
)
def test_all_problems_of_a_profile_are_reported_at_once(
    words: str, expected: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.csv"
    assert main(["arrivals", *words.split(), "--out", str(out)]) == 2
    printed = [line.removeprefix("harness: ") for line in capsys.readouterr().err.splitlines()]
    assert len(printed) == len(expected)
    assert all(line.startswith(start) for line, start in zip(printed, expected, strict=True))
    assert not out.exists()


@each_kind
def test_a_written_schedule_can_be_replayed_and_is_not_overwritten(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.csv"
    rates = ",".join(f"{rate:g}" for rate in RATES[kind])
    cv = ["--cv", "2"] if kind == "gamma" else []
    words = ["arrivals", kind, "--rate", rates, *cv, "--duration", "1s", "--out", str(out)]
    assert main(words) == 0
    found = arrivals.read(out)
    printed = capsys.readouterr().out
    assert printed.startswith(f"{out}: {len(found.after_ns):,} arrivals in ")
    assert out.read_text().startswith(f"# {kind} --rate {rates}")
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(
        f"harness: {out} already exists and will not be overwritten"
    )
    if kind == "loadgen":
        seed = ROUNDS[PINNED_VERSION].seeds.schedule
        assert found.after_ns.tolist() == server_schedule_ns(500, 500.0, seed).tolist()


def test_an_error_while_writing_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> Iterator[str]:
        yield "0.000000000"
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("harness.loadgen.arrival_profiles.lines", full)
    out = tmp_path / "out.csv"
    assert main(["arrivals", "constant", "--rate", "5", "--out", str(out)]) == 2
    assert "cannot be written (No space left on device)" in capsys.readouterr().err
    assert not out.exists()


def test_the_parts_of_a_profile_join_without_gap_or_overlap() -> None:
    """Several steps at one rate equal a constant rate, because the time intervals join exactly."""
    whole = profile("gamma", (300.0,), cv=1.0).after_ns()
    parts = profile("steps", (300.0, 300.0, 300.0)).after_ns()
    assert np.abs(whole - parts).max() <= 2
    assert all(a <= b for a, b in pairwise(parts.tolist()))
