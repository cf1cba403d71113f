"""Every edit of a finished run's folder is found, because another file contradicts it or the seal is broken."""

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.errors import ConfigError
from harness.loadgen.logs import digests as log_digests
from harness.results.recheck import check
from harness.results.seal import digests
from tests.adversaries.edits import EDITS, RUNS, Edit
from tests.adversaries.forgeries import FORGERIES, Forgery, derive
from tests.adversaries.tampering_page import PAGE, page

Made = Callable[[str], Path]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Makes each run of `RUNS` once, when an edit first needs it."""
    folder = tmp_path_factory.mktemp("tampering")

    def make(name: str) -> Path:
        out = folder / name
        if not out.exists():
            words = [*shlex.split(RUNS[name]), "--quiet", "--no-metrics", "--out", str(out)]
            assert main(words) == 0
            assert check(out) == []
        return out

    return make


def found(folder: Path) -> list[str]:
    try:
        return check(folder)
    except ConfigError as e:
        return [str(e)]


def forge(folder: Path) -> None:
    """Recomputes the digests, like an attacker who knows how they are made."""
    for part in ("performance/run_1", "accuracy"):
        path = folder / part / "run.json"
        content = json.loads(path.read_text())
        if content["ended"] is not None:
            content["ended"]["files"] = log_digests(folder / part)
            path.write_text(json.dumps(content))
    digests.write(folder)


FEW = {"environment", "asked.target_qps", "a new file"}


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(
            edit,
            id=f"{edit.run}-{edit.file}-{edit.about}",
            marks=() if edit.run == "server" and edit.about in FEW else pytest.mark.slow,
        )
        for edit in EDITS
    ],
)
def test_an_edit_is_found(edit: Edit, made: Made, tmp_path: Path) -> None:
    """Bug: 63 of 147 edits were not found."""
    run = Path(shutil.copytree(made(edit.run), tmp_path / "run"))
    edit.change(run, made("other"))
    assert found(run), "by nothing"
    forge(run)
    lines = found(run)
    if edit.found:
        assert any(edit.found in line for line in lines), lines
    else:
        assert (lines, bool(edit.why)) == ([], True)


@pytest.mark.slow
@pytest.mark.parametrize("forgery", FORGERIES, ids=lambda f: f"{f.run}-{f.about}")
def test_a_forgery_is_found_where_a_file_contradicts_it(
    forgery: Forgery, made: Made, tmp_path: Path
) -> None:
    """Bug: only 1 of 18 forgeries was found."""
    run = Path(shutil.copytree(made(forgery.run), tmp_path / "run"))
    before = json.loads((run / "result.json").read_text())
    forgery.change(run)
    forge(run)
    derive(run)
    digests.write(run)
    after = json.loads((run / "result.json").read_text())
    assert before != after
    reasons = [f"{reason['code']}: {reason['text']}" for reason in after["reasons"]]
    lines = [*reasons, *found(run)]
    if forgery.found:
        assert any(forgery.found in line for line in lines), lines
    else:
        assert (lines, bool(forgery.why)) == ([], True)


def test_the_table_of_the_docs_has_these_edits() -> None:
    text = PAGE.read_text()
    assert page(text) == text, "python -m tests.adversaries.tampering_page writes it again"


def test_trust_md_has_the_counts() -> None:
    found = sum(bool(edit.found) for edit in EDITS)
    words = f"It finds all of {len(EDITS)} edits of real runs, and {found} of them even with new digests"
    assert words in " ".join((PAGE.parent / "trust.md").read_text().split())


def test_there_are_a_hundred_edits_or_more() -> None:
    assert len({(edit.run, edit.file, edit.about) for edit in EDITS}) == len(EDITS) >= 150
