"""The file of the round is complete, and agrees with MLCommons' checker, LoadGen's table and the manifests."""

import os
import re
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.loadgen.official import official_load
from harness.loadgen.plan import ONE_PASS
from harness.loadgen.user_conf import problems
from harness.models.manifest.lookup import load_model, shipped_models
from harness.models.manifest.schema import Manifest
from harness.submit.plan.request import INTERACTIVE, OURS
from harness.submit.rules.tree.round_names import known_rounds
from harness.submit.rules.tree.rounds import Benchmark, Bound, Round, load_round
from tests.models.manifest.test_language_tasks import CHECKOUT

ROUNDS = pytest.mark.parametrize("rules", [*map(load_round, known_rounds())], ids=known_rounds())
PERCENT = {"rgat": 100}
"""Benchmarks whose score is a percentage in accuracy.txt but a share in the checker's constants, with the factor
between them.
"""

UNSTATED = {"gpt-oss-120b", "e2e-rag-db", "e2e-rag-qna", "dlrm-v3", "qwen3.6-27b", "wan-2.2-t2v-a14b", "yolo-95", "yolo-99"}  # fmt: skip
"""Benchmarks that LoadGen's mlperf.conf omits, or lists with another number of Offline samples."""


def of_each(rules: Round) -> list[Any]:
    return [pytest.param(rules, name, id=f"{rules.name} {name}") for name in rules.benchmarks]


BENCHMARKS = pytest.mark.parametrize(
    ("rules", "name"), [case for each in map(load_round, known_rounds()) for case in of_each(each)]
)


def scenarios_of(benchmark: Benchmark) -> set[str]:
    return {*benchmark.edge, *benchmark.datacenter, *benchmark.both, *benchmark.optional}


@BENCHMARKS
def test_a_benchmark_names_only_what_the_round_defines(rules: Round, name: str) -> None:
    benchmark = rules.benchmarks[name]
    scenarios = scenarios_of(benchmark)
    assert scenarios
    assert scenarios <= {*rules.scenarios} & {*OURS}
    assert {*benchmark.latency_limit_ns, *benchmark.results} <= {*rules.scenarios}
    assert {*(benchmark.token_limits_ns or {})} <= scenarios
    assert {*benchmark.audits} <= {*rules.audits}
    assert {*benchmark.targets, *benchmark.limits} <= {*rules.patterns}
    assert ("TEST01" in benchmark.audits) == (benchmark.test01_answers is not None)


@BENCHMARKS
def test_a_benchmarks_numbers_can_be_reached(rules: Round, name: str) -> None:
    benchmark = rules.benchmarks[name]
    assert benchmark.performance_samples > 0
    assert (benchmark.offline_samples > 0) == ("Offline" in scenarios_of(benchmark))
    for metric, target in benchmark.targets.items():
        assert 0 < target.value <= rules.highest_scores.get(metric, target.value)
        assert target.share <= 1
        if metric in benchmark.limits:
            assert target.value < benchmark.limits[metric].value


@ROUNDS
def test_only_benchmarks_of_one_pass_have_no_least_duration(rules: Round) -> None:
    untimed = {one.loadgen for one in rules.benchmarks.values() if not one.timed}
    assert untimed == {*ONE_PASS}
    for benchmark in rules.benchmarks.values():
        lasts = benchmark.user_conf.get("Offline", {}).get("min_duration")
        assert (lasts == 0) == (not benchmark.timed)
        for scenario, settings in benchmark.user_conf.items():
            lines = (f"{benchmark.loadgen}.{scenario}.{k} = {v}" for k, v in settings.items())
            assert [*problems("\n".join(lines))] == []


@ROUNDS
def test_equal_issue_names_benchmarks_of_the_round(rules: Round) -> None:
    assert {*rules.equal_issue} <= {one.loadgen for one in rules.benchmarks.values()}
    assert len({*rules.equal_issue}) == len(rules.equal_issue)


