"""Recognises two kinds of servers without an OpenAPI page: TensorFlow Serving's REST API and MLflow's scoring server."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from harness.errors import one_line
from harness.remote import Exchange, Reply, Request
from harness.serve.services.described import Service, service
from harness.serve.services.schemas import Answer, Body, Values

TF_SERVING = "TensorFlow Serving's REST API"
MLFLOW = "MLflow's scoring server"

_OK = 200
_DTYPES = {
    "DT_HALF": "float16",
    "DT_FLOAT": "float32",
    "DT_DOUBLE": "float64",
    "DT_BOOL": "bool",
    "DT_STRING": "string",
    **{
        f"DT_{sign}INT{bits}": f"{sign.lower()}int{bits}"
        for sign in ("", "U")
        for bits in (8, 16, 32, 64)
    },
}
_IMAGE = Values("uint8", (None, None, 3), "png")
"""The values of an input whose name ends in `_bytes`: encoded bytes, usually an image.
"""

_MALFORMED = "Malformed request: GET /v1/models"
"""TensorFlow Serving's reply to a request for a list of models, because TensorFlow Serving does not provide such a
list.
"""


def json_of(reply: Reply) -> Any:
    """Returns the JSON content of a reply, or None if the content is not JSON or the status is not OK."""
    try:
        return json.loads(bytes(reply.body)) if reply.status == _OK else None
    except (ValueError, RecursionError):
        return None


def is_tf_serving(models: Reply) -> bool:
    """Returns whether the server is TensorFlow Serving. models: the reply to GET /v1/models."""
    return _MALFORMED.encode() in bytes(models.body)


def tf_serving(exchange: Exchange, model: str) -> Service | None:
    """Returns the service for a model, or None if the server provides no metadata about the model."""
    path = f"/v1/models/{quote(model, safe='')}"
    content = json_of(exchange(Request(f"{path}/metadata", method="GET")))
    try:
        signatures = content["metadata"]["signature_def"]["signature_def"]
        chosen = signatures.get("serving_default") or next(iter(signatures.values()))
        inputs = {name: _values(name, about) for name, about in sorted(chosen["inputs"].items())}
        outputs = {name: _values("", about) for name, about in sorted(chosen["outputs"].items())}
        (first, values), *others = outputs.items()
    except (KeyError, TypeError, AttributeError, ValueError, StopIteration):
        return None
    answer = Answer("/predictions", f"/{first}" if others else "", values)
    return service(
        f"{path}:predict", Body({"instances": "{{samples}}"}, _sample(inputs), inputs), answer
    )


def _values(name: str, about: Mapping[str, Any]) -> Values:
    """Returns the type and shape of one sample. Raises KeyError, TypeError or ValueError if `about` lacks the type or
    the shape.
    """
    if about["dtype"] == "DT_STRING" and name.endswith("_bytes"):
        return _IMAGE
    dims = about["tensor_shape"].get("dim") or []
    sizes = [int(dim["size"]) for dim in dims]
    return Values(_DTYPES[about["dtype"]], tuple(size if size > 0 else None for size in sizes[1:]))


def _sample(inputs: Mapping[str, Values]) -> Any:
    """Returns the template for one sample, or None if the default template fits."""
    if all(not values.form for values in inputs.values()):
        return None
    sample = {
        name: {"b64": f"{{{{{name}|{values.form}}}}}"} if values.form else f"{{{{{name}}}}}"
        for name, values in inputs.items()
    }
    return next(iter(sample.values())) if len(sample) == 1 else sample


def mlflow(exchange: Exchange) -> tuple[str, Service] | None:
    """Returns the server's version and its service, or None if the server is not MLflow."""
    version, ping = (exchange(Request(path, method="GET")) for path in ("/version", "/ping"))
    text = one_line(bytes(version.body[:40]).decode("utf-8", "replace")).strip('"')
    if version.status != _OK or ping.status != _OK or not text[:1].isdigit():
        return None
    if exchange(Request("/invocations", method="GET")).status != 405:  # MLflow allows only POST
        return None
    inputs = {"inputs": Values("float32", (None,))}
    found = service(
        "/invocations",
        Body({"inputs": "{{samples}}"}, None, inputs),
        Answer("/predictions", "", Values("float32", ())),
    )
    note = "the server does not describe its model: set the shapes of the input and of the answer"
    return text, found._replace(note=note)
