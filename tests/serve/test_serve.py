"""The verb `serve` as a process: real answers on a real socket, its end, and refusals at the start."""

import http.client
import json
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.cli.main import main
from harness.core.config.parse import Endpoint
from harness.core.config.run_config import RunConfig
from harness.datasets.digits import DigitsDataset
from harness.serve.job import exposure
from harness.serve.served import ServedModel, open_served
from harness.types import Array, Batch, DatasetSetup, TensorSpec
from tests.builders.serving import Served, serving

INFER = "/v2/models/digits/infer"


@pytest.fixture(scope="module")
def digits() -> Iterator[Served]:
    pytest.importorskip("onnxruntime")
    with serving("digits", "--backend", "ort", "--threads", "1", "--max-batch", "16") as served:
        yield served


@pytest.fixture(scope="module")
def images() -> Array:
    dataset = DigitsDataset(
        DatasetSetup(inputs=(TensorSpec("image", "float32", ("batch", 1, 8, 8)),))
    )
    dataset.load(range(64))
    return np.array(dataset.batch(range(64)).inputs["image"])


@pytest.fixture(scope="module")
def in_process(images: Array) -> Iterator[dict[int, Array]]:
    """Maps a batch size to this process's answers to the images, computed in batches of this size."""
    config = RunConfig.of(
        scenario="offline", backend="ort", instances=1, threads=1, max_batch=16, mode="performance"
    )
    with ExitStack() as stack:
        model = open_served(config, stack)
        assert isinstance(model, ServedModel)
        yield {
            size: np.concatenate(
                [
                    model.infer(Batch(size, {"image": images[at : at + size]}))["logits"]
                    for at in range(0, len(images), size)
                ]
            )
            for size in (1, 16)
        }


def ask(connection: http.client.HTTPConnection, rows: Array, *, binary: bool) -> Array:
    tensor: dict[str, Any] = {"name": "image", "datatype": "FP32", "shape": [*rows.shape]}
    headers, raw = {}, b""
    if binary:
        raw = rows.tobytes()
        tensor["parameters"] = {"binary_data_size": len(raw)}
    else:
        tensor["data"] = rows.ravel().tolist()
    content = {"inputs": [tensor], "parameters": {"binary_data_output": binary}}
    text = json.dumps(content).encode()
    if binary:
        headers["Inference-Header-Content-Length"] = str(len(text))
    connection.request("POST", INFER, text + raw, headers)
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 200, body
    size = int(answer.headers.get("Inference-Header-Content-Length", len(body)))
    (output,) = json.loads(body[:size])["outputs"]
    assert output["name"] == "logits"
    values = np.frombuffer(body[size:], "<f4") if binary else np.array(output["data"], np.float32)
    return values.reshape(output["shape"])


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("size", [1, 16])
def test_answers_equal_the_model_in_this_process_bit_by_bit(
    digits: Served, images: Array, in_process: dict[int, Array], size: int, binary: bool
) -> None:
    with digits.connection() as connection:
        rows = [
            ask(connection, images[at : at + size], binary=binary)
            for at in range(0, len(images), size)
        ]
    assert np.concatenate(rows).tobytes() == in_process[size].tobytes()


def test_metadata_are_known_before_the_first_request(digits: Served) -> None:
    about = digits.get("/v2/models/digits")
    assert about["outputs"] == [{"name": "logits", "datatype": "FP32", "shape": [-1, 10]}]
    assert about["properties"]["precision"] == "float32"
    assert digits.get("/v2/models/digits/config")["max_batch_size"] == 16


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_the_server_in_order_and_closes_the_port(number: signal.Signals) -> None:
    with serving("digits", "--backend", "null") as served:
        rows = np.zeros((3, 1, 8, 8), np.float32)
        with served.connection() as connection:
            assert ask(connection, rows, binary=True).tobytes() == bytes(120)
        status, errors = served.end(number)
        assert (status, errors) == (0, "harness: 1 request answered, 0 refused\n")
        with pytest.raises(ConnectionRefusedError), served.connection():
            pass


def test_questions_about_other_paths_are_counted_apart() -> None:
    """Bug: after a correct client, the line said `29 refused`, because the harness's own requests for extensions were
    counted.
    """
    with serving("digits", "--backend", "null") as served:
        with served.connection() as connection:
            for path in ("/v2/trace/setting", "/v1/models", "/v2"):
                connection.request("GET", path)
                connection.getresponse().read()
        _, errors = served.end(signal.SIGTERM)
    assert errors == (
        "harness: 1 request answered, 2 refused (2 of them for paths that this server does not have)\n"
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["digit"], "no model named 'digit': did you mean 'digits'?"),
        (["digits", "--backend", "nul"], "no backend named 'nul': did you mean 'null'?"),
        (["digits", "--backend", "kserve"], "--backend kserve sends queries to a server, but `serve` is a server itself: "),
        (["digits", "--listen", "0.0.0.0"], "--listen: '0.0.0.0' is not an address: write HOST:PORT, e.g. 127.0.0.1:8000"),
        (["digits", "--listen", "nowhere.invalid:80"], "nowhere.invalid:80 cannot be used ("),
        (["digits", "--threads", "0"], "--threads: 0 must be between 1 and 1,024"),
        (["digits", "--backend-option", "graph=x", "--listen", "127.0.0.1:0"], "--backend-option graph: 'x' is not one of "),
        ([], "MODEL is missing: "),
        (["digits", "other"], "unexpected argument 'other': see --help"),
    ],
)  # fmt: skip
def test_model_that_cannot_be_served_is_reported_in_one_line(
    words: Sequence[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    assert main(["serve", *words]) == 2
    out, errors = capsys.readouterr()
    assert out == ""
    assert errors.startswith(f"harness: {line}")
    assert errors.count("\n") == 1


def test_model_of_texts_is_served_without_warm_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: the message was "sizes of its inputs are not known (--input-shape sets them)", but the option had no effect."""
    manifest = tmp_path / "texts.yaml"
    manifest.write_text(
        "name: texts\nfiles: {}\ninputs: [{name: request, dtype: string, shape: [batch]}]\n"
        "outputs: [{name: answer}]\ndataset: prompts\n"
    )
    config = RunConfig.of(scenario="offline", backend="null", model=str(manifest), instances=1)
    with ExitStack() as stack:
        open_served(config, stack)
    assert "not warmed up: request takes strings" in capsys.readouterr().err


def test_a_port_in_use_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["serve", "digits", "--backend", "null", "--listen", address]) == 2
    line = f"harness: {address} cannot be used (in use): choose a different --listen\n"
    assert capsys.readouterr().err == line


@pytest.mark.parametrize(
    ("address", "is_open"),
    [("127.0.0.1", False), ("127.0.0.2", False), ("::1", False), ("0.0.0.0", True), ("::", True)],
)
def test_an_address_that_others_may_reach_has_a_warning(address: str, is_open: bool) -> None:
    line = exposure(address, Endpoint("name", 8000))
    expected = "anyone who reaches name:8000 can use the model, without a password or encryption"
    assert line == (expected if is_open else "")


def test_a_language_model_is_announced_with_all_its_names() -> None:
    with serving("tinylm", "--backend", "ort", "--name", "base,adapter"):
        pass  # `serving` checks the line with the names
