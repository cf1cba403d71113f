"""Makes the requests that map and unmap a region of shared memory: Triton's extension, over HTTP or gRPC.

Source: github.com/triton-inference-server/server, docs/protocol/extension_shared_memory.md.
"""

import json
from collections.abc import Mapping

from harness.backends.parts.kserve.infer_messages import SERVICE
from harness.core.formats.protobuf import field, number_field
from harness.remote import Request

_PATH = "/v2/systemsharedmemory"
_JSON = (("Content-Type", "application/json"),)
_METHOD = f"{SERVICE}/SystemSharedMemory"
_NAME, _KEY, _BYTES = 1, 2, 4
"""Field numbers of SystemSharedMemoryRegisterRequest."""


def status(transport: str) -> Request:
    if transport == "grpc":
        return Request(f"{_METHOD}Status", body=[b""])
    return Request(f"{_PATH}/status", method="GET")


def attach(region: str, size_bytes: int, transport: str) -> Request:
    """Returns a request to map the file with this name in /dev/shm."""
    if transport == "grpc":
        named = field(_NAME, region.encode()) + field(_KEY, f"/{region}".encode())
        return Request(f"{_METHOD}Register", body=[named + number_field(_BYTES, size_bytes)])
    content: Mapping[str, object] = {"key": f"/{region}", "offset": 0, "byte_size": size_bytes}
    return Request(f"{_PATH}/region/{region}/register", _JSON, [json.dumps(content).encode()])


def detach(region: str, transport: str) -> Request:
    if transport == "grpc":
        return Request(f"{_METHOD}Unregister", body=[field(_NAME, region.encode())])
    return Request(f"{_PATH}/region/{region}/unregister", _JSON)
