"""Reads the tools in a request, and determines the function that the answer must call.

The model was not trained to call functions. If `tool_choice` is `required` or names a function, the server writes the
fixed parts of the call, as vLLM does. The model writes only the value of the function's single parameter, a string.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from harness.serve.openai.fields import refuse


class Call(NamedTuple):
    """A function that an answer calls."""

    name: str
    parameter: str
    is_named: bool
    """Whether `tool_choice` names the function; the finish_reason is then `stop`, as in OpenAI's API.
    """

    @property
    def begin(self) -> str:
        """The JSON of the arguments up to the value of the parameter."""
        return f'{{{json.dumps(self.parameter)}: "'

    @property
    def end(self) -> str:
        return '"}'

    @staticmethod
    def escaped(text: str) -> str:
        """Returns part of the parameter's value, escaped for JSON."""
        return json.dumps(text)[1:-1]


def called(request: Mapping[str, Any], *, is_chat: bool) -> Call | None:
    """Returns the function that the answer must call, or None if the model may generate text. Raises Refusal if the
    tools are not supported.
    """
    tools, choice = request.get("tools") or [], request.get("tool_choice")
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        refuse("tools", "tools must be a list of objects")
    functions = [_function(tool) for tool in tools]
    if tools and not is_chat:
        refuse("tools", "tools belong to chats: use /v1/chat/completions")
    if choice in (None, "none", "auto"):
        return None
    if choice == "required":
        if not functions:
            refuse("tool_choice", "tool_choice is required, but the request has no tools")
        return _call(functions[0], is_named=False)
    wanted = choice.get("function") if isinstance(choice, dict) else None
    name = wanted.get("name") if isinstance(wanted, dict) else None
    found = [function for function in functions if function["name"] == name]
    if not found:
        refuse("tool_choice", f"tool_choice is {choice!r:.60}, but no tool has this name")
    return _call(found[0], is_named=True)


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict):
        refuse("tools", f"a tool is {tool!r:.60}, but must be a function")
    if not isinstance(function.get("name"), str) or not function["name"]:
        refuse("tools", "a function in tools has no name")
    return function


def _call(function: Mapping[str, Any], *, is_named: bool) -> Call:
    parameters = function.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    if not isinstance(properties, dict) or len(properties) != 1:
        refuse("tools", f"the function {function['name']!r:.60} needs exactly one parameter here")
    ((name, about),) = properties.items()
    if not isinstance(about, dict) or about.get("type") != "string":
        refuse("tools", f"the parameter {name!r:.40} must be a string here")
    return Call(function["name"], name, is_named)
