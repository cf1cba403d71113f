"""`schema`: files that the harness reads are valid according to the editors' schemas; files that it refuses are not."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.cli.main import main
from harness.cli.start.config_files import PRESETS
from harness.cli.start.schemas import SCHEMAS
from harness.models.manifest.lookup import shipped_models
from harness.models.manifest.model import MODELS_DIR
from harness.models.manifest.schema import Manifest
from tests.builders.refusals import refused

jsonschema = pytest.importorskip("jsonschema")
ROOT = Path(__file__).parents[3]
CONFIGS = [*PRESETS.glob("*.yaml"), *(ROOT / "tests/golden/runs").rglob("config.yaml")]


@cache
def validator(kind: str) -> Any:
    return jsonschema.Draft202012Validator(SCHEMAS[kind]())


def valid(kind: str, content: Any) -> bool:
    return bool(validator(kind).is_valid(content))


@pytest.mark.parametrize("kind", SCHEMAS)
def test_the_verb_prints_a_schema(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", kind]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == SCHEMAS[kind]()
    jsonschema.Draft202012Validator.check_schema(printed)


def test_an_unknown_kind_is_reported_in_one_line() -> None:
    assert refused("schema", "results") == [
        "KIND: 'results' is not one of config, manifest, result"
    ]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_presets_and_the_configurations_of_runs_are_valid(path: Path) -> None:
    assert valid("config", yaml.safe_load(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("content", "good"),
    [
        ({"scenario": "server", "backend": "mine.py:Mine", "queries": "20,000"}, True),
        ({"probe": "1s", "repeats": 3, "backend_option": ["compile=off"], "pin": True}, True),
        ({"duration": 10}, False),
        ({"mode": "fast"}, False),
        ({"senario": "server"}, False),
        ({"pin": "yes"}, False),
    ],
)
def test_the_schema_accepts_what_the_harness_reads(content: dict[str, Any], good: bool) -> None:
    assert valid("config", content) is good


def test_every_option_of_the_schema_says_what_it_does() -> None:
    properties = SCHEMAS["config"]()["properties"]
    assert [key for key, one in properties.items() if not one.get("description")] == [
        "schema_version"
    ]


@pytest.mark.parametrize("name", shipped_models())
def test_the_ready_manifests_are_valid(name: str) -> None:
    assert valid("manifest", yaml.safe_load((MODELS_DIR / f"{name}.yaml").read_text()))


@pytest.mark.parametrize(
    "steps",
    ["crop", ["resize"], [{"resize": {}}], [{"crop": {"side": 3}}], [{"none": {}, "clip": {}}]],
)
def test_a_wrong_step_is_not_valid(steps: Any) -> None:
    content = yaml.safe_load((MODELS_DIR / "digits.yaml").read_text())
    assert valid("manifest", content)
    content["inputs"][0]["preprocess"] = steps
    # `crop` counts as valid, because a separate rule chooses between the two options of `crop`.
    assert valid("manifest", content) is (steps == "crop")


def test_every_field_of_a_manifest_is_in_the_schema_with_its_text() -> None:
    content = SCHEMAS["manifest"]()
    assert {*content["properties"]} == {*Manifest.model_fields}
    for section in (content, *content["$defs"].values()):
        assert all(one.get("description") for one in section["properties"].values())
