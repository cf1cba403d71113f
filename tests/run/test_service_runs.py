"""Runs of models behind JSON services: the manifest describes the service, and the command line may override the
manifest.
"""

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from harness.cli.main import main
from harness.models.manifest.lookup import load_model
from harness.types import BackendSetup, Batch
from tests.stand_ins.servers.json_services import (
    Asked,
    Network,
    mlflow,
    serving_json,
    tf_serving,
)

TF_SERVING = {
    "path": "/v1/models/digits:predict",
    "body": {"instances": "{{samples}}"},
    "answers": "/predictions",
    "shape": [10],
}


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    pytest.importorskip("onnxruntime")
    from harness.backends.ort import OrtBackend

    model = load_model("digits")
    setup = BackendSetup(model=model.path(("onnx",)), model_name="digits", inputs=model.inputs)
    with OrtBackend(setup) as backend:
        yield lambda images: np.asarray(backend.infer(Batch(len(images), {"image": images})))


def manifest(folder: Path, service: dict[str, Any], **more: Any) -> Path:
    content = {
        "name": "digits-service",
        "files": {},
        "inputs": [{"name": "image", "dtype": "float32", "shape": ["batch", 1, 8, 8]}],
        "outputs": [{"name": "logits", "postprocess": "argmax"}],
        "service": service,
        "dataset": "digits",
        "accuracy": {"metric": "top1", "target": 98.5, "reference": 99.2},
        **more,
    }
    path = folder / "digits-service.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def ran(out: Path, url: str, model: Path | str, *words: str) -> tuple[int, dict[str, Any]]:
    common = ("--backend", "http-json", "--url", url, "--model", str(model), "--no-metrics")
    status = main([*common, "--no-report", "--out", str(out), *words])
    return status, json.loads((out / "result.json").read_text())


def is_whole(result: dict[str, Any]) -> None:
    # These reasons depend on the load of the machine.
    busy = {"client-bound", "slo-missed", "early-stopping", "loadgen-invalid"}
    assert {reason["code"] for reason in result["reasons"]} <= busy, result["reasons"]
    assert result["queries"]["samples_failed"] == 0
    assert result["client"]["failures"] == {}
    assert result["accuracy"]["value"] == pytest.approx(99.2)


def test_manifest_describes_a_service(tmp_path: Path, network: Network) -> None:
    model = manifest(tmp_path, TF_SERVING)
    with serving_json(tf_serving(network)) as url:
        words = ("--scenario", "server", "--target-qps", "100", "--queries", "200")
        _, result = ran(tmp_path / "run", url, model, *words)
    is_whole(result)
    about = result["backend_description"]
    assert (about["protocol"], about["path"]) == ("JSON over HTTP", "/v1/models/digits:predict")
    assert about["answer"] == "# of each item of /predictions, float32 of shape [10]"
    assert result["client"]["json_ns"] is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("--scenario", "single-stream", "--queries", "200"),
        ("--scenario", "multi-stream", "--duration", "1s", "--max-batch", "8"),
        ("--scenario", "offline", "--queries", "500"),
        ("--scenario", "offline", "--queries", "500", "--max-batch", "32", "--connections", "2"),
    ],
)
def test_every_scenario_runs_against_a_service(
    tmp_path: Path, network: Network, words: tuple[str, ...]
) -> None:
    model = manifest(tmp_path, TF_SERVING)
    with serving_json(tf_serving(network)) as url:
        _, result = ran(tmp_path / "run", url, model, *words)
        is_whole(result)
        config = ("--config", str(tmp_path / "run/config.yaml"))
        _, repeated = ran(tmp_path / "again", url, model, *config)
    is_whole(repeated)


