"""Parts that every page has."""

from pathlib import Path

import pytest

from harness.results.pages import page

pytest.importorskip("plotly")


def test_a_study_page_has_the_command_of_its_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["peak", "--slo", "p99=5 ms", "--meter", "command=watts -P hunter2"]
    monkeypatch.setattr("sys.argv", ["harness", *words])
    article = page.Article(["<h1>Peak</h1>", "<p>the answer</p>", "<p>more</p>"], [], [])
    text = page.write([article], "run", tmp_path / "peak.html", script_in=tmp_path).read_text()
    command = (
        "python -m harness peak --slo &#x27;p99=5 ms&#x27; --meter &#x27;command=watts arguments-"
    )
    assert text.index("the answer") < text.index(command) < text.index("<p>more")
    assert "hunter2" not in text
    other = page.write([article], "run", tmp_path / "sweep.html", script_in=tmp_path).read_text()
    assert "<pre" not in other
