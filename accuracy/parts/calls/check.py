"""Compares function calls with the correct calls, according to the Berkeley Function Calling Leaderboard (BFCL).

The correct answer lists all values that are correct for each argument. If "" is among these values, the call may omit
the argument.
Source: bfcl-eval 2026.3.23, eval_checker/ast_eval.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from harness.accuracy.parts.calls.calls_in import Call
from harness.accuracy.parts.calls.literals import JAVA_TYPES, JAVASCRIPT_TYPES, java, javascript

Function = Mapping[str, Any]
"""Name of a function, and its parameters as a JSON Schema with BFCL's types."""

Right = Mapping[str, Mapping[str, Sequence[Any]]]
"""Name of a function, and the correct values for each argument."""

_PYTHON_TYPES: Mapping[str, type] = {
    "string": str,
    "integer": int,
    "float": float,
    "boolean": bool,
    "array": list,
    "tuple": list,
    "dict": dict,
    "any": str,
}
_OMITTED = ""
_IGNORED = re.compile(r"[ \,\.\/\-\_\*\^]")
"""Matches the characters that are ignored when strings are compared."""


class _Language(NamedTuple):
    types: Mapping[str, type]
    lists: tuple[str, ...]
    """Names of the list types, for which the items' type is also declared."""
    read: Callable[[str, str, str | None], Any] | None
    """Converts a value's source text to the value; None if values are JSON."""


_PYTHON = _Language(_PYTHON_TYPES, ("array", "tuple"), None)
_LANGUAGES: Mapping[str, _Language] = {
    "simple_java": _Language(JAVA_TYPES, ("Array", "ArrayList", "array"), java),
    "simple_javascript": _Language(JAVASCRIPT_TYPES, ("Array", "ArrayList", "array"), javascript),
}


def are_right(
    functions: Sequence[Function], calls: Sequence[Call], right: Sequence[Right], subset: str
) -> bool:
    """Returns whether the calls are correct. If the rules do not cover a value, the call that contains the value counts
    as wrong.

    functions: the functions that were offered to the model. subset: BFCL's name for this type of sample, such as
    `parallel_multiple`.
    """
    language = _LANGUAGES.get(subset, _PYTHON)
    try:
        if "parallel" in subset:
            return _all_found(functions, calls, right, language)
        if "multiple" in subset:
            function = _named(functions, next(iter(right[0])))
            return len(calls) == len(right) and _is_right(function, calls[0], right[0], language)
        return len(calls) == 1 and _is_right(functions[0], calls[0], right[0], language)
    except (TypeError, ValueError, LookupError, AttributeError, NotImplementedError):
        return False


def _named(functions: Sequence[Function], name: str) -> Function:
    return next(function for function in functions if function["name"] == name)


def _all_found(
    functions: Sequence[Function],
    calls: Sequence[Call],
    right: Sequence[Right],
    language: _Language,
) -> bool:
    """Returns whether each correct call matches a different call, in any order."""
    left = list(calls)
    for one in right:
        function = _named(functions, next(iter(one)))
        found = next((at for at, c in enumerate(left) if _is_right(function, c, one, language)), -1)
        if found < 0:
            return False
        del left[found]
    return not left


def _is_right(function: Function, call: Call, right: Right, language: _Language) -> bool:
    parameters = function["parameters"]
    kinds, wanted = parameters["properties"], next(iter(right.values()))
    if call.name != function["name"].replace(".", "_"):
        return False
    given = call.arguments
    if any(name not in given for name in parameters["required"]):
        return False
    for name, value in given.items():
        if name not in kinds or name not in wanted:
            return False
        if not _is_value(value, kinds[name], wanted[name], language):
            return False
    return all(name in given or _OMITTED in values for name, values in wanted.items())


def _is_value(
    value: Any, parameter: Mapping[str, Any], right: Sequence[Any], language: _Language
) -> bool:
    kind = parameter["type"]
    inner = parameter["items"]["type"] if kind in language.lists else None
    expected = language.types[kind]
    of_items = language.types[inner] if inner is not None else None
    if language.read is not None:
        if not isinstance(value, str):
            return False
        value = language.read(value, kind, inner)
    elif kind == "float" and type(value) is int:
        value = float(value)
    is_variable = _is_variable(value, right, expected, of_items)
    if is_variable is None:
        return False
    check = (
        None if is_variable else _CHECKS.get((expected, of_items), _CHECKS.get((expected, None)))
    )
    return check(value, right) if check else value in right


def _is_variable(
    value: Any, right: Sequence[Any], expected: type, of_items: type | None
) -> bool | None:
    """Returns whether the correct answer is a variable's name instead of a value. Returns None if the type is wrong."""
    first = next((type(one) for one in right if one != _OMITTED), None)
    kind: type = type(value)
    if kind is not expected:
        return True if first is not None and kind is first else None
    if of_items is not None and not any(_has_items(value, one, of_items) for one in right):
        return None
    return first is not None and first is not expected


def _has_items(value: Sequence[Any], right: Any, of_items: type) -> bool:
    """Returns whether each item has a correct type. If the correct answer is not a list, any type is correct."""
    return type(right) is not list or all(
        _is_variable(item, right, of_items, None) is not None for item in value
    )


def _plain(value: Any) -> Any:
    """Returns a text in lower case without the ignored characters. Returns any other value unchanged."""
    return _IGNORED.sub("", value).lower().replace("'", '"') if type(value) is str else value


def _is_text(value: str, right: Sequence[Any]) -> bool:
    return _plain(value) in [_plain(one) for one in right if type(one) is str]


def _is_list(value: Sequence[Any], right: Sequence[Any]) -> bool:
    plain = [_plain(item) for item in value]
    return any(plain == [_plain(one[at]) for at in range(len(one))] for one in right)


def _is_dict(value: Mapping[str, Any], right: Sequence[Any]) -> bool:
    return any(one != _OMITTED and _has_members(value, one) for one in right)


def _has_members(value: Mapping[str, Any], right: Mapping[str, Sequence[Any]]) -> bool:
    given = all(
        key in right and _plain(member) in [_plain(one) for one in right[key]]
        for key, member in value.items()
    )
    return given and all(key in value or _OMITTED in values for key, values in right.items())


def _is_list_of_dicts(value: Sequence[Any], right: Sequence[Any]) -> bool:
    return any(
        len(value) == len(one)
        and all(_is_dict(item, [wanted]) for item, wanted in zip(value, one, strict=True))
        for one in right
    )


_CHECKS: Mapping[tuple[type, type | None], Callable[[Any, Sequence[Any]], bool]] = {
    (dict, None): _is_dict,
    (list, dict): _is_list_of_dicts,
    (str, None): _is_text,
    (list, None): _is_list,
}
