"""result.json as a reader has it, held against its JSON Schema."""

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

import harness.results
from harness.results import result_json
from harness.results.findings import Findings

SCHEMA = Path(harness.results.__file__).with_name("result.schema.json")
VALIDATOR = Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))


def result(findings: Findings) -> Any:
    content = json.loads(json.dumps(result_json.result(findings), default=str))
    VALIDATOR.validate(content)
    return content
