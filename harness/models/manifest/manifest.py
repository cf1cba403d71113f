"""Parses the content of a manifest; an error names every field that is wrong."""

from typing import Any

from pydantic import ValidationError

from harness.errors import ConfigError, one_line, some_of
from harness.models.manifest.schema import Manifest
from harness.models.steps import steps


def parse_manifest(content: object, source: str) -> Manifest:
    if not isinstance(content, dict):
        raise ConfigError(f"{source}: a manifest is a mapping of fields, see digits.yaml")
    try:
        return Manifest.model_validate(content)
    except ValidationError as e:
        problems = some_of([f"{source}: {_problem(p)}" for p in e.errors()])
        raise ConfigError(problems) from None


def _problem(error: Any) -> str:
    field = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"unknown field {field!r:.100}"
    if error["type"] == "missing":
        return f"field {field!r} is missing"
    text = one_line(steps.problem(error))
    return f"field {field!r}: {text}" if field else text
