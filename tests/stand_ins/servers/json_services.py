"""Stand-ins for JSON services on 127.0.0.1: TensorFlow Serving's REST API, MLflow's scoring server, and services in any
other format.

Sources: tensorflow.org/tfx/serving/api_rest, and the replies of MLflow 3.17's scoring server.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import Any, NamedTuple

import numpy as np

from tests.stand_ins.servers.quiet import QuietHandler, in_thread

Network = Callable[[Any], Any]
"""Maps (n, 1, 8, 8) float32 to (n, 10)."""


class Asked(NamedTuple):
    """One received request."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def content(self) -> Any:
        return json.loads(self.body)


Service = Callable[[Asked], tuple[int, Any]]
"""Maps a request to (status, content); the content is sent as JSON, or unchanged if it is bytes."""


@contextmanager
def serving_json(service: Service, port: int = 0) -> Iterator[str]:
    """Serves until the block ends; yields the address. port: 0 selects a free port."""

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _answer(self) -> None:
            size = int(self.headers.get("Content-Length", 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(self.command, self.path, headers, self.rfile.read(size))
            try:
                status, content = service(asked)
            except json.JSONDecodeError as e:  # a GET of a metrics page has no JSON
                status, content = 400, {"error": str(e)}
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.reply(body, status, "application/json")

        do_GET = do_POST = do_PUT = _answer

    with in_thread(ThreadingHTTPServer(("127.0.0.1", port), Handler)) as address:
        yield address


def tf_serving(network: Network) -> Service:
    """Serves the model `digits` with the input `image`, in both forms of the protocol: by rows and by columns."""

    def dims(*sizes: int) -> dict[str, Any]:
        return {"dim": [{"size": str(size), "name": ""} for size in sizes], "unknown_rank": False}

    signature = {
        "inputs": {
            "image": {"dtype": "DT_FLOAT", "tensor_shape": dims(-1, 1, 8, 8), "name": "x:0"}
        },
        "outputs": {"logits": {"dtype": "DT_FLOAT", "tensor_shape": dims(-1, 10), "name": "y:0"}},
        "method_name": "tensorflow/serving/predict",
    }
    metadata = {
        "model_spec": {"name": "digits", "signature_name": "", "version": "1"},
        "metadata": {"signature_def": {"signature_def": {"serving_default": signature}}},
    }

    def answer(asked: Asked) -> tuple[int, Any]:
        if asked.path == "/v1/models/digits/metadata":
            return 200, metadata
        if asked.path != "/v1/models/digits:predict":
            return 404, {"error": f"Malformed request: {asked.method} {asked.path}"}
        content = asked.content
        is_rows = "instances" in content
        samples = content["instances"] if is_rows else content["inputs"]
        if isinstance(samples, dict):
            samples = samples["image"]
        if is_rows and isinstance(samples[0], dict):
            samples = [sample["image"] for sample in samples]
        if np.shape(samples)[1:] != (1, 8, 8):
            text = f"Tensor of shape {list(np.shape(samples))} is not [?,1,8,8]"
            return 400, {"error": text}
        found = network(np.array(samples, np.float32)).tolist()
        return 200, {"predictions": found} if is_rows else {"outputs": found}

    return answer


def mlflow(network: Network) -> Service:
    """Stands in for MLflow's scoring server with a tensor model."""

    def answer(asked: Asked) -> tuple[int, Any]:
        if asked.path in ("/ping", "/health"):
            return 200, b"\n"
        if asked.path == "/version":
            return 200, b"3.17.2"
        if asked.path != "/invocations":
            return 404, {"detail": "Not Found"}
        if asked.method != "POST":
            return 405, {"detail": "Method Not Allowed"}
        content = asked.content
        samples = content.get("inputs", content.get("instances"))
        if samples is None and "dataframe_split" in content:
            samples = np.reshape(content["dataframe_split"]["data"], (-1, 1, 8, 8))
        if samples is None:
            text = "The input must be a JSON dictionary with exactly one of the input fields"
            return 400, {"error_code": "BAD_REQUEST", "message": text}
        return 200, {"predictions": network(np.array(samples, np.float32)).tolist()}

    return answer
