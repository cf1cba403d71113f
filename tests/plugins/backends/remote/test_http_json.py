"""The remote backend http-json: request templates, pointers into replies, and errors in both."""

import email
import email.policy
import io
import json
import wave
from base64 import b64decode
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.backends.http_json import HttpJsonRemote
from harness.backends.parts.http_json.png import png_of
from harness.backends.parts.http_json.pointer import Pointer
from harness.remote import BadAnswer, HasReader, JoinsSamples, Refused, Remote, Reply, Request
from harness.types import BackendSetup, Batch, TensorSpec
from tests.builders.refusals import refusal

IMAGE = TensorSpec("image", "float32", ("batch", 2, 2))
PIXELS = TensorSpec("pixels", "uint8", ("batch", 2, 3, 3))
TEXT = TensorSpec("text", "string", ("batch",))
AGE = TensorSpec("age", "int64", ("batch",))
ROWS = np.arange(8, dtype=np.float32).reshape(2, 2, 2) / 2


def opened(inputs: tuple[TensorSpec, ...] = (IMAGE,), max_batch: int = 1, **options: str) -> Any:
    setup = BackendSetup(
        model=None, model_name="m", inputs=inputs, max_batch=max_batch, options=options
    )
    remote = HttpJsonRemote(setup)
    remote.open(_nothing_is_asked)
    return remote


def _nothing_is_asked(request: Request) -> Reply:
    raise AssertionError(request)


def sent(remote: HttpJsonRemote, **inputs: Any) -> Any:
    """Returns the content of the request for a batch."""
    size = len(next(iter(inputs.values())))
    (body,) = remote.request(Batch(size, inputs)).body
    return json.loads(bytes(body))


def texts(*values: object) -> Any:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def reply(content: object, status: int = 200) -> Reply:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return Reply(status, b"HTTP/1.1 %d Whatever\r\n\r\n" % status, memoryview(body))


def test_default_request_is_that_of_tensorflow_serving() -> None:
    remote = opened(path="/v1/models/m:predict", shape="2", max_batch=2)
    assert isinstance(remote, Remote)
    assert isinstance(remote, JoinsSamples)
    request = remote.request(Batch(2, {"image": ROWS}))
    assert (request.method, request.path) == ("POST", "/v1/models/m:predict")
    assert request.headers == (("Content-Type", "application/json"),)
    assert json.loads(bytes(request.body[0])) == {"instances": ROWS.tolist()}
    found: Any = remote.answer(reply({"predictions": [[1, 2.5], [3, 4]]}), 2)
    assert (found.dtype, found.tolist()) == (np.float32, [[1, 2.5], [3, 4]])


def test_samples_of_several_inputs_are_objects() -> None:
    remote = opened((IMAGE, AGE), max_batch=2)
    ages = np.array([3, 2**53 + 1])
    assert sent(remote, image=ROWS, age=ages) == {
        "instances": [
            {"image": ROWS[0].tolist(), "age": 3},
            {"image": ROWS[1].tolist(), "age": 2**53 + 1},
        ]
    }


def test_template_of_one_sample_forms_the_list() -> None:
    remote = opened(
        (PIXELS, TEXT),
        max_batch=2,
        body='{"rows": "{{samples}}", "top": 3}',
        sample='{"image": {"b64": "{{pixels|base64}}"}, "prompt": "Say \\"{{text}}\\""}',
        answers="/rows",
    )
    pixels = np.arange(36, dtype=np.uint8).reshape(2, 2, 3, 3)
    content = sent(remote, pixels=pixels, text=texts('a "b"\n\u00e9', "\U0001f600"))
    assert [b64decode(row["image"]["b64"]) for row in content["rows"]] == [
        pixels[0].tobytes(),
        pixels[1].tobytes(),
    ]
    assert [row["prompt"] for row in content["rows"]] == ['Say "a "b"\n\u00e9"', 'Say "\U0001f600"']
    assert content["top"] == 3


def test_columns_have_a_value_of_each_sample() -> None:
    remote = opened(
        (IMAGE, AGE),
        max_batch=3,
        body="inputs: {x: '{{image[]}}', age: '{{ age[] | list }}'}",
        answers="/o",
    )
    content = sent(remote, image=ROWS, age=np.array([1, 2]))
    assert content == {"inputs": {"x": ROWS.tolist(), "age": [1, 2]}}