@ROUNDS
def test_each_pattern_of_a_score_has_one_group(rules: Round) -> None:
    assert {*rules.highest_scores} <= {*rules.patterns}
    for pattern in rules.patterns.values():
        assert re.compile(pattern).groups == 1


@BENCHMARKS
def test_loadgens_table_agrees_with_the_round(rules: Round, name: str, tmp_path: Path) -> None:
    benchmark = rules.benchmarks[name]
    conf = tmp_path / "user.conf"
    conf.write_text("*.Server.target_qps = 1\n*.Offline.target_qps = 0.001\n")
    for scenario in scenarios_of(benchmark) - {"Interactive"}:
        load = official_load(OURS[scenario], benchmark.loadgen, str(conf), 10**6, held=10**6)
        assert load.equal_issue == (benchmark.loadgen in rules.equal_issue)
        assert load.percentile == rules.percentiles.get(scenario, load.percentile)
        assert load.token_latencies == (benchmark.token_limits_ns is not None or name == "whisper")
        if name not in UNSTATED and scenario == "Offline":
            assert load.queries == benchmark.offline_samples
        if scenario == "Server" and load.latency_bound_ns is not None and name != "dlrm-v3":
            assert load.latency_bound_ns <= benchmark.latency_limit_ns["Server"]
    if "Interactive" in (benchmark.token_limits_ns or {}):
        load = official_load("server", benchmark.loadgen + INTERACTIVE, str(conf), 10**6, held=7)
        assert load.token_latencies


def manifests() -> dict[str, Manifest]:
    found = ((name, load_model(name).manifest) for name in shipped_models())
    return {name: manifest for name, manifest in found if manifest and manifest.mlperf_model}


def benchmark_of(rules: Round, manifest: Manifest) -> Benchmark | None:
    """Returns the benchmark with this key in LoadGen's table; if two benchmarks have the key, returns the benchmark
    with the lower target.
    """
    keys = [one for one in rules.benchmarks.values() if one.loadgen == manifest.mlperf_model]
    return min(keys, key=lambda one: next(iter(one.targets.values())).share, default=None)


@pytest.mark.parametrize("name", [*manifests()])
def test_a_shipped_manifest_has_its_benchmarks_numbers(name: str) -> None:
    manifest, rules = manifests()[name], load_round()
    benchmark = benchmark_of(rules, manifest)
    assert benchmark is not None, (
        f"{name}.yaml: no benchmark of the round is {manifest.mlperf_model}"
    )
    assert (manifest.performance_count or 0) >= benchmark.performance_samples
    accuracy = manifest.accuracy
    if accuracy is None or accuracy.target is None:
        return
    targets = [(bound.reference, bound.value) for bound in benchmark.targets.values()]
    # Error rates are 100 minus the score.
    targets += [(100 - score, 100 - value) for score, value in targets]
    assert any(
        accuracy.target == pytest.approx(value, abs=5e-4)
        and accuracy.reference in (None, pytest.approx(score))
        for score, value in targets
    )


@pytest.fixture(scope="module")
def checkout() -> Path:
    path = os.environ.get(CHECKOUT)
    if not path:
        pytest.skip(f"set {CHECKOUT} to a checkout of mlcommons/inference")
    return Path(path)


@pytest.fixture(scope="module")
def constants(checkout: Path) -> Mapping[str, Any]:
    """Returns the checker's constants, read as data without importing the checker."""
    return runpy.run_path(str(checkout / "tools/submission/submission_checker/constants.py"))


def bounds(flat: tuple[Any, ...]) -> dict[str, float]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def values(named: Mapping[str, Bound], factor: float) -> dict[str, Any]:
    return {metric: pytest.approx(bound.value / factor) for metric, bound in named.items()}


