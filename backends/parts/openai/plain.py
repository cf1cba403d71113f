"""Sends requests to one OpenAI endpoint other than the completions endpoints."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from harness.backends.parts.openai.bodies import added_fields
from harness.backends.parts.openai.models import served
from harness.backends.parts.refusals import refused
from harness.backends.parts.remote_options import setup_problems
from harness.core.formats.prompt_fields import split
from harness.errors import ConfigError, one_line, refuse
from harness.remote import BadAnswer, Exchange, Headers, Refused, Reply, Request
from harness.types import BackendSetup, Batch, Outputs

_OK = 200
_QUOTED = 200

JSON_BODY: Headers = (("Content-Type", "application/json"),)


class Plain:
    """One model behind one endpoint. `body` contains fields of every request."""

    endpoint: ClassVar[str]
    """Value of --backend-option endpoint."""
    path: ClassVar[str]
    options: ClassVar[Mapping[str, str]] = {}
    """Maps each option, except endpoint, served and body, to a description of its values for messages."""
    several: ClassVar[bool] = False
    """True if a request may contain several samples."""

    def __init__(self, setup: BackendSetup) -> None:
        known = {
            "endpoint": self.endpoint,
            "served": "NAME",
            "body": "FIELDS|@FILE",
            **self.options,
        }
        refuse(setup_problems("openai", setup, known))
        if setup.max_batch > 1 and not self.several:
            raise ConfigError(
                f"endpoint={self.endpoint} sends one sample per request: set --max-batch 1"
            )
        self._setup = setup
        self.fields: Mapping[str, Any] = (
            added_fields(setup.options["body"]) if "body" in setup.options else {}
        )

    def open(self, exchange: Exchange) -> None:
        self.model, self._server = served(exchange, self._setup)
        if (request := self.test()) is None:
            return
        try:
            self.answer(exchange(request), 1)
        except (Refused, BadAnswer) as e:
            raise ConfigError(
                f"model {self.model!r} did not answer at {self.path}: {one_line(e)}"
            ) from e

    def test(self) -> Request | None:
        """Returns a small request that the server must answer before a run; None if no request is needed."""
        return None

    def request(self, batch: Batch) -> Request:
        raise NotImplementedError

    def answer(self, reply: Reply, samples: int) -> Outputs:
        raise NotImplementedError

    def json_request(self, fields: Mapping[str, Any]) -> Request:
        """Returns a request with a JSON body. fields: the samples' fields, which override the fields of every request."""
        content = {"model": self.model, **self.fields, **fields}
        body = json.dumps(
            {name: value for name, value in content.items() if value is not None},
            ensure_ascii=False,
            separators=(",", ":"),
        )
        return Request(self.path, JSON_BODY, (body.encode(),))

    def describe(self) -> Mapping[str, object]:
        return {
            "framework": self._server,
            "protocol": f"OpenAI over HTTP, {self.path}",
            "device": "remote",
            "precision": "unknown",
            "model": self.model,
            "body": dict(self.fields),
            "endpoints": {self.path: {}},
        }


def prompts_of(batch: Batch, endpoint: str) -> list[dict[str, Any]]:
    """Returns the fields of each prompt in a batch that comes from a prompt dataset."""
    (rows,) = batch.inputs.values()
    samples = rows.reshape(-1).tolist()
    if not all(isinstance(sample, bytes) and sample[:2] == b'{"' for sample in samples):
        raise ValueError(f"endpoint={endpoint} takes prompts: use --dataset prompts")
    return [json.loads(b"{" + split(sample)[1]) for sample in samples]


def text_of(fields: dict[str, Any], endpoint: str) -> str:
    """Removes the prompt from a sample's fields, and returns the prompt. Raises a ValueError if the prompt is not a
    string.
    """
    fields.pop("max_tokens", None)
    prompt = fields.pop("prompt", None)
    if not isinstance(prompt, str):
        raise ValueError(f"endpoint={endpoint} takes text: use prompts with the key `prompt`")
    return prompt


def json_of(reply: Reply) -> dict[str, Any]:
    """Returns the JSON object of a reply. Raises Refused if the server reports an error, and BadAnswer if the reply is
    invalid.
    """
    if reply.status != _OK:
        raise refused(reply)
    try:
        content = json.loads(bytes(reply.body))
    except (ValueError, RecursionError) as e:
        raise BadAnswer(f"the reply is not valid JSON: {bytes(reply.body[:_QUOTED])!r}") from e
    if not isinstance(content, dict):
        raise BadAnswer(f"the reply is not a JSON object: {content!r:.{_QUOTED}}")
    if content.get("error"):
        raise Refused(_OK, one_line(str(content["error"])))
    return content