def test_one_sample_may_be_spread_over_a_body() -> None:
    body = '{"x": "{{image|flat}}", "size": "{{image|shape}}", "age": "{{age}}", "tags": [null, true, 1.5, "{}"]}'
    content = sent(opened((IMAGE, AGE), body=body), image=ROWS[:1], age=np.array([7]))
    assert content == {
        "x": [0, 0.5, 1, 1.5],
        "size": [2, 2],
        "age": 7,
        "tags": [None, True, 1.5, "{}"],
    }


@pytest.mark.parametrize("body", ["{{image}}", " {{ image }} ", '"{{image}}"'])
def test_body_may_be_one_placeholder(body: str) -> None:
    assert sent(opened(body=body), image=ROWS[:1]) == ROWS[0].tolist()


def test_text_with_braces_in_a_sample_stays_a_text() -> None:
    nasty = '{{text}}", "admin": true, "x": "'
    content = sent(opened((TEXT,), body='{"q": "{{text}}", "p": "<{{text}}>"}'), text=texts(nasty))
    assert content == {"q": nasty, "p": f"<{nasty}>"}


def test_sample_that_is_json_is_a_part_of_the_body() -> None:
    body = '{"messages": "{{text|json/messages}}", "all": "{{text|json}}"}'
    sample = {"max_tokens": 4, "messages": [{"role": "user", "content": "\u00e9"}]}
    content = sent(opened((TEXT,), body=body), text=texts(json.dumps(sample).encode()))
    assert content == {"messages": sample["messages"], "all": sample}


def test_npy_of_an_array_is_read_back_by_numpy() -> None:
    content = sent(opened(body='{"x": "{{image|npy}}"}'), image=ROWS[:1])
    array = np.load(io.BytesIO(b64decode(content["x"])), allow_pickle=False)
    assert (array.dtype, array.tolist()) == (np.float32, ROWS[0].tolist())


@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 1), (5, 4, 2), (5, 4, 3), (5, 4, 4), (3, 5, 6)])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_png_of_pixels_is_read_back_by_pillow(shape: tuple[int, ...], dtype: type) -> None:
    image = pytest.importorskip("PIL.Image")
    size = int(np.prod(shape))
    pixels: Any = (np.arange(size) * 7919 % np.iinfo(dtype).max).astype(dtype).reshape(shape)
    with image.open(io.BytesIO(png_of(pixels))) as read:
        read.load()
        found = np.asarray(read)
    expected = pixels.transpose(1, 2, 0) if shape == (3, 5, 6) else pixels
    expected = expected[..., 0] if expected.shape[-1] == 1 else expected
    # Pillow reads only the upper bytes of 16-bit colours.
    if dtype is np.uint16 and expected.ndim == 3:
        expected = (expected >> 8).astype(np.uint8)
        # Pillow reads grey with alpha as three equal colours with alpha.
        found = found[..., [0, 3]] if shape[-1] == 2 else found
    assert found.shape == expected.shape
    assert found.astype(np.int64).tolist() == expected.astype(np.int64).tolist()


def test_bare_body_has_the_bytes_of_the_sample() -> None:
    pixels = np.zeros((1, 2, 3, 3), np.uint8)
    remote = opened((PIXELS,), body="{{pixels|png}}", content_type="image/png")
    request = remote.request(Batch(1, {"pixels": pixels}))
    assert request.headers == (("Content-Type", "image/png"),)
    assert bytes(request.body[0]) == png_of(pixels[0])
    remote = opened((TEXT,), body="{{text}}", content_type="text/plain; charset=utf-8")
    assert bytes(remote.request(Batch(1, {"text": texts("\u00e9")})).body[0]) == b"\xc3\xa9"


def test_headers_and_method_are_sent() -> None:
    remote = opened(
        method="PUT", headers='{"X-Version": "2"}', content_type="application/vnd.x+json"
    )
    request = remote.request(Batch(1, {"image": ROWS[:1]}))
    assert request.method == "PUT"
    assert request.headers == (("Content-Type", "application/vnd.x+json"), ("X-Version", "2"))


