"""MLPerf v6.1's language tasks: manifests, rules, LoadGen's table and the checker agree on the numbers."""

import os
import runpy
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from harness.core.config.run_config import RunConfig
from harness.core.units import NS_PER_MS
from harness.loadgen.official import official_load
from harness.loadgen.plan import InstanceGroup
from harness.models.manifest.lookup import load_model
from harness.models.manifest.schema import Manifest
from harness.models.opened.loading import open_backends
from harness.submit.rules.tree.rounds import load_round
from tests.stand_ins.servers.token_server import VLLM, TokenServer

DOC = (Path(__file__).parents[3] / "docs/manifest.md").read_text(encoding="utf-8")
CHECKOUT = "MLPERF_INFERENCE"
"""Environment variable with the path of a checkout of mlcommons/inference."""


class Task(NamedTuple):
    """Numbers of one benchmark from mlcommons/inference b66003e. Limits: the p99 of TTFT and TPOT, in ms."""

    benchmark: str
    samples: int
    max_tokens: int
    server: tuple[int, int] | None
    interactive: tuple[int, int] | None
    score: tuple[float, float]
    """The reference's score, and the share of the score that a run must reach."""


TASKS = {
    "llama2-70b": Task("llama2-70b-99.9", 24_576, 1024, (2000, 200), (450, 40), (44.4312, 0.999)),
    "llama3.1-8b": Task("llama3.1-8b", 13_368, 128, (2000, 100), (500, 30), (38.7792, 0.99)),
    "llama3.1-8b-edge": Task("llama3.1-8b-edge", 5000, 128, None, None, (39.06, 0.99)),
    "deepseek-r1": Task("deepseek-r1", 4388, 20_000, (2000, 80), (1500, 15), (81.3582, 0.99)),
    "gpt-oss-120b": Task("gpt-oss-120b", 6396, 10_240, (3000, 80), (2000, 15), (83.13, 0.99)),
}

REASONING = ("deepseek-r1", "gpt-oss-120b")
"""Models whose answers are scored by MLCommons' own scripts."""


def manifest_of(name: str) -> Manifest:
    found = load_model(name).manifest
    assert found is not None
    return found


def official_constants() -> Mapping[str, Any]:
    """Reads the official checker's constants as data, without importing the checker."""
    checkout = os.environ.get(CHECKOUT)
    if not checkout:
        pytest.skip(f"set {CHECKOUT} to a checkout of mlcommons/inference")
    path = Path(checkout) / "tools/submission/submission_checker/constants.py"
    return runpy.run_path(str(path))


CASES = pytest.mark.parametrize(("name", "task"), TASKS.items(), ids=list(TASKS))


@CASES
def test_a_manifest_has_the_tasks_numbers(name: str, task: Task) -> None:
    manifest = manifest_of(name)
    assert (manifest.performance_count, manifest.max_tokens) == (task.samples, task.max_tokens)
    assert (manifest.files, manifest.dataset, manifest.task) == ({}, "prompts", "text-generation")
    assert manifest.accuracy is not None
    reference, share = task.score
    assert manifest.accuracy.metric == ("reasoned-answers" if name in REASONING else "rouge")
    assert manifest.accuracy.reference == reference
    assert manifest.accuracy.target == pytest.approx(reference * share, abs=1e-9)


@CASES
def test_loadgens_table_has_the_same_samples(name: str, task: Task, tmp_path: Path) -> None:
    (tmp_path / "user.conf").write_text("*.Server.target_qps = 1\n*.Offline.target_qps = 1\n")
    key = manifest_of(name).mlperf_model
    for model in (key, *([f"{key}-interactive"] if task.interactive else [])):
        load = official_load("offline", str(model), str(tmp_path / "user.conf"), 10**6, held=7)
        assert (load.performance_count, load.equal_issue) == (task.samples, True)


def in_ns(limit: tuple[int, int] | None) -> tuple[int, int] | None:
    return (limit[0] * NS_PER_MS, limit[1] * NS_PER_MS) if limit else None


@CASES
def test_the_round_has_the_same_numbers(name: str, task: Task) -> None:
    rules = load_round().benchmarks[task.benchmark]
    assert rules.loadgen == manifest_of(name).mlperf_model
    assert rules.performance_samples == task.samples
    limits = rules.token_limits_ns or {}
    assert {key: tuple(limits[key].model_dump().values()) for key in limits} == {
        key: in_ns(limit)
        for key, limit in (("Server", task.server), ("Interactive", task.interactive))
        if limit
    }
    bound = rules.targets["exact_match" if name in REASONING else "ROUGE1"]
    assert (bound.reference, bound.share) == task.score


@CASES
def test_the_page_has_the_same_numbers(name: str, task: Task) -> None:
    limits = [
        f"{limit[0]} ms, {limit[1]} ms" if limit else "none"
        for limit in (task.server, task.interactive)
    ]
    cells = [f"`{name}`", f"{task.samples:,}", f"{task.max_tokens:,}", *limits]
    assert f"| {' | '.join(cells)} |" in DOC


@pytest.mark.slow
@CASES
def test_the_official_checker_has_the_same_numbers(name: str, task: Task) -> None:
    constants = official_constants()
    model = constants["MODEL_CONFIG"]["v6.1"]
    assert model["performance-sample-count"][task.benchmark] == task.samples
    limits = constants["LLM_LATENCY_LIMITS"].get(task.benchmark, {})
    assert {key: (one["ttft"], one["tpot"]) for key, one in limits.items()} == {
        key: in_ns(limit)
        for key, limit in (("Server", task.server), ("Interactive", task.interactive))
        if limit
    }
    target = model["accuracy-target"][task.benchmark]
    key = "exact_match" if name in REASONING else "ROUGE1"
    assert target[:2] == (key, pytest.approx(task.score[0] * task.score[1]))
    rules = load_round().benchmarks[task.benchmark]
    named = model["accuracy-target"][task.benchmark]
    pairs = dict(zip(named[::2], named[1::2], strict=True))
    assert {key: bound.value for key, bound in rules.targets.items()} == pytest.approx(pairs)
    samples = {**model["dataset-size"], **model["accuracy-sample-count"]}
    assert rules.samples == samples[task.benchmark]


@pytest.mark.parametrize(("given", "sent"), [([], 1024), (["max_tokens=3"], 3)])
def test_an_answer_has_at_most_the_manifests_tokens(given: list[str], sent: int) -> None:
    with TokenServer(VLLM) as server, ExitStack() as stack:
        config = RunConfig.of(
            scenario="offline",
            backend="openai",
            url=[server.url],
            model="llama2-70b",
            backend_option=["served=tiny", *given],
        )
        group = InstanceGroup(1, 1, 1, connections=1)
        (backend,) = open_backends(config, load_model("llama2-70b"), None, group, stack)
        assert backend.describe()["max_tokens"] == sent
