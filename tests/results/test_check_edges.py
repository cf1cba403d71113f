"""`check` in special cases: a missing part, a wrong count of warnings, or a run without a schedule."""

import json
import shutil
import tempfile
from pathlib import Path

import pytest
import yaml

from harness.cli.main import main
from harness.core.formats.strict_yaml import load_mapping
from harness.errors import ConfigError
from harness.loadgen.logs import DETAIL
from harness.models.manifest.model import MODELS_DIR
from harness.results import records
from harness.results.check.copies import _peak, compared
from harness.results.recheck import check
from tests.builders.edited import edit
from tests.golden.make_runs import FOLDERS


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDERS / "single-stream", tmp_path / "run"))


def test_a_result_without_the_machine_is_noticed(stream: Path) -> None:
    edit(stream / "result.json", lambda said: said.update(environment={}))
    assert "environment: result.json contains none" in check(stream)


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ("warning", "1 warning encountered. See detailed log."),
        ("warnings", "2 warnings encountered. See detailed log."),
        ("error", "1 ERROR encountered. See detailed log."),
    ],
)
def test_the_summary_must_count_the_warnings_and_errors_of_the_detail_log(
    more: str, line: str, stream: Path
) -> None:
    path = stream / "performance/run_1" / DETAIL
    kind = more.removesuffix("s")
    entry = {"key": "generic_message", "value": "x", "metadata": {f"is_{kind}": True}}
    added = f":::MLLOG {json.dumps(entry)}\n" * (2 if more.endswith("s") else 1)
    path.write_text(added + path.read_text())
    assert any(f"has no line {line!r}" in difference for difference in check(stream))


def test_a_closed_loop_has_no_schedule_to_compare() -> None:
    assert check(FOLDERS / "closed-loop") == []


def test_a_configuration_that_is_a_list_is_refused(stream: Path) -> None:
    (stream / "config.yaml").write_text("- scenario\n")
    with pytest.raises(ConfigError, match="is not a configuration"):
        load_mapping(stream / "config.yaml")
    with pytest.raises(ConfigError, match="is not a configuration"):
        check(stream)


def test_the_peak_of_a_search_is_the_load_of_its_run() -> None:
    """Bug: `check` accepted any value as the peak in peak.json."""
    folder = FOLDERS / "server"
    run = records.read(folder / "performance/run_1", "Server")
    assert run is not None
    for peak, expected in ((200.0, 0), (400.0, 1)):
        with tempfile.TemporaryDirectory() as parent:
            path = Path(parent) / "peak.json"
            path.write_text(json.dumps({"peak": peak}))
            assert len(list(_peak(path, run))) == expected


@pytest.mark.slow
def test_official_accuracy_run_may_hold_the_number_of_loadgens_table(tmp_path: Path) -> None:
    """Bug: the accuracy run of wan-2.2-t2v-a14b held 248 samples, as in LoadGen's table, although the manifest says 50."""
    pytest.importorskip("onnxruntime")
    model = load_mapping(MODELS_DIR / "digits.yaml")
    shutil.copy(MODELS_DIR / "digits.onnx", tmp_path)
    model["files"] = {"onnx": model["files"]["onnx"]}
    model |= {"mlperf_model": "wan-2.2-t2v-a14b", "performance_count": 50}
    (tmp_path / "wan.yaml").write_text(yaml.safe_dump(model))
    words = ["--mlperf", "--mode", "accuracy", "--scenario", "offline", "--backend", "ort"]
    out = tmp_path / "out"
    assert main([*words, "--model", str(tmp_path / "wan.yaml"), "--out", str(out), "--quiet"]) == 0
    held = json.loads((out / "answers/run.json").read_bytes())["plan"]["performance_count"]
    assert held == 248
    assert check(out) == []


def test_a_float_may_differ_in_its_last_digits_only() -> None:
    """Bug: `check` found a contradiction in a run because NumPy had summed its numbers in a different order."""
    stored, other = 2.6846394233283455, 2.6846394233283446
    assert not [*compared("a", {"x": stored, "n": 3}, {"x": other, "n": 3})]
    assert [*compared("a", {"x": 2.6846394}, {"x": 2.6846395})]
    assert [*compared("a", {"n": 3}, {"n": 4})]
