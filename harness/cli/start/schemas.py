"""The verb `schema`, which prints the JSON Schema for the files that users write, and for result.json."""

import ast
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import Field
from importlib.resources import files
from itertools import pairwise
from typing import Any, get_args

from harness.cli.parser import Parser
from harness.cli.start.config_files import CONFIG_FLAG
from harness.cli.verbs import VERBS
from harness.core import registry
from harness.core.config.options import option_key
from harness.core.config.run_config import SCHEMA_VERSION, RunConfig
from harness.core.console import show

_DRAFT = {"$schema": "https://json-schema.org/draft/2020-12/schema"}

_REGISTERED = ("scenario", "backend", "dataset", "metric", "meter")
"""Options whose values are names in the registry, or the user's plug-ins."""


def schema(arguments: list[str]) -> int:
    parser = Parser(
        "schema",
        "Print the JSON Schema of an options file (--config), of a manifest (--model), or of result.json.",
        "KIND",
    )
    parser.text("kind", "KIND", "config, manifest or result", choices=tuple(SCHEMAS))
    show(json.dumps(SCHEMAS[parser.parse_args(arguments).kind](), indent=1, ensure_ascii=False))
    return 0


def config() -> dict[str, Any]:
    """Returns the schema for a --config file: every option of a run and of the verbs."""
    properties: dict[str, Any] = {"schema_version": {"const": SCHEMA_VERSION}}
    for one in RunConfig.__dataclass_fields__.values():
        properties[option_key(one)] = _property(one)
    for name, verb in VERBS.items():
        parser = verb.parser()
        for key, one in parser.fields.items() if parser.has(CONFIG_FLAG) else ():
            if key not in properties:
                about = _property(one)
                properties[key] = {**about, "description": f"{name}: {about['description']}"}
    return {
        **_DRAFT,
        "title": "Options of mlperf-harness",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }


def manifest() -> dict[str, Any]:
    from harness.models.manifest import schema as module

    content = module.Manifest.model_json_schema()
    texts = _field_texts(inspect.getsource(module))
    for name, section in {"Manifest": content, **content["$defs"]}.items():
        for key, text in texts[name].items():
            section["properties"][key]["description"] = text
    return {**_DRAFT, **content}


def _field_texts(source: str) -> dict[str, dict[str, str]]:
    """Returns each field's docstring, by class and field. pydantic itself would read the source again each time a model
    is loaded.
    """
    return {
        one.name: {
            field.target.id: inspect.cleandoc(str(text.value.value)).replace("\n", " ")
            for field, text in pairwise(one.body)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        }
        for one in ast.parse(source).body
        if isinstance(one, ast.ClassDef)
    }


def result() -> dict[str, Any]:
    text = files("harness.results").joinpath("result.schema.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


SCHEMAS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "config": config,
    "manifest": manifest,
    "result": result,
}


def _property(field: "Field[Any]") -> dict[str, Any]:
    meta = field.metadata
    about = {"description": meta["help"] or "set by a finished run, in its config.yaml"}
    if meta["flag"]:
        return {"type": "boolean", **about}
    one = _value(field)
    return {**({"anyOf": [one, {"type": "array", "items": one}]} if meta["many"] else one), **about}


def _value(field: "Field[Any]") -> dict[str, Any]:
    """Returns the schema for one value.

    A number may be written as a string with separators (20,000), and a string may look like a number.
    """
    key, choices = option_key(field), field.metadata["choices"]
    if choices:
        return {"enum": [*choices]}
    if key in _REGISTERED:
        names = [name for name, _ in registry.rows(key)]
        return {"anyOf": [{"enum": names}, {"type": "string"}]}
    kinds = {field.type, *get_args(field.type)}
    if field.name.endswith("_ns"):
        return {"type": "string", "pattern": r"^[0-9]+([.][0-9]+)?(ns|us|ms|s|min|h)$"}
    if kinds & {int, float}:
        return {"type": ["integer" if int in kinds else "number", "string"]}
    return {"type": ["string", "number"]}
