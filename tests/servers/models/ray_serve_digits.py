"""Serves the digits model with Ray Serve, on ONNX Runtime: `python ray_serve_digits.py PORT`."""

import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import ray
from ray import serve
from starlette.requests import Request


@serve.deployment
class Digits:
    def __init__(self, model: bytes) -> None:
        self.session = onnxruntime.InferenceSession(model)

    async def __call__(self, request: Request) -> Any:
        content = await request.json()
        image = np.array(content["image"], np.float32)
        (logits,) = self.session.run(None, {"image": image[None]})
        return logits[0].tolist()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 * 2**20)
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    serve.run(Digits.bind(Path("digits.onnx").read_bytes()), route_prefix="/")  # type: ignore[attr-defined]
    signal.pause()