@given(st.integers(1, 4), st.data())
def test_joined_pieces_equal_the_request_of_the_batch(size: int, data: st.DataObject) -> None:
    words = [data.draw(st.text(st.characters(exclude_categories=["Cs"]))) for _ in range(size)]
    values = np.array(
        [data.draw(st.floats(width=32, allow_nan=False, allow_infinity=False)) for _ in words]
    )
    remote = opened(
        (TEXT, TensorSpec("x", "float64", ("batch",))),
        max_batch=4,
        body='{"a": "{{samples}}", "b": ["{{x[]}}", "{{text[]}}"]}',
        sample='["{{x}}", "{{text}}!"]',
        answers="/a",
    )
    inputs = {"text": texts(*words), "x": values}
    pieces = [
        remote.pieces(Batch(1, {name: rows[i : i + 1] for name, rows in inputs.items()}))
        for i in range(size)
    ]
    assert remote.joined(pieces) == remote.request(Batch(size, inputs))
    assert sent(remote, **inputs) == {
        "a": [[x, f"{word}!"] for x, word in zip(values.tolist(), words, strict=True)],
        "b": [values.tolist(), words],
    }


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("", {"a": [{"b": 1}], "": 2, "a/b": 3, "m~n": 4, "~1": 5}),
        ("#", {"a": [{"b": 1}], "": 2, "a/b": 3, "m~n": 4, "~1": 5}),
        ("#/a/0/b", 1),
        ("#/m~0n", 4),
        ("#/a%7E1b", 3),
        ("/a/0/b", 1),
        ("/", 2),
        ("/a~1b", 3),
        ("/m~0n", 4),
        ("/~01", 5),
    ],
)
def test_pointer_finds_values_as_rfc_6901_demands(pointer: str, value: object) -> None:
    content = {"a": [{"b": 1}], "": 2, "a/b": 3, "m~n": 4, "~1": 5}
    assert Pointer(pointer).find(content) == value


@pytest.mark.parametrize(
    "pointer", ["/a/1", "/a/-", "/a/00", "/a/b", "/b", "/a/0/b/c", "/a/\u0661"]
)
def test_pointer_to_nothing_is_a_lookup_error(pointer: str) -> None:
    with pytest.raises(LookupError):
        Pointer(pointer).find({"a": [{"b": 1}]})


def test_answer_of_one_sample_lies_anywhere() -> None:
    remote = opened(body='{"x": "{{image}}"}', answer="/results/0/scores", shape="3")
    found = remote.answer(reply({"results": [{"scores": [1, 2, 3]}]}), 1)
    assert found.tolist() == [[1, 2, 3]]
    assert opened(body="{{image}}", dtype="int64").answer(reply(b"7"), 1).tolist() == [7]
    assert opened(body="{{image}}", dtype="bool").answer(reply(b"true"), 1).tolist() == [True]


def test_answers_of_a_batch_are_items_of_a_list() -> None:
    remote = opened(max_batch=4, answers="/predictions", answer="/p/scores", shape="2")
    content = {"predictions": [{"p": {"scores": [1, 2]}}, {"p": {"scores": [3, 4]}}]}
    assert remote.answer(reply(content), 2).tolist() == [[1, 2], [3, 4]]


def test_whole_reply_may_be_the_list_of_answers() -> None:
    remote = opened(max_batch=2, body="{{samples}}", answers="#", shape="2")
    assert remote.answer(reply([[1, 2], [3, 4]]), 2).tolist() == [[1, 2], [3, 4]]
    line = refusal(remote.answer, reply({"x": 1}), 1, error=BadAnswer)
    assert line.startswith("the reply has an object at '#', not a list of answers (it ")


