"""The remote backend kserve over gRPC, with a server built on grpcio and Google's Protobuf."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness.backends.http_raw import HttpRawRemote
from harness.backends.kserve import KserveRemote
from harness.backends.parts.kserve.datatypes import ON_THE_WIRE, Tensor
from harness.backends.parts.kserve.infer_messages import MessageDecoder, MessageEncoder
from harness.core.config.address import parse_address
from harness.core.config.run_config import RunConfig
from harness.errors import ConfigError
from harness.models.opened.remote import remote_class
from harness.remote import BadAnswer, Reply, ServerTotals
from harness.types import BackendSetup, Batch, TensorSpec
from harness.wire.connections import Server
from harness.wire.remote_backend import RemoteBackend, remote_backend
from tests.stand_ins.servers.grpc_server import MESSAGES, GrpcServer, refuse, reply, sums

IMAGE = TensorSpec("image", "float32", ("batch", 1, 8, 8))


def setup(**options: str) -> BackendSetup:
    return BackendSetup(
        model=None,
        model_name="digits",
        inputs=(IMAGE,),
        max_batch=64,
        options=options,
        transport="grpc",
    )


@contextmanager
def opened(server: GrpcServer, **options: str) -> Iterator[RemoteBackend]:
    address = Server(address=parse_address(server.url))
    with server, remote_backend(KserveRemote(setup(**options)), address, 5.0) as backend:
        yield backend


def images(count: int) -> Batch:
    rows = np.random.default_rng(count).random((count, 1, 8, 8), np.float32)
    return Batch(count, {"image": rows})


def test_answers_match_the_server_and_requests_match_protobuf() -> None:
    server = GrpcServer()
    with opened(server, version="1") as backend:
        for size in (1, 64, 3):
            batch = images(size)
            answer = np.asarray(backend.infer(batch))
            rows = batch.inputs["image"].reshape(size, 64)
            expected = [[row[d::10].sum() for d in range(10)] for row in rows]
            assert np.allclose(answer, expected, atol=1e-4)
        batch = images(3)
        backend.infer(batch)
        request = server.asked[-1]
        assert (request.model_name, request.model_version, request.id) == ("digits", "1", "0")
        assert [(i.name, i.datatype, [*i.shape]) for i in request.inputs] == [
            ("image", "FP32", [3, 1, 8, 8])
        ]
        assert request.raw[0] == batch.inputs["image"].tobytes()
        assert backend.totals() == ServerTotals(3, 32, 43, 109)
        assert backend.describe() == {
            "framework": "triton 2.51.0",
            "protocol": "KServe v2 over gRPC",
            "device": "remote",
            "precision": "unknown",
            "model": "digits",
            "model_version": "1",
            "platform": "python",
            "encoding": "binary",
            "reply_encoding": "binary",
            "server_max_batch": 64,
            "url": server.url,
        }


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (reply([1, 9], bytes(36)), r"has the shape \[1, 9\], not"),
        (reply([2, 10], bytes(80)), "the outputs have 2 rows for 1 samples"),
        (reply([1, 10], bytes(36)), r"of shape \[1, 10\] has 36 bytes, not 40"),
        (reply([1, 10], bytes(20), "FP16"), "is FP16, not FP32"),
        (MESSAGES["InferReply"](model_name="digits", model_version="1"), "has no outputs"),
        (MESSAGES["InferReply"](model_name="other", raw=[b""]), "is from model 'other'"),
    ],
)
def test_a_reply_of_another_kind_is_a_bad_answer(made: Any, told: str) -> None:
    decoder = MessageDecoder("digits", [Tensor("logits", "FP32", (None, 10))], None)
    good, bad = (
        Reply(0, b"", memoryview(message.SerializeToString()))
        for message in (reply([1, 10], bytes(40)), made)
    )
    decoder.first(good, 1)
    with pytest.raises(BadAnswer, match=told):
        decoder(bad, 1)


def test_refusal_by_the_server_is_quoted() -> None:
    no = refuse("INVALID_ARGUMENT", "unexpected shape")
    with (
        opened(GrpcServer(lambda c, r, nth: (sums if nth == 1 else no)(c, r, nth))) as backend,
        pytest.raises(ConfigError, match=r"answered 3: INVALID_ARGUMENT: unexpected shape: check"),
    ):
        backend.infer(images(1))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"served": "nope"}, r"^the server has no model 'nope': it has digits; see "),
        ({"version": "7"}, r"^the server has no version '7' of model 'digits': it has 1; see "),
    ],
)
def test_a_model_that_the_server_lacks_is_a_mistake_of_the_user(
    options: dict[str, str], told: str
) -> None:
    with pytest.raises(ConfigError, match=told), opened(GrpcServer(), **options):
        pass


def test_plug_in_for_http_only_is_refused_over_grpc() -> None:
    config = RunConfig(scenario="offline", backend="http-raw", url=("grpc://127.0.0.1:1",))
    with pytest.raises(
        ConfigError, match=r"'http-raw' does not support gRPC: pass an address with "
    ):
        remote_class(config, HttpRawRemote, 1)
    assert remote_class(replace(config, backend="kserve"), KserveRemote, 1) is not None


def test_json_has_no_place_in_grpc() -> None:
    with pytest.raises(ConfigError, match="tensors over gRPC are binary: drop the option"):
        KserveRemote(setup(encoding="json"))


VALUES: dict[str, tuple[str, list[Any]]] = {
    "BOOL": ("bools", [True, False]),
    "INT8": ("ints", [-128, 127]),
    "INT64": ("longs", [-(2**63), 2**63 - 1]),
    "UINT16": ("uints", [0, 65535]),
    "UINT64": ("ulongs", [0, 2**64 - 1]),
    "FP32": ("floats", [0.5, -(2.0**40)]),
    "FP64": ("doubles", [0.1, -1e300]),
    "BYTES": ("texts", [b"", "\u00fc\n".encode()]),
}


@pytest.mark.parametrize("datatype", VALUES)
def test_typed_contents_are_read_as_raw_bytes_are(datatype: str) -> None:
    field, values = VALUES[datatype]
    tensor = Tensor("y", datatype, (None,))
    about: dict[str, Any] = {"name": "y", "datatype": datatype, "shape": [2]}
    if datatype == "BYTES":
        raw = b"".join(len(v).to_bytes(4, "little") + v for v in values)
        expected: list[Any] = [v.decode() for v in values]
    else:
        raw, expected = np.array(values, ON_THE_WIRE[datatype]).tobytes(), values
    replies: tuple[dict[str, Any], ...] = (
        {"outputs": [{**about, "contents": {field: values}}]},
        {"outputs": [about], "raw": [raw]},
    )
    for more, form in zip(replies, ("typed", "binary"), strict=True):
        made = MESSAGES["InferReply"](model_name="m", **more).SerializeToString()
        decoder = MessageDecoder("m", [tensor], None)
        found = Reply(0, b"", memoryview(made))
        decoder.first(found, 2)
        answer: Any = decoder(found, 2)
        assert answer.tolist() == expected
        assert decoder.encoding == form


def test_bytes_that_are_not_a_message_are_a_bad_answer() -> None:
    whole = reply([1, 10], bytes(40)).SerializeToString()
    for cut in range(1, len(whole)):
        decoder = MessageDecoder("digits", [Tensor("logits", "FP32", (None, 10))], None)
        with pytest.raises(BadAnswer):
            decoder(Reply(0, b"", memoryview(whole[:cut])), 1)


def test_texts_travel_behind_their_lengths() -> None:
    encoder = MessageEncoder("m", None, [Tensor("t", "BYTES", (None,))], None)
    rows = np.array(["a", "\u00fc" * 100], object)
    request = encoder.as_message(Batch(2, {"t": rows}))
    message = MESSAGES["InferRequest"].FromString(b"".join(map(bytes, request.body)))
    assert message.raw == [b"\1\0\0\0a" + b"\xc8\0\0\0" + "\u00fc".encode() * 100]
    assert [*message.inputs[0].shape] == [2]
