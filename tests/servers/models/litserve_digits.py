"""Serves the digits model with LitServe, on ONNX Runtime: `python litserve_digits.py PORT`."""

import sys
from typing import Any

import litserve  # type: ignore[import-not-found]
import numpy as np
import onnxruntime


class Digits(litserve.LitAPI):  # type: ignore[misc]
    def setup(self, device: str) -> None:
        self.session = onnxruntime.InferenceSession("digits.onnx")

    def decode_request(self, request):  # type: ignore[no-untyped-def] # a type would be the body's
        return np.array(request["input"], np.float32)

    def predict(self, x: Any) -> Any:
        (logits,) = self.session.run(None, {"image": x[None]})
        return logits[0]

    def encode_response(self, output: Any) -> Any:
        return {"output": output.tolist()}


if __name__ == "__main__":
    server = litserve.LitServer(Digits(), accelerator="cpu", workers_per_device=1)
    server.run(
        host="127.0.0.1", port=int(sys.argv[1]), num_api_servers=1, generate_client_file=False
    )
