"""The search for C_max: the search by saturation as a pure function, and both searches on a served model."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.endpoints_clients import write_files
from benchmarks.honest_runs import serving
from benchmarks.paced import __file__ as paced
from harness.cli.main import main
from harness.submit.endpoints.plan.saturation import saturation

ROOM = 40
"""Number of answers that the served model generates at once."""


def saturated(room: int, first: int, most: int = 1 << 17) -> int | None:
    """Returns the C_max found for a server whose tokens/s grow up to `room` requests."""
    found = saturation(lambda at: 10.0 * min(at, room), first, most)
    return found.c_max if found else None


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        (10, 34),  # the rate does not grow above the first concurrency
        (40, 48),  # the rate grows by 18 % from 34 to 68, but not from 48 to 68
        (68, 68),
        (100, 136),  # the rate grows by 47 % from 68 to 136
        (1000, 1088),
    ],
)
def test_the_search_ends_where_tokens_stop_growing(room: int, expected: int) -> None:
    found = saturated(room, 34)
    assert found == expected


def test_the_search_stays_below_its_limit() -> None:
    assert saturated(10**9, 34, 300) == 272


def test_a_concurrency_that_fails_ends_the_search() -> None:
    asked = []

    def rate(at: int) -> float | None:
        asked.append(at)
        return 10.0 * at if at <= 100 else None

    found = saturation(rate, 34, 1000)
    assert found is not None
    assert found.c_max == 96
    assert asked == [34, 68, 136, 48, 96]
    assert "136: requests fail" in next(found.lines())
    assert saturation(lambda _: None, 34, 1000) is None


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    # At this pace, 40 answers need 2,500 tokens/s, which a busy machine sustains as well.
    pace = ("--backend-option", "first_ms=160", "--backend-option", "gap_ms=16")
    backend = ("--backend", f"{paced}:Paced", *pace, "--max-batch", str(ROOM))
    with serving(sys.executable, "tinylm", *backend) as url:
        yield url


@pytest.mark.slow
@pytest.mark.limit_s(1200)
@pytest.mark.parametrize(
    ("slo", "least", "most"),
    [
        ("", 48, 68),
        # If the server has no room for more requests, new requests wait until an answer ends, up to 400 ms later.
        ("ttft:p90=240ms", ROOM - 2, ROOM + 6),
    ],
    ids=["saturation", "bound"],
)
def test_plan_finds_c_max_of_a_served_model(
    slo: str, least: int, most: int, server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_files(tmp_path)
    work = tmp_path / "work"
    words = ["--work", str(work), "--rehearsal", "--submitter", "LabOrg", "--system", "box"]
    words += ["--division", "rdi", "--model", "tinylm", "--cohort", "2026-10-C1", "--url", server]
    words += ["--served", "tinylm", "--template", str(tmp_path / "template.yaml")]
    words += ["--slo", slo] if slo else []
    assert main(["endpoints", "plan", *words]) == 0
    out, err = capsys.readouterr()
    (c_max,) = (int(line.split()[1]) for line in out.splitlines() if line.startswith("C_max"))
    assert least <= c_max <= most
    assert slo or "in flight" in err
    # `plan` uses the stored value without a search.
    assert main(["endpoints", "plan", "--work", str(work), "--quiet"]) == 0
    assert f"C_max       {c_max}" in capsys.readouterr().out
