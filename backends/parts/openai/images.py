"""Requests images for texts over OpenAI's API."""

import base64
from typing import ClassVar

import numpy as np

from harness.backends.parts.openai.plain import Plain, json_of, prompts_of, text_of
from harness.remote import BadAnswer, Reply, Request
from harness.types import Array, Batch


class Images(Plain):
    """Returns an image file for each text, as uint8.

    size: width and height, e.g. 512x512.
    """

    endpoint = "images"
    path = "/v1/images/generations"
    options: ClassVar = {"size": "WIDTHxHEIGHT"}

    def request(self, batch: Batch) -> Request:
        (fields,) = prompts_of(batch, self.endpoint)
        prompt = text_of(fields, self.endpoint)
        size = self._setup.options.get("size")
        return self.json_request(
            {"prompt": prompt, "n": 1, "size": size, "response_format": "b64_json", **fields}
        )

    def answer(self, reply: Reply, _samples: int) -> list[Array]:
        data = json_of(reply).get("data")
        entry = data[0] if isinstance(data, list) and len(data) == 1 else None
        text = entry.get("b64_json") if isinstance(entry, dict) else None
        if not isinstance(text, str):
            raise BadAnswer(f"the reply's `data` has no image in b64_json: {data!r:.60}")
        try:
            image = base64.b64decode(text, validate=True)
        except ValueError as e:
            raise BadAnswer(f"the image in the reply is not base64: {text!r:.40}") from e
        if not image:
            raise BadAnswer("the image in the reply is empty")
        return [np.frombuffer(image, np.uint8)]
