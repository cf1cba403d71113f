"""The protocol without a socket: tensors of every type in both encodings, metadata, and every refusal."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from prometheus_client.parser import text_string_to_metric_families

from harness.core.formats.kserve_tensors import (
    DATATYPES,
    datatype_of_array,
    from_json,
    raw_texts,
    texts_from,
)
from harness.errors import ConfigError
from harness.models.manifest.lookup import load_model
from harness.models.manifest.model import Model
from harness.serve import kserve
from harness.serve.kserve import OpenInference
from harness.serve.loop import Later
from harness.serve.requests import Parser
from harness.serve.served import ServedModel, _steps
from harness.types import Array, Batch, Outputs, TensorSpec

INFER = "/v2/models/digits/infer"
NUMBERS = sorted({*DATATYPES} - {"BYTES"})


class Fake:
    """A backend that returns preset answers, or by default its inputs."""

    def __init__(self, answer: Callable[[Batch], Outputs] = lambda batch: dict(batch.inputs)):
        self.batches: list[Batch] = []
        self._answer = answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def infer(self, batch: Batch) -> Outputs:
        self.batches.append(batch)
        return self._answer(batch)

    def describe(self) -> Mapping[str, object]:
        return {"framework": "fake 1", "threads": 3}


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body[: self.json_bytes])

    @property
    def json_bytes(self) -> int:
        return int(self.headers.get("inference-header-content-length", len(self.body)))

    def outputs(self) -> dict[str, Array]:
        """Returns the outputs by name, decoded as the specification says."""
        found, at = {}, self.json_bytes
        for tensor in self.json["outputs"]:
            dtype, shape = DATATYPES[tensor["datatype"]], tensor["shape"]
            size = tensor.get("parameters", {}).get("binary_data_size")
            if size is None:
                kind = object if dtype == "string" else dtype
                values = np.array(tensor["data"], kind)
            elif dtype == "string":
                values = texts_from(self.body[at : at + size], int(np.prod(shape)))
            else:
                values = np.frombuffer(self.body[at : at + size], dtype)
            at += size or 0
            found[tensor["name"]] = values.reshape(shape)
        assert at == len(self.body)
        return found


def echo(name: str = "digits") -> ServedModel:
    """Returns a model that accepts any inputs."""
    return ServedModel(Model(name, None, Path(), None), Fake(), "fake", 8)


def digits(backend: Fake | None = None, max_batch: int = 8) -> ServedModel:
    return ServedModel(load_model("digits"), backend or Fake(), "fake", max_batch)


def ask(
    inference: OpenInference,
    path: str = INFER,
    body: bytes | None = None,
    json_bytes: int | None = None,
    method: str | None = None,
) -> Answer:
    method = method or ("GET" if body is None else "POST")
    head = f"{method} {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body or b'')}\r\n"
    if json_bytes is not None:
        head += f"Inference-Header-Content-Length: {json_bytes}\r\n"
    parser = Parser({})
    parser.add(head.encode() + b"\r\n" + (body or b""))
    request = parser.next()
    assert request is not None
    parts = inference.handle(request, 0)
    assert not isinstance(parts, Later)
    whole = b"".join(parts)
    text, _, rest = whole.partition(b"\r\n\r\n")
    first, *lines = text.decode().split("\r\n")
    headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
    assert int(headers["content-length"]) == len(rest)
    return Answer(int(first.split()[1]), headers, rest)


def infer(
    inference: OpenInference, inputs: Mapping[str, Array], *, binary: bool, **more: Any
) -> Answer:
    tensors, raws = [], []
    for name, array in inputs.items():
        datatype = datatype_of_array(array)
        tensor: dict[str, Any] = {"name": name, "datatype": datatype, "shape": [*array.shape]}
        if binary:
            raws.append(raw_texts(array) if datatype == "BYTES" else array.tobytes())
            tensor["parameters"] = {"binary_data_size": len(raws[-1])}
        else:
            tensor["data"] = array.tolist()
        tensors.append(tensor)
    text = json.dumps({"inputs": tensors, **more}).encode()
    return ask(inference, body=text + b"".join(raws), json_bytes=len(text) if binary else None)


ALL_BINARY = {"parameters": {"binary_data_output": True}}


def same(one: Array, other: Array) -> bool:
    return (
        one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    )


@given(data=st.data(), datatype=st.sampled_from(NUMBERS), binary=st.tuples(*[st.booleans()] * 2))
def test_numbers_return_bit_by_bit(
    data: st.DataObject, datatype: str, binary: tuple[bool, bool]
) -> None:
    shape = data.draw(st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(1, 3)))
    dtype = np.dtype(DATATYPES[datatype])
    as_json = not all(binary)
    elements = (
        st.floats(width=8 * dtype.itemsize, allow_nan=not as_json, allow_infinity=not as_json)  # type: ignore[arg-type]
        if dtype.kind == "f"
        else None
    )
    array = data.draw(arrays(dtype, shape, elements=elements))
    inference = OpenInference(echo())
    asked = {"parameters": {"binary_data_output": binary[1]}}
    infer(inference, {"x": array}, binary=binary[0], **asked)
    # The server has the head in its cache now.
    answer = infer(inference, {"x": array}, binary=binary[0], **asked)
    assert answer.status == 200, answer.body
    assert same(answer.outputs()["x"], array)
    assert ("inference-header-content-length" in answer.headers) == binary[1]


@given(
    arrays(object, (2, 2), elements=st.text(max_size=5)), st.tuples(st.booleans(), st.booleans())
)
def test_texts_return_unchanged(array: Array, binary: tuple[bool, bool]) -> None:
    asked = {"parameters": {"binary_data_output": binary[1]}}
    answer = infer(OpenInference(echo()), {"x": array}, binary=binary[0], **asked)
    assert answer.status == 200, answer.body
    assert answer.outputs()["x"].tolist() == array.tolist()


def test_inputs_and_outputs_may_mix_both_encodings() -> None:
    a, b = np.arange(4, dtype=np.int64).reshape(2, 2), np.ones((2, 1), np.float32)
    as_json = {"name": "a", "datatype": "INT64", "shape": [2, 2], "data": [[0, 1], [2, 3]]}
    size = {"binary_data_size": 8}
    as_bytes = {"name": "b", "datatype": "FP32", "shape": [2, 1], "parameters": size}
    outputs = [{"name": "b"}, {"name": "a", "parameters": {"binary_data": True}}]
    content = {"id": "q/1", "inputs": [as_json, as_bytes], "outputs": outputs}
    text = json.dumps(content).encode()
    answer = ask(OpenInference(echo()), body=text + b.tobytes(), json_bytes=len(text))
    assert [o["name"] for o in answer.json["outputs"]] == ["b", "a"]
    assert "data" in answer.json["outputs"][0]
    assert "data" not in answer.json["outputs"][1]
    assert answer.json["id"] == "q/1"
    assert same(answer.outputs()["a"], a)
    assert same(answer.outputs()["b"], b)


def test_large_tensors_return_unchanged() -> None:
    array = np.arange(kserve.JOINED_BYTES, dtype=np.float32).reshape(4, -1)
    answer = infer(OpenInference(echo()), {"x": array}, binary=True, **ALL_BINARY)
    assert same(answer.outputs()["x"], array)


def test_answer_of_another_shape_does_not_use_the_cached_json() -> None:
    widths = iter([3, 3, 5])
    backend = Fake(lambda batch: np.full((batch.size, next(widths)), 7, np.float32))
    inference = OpenInference(digits(backend))
    shapes = [
        infer(inference, image(), binary=True, **ALL_BINARY).outputs()["logits"].shape
        for _ in range(3)
    ]
    assert shapes == [(2, 3), (2, 3), (2, 5)]


def test_requests_that_are_all_different_are_not_all_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kserve, "MOST_CALLS", 4)
    inference = OpenInference(digits())
    for number in range(20):
        answer = infer(inference, image(), binary=True, id=str(number), **ALL_BINARY)
        assert answer.json["id"] == str(number)
    assert len(inference._calls) <= 4


def image(samples: int = 2) -> dict[str, Array]:
    return {"image": np.linspace(0, 1, samples * 64, dtype=np.float32).reshape(samples, 1, 8, 8)}


def test_reply_reports_its_queue_compute_and_total_times() -> None:
    answer = infer(OpenInference(digits()), image(), binary=True, **ALL_BINARY)
    times = re.fullmatch(
        r"queue;dur=([\d.]+), compute;dur=([\d.]+), total;dur=([\d.]+)",
        answer.headers["server-timing"],
    )
    assert times
    queue, compute, total = map(float, times.groups())
    assert queue + compute <= total


def test_an_unnamed_output_has_the_name_of_the_manifest() -> None:
    backend = Fake(lambda batch: [np.full(10, i, np.float32) for i in range(batch.size)])
    answer = infer(OpenInference(digits(backend)), image(), binary=False)
    assert answer.outputs()["logits"].tolist() == [[0.0] * 10, [1.0] * 10]


def scores(batch: Batch) -> Array:
    """Returns scores in which the class of each sample is its position in the batch."""
    return np.eye(10, dtype=np.float32)[: batch.size]


def test_postprocessing_on_the_server_gives_answers_in_place_of_outputs() -> None:
    model = load_model("digits")
    steps = _steps(model)
    inference = OpenInference(ServedModel(model, Fake(scores), "fake", 8, steps), "node-1")
    assert ask(inference, "/v2").json["name"] == "node-1"
    for binary in (True, False):
        answer = infer(inference, image(3), binary=binary, **(ALL_BINARY if binary else {}))
        assert {name: [*rows] for name, rows in answer.outputs().items()} == {"answer": [0, 1, 2]}
    outputs = ask(inference, "/v2/models/digits").json["outputs"]
    assert outputs == [{"name": "answer", "datatype": "INT64", "shape": [-1]}]


def test_answer_with_nan_scores_is_an_error() -> None:
    model = load_model("digits")
    broken = Fake(lambda batch: scores(batch) * np.nan)
    served = ServedModel(model, broken, "fake", 8, _steps(model))
    assert infer(OpenInference(served), image(), binary=True).status == 500


@pytest.mark.parametrize(
    ("step", "name"), [("boxes", "yolo"), ("ctc", "ppocr-rec"), ("notes", "basic-pitch")]
)
def test_steps_whose_answers_have_no_tensor_are_refused(step: str, name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{step}' of model '{name}' gives answers of different"):
        _steps(load_model(name))


def test_metadata_list_the_inputs_and_outputs_of_the_model() -> None:
    inference = OpenInference(digits(Fake(lambda batch: np.zeros((batch.size, 10), np.float32))))
    assert ask(inference, "/v2").json["extensions"] == [*kserve.EXTENSIONS]
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/digits/ready"):
        assert ask(inference, path).status == 200
    about = ask(inference, "/v2/models/digits").json
    assert about["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}]
    assert about["properties"] == {"framework": "fake 1", "threads": "3"}
    infer(inference, image(), binary=True)
    about = ask(inference, "/v2/models/digits/versions/1").json
    assert about["outputs"] == [{"name": "logits", "datatype": "FP32", "shape": [-1, 10]}]
    assert ask(inference, "/v2/models/digits/config").json["max_batch_size"] == 8


@pytest.mark.parametrize("path", ["light/resnet50", "light%2Fresnet50"])
def test_a_name_with_a_slash_may_be_quoted(path: str) -> None:
    assert ask(OpenInference(echo("light/resnet50")), f"/v2/models/{path}/ready").status == 200


def request_of(**changes: Any) -> dict[str, Any]:
    """Returns a request with changes to its input; a change to None removes the field."""
    tensor = {"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [0.0] * 64}
    return {"inputs": [{k: v for k, v in {**tensor, **changes}.items() if v is not None}]}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "the request is not valid JSON"),
        ("[" * 100_000, "the request is not valid JSON"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ([], "the request is not a JSON object"),
        ({}, "the request has no inputs"),
        ({"inputs": {"a": 1}}, "inputs is not a list"),
        ({"inputs": [1]}, "one of inputs is not a JSON object"),
        ({"inputs": [{}]}, "each needs a unique name"),
        (request_of(name="pixels"), "the model has no input 'pixels', only image"),
        (request_of() | {"id": 5}, "id is not a string"),
        (request_of() | {"parameters": 5}, "parameters of the request is not a JSON object"),
        ({"inputs": request_of()["inputs"] * 2}, "'image' is not"),
        (request_of(datatype="BF16"), "'BF16' is not one of BOOL"),
        (request_of(datatype="FP64"), "input 'image' is FP32, but the request has FP64"),
        (request_of(shape=None), "shape is not a list of sizes"),
        (request_of(shape=[True, 1, 8, 8]), "shape is not a list of sizes"),
        (request_of(shape=[-1, 1, 8, 8]), "shape is not a list of sizes"),
        (request_of(shape=[]), "the shape is empty, so it has no batch"),
        (request_of(shape=[1, 64]), "has the shape [-1, 1, 8, 8], but the request has [1, 64]"),
        (request_of(shape=[0, 1, 8, 8], data=[]), "a batch of 0: the server accepts 1 to 8"),
        (request_of(shape=[9, 1, 8, 8], data=[0] * 576), "a batch of 9: the server accepts 1 to 8"),
        (request_of(data=None), "data is not a list"),
        (request_of(data=[0.0] * 63), "data does not fit the shape [1, 1, 8, 8]"),
        (request_of(data=["0"] * 64), "values that are not FP32"),
        (request_of(data=[[0.0], [0.0, 1.0]]), "input 'image': "),
        (request_of(data=[1e39] * 64), "does not fit FP32"),
        (request_of(parameters={"binary_data_size": 256}), "binary_data_size is not a size, or `data` is also present"),
        (request_of(data=None, parameters={"binary_data_size": 255}), "FP32 of the shape [1, 1, 8, 8] does not have 255 bytes"),
        (request_of(data=None, parameters={"binary_data_size": 256}), "0 bytes follow the JSON, but its tensors have 256"),
        (request_of(data=None, parameters={"shared_memory_region": "r"}), "does not have the extension shared_memory_region"),
        (request_of() | {"outputs": [{"name": "scores"}]}, "the model has no output 'scores'"),
        (request_of() | {"outputs": [{"name": "image", "parameters": {"classification": 3}}]}, "does not have the extension classification"),
    ],
)  # fmt: skip
def test_wrong_request_is_refused_with_the_cause(content: object, text: str) -> None:
    inference = OpenInference(digits())
    body = content if isinstance(content, str) else json.dumps(content)
    answer = ask(inference, body=body.encode())
    assert answer.status == 400
    assert text in answer.json["error"]
    assert inference.refused == 1
    assert infer(inference, image(), binary=True).status == 200


@pytest.mark.parametrize(
    ("datatype", "data", "text"),
    [
        ("INT8", [300], "does not fit INT8"),
        ("UINT8", [-1], "does not fit UINT8"),
        ("INT32", [1.5], "values that are not INT32"),
        ("INT64", [True], "values that are not INT64"),
        ("BOOL", [2], "values that are not BOOL"),
        ("BYTES", [1], "BYTES in JSON must be strings"),
    ],
)
def test_values_that_the_type_cannot_hold_are_refused(
    datatype: str, data: list[Any], text: str
) -> None:
    request = {"inputs": [{"name": "x", "datatype": datatype, "shape": [1], "data": data}]}
    answer = ask(OpenInference(echo()), body=json.dumps(request).encode())
    assert answer.status == 400
    assert text in answer.json["error"]


@pytest.mark.parametrize(
    ("path", "method", "body", "status", "text"),
    [
        ("/v2/models/other/infer", "POST", b"{}", 404, "does not have: use 'digits', version 1"),
        ("/v2/models/digits/versions/2/infer", "POST", b"{}", 404, "this server has nothing at"),
        ("/", "GET", b"", 404, "use /v2/models/digits/infer"),
        (INFER, "GET", b"", 405, "requires POST"),
        ("/v2", "POST", b"{}", 405, "requires GET"),
    ],
)
def test_a_wrong_path_or_method_is_refused(
    path: str, method: str, body: bytes, status: int, text: str
) -> None:
    answer = ask(OpenInference(digits()), path, body, method=method)
    assert answer.status == status
    assert text in answer.json["error"]
    assert ("allow" in answer.headers) == (status == 405)


def failing(batch: Batch) -> Outputs:
    raise RuntimeError("out of\nmemory")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (failing, "the model cannot answer: RuntimeError: out of memory"),
        (lambda batch: np.zeros((batch.size + 1, 2)), "'logits' has the shape [3, 2] for a batch of 2, but replies need one row per sample: export"),
        (lambda batch: np.zeros((batch.size, 2), np.complex64), "the protocol has no such type"),
        (lambda batch: np.zeros((batch.size, 2), ">f4"), "the protocol has no such type"),
        (lambda batch: [np.zeros(i + 1) for i in range(batch.size)], "the model cannot answer"),
        (lambda batch: np.full((batch.size, 2), np.nan), "JSON cannot represent NaN"),
    ],
)  # fmt: skip
def test_answer_that_cannot_be_sent_is_an_error(
    answer: Callable[[Batch], Outputs], text: str
) -> None:
    inference = OpenInference(digits(Fake(answer)))
    refused = infer(inference, image(), binary=False)
    assert refused.status == 500
    assert text in refused.json["error"]


@given(st.binary(max_size=30))
def test_bytes_that_are_not_texts_are_refused(raw: bytes) -> None:
    try:
        texts = texts_from(raw, 1)
    except ValueError:
        return
    assert raw_texts(texts) == raw


def test_the_bytes_behind_the_json_are_counted() -> None:
    inference = OpenInference(digits())
    for body, size in ((b"{}", 3), (b"", 0), (b"{}", 1)):
        assert ask(inference, body=body, json_bytes=size).status == 400


def test_a_model_whose_inputs_have_no_datatype_is_refused() -> None:
    class Odd(Fake):
        def signature(self) -> tuple[TensorSpec, ...]:
            return (TensorSpec("x", "complex64", ("batch", 1)),)

    with pytest.raises(ConfigError, match=r"^input 'x' is complex64, for which the protocol"):
        ServedModel(Model("odd", None, Path(), None), Odd(), "fake", 8)


def test_small_and_large_integers_stay_unchanged() -> None:
    """Bug: NumPy turned small and large integers into floats, which the server refused."""
    values = [0, 2**63, 2**64 - 1]
    assert from_json(values, "UINT64", (3,)).tolist() == values
    for wrong in ([-1, 2**63], [0.5, 2**63], [2**64, 1]):
        with pytest.raises(ValueError, match="UINT64"):
            from_json(wrong, "UINT64", (2,))


def test_statistics_count_answered_failed_and_refused_requests() -> None:
    def fails_for_two(batch: Batch) -> Outputs:
        if batch.size == 2:
            raise RuntimeError("out of luck")
        return dict(batch.inputs)

    inference = OpenInference(digits(Fake(fails_for_two)))
    for size in (1, 1, 4, 2):
        infer(inference, {"image": np.zeros((size, 1, 8, 8), np.float32)}, binary=True)
    ask(inference, body=b"{}")
    (found,) = ask(inference, "/v2/models/digits/stats").json["model_stats"]
    assert (found["inference_count"], found["execution_count"]) == (6, 3)
    stats = found["inference_stats"]
    assert {name: each["count"] for name, each in stats.items() if each["count"]} == {
        **dict.fromkeys(["success", "queue", "compute_input", "compute_infer"], 3),
        "compute_output": 3,
        "fail": 1,
    }
    assert stats["success"]["ns"] >= stats["queue"]["ns"] + stats["compute_infer"]["ns"] > 0
    assert [(b["batch_size"], b["compute_infer"]["count"]) for b in found["batch_stats"]] == [
        (1, 2),
        (4, 1),
    ]
    for path in ("/v2/models/stats", "/v2/models/digits/versions/1/stats"):
        assert ask(inference, path).json == {"model_stats": [found]}
    page = ask(inference, "/metrics")
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {f.name: f for f in text_string_to_metric_families(page.body.decode())}
    requests = {s.labels["end"]: s.value for s in families["harness_serve_requests"].samples}
    assert requests == {"answered": 3, "failed": 1, "refused": 1}
    sizes = families["harness_serve_batch_samples"].samples
    values = {(s.name, s.labels.get("le")): s.value for s in sizes}
    assert values["harness_serve_batch_samples_bucket", "1.0"] == 2
    assert values["harness_serve_batch_samples_bucket", "+Inf"] == 3
    assert values["harness_serve_batch_samples_sum", None] == 6
    for part in ("request", "queue", "compute"):
        (total,) = (
            s.value
            for s in families[f"harness_serve_{part}_seconds"].samples
            if s.name.endswith("_sum")
        )
        name = {"request": "success", "compute": "compute_infer"}.get(part, part)
        assert total == pytest.approx(stats[name]["ns"] / 1e9)


def test_index_lists_the_model_and_absent_extensions_are_named() -> None:
    inference = OpenInference(digits())
    (listed,) = json.loads(ask(inference, "/v2/repository/index", b"{}").body)
    assert (listed["name"], listed["version"], listed["state"]) == ("digits", "1", "READY")
    for path, name in (
        ("/v2/repository/models/digits/load", "model_repository"),
        ("/v2/systemsharedmemory/status", "system_shared_memory"),
        ("/v2/trace/setting", "trace"),
    ):
        answer = ask(inference, path, b"{}")
        assert answer.status == 404
        assert f"does not have the extension {name}" in answer.json["error"]


@pytest.mark.parametrize("value", [{0: 0.5, 1: 0.5}, [0.5], 0.5])
def test_an_output_of_python_s_objects_is_refused_before_it_is_served(value: object) -> None:
    def maps(batch: Batch) -> Outputs:
        rows = np.empty(batch.size, object)
        rows[:] = [value] * batch.size
        return {"probabilities": rows}

    batch = Batch(2, {"image": np.zeros((2, 1, 8, 8), np.float32)})
    line = (
        f"^the model's output 'probabilities' has values of the type {type(value).__name__}, but "
    )
    with pytest.raises(ConfigError, match=line):
        digits(Fake(maps)).infer(batch)
