"""`probe` describes a working server, a foreign server, and a missing server."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest

from harness.cli.main import main
from harness.models.manifest.model import MODELS_DIR
from harness.serve import probe
from harness.wire.null.server import NullServer
from tests.builders.refusals import Said
from tests.builders.serving import ROOT, Served, serving


@pytest.fixture(scope="module")
def digits() -> Iterator[Served]:
    pytest.importorskip("onnxruntime")
    with serving("digits", "--backend", "ort", "--max-batch", "16") as served:
        yield served


def test_a_model_is_found_with_its_inputs_and_its_encoding(digits: Served, prints: Said) -> None:
    url = f"http://127.0.0.1:{digits.port}"
    found = json.loads(prints("probe", url, "--json"))
    assert (found["url"], found["address"], found["local"]) == (url, "127.0.0.1", True)
    assert found["keeps_connections"] is True
    assert found["round_trip_ns"] > 0
    assert found["openai_models"] is None
    (model,) = found["kserve"]["models"]
    assert model["name"] == "digits"
    assert model["inputs"] == [{"name": "image", "dtype": "float32", "shape": [None, 1, 8, 8]}]
    assert (model["encoding"], model["server_max_batch"]) == ("binary", 16)
    text = prints("probe", url)
    assert "model        digits: image float32 [?, 1, 8, 8] -> " in text
    assert f"--backend kserve --url {url} --model digits" in text


def test_server_is_probed_over_grpc(prints: Said) -> None:
    pytest.importorskip("grpc")
    from tests.stand_ins.servers.grpc_server import GrpcServer

    with GrpcServer(max_batch=16) as server:
        found = json.loads(prints("probe", server.url, "--json"))
        text = prints("probe", server.url)
    assert (found["url"], found["address"], found["local"]) == (server.url, "127.0.0.1", True)
    assert (found["kserve"]["name"], found["kserve"]["version"]) == ("triton", "2.51.0")
    (model,) = found["kserve"]["models"]
    assert model["inputs"] == [{"name": "image", "dtype": "float32", "shape": [None, 1, 8, 8]}]
    assert (model["protocol"], model["server_max_batch"]) == ("KServe v2 over gRPC", 16)
    assert found["round_trip_ns"] > 0
    assert "protocol     KServe v2 over gRPC: triton 2.51.0" in text
    assert f"--backend kserve --url {server.url} --model digits" in text


@pytest.mark.parametrize(
    ("most", "told"), [(1, "at most 1 sample per"), (16, "at most 16 samples per")]
)
def test_the_largest_request_is_a_number_with_its_noun(most: int, told: str) -> None:
    model = {"name": "m", "inputs": [], "outputs": ["x"], "encoding": "json"}
    more = {"reply_encoding": "json", "server_max_batch": most, "manifest": "", "example": ""}
    assert told in next(probe._model_lines("http://127.0.0.1", {**model, **more}))


def test_a_server_that_speaks_no_grpc_is_reported_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("grpc")
    with NullServer(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as server:
        url = server.url.replace("http", "grpc")
        assert main(["probe", url]) == 2
    told = capsys.readouterr().err.splitlines()
    assert told == [f"harness: --url {url} does not speak gRPC: give the server's gRPC port"]


@pytest.mark.slow
def test_printed_manifest_of_an_unknown_model_runs(tmp_path: Path, prints: Said) -> None:
    """Bug: the suggested command named a model that this machine does not have."""
    pytest.importorskip("onnxruntime")
    net = shutil.copy(MODELS_DIR / "digits.onnx", tmp_path / "net.onnx")
    command = ("--backend", "ort", "--max-batch", "16", "--listen", "127.0.0.1:0")
    with served_model(str(net), *command) as url:
        printed = prints("probe", url)
        assert f"--backend kserve --url {url} --model net.yaml" in printed
        lines = [line for line in printed.splitlines() if line.startswith("    ")]
        (tmp_path / "net.yaml").write_text(dedent("\n".join(lines)))
        run = ("--scenario", "offline", "--backend", "kserve", "--url", url, "--queries", "100")
        model = ("--model", str(tmp_path / "net.yaml"), "--mode", "performance", "--no-metrics")
        assert main([*run, *model, "--out", str(tmp_path / "run")]) in (0, 4)
    assert json.loads((tmp_path / "run/result.json").read_text())["queries"]["samples_failed"] == 0


@contextmanager
def served_model(*words: str) -> Iterator[str]:
    command = [sys.executable, "-m", "harness", "serve", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1]
        finally:
            process.kill()


def test_missing_model_is_reported(digits: Served, prints: Said) -> None:
    assert "model        resnet: the server has no model 'resnet'" in prints(
        "probe", f"http://127.0.0.1:{digits.port}", "--model", "resnet"
    )


@pytest.mark.parametrize(
    ("models", "told"),
    [
        (["tinylm"], "--model tinylm --target-qps"),
        (["org/llm"], "--model llm.yaml --data-dir prompts.jsonl --target-qps"),
        (["org/llm", "b"], "--model llm.yaml --data-dir prompts.jsonl --backend-option served=org/llm "),
    ],
)  # fmt: skip
def test_openai_server_is_reported_with_the_command_to_run(
    models: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = json.dumps({"data": [{"id": name} for name in models]}).encode()
    with NullServer(
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(listed), listed)
    ) as server:
        assert main(["probe", server.url]) == 0
    *_, above, line = capsys.readouterr().out.splitlines()
    assert line.startswith("try          ")
    assert f" --backend openai --url {server.url} {told}" in line
    assert ("dataset: prompts" in above) == (models != ["tinylm"])


def test_named_model_of_an_openai_server_is_in_the_command(prints: Said, refuses: Said) -> None:
    listed = json.dumps({"data": [{"id": "a"}, {"id": "b"}]}).encode()
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(listed), listed)
    with NullServer(reply) as server:
        printed = prints("probe", server.url, "--model", "b")
        line = refuses("probe", server.url, "--model", "mine")
    assert "protocol     OpenAI: models b, a\n" in printed
    assert "--backend-option served=b " in printed
    assert "--model mine: the server lists a, b: name a listed model" in line


def test_server_of_an_unknown_protocol_is_reported(prints: Said) -> None:
    closing = (
        b"HTTP/1.1 200 OK\r\nServer: plain\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
    )
    with NullServer(closing) as server:
        text = prints("probe", server.url)
    assert ", plain\n" in text
    assert "closed after each reply" in text
    assert "protocol     unknown" in text


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:1", "cannot be reached (Connection refused)"),
        ("127.0.0.1:8000", "is not a server URL"),
        ("http://user:secret@127.0.0.1", "the URL contains a password"),
        ("http://no-such-host.invalid", "cannot be resolved"),
    ],
)
def test_url_without_a_server_is_reported_in_one_line(
    url: str, message: str, refuses: Said
) -> None:
    printed = refuses("probe", url)
    assert message in printed
    assert "secret" not in printed
