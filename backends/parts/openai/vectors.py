"""Reads vectors and scores: embeddings in the form of OpenAI's API, and the results of vLLM's pooling and reranking."""

import base64
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from harness.backends.parts.openai.plain import Plain, json_of, prompts_of, text_of
from harness.errors import ConfigError
from harness.remote import BadAnswer, Reply, Request
from harness.types import Array, BackendSetup, Batch

_QUOTED = 60


class Embeddings(Plain):
    """Vectors of texts or token ids, float32. A request may contain up to --max-batch samples.

    encoding: with base64, the server sends the vectors in binary form, which saves time in the server and in the
    client.
    """

    endpoint = "embeddings"
    path = "/v1/embeddings"
    options: ClassVar = {"encoding": "float|base64"}
    several = True
    key = "embedding"
    """Key of a vector in the reply."""

    def __init__(self, setup: BackendSetup) -> None:
        super().__init__(setup)
        self._encoding = setup.options.get("encoding", "float")
        if self._encoding not in ("float", "base64"):
            raise ConfigError(
                f"--backend-option encoding: {self._encoding!r} is not one of float, base64"
            )

    def test(self) -> Request:
        return self._asking(["Hello"], {})

    def _asking(self, prompts: Sequence[Any], more: dict[str, Any]) -> Request:
        return self.json_request({"input": prompts, "encoding_format": self._encoding, **more})

    def request(self, batch: Batch) -> Request:
        samples = prompts_of(batch, self.endpoint)
        prompts = []
        for fields in samples:
            fields.pop("max_tokens", None)
            if "prompt" not in fields:
                raise ValueError(f"endpoint={self.endpoint} takes text and token ids, not messages")
            prompts.append(fields.pop("prompt"))
        first, *others = samples
        if any(other != first for other in others):
            raise ValueError(
                "the prompts of a request differ in their other fields: set --max-batch 1 to send them one by one"
            )
        return self._asking(prompts, first)

    def answer(self, reply: Reply, samples: int) -> Array:
        """Returns (samples, size) vectors in the order of the batch."""
        data = json_of(reply).get("data")
        if not isinstance(data, list) or len(data) != samples:
            raise BadAnswer(
                f"the reply's `data` does not have {samples} vectors: {data!r:.{_QUOTED}}"
            )
        rows: list[Array | None] = [None] * samples
        for place, entry in enumerate(data):
            index = entry.get("index", place) if isinstance(entry, dict) else -1
            if type(index) is not int or not 0 <= index < samples or rows[index] is not None:
                raise BadAnswer(f"a vector in the reply has the wrong index {index!r:.20}")
            rows[index] = _vector(entry.get(self.key))
        if len({row.shape for row in rows if row is not None}) > 1:
            raise BadAnswer("the vectors in the reply have different lengths")
        return np.stack([row for row in rows if row is not None])


class Pooling(Embeddings):
    """Results of vLLM's /pooling: a vector or a matrix per text, float32."""

    endpoint = "pooling"
    path = "/pooling"
    key = "data"


class Rerank(Plain):
    """Scores of documents for a query, float32, in the order of the documents.

    A sample is a prompt that contains the query; its `body` contains the field `documents`.
    """

    endpoint = "rerank"
    path = "/v1/rerank"

    def test(self) -> Request:
        return self.json_request({"query": "Hello", "documents": ["Hello"]})

    def request(self, batch: Batch) -> Request:
        (fields,) = prompts_of(batch, self.endpoint)
        query = text_of(fields, self.endpoint)
        if not isinstance(fields.get("documents"), list) or not fields["documents"]:
            raise ValueError('endpoint=rerank needs documents: "body": {"documents": ["…", "…"]}')
        return self.json_request({"query": query, **fields})

    def answer(self, reply: Reply, _samples: int) -> list[Array]:
        results = json_of(reply).get("results")
        if not isinstance(results, list) or not results:
            raise BadAnswer(f"the reply's `results` has no scores: {results!r:.{_QUOTED}}")
        scores: dict[int, float] = {}
        for entry in results:
            index = entry.get("index") if isinstance(entry, dict) else None
            score = entry.get("relevance_score") if isinstance(entry, dict) else None
            if type(index) is not int or type(score) not in (int, float) or index in scores:
                raise BadAnswer(f"a result in the reply is not valid: {entry!r:.{_QUOTED}}")
            assert score is not None
            scores[index] = float(score)
        if sorted(scores) != [*range(len(scores))]:
            raise BadAnswer(
                f"the reply has scores only for the documents {sorted(scores)!r:.{_QUOTED}}"
            )
        return [np.array([scores[index] for index in range(len(scores))], np.float32)]


def _vector(value: object) -> Array:
    """Returns a vector from a list of numbers, or from float32 values in base64; raises a BadAnswer for any other
    value.
    """
    try:
        if isinstance(value, str):
            found = np.frombuffer(base64.b64decode(value, validate=True), "<f4")
        else:
            found = np.array(value, np.float32)
    except (ValueError, TypeError) as e:
        raise BadAnswer(f"a vector in the reply is not valid: {value!r:.{_QUOTED}}") from e
    if not found.size or found.ndim not in (1, 2):
        raise BadAnswer(f"a vector in the reply is not valid: {value!r:.{_QUOTED}}")
    return found
