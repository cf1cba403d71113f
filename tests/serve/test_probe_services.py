"""`probe` turns the pages of services into manifests: OpenAPI, TensorFlow Serving's metadata, and MLflow."""

import json
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import yaml

from harness.cli.main import main
from harness.models.manifest.lookup import parse_manifest
from harness.serve.services import openapi
from tests.builders.refusals import Said
from tests.stand_ins.servers.json_services import (
    Asked,
    Network,
    mlflow,
    serving_json,
    tf_serving,
)

NUMBERS = {"type": "array", "items": {"type": "number"}}


def sums(images: Any) -> Any:
    """Computes the answers of a network without using a model."""
    return np.repeat(images.reshape(len(images), -1).sum(axis=1, keepdims=True), 10, axis=1)


NETWORK: Network = sums


def page(request: Any, reply: Any = None, path: str = "/predict", **schemas: Any) -> dict[str, Any]:
    """Returns an OpenAPI page with one address."""

    def content(schema: Any) -> dict[str, Any]:
        return {"content": {"application/json": {"schema": schema}}}

    replies = {} if reply is None else {"200": content(reply)}
    post: dict[str, Any] = {"responses": replies}
    if request is not None:
        post["requestBody"] = content(request)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Flowers", "version": "7"},
        "paths": {path: {"post": post}},
        "components": {"schemas": schemas},
    }


def described(request: Any, reply: Any = None, **schemas: Any) -> dict[str, Any]:
    """Returns the manifest for the only address, after validating it."""
    (found,) = openapi.services(page(request, reply, **schemas))
    assert found.manifest is not None
    content = json.loads(json.dumps(found.manifest))
    parse_manifest(content, "printed")
    return dict(content)


def test_fields_become_inputs_and_an_answer() -> None:
    sample = {
        "type": "object",
        "required": ["image", "meta"],
        "properties": {
            "image": {"type": "array", "items": NUMBERS},
            "meta": {"$ref": "#/components/schemas/Meta"},
            "note": {"type": "string"},
        },
    }
    meta = {
        "type": "object",
        "properties": {
            "age": {"type": "integer"},
            "point": {**NUMBERS, "minItems": 2, "maxItems": 2},
            "flag": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        },
    }
    reply = {
        "type": "object",
        "properties": {
            "took": {"type": "number"},
            "result": {"type": "object", "properties": {"scores": NUMBERS}},
        },
    }
    found = described({"$ref": "#/components/schemas/Sample"}, reply, Sample=sample, Meta=meta)
    assert found["inputs"] == [
        {"name": "image", "dtype": "float32", "shape": ["batch", None, None]},
        {"name": "meta_age", "dtype": "int64", "shape": ["batch"]},
        {"name": "meta_point", "dtype": "float32", "shape": ["batch", 2]},
        {"name": "meta_flag", "dtype": "bool", "shape": ["batch"]},
    ]
    assert found["service"] == {
        "path": "/predict",
        "body": {
            "image": "{{image}}",
            "meta": {"age": "{{meta_age}}", "point": "{{meta_point}}", "flag": "{{meta_flag}}"},
        },
        "answer": "/result/scores",
        "dtype": "float32",
        "shape": [None],
    }


def test_list_of_objects_is_a_list_of_samples() -> None:
    item = {"type": "object", "properties": {"x": NUMBERS, "y": {"type": "number"}}}
    found = described(
        {"type": "object", "properties": {"rows": {"type": "array", "items": item}}},
        {
            "type": "object",
            "properties": {
                "answers": {
                    "type": "array",
                    "items": {"type": "object", "properties": {"label": {"type": "string"}}},
                }
            },
        },
    )
    names = [one["name"] for one in found["inputs"]]
    assert found["service"] == {
        "path": "/predict",
        "body": {"rows": "{{samples}}"},
        "sample": {"x": f"{{{{{names[0]}}}}}", "y": f"{{{{{names[1]}}}}}"},
        "answers": "/answers",
        "answer": "/label",
        "dtype": "text",
    }


def test_instances_are_a_list_of_samples() -> None:
    body = {"type": "object", "properties": {"instances": {"type": "array", "items": NUMBERS}}}
    reply = {"type": "object", "properties": {"predictions": {"type": "array", "items": NUMBERS}}}
    service = described(body, reply)["service"]
    assert service["body"] == {"instances": "{{samples}}"}
    assert (service["answers"], service["shape"]) == ("/predictions", [None])


def test_text_is_taken_from_the_dataset_of_prompts() -> None:
    found = described(
        {"type": "object", "properties": {"q": {"type": "string"}}}, {"type": "string"}
    )
    assert found["dataset"] == "prompts"
    assert found["service"]["body"] == {"q": "{{q|json/prompt}}"}
    assert found["service"]["dtype"] == "text"


def test_encoded_bytes_are_sent_as_base64() -> None:
    body = {
        "type": "object",
        "properties": {"file": {"type": "string", "contentEncoding": "base64"}},
    }
    found = described(body, {"type": "integer"})
    assert found["inputs"] == [{"name": "file", "dtype": "uint8", "shape": ["batch", None]}]
    assert found["service"]["body"] == {"file": "{{file|base64}}"}
    assert found["service"]["dtype"] == "int64"


