"""Creates a service's manifest, which describes the inputs, the answer, and the form of requests."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from harness.serve.services.schemas import Answer, Body, Values


class Service(NamedTuple):
    """A service at one address of a server."""

    path: str
    manifest: Mapping[str, Any] | None
    """A draft of the manifest, or None if the server does not describe its requests."""
    note: str = ""
    """States what the server does not describe."""

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


def service(path: str, body: Body, answer: Answer | None) -> Service:
    """Returns the service with its manifest. answer: None if the server does not describe its replies."""
    queried: dict[str, Any] = {"path": path, "body": body.body}
    if body.sample is not None:
        queried["sample"] = body.sample
    note = ""
    if answer is None:
        note = "the server does not describe its replies: add answer, dtype and shape to `service`"
        answer = Answer("/predictions" if body.takes_lists else "", "", Values("float32", ()))
    queried |= _of_answer(answer)
    texts = [name for name, values in body.inputs.items() if values.dtype == "string"]
    manifest = {
        "name": _name(path),
        "files": {},
        "inputs": [_input(name, values) for name, values in body.inputs.items()],
        "outputs": [{"name": "answer"}],
        "service": queried,
        "dataset": "prompts" if texts and len(body.inputs) == 1 else "synthetic",
    }
    if manifest["dataset"] == "prompts":
        manifest["service"] = _with_prompts(queried, texts[0])
    return Service(path, manifest, note)


def _of_answer(answer: Answer) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if answer.answers:
        found["answers"] = answer.answers
    if answer.answer:
        found["answer"] = answer.answer
    dtype, shape, _ = answer.values
    found["dtype"] = "text" if dtype == "string" else dtype
    if shape:
        found["shape"] = [*shape]
    return found


def _input(name: str, values: Values) -> dict[str, Any]:
    return {"name": name, "dtype": values.dtype, "shape": ["batch", *values.shape]}


def _with_prompts(tree: Any, name: str) -> Any:
    """Replaces each JSON sample of the dataset `prompts` in the template with the sample's prompt text."""
    if isinstance(tree, dict):
        return {key: _with_prompts(value, name) for key, value in tree.items()}
    return f"{{{{{name}|json/prompt}}}}" if tree == f"{{{{{name}}}}}" else tree


def _name(path: str) -> str:
    """Derives a model name from a path such as /v1/models/flowers:predict."""
    last = path.rstrip("/").rpartition("/")[2].partition(":")[0]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-._") or "service"
