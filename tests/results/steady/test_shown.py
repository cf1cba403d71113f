"""The steady-state section in result.json, and its line on the screen."""

from collections.abc import Callable

import pytest

from harness.core.units import NS_PER_S
from harness.machine.host_log import HostLog
from harness.results.steady.host_lines import host_lines
from harness.results.steady.referee import Judged, Refereed
from harness.results.steady.section import section
from harness.results.steady.shown import change_text, shown

BEGIN_NS = 1_700_000_000 * NS_PER_S


def latency(verdict: str = "not steady", shape: str = "step", change: float = 0.25) -> Judged:
    return Judged(
        name="latency",
        verdict=verdict,  # type: ignore[arg-type]
        change=change,
        shape=shape,
        at_ns=BEGIN_NS + 12 * NS_PER_S,
        end_change=0.1,
        half_width=0.01,
        correlation_s=0.0,
        times_longer=1.0,
    )


def refereed(one: Judged, warm_up_s: float = 0.0, needed_s: float | None = None) -> Refereed:
    return Refereed(one.verdict, [one], warm_up_s, 0.0, 30.0, needed_s)


def log(seconds: int = 30) -> HostLog:
    """Returns rows in which the temperature jumps at 12 s, and the processes use more CPU from that time on."""
    return HostLog(
        [
            {
                "wall_ns": BEGIN_NS + s * NS_PER_S + 1,
                "celsius_cpu": 60.0 if s < 12 else 90.0,
                "cpu_user_s": s + max(0, s - 12) * 2.0,
                "memory_available_bytes": 1e9,
            }
            for s in range(seconds)
        ]
    )


def test_lines_of_the_host_log_name_what_changed() -> None:
    near = host_lines(log().rows, BEGIN_NS + 12 * NS_PER_S)
    assert near is not None
    # The first row of the host log is line 2, because line 1 is the header.
    assert list(near.lines) == [13, 14]
    assert [one.name for one in near.columns] == ["cpu_user_s", "celsius_cpu"]
    assert near.columns[0].before == pytest.approx(1.0)
    assert near.columns[0].after == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        # This counter starts to grow, but slowly.
        ("cpu_iowait_s", lambda s: 0.01 * max(0, s - 12)),
        ("celsius_noisy", lambda s: 60.0 + 20 * (s % 2) + 8 * (s >= 12)),
        ("memory_available_bytes", lambda s: 1e9 + 5e7 * (s >= 12)),
    ],
)
def test_a_column_that_hardly_changed_is_not_named(
    name: str, values: Callable[[int], float]
) -> None:
    """Bug: columns that started at 0 came first, however little they grew, and noise was reported as a change."""
    rows = [{**row, name: values(s)} for s, row in enumerate(log().rows)]
    near = host_lines(rows, BEGIN_NS + 12 * NS_PER_S)
    assert near is not None
    assert name not in [one.name for one in near.columns]


def test_a_change_at_the_edge_of_the_log_has_no_lines() -> None:
    assert host_lines(log().rows, BEGIN_NS) is None
    assert host_lines([], BEGIN_NS) is None


def test_counters_have_no_rate_over_a_clock_that_stood_still() -> None:
    rows = [{**row, "wall_ns": BEGIN_NS + 13 * NS_PER_S * (i >= 12)} for i, row in enumerate(log().rows)]  # fmt: skip
    near = host_lines(rows, BEGIN_NS + 12 * NS_PER_S)
    assert near is not None
    assert [one.name for one in near.columns] == ["celsius_cpu"]


def test_a_change_is_shown_with_its_time_and_the_host() -> None:
    found = section(refereed(latency()), None, BEGIN_NS, log())
    assert found["change"] is not None
    assert found["change"]["after_s"] == 12
    assert shown({"steady": found}) == (
        "no: latency rose by 25 % in a step, from 12 s after the start (22:13:32 UTC); at the same time "
        "CPU time of programs rose from 1.00 s/s to 3.00 s/s, temperature of cpu rose from 60.0 °C to 90.0 °C (host.csv, line 14)"
    )


def test_a_change_without_a_host_log_is_shown() -> None:
    found = section(refereed(latency(shape="wave", change=-0.2)), None, BEGIN_NS, None)
    assert found["change"] is not None
    assert change_text(found["change"]).startswith("latency changed by 20 % in waves, from 12 s")


def test_steady_and_undecided_runs_are_shown() -> None:
    steady = section(refereed(latency("steady"), warm_up_s=2.0), None, BEGIN_NS, None)
    assert shown({"steady": steady}) == (
        "yes: no change of 10 % or more in latency; the first 2.0 s were left out as warm-up"
    )
    short = section(refereed(latency("steady"), warm_up_s=0.02), None, BEGIN_NS, None)
    assert shown({"steady": short}) == "yes: no change of 10 % or more in latency", "not 0.0 s"
    undecided = section(refereed(latency("undecided"), needed_s=75.0), None, BEGIN_NS, None)
    assert shown({"steady": undecided}) == "undecided: a run of about 75 s would decide"
    longer = section(refereed(latency("undecided"), needed_s=314.0), None, BEGIN_NS, None)
    assert shown({"steady": longer}) == "undecided: a run of about 5 min would decide"


def test_a_run_without_a_verdict_shows_nothing() -> None:
    assert shown({"steady": None}) is None
    assert shown({}) is None  # the results of older versions lack the key `steady`


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (-0.65, "fell by 65 %"),
        (0.25, "rose by 25 %"),
        (8.65, "rose to 9.65 times its level"),
        (445_637.6, "rose to more than 1,000 times its level"),
    ],
)
def test_a_large_change_is_a_factor(change: float, words: str) -> None:
    """Bug: the text was `the share of slow samples rose by 44,563,760 %`."""
    about = {
        "series": "tail",
        "shape": "step",
        "after_s": 1.9,
        "at": "2026-11-27T06:49:16",
        "host": None,
    }
    assert f"the share of slow samples {words} in a step" in change_text({**about, "size": change})