def test_answers_of_varying_shape_are_an_array_each() -> None:
    remote = opened(max_batch=4, shape="?x4")
    content = {"predictions": [[[1, 2, 3, 4]], [], [[1, 2, 3, 4], [5, 6, 7, 8]]]}
    found = remote.answer(reply(content), 3)
    assert [row.shape for row in found] == [(1, 4), (0, 4), (2, 4)]
    assert np.asarray(remote.answer(reply({"predictions": [[], []]}), 2)).shape == (2, 0, 4)
    line = refusal(remote.answer, reply({"predictions": [[1], []]}), 2, error=BadAnswer)
    assert "has the shape [1], not [?, 4]: see --backend-option shape" in line
    same = remote.answer(reply({"predictions": [[[1, 2, 3, 4]], [[5, 6, 7, 8]]]}), 2)
    assert np.asarray(same).shape == (2, 1, 4)


def test_answers_that_are_texts_become_utf_8() -> None:
    found = opened(max_batch=2, dtype="text").answer(reply({"predictions": ["\u00e9", ""]}), 2)
    assert [row.tobytes() for row in found] == ["\u00e9".encode(), b""]


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"<html>", {}, "the reply is not valid JSON (it begins with b'<html>')"),
        (b"", {}, "the reply is not valid JSON (it is empty)"),
        ({"outputs": [1]}, {}, "the reply has nothing at '/predictions' (it begins with b'{\"outputs\": [1]}')"),
        (
            {"predictions": [{"x": 1}]},
            {"answer": "/scores"},
            "the reply has nothing at '/predictions', or an item of that list has nothing at '/scores' (it begins with ",
        ),
        ({"predictions": [1, 2]}, {}, "the reply has 2 answers at '/predictions' for 1 samples (it "),
        ({"predictions": {"a": 1}}, {}, "the reply has an object at '/predictions', not a list of answers ("),
        (
            {"predictions": [[1, 2, 3]]},
            {},
            "an answer in the reply has the shape [3], not one number: see --backend-option shape (it begins with b'{\"predictions\": [[1, 2, 3]]}')",
        ),
        ({"predictions": [[1, 2, 3]]}, {"shape": "2"}, "has the shape [3], not [2]: see --backend-option shape"),
        ({"predictions": [[[1], [1, 2]]]}, {"shape": "2x2"}, "has lists of different lengths (it"),
        ({"predictions": ["a"]}, {}, "has a string that is not float32: see --backend-option dtype"),
        ({"predictions": [1.5]}, {"dtype": "int8"}, "has a number that is not int8: see --backend-option dtype"),
        ({"predictions": [300]}, {"dtype": "int8"}, "has a number that is not int8: see"),
        ({"predictions": [None]}, {}, "an answer in the reply has null instead of a number (it begins with "),
        (b'{"predictions": [NaN]}', {}, "an answer in the reply has NaN or infinity instead of a number (it "),
        ({"predictions": [[1.0, float("inf")]]}, {"shape": "2"}, "has NaN or infinity instead of a number (it begins with"),
        ({"predictions": [True]}, {}, "has a bool that is not float32: see"),
        ({"predictions": [1]}, {"dtype": "text"}, "is a number, not a string: see --backend-option dtype"),
    ],
)  # fmt: skip
def test_wrong_answer_is_reported_in_one_line(
    content: object, options: dict[str, Any], message: str
) -> None:
    line = refusal(opened(**options).answer, reply(content), 1, error=BadAnswer)
    assert message in line


def test_masked_scores_and_constants_beside_the_answer_are_accepted() -> None:
    body = b'{"predictions": [[-Infinity, 1.5]], "loss": NaN}'
    answer = opened(shape="2").answer(reply(body), 1)
    assert answer.tolist() == [[-np.inf, 1.5]]


def test_only_the_first_60_bytes_of_a_wrong_answer_are_shown() -> None:
    body = b'{"a": "' + b"x" * 1000 + b'"}'
    line = refusal(opened().answer, reply(body), 1, error=BadAnswer)
    assert line.endswith(f"(it begins with {body[:60]!r})")


