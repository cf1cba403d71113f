"""Writes BFCL's descriptions of functions as OpenAI's tools, with the types of JSON Schema.

Source: bfcl-eval 2026.3.23, model_handler/utils.py, convert_to_tool for OPENAI_COMPLETIONS.
"""

from collections.abc import Mapping
from typing import Any

_TYPES: Mapping[str, str] = {
    **dict.fromkeys(("integer", "byte", "short", "long", "Bigint"), "integer"),
    **dict.fromkeys(("number", "float", "double"), "number"),
    **dict.fromkeys(("string", "any", "char", "Any", "String"), "string"),
    **dict.fromkeys(("boolean", "bool"), "boolean"),
    **dict.fromkeys(("array", "list", "tuple", "ArrayList", "Array", "Queue", "Stack"), "array"),
    **dict.fromkeys(("dict", "object", "HashMap", "Hashtable"), "object"),
}
_FLOAT_NOTE = " This is a float type value."


def tool_of(function: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a function as a tool. OpenAI's names have no dots. Raises a LookupError if a part is missing."""
    parameters = {
        **function["parameters"],
        "type": "object",
        "properties": _properties(function["parameters"]["properties"]),
    }
    name = function["name"].replace(".", "_")
    return {"type": "function", "function": {**function, "name": name, "parameters": parameters}}


def _properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _property(about) for name, about in properties.items()}


def _property(about: Mapping[str, Any]) -> dict[str, Any]:
    kind = about.get("type")
    told = {**about, "type": _TYPES.get(kind, "string") if kind is not None else "string"}
    if kind == "float":
        told |= {"format": "float", "description": about["description"] + _FLOAT_NOTE}
    if told["type"] not in ("array", "object"):
        return told
    if "properties" in told:
        return {**told, "properties": _properties(told["properties"])}
    return {**told, "items": _items(told["items"])} if "items" in told else told


def _items(about: Mapping[str, Any]) -> dict[str, Any]:
    told = {**about, "type": _TYPES[about["type"]]}
    if told["type"] == "array" and "items" in told:
        inner = told["items"]
        return {**told, "items": {**inner, "type": _TYPES[inner["type"]]}}
    if told["type"] == "object" and "properties" in told:
        return {**told, "properties": _properties(told["properties"])}
    return told
