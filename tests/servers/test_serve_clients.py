"""Foreign clients use `serve`, which answers all their requests."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.builders.serving import Served, serving
from tests.servers.models import tinylm_gpt2
from tests.servers.real_servers import environment, outside
from tests.stand_ins.servers.media_server import media_server
from tests.stand_ins.servers.metrics.prometheus_server import free_port, unpacked

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(1800)]
"""The first test that needs a client installs it."""

CLIENTS = Path(__file__).parent / "clients"
LIMIT_S = 1200
"""AIPerf took 110 s and vLLM 500 s on a busy machine."""

ASKED = 20
"""Number of requests that a benchmark tool sends. A prompt and its answer fit into the model's context of 47 tokens."""
TOKENIZER = "./tinylm"
"""A folder below the tool's working directory, because AIPerf accepts only a relative path."""

NGINX = """
daemon off; pid {folder}/pid; error_log {folder}/errors;
events {{}}
http {{
  access_log off; client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://127.0.0.1:{upstream}; }} }}
}}
"""
"""nginx with its defaults except for file locations; nginx contacts the server over HTTP/1.0."""


def ran(words: list[object], folder: Path) -> str:
    """Returns the output of a client that ended successfully."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env={**outside(), "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def url_of(served: Served) -> str:
    return f"http://127.0.0.1:{served.port}"


@pytest.fixture
def tinylm() -> Iterator[Served]:
    with serving("tinylm", "--backend", "ort", "--threads", "1") as served:
        yield served


@contextmanager
def nginx_before(served: Served, folder: Path) -> Iterator[int]:
    """Yields the port of Debian's nginx, which runs as a proxy in front of the server."""
    program = unpacked("nginx", folder).parent / "sbin/nginx"
    port = free_port()
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, port=port, upstream=served.port))
    words = [str(word) for word in (program, "-c", config, "-e", folder / "errors")]
    with subprocess.Popen(words) as process:
        try:
            yield port
        finally:
            process.terminate()


def test_openai_sdk_works(tinylm: Served, server_cache: Path, tmp_path: Path) -> None:
    python = environment(server_cache, "openai") / "bin/python"
    ran([python, CLIENTS / "openai_sdk.py", url_of(tinylm)], tmp_path)


def test_anthropic_sdk_works(tinylm: Served, server_cache: Path, tmp_path: Path) -> None:
    python = environment(server_cache, "anthropic") / "bin/python"
    ran([python, CLIENTS / "anthropic_sdk.py", url_of(tinylm)], tmp_path)


def test_openai_sdk_agrees_with_the_stand_in_for_media(server_cache: Path, tmp_path: Path) -> None:
    python = environment(server_cache, "openai") / "bin/python"
    with media_server() as server:
        ran([python, CLIENTS / "openai_media.py", server.url], tmp_path)


def test_openai_sdk_works_through_nginx_with_its_defaults(
    tinylm: Served, server_cache: Path, tmp_path: Path
) -> None:
    python = environment(server_cache, "openai") / "bin/python"
    with nginx_before(tinylm, tmp_path) as port:
        ran([python, CLIENTS / "openai_sdk.py", f"http://127.0.0.1:{port}"], tmp_path)


def test_triton_clients_work_over_http_and_grpc(server_cache: Path, tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    python = environment(server_cache, "tritonclient") / "bin/python"
    port = free_port()
    words = ("digits", "--backend", "ort", "--threads", "1", "--grpc", f"127.0.0.1:{port}")
    with serving(*words) as served:
        ran([python, CLIENTS / "triton_sdk.py", served.port, port], tmp_path)


def test_aiperf_completes_all_requests(tinylm: Served, server_cache: Path, tmp_path: Path) -> None:
    tinylm_gpt2.write(tmp_path / TOKENIZER)
    words = [environment(server_cache, "aiperf") / "bin/aiperf", "profile", "--model", "tinylm"]
    words += ["--url", url_of(tinylm), "--endpoint-type", "chat", "--streaming"]
    words += ["--tokenizer", TOKENIZER, "--request-count", ASKED, "--concurrency", 2]
    words += ["--synthetic-input-tokens-mean", 12, "--output-tokens-mean", 8]
    words += ["--ui", "none", "--no-gpu-telemetry", "--artifact-dir", "out"]
    ran(words, tmp_path)
    found = read(tmp_path / "out/profile_export_aiperf.json")
    assert found["request_count"]["avg"] == ASKED
    assert found["request_error_rate"]["avg"] == 0
    page = read(tmp_path / "out/server_metrics_export.json")["metrics"]
    assert {"harness_serve_generated_tokens", "harness_serve_first_token_seconds"} <= page.keys()


def test_guidellm_works_with_its_default_endpoint(
    tinylm: Served, server_cache: Path, tmp_path: Path
) -> None:
    tinylm_gpt2.write(tmp_path / TOKENIZER)
    words = [environment(server_cache, "guidellm") / "bin/guidellm", "run"]
    words += ["--backend", f"kind=openai_http,target={url_of(tinylm)}"]
    words += ["--profile", "kind=concurrent,streams=2"]
    words += ["--constraint", f"kind=max_requests,count={ASKED}"]
    words += ["--data", "kind=synthetic_text,prompt_tokens=12,output_tokens=8"]
    words += ["--tokenizer", f"kind=huggingface_auto,model={TOKENIZER}"]
    words += ["--output", "kind=json,path=out.json", "--disable-console"]
    ran(words, tmp_path)
    (benchmark,) = read(tmp_path / "out.json")["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (ASKED, 0)


def test_vllm_bench_serve_completes_all_requests(
    tinylm: Served, server_cache: Path, tmp_path: Path
) -> None:
    tinylm_gpt2.write(tmp_path / TOKENIZER)
    words = [environment(server_cache, "vllm") / "bin/vllm", "bench", "serve"]
    words += ["--base-url", url_of(tinylm), "--model", "tinylm", "--tokenizer", TOKENIZER]
    words += ["--dataset-name", "random", "--num-prompts", ASKED]
    words += ["--random-input-len", 4, "--random-output-len", 8]
    words += ["--save-result", "--result-filename", "out.json"]
    ran(words, tmp_path)
    found = read(tmp_path / "out.json")
    assert (found["completed"], found["failed"]) == (ASKED, 0)


def test_genai_bench_completes_all_requests(
    tinylm: Served, server_cache: Path, tmp_path: Path
) -> None:
    tinylm_gpt2.write(tmp_path / TOKENIZER)
    words = [environment(server_cache, "genai-bench") / "bin/genai-bench", "benchmark"]
    words += ["--api-backend", "openai", "--api-base", url_of(tinylm), "--api-key", "none"]
    words += ["--api-model-name", "tinylm", "--model-tokenizer", TOKENIZER]
    words += ["--task", "text-to-text", "--num-concurrency", 2]
    words += ["--max-time-per-run", 1, "--max-requests-per-run", ASKED]
    # The tool stops if the answer to its own prompt is empty, so the file contains prompts with an answer.
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("sort 40271=\nreverse 98=\n")
    words += ["--dataset-path", prompts, "--experiment-folder-name", "out"]
    ran(words, tmp_path)
    (path,) = (tmp_path / "out").glob("*_num_concurrency_2_*.json")
    found = read(path)["aggregated_metrics"]
    assert found["num_completed_requests"] >= ASKED
    assert found["num_error_requests"] == 0