def test_errors_are_reported_in_the_server_s_words() -> None:
    remote = opened()
    with pytest.raises(Refused, match=r"^the server answered 400: Servable not found$"):
        remote.answer(reply({"error": "Servable not found"}, 400), 1)
    detail = {"detail": [{"loc": ["body", "x"], "msg": "Field required"}]}
    with pytest.raises(Refused, match=r"^the server answered 422: Field required \(body\.x\)$"):
        remote.answer(reply(detail, 422), 1)
    with pytest.raises(Refused, match=r"^the server answered 200: out of memory$"):
        remote.answer(reply({"error": "out of memory"}), 1)
    with pytest.raises(Refused, match=r"^the server answered 204: no text$"):
        remote.answer(reply(b"", 204), 1)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(
    st.one_of(st.binary(max_size=80), st.builds(lambda value: {"predictions": value}, JSON)),
    st.integers(1, 4),
    st.sampled_from(["", "2", "?", "?x2", "2x2"]),
    st.sampled_from(["float32", "int16", "bool", "text"]),
)
def test_any_reply_is_an_answer_per_sample_or_an_error(
    content: object, samples: int, shape: str, dtype: str
) -> None:
    options: dict[str, Any] = {
        "dtype": dtype,
        **({"shape": shape} if shape and dtype != "text" else {}),
    }
    try:
        found = opened(**options).answer(reply(content), samples)
    except (BadAnswer, Refused) as e:
        lines = str(e).splitlines()
    else:
        lines = ["no error"]
        assert len(found) == samples
    assert len(lines) == 1


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        ((IMAGE,), {"path": "predict"}, "--backend-option path: 'predict' does not begin with /"),
        ((IMAGE,), {"method": "GET"}, "--backend-option method: 'GET' is not one of POST, PUT, PATCH"),
        ((IMAGE,), {"body": '{"x": {{image}}}'}, "--backend-option body: {{image}} is a string: put it in quotes"),
        ((IMAGE,), {"body": '{"x": 1, "x": "{{image}}"}'}, "--backend-option body: is not valid JSON: "),
        ((IMAGE,), {"body": '{"x": 1}'}, "--backend-option body: body has no placeholder, so all requests would be identical: write e.g."),
        ((IMAGE,), {"body": "{{imag}}"}, "--backend-option body: {{imag}} is not an input of the model: it has image, samples"),
        ((IMAGE,), {"body": '{"{{image}}": 1}'}, "--backend-option body: the key '{{image}}' has a placeholder, but only values can be placeholders"),
        ((IMAGE,), {"body": "1: '{{image}}'"}, "--backend-option body: the key 1 is not a string: put it in quotes"),
        ((IMAGE,), {"body": '["{{image}}", "{{a b"]'}, "'{{a b' is not a placeholder such as {{image}}"),
        ((IMAGE,), {"body": "{{image|jpeg}}"}, "unknown form 'jpeg': use list, flat, shape, base64, png, npy, wav, json"),
        ((IMAGE,), {"body": "{{image|json}}"}, "the form json is for strings, but the input is float32"),
        ((IMAGE,), {"body": "{{image|png}}"}, "PNG stores uint8 or uint16, but the input is float32: use npy or base64"),
        ((TEXT,), {"body": "{{text|png}}"}, "the form png is not for strings: use list, base64 or json"),
        ((TEXT,), {"body": '["all {{samples}}"]'}, "{{samples}} is a list, which cannot be part of the string 'all {{samples}}'"),
        ((TEXT,), {"body": '["{{samples|flat}}"]'}, "{{samples|flat}} has a form: put the form in the template of one sample"),
        ((TEXT,), {"sample": '{"x": 1}'}, "the template of one sample has no placeholder, so all samples would be identical"),
        ((TEXT,), {"sample": '"{{text[]}}"'}, "{{text[]}} is a list of samples, but this is the template of one sample"),
        ((TEXT,), {"body": "{{text}}", "sample": "{{text}}"}, "body has no {{samples}}, where the template of one sample would go"),
        ((), {}, "{{samples}} needs a manifest, which lists the model's inputs"),
        ((IMAGE,), {"answer": "a"}, "--backend-option answer: 'a' does not begin with /: write e.g. /predictions/0/scores"),
        ((IMAGE,), {"answers": "/a~2"}, "--backend-option answers: '/a~2' has a ~ that is not part of ~0 (for ~) or ~1 (for /)"),
        ((IMAGE,), {"dtype": "bfloat16"}, "--backend-option dtype: 'bfloat16' is not one of bool, uint8"),
        ((IMAGE,), {"shape": "3x"}, "--backend-option shape: '3x' is not an answer shape such as 10 or 3x4"),
        ((IMAGE,), {"dtype": "text", "shape": "3"}, (
            "--backend-option shape: an answer with "
            "dtype=text is a single string: drop shape"
        )),
        ((IMAGE,), {"headers": '{"X": 1}'}, "--backend-option headers: the value is not an object of strings: write e.g."),
        ((IMAGE,), {"content_type": "image/png"}, "--backend-option body: a body that is not JSON must be one placeholder, e.g. {{image|png}}"),
        ((IMAGE,), {"size": "3"}, "backend 'http-json' has no option 'size': choose from path=/PATH"),
        ((IMAGE,), {"max_batch": 2, "body": "{{image}}"}, "with this body sends one sample per request: drop --max-batch 2, or make body list the samples with {{samples}} or {{NAME[]}}"),
        ((IMAGE,), {"max_batch": 2, "body": "{{image[]}}"}, "--max-batch 2 needs --backend-option answers=/POINTER, which finds the list of answers in a reply"),
    ],
)  # fmt: skip
def test_request_that_cannot_be_made_is_refused(
    inputs: tuple[TensorSpec, ...], options: dict[str, Any], message: str
) -> None:
    assert message in refusal(opened, inputs, **options)