FORMATS: dict[str, tuple[str, dict[str, str]]] = {
    "rows": ("tf", {"body": '{"instances": "{{samples}}"}', "answers": "/predictions"}),
    "named-rows": (
        "tf",
        {
            "body": '{"instances": "{{samples}}"}',
            "sample": '{"image": "{{image}}"}',
            "answers": "/predictions",
        },
    ),
    "columns": ("tf", {"body": '{"inputs": {"image": "{{image[]}}"}}', "answers": "/outputs"}),
    "mlflow-tensors": (
        "mlflow",
        {"path": "/invocations", "body": '{"inputs": "{{samples}}"}', "answers": "/predictions"},
    ),
    "mlflow-table": (
        "mlflow",
        {
            "path": "/invocations",
            "body": '{"dataframe_split": {"data": "{{image[]|flat}}"}}',
            "answers": "/predictions",
        },
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_command_line_alone_describes_a_service(
    name: str, tmp_path: Path, network: Network
) -> None:
    server, options = FORMATS[name]
    body = tmp_path / "body.json"
    body.write_text(options["body"])
    options = {"path": TF_SERVING["path"], "shape": "10", **options, "body": f"@{body}"}  # type: ignore[dict-item]
    words = [w for key, value in options.items() for w in ("--backend-option", f"{key}={value}")]
    service = {"tf": tf_serving, "mlflow": mlflow}[server]
    with serving_json(service(network)) as url:
        load = ("--scenario", "offline", "--queries", "500", "--max-batch", "16")
        _, result = ran(tmp_path / "run", url, "digits", *load, *words)
        is_whole(result)
        stored = (tmp_path / "run/config.yaml").read_text()
        # config.yaml contains the content of the file instead of its path.
        assert str(body) not in stored
        body.unlink()
        config = ("--config", str(tmp_path / "run/config.yaml"))
        _, repeated = ran(tmp_path / "again", url, "digits", *config)
    is_whole(repeated)


@pytest.mark.slow
def test_command_line_overrides_the_manifest(tmp_path: Path, network: Network) -> None:
    model = manifest(tmp_path, {**TF_SERVING, "path": "/wrong", "answers": "/wrong"})
    options = ("path=/v1/models/digits:predict", "answers=/predictions")
    words = [word for option in options for word in ("--backend-option", option)]
    with serving_json(tf_serving(network)) as url:
        load = ("--scenario", "offline", "--queries", "100")
        _, result = ran(tmp_path / "run", url, model, *load, *words)
    is_whole(result)


@pytest.mark.parametrize(
    ("service", "message"),
    [
        ({"path": "/v1/models/nope:predict"}, "the server answered 404: Malformed request: POST /v1/models/nope:predict"),
        pytest.param({"body": {"instances": "{{image[]|flat}}"}}, "the server answered 400: Tensor of shape [1, 64] is not [?,1,8,8]", marks=pytest.mark.slow),
        ({"answers": "/outputs"}, "the reply has nothing at '/outputs' (it begins with b'{\"predictions\": [["),
        pytest.param({"shape": [11]}, "an answer in the reply has the shape [10], not [11]: see --backend-option shape (it begins with ", marks=pytest.mark.slow),
        pytest.param({"dtype": "int64"}, "an answer in the reply has a number that is not int64: see --backend-option dtype", marks=pytest.mark.slow),
        pytest.param({"answer": "/scores"}, "or an item of that list has nothing at '/scores' (it begins with", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_service_that_does_not_fit_is_refused_before_the_run(
    service: dict[str, Any],
    message: str,
    tmp_path: Path,
    network: Network,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = manifest(tmp_path, {**TF_SERVING, **service})
    with serving_json(tf_serving(network)) as url:
        words = ("--backend", "http-json", "--url", url, "--model", str(model))
        out = ("--no-metrics", "--quiet", "--out", str(tmp_path / "run"))
        assert main(["--scenario", "offline", *words, *out]) == 2
    printed = capsys.readouterr().err.splitlines()
    lines = [line for line in printed if line.startswith("harness: ")]
    assert len(lines) == 1
    assert message in lines[0]


def test_failures_of_a_run_are_counted_by_kind(tmp_path: Path, network: Network) -> None:
    whole = tf_serving(network)
    number = count()

    def sick(asked: Asked) -> tuple[int, Any]:
        """Answers the first requests, and later refuses some requests and omits some answers."""
        at = next(number)
        if at > 400 and at % 10 == 0:
            return 503, {"error": "queue is full"}
        if at > 400 and at % 10 == 5:
            return 200, {"predictions": [[0.5]]}
        return whole(asked)

    model = manifest(tmp_path, TF_SERVING)
    with serving_json(sick) as url:
        words = ("--scenario", "offline", "--queries", "1000", "--connections", "4")
        status, result = ran(tmp_path / "run", url, model, *words, "--mode", "performance")
    assert status == 4
    assert "requests-failed" in {reason["code"] for reason in result["reasons"]}
    failures = result["client"]["failures"]
    assert set(failures) == {"refused", "bad-answer"}
    assert sum(failures.values()) == result["queries"]["samples_failed"] > 10


@pytest.mark.slow
def test_texts_are_sent_and_compared(tmp_path: Path) -> None:
    """The service reverses a text, and the prompts file contains the right answers."""
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"prompt": f"text {i} \u00e9", "reference": f"\u00e9 {i} txet"} for i in range(9)]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    service = {
        "path": "/turn",
        "body": {"inputs": {"q": "{{prompt|json/prompt}}"}},
        "answer": "/results/0/text",
        "dtype": "text",
    }
    model = manifest(
        tmp_path,
        service,
        inputs=[{"name": "prompt", "dtype": "string", "shape": ["batch"]}],
        outputs=[{"name": "text"}],
        dataset="prompts",
        accuracy={"metric": "exact_match", "target": 100.0},
    )

    def turn(asked: Asked) -> tuple[int, Any]:
        return 200, {"results": [{"text": asked.content["inputs"]["q"][::-1]}]}

    with serving_json(turn) as url:
        words = ("--scenario", "offline", "--queries", "50", "--data-dir", str(prompts))
        _, result = ran(tmp_path / "run", url, model, *words)
    assert result["queries"]["samples_failed"] == 0
    assert result["accuracy"]["value"] == 100
