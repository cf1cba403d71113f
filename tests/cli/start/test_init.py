"""`init` writes a file of options that describes the default run, and a manifest that loads and runs unchanged."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.cli.main import main
from harness.cli.start.init import options_text
from harness.cli.start.schemas import SCHEMAS
from harness.cli.verbs import VERBS
from harness.core.config.run_config import RunConfig, from_plain, to_plain
from tests.builders.refusals import refused

jsonschema = pytest.importorskip("jsonschema")
TAKERS = ("run", "peak", "sweep", "tune", "profile")
DEFAULT = RunConfig(scenario="server")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def uncommented(text: str) -> Iterator[tuple[str, Any]]:
    """Yields (key, value) for each option in a comment."""
    for line in re.findall(r"^# ([a-z_]+: .*)$", text, re.MULTILINE):
        yield from yaml.safe_load(line).items()


def test_the_file_is_the_default_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[RunConfig] = []

    def execute(config: RunConfig, **_: Any) -> int:
        ran.append(config)
        return 0

    monkeypatch.setattr("harness.run.supervisor.job.execute", execute)
    assert main(["init"]) == 0
    out = capsys.readouterr().out
    assert out == (
        "run.yaml, and next to it config.schema.json, which editors use to complete it\n"
        "try it      python -m harness --config run.yaml\n"
    )
    assert main(["--config", "run.yaml"]) == 0
    assert ran == [DEFAULT]


def test_the_first_line_names_the_schema_next_to_the_file() -> None:
    assert main(["init", "peak", "--out", "sub.yaml"]) == 0
    first = Path("sub.yaml").read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=config.schema.json"
    assert yaml.safe_load(Path("config.schema.json").read_text()) == SCHEMAS["config"]()
    assert main(["init", "--out", "again.yaml"]) == 0, "the schema may be there"


def test_an_existing_file_is_not_overwritten() -> None:
    Path("run.yaml").write_text("mine\n")
    assert refused("init") == [
        "run.yaml already exists and will not be overwritten: pass a different --out"
    ]
    assert [*Path().iterdir()] == [Path("run.yaml")]
    assert Path("run.yaml").read_text() == "mine\n"


@pytest.mark.parametrize("verb", TAKERS)
def test_every_option_of_the_verb_is_written_and_fits_the_schema(verb: str) -> None:
    text = options_text(verb)
    content = yaml.safe_load(text) or {}
    keys = re.findall(r"^(?:# )?([a-z_]+): ", text, re.MULTILINE)
    shown = [
        action.dest for _, actions in VERBS[verb].parser().option_groups() for action in actions
    ]
    assert keys == shown
    assert content == ({} if verb == "profile" else {"scenario": "server"})
    assert {*keys} <= SCHEMAS["config"]()["properties"].keys()
    assert max(map(len, text.splitlines())) <= 100


def test_the_values_in_the_comments_are_the_defaults() -> None:
    """The option's help states the default, and this test compares it with the field."""
    values = dict(uncommented(options_text("run")))
    defaults = {key: value for key, value in to_plain(DEFAULT).items() if key in values}
    assert {"backend", "model", "mode", "duration", "dispatch", "device", "pin"} <= defaults.keys()
    assert {key: values[key] for key in defaults} == defaults
    assert from_plain({**defaults, "scenario": "server"}) == DEFAULT
    jsonschema.validate({**defaults, "scenario": "server"}, SCHEMAS["config"]())
    assert dict(uncommented(options_text("tune")))["duration"] == "1500ms"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["compare"], "init compare: choose from run, peak, sweep, tune, profile"),
        (
            ["peak", "--model", "m.onnx"],
            "a verb and --model make two different files: pass only one of them",
        ),
        (["--backend", "ort"], "--input-shape and --backend need --model FILE: add it"),
        (
            ["--model", "m.onnx"],
            "--model m.onnx does not exist: pass the path of a model file",
        ),
    ],
)
def test_a_wrong_command_is_reported_in_one_line(words: list[str], line: str) -> None:
    assert refused("init", *words) == [line]
    assert [*Path().iterdir()] == []
