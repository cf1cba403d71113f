"""A new scenario needs only its module and one row in the registry; no other module knows it."""

import ast
from pathlib import Path

import pytest

from harness.core.registry import SCENARIOS
from harness.loadgen.scenario import latency_key, percentile_key, scenario_named
from tests.builders.support import golden_log
from tests.faults.command import ROOT, result, run

INTERACTIVE = '''\
"""Interactive offers queries at a fixed rate under a tight bound on the 90th percentile."""

from dataclasses import dataclass

from harness.core.config.parse import Slo
from harness.scenarios.server import _Server


@dataclass(frozen=True, slots=True)
class _Interactive(_Server):
    name: str = "interactive"
    percentile: float = 0.90
    default_slo: Slo | None = Slo(0.90, 2 * 10**9)
    options: frozenset[str] = frozenset({"target_qps"})


INTERACTIVE = _Interactive()
'''
ROW = """\
from harness.core.registry import SCENARIOS, Entry

SCENARIOS["interactive"] = Entry("interactive:INTERACTIVE", "a chat")
"""


@pytest.fixture
def added(tmp_path: Path) -> dict[str, str]:
    """Returns the environment of a command with an additional scenario."""
    (tmp_path / "interactive.py").write_text(INTERACTIVE)
    (tmp_path / "sitecustomize.py").write_text(ROW)
    return {"PYTHONPATH": f"{tmp_path}:{ROOT}"}


@pytest.mark.slow
def test_a_made_up_scenario_runs_is_judged_and_can_be_checked(
    added: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    options = ("--backend", "ort", "--target-qps", "300", "--queries", "400", "--slo", "p90=2s")
    ended = run("--scenario", "interactive", *options, "--out", str(out), env=added)
    assert ended.status == 0, ended
    content = result(out)
    assert (content["scenario"], content["slo"]) == ("interactive", "p90=2s")
    assert content["headline"]["source"] == "LoadGen result_completed_samples_per_sec"
    assert content["throughput_per_s"]["source"] == "LoadGen"
    assert content["reference"]["what"] == "p90"
    assert [doubt for doubt in content["doubts"] if doubt["code"] == "percentiles-disagree"] == []
    assert run("check", str(out), env=added).status == 0
    compared = run("compare", str(out), str(out), env=added)
    assert compared.status == 0, compared
    assert "p90" in compared.printed


def test_a_new_scenario_refuses_unsupported_options(added: dict[str, str]) -> None:
    ended = run("--scenario", "interactive", "--concurrency", "4", "--backend", "null", env=added)
    assert (ended.status, ended.said) == (
        2,
        "harness: --concurrency belongs to --scenario server: drop it for interactive\n",
    )


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_keys_of_a_scenario_are_in_loadgens_log(name: str) -> None:
    scenario, log = scenario_named(name), golden_log(name)
    keys = [percentile_key(scenario, 0.99), latency_key(scenario, "mean"), scenario.rate_key]
    assert [key for key in keys if key is not None and not log.get(key)] == []
    assert [scenario.streams, scenario.scheduled, scenario.all_at_once].count(True) == 1


def _branches(path: Path) -> list[str]:
    """Finds comparisons with a scenario's name, and dictionaries that use the name as a key."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
        elif isinstance(node, ast.Dict):
            operands = [key for key in node.keys if key is not None]
        else:
            continue
        found += [
            f"{path}:{node.lineno}: {value.value}"
            for operand in operands
            for value in ast.walk(operand)
            if isinstance(value, ast.Constant) and value.value in SCENARIOS
        ]
    return found


def test_no_code_branches_on_the_name_of_a_scenario() -> None:
    """`submit` may name MLPerf's four scenarios, which are not plug-ins, and `endpoints` has an option --offline."""
    rooms = [p for p in (ROOT / "harness").iterdir() if p.is_dir() and not p.is_symlink()]
    sources = [p for room in rooms if room.name != "submit" for p in room.rglob("*.py")]
    branches = [line for path in sources for line in _branches(path)]
    allowed = ("core/registry.py", "cli/endpoints.py")
    assert [line for line in branches if not any(path in line for path in allowed)] == []
