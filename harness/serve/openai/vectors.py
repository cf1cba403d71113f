"""Handles requests for text vectors: embeddings in the form of OpenAI's API, and pooling and reranking in the form of
vLLM's API.

The vector of a text is the model's logits after the last token, scaled to length 1. The model offers no better vector,
because it does not include an embedding head. A document's score is the cosine of the angle between the document's
vector and the query's vector.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from harness.models.generation.engine import Generator
from harness.serve.answers import Refusal
from harness.serve.openai.fields import BAD_REQUEST, MOST_CHOICES, refuse
from harness.serve.served import ServedGeneration
from harness.types import Array

PATHS = ("/v1/embeddings", "/pooling", "/v1/rerank", "/rerank")

_NOT_IMPLEMENTED = 501
_KNOWN = ("model", "input", "encoding_format", "user", "query", "documents", "top_n", "dimensions")
_FORMATS = ("float", "base64")


def answer(path: str, body: bytes, served: ServedGeneration) -> Mapping[str, Any]:
    """Returns the JSON of the reply. Raises Refusal with the name of the field that is wrong."""
    try:
        request = json.loads(body)
    except (ValueError, RecursionError) as e:
        raise Refusal(BAD_REQUEST, f"the request is not valid JSON: {e}") from None
    if not isinstance(request, dict):
        raise Refusal(BAD_REQUEST, "the request is not a JSON object")
    for name, value in request.items():
        if value is not None and name not in _KNOWN:
            refuse(name, f"this server does not support the field {name!r:.40}: leave it out")
    model = served.known(request.get("model"))
    if path.endswith("rerank"):
        return {"model": model, **_reranked(request, served)}
    texts = _texts(request.get("input"), "input")
    vectors, tokens = _vectors(texts, "input", served)
    return {"model": model, "object": "list", **_listed(path, request, vectors), **_usage(tokens)}


def _texts(value: object, name: str) -> list[Any]:
    """Returns the texts or lists of token IDs in a field. name: the field's name."""
    is_one = isinstance(value, str) or (
        isinstance(value, list) and all(type(token) is int for token in value)
    )
    texts: Any = [value] if is_one else value
    if not isinstance(texts, list) or not texts or [] in texts:
        refuse(
            name, f"{name} is {value!r:.40}, but must be a string, token ids, or a list of either"
        )
    if len(texts) > MOST_CHOICES:
        refuse(name, f"{name} has {len(texts):,} strings, but at most {MOST_CHOICES:,} are allowed")
    return texts


def _vectors(texts: Sequence[Any], name: str, served: ServedGeneration) -> tuple[Array, int]:
    """Returns the vectors of the texts, and the total number of tokens in the texts."""
    generator = served.generator
    if not isinstance(generator, Generator):
        raise Refusal(_NOT_IMPLEMENTED, "the engine of this model returns no vectors")
    try:
        prompts = [served.prompts.tokens({"prompt": text}) for text in texts]
        return generator.embed(prompts), sum(map(len, prompts))
    except ValueError as e:
        refuse(name, str(e))


def _listed(path: str, request: Mapping[str, Any], vectors: Array) -> Mapping[str, Any]:
    format_ = request.get("encoding_format") or "float"
    if format_ not in _FORMATS:
        refuse(
            "encoding_format", f"encoding_format is {format_!r:.40}, but must be float or base64"
        )
    if request.get("dimensions") not in (None, vectors.shape[1]):
        refuse("dimensions", f"the model's vectors have {vectors.shape[1]} dimensions")
    key, kind = ("data", "pooling") if path == "/pooling" else ("embedding", "embedding")
    rows = [
        row.tolist()
        if format_ == "float"
        else base64.b64encode(row.astype("<f4").tobytes()).decode()
        for row in vectors
    ]
    return {"data": [{"object": kind, "index": i, key: row} for i, row in enumerate(rows)]}


def _reranked(request: Mapping[str, Any], served: ServedGeneration) -> Mapping[str, Any]:
    query, documents = request.get("query"), request.get("documents")
    if not isinstance(query, str) or not query:
        refuse("query", f"query is {query!r:.40}, but must be a string")
    if not isinstance(documents, list) or not all(isinstance(text, str) for text in documents):
        refuse("documents", f"documents is {documents!r:.40}, but must be a list of strings")
    texts = _texts(documents, "documents")
    vectors, tokens = _vectors([query, *texts], "documents", served)
    scores = vectors[1:] @ vectors[0]
    best = np.argsort(-scores, kind="stable")[: request.get("top_n") or len(texts)]
    results = [
        {
            "index": int(i),
            "document": {"text": texts[i]},
            "relevance_score": float(scores[i]),
        }
        for i in best
    ]
    return {"results": results, **_usage(tokens)}


def _usage(tokens: int) -> Mapping[str, Any]:
    return {"usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
