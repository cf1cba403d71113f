"""`serve` over gRPC: raw and typed tensors, the server's metadata, refusals, and the end of the server."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
import pytest

grpc = pytest.importorskip("grpc")
pytest.importorskip("google.protobuf")

from harness.core.config.parse import Endpoint  # noqa: E402 - after the packages it needs
from harness.core.config.run_config import RunConfig  # noqa: E402
from harness.datasets.digits import DigitsDataset  # noqa: E402
from harness.serve.answers import Refusal  # noqa: E402
from harness.serve.grpc.server import SERVICE, GrpcHandler, answering  # noqa: E402
from harness.serve.kserve import OpenInference  # noqa: E402
from harness.serve.listening import bound  # noqa: E402
from harness.serve.loop import Loop  # noqa: E402
from harness.serve.served import ServedModel, open_served  # noqa: E402
from harness.serve.statistics import Statistics  # noqa: E402
from harness.types import Batch, DatasetSetup, TensorSpec  # noqa: E402
from tests.stand_ins.servers.grpc_server import MESSAGES  # noqa: E402

TIMEOUT_S = 20


class Client:
    """A client that uses Google's Protobuf on a channel of grpcio."""

    def __init__(self, served: ServedModel, channel: Any) -> None:
        self.served = served
        self._channel = channel

    def call(self, method: str, request: Any, reply: str) -> Any:
        made = self._channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=MESSAGES[reply].FromString,
        )
        return made(request, timeout=TIMEOUT_S)

    def infer(self, **fields: Any) -> Any:
        request = MESSAGES["InferRequest"](**{"model_name": "digits", **fields})
        return self.call("ModelInfer", request, "InferReply")


@pytest.fixture(scope="module")
def images() -> Any:
    inputs = (TensorSpec("image", "float32", ("batch", 1, 8, 8)),)
    dataset = DigitsDataset(DatasetSetup(inputs=inputs))
    dataset.load(range(8))
    return np.array(dataset.batch(range(8)).inputs["image"])


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    pytest.importorskip("onnxruntime")
    config = RunConfig.of(scenario="offline", backend="ort", instances=1, threads=1, max_batch=16)
    with ExitStack() as stack:
        served = open_served(config, stack)
        assert isinstance(served, ServedModel)
        listening = bound(Endpoint("127.0.0.1", 0))
        listening.listen()
        handler = GrpcHandler(OpenInference(served, "here"))
        loop = Loop(listening, lambda *_: [], handler.work)
        thread = threading.Thread(target=loop.run)
        at = stack.enter_context(answering(handler, loop, Endpoint("127.0.0.1", 0)))
        thread.start()
        stack.callback(thread.join, TIMEOUT_S)
        stack.callback(loop.stop)
        channel = stack.enter_context(grpc.insecure_channel(str(at)))
        yield Client(served, channel)


def image(rows: Any, **more: Any) -> Any:
    return {"name": "image", "datatype": "FP32", "shape": [*rows.shape], **more}


def logits_of(reply: Any) -> Any:
    (output,) = reply.outputs
    assert (output.name, output.datatype) == ("logits", "FP32")
    return np.frombuffer(reply.raw[0], np.float32).reshape(output.shape)


@pytest.mark.parametrize("size", [1, 8])
def test_raw_and_typed_tensors_get_the_bits_of_the_model(
    client: Client, images: Any, size: int
) -> None:
    rows = images[:size]
    expected = client.served.infer(Batch(size, {"image": rows}))["logits"]
    raw = client.infer(id="7", inputs=[image(rows)], raw=[rows.tobytes()])
    typed = client.infer(inputs=[image(rows, contents={"floats": rows.ravel().tolist()})])
    for reply in (raw, typed):
        assert (reply.model_name, reply.model_version) == ("digits", "1")
        assert logits_of(reply).tobytes() == expected.tobytes()
    assert (raw.id, typed.id) == ("7", "")


