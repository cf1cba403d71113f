"""MLPerf v6.1's tasks for speech, images, videos, products and calls: manifest, round, LoadGen and checker agree."""

from pathlib import Path
from typing import NamedTuple

import pytest

from harness.loadgen.official import official_load
from harness.submit.rules.tree.rounds import load_round
from tests.models.manifest.test_language_tasks import manifest_of, official_constants


class Task(NamedTuple):
    """Numbers of one benchmark from mlcommons/inference b66003e."""

    samples: int
    """Number of samples that a performance run keeps in memory, according to LoadGen's table."""
    equal_issue: bool
    metric: str
    """The round's name for the manifest's score."""
    target: float
    limit_ms: int | None = None
    """The bound on p99 in Server."""


TASKS = {
    "whisper": Task(1633, True, "ACCURACY", 100 - 97.9329 * 0.99),
    "stable-diffusion-xl": Task(5000, False, "CLIP_SCORE", 31.68631873, 20_000),
    "wan-2.2-t2v-a14b": Task(248, False, "vbench_score", 70.48 * 0.99),
    "qwen3-vl-235b-a22b": Task(48_289, True, "F1_HIERARCHICAL", 0.7903 * 0.99, 12_000),
    "qwen3.6-27b": Task(995, False, "mAP", 86.23 * 0.99),
}
CASES = pytest.mark.parametrize(("name", "task"), TASKS.items(), ids=list(TASKS))


@CASES
def test_manifest_and_round_have_equal_numbers(name: str, task: Task) -> None:
    manifest, rules = manifest_of(name), load_round().benchmarks[name]
    assert manifest.mlperf_model == rules.loadgen
    assert manifest.accuracy is not None
    assert manifest.accuracy.target == pytest.approx(task.target, abs=5e-5)
    bound = rules.targets[task.metric].value
    assert bound == pytest.approx(100 - task.target if name == "whisper" else task.target)
    assert manifest.performance_count == task.samples
    assert manifest.slo == (f"p99={task.limit_ms // 1000}s" if task.limit_ms else None)
    limits = rules.latency_limit_ns.get("Server")
    assert limits == (task.limit_ms * 10**6 if task.limit_ms else None)


@CASES
def test_loadgens_table_has_the_tasks_numbers(name: str, task: Task, tmp_path: Path) -> None:
    (tmp_path / "user.conf").write_text("*.Server.target_qps = 1\n*.Offline.target_qps = 1\n")
    key = str(manifest_of(name).mlperf_model)
    load = official_load("offline", key, str(tmp_path / "user.conf"), 10**6, held=995)
    assert (load.performance_count, load.equal_issue) == (task.samples, task.equal_issue)
    assert (key in load_round().equal_issue) == task.equal_issue


@pytest.mark.slow
@CASES
def test_the_official_checker_has_the_tasks_numbers(name: str, task: Task) -> None:
    model = official_constants()["MODEL_CONFIG"]["v6.1"]
    target = model["accuracy-target"][name]
    named = target["Offline"] if isinstance(target, dict) else target
    values = dict(zip(named[::2], named[1::2], strict=True))
    expected = 100 - task.target if name == "whisper" else task.target
    assert values[task.metric] == pytest.approx(expected)
    limits = model["latency-constraint"].get(name, {})
    assert limits.get("Server") == (task.limit_ms * 10**6 if task.limit_ms else None)
    assert model["performance-sample-count"][name] <= task.samples