def test_tensors_of_bentoml_keep_type_and_shape() -> None:
    tensor = {"type": "tensor", "format": "numpy-array", "dtype": "uint8", "shape": [-1, 3]}
    found = described({"type": "object", "properties": {"x": tensor}}, NUMBERS)
    assert found["inputs"] == [{"name": "x", "dtype": "uint8", "shape": ["batch", None, 3]}]


LOOP = {"type": "object", "properties": {"next": {"$ref": "#/components/schemas/Loop"}}}


@pytest.mark.parametrize(
    "request_schema",
    [
        None,
        {},
        {"type": "object"},
        {"$ref": "#/components/schemas/Loop"},
        {"$ref": "#/nowhere"},
        {"type": "array", "items": {"type": "object"}},
        {"anyOf": [{"type": "null"}]},
        "text",
    ],
)
def test_body_that_is_not_described_is_reported(request_schema: Any) -> None:
    (found,) = openapi.services(page(request_schema, Loop=LOOP))
    assert found.manifest is None
    assert found.note.startswith("the page does not describe ")


def test_reply_that_is_not_described_is_left_to_the_user() -> None:
    (found,) = openapi.services(page({"type": "object", "properties": {"x": NUMBERS}}, {}))
    assert found.note == (
        "the server does not describe its replies: add answer, dtype and shape to `service`"
    )


@pytest.mark.parametrize("content", [None, [], {}, {"paths": {}}, {"openapi": 3, "paths": {}}])
def test_other_pages_are_not_openapi(content: Any) -> None:
    assert openapi.title(content) is None


def test_page_of_fastapi_becomes_a_manifest_that_runs(tmp_path: Path, prints: Said) -> None:
    fastapi = pytest.importorskip("fastapi")
    pydantic = pytest.importorskip("pydantic")
    app = fastapi.FastAPI(title="Sums", version="1.2")
    item = pydantic.create_model("Item", x=(list[float], ...), bias=(float, ...))
    scores = pydantic.create_model("Scores", scores=(list[float], ...))

    @app.post("/sum", response_model=scores)  # type: ignore[untyped-decorator]
    def total(item: item) -> Any: ...  # type: ignore[valid-type]

    content = app.openapi()

    def answer(asked: Asked) -> tuple[int, Any]:
        if asked.path == "/sum":
            x, bias = asked.content["x"], asked.content["bias"]
            return 200, {"scores": [sum(x) + bias, bias]}
        return (200, content) if asked.path == "/openapi.json" else (404, {"detail": "Not Found"})

    with serving_json(answer) as url:
        printed = prints("probe", url)
        assert f"protocol     OpenAPI {content['openapi']}: Sums 1.2\n" in printed
        assert "service      POST /sum\n" in printed
        assert f"--scenario server --backend http-json --url {url} --model sum.yaml" in printed
        lines = [line for line in printed.splitlines() if line.startswith("    ")]
        (tmp_path / "sum.yaml").write_text(dedent("\n".join(lines)))
        words = (
            "--scenario",
            "offline",
            "--backend",
            "http-json",
            "--url",
            url,
            "--queries",
            "100",
        )
        model = ("--model", str(tmp_path / "sum.yaml"), "--input-shape", "x=1x5")
        more = ("--mode", "performance", "--no-metrics", "--out", str(tmp_path / "run"))
        assert main([*words, *model, *more]) in (0, 4)
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["queries"]["samples_failed"] == 0


def test_metadata_of_tensorflow_serving_become_a_manifest(prints: Said) -> None:
    with serving_json(tf_serving(NETWORK)) as url:
        assert "service      not listed: pass a model's name with --model" in prints("probe", url)
        printed = prints("probe", url, "--model", "digits")
    assert "protocol     TensorFlow Serving's REST API\n" in printed
    lines = [line for line in printed.splitlines() if line.startswith("    ")]
    found = yaml.safe_load(dedent("\n".join(lines)))
    assert found["inputs"] == [{"name": "image", "dtype": "float32", "shape": ["batch", 1, 8, 8]}]
    assert found["service"] == {
        "path": "/v1/models/digits:predict",
        "body": {"instances": "{{samples}}"},
        "answers": "/predictions",
        "dtype": "float32",
        "shape": [10],
    }


def test_model_that_the_server_does_not_name_is_refused(refuses: Said) -> None:
    """Bug: --model was ignored unless the server was TensorFlow Serving or spoke KServe."""
    with serving_json(mlflow(NETWORK)) as url:
        line = refuses("probe", url, "--model", "mine")
        assert "--model mine: this server does not name its models: drop --model" in line
    with serving_json(tf_serving(NETWORK)) as url:
        line = refuses("probe", url, "--model", "mine")
        assert "--model mine: the server does not describe it: check the name" in line


def test_scoring_server_of_mlflow_is_recognised(prints: Said) -> None:
    with serving_json(mlflow(NETWORK)) as url:
        printed = prints("probe", url)
        found = json.loads(prints("probe", url, "--json"))
    assert "protocol     MLflow's scoring server 3.17.2\n" in printed
    (service,) = found["services"]
    parse_manifest(service["manifest"], "printed")
    assert service["manifest"]["service"]["path"] == "/invocations"
    assert service["manifest"]["service"]["body"] == {"inputs": "{{samples}}"}


def test_other_servers_have_no_services(prints: Said) -> None:
    with serving_json(lambda asked: (404, {"detail": "Not Found"})) as url:
        found = json.loads(prints("probe", url, "--json"))
        assert "protocol     unknown" in prints("probe", url)
    assert (found["services_protocol"], found["services"]) == (None, [])
