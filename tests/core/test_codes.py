"""The source uses exactly the codes in the table; `compare`, `peak` and the documentation use the same table."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.core import codes
from harness.core.clock import JUMP_NS, SLEW_PPM
from harness.core.codes import CODES, About, Kind, Reason, without_markup
from harness.results.steady import referee
from harness.results.verdict import doubts, host_doubts, model_doubts
from harness.results.verdict.answers_check import FEWEST
from tests.house.test_layout import ROOT, SOURCES

_NAMES = {n: v for n, v in vars(codes).items() if n.isupper() and isinstance(v, str)}
"""The constants in codes.py that hold a code."""


def codes_in(path: Path) -> Iterator[str]:
    """Yields the code of every Reason that the file makes, or the source text of an expression that is not a code."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Reason":
            yield from codes_of([*node.args, *(k.value for k in node.keywords)][0])


def codes_of(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.IfExp):
        yield from (*codes_of(node.body), *codes_of(node.orelse))
    elif isinstance(node, ast.Constant):
        yield str(node.value)
    elif isinstance(node, ast.Name):
        yield _NAMES.get(node.id, ast.unparse(node))
    else:
        yield ast.unparse(node)


def test_the_source_uses_all_codes_of_the_table_and_no_other() -> None:
    assert {code for path in SOURCES for code in codes_in(path)} == set(CODES)


@pytest.mark.parametrize(
    "source",
    ['Reason("bussy-machine", "")', "Reason(code, '')", 'Reason("died" if x else "dead", "")'],
)
def test_an_unknown_code_in_the_source_is_found(tmp_path: Path, source: str) -> None:
    (tmp_path / "x.py").write_text(source)
    assert not set(codes_in(tmp_path / "x.py")) <= set(CODES)


def test_a_reason_with_an_unknown_code_cannot_be_made() -> None:
    with pytest.raises(
        ValueError, match=r"^'bussy-machine' is not a code of harness/core/codes\.py"
    ):
        Reason("bussy-machine", "")


def test_a_stored_reason_of_another_version_can_be_read() -> None:
    assert Reason.stored({"code": "of-tomorrow", "text": "why"}) == ("of-tomorrow", "why")


def test_each_row_is_written_in_sentences() -> None:
    assert set(About) == {row.about for row in CODES.values()}
    assert all(about.meaning for about in About)
    for code, row in CODES.items():
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", code)
        for sentence in (row.meaning, row.advice):
            assert re.match(r"[A-Z`].*\.$", sentence), sentence
        assert len(row.meaning) < 200


def test_texts_without_markup_keep_the_titles() -> None:
    assert without_markup("Read [power.md](power.md) `now`.") == "Read power.md now."
    texts = [text for row in CODES.values() for text in (row.meaning, row.advice)]
    assert not [text for text in texts if "](" in without_markup(text)]


def test_client_bound_only_advises_options_that_the_backend_may_have() -> None:
    assert "if the backend sends batches" in CODES["client-bound"].advice


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        CODES["new"] = CODES["died"]  # type: ignore[index]


def test_searches_and_compare_get_their_sets_of_codes() -> None:
    assert codes.codes(Kind.REASON, About.LOAD) == {
        *("hopeless", "slo-missed", "early-stopping", "loadgen-invalid")
    }
    assert {"preempted", "paged", "busy-machine"} <= codes.codes(Kind.DOUBT, About.MACHINE)
    assert not codes.codes(Kind.REASON, About.LOAD) & codes.codes(Kind.DOUBT, About.LOAD)


@pytest.mark.parametrize(
    ("code", "limit", "words"),
    [
        ("noisy-machine", doubts.NOISE_SHARE == 0.10, "10 % of the SLO"),
        ("generator-late", doubts.NOISE_SHARE == 0.10, "10 % of the SLO"),
        ("busy-machine", doubts.OTHERS_SHARE == 0.10, "10 % of all cores"),
        ("steal", doubts.STEAL_SHARE == 0.02, "2 % of the CPU time"),
        ("clock-slewed", SLEW_PPM == 100, "100 ppm"),
        ("clock-jumped", JUMP_NS == 1_000_000, "more than 1 ms"),
        ("stalled", (doubts.STALL_NS, doubts.STALL_BATCHES) == (10**9, 20), "1 s and 20 times"),
        ("short-run", doubts.SHORT_NS == 10**9, "less than 1 s"),
        ("padded", model_doubts.PADDING_SHARE == 0.10, "more than 10 %"),
        ("percentiles-disagree", (doubts.AGREE_SHARE, doubts.AGREE_NS) == (0.01, 20_000), "more than 1 % and more than 20 us"),
        ("few-compared", FEWEST == 100, "Fewer than 100 answers"),
        ("drift", referee.CHANGED == 0.10, "by 10 % or more"),
        ("drift", (doubts.SETTLED_S, doubts.MOVED_FACTOR, doubts.MOVED_S) == (5, 2, 0.5), "below 5 s: in a ramp, or by a factor of 2 for 0.5 s"),
        ("warming", doubts.WARMING_SHARE == 0.05, "more than 5 %"),
        ("frequency-dropped", host_doubts.FREQUENCY_SHARE == 0.10, "more than 10 % slower"),
        ("preempted", host_doubts.PREEMPTED_PER_CPU_S == 200, "at least 200 times"),
        ("preempted", host_doubts._FEWEST_SWITCHES == 100, "at least 100 times"),
        ("paged", host_doubts.PAGED_SHARE == 0.01, "once in 100 samples"),
    ],
)  # fmt: skip
def test_the_limits_in_the_table_match_the_code(code: str, limit: bool, words: str) -> None:
    assert limit
    assert words in CODES[code].meaning


def test_every_code_has_a_row_in_the_documentation() -> None:
    text = (ROOT / "docs" / "verdict.md").read_text()
    assert re.findall(r"^\| <a id=.*></a>`([a-z-]+)` \|", text, re.MULTILINE) == list(CODES)


def test_the_alerts_ask_for_codes_of_the_table() -> None:
    rules = (ROOT / "dashboards" / "rules.yml").read_text()
    asked = [c for codes in re.findall(r'code=~?"([^"]+)"', rules) for c in codes.split("|")]
    assert asked
    assert set(asked) <= set(CODES)
