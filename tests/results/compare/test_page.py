"""The page of `report A B` shows the verdict of `compare`, and both runs in every plot."""

import json
import math
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from harness.cli.main import main
from harness.results.compare import change_text, report
from harness.results.compare.compare import BETTER, SAME, UNDECIDED, WORSE, Change, compare
from harness.results.compare.finished import read
from harness.results.compare.page import verdict_chip
from tests.golden.make_runs import COMPARED, FOLDERS

SIDES = [str(FOLDERS / name) for name in COMPARED]


def written(tmp_path: Path, *sides: str) -> str:
    pytest.importorskip("plotly")
    out = tmp_path / "page.html"
    assert main(["report", *sides, "--out", str(out)]) == 0
    text = unescape(out.read_text())
    return text.replace("\u00a0\u00b5s", " us").replace("\u00a0", " ")


def plots(text: str) -> Any:
    return json.loads(text.partition('id="figures">')[2].partition("</script>")[0])


def test_the_page_has_the_judgement_of_compare(tmp_path: Path) -> None:
    """Bug: `report A B` printed two separate reports, one after the other."""
    text = written(tmp_path, *SIDES)
    first, second = ([read(Path(side))] for side in SIDES)
    comparison = compare(first, second)
    first_clause, _, others = report.verdict(comparison).partition("; ")
    assert f'<p class="headline">{first_clause[:1].upper()}{first_clause[1:]}</p>' in text
    assert f'<p class="lead">{others[:1].upper()}{others[1:]}</p>' in text
    for change in comparison.changes:
        name, before, after, *_ = change_text.row_in_words(change)
        cells = f'<td>{name}</td><td class="number">{before}</td><td class="number">{after}</td>'
        assert cells in text
    for label, note in report.facts(comparison, "B"):
        assert f"<td>{label}</td><td>{note}</td>" in text
    for setting, ours, theirs in report.difference_rows(comparison):
        assert (
            f'>{setting}</td><td data-head="A">{ours}</td><td data-head="B">{theirs}</td>' in text
        )


def test_reasons_against_a_ranking_are_rows_without_folder_names() -> None:
    """Bug: each reason repeated both folder names, and the differences repeated the reasons."""
    ours, theirs = (read(FOLDERS / name) for name in (COMPARED[0], "server"))
    config = {**theirs.config, "target_qps": 200.0, "mlperf": True}
    environment = {
        "harness": {"commit": "a1" * 20},
        "free_bytes": 12_345_678,
        "judge": {"logits": ["argmax", {}]},
    }
    found = compare([ours], [replace(theirs, config=config, environment=environment)])
    rows = report.reason_rows(found)
    assert ("official rules", "no", "yes", "") in rows
    assert ("offered rate", "-", "200", "run both with the same --target-qps") in rows
    assert not any(ours.name in cell or theirs.name in cell for row in rows for cell in row)
    others = {name: after for name, _, after in report.difference_rows(found)}
    assert not {"dataset", "target qps", "mlperf"} & set(others)
    assert others["harness commit"] == "a1a1a1a"
    assert others["free"] == "12,345,678 bytes"
    assert others["judge logits"] == "argmax"


def test_both_runs_are_in_every_plot(tmp_path: Path) -> None:
    names = [f"{letter}: {name}" for letter, name in zip("AB", COMPARED, strict=True)]
    drawn = plots(written(tmp_path, *SIDES))
    assert len(drawn) == 4
    assert "issue delay" in drawn[3]["data"][0]["x"]
    for plot in drawn:
        assert list(dict.fromkeys(trace["name"] for trace in plot["data"])) == names


def test_panels_over_time_share_one_label_and_one_line_at_the_pointer(tmp_path: Path) -> None:
    """Bug: a pointer showed one curve of one panel, so that panels could not be read at the same time."""
    (plot,) = (one for one in plots(written(tmp_path, *SIDES)) if "hovermode" in one["layout"])
    layout = plot["layout"]
    assert (layout["hovermode"], layout["hoversubplots"]) == ("x unified", "axis")
    assert (layout["xaxis"]["showspikes"], layout["xaxis"]["spikemode"]) == (True, "across")
    assert {trace["yaxis"] for trace in plot["data"]} == {"y", "y2"}
    assert not any("xaxis" in trace for trace in plot["data"])


def test_each_further_run_is_compared_with_the_first(tmp_path: Path) -> None:
    text = written(tmp_path, *SIDES, str(FOLDERS / "server"))
    first, second, third = (*COMPARED, "server")
    titles = re.findall(r"<h1>(.*?)</h1>", text)
    assert titles == [f"Comparison of {first} and {second}", f"Comparison of {first} and {third}"]
    assert '<p class="headline">Not comparable: nothing is ranked</p>' in text


