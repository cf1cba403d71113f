"""The remote backend kserve with the dialects of real servers; tests/servers runs the servers themselves."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.backends.kserve import KserveRemote
from harness.errors import ConfigError
from harness.remote import BadAnswer, Refused, Remote, Reply
from harness.types import BackendSetup, Batch, TensorSpec
from tests.builders.refusals import refusal, refusals
from tests.stand_ins.servers.kserve_dialects import (
    Dialect,
    Values,
    as_json,
    binary_reply,
    inputs_of,
    kserve_sdk,
    mlserver,
    reply,
    sent,
    triton,
)

IMAGE = TensorSpec("image", "float32", ("batch", 1, 8, 8))
DIGITS: Mapping[str, Any] = {
    "name": "digits",
    "inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}],
    "outputs": [{"name": "logits", "datatype": "FP32", "shape": [-1, 10]}],
}
NAMES = {
    "BOOL": "bool",
    **{f"FP{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"INT{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}


def digits(inputs: Mapping[str, Values]) -> Mapping[str, Values]:
    """Returns ten sums of each image, so that each answer depends on its sample."""
    image = inputs["image"]
    rows = [image.values[i : i + 64] for i in range(0, len(image.values), 64)]
    sums = [float(np.float32(sum(row[d::10]))) for row in rows for d in range(10)]
    return {"logits": Values("FP32", [len(rows), 10], sums)}


def echo(inputs: Mapping[str, Values]) -> Mapping[str, Values]:
    return {f"{name} again": one for name, one in inputs.items()}


def setup(**more: Any) -> BackendSetup:
    values = {"model": None, "model_name": "digits", "inputs": (IMAGE,), "max_batch": 64}
    return BackendSetup(**{**values, **more})


def opened(server: Any, **more: Any) -> KserveRemote:
    remote = KserveRemote(setup(**more))
    remote.open(server)
    return remote


def asked(remote: KserveRemote, server: Dialect, batch: Batch) -> Any:
    return remote.answer(server(remote.request(batch)), batch.size)


def images(count: int, seed: int = 0) -> Batch:
    rows = np.random.default_rng(seed).random((count, 1, 8, 8), np.float32)
    return Batch(count, {"image": rows})


Made = Callable[[Any, Mapping[str, Any]], Dialect]
each_dialect = pytest.mark.parametrize("made", [triton, mlserver, kserve_sdk])


@each_dialect
def test_probe_finds_each_dialect_which_answers_each_batch_size(made: Made) -> None:
    server = made(digits, DIGITS)
    remote = opened(server)
    assert isinstance(remote, Remote)
    assert remote.signature() == (TensorSpec("image", "float32", (None, 1, 8, 8)),)
    assert remote.outputs() == ("logits",)
    for size in (1, 64, 2, 1):
        batch = images(size, size)
        expected = np.array(digits({"image": _values(batch)})["logits"].values, np.float32)
        answer = asked(remote, server, batch)
        assert answer.dtype == np.float32
        assert np.array_equal(answer, expected.reshape(size, 10))


def _values(batch: Batch) -> Values:
    rows = batch.inputs["image"]
    return Values("FP32", list(rows.shape), rows.reshape(-1).tolist())


@pytest.mark.parametrize(
    ("made", "framework", "encoding", "reply_encoding", "version", "most"),
    [
        (triton, "triton 2.51.0", "binary", "binary", "1", 64),
        (mlserver, "mlserver 1.7.1", "json", "json", "unknown", None),
        (kserve_sdk, "kserve 0.21.0", "binary", "json", "unknown", None),
    ],
)
def test_description_names_the_server_and_the_protocol(
    made: Made, framework: str, encoding: str, reply_encoding: str, version: str, most: int | None
) -> None:
    assert opened(made(digits, DIGITS)).describe() == {
        "framework": framework,
        "protocol": "KServe v2 over HTTP",
        "device": "remote",
        "precision": "unknown",
        "model": "digits",
        "model_version": version,
        "platform": "python" if made is triton else "unknown",
        "encoding": encoding,
        "reply_encoding": reply_encoding,
        "server_max_batch": most,
    }


def test_precision_and_threads_come_from_the_server() -> None:
    told = {"precision": "float32", "threads": "2", "math_library": "x"}
    described = opened(triton(digits, {**DIGITS, "properties": told})).describe()
    assert (described["precision"], described["threads"]) == ("float32", "2")


def test_totals_are_tritons_statistics_over_all_versions() -> None:
    def stats(*counts: int) -> dict[str, object]:
        count, queue, compute, total = counts
        return {
            "success": {"count": count, "ns": total},
            "queue": {"count": count, "ns": queue},
            "compute_infer": {"count": count, "ns": compute},
        }

    versions = [{"inference_stats": stats(2, 30, 40, 100)}, {"inference_stats": stats(1, 2, 3, 9)}]
    server = triton(digits, DIGITS)
    remote = opened(server)
    assert remote.totals(server) is None
    server.paths["/v2/models/digits/stats"] = as_json({"model_stats": versions})
    assert remote.totals(server) == (3, 32, 43, 109)
    server.paths["/v2/models/digits/stats"] = as_json({"model_stats": [{"name": "digits"}]})
    assert remote.totals(server) is None


def test_a_binary_request_has_the_bytes_that_tritonclient_sends() -> None:
    """The bytes were compared once with tritonclient 2.73.0: six datatypes, request_id='0', identical."""
    remote = opened(triton(digits, DIGITS))
    batch = images(2)
    request = remote.request(batch)
    head = (
        b'{"id":"0","inputs":[{"name":"image","shape":[2,1,8,8],"datatype":"FP32","parameters":'
        b'{"binary_data_size":512}}],"parameters":{"binary_data_output":true}}'
    )
    assert request.path == "/v2/models/digits/infer"
    assert request.method == "POST"
    assert request.headers == (
        ("Content-Type", "application/octet-stream"),
        ("Inference-Header-Content-Length", str(len(head))),
    )
    assert sent(request) == head + batch.inputs["image"].tobytes()
    again = remote.request(images(2, 1))
    # The harness keeps one request head for each batch size.
    assert again.headers is request.headers
    assert again.body[0] is request.body[0]


def test_the_dataset_s_own_bytes_are_sent() -> None:
    remote = opened(triton(digits, DIGITS))
    batch = images(3)
    part = remote.request(batch).body[1]
    assert np.shares_memory(np.asarray(part), batch.inputs["image"])


def test_strided_or_byte_swapped_rows_are_sent_like_the_others() -> None:
    server = triton(digits, DIGITS)
    remote = opened(server)
    rows = images(8).inputs["image"]
    plain = asked(remote, server, Batch(4, {"image": rows[::2].copy()}))
    assert np.array_equal(asked(remote, server, Batch(4, {"image": rows[::2]})), plain)
    swapped = rows[::2].astype(">f4")
    assert np.array_equal(asked(remote, server, Batch(4, {"image": swapped})), plain)


def test_an_input_of_another_type_or_name_is_refused_before_it_is_sent() -> None:
    for encoding in ("binary", "json"):
        remote = opened(triton(digits, DIGITS), options={"encoding": encoding})
        with pytest.raises(
            ValueError, match=r"^input 'image' is float64, but the server's model takes float32$"
        ):
            remote.request(Batch(1, {"image": np.zeros((1, 1, 8, 8))}))
        with pytest.raises(
            ValueError, match=r"^the batch has the input 'x', but the server's model has image$"
        ):
            remote.request(Batch(1, {"x": np.zeros((1, 1, 8, 8), np.float32)}))


def _echo_model(datatype: str, shape: list[int]) -> Mapping[str, Any]:
    return {
        "name": "echo",
        "inputs": [{"name": "x", "datatype": datatype, "shape": shape}],
        "outputs": [{"name": "x again", "datatype": datatype, "shape": shape}],
    }


def _echoed(datatype: str, rows: Any, encoding: str) -> Any:
    shape = [-1] * rows.ndim
    server = triton(echo, _echo_model(datatype, shape), 0)
    remote = opened(server, model_name="echo", inputs=(), options={"encoding": encoding})
    return asked(remote, server, Batch(len(rows), {"x": rows}))


@settings(max_examples=25)
@given(
    st.lists(st.integers(0, 4), max_size=3),
    st.binary(min_size=32),
    st.sampled_from(["binary", "json"]),
)
@pytest.mark.parametrize("datatype", NAMES)
def test_numbers_of_every_datatype_come_back_as_they_were(
    datatype: str, sizes: list[int], noise: bytes, encoding: str
) -> None:
    dtype = np.dtype(NAMES[datatype])
    shape = (3, *sizes)
    values = np.resize(np.frombuffer(noise[: len(noise) // 8 * 8], dtype), shape)
    if datatype == "BOOL":
        values = values.view(np.uint8) % 2 == 1
    if dtype.kind == "f":
        # JSON has only one kind of NaN, so NaNs are replaced before the comparison.
        values = np.nan_to_num(values, nan=0 if encoding == "json" else np.nan)
    answer = _echoed(datatype, values, encoding)
    assert answer.dtype == dtype
    assert answer.shape == shape
    assert answer.tobytes() == values.tobytes()


@pytest.mark.parametrize("encoding", ["binary", "json"])
@pytest.mark.parametrize("datatype", NAMES)
def test_the_ends_of_every_datatype_come_back(datatype: str, encoding: str) -> None:
    dtype = np.dtype(NAMES[datatype])
    if dtype.kind == "b":
        ends: list[Any] = [True, False]
    elif dtype.kind == "f":
        info = np.finfo(dtype)
        ends = [info.max, info.min, info.tiny, info.smallest_subnormal, -0.0]
    else:
        ends = [np.iinfo(dtype).min, np.iinfo(dtype).max, 1]
    rows = np.array(ends, dtype)
    assert _echoed(datatype, rows, encoding).tobytes() == rows.tobytes()


@given(
    st.lists(st.text() | st.binary(), min_size=1, max_size=6), st.sampled_from(["binary", "json"])
)
def test_texts_come_back_as_they_were(texts: list[str | bytes], encoding: str) -> None:
    texts = [
        t if isinstance(t, bytes) or _is_utf8(t) else t.encode("utf-8", "replace") for t in texts
    ]
    rows = np.empty(len(texts), object)
    rows[:] = texts
    if encoding == "json" and not all(_is_text(t) for t in texts):
        server = triton(echo, _echo_model("BYTES", [-1]), 0)
        remote = opened(server, model_name="echo", inputs=(), options={"encoding": "json"})
        with pytest.raises(ValueError, match=r"^input 'x' has bytes that are not UTF-8"):
            remote.request(Batch(len(rows), {"x": rows}))
        return
    answer = _echoed("BYTES", rows, encoding)
    assert answer.dtype == object
    plain = [t.encode() if isinstance(t, str) else t for t in texts]
    assert [t.encode("utf-8", "surrogateescape") for t in answer.tolist()] == plain


def _is_utf8(text: str) -> bool:
    return not any(0xD800 <= ord(c) < 0xE000 for c in text)


def _is_text(value: str | bytes) -> bool:
    try:
        return isinstance(value, str) or bool(value.decode()) or value == b""
    except UnicodeDecodeError:
        return False


def test_texts_beside_numbers_are_sent_in_one_request() -> None:
    model = {
        "name": "echo",
        "inputs": [
            {"name": "text", "datatype": "BYTES", "shape": [-1, 1]},
            {"name": "weight", "datatype": "FP32", "shape": [-1]},
        ],
        "outputs": [],
    }
    for encoding in ("binary", "json"):
        server = triton(echo, model)
        remote = opened(server, model_name="echo", inputs=(), options={"encoding": encoding})
        texts = np.array([["a"], ["bcd"]], object)
        inputs = {"text": texts, "weight": np.array([1.5, -2], np.float32)}
        answer = asked(remote, server, Batch(2, inputs))
        assert answer["text again"].tolist() == texts.tolist()
        assert answer["weight again"].tolist() == [1.5, -2]
        assert remote.outputs() == ("text again", "weight again")


def test_an_output_in_bf16_becomes_float32() -> None:
    values = [1.0, -2.5, 0.0, 3.0]
    made = {"y": Values("BF16", [1, 4], values)}
    for encoding in ("binary", "json"):
        server = triton(lambda _: made, DIGITS)
        remote = opened(server, options={"encoding": encoding})
        answer = asked(remote, server, images(1))
        assert answer.dtype == np.float32
        assert answer.tolist() == [values]


def test_an_input_in_bf16_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        opened(triton(echo, _echo_model("BF16", [-1, 4])), model_name="echo", inputs=())
    assert str(error.value) == (
        "input 'x' of the server's model has the datatype BF16, which no NumPy array can hold: serve "
        "the model with a different type, e.g. FP32"
    )


@pytest.mark.parametrize("encoding", ["binary", "json"])
def test_nan_and_infinities_are_answers(encoding: str) -> None:
    """The harness, not the backend, decides whether such values are allowed."""
    values = [float("nan"), float("inf"), -float("inf"), 1.0]
    made = {"y": Values("FP32", [1, 4], values)}
    server = triton(lambda _: made, DIGITS)
    remote = opened(server, options={"encoding": encoding})
    assert np.array_equal(
        asked(remote, server, images(1)), np.array([values], np.float32), equal_nan=True
    )


def test_null_in_json_is_nan() -> None:
    """MLServer encodes its replies with orjson, which writes NaN as null."""
    remote = opened(mlserver(digits, DIGITS))
    found = _answered(remote, data=[None, *range(9)])
    assert np.isnan(found[0, 0])
    assert found[0, 1:].tolist() == list(range(9))


def _answered(remote: KserveRemote, **about: Any) -> Any:
    """Returns the answer to one sample from a JSON reply; `about` lists what differs from a right reply."""
    output = {"name": "logits", "datatype": "FP32", "shape": [1, 10], "data": [0.0] * 10}
    content = {"model_name": "digits", "outputs": [{**output, **about}]}
    return remote.answer(as_json(content), 1)


def test_nested_lists_are_answers() -> None:
    remote = opened(mlserver(digits, DIGITS))
    assert _answered(remote, data=[list(range(10))]).tolist() == [list(range(10))]


def test_an_answer_outlives_the_buffer_of_its_reply() -> None:
    server = triton(digits, DIGITS)
    remote = opened(server)
    good = server(remote.request(images(1)))
    buffer = bytearray(good.body)
    answer = remote.answer(good._replace(body=memoryview(buffer)), 1)
    before = np.asarray(answer).tolist()
    buffer[:] = bytes(len(buffer))
    assert np.asarray(answer).tolist() == before


def test_a_reply_that_is_binary_in_part_is_read() -> None:
    remote = opened(
        triton(lambda _: {n: Values("INT32", [1], [7]) for n in "ab"}, {**DIGITS, "outputs": []})
    )
    outputs = [
        {"name": "a", "datatype": "INT32", "shape": [1], "data": [5]},
        {"name": "b", "datatype": "INT32", "shape": [1], "parameters": {"binary_data_size": 4}},
    ]
    for _ in range(2):
        content = {"model_name": "digits", "model_version": "1", "outputs": outputs}
        answer: Any = remote.answer(binary_reply(content, b"\x06\0\0\0"), 1)
        assert (answer["a"].tolist(), answer["b"].tolist()) == ([5], [6])
        answer["a"][:] = 0  # the program may write to an answer without changing the next reply


def test_the_header_of_a_binary_reply_may_be_in_any_case() -> None:
    """Servers written in Python send all headers in lower case."""
    server = triton(digits, DIGITS)
    remote = opened(server)
    batch = images(1)
    good = server(remote.request(batch))
    expected, found = (
        np.asarray(remote.answer(good._replace(head=head), 1))
        for head in (good.head, good.head.lower())
    )
    assert np.array_equal(found, expected)


# Mistakes that a server can make.


BINARY: Mapping[str, Any] = {
    "model_name": "digits",
    "model_version": "1",
    "outputs": [
        {"name": "logits", "datatype": "FP32", "shape": [2, 10], "parameters": {"binary_data_size": 80}}
    ],
}  # fmt: skip


def changed(**about: Any) -> Mapping[str, Any]:
    return {**BINARY, "outputs": [{**BINARY["outputs"][0], **about}]}


@pytest.mark.parametrize(
    ("content", "bytes_", "message"),
    [
        (changed(shape=[1, 10]), 80, "has 80 bytes, not 40"),
        (
            changed(shape=[1, 10], parameters={"binary_data_size": 40}),
            40,
            "the outputs have 1 rows for 2 samples",
        ),
        (changed(shape=[2, 20]), 80, "has the shape [2, 20], not [?, 10]"),
        (changed(shape=[2, 10, 1]), 80, "has the shape [2, 10, 1], not [?, 10]"),
        (changed(shape=[2, -10]), 80, "output 'logits' has the invalid shape [2, -10]"),
        (changed(shape=[2, True]), 80, "output 'logits' has the invalid shape [2, True]"),
        (changed(shape=[]), 80, "output 'logits' has the invalid shape []"),
        (changed(shape="2,10"), 80, "output 'logits' has the invalid shape '2,10'"),
        (changed(datatype="INT32"), 80, "output 'logits' is INT32, not FP32"),
        (changed(datatype="FP33"), 80, "output 'logits' has the datatype 'FP33'"),
        (changed(datatype=None), 80, "output 'logits' has the datatype None"),
        (changed(name="scores"), 80, "the reply has the outputs scores, not logits"),
        (changed(name=5), 80, "output 5 has the datatype 'FP32'"),
        (changed(), 81, "has 81 bytes after its JSON part, but its outputs have 80"),
        (changed(), 79, "has 79 bytes after its JSON part, but its outputs have 80"),
        (changed(), 0, "has 0 bytes after its JSON part, but its outputs have 80"),
        (changed(parameters={"binary_data_size": 79}), 79, "has 79 bytes, not 80"),
        (changed(parameters={"binary_data_size": -1}), 80, "has the binary_data_size -1"),
        (changed(parameters={"binary_data_size": "80"}), 80, "has the binary_data_size '80'"),
        (changed(data=[0.0] * 20), 80, "has the binary_data_size 80"),
        (changed(parameters={}), 80, "output 'logits': data is not a list, but None"),
        ({**BINARY, "model_name": "other"}, 80, "is from model 'other', not 'digits'"),
        ({**BINARY, "model_name": None}, 80, "is from model None, not 'digits'"),
        ({**BINARY, "model_version": "2"}, 80, "is from version '2' of the model, but the first"),
        ({**BINARY, "outputs": []}, 80, "the reply has no outputs"),
        ({**BINARY, "outputs": BINARY["outputs"] * 2}, 160, "an output appears twice"),
        ({**BINARY, "outputs": "logits"}, 80, "the reply has no outputs"),
        ({**BINARY, "outputs": ["logits"]}, 80, "an output is 'logits'"),
        ([BINARY], 80, "not a JSON object"),
    ],
)
def test_wrong_binary_reply_is_refused_as_an_answer(
    content: Any, bytes_: int, message: str
) -> None:
    remote = opened(triton(digits, DIGITS))
    with pytest.raises(BadAnswer) as error:
        remote.answer(binary_reply(content, bytes(bytes_)), 2)
    assert message in str(error.value)
    right: Any = remote.answer(binary_reply(BINARY, bytes(80)), 2)
    assert np.array_equal(right, np.zeros((2, 10)))


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"data": [0.0] * 9}, "data does not fit the shape [1, 10]"),
        ({"data": [0.0] * 11}, "data does not fit the shape [1, 10]"),
        ({"data": [[0.0] * 5] * 2}, "data does not fit the shape [1, 10]"),
        ({"data": [[0.0] * 10, 1]}, "data does not fit the shape [1, 10]"),
        ({"data": [[[0.0] * 10]]}, "data does not fit the shape [1, 10]"),
        ({"data": [0.0] * 9 + [[0.0]]}, "data contains values that are not FP32"),
        ({"data": [0.0] * 9 + ["1"]}, "data contains values that are not FP32"),
        ({"data": [0.0] * 9 + [True]}, "data contains values that are not FP32"),
        ({"data": [0.0] * 9 + [1e39]}, "a value does not fit FP32"),
        ({"data": [0.0] * 9 + [10**400]}, "a value does not fit FP32"),
        ({"data": 1.0}, "data is not a list, but 1.0"),
        ({"shape": [2, 10], "data": [0.0] * 20}, "the outputs have 2 rows for 1 samples"),
        ({"parameters": {"binary_data_size": 40}}, "has the binary_data_size 40"),
    ],
)
def test_wrong_json_reply_is_refused_as_an_answer(about: Mapping[str, Any], message: str) -> None:
    remote = opened(mlserver(digits, DIGITS))
    assert message in refusal(_answered, remote, error=BadAnswer, **about)


@pytest.mark.parametrize(
    ("datatype", "good", "bad"),
    [
        ("BOOL", [True, False, 1, 0], [2, 0.5, None, "true"]),
        ("UINT8", [0, 255], [-1, 256, 0.0, True, None]),
        ("INT8", [-128, 127], [-129, 128, 1.5]),
        ("UINT64", [0, 2**64 - 1], [-1, 2**64]),
        ("INT64", [-(2**63), 2**63 - 1], [2**63, -(2**63) - 1]),
        ("FP16", [65504, -1.5], [65520, 1e6]),
        ("FP64", [1e308, 2**60], [10**400, "1"]),
        ("BYTES", ["", "text"], [1, None, True]),
    ],
)
def test_values_in_json_must_lie_in_the_datatype(
    datatype: str, good: list[Any], bad: list[Any]
) -> None:
    model = {**DIGITS, "outputs": [{"name": "logits", "datatype": datatype, "shape": [-1]}]}
    first = {"logits": Values(datatype, [1], good[:1])}
    remote = opened(mlserver(lambda _: first, model))
    for value in good:
        found = _answered(remote, datatype=datatype, shape=[1], data=[value])
        assert found.tolist() == [value]
    for value in bad:
        with pytest.raises(BadAnswer):
            _answered(remote, datatype=datatype, shape=[1], data=[value])


def test_a_binary_boolean_is_true_or_false() -> None:
    model = {**DIGITS, "outputs": [{"name": "y", "datatype": "BOOL", "shape": [-1, 2]}]}
    remote = opened(triton(lambda _: {"y": Values("BOOL", [1, 2], [True, False])}, model))
    size = {"binary_data_size": 2}
    about = {"name": "y", "datatype": "BOOL", "shape": [1, 2], "parameters": size}
    content = {**BINARY, "outputs": [about]}
    answer = remote.answer(binary_reply(content, b"\x01\x00"), 1)
    assert np.asarray(answer).tolist() == [[True, False]]
    with pytest.raises(BadAnswer, match=r"^output 'y' has values that are neither true nor false$"):
        remote.answer(binary_reply(content, b"\x01\x02"), 1)


@pytest.mark.parametrize(
    "texts",
    [
        b"",
        b"\x01\0\0",
        b"\x02\0\0\0a",
        b"\x01\0\0\0a\x01\0\0\0b",
        b"\x01\0\0\0a\0",
        b"\xff\xff\xff\xff",
    ],
)
def test_binary_texts_must_fill_their_bytes(texts: bytes) -> None:
    model = {**DIGITS, "outputs": [{"name": "y", "datatype": "BYTES", "shape": [-1]}]}
    remote = opened(triton(lambda _: {"y": Values("BYTES", [1], ["text"])}, model))
    about = {"name": "y", "datatype": "BYTES", "shape": [1]}
    sized = {**about, "parameters": {"binary_data_size": len(texts)}}
    with pytest.raises(BadAnswer, match=r"bytes do not contain exactly 1 length-prefixed strings$"):
        remote.answer(binary_reply({**BINARY, "outputs": [sized]}, texts), 1)


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (200, b'{"error":"out of memory"}', "the server answered 200: out of memory"),
        (500, b'{"error":"out of\\nmemory"}', "the server answered 500: out of memory"),
        (422, b'{"detail":[{"msg":"bad input","loc":["body"]}]}', "answered 422: bad input"),
        (404, b'{"detail":"Not Found"}', "the server answered 404: Not Found"),
        (503, b"<html>busy</html>", "the server answered 503: a page, 'busy'"),
        (503, b"", "the server answered 503: no text"),
        (500, b"[" * 100_000, "the server answered 500: [[["),
        (500, b'{"error":' + b"[" * 900 + b"]" * 900 + b"}", "the server answered 500: "),
        (301, b"moved", "the server answered 301: moved"),
    ],
)
def test_error_of_the_server_is_quoted(status: int, body: bytes, message: str) -> None:
    remote = opened(triton(digits, DIGITS))
    with pytest.raises(Refused) as error:
        remote.answer(reply(status, body), 1)
    assert error.value.status == status
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_deeply_nested_reply_is_refused_without_a_crash() -> None:
    remote = opened(mlserver(digits, DIGITS))
    for depth in (100, 900, 990, 1000, 100_000):
        data = b"[" * depth + b"]" * depth
        body = (
            b'{"model_name":"digits","outputs":[{"name":"logits","datatype":"FP32","shape":[1,10],'
        )
        for text in (data, body + b'"data":' + data + b"}]}"):
            with pytest.raises(BadAnswer):
                remote.answer(reply(200, text), 1)


@pytest.mark.parametrize("length", ["", "-1", "abc", "1e2", "100000", "9" * 5000, "٣"])
def test_impossible_length_of_the_json_part_is_refused(length: str) -> None:
    remote = opened(triton(digits, DIGITS))
    body = reply(200, b"{}" * 40)
    head = f"HTTP/1.1 200 OK\r\nInference-Header-Content-Length: {length}\r\n\r\n".encode()
    with pytest.raises(BadAnswer, match=r"^Inference-Header-Content-Length is "):
        remote.answer(body._replace(head=head), 1)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["name", "datatype", "shape", "data", "parameters", "outputs", "error"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
output = st.fixed_dictionaries(
    {
        "name": st.just("logits") | json_values,
        "datatype": st.sampled_from(["FP32", "BYTES", "BOOL", "BF16"]) | json_values,
        "shape": st.lists(st.integers(-1, 2**70), max_size=40) | st.just([1, 10]) | json_values,
    },
    optional={
        "data": st.lists(st.floats(), max_size=12) | json_values,
        "parameters": st.fixed_dictionaries(
            {}, optional={"binary_data_size": st.integers(-5, 100) | json_values}
        )
        | json_values,
    },
)
contents = json_values | st.fixed_dictionaries(
    {"model_name": st.just("digits"), "outputs": st.lists(output, max_size=3) | json_values},
    optional={"error": json_values, "model_version": st.just("1") | json_values},
)


@given(
    st.sampled_from([True, False]),
    contents.map(lambda c: json.dumps(c).encode()) | st.binary(max_size=300),
    st.binary(max_size=80) | st.just(bytes(40)),
    st.none() | st.binary(max_size=10) | st.integers(-2, 400).map(lambda n: str(n).encode()),
    st.sampled_from([200, 200, 200, 400, 500]),
)
def test_any_bytes_give_an_answer_of_the_right_shape_or_an_error(
    knows_shapes: bool, text: bytes, behind: bytes, length: bytes | None, status: int
) -> None:
    model = DIGITS if knows_shapes else {**DIGITS, "outputs": []}
    remote = opened(triton(digits, model))
    lines = [b"HTTP/1.1 %d Whatever" % status]
    for value in (str(len(text)).encode(), length):
        body = memoryview(text + behind)
        header = [] if value is None else [b"Inference-Header-Content-Length: " + value]
        answered = Reply(status, b"\r\n".join([*lines, *header, b"", b""]), body)
        try:
            answer: Any = remote.answer(answered, 1)
        except (Refused, BadAnswer):
            continue
        assert status == 200
        assert answer.dtype == np.float32
        assert len(answer) == 1
        assert answer.shape == (1, 10) or not knows_shapes


@given(st.data())
def test_a_reply_with_changed_bytes_is_an_answer_or_an_error_of_the_server(
    data: st.DataObject,
) -> None:
    made = data.draw(st.sampled_from([triton, mlserver]))
    server = made(digits, DIGITS)
    remote = opened(server)
    good = server(remote.request(images(2)))
    body = bytearray(good.body)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at] = data.draw(st.integers(0, 255))
    body = body[: data.draw(st.integers(0, len(body)) | st.just(len(body)))]
    try:
        answer: Any = remote.answer(good._replace(body=memoryview(bytes(body))), 2)
    except (Refused, BadAnswer):
        return
    assert answer.shape == (2, 10)
    assert answer.dtype == np.float32


# Requests before the run.

METADATA = ("/v2/health/ready", "/v2", "/v2/models/digits")


def test_unknown_options_and_devices_are_refused() -> None:
    assert refusals(KserveRemote, setup(options={"graph": "all"}, device="cuda", provider="X")) == [
        (
            "backend 'kserve' has no option 'graph': choose from served=NAME version=VERSION "
            "encoding=binary|json|shm"
        ),
        "backend 'kserve' does not support --device cuda: the server chooses the device",
        "backend 'kserve' has no providers: drop --provider X",
    ]
    with pytest.raises(
        ConfigError, match=r"^--backend-option encoding: 'xml' is not one of binary, json, shm$"
    ):
        KserveRemote(setup(options={"encoding": "xml"}))
    with pytest.raises(
        ConfigError, match=r"^--backend-option served: the value is empty: it takes NAME$"
    ):
        KserveRemote(setup(options={"served": ""}))


def test_shared_memory_needs_a_server_that_has_it() -> None:
    with pytest.raises(
        ConfigError, match=r"encoding=shm: the server has no system shared memory: drop the option$"
    ):
        opened(mlserver(digits, DIGITS), max_batch=1, options={"encoding": "shm"})


def test_the_served_name_and_version_make_the_path() -> None:
    server = triton(digits, {**DIGITS, "name": "a b/c"})
    base = "/v2/models/a%20b%2Fc/versions/1"
    server.paths = {base: as_json(server.metadata), f"{base}/config": as_json({}, 404)}
    # The error is expected, because the stand-in does not serve versions.
    with pytest.raises(ConfigError):
        opened(server, options={"served": "a b/c", "version": "1"})
    asked_for = [
        "/v2/health/ready",
        "/v2",
        base,
        *(f"{base}/{x}" for x in ("config", "infer", "infer")),
    ]
    assert [r.path for r in server.requests] == asked_for


NOT_READY = (
    "the server is not ready: /v2/health/ready answered {}: wait until it has loaded its models"
)
NO_KSERVE = (
    "the server does not support KServe v2: /v2 answered 404 (a page, 'Not Found'); pass its address with "
    "--url, and the path that comes before /v2, or pass --backend openai if it has a language model"
)
NO_MODEL = "the server has no model 'digits': {}; see --backend-option served=NAME"
NO_INPUT = (
    "the server's metadata list the input 'image' with datatype None and shape None, which KServe v2 "
    "does not allow: correct the model's configuration on the server"
)
NO_ANSWER = "model 'digits' did not answer one sample of zeros: {}"
OTHER = "the reply is from model 'x', not 'digits'"
UNKNOWN = {"/v2/models/digits": as_json({"error": "unknown model"}, 404)}
NO_INDEX = {**UNKNOWN, "/v2/repository/index": as_json({}, 404)}
BROKEN = {
    "/v2/models/digits": as_json({"error": "not ready"}, 400),
    "/v2/repository/index": as_json(
        [{"name": "digits", "state": "UNAVAILABLE", "reason": "no file"}]
    ),
}


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (
            {"/v2/health/ready": as_json({"error": "loading"}, 503)},
            NOT_READY.format("503 (loading)"),
        ),
        ({"/v2/health/ready": reply(400)}, NOT_READY.format("400 (no text)")),
        ({path: reply(404, b"<h1>Not Found</h1>") for path in METADATA}, NO_KSERVE),
        (
            {path: reply(200, b"<h1>Welcome</h1>") for path in METADATA},
            NO_KSERVE.replace("404 (a page, 'Not Found')", "200 (a page, 'Welcome')"),
        ),
        (UNKNOWN, NO_MODEL.format("it has resnet, bert")),
        ({**NO_INDEX, "/v2/models": as_json({"models": ["yolo"]})}, NO_MODEL.format("it has yolo")),
        (NO_INDEX, NO_MODEL.format("it answered 404 (unknown model)")),
        (BROKEN, "the model 'digits' of the server is UNAVAILABLE (no file): see the server's log"),
        (
            {"/v2/models/digits": as_json({**DIGITS, "inputs": [{"name": "image"}]})},
            NO_INPUT,
        ),
        (
            {"/v2/models/digits/infer": reply(503, b"busy")},
            NO_ANSWER.format("binary: the server answered 503: busy"),
        ),
        (
            {"/v2/models/digits/infer": as_json({"error": "no"}, 500)},
            NO_ANSWER.format(
                "binary: the server answered 500: no; json: the server answered 500: no"
            ),
        ),
        (
            {"/v2/models/digits/infer": as_json({"model_name": "x"})},
            NO_ANSWER.format(f"binary: {OTHER}; json: {OTHER}"),
        ),
    ],
)
def test_problem_of_a_server_is_one_line_before_the_run(
    paths: dict[str, Reply], message: str
) -> None:
    server = triton(digits, DIGITS)
    server.index = [{"name": n, "version": "1", "state": "READY"} for n in ("resnet", "bert")]
    server.paths = paths
    assert refusal(opened, server) == message


def test_missing_version_is_refused_with_the_available_ones() -> None:
    server = triton(digits, DIGITS)
    server.index = [{"name": "digits", "version": v, "state": "READY"} for v in ("1", "3")]
    assert refusal(opened, server, options={"version": "7"}) == (
        "the server has no version '7' of model 'digits': it has 1, 3; see --backend-option "
        "version=VERSION"
    )


def test_server_without_the_optional_endpoints_is_queried_too() -> None:
    """Simulates a server behind a gateway that passes only the model's paths."""
    server = triton(digits, DIGITS)
    server.paths = {path: reply(404, b"no route") for path in ("/v2/health/ready", "/v2")}
    assert opened(server).describe()["framework"] == "unknown"


