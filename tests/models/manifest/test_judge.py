"""If a manifest judges a shipped model by different values, the doubt names each value."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.core.formats.strict_yaml import load_yaml
from harness.models.manifest.judge import differences, judged_by
from harness.models.manifest.lookup import load_model
from harness.models.manifest.model import MODELS_DIR, Model
from harness.models.manifest.schema import Accuracy
from harness.results.verdict.model_doubts import other_judge, weak_judge
from harness.types import Score


def own(folder: Path, accuracy: Mapping[str, Any] | None = None, **fields: Any) -> Model:
    content: Any = load_yaml(MODELS_DIR / "digits.yaml")
    content |= fields
    content["accuracy"] = {**content["accuracy"], **(accuracy or {})}
    (folder / "own.yaml").write_text(yaml.safe_dump(content))
    return load_model(str(folder / "own.yaml"))


def test_the_shipped_manifest_and_a_copy_of_it_are_not_doubted(tmp_path: Path) -> None:
    assert [*other_judge(load_model("digits"))] == []
    assert [*other_judge(own(tmp_path, slo="p99=9s", max_batch=4))] == []


@pytest.mark.parametrize(
    ("accuracy", "fields", "key"),
    [
        ({"target": 0.0}, {}, "accuracy.target"),
        ({"sampling_tolerance": 9}, {}, "accuracy.sampling_tolerance"),
        ({"tolerance": 0.5}, {}, "accuracy.tolerance"),
        ({"metric": "top5"}, {"name": "digits"}, "accuracy.metric"),
        ({}, {"dataset": "synthetic"}, "dataset"),
        ({}, {"outputs": [{"name": "logits", "postprocess": "none"}]}, "outputs.logits"),
        ({"target": 0.0}, {"name": "mine"}, "accuracy.target"),
        ({"target": 0.0}, {"files": {}}, "accuracy.target"),
    ],
)
def test_a_changed_judge_under_a_shipped_name_or_file_is_named(
    accuracy: dict[str, Any], fields: dict[str, Any], key: str, tmp_path: Path
) -> None:
    """Bug: with a target of 0 under the shipped name, a run was VALID, and no file recorded the tolerance."""
    (found,) = differences(own(tmp_path, accuracy, **fields))
    assert found[0] == "digits"
    assert [line.split(" is ")[0] for line in found[1]] == [key]


def test_a_model_of_the_users_own_is_not_compared(tmp_path: Path) -> None:
    assert [*differences(own(tmp_path, {"target": 0.0}, name="mine", files={}))] == []


def test_the_values_of_a_judge_include_the_tolerances() -> None:
    manifest = load_model("digits").manifest
    assert manifest is not None
    found = judged_by(manifest)
    assert (found["accuracy.tolerance"], found["accuracy.sampling_tolerance"]) == (1e-3, 0)


@pytest.mark.parametrize(
    ("fields", "lower_is_better", "is_weak"),
    [
        ({"target": 0.0}, False, True),
        ({"target": 1.0}, False, False),
        ({"target": 100.0}, True, True),
        ({"target": 7.5}, True, False),
        ({"target": 98.0, "sampling_tolerance": 51}, False, True),
        ({"target": 98.0, "sampling_tolerance": 50}, False, False),
        ({"target": 98.0, "tolerance": 0.2}, False, True),
    ],
)
def test_a_judge_that_lets_wrong_answers_pass_is_doubted(
    fields: dict[str, Any], lower_is_better: bool, is_weak: bool
) -> None:
    target = Accuracy(metric="m", **fields)
    score = Score(
        metric="m", value=50.0, unit="%", samples=100, line="", lower_is_better=lower_is_better
    )
    assert [doubt.code for doubt in weak_judge(target, score, 500)] == ["judge-weak"] * is_weak


@pytest.mark.parametrize(("target", "lower_is_better"), [(2.5, True), (-7.0, False)])
def test_target_of_a_score_that_is_not_a_share_is_not_judged(
    target: float, lower_is_better: bool
) -> None:
    """A score that is not a share may be a root mean square of 2.5 or a log-likelihood of -7."""
    score = Score(
        metric="m", value=2.4, unit="", samples=100, line="", lower_is_better=lower_is_better
    )
    assert not list(weak_judge(Accuracy(metric="m", target=target), score, 500))


def test_tolerance_for_long_runs_raises_no_doubt_about_a_short_run() -> None:
    target = Accuracy(metric="m", target=98.0, sampling_tolerance=5)
    assert not list(weak_judge(target, None, 0))
    assert not list(weak_judge(target, None, 40))


def test_many_symbols_are_recorded_by_their_number_and_digest(tmp_path: Path) -> None:
    few = own(tmp_path, {"symbols": "ab c"}).manifest
    assert few is not None
    assert judged_by(few)["accuracy.symbols"] == ["a", "b", " ", "c"]
    many, other = (own(tmp_path, {"symbols": text * 300}).manifest for text in ("a", "b"))
    assert many is not None
    assert other is not None
    found = [str(judged_by(one)["accuracy.symbols"]) for one in (many, other)]
    assert all(text.startswith("300 symbols, SHA-256 ") for text in found)
    assert found[0] != found[1]