def test_the_numbers_that_a_reader_looks_for_come_first() -> None:
    before, after = ([read(Path(side))] for side in SIDES)
    comparison = compare(before, after)
    names = ("cpu", "accuracy", "joules_per_query.b", "joules_per_query.c", "p50", "p90")
    changes = [
        Change(name, "ns", 1.0, 2.0, 1.0, None, None, 0.0, False, verdict)
        for name, verdict in zip(names, (WORSE, None, None, WORSE, None, BETTER), strict=True)
    ]
    headline = changes[-1]
    first, others = change_text.parted(comparison._replace(changes=changes, headline=headline))
    assert [c.name for c in first] == ["p90", "p50", "accuracy", "joules_per_query.b"]
    assert [c.name for c in others] == ["cpu", "joules_per_query.c"]
    assert (
        change_text.folded([("B", one) for one in others])
        == "2 other numbers; worse: CPU, joules per query c"
    )
    of_two = [(letter, one) for one in others for letter in "BC"]
    assert change_text.folded(of_two) == (
        "2 other numbers; B worse: CPU, joules per query c; C worse: CPU, joules per query c"
    )
    assert change_text.folded([("B", changes[1])]) == "1 other number"


@pytest.mark.parametrize(
    ("ends", "noise", "why"),
    [
        ((None, None), 9.0, "Without an interval, only a change above x 10 is judged."),
        ((0.01, 0.2), math.inf, "The noise between the runs is unknown, so nothing is judged."),
        (
            (-0.1, 0.2),
            0.02,
            "The interval includes a change of 0. The verdict `no difference` needs",
        ),
        ((0.01, 0.2), 0.02, "The change is not significantly larger than the noise of 2.0 %."),
    ],
)
def test_an_undecided_change_shows_its_reason(
    ends: tuple[float | None, float | None], noise: float, why: str
) -> None:
    change = Change("p99", "ns", 1.0, 1.05, 0.05, *ends, noise, False, UNDECIDED)
    chip = verdict_chip(change)
    assert chip.startswith('<span class="chip uncertain" tabindex="0">undecided')
    assert f'role="tooltip">{why}' in chip


@pytest.mark.parametrize(
    ("ends", "noise", "verdict", "why"),
    [
        ((0.1, 0.2), 0.02, WORSE, "The whole interval lies beyond a change of 2.0 %."),
        ((None, None), 9.0, BETTER, "The change is above x 10, which equal runs have never shown."),
        ((0.1, 0.2), 0.0, BETTER, "The interval excludes a change of 0."),
        ((0.0, 0.0), 0.0, SAME, "The interval includes a change of 0."),
        ((-0.01, 0.02), 0.02, SAME, "The whole interval lies within ±5 %."),
        ((-0.1, 0.02), 0.2, SAME, "The change is not above the noise of 20.0 %."),
        ((0.1, 0.2), 0.02, None, "The sides cannot be compared, so nothing is ranked."),
    ],
)  # fmt: skip
def test_each_verdict_shows_its_reason(
    ends: tuple[float | None, float | None], noise: float, verdict: str | None, why: str
) -> None:
    change = Change("p99", "ns", 1.0, 1.05, 0.05, *ends, noise, False, verdict)
    assert f'role="tooltip">{why}</span>' in verdict_chip(change)


def test_the_reason_of_the_main_number_is_below_the_verdict(tmp_path: Path) -> None:
    text = written(tmp_path, *SIDES)
    (reason,) = re.findall('<p class="quiet">(p90: .*?)</p>', text)
    assert text.index('class="headline"') < text.index(reason) < text.index("<h2>Changes</h2>")


@pytest.mark.parametrize(("verdict", "shown"), [(SAME, "set by the schedule"), (WORSE, WORSE)])
def test_a_fixed_rate_sets_the_throughput_unless_a_side_is_worse(verdict: str, shown: str) -> None:
    change = Change("throughput", "samples/s", 9.0, 9.0, -1e-9, -0.01, 0.01, 0.0, True, verdict)
    assert change_text.row(change)[-1] == verdict
    row = change_text.row(change._replace(is_scheduled=True))
    assert row[3:] == ("+0.0 %", "-1.0 % to +1.0 %", shown)


@pytest.mark.parametrize(
    ("verdict", "chip"),
    [
        (BETTER, '<span class="chip better" tabindex="0">better<'),
        (WORSE, '<span class="chip worse" tabindex="0">worse<'),
        (SAME, '<span class="chip quiet" tabindex="0">no difference<'),
        (None, '<span class="chip quiet" tabindex="0">not ranked<'),
    ],
)
def test_the_colour_of_a_chip_is_its_verdict(verdict: str | None, chip: str) -> None:
    change = Change("p99", "ns", 1.0, 1.05, 0.05, None, None, 0.0, False, verdict)
    assert verdict_chip(change).startswith(chip)
