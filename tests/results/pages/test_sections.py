"""Parts that several pages share: tables, chips with codes, and definitions."""

import re
from html import escape

import pytest

from harness.core.codes import CODES
from harness.results.pages.page import (
    LONG,
    Article,
    Figure,
    article_html,
    facts,
    labelled,
    section,
    with_meanings,
)
from harness.results.pages.plots import shortened
from harness.results.pages.tables import Table, columns, with_intervals


def table(rows: int) -> Table:
    return Table(
        "runs", "runs", "", columns("run [count] | verdict"), [[n, "VALID"] for n in range(rows)]
    )


def test_only_a_long_table_is_folded() -> None:
    def made(rows: int, *, folds: bool) -> str:
        return "".join(section(table(rows), folds=folds))

    assert "<details" not in made(LONG, folds=True) + made(LONG + 1, folds=False)
    long = made(LONG + 1, folds=True)
    assert long.startswith('<details class="long"><summary><h2 id="runs">Runs</h2>')
    assert f"{LONG + 1} rows" in long
    assert long.endswith("</details>")


@pytest.mark.parametrize(("plots", "tables"), [(2, 3), (3, 3), (6, 0), (0, 6)])
def test_a_long_page_has_links_to_its_plots_and_tables(plots: int, tables: int) -> None:
    """Bug: pages of 4,000 px had no links, because only tables counted."""
    figures = [Figure(f"Plot {i}", "", [], {}) for i in range(plots)]
    tail = [f'<h2 id="t{i}">Table {i}</h2>' for i in range(tables)]
    tail += ['<h2 id="same">Plot 0</h2>'] * (plots > 0)  # the table of a plot
    html = "".join(article_html(Article([], figures, tail), 4))
    links = re.findall('<a href="#(.*?)">(.*?)</a>', html)
    expected = [(f"figure-{i + 4}", f"Plot {i}") for i in range(plots)]
    expected += [(f"t{i}", f"Table {i}") for i in range(tables)]
    assert links == (expected if plots + tables >= 6 else [])


def test_a_small_table_stays_a_table_on_a_phone() -> None:
    def made(heads: str) -> str:
        count = heads.count("|") + 1
        small = Table("runs", "runs", "", columns(heads), [["a"] * count])
        return "".join(section(small, cards=True))

    assert "<table><tr>" in made("a | b | c [ns] | d [ns]")
    assert "data-head" not in made("a | b | c [ns] | d [ns]")
    assert '<table class="cards">' in made("a | b | c [ns] | d [ns] | e [ns]")


def test_the_outcome_of_a_run_is_coloured() -> None:
    rows = [["passed"], ["failed"], ["client-bound"]]
    made = "".join(section(Table("runs", "runs", "", columns("outcome"), rows)))
    assert '<span class="good">passed</span>' in made
    assert '<span class="reason">failed</span>' in made
    assert "<td>client-bound</td>" in made


def test_a_table_without_rows_is_left_out() -> None:
    empty = "".join(section(table(0)._replace(notes=["not measured: <why>"])))
    assert "<table" not in empty
    assert "not measured: &lt;why&gt;" in empty


def test_codes_in_a_verdict_are_chips_with_their_meaning() -> None:
    shown = table(1)._replace(rows=[[1, "INVALID slo-missed <b>  doubts: steal"]])
    cell = re.findall("<td.*?</td>", "".join(section(shown)))[1]
    assert '<span class="chip bad" tabindex="0">slo-missed<span class="tip"' in cell
    assert '<span class="chip uncertain" tabindex="0">steal<span class="tip"' in cell
    assert escape(CODES["steal"].meaning) in cell
    assert "INVALID" in cell
    assert "&lt;b&gt;" in cell
    assert "doubts:" not in cell
    assert with_meanings("nothing known") == "nothing known"


def test_equal_labels_are_shown_once_and_a_continued_line_has_none() -> None:
    lines = [
        f"{'doubt':<12}steal in 1 of 2 runs",
        f"{'doubt':<12}<i> in 1 of 2 runs",
        f"{'parts':<12}medians",
        f"{'':<12}of the header",
        "A sentence.",
    ]
    html = "".join(labelled(lines))
    assert re.findall("<dt>(.*?)</dt>", html) == ["Doubt", "Parts"]
    assert html.count("<dd") == 3  # the doubts stand in one row
    assert "<dd>of the header</dd>" in html
    assert "<p>A sentence.</p>" in html
    assert "<i>" not in html


@pytest.mark.parametrize(
    ("label", "text", "chips"),
    [
        ("doubt", "steal drift in all 2 runs", ["steal", "drift"]),
        ("doubt", "measure again on an idle machine", []),
        ("machine", "not at rest (steal, drift): on an idle machine", ["steal", "drift"]),
        ("doubts", "load generator (generator-late), machine (steal)", ["generator-late", "steal"]),
        ("steady", "steal", []),
    ],
)
def test_codes_are_chips_where_codes_are_meant(label: str, text: str, chips: list[str]) -> None:
    """Bug: the word `idle` in a sentence looked like the code `idle`."""
    html = facts({label: text})
    assert re.findall(r'<span class="chip uncertain" tabindex="0">([\w-]+)<', html) == chips
    assert re.sub("<[^>]*>", "", re.sub(r'<span class="tip".*?</span>', "", html)).endswith(text)


@pytest.mark.parametrize(
    ("name", "shown"), [("conv", "conv"), ("a" * 10 + "b" * 10, "aaaa…bbbb"), ("x" * 9, "x" * 9)]
)
def test_a_long_name_is_shortened_in_the_middle(name: str, shown: str) -> None:
    assert shortened(name, 9) == shown


def test_an_interval_stands_in_the_cell_of_its_number() -> None:
    """Bug: tables with a column for each interval were wider than a phone."""
    heads = columns("phase | cold [ns] | ± cold [ns] | share [share]")
    shown = with_intervals(
        Table("t", "t", "", heads, [["load", 2e6, 5e5, 0.5], ["run", 1e3, None, None]])
    )
    assert [head.name for head in shown.columns] == ["phase", "cold", "share"]
    assert list(map(list, shown.rows)) == [
        ["load", "2.00 ms ±\u00a0500 us", 0.5],
        ["run", 1e3, None],
    ]