@pytest.mark.slow
@ROUNDS
def test_the_checker_has_the_same_benchmarks(rules: Round, constants: Mapping[str, Any]) -> None:
    model = constants["MODEL_CONFIG"][rules.name]
    assert {*model["models"]} == {*rules.benchmarks}
    assert len(rules.benchmarks) == 21 or rules.name != "v6.1"
    for key, category in (
        ("datacenter", "datacenter"),
        ("edge", "edge"),
        ("datacenter-edge", "both"),
    ):
        theirs = model[f"required-scenarios-{key}"]
        for name, benchmark in rules.benchmarks.items():
            assert {*theirs.get(name, ())} == {*getattr(benchmark, category)}, (name, key)
    for name, benchmark in rules.benchmarks.items():
        assert {*model["optional-scenarios-datacenter"].get(name, ())} == {*benchmark.optional}
    assert model["seeds"] == {
        f"{key}_rng_seed": value for key, value in rules.seeds.model_dump().items()
    }
    assert model["model_mapping"].items() >= rules.aliases.items()


@pytest.mark.slow
@BENCHMARKS
def test_the_checker_has_the_same_counts(
    rules: Round, name: str, constants: Mapping[str, Any]
) -> None:
    model, benchmark = constants["MODEL_CONFIG"][rules.name], rules.benchmarks[name]
    answered = {**model["dataset-size"], **model["accuracy-sample-count"]}[name]
    by_scenario = answered if isinstance(answered, dict) else {}
    for scenario in scenarios_of(benchmark):
        assert benchmark.samples_in(scenario) == by_scenario.get(scenario, answered)
    assert benchmark.performance_samples == model["performance-sample-count"][name]
    least = constants["OFFLINE_MIN_SPQ_SINCE_V4"]
    assert benchmark.offline_samples == (least[name] if "Offline" in scenarios_of(benchmark) else 0)
    audits = [
        key[-6:] for key, names in model.items() if key.startswith("models_TEST") and name in names
    ]
    assert sorted(benchmark.audits) == sorted(audits)


@pytest.mark.slow
@BENCHMARKS
def test_the_checker_has_the_same_bounds(
    rules: Round, name: str, constants: Mapping[str, Any]
) -> None:
    model, benchmark = constants["MODEL_CONFIG"][rules.name], rules.benchmarks[name]
    factor = PERCENT.get(name, 1)
    target = model["accuracy-target"][name]
    by_scenario = target if isinstance(target, dict) else {}
    for scenario in scenarios_of(benchmark):
        theirs = bounds(by_scenario.get(scenario, target))
        assert theirs == values(benchmark.targets_in(scenario), factor)
    assert bounds(model["accuracy-upper-limit"].get(name, ())) == values(benchmark.limits, factor)
    assert benchmark.latency_limit_ns == model["latency-constraint"].get(name, {})
    token = {s: one.model_dump() for s, one in (benchmark.token_limits_ns or {}).items()}
    assert token == constants["LLM_LATENCY_LIMITS"].get(name, {})
    theirs = constants["RESULT_FIELD_BENCHMARK_OVERWRITE"][rules.name].get(name, {})
    assert benchmark.results == theirs
    deltas = {m: float(d) for m, d in model["accuracy-delta-perc"].get(name, {}).items()}
    assert {m: benchmark.delta_percent(m) for m in deltas} == deltas
    others = {benchmark.delta_percent(m) for m in benchmark.targets if m not in deltas}
    assert others <= {0.1 if "99.9" in name else 1.0}


