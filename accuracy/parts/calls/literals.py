"""Converts values that a model wrote as Java or JavaScript source text. Text that is not a literal stays a string."""

import re
from collections.abc import Callable, Mapping
from typing import Any

Value = Any
Reader = Callable[[str], Value]

JAVA_TYPES: Mapping[str, type] = {
    **dict.fromkeys(("byte", "short", "integer", "long"), int),
    **dict.fromkeys(("float", "double"), float),
    **dict.fromkeys(("char", "String", "any"), str),
    **dict.fromkeys(("Array", "ArrayList", "Queue", "Stack"), list),
    **dict.fromkeys(("HashMap", "Hashtable"), dict),
    "Set": set,
    "boolean": bool,
}
JAVASCRIPT_TYPES: Mapping[str, type] = {
    "String": str,
    "any": str,
    "integer": int,
    "Bigint": int,
    "float": float,
    "Boolean": bool,
    "dict": dict,
    "array": list,
}
"""Maps BFCL's type names to the Python types of the values."""

_EXPONENT = r"([eE][+-]?\d+)?"


def _number(pattern: str, convert: Callable[[str], Value], suffix: int = 0) -> Reader:
    """Returns a reader for numbers. suffix: number of characters after the digits, such as 1 for the L in a Java long."""
    form = re.compile(pattern)

    def read(text: str) -> Value:
        return convert(text[: len(text) - suffix]) if form.match(text) else text

    return read


def _truth(text: str) -> Value:
    return text == "true" if text in ("true", "false") else text


_WHOLE = _number(r"-?\d+$", int)
_JAVA: Mapping[str, Reader] = {
    **dict.fromkeys(("byte", "short", "integer"), _WHOLE),
    "long": _number(r"-?\d+[lL]$", int, suffix=1),
    "float": _number(rf"-?\d+(\.\d+)?{_EXPONENT}[fF]$", float, suffix=1),
    "double": _number(rf"-?\d+(\.\d+)?{_EXPONENT}$", float),
    "boolean": _truth,
    **dict.fromkeys(("char", "String", "any"), str),
}
_JAVASCRIPT: Mapping[str, Reader] = {
    "integer": _WHOLE,
    "float": _number(r"-?\d+(\.\d+)?$", float),
    "Bigint": _number(r"-?\d+n$", int, suffix=1),
    "Boolean": _truth,
    "any": str,
}


def java(text: str, kind: str, inner: str | None = None) -> Value:
    """Returns the value of a Java literal. kind: the literal's type. inner: type of the items if the literal is a list.

    Raises a NotImplementedError for types that BFCL's checker cannot read, either.
    """
    if kind == "Array":
        return _java_array(text, inner)
    if kind == "ArrayList":
        return _java_list(text, inner)
    if kind == "HashMap":
        return _java_map(text)
    if kind not in _JAVA:
        raise NotImplementedError(f"a literal of {kind} cannot be read")
    return _JAVA[kind](text)


def _java_item(text: str, inner: str | None) -> Value:
    return java(text, inner) if inner else _java_any(text)


def _java_array(text: str, inner: str | None) -> Value:
    found = re.search(r"new\s+\w+\[\]\s*\{(.*?)\}", text)
    if not found:
        return text
    return [_java_item(item.strip(), inner) for item in found[1].split(",") if item.strip()]


def _java_list(text: str, inner: str | None) -> Value:
    """Reads `new ArrayList<>(Arrays.asList(…))`, `new ArrayList<>() {{ add(…); }}`, or an empty list."""
    if found := re.search(r"new\s+ArrayList<\w*>\(Arrays\.asList\((.+?)\)\)", text):
        items = found[1].split(",")
    elif found := re.search(r"new\s+ArrayList<\w*>\(\)\s*\{\{\s*(.+?)\s*\}\}", text, re.DOTALL):
        items = re.findall(r"add\((.+?)\)", found[1])
    else:
        return [] if re.search(r"new\s+ArrayList<\w*>\(\)", text) else text
    quoted = inner in ("char", "String")
    return [item.strip()[1:-1] if quoted else _java_item(item.strip(), inner) for item in items]


def _java_map(text: str) -> Value:
    body = r"new\s+HashMap<.*?>\s*\(\)\s*\{\s*\{?\s*(.*?)\s*\}?\s*\}"
    if found := re.search(body, text, re.DOTALL):
        pairs = re.findall(r"put\(\"(.*?)\",\s*(.*?)\)", found[1]) if found[1].strip() else []
        return {key: _java_any(value.strip()) for key, value in pairs}
    return {} if re.search(r"new\s+HashMap<.*?>\s*\(\)", text) else text


def _java_any(text: str) -> Value:
    """Reads a Java literal of unknown type."""
    if text in ("true", "false"):
        return text == "true"
    if text.startswith('"') and text.endswith('"'):
        return text[1:-1]
    for kind in ("long", "float"):
        value = _JAVA[kind](text)
        if not isinstance(value, str):
            return value
    return _plain_number(text)


def _plain_number(text: str) -> Value:
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


def javascript(text: str, kind: str, inner: str | None = None) -> Value:
    """Returns the value of a JavaScript literal. kind: the literal's type. inner: type of the items if the literal is a
    list.
    """
    if kind == "String":
        return text[1:-1] if _is_quoted(text) else text
    if kind == "array":
        return _javascript_array(text.strip(), inner)
    if kind == "dict":
        return _javascript_object(text.strip())
    return _JAVASCRIPT[kind](text)


def _is_quoted(text: str) -> bool:
    return any(text.startswith(quote) and text.endswith(quote) for quote in "\"'")


def _javascript_array(text: str, inner: str | None) -> Value:
    nested = r"\[\s*\[.*?\]\s*(,\s*\[.*?\]\s*)*\]|\bnew\s+Array\(\s*\[.*?\]\s*(,\s*\[.*?\]\s*)*\)"
    if found := re.match(nested, text):
        return _rows(found[0])
    found = re.match(r"\[(.*?)\]|\bnew\s+Array\((.*?)\)", text)
    if not found:
        return text
    inside = (found[1] if found[1] is not None else found[2]).strip()
    items = [item.strip() for item in inside.split(",")] if inside else []
    if not inner:
        return [_javascript_any(item) for item in items]
    try:
        return [javascript(item, inner) for item in items]
    except (KeyError, TypeError):
        return text


def _rows(text: str) -> list[list[Value]]:
    """Reads an array of arrays."""
    rows = [row.strip() for row in re.findall(r"\[(.*?)\]", text)]
    rows[0] = rows[0].removeprefix("[")
    return [[_javascript_any(item.strip()) for item in row.split(",")] for row in rows]


def _javascript_object(text: str) -> Value:
    if text == "{}":
        return {}
    found = re.match(r"\{(.*?)\}", text)
    if not found:
        return text
    pairs = re.findall(r"([^:]+):\s*(.*?)(?:,\s*(?=[^,]+:)|$)", found[1])
    return {key.strip().strip("'\""): _member(value.strip()) for key, value in pairs}


def _member(text: str) -> Value:
    if text.startswith("[") and text.endswith("]"):
        return _javascript_array(text, None)
    if text.startswith("{") and text.endswith("}"):
        return _javascript_object(text)
    return _javascript_any(text.strip("'\""))


def _javascript_any(text: str) -> Value:
    """Reads a JavaScript literal of unknown type."""
    if text in ("true", "false"):
        return text == "true"
    return text[1:-1] if _is_quoted(text) else _plain_number(text)