def test_server_reports_its_own_and_its_models_metadata(client: Client, images: Any) -> None:
    empty, named = MESSAGES["Named"](), MESSAGES["Named"](name="digits")
    assert client.call("ServerLive", empty, "Ready").ready
    assert client.call("ServerReady", empty, "Ready").ready
    assert client.call("ModelReady", named, "Ready").ready
    assert not client.call("ModelReady", MESSAGES["Named"](name="other"), "Ready").ready
    about = client.call("ServerMetadata", empty, "Server")
    assert about.name == "here"
    assert "statistics" in about.extensions
    model = client.call("ModelMetadata", named, "Model")
    assert [(i.name, i.datatype, [*i.shape]) for i in (*model.inputs, *model.outputs)] == [
        ("image", "FP32", [-1, 1, 8, 8]),
        ("logits", "FP32", [-1, 10]),
    ]
    assert client.call("ModelConfig", named, "ConfigReply").config.max_batch_size == 16
    assert client.call("RepositoryIndex", empty, "Index").models[0].state == "READY"
    before = client.call("ModelStatistics", named, "Statistics").model_stats[0].inference_stats
    client.infer(inputs=[image(images)], raw=[images.tobytes()])
    after = client.call("ModelStatistics", named, "Statistics").model_stats[0].inference_stats
    assert after.success.count == before.success.count + 1
    assert len(client.call("ModelStatistics", empty, "Statistics").model_stats) == 1
    assert after.compute_infer.ns > before.compute_infer.ns


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"model_name": "other"}, "NOT_FOUND", "does not have: use 'digits', version 1"),
        ({"model_version": "2"}, "NOT_FOUND", "does not have: use 'digits', version 1"),
        ({}, "INVALID_ARGUMENT", "the request has no inputs"),
        ({"inputs": [{"name": "picture"}]}, "INVALID_ARGUMENT", "the model has no input 'picture'"),
        ({"raw": [b"1"]}, "INVALID_ARGUMENT", "0 inputs and 1 raw contents"),
        ({"inputs": [image(np.zeros((1, 1, 8, 8)))], "raw": [b"1"]}, "INVALID_ARGUMENT", "FP32 of the shape [1, 1, 8, 8] does not have 1 bytes"),
        ({"inputs": [image(np.zeros((1, 1, 8, 8)), contents={"ints": [1]})]}, "INVALID_ARGUMENT", "a tensor of FP32 has values of a different type"),
        ({"inputs": [image(np.zeros((99, 1, 8, 8)))], "raw": [bytes(99 * 256)]}, "INVALID_ARGUMENT", "a batch of 99: the server accepts 1 to 16"),
    ],
)  # fmt: skip
def test_request_that_cannot_be_answered_gets_a_code_and_a_sentence(
    client: Client, fields: dict[str, Any], code: str, text: str
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        client.infer(**fields)
    assert refused.value.code().name == code
    assert text in refused.value.details()


def test_invalid_messages_and_unknown_methods_are_refused(client: Client, images: Any) -> None:
    channel = client._channel
    for junk in (b"\xff" * 40, b"\x2a\xff\xff\xff\x7f", bytes(9)):
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(f"/{SERVICE}/ModelInfer")(junk, timeout=TIMEOUT_S)
        assert refused.value.code().name in ("INVALID_ARGUMENT", "NOT_FOUND")
    with pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary(f"/{SERVICE}/ModelStreamInfer")(b"", timeout=TIMEOUT_S)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert logits_of(client.infer(inputs=[image(images)], raw=[images.tobytes()])).shape == (8, 10)


class Failing:
    """A model that raises an exception when it first inspects a request."""

    def __init__(self, error: BaseException) -> None:
        self.statistics = Statistics("m")
        self._error = error

    def check_model(self, *_: object) -> None:
        raise self._error


@pytest.mark.parametrize(("error", "status"), [(MemoryError(), 413), (RuntimeError("bug"), 500)])
def test_no_caller_waits_for_a_call_that_failed(error: BaseException, status: int) -> None:
    """Bug: the caller's thread waited forever, so the server could not end."""
    handler = GrpcHandler(Failing(error))  # type: ignore[arg-type] # all that `work` asks of it
    handler.wake = lambda: None
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(handler.call, "ModelInfer", b"")
        with suppress(RuntimeError):
            while handler.work() is None:
                time.sleep(0.001)
        raised = waiting.exception(TIMEOUT_S)
    assert isinstance(raised, Refusal)
    assert raised.status == status