@pytest.mark.slow
@ROUNDS
def test_the_checker_has_the_same_keys_and_files(
    rules: Round, constants: Mapping[str, Any]
) -> None:
    assert rules.results == constants["RESULT_FIELD_NEW"][rules.name]
    for metric, pattern in rules.patterns.items():
        theirs = re.compile(constants["ACC_PATTERN"][metric])
        for line in (f"{text}{score}{end}" for text, end in LINES for score in ("71.25", "0.5")):
            ours, official = re.match(pattern, line), theirs.match(line)
            assert (ours and ours[1]) == (official and official[1]), (metric, line)
    keys = rules.system_keys
    assert {*keys.required} == {*constants["SYSTEM_DESC_REQUIRED_FIELDS"]}
    assert {*keys.meaningful} == {*constants["SYSTEM_DESC_MEANINGFUL_RESPONSE_REQUIRED_FIELDS"]}
    network = {constants["SYSTEM_DESC_IS_NETWORK_MODE"], *keys.network}
    assert network == {*constants["SYSTEM_DESC_REQUIRED_FIELDS_NETWORK_MODE"]}
    assert {*rules.measurement_keys} == {*constants["SYSTEM_IMP_REQUIRED_FILES"]}
    assert rules.network_sut == constants["NETWORK_MODE_REQUIRED_SUBSTRING_IN_SUT_NAME"]
    assert rules.min_duration_ms == constants["TEST_DURATION_MS"]
    assert rules.largest_accuracy_log_bytes == constants["MAX_ACCURACY_LOG_SIZE"]
    assert {*rules.divisions} == {*constants["VALID_DIVISIONS"]}
    assert {*rules.statuses} == {*constants["VALID_AVAILABILITIES"]}
    assert {*rules.performance_files} == {*constants["REQUIRED_PERF_FILES"]}
    assert {*rules.accuracy_files} == {*constants["REQUIRED_ACC_FILES"]}
    assert {*rules.power_files} == {*constants["REQUIRED_POWER_FILES"]}


LINES = [
    ("accuracy=", "%, good=1, total=2"),
    ('{"accuracy": ', "}"),
    ("mAP=", "%"),
    ("{'Total': ", "}"),
    ('{"exact_match": 1.5, "f1": ', "}"),
    ("Accuracy: mean = ", ", kidney = 0.9"),
    ("Accuracy: ", ""),
    ("Word Error Rate: 2.06%, accuracy=", "%"),
    *((f"{{'{key}': ", ", 'gen_num': 9}") for key in ("rouge1", "rouge2", "rougeL", "rougeLsum", "gen_len", "tokens_per_sample", "exact_match", "CLIP_SCORE", "FID_SCORE", "vbench_score")),
    *((f"{{'{key}': '", "'}") for key in ("rouge1", "CLIP_SCORE", "FID_SCORE")),
    ('{"f1": ', ', "precision": 0.3}'),
    *((f"metric/lifetime_{key}/rating: ", "") for key in ("ne", "accuracy", "gauc")),
    ("WARNING:main:metric/lifetime_ne/rating: ", ""),
]  # fmt: skip
"""The text before and after a score in accuracy.txt, as each benchmark's script writes it."""


@pytest.mark.slow
@ROUNDS
def test_loadgens_source_has_the_same_equal_issue_and_seeds(rules: Round, checkout: Path) -> None:
    conf = (checkout / "loadgen/mlperf.conf").read_text(encoding="utf-8")
    issued = re.findall(r"^(\S+)\.\*\.sample_concatenate_permutation = 1", conf, re.MULTILINE)
    known = {one.loadgen for one in rules.benchmarks.values()}
    assert {*issued} & known == {*rules.equal_issue}
    for key, value in rules.seeds.model_dump().items():
        assert f"*.*.{key}_rng_seed = {value}\n" in conf


NAMED = re.compile(r"^\*\.\S+?\.(\w+) = ([-\d.]+)", re.MULTILINE)
"""Matches a line of audit.config that applies to every model. LoadGen looks up the settings of an audit without a model
name.
"""


@pytest.mark.slow
@BENCHMARKS
def test_the_checkouts_audits_have_the_same_settings(
    rules: Round, name: str, checkout: Path
) -> None:
    for audit in rules.benchmarks[name].audits:
        folder = checkout / "compliance" / audit
        own = [folder / key for key in (name, rules.benchmarks[name].loadgen)]
        path = next(p / "audit.config" for p in (*own, folder) if (p / "audit.config").is_file())
        theirs = {m[1]: float(m[2]) for m in NAMED.finditer(path.read_text(encoding="utf-8"))}
        ours = rules.audit_settings(audit, name)
        if not rules.audits[audit].needs:
            assert {key: float(value) for key, value in ours.items()} == theirs
