"""The remote backend http-json sends requests to FastAPI, Flask, BentoML, LitServe, Ray Serve and MLflow in their JSON
formats.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml

from harness.backends.http_json import HttpJsonRemote
from harness.backends.ort import OrtBackend
from harness.cli.main import main
from harness.datasets.digits import DigitsDataset
from harness.models.manifest.lookup import load_model
from harness.remote import Refused
from harness.types import BackendSetup, Batch, DatasetSetup, TensorSpec
from tests.builders.refusals import Said
from tests.servers import real_servers
from tests.servers.test_kserve_servers import exchange

pytestmark = pytest.mark.slow

MODEL = load_model("digits")


class Dialect(NamedTuple):
    """How a service is queried, how it replies to a wrong request, and what `probe` prints for it."""

    service: Mapping[str, Any]
    refusal: str
    printed: tuple[str, ...]
    largest_batch: int = 1


DIALECTS = {
    "fastapi": Dialect(
        {
            "path": "/batch",
            "body": {"instances": "{{samples}}"},
            "sample": {"image": "{{image}}"},
            "answers": "/predictions",
            "answer": "/logits",
        },
        "the server answered 422: Input should be a valid list",
        ("protocol     OpenAPI 3.1.0: digits 1.0", "service      POST /batch\n"),
        64,
    ),
    "flask": Dialect(
        {"path": "/predict", "body": {"file": "{{image|npy}}"}, "answer": "/results/0/scores"},
        "the server answered 500: a page, '500 Internal Server Error'",
        ("protocol     unknown",),
    ),
    "bentoml": Dialect(
        {"path": "/logits", "body": {"image": "{{image[]}}"}, "answers": "#"},
        "the server answered 400: ",
        ("protocol     OpenAPI 3.0.2: Digits", "service      POST /logits\n"),
        64,
    ),
    "litserve": Dialect(
        {"path": "/predict", "body": {"input": "{{image}}"}, "answer": "/output"},
        "the server answered 500: ",
        ("protocol     OpenAPI 3.1.0: ", "service      POST /predict: the page does not describe "),
    ),
    "ray_serve": Dialect(
        {"path": "/", "body": {"image": "{{image}}"}},
        "the server answered 500: ",
        ("protocol     unknown",),
    ),
    "mlflow": Dialect(
        {"path": "/invocations", "body": {"inputs": "{{samples}}"}, "answers": "/predictions"},
        "the server answered 400: ",
        ("protocol     MLflow's scoring server 3.17.2", "service      POST /invocations: "),
        64,
    ),
}


@pytest.fixture(scope="module", params=real_servers.SERVICES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def url(name: str, server_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with real_servers.json_service(server_cache, tmp_path_factory.mktemp(name), name) as addresses:
        yield addresses.url


@pytest.fixture
def manifest(name: str, tmp_path: Path) -> Path:
    content = {
        "name": f"digits-{name}",
        "files": {},
        "inputs": [{"name": "image", "dtype": "float32", "shape": ["batch", 1, 8, 8]}],
        "outputs": [{"name": "logits", "postprocess": "argmax"}],
        "service": {**DIALECTS[name].service, "shape": [10]},
        "dataset": "digits",
        "accuracy": {"metric": "top1", "target": 98.5, "reference": 99.2},
    }
    path = tmp_path / f"digits-{name}.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def remote_of(manifest: Path, max_batch: int, inputs: tuple[TensorSpec, ...]) -> HttpJsonRemote:
    found = load_model(str(manifest)).manifest
    assert found is not None
    assert found.service is not None
    options = found.service.options()
    return HttpJsonRemote(
        BackendSetup(
            model=None, model_name="digits", inputs=inputs, max_batch=max_batch, options=options
        )
    )


def test_answers_are_those_of_this_process(name: str, url: str, manifest: Path) -> None:
    digits = DigitsDataset(DatasetSetup(inputs=MODEL.inputs))
    digits.load(range(500))
    path = MODEL.path(("onnx",))
    with OrtBackend(BackendSetup(model=path, model_name="digits", inputs=MODEL.inputs)) as backend:
        logits: Any = np.asarray(backend.infer(digits.batch(range(500))))
    most = DIALECTS[name].largest_batch
    remote = remote_of(manifest, most, MODEL.inputs)
    with exchange(url) as ask:
        for size in (1, 1, 1) if most == 1 else (1, 1, 64, 7):
            indices = range(size * 3, size * 4)
            answer = np.asarray(remote.answer(ask(remote.request(digits.batch(indices))), size))
            assert answer.dtype == np.float32
            assert np.abs(answer - logits[indices]).max() < 1e-5


def test_wrong_request_is_refused_in_the_servers_words(name: str, url: str, manifest: Path) -> None:
    wrong = TensorSpec("image", "float32", ("batch", 3))
    remote = remote_of(manifest, 1, (wrong,))
    with exchange(url) as ask:
        reply = ask(remote.request(Batch(1, {"image": np.zeros((1, 3), np.float32)})))
        with pytest.raises(Refused) as caught:
            remote.answer(reply, 1)
    assert str(caught.value).startswith(DIALECTS[name].refusal)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("scenario", ["single-stream", "server", "offline"])
def test_run_is_whole_and_as_exact(
    scenario: str, name: str, url: str, manifest: Path, tmp_path: Path
) -> None:
    words = [
        "--backend",
        "http-json",
        "--url",
        url,
        "--model",
        str(manifest),
        "--scenario",
        scenario,
    ]
    if scenario == "server":
        words += ["--target-qps", "20", "--slo", "p99=5s", "--queries", "60"]
    else:
        words += ["--queries", "100"]
    if scenario == "offline" and DIALECTS[name].largest_batch > 1:
        words += ["--max-batch", "16"]
    out = tmp_path / "run"
    assert main([*words, "--connections", "4", "--no-metrics", "--out", str(out)]) in (0, 4)
    result = json.loads((out / "result.json").read_text())
    busy = {"client-bound", "slo-missed", "early-stopping", "loadgen-invalid"}
    assert {reason["code"] for reason in result["reasons"]} <= busy, result["reasons"]
    assert result["queries"]["samples_failed"] == 0
    assert result["accuracy"]["value"] == pytest.approx(99.2)


def test_probe_describes_the_service(name: str, url: str, prints: Said) -> None:
    printed = prints("probe", url)
    for line in DIALECTS[name].printed:
        assert line in printed
