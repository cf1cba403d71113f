"""Serves the digits model with Ray Serve, on ONNX Runtime: `python ray_serve_digits.py PORT`."""

import signal
import socket
import subprocess
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


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def started() -> "tuple[subprocess.Popen[bytes], str]":
    """A cluster of this machine alone. With all ports given, Ray does not wait 15 s for its slow agents."""
    port, *others = free_ports(5)
    names = (
        "dashboard-agent-grpc",
        "dashboard-agent-listen",
        "metrics-export",
        "runtime-env-agent",
    )
    words = [f"--{name}-port={other}" for name, other in zip(names, others, strict=True)]
    words += [f"--port={port}", "--node-ip-address=127.0.0.1", "--include-dashboard=false"]
    words += ["--num-cpus=2", f"--object-store-memory={100 * 2**20}", "--block"]
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", *words]
    return subprocess.Popen(command), f"127.0.0.1:{port}"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    cluster, address = started()
    try:
        for _ in range(20):
            try:
                ray.init(address=address)
                break
            except ConnectionError:
                signal.sigtimedwait((), 5)
        serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
        serve.run(Digits.bind(Path("digits.onnx").read_bytes()), route_prefix="/")  # type: ignore[attr-defined]
        signal.pause()
    finally:
        cluster.terminate()
        cluster.wait()