@pytest.mark.parametrize(
    ("inputs", "body", "values", "message"),
    [
        ((IMAGE,), "{{image}}", {"image": np.full((1, 2, 2), np.nan, np.float32)}, "input 'image': Out of range float values are not JSON compliant"),
        ((PIXELS,), "{{pixels|png}}", {"pixels": np.zeros((1, 5, 2, 9), np.uint8)}, "input 'pixels': an image has the shape [height, width], with or without 1 to 4 channels, but the input has [5, 2, 9]"),
        ((TEXT,), "{{text}}", {"text": texts(b"\xff")}, "input 'text': its bytes are not UTF-8: use base64"),
        ((TEXT,), "{{text}}", {"text": texts("\udcff")}, "input 'text': its bytes are not UTF-8: use base64"),
        ((TEXT,), "{{text|json}}", {"text": texts("a")}, "input 'text': the sample is not valid JSON: 'a'"),
        ((TEXT,), "{{text|json/p}}", {"text": texts("{}")}, "input 'text': the sample has nothing at '/p'"),
        ((IMAGE,), '"x {{image}}"', {"image": ROWS[:1]}, "input 'image': only a string or a single number can be part of a string"),
    ],
)  # fmt: skip
def test_sample_that_json_cannot_hold_is_reported(
    inputs: tuple[TensorSpec, ...], body: str, values: dict[str, Any], message: str
) -> None:
    remote = opened(inputs, body=body)
    assert message in refusal(remote.request, Batch(1, values), error=ValueError)


def test_bytes_that_are_not_utf_8_are_sent_as_base64() -> None:
    content = sent(opened((TEXT,), body='["{{text|base64}}"]'), text=texts(b"\xff\0"))
    assert b64decode(content[0]) == b"\xff\0"


def test_description_shows_the_request_and_the_answer() -> None:
    remote = opened(path="/p", body='{"x": "{{image}}"}', answer="/y", shape="?x4")
    assert remote.describe() == {
        "framework": "unknown",
        "protocol": "JSON over HTTP",
        "device": "remote",
        "precision": "unknown",
        "path": "/p",
        "body": '{"x":"{{image}}"}',
        "answer": "/y, float32 of shape [?, 4]",
    }


SOUND = TensorSpec("audio", "float32", ("batch", 4))
HEARD = np.array([[0.0, 0.5, -1.0, 1.0]], np.float32)


def wav(content: bytes) -> tuple[int, list[int]]:
    with wave.open(io.BytesIO(content)) as file:
        assert (file.getnchannels(), file.getsampwidth()) == (1, 2)
        values = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        return file.getframerate(), values.tolist()


