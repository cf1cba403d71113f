"""A tree that `pack` wrote passes; each break is found, including breaks that MLCommons' checker accepts."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from harness.cli.main import main
from harness.submit.endpoints.rules.findings import OF_A_REHEARSAL, RULES
from harness.submit.endpoints.rules.validate import validate
from tests.builders.submit.endpoints import made_tree
from tests.builders.submit.endpoints_breaks import BREAKS, Break


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_tree(tmp_path_factory.mktemp("endpoints"))


@pytest.fixture
def tree(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "tree", symlinks=True)


def test_a_tree_of_our_pack_has_no_finding(made: Path) -> None:
    checked = validate(made)
    assert [f"{f.rule}: {f.file}: {f.actual}" for f in checked.findings] == []
    assert len(checked.points) == 7


@pytest.mark.parametrize("one", BREAKS, ids=lambda one: one.name)
def test_each_break_is_found_by_its_rule(one: Break, tree: Path) -> None:
    one.change(tree)
    found = {finding.rule for finding in validate(tree).findings}
    if one.rules:
        assert found & set(one.rules), found
    else:
        assert found == set()


def test_a_path_above_the_submission_is_accepted(made: Path) -> None:
    assert validate(made / "LabOrg").findings == []
    assert validate(next((made / "LabOrg").iterdir())).findings == []


def test_a_folder_without_results_is_a_finding(tmp_path: Path) -> None:
    assert {f.rule for f in validate(tmp_path).findings} == {"no-results"}


def test_every_rule_has_a_break_or_a_reason() -> None:
    tested = {rule for one in BREAKS for rule in one.rules}
    elsewhere = {
        "no-results",
        "too-many-files",
        "unreadable",
        "bad-name",
        "large-file",
        "rehearsal",
    }
    elsewhere |= {"division", "empty-region", "offline-slower"}
    assert set(RULES) == tested | elsewhere
    assert set(RULES) >= OF_A_REHEARSAL


@pytest.mark.parametrize("content", ["[", "null", "{}", '{"a": 1}', "[[[]]]", '"text"', "-1"])
@pytest.mark.parametrize(
    "name",
    [
        "point.yaml",
        "config.yaml",
        "system_desc.json",
        "result_summary.json",
        "accuracy_results.json",
    ],
)
def test_any_content_of_a_file_becomes_findings(content: str, name: str, tree: Path) -> None:
    for path in tree.rglob(name):
        path.write_text(content)
    assert validate(tree).findings


HUGE = 10**400
"""A whole number that is too large for a float."""


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("point.yaml", ("shared_src",), float("nan")),
        ("point.yaml", ("warmup", "duration_s"), HUGE),
        ("point.yaml", ("steady_state", "window", "n_samples"), HUGE),
        ("system_desc.json", ("system_availability_status",), "\ud800"),
        ("point.yaml", ("steady_state", "window", "duration_s"), "600"),
        ("point.yaml", ("steady_state", "window", "super_pass_end"), 4.5),
        ("result_summary.json", ("duration_ns",), HUGE),
        ("system_power.json", ("provisioned_power_kw",), HUGE),
        ("system_power.json", ("cooling",), {"air": 1}),
        ("system_power.json", ("scale_out",), {"present": True, "cabling": {}, "switches": [{"model": "Quantum-2"}]}),
        ("system_power.json", ("node_sets", 0, "nodes_provisioned"), HUGE),
        ("system_power.json", ("node_sets", 0, "components", "cpu", "tdp_per_unit", "value_w"), HUGE),
    ],
    ids=lambda one: "" if one == HUGE else None,
)  # fmt: skip
def test_any_value_becomes_a_finding(
    name: str, place: tuple[str | int, ...], value: object, tree: Path
) -> None:
    path = next(tree.rglob(name))
    is_yaml = path.suffix == ".yaml"
    content = yaml.safe_load(path.read_text())
    block = content
    for key in place[:-1]:
        block = block[key]
    block[place[-1]] = value
    path.write_text(yaml.safe_dump(content) if is_yaml else json.dumps(content))
    assert any(one.file.endswith(name) for one in validate(tree).findings)


def test_a_histogram_of_impossible_counts_is_not_compared(tree: Path) -> None:
    path = next(tree.rglob("result_summary.json"))
    content = json.loads(path.read_text())
    content["latency"]["histogram"]["counts"] = [HUGE] * 10
    path.write_text(json.dumps(content))
    assert validate(tree).findings == []


def test_the_verb_lists_findings_and_fails(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["endpoints", "check", str(tree)]) == 0
    assert capsys.readouterr().out == "passed: 7 points, 0 findings\n"
    shutil.rmtree(next(tree.rglob("docs")))
    assert main(["endpoints", "check", str(tree), "--json"]) == 4
    content = json.loads(capsys.readouterr().out)
    assert {one["rule"] for one in content["findings"]} == {"missing-folder", "shared-path"}


def test_the_page_explains_every_rule() -> None:
    page = (Path(__file__).parents[3] / "docs" / "endpoints.md").read_text()
    table = page.partition("| rule | checks |")[2].partition("\n\n")[0]
    assert {word for line in table.splitlines() for word in line.split("|")[1:2] for word in word.replace("`", "").replace(",", " ").split()} - {"---"} == set(RULES)  # fmt: skip