def test_an_encoding_of_the_user_is_not_replaced() -> None:
    assert refusal(opened, mlserver(digits, DIGITS), options={"encoding": "binary"}) == (
        "model 'digits' did not answer one sample of zeros: binary: the server answered 422: Input "
        "should be a valid dictionary or object to extract fields from (body)"
    )
    assert (
        opened(triton(digits, DIGITS), options={"encoding": "json"}).describe()["encoding"]
        == "json"
    )


def test_more_samples_than_the_server_takes_are_refused() -> None:
    assert refusal(opened, triton(digits, DIGITS, max_batch_size=8)) == (
        "the server's model 'digits' takes at most 8 samples per request: pass --max-batch 8"
    )
    opened(triton(digits, DIGITS, max_batch_size=8), max_batch=8)
    # With max_batch_size 0, the model's own first dimension sets the limit, and this dimension is open.
    opened(triton(digits, DIGITS, max_batch_size=0))


def test_inputs_unknown_to_server_and_manifest_are_requested() -> None:
    assert refusal(opened, kserve_sdk(digits, DIGITS), inputs=()) == (
        "the server does not report the inputs of model 'digits': pass --model FILE.yaml, a manifest "
        "that lists them"
    )


def test_probe_takes_sizes_that_the_server_leaves_open_from_the_manifest() -> None:
    shapes = []

    def model(inputs: Mapping[str, Values]) -> Mapping[str, Values]:
        shapes.append(inputs["x"].shape)
        return echo(inputs)

    about = _echo_model("FP32", [-1, -1, 3])
    spec = TensorSpec("x", "float32", ("batch", 7, 3))
    opened(triton(model, about), model_name="echo", inputs=(spec,))
    opened(triton(model, about), model_name="echo", inputs=())
    opened(triton(model, about), model_name="echo", inputs=(spec._replace(shape=("n", "m", 3)),))
    assert shapes == [[1, 7, 3], [1, 1, 3], [1, 1, 3]]


