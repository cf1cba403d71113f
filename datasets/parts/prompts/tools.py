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
    """Returns a BFCL function as a tool in OpenAI's format. Replaces dots in the function's name, because OpenAI does
    not allow dots.

    Raises a LookupError if a part is missing.
    """
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
    schema = {**about, "type": _TYPES.get(kind, "string") if kind is not None else "string"}
    if kind == "float":
        schema |= {"format": "float", "description": about["description"] + _FLOAT_NOTE}
    if schema["type"] not in ("array", "object"):
        return schema
    if "properties" in schema:
        return {**schema, "properties": _properties(schema["properties"])}
    return {**schema, "items": _items(schema["items"])} if "items" in schema else schema


def _items(about: Mapping[str, Any]) -> dict[str, Any]:
    schema = {**about, "type": _TYPES[about["type"]]}
    if schema["type"] == "array" and "items" in schema:
        inner = schema["items"]
        return {**schema, "items": {**inner, "type": _TYPES[inner["type"]]}}
    if schema["type"] == "object" and "properties" in schema:
        return {**schema, "properties": _properties(schema["properties"])}
    return schema
