"""Parts that all pages share."""

import re
from pathlib import Path

import pytest

from harness.results.pages import page
from harness.results.pages.heading import Badges, heading, is_doubted, verdict_of

pytest.importorskip("plotly")


def test_a_study_page_has_the_command_of_its_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["peak", "--slo", "p99=5 ms", "--meter", "command=watts -P hunter2"]
    monkeypatch.setattr("sys.argv", ["harness", *words])
    article = page.Article(["<h1>Peak</h1>", "<p>the answer</p>", "<p>more</p>"], [], [])
    text = page.write([article], "run", tmp_path / "peak.html", script_in=tmp_path).read_text()
    assert "<span>--slo</span> " in text  # a browser does not break the line inside the option
    text = text.replace("<span>", "").replace("</span>", "")
    command = (
        "python -m harness peak --slo &#x27;p99=5 ms&#x27; --meter &#x27;command=watts arguments-"
    )
    assert text.index("the answer") < text.index(command) < text.index("<p>more")
    assert "hunter2" not in text
    other = page.write([article], "run", tmp_path / "sweep.html", script_in=tmp_path).read_text()
    assert "<pre" not in other


def test_a_stored_command_stands_once_below_the_conclusion() -> None:
    article = page.Article(["<h1>Peak</h1>", "<p>the answer</p>", "<p>more</p>"], [], [])
    (shown,) = page.with_command([article], "harness peak <model>")
    command = '<pre class="command">harness peak &lt;model&gt;</pre>'
    assert shown.head == ["<h1>Peak</h1>", "<p>the answer</p>", command, "<p>more</p>"]
    assert page.with_command([shown], "harness peak <model>") == [shown]
    assert page.with_command([article], None) == [article]


@pytest.mark.parametrize(
    ("runs", "badges"),
    [
        ([], []),
        ([("VALID", [])], ["VALID"]),
        ([("VALID", []), ("INVALID", ["steal"])], ["VALID"]),
        ([("VALID", ["steal"]), ("INVALID", [])], ["VALID", "doubts"]),
        ([("INVALID", ["steal"])], ["INVALID"]),
    ],
)
def test_heading_of_a_study_has_the_verdict_of_its_runs(
    runs: list[tuple[str, list[str]]], badges: list[str]
) -> None:
    made = [{"verdict": verdict, "doubts": doubts} for verdict, doubts in runs]
    shown = heading(["Peak", "a<b", ""], Badges(verdict_of(made), is_doubted(made)))
    assert re.findall(r'<span class="(?:badge \w+|chip uncertain)">(\w+)</span>', shown) == badges
    assert shown.endswith("Peak · a&lt;b</h1>")


def test_the_asides_of_an_answer_are_a_quiet_line() -> None:
    """Bug: the notes about the missing interval and about who chose the rate were as large as the answer."""
    text = "p99 403 us of 50 ms allowed (no 95 % interval: run for <2 h) at 20 queries/s (a demonstration rate)"
    assert [*page.answer(text)] == [
        '<p class="headline">p99 403 us of 50 ms allowed at 20 queries/s</p>',
        '<p class="lead quiet">No 95 % interval: run for &lt;2 h; a demonstration rate</p>',
    ]
    assert [*page.answer("9 samples/s")] == ['<p class="headline">9 samples/s</p>']


def test_a_study_begins_with_its_answer() -> None:
    lines = [
        "knee        900 queries/s: <best>",
        "",
        "valid       950 queries/s",
        "a line without a label",
    ]
    assert [*page.conclusion(lines, "valid")] == [
        '<p class="headline">950 queries/s</p>',
        '<dl class="facts"><dt>Knee</dt><dd>900 queries/s: &lt;best&gt;</dd></dl>',
        "<p>a line without a label</p>",
    ]
    assert [*page.conclusion(["peak        none"])] == ['<p class="headline">None</p>']
    assert [*page.conclusion([])] == []
