"""The remote backend http-raw sends the bytes of a sample, and receives the bytes of an answer."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.backends.http_raw import HttpRawRemote
from harness.remote import BadAnswer, Refused, Remote, Reply, Request
from harness.types import BackendSetup, Batch, TensorSpec
from tests.builders.refusals import refusal

IMAGE = TensorSpec("image", "float32", ("batch", 2, 2))
TEXT = TensorSpec("text", "string", ("batch",))


def opened(inputs: tuple[TensorSpec, ...] = (IMAGE,), **options: str) -> HttpRawRemote:
    remote = HttpRawRemote(
        BackendSetup(model=None, model_name="m", inputs=inputs, max_batch=1, options=options)
    )
    remote.open(_nothing_is_asked)
    return remote


def _nothing_is_asked(request: Request) -> Reply:
    raise AssertionError(request)


def reply(body: bytes, status: int = 200) -> Reply:
    return Reply(status, b"HTTP/1.1 %d Whatever\r\n\r\n" % status, memoryview(body))


def test_the_body_is_the_sample_s_own_bytes() -> None:
    remote = opened(path="/predict/", content_type="image/raw")
    assert isinstance(remote, Remote)
    rows = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    request = remote.request(Batch(2, {"image": rows}))
    assert (request.method, request.path) == ("POST", "/predict/")
    assert request.headers == (("Content-Type", "image/raw"),)
    (part,) = request.body
    assert np.shares_memory(np.asarray(part), rows)
    assert memoryview(part).tobytes() == rows.tobytes()


@pytest.mark.parametrize("rows", [np.arange(8, dtype=">i4")[::2], np.arange(8, dtype="<i4")[::2]])
def test_the_bytes_are_in_c_order_with_the_lowest_first(rows: Any) -> None:
    (part,) = opened(()).request(Batch(4, {"x": rows})).body
    assert memoryview(part).tobytes() == bytes([0, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 6, 0, 0, 0])


def test_a_text_is_sent_as_utf_8() -> None:
    remote = opened((TEXT,))
    for text, expected in (("é", b"\xc3\xa9"), (b"\xff\0", b"\xff\0"), ("", b"")):
        rows = np.empty(1, object)
        rows[0] = text
        assert list(remote.request(Batch(1, {"text": rows})).body) == [expected]
    two = Batch(2, {"text": np.array(["a", "b"], object)})
    told = refusal(remote.request, two, error=ValueError)
    assert told == "a request can carry one string, but the batch has 2"


def test_answers_follow_each_other() -> None:
    rows = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    buffer = bytearray(rows.tobytes())
    answer = opened(dtype="int16", shape="3x4").answer(
        reply(b"")._replace(body=memoryview(buffer)), 2
    )
    # The answer must stay valid after the reply's buffer is overwritten.
    buffer[:] = bytes(len(buffer))
    assert answer.dtype == np.int16
    assert answer.tolist() == rows.tolist()


def test_answer_without_a_shape_is_one_number() -> None:
    assert opened().answer(reply(np.array([1.5, 2], np.float32).tobytes()), 2).tolist() == [1.5, 2]
    assert opened(dtype="u8").answer(reply(b"\x07"), 1).tolist() == [7]


@given(st.binary(max_size=100), st.integers(1, 5), st.sampled_from([200, 204, 404, 500]))
def test_any_bytes_are_an_answer_of_the_right_shape_or_an_error(
    body: bytes, samples: int, status: int
) -> None:
    remote = opened(dtype="float16", shape="3")
    try:
        answer = remote.answer(reply(body, status), samples)
    except BadAnswer:
        assert status == 200
        assert len(body) != samples * 6
    except Refused:
        assert status != 200
    else:
        assert answer.shape == (samples, 3)
        assert answer.tobytes() == body


def test_error_shows_the_reply_that_came_instead() -> None:
    remote = opened(shape="10")
    with pytest.raises(Refused, match=r"^the server answered 404: no such page$"):
        remote.answer(reply(b"no such\npage\n", 404), 1)
    with pytest.raises(Refused, match=r"^the server answered 500: no text$"):
        remote.answer(reply(b"", 500), 1)
    assert refusal(remote.answer, reply(bytes(44)), 1, error=BadAnswer) == (
        "the reply has 44 bytes, but 1 x float32 of shape [10] have 40: see --backend-option dtype and "
        "shape"
    )


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        ((IMAGE,), {"path": "predict"}, "--backend-option path: 'predict' does not begin with /"),
        ((IMAGE,), {"shape": "3x"}, "shape: '3x' is not an answer shape such as 10 or 3x4"),
        ((IMAGE,), {"shape": "-1"}, "shape: '-1' is not an answer shape such as 10 or 3x4"),
        ((IMAGE,), {"shape": "0"}, "shape: '0' is not an answer shape such as 10 or 3x4"),
        ((IMAGE,), {"dtype": "bfloat16"}, "--backend-option dtype: 'bfloat16' is not one of float64"),
        ((IMAGE,), {"dtype": "bool"}, "--backend-option dtype: 'bool' is not one of float64"),
        ((IMAGE,), {"size": "3"}, "backend 'http-raw' has no option 'size': choose from path=/PATH"),
        ((IMAGE, TEXT), {}, "backend 'http-raw' sends one input, but model 'm' has image, text: use a KServe v2 server and --backend kserve"),
    ],
)  # fmt: skip
def test_request_that_cannot_be_sent_is_refused(
    inputs: tuple[TensorSpec, ...], options: dict[str, str], message: str
) -> None:
    assert message in refusal(opened, inputs, **options)


def test_texts_are_sent_one_a_request() -> None:
    two = BackendSetup(model=None, model_name="m", inputs=(TEXT,), max_batch=2)
    told = refusal(HttpRawRemote, two)
    assert told == "backend 'http-raw' sends one string per request: set --max-batch 1"


def test_a_batch_of_two_inputs_cannot_be_sent() -> None:
    rows = np.zeros((1, 2), np.float32)
    with pytest.raises(ValueError, match=r"^one input can be sent, but the batch has a, b$"):
        opened(()).request(Batch(1, {"a": rows, "b": rows}))


def test_description_shows_the_request() -> None:
    assert opened(shape="10", path="/p").describe() == {
        "framework": "unknown",
        "protocol": "bytes over HTTP",
        "device": "remote",
        "precision": "unknown",
        "path": "/p",
        "answer": "float32 of shape [10]",
    }