def test_a_model_of_a_fixed_batch_gets_whole_batches() -> None:
    sizes = []

    def model(inputs: Mapping[str, Values]) -> Mapping[str, Values]:
        sizes.append(inputs["image"].shape[0])
        return digits(inputs)

    fixed = {
        "name": "digits",
        "inputs": [{"name": "image", "datatype": "FP32", "shape": [4, 1, 8, 8]}],
        "outputs": [{"name": "logits", "datatype": "FP32", "shape": [4, 10]}],
    }
    for encoding in ("binary", "json"):
        server = triton(model, fixed, 0)
        remote = opened(server, options={"encoding": encoding})
        assert remote.signature()[0].shape == (4, 1, 8, 8)
        whole = asked(remote, server, images(4))
        assert whole.shape == (4, 10)
        part = asked(remote, server, Batch(3, {"image": images(4).inputs["image"][:3]}))
        assert np.array_equal(part, whole[:3])
        with pytest.raises(
            ValueError, match=r"^the batch has 5 samples, but the server's model takes exactly 4$"
        ):
            remote.request(images(5))
    assert set(sizes) == {4}


def test_varying_shapes_keep_a_bounded_number_of_heads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("harness.backends.parts.kserve.encoding.MOST_HEADS", 3)
    monkeypatch.setattr("harness.backends.parts.kserve.decoding.MOST_LAYOUTS", 3)
    server = triton(echo, _echo_model("FP32", [-1, -1]), 0)
    remote = opened(server, model_name="echo", inputs=())
    for length in [*range(1, 9), *range(1, 9)]:
        rows = np.full((2, length), length, np.float32)
        answer = asked(remote, server, Batch(2, {"x": rows}))
        assert np.array_equal(answer, rows)
    assert len(remote._decode._layouts) <= 3


def test_json_requests_hold_flat_lists_that_every_server_takes() -> None:
    remote = opened(mlserver(digits, DIGITS))
    batch = images(2)
    request = remote.request(batch)
    assert request.headers == (("Content-Type", "application/json"),)
    content, inputs = inputs_of(request)
    assert content["inputs"][0]["shape"] == [2, 1, 8, 8]
    assert np.array_equal(
        np.array(inputs["image"].values, np.float32), batch.inputs["image"].reshape(-1)
    )
    with pytest.raises(ValueError, match="JSON"):
        remote.request(Batch(1, {"image": np.full((1, 1, 8, 8), np.nan, np.float32)}))
