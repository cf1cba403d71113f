"""Finds the function calls in an answer, which may be a list of tool calls, a list of names and arguments, or a text."""

import ast
import json
import re
from typing import Any, NamedTuple

_CALL = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
_NAME = re.compile(r"[A-Za-z_]\w*(?:\s*:\s*\w+)?")
_NOT_CALLED = frozenset(
    [
        "print",
        "return",
        "if",
        "for",
        "while",
        "def",
        "class",
        "import",
        "from",
        "with",
        "assert",
        "raise",
        "try",
        "except",
        "len",
        "str",
        "int",
        "float",
        "list",
        "dict",
        "set",
        "tuple",
        "type",
        "isinstance",
        "range",
        "enumerate",
        "zip",
        "map",
        "filter",
        "Note",
        "Example",
        "Here",
        "This",
        "The",
        "For",
    ]
)
"""Words before a bracket, in prose or code, that do not count as a called function."""


class Call(NamedTuple):
    name: Any
    arguments: Any


def tool_calls(answer: str) -> list[Call]:
    """Returns the calls in an answer that is a list of OpenAI's tool calls; otherwise an empty list."""
    calls = []
    for item in _items(answer):
        function = item.get("function") if isinstance(item, dict) else None
        if not isinstance(function, dict):
            return []
        arguments = function.get("arguments", "{}")
        if isinstance(arguments, str):
            arguments = json_of(arguments, arguments)
        calls.append(Call(function.get("name", ""), arguments))
    return calls


def calls_in(answer: str) -> list[Call]:
    """Returns the calls in an answer that has any of the three forms.

    Source: mlcommons/endpoints, evaluation/extractor.py, FunctionCallExtractor.
    """
    answer = answer.strip()
    return tool_calls(answer) or _named(answer) or _written(answer)


def _items(answer: str) -> list[Any]:
    content = json_of(answer, None)
    return content if isinstance(content, list) else []


def json_of(text: str, default: Any) -> Any:
    """Returns the content of a JSON text, or the default if the text is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return default


def _named(answer: str) -> list[Call]:
    """Returns the calls in an answer that is a list of objects with `name` and `arguments`."""
    items = _items(answer)
    if not all(isinstance(item, dict) and "name" in item for item in items):
        return []
    return [Call(item["name"], item.get("arguments", {})) for item in items]


def _written(answer: str) -> list[Call]:
    """Returns the calls that are written as text, such as `weather(city="Rome")`. A call inside another call counts as
    an argument of the outer call.
    """
    calls: list[Call] = []
    end = 0
    for found in _CALL.finditer(answer):
        if found.start() < end or found[1] in _NOT_CALLED:
            continue
        close = _closing(answer, found.end() - 1)
        if close is None:
            continue
        end = close + 1
        inside = answer[found.end() : close].strip()
        if not inside or not _is_signature(inside):
            calls.append(Call(found[1], _arguments(inside)))
    # The conversion to JSON and back turns tuples into lists and keys into strings. If JSON cannot express a value, the
    # answer counts as unreadable.
    return [Call(*call) for call in json.loads(json.dumps(calls))]


def _closing(text: str, opening: int) -> int | None:
    """Returns the position of the bracket that matches the opening bracket at `opening`. Ignores brackets inside
    quotes.
    """
    depth, quote, at = 0, "", opening
    while at < len(text):
        character = text[at]
        if quote:
            at += character == "\\"
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "()":
            depth += 1 if character == "(" else -1
            if not depth:
                return at
        at += 1
    return None


def _is_signature(inside: str) -> bool:
    """Returns whether the arguments are only names, as in a function's declaration."""
    parts = [part.strip() for part in inside.split(",")]
    return all(_NAME.fullmatch(part) for part in parts if part)


def _arguments(inside: str) -> dict[str, Any]:
    """Returns a call's keyword arguments. A value that is not a literal is returned as its source text."""
    if not inside:
        return {}
    try:
        tree = ast.parse(f"dict({inside})", mode="eval").body
    except (SyntaxError, ValueError):
        return {"_raw": inside}
    keywords = tree.keywords if isinstance(tree, ast.Call) else []
    return {word.arg: _literal(word.value) for word in keywords if word.arg is not None}


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, SyntaxError):
        return ast.unparse(node)