def test_sound_is_sent_as_a_wav_file() -> None:
    remote = opened((SOUND,), body='{"audio": "{{audio|wav}}", "low": "{{audio|wav/8000}}"}')
    content = sent(remote, audio=HEARD)
    values = [0, 16384, -32768, 32767]
    assert wav(b64decode(content["audio"])) == (16_000, values)
    assert wav(b64decode(content["low"])) == (8000, values)


def test_form_has_its_fields_and_the_sample_as_a_file() -> None:
    body = '{"model": "w", "file": "{{audio|wav}}", "temperature": 0}'
    remote = opened(
        (SOUND,), content_type="multipart/form-data", body=body, answer="/text", dtype="text"
    )
    request = remote.request(Batch(1, {"audio": HEARD}))
    assert remote.joined([remote.pieces(Batch(1, {"audio": HEARD}))]) == request
    ((name, kind),) = request.headers
    assert name == "Content-Type"
    message = email.message_from_bytes(
        b"Content-Type: " + kind.encode() + b"\r\n\r\n" + b"".join(map(bytes, request.body)),
        policy=email.policy.HTTP,
    )
    parts = {
        part.get_param("name", header="content-disposition"): part for part in message.iter_parts()
    }
    assert [*parts] == ["model", "temperature", "file"]
    assert parts["model"].get_payload() == "w"
    assert parts["temperature"].get_payload() == "0"
    assert (parts["file"].get_content_type(), parts["file"].get_filename()) == (
        "audio/wav",
        "sample.wav",
    )
    file = bytes(request.body[0]).split(b"Content-Type: audio/wav\r\n\r\n")[1]
    assert wav(file.rpartition(b"\r\n--")[0])[1] == [0, 16384, -32768, 32767]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("{{audio|wav}}", "the body of a form must be an object"),
        ('{"model": "w"}', "a form has one placeholder, but this one has 0"),
        ('{"a": "{{audio|wav}}", "b": "{{audio|npy}}"}', "but this one has 2"),
        ('{"a": "{{audio|wav}}", "b": [1]}', "the form field 'b' is neither a string nor a number"),
        ('{"a": "{{audio|wav/x}}"}', "the sampling rate 'x' is not a number of Hz"),
    ],
)
def test_form_that_cannot_be_written_is_refused(body: str, told: str) -> None:
    assert told in refusal(opened, (SOUND,), content_type="multipart/form-data", body=body)


def test_tokens_are_read_where_the_option_points() -> None:
    remote = opened(
        (TEXT,),
        body='{"q": "{{text}}"}',
        answer="/text",
        dtype="text",
        tokens="/usage/output_tokens",
    )
    assert isinstance(remote, HasReader)
    assert not remote.streams
    reader = remote.reader()
    answer: Any
    (answer,) = reader.answer(reply({"text": "hi", "usage": {"output_tokens": 3}}))
    assert (bytes(answer), reader.usage.output, reader.usage.source) == (b"hi", 3, "usage")
    assert refusal(remote.reader().answer, reply({"text": "hi"}), error=BadAnswer) == (
        "the reply has no tokens at '/usage/output_tokens' (it begins with b'{\"text\": \"hi\"}')"
    )
    bad = reply({"text": "hi", "usage": {"output_tokens": "3"}})
    assert "has a string at" in refusal(remote.reader().answer, bad, error=BadAnswer)
    assert not isinstance(opened((TEXT,), body='{"q": "{{text}}"}'), HasReader)


def test_wrong_pointer_to_tokens_is_found_before_the_run() -> None:
    """Bug: the pointer was not used before the run, so all samples of the run failed."""
    remote = opened((TEXT,), body='{"q": "{{text}}"}', answer="/text", dtype="text", tokens="/n")
    line = refusal(remote.answer, reply({"text": "hi"}), 1, error=BadAnswer)
    assert line.startswith("the reply has no tokens at '/n' (it begins with ")
    (answer,) = remote.answer(reply({"text": "hi", "n": 2}), 1)
    assert bytes(answer) == b"hi"


def test_tokens_may_be_listed() -> None:
    remote = opened((TEXT,), body='{"q": "{{text}}"}', answer="/text", dtype="text", tokens="/ids")
    reader = remote.reader()
    reader.answer(reply({"text": "hi", "ids": [5, 6]}))
    assert reader.usage.output == 2
