"""Sends requests to `serve digits` with Triton's clients, in an environment that contains these clients. Arguments: the
HTTP port and the gRPC port.
"""

import sys
from collections.abc import Callable

import numpy as np
import tritonclient.grpc  # type: ignore[import-not-found]
import tritonclient.http  # type: ignore[import-not-found]
from tritonclient.utils import InferenceServerException  # type: ignore[import-not-found]

HTTP, GRPC = (f"127.0.0.1:{port}" for port in sys.argv[1:])
ROWS = np.random.default_rng(0).random((4, 1, 8, 8), np.float32)
PACKED = {"request_compression_algorithm": "gzip", "response_compression_algorithm": "deflate"}


def is_refused(call: Callable[..., object], *words: str) -> bool:
    try:
        call(*words)
    except InferenceServerException:
        return True
    return False


answers = []
for module, url, ways in (
    (tritonclient.http, HTTP, [{}, PACKED, {"request_compression_algorithm": "deflate"}]),
    (tritonclient.grpc, GRPC, [{}, {"compression_algorithm": "gzip"}]),
):
    client = module.InferenceServerClient(url)
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("digits")
    assert not client.is_model_ready("other")
    for call in (client.get_model_metadata, client.get_model_config):
        assert call("digits")
    assert client.get_server_metadata()
    assert client.get_model_repository_index()
    for way in ways:
        for binary in (True, False) if module is tritonclient.http else (None,):
            more = {} if binary is None else {"binary_data": binary}
            given = module.InferInput("image", [*ROWS.shape], "FP32")
            given.set_data_from_numpy(ROWS, **more)
            outputs = [module.InferRequestedOutput("logits", **more)]
            for wanted in (None, outputs):
                reply = client.infer("digits", [given], outputs=wanted, request_id="7", **way)
                answers.append(reply.as_numpy("logits"))
    assert client.get_inference_statistics()
    assert client.get_inference_statistics("digits")
    assert is_refused(client.get_system_shared_memory_status)
    assert is_refused(client.load_model, "digits")
assert len(answers) == 16
assert all((each == answers[0]).all() for each in answers)
