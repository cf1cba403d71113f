"""Runs are sent to a real MLflow tracking server, and to a faulty stand-in."""

import base64
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import HTTPServer
from pathlib import Path
from typing import Any

import pytest

from harness.cli.main import main
from harness.core.extras import how_to_install
from tests.builders.finished import REASON, RUNS, invalid
from tests.builders.refusals import Said
from tests.servers import real_servers
from tests.stand_ins.servers.metrics.prometheus_server import free_port
from tests.stand_ins.servers.quiet import QuietHandler, in_thread

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def mlflow(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yields the address of a real tracking server; its environment takes 0.6 GB and stays in pytest's cache."""
    programs = real_servers.environment(Path(pytestconfig.cache.mkdir("servers")), "mlflow") / "bin"
    folder = tmp_path_factory.mktemp("mlflow")
    url = f"http://127.0.0.1:{(port := free_port())}"
    words = [programs / "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    words += ["--backend-store-uri", "sqlite:///runs.db", "--workers", "1"]
    words += ["--artifacts-destination", folder / "artifacts"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            list(map(str, words)), cwd=folder, stdout=log, stderr=log, env=real_servers.outside()
        )
    try:
        deadline = time.monotonic() + real_servers.READY_S
        while not real_servers.is_ready(f"{url}/health"):
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait()


def asked(url: str, **content: object) -> Any:
    request = urllib.request.Request(url, json.dumps(content).encode() if content else None)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=10) as reply:
        return json.loads(reply.read())


def send(run: Path, url: str) -> int:
    return main(["export", str(run), "--format", "mlflow", "--to", url])


@pytest.mark.slow
@pytest.mark.parametrize(("verdict", "status"), [("VALID", "FINISHED"), ("INVALID", "FAILED")])
def test_a_real_server_shows_the_run(
    verdict: str, status: str, mlflow: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RUNS / "server" if verdict == "VALID" else invalid("server", tmp_path)
    assert send(run, mlflow) == 0
    page = capsys.readouterr().out.strip()
    run_id = page.removeprefix(f"{mlflow}/#/experiments/").partition("/runs/")[2]
    found = asked(f"{mlflow}/api/2.0/mlflow/runs/get?run_id={run_id}")["run"]
    result = json.loads((run / "result.json").read_text())
    info = found["info"]
    assert (info["status"], info["run_name"]) == (status, run.name)
    assert 0 < info["end_time"] - info["start_time"] < 60_000
    metrics = {one["key"]: one["value"] for one in found["data"]["metrics"]}
    assert metrics["p99_ns"] == result["latency_ns"]["p99"]
    assert metrics["throughput_samples_per_s"] == result["throughput_per_s"]["completed"]
    params = {one["key"]: one["value"] for one in found["data"]["params"]}
    assert (params["target_qps"], params["slo"]) == ("200.0", "p90=5s")
    tags = {one["key"]: one["value"] for one in found["data"]["tags"]}
    assert tags["harness.verdict"] == verdict
    assert tags.get("harness.reasons", "") == ("" if verdict == "VALID" else REASON["code"])
    artifact = f"{mlflow}/get-artifact?run_id={run_id}&path=result.json"
    with urllib.request.urlopen(artifact, timeout=10) as reply:
        assert reply.read() == (run / "result.json").read_bytes()
    assert send(run, mlflow) == 2
    assert f"was exported there before, as run {run_id}" in capsys.readouterr().err


class _Faulty(QuietHandler):
    """Replies with (status, content) from the server's `answers`, by the last part of the path."""

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        name = self.path.partition("?")[0].rpartition("/")[2]
        server: Any = self.server
        server.asked.append((name, self.headers.get("Authorization")))
        status, content = server.answers.get(name, (200, {}))
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if status == HTTPStatus.FOUND:
            self.send_header("Location", "/elsewhere")
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = _answer


GOOD = {
    "get-by-name": (200, {"experiment": {"experiment_id": "7"}}),
    "create": (200, {"run": {"info": {"run_id": "r1", "artifact_uri": "s3://bucket/7/r1"}}}),
}


@contextmanager
def faulty(**answers: tuple[int, object]) -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """Yields (address, names of the requests with their Authorization header)."""
    server: Any = HTTPServer(("127.0.0.1", 0), _Faulty)
    server.asked = []
    server.answers = {**GOOD, **{name.replace("_", "-"): value for name, value in answers.items()}}
    with in_thread(server) as address:
        yield address, server.asked


@pytest.mark.parametrize(
    ("place", "sent"),
    [
        ("mlflow-artifacts:/7/r1", ["result.json"]),
        ("mlflow-artifacts://another:1/7/r1", []),
        ("s3://bucket/7/r1", []),
        ("{tmp_path}", []),
    ],
)
def test_artifacts_of_another_store_are_left_out(
    place: str, sent: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    info = {"run_id": "r1", "artifact_uri": place.format(tmp_path=tmp_path.as_uri())}
    with faulty(create=(200, {"run": {"info": info}})) as (url, asked_for):
        assert send(RUNS / "offline", url) == 0
    assert capsys.readouterr().out == f"{url}/#/experiments/7/runs/r1\n"
    names = [name for name, _ in asked_for]
    assert names == ["get-by-name", "search", "create", "log-batch", *sent, "update"]
    assert not [*tmp_path.iterdir()]


WATCHED = """
import sys, threading
asked = {"socket.connect": set(), "socket.getaddrinfo": set()}
def hook(name, args):
    if name in asked:
        asked[name].add(args[1] if name == "socket.connect" else args[:2])
sys.addaudithook(hook)
from harness.cli.main import main
assert main(sys.argv[1:]) == 0
print(set.union(*asked.values()), threading.active_count())
"""


def test_only_the_named_server_is_contacted(tmp_path: Path) -> None:
    """MLflow's client would report usage to its makers, contact a proxy, and send a password from .netrc."""
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password pw")
    variables = {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "http_proxy": "http://127.0.0.1:1"}
    with faulty() as (url, asked_for):
        words = ["export", str(RUNS / "offline"), "--format", "mlflow", "--to", url]
        command = [sys.executable, "-P", "-c", WATCHED, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=variables)
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    assert done.stdout.splitlines()[1:] == [f"{ {address} } 1"]
    assert {*asked_for} >= {("create", None), ("log-batch", None)}


@pytest.mark.parametrize("words", [["--to", "http://127.0.0.1:1"], ["--out", "store"]])
def test_missing_mlflow_is_reported_with_its_extra(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert main(["export", str(RUNS / "offline"), "--format", "mlflow", *words]) == 3
    message = f"--format mlflow needs the module 'mlflow': {how_to_install('mlflow')}"
    assert capsys.readouterr().err == f"harness: {message}\n"
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("answers", "line"),
    [
        ({"get_by_name": (200, b"<html>")}, "does not answer as an MLflow tracking server (API request to endpoint was successful but"),
        ({"get_by_name": (404, b"")}, "experiments/get-by-name failed with error code 404 != 200. Response body: ''): check that one listens there"),
        ({"get_by_name": (302, b"")}, "failed with error code 302"),
        ({"get_by_name": (200, {"experiment": 5})}, "(Failed to parse experiment field"),
        ({"get_by_name": (200, {}), "create": (200, {})}, "is not an MLflow tracking server: its run has no id"),
        ({"get_by_name": (401, b"no")}, "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or"),
        ({"create": (400, {"error_code": "NOT_MLFLOWS", "message": "not 'active'\n"})}, ": NOT_MLFLOWS: not 'active'"),
        ({"search": (503, {})}, "as an MLflow tracking server (too many 503 error responses): check that one listens there"),
        ({"search": (200, {"runs": [{"info": {"run_id": "r0"}}]})}, "was exported there before, as run r0"),
    ],
)  # fmt: skip
def test_a_server_that_does_not_take_the_run_is_reported_in_one_line(
    answers: dict[str, tuple[int, object]], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with faulty(**answers) as (url, asked_for):
        assert send(RUNS / "offline", url) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith(f"harness: --to {url}")
    assert line in said.err
    assert "log-batch" not in [name for name, _ in asked_for]


def test_a_run_that_is_taken_in_part_is_deleted(capsys: pytest.CaptureFixture[str]) -> None:
    answer = {"error_code": "DATA_LOSS", "message": "the disk is full"}
    with faulty(log_batch=(400, answer)) as (url, asked_for):
        assert send(RUNS / "offline", url) == 2
    assert asked_for[-1][0] == "delete"
    assert capsys.readouterr().err == f"harness: --to {url}: DATA_LOSS: the disk is full\n"


def test_a_token_that_cannot_be_sent_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: the message contained the header, and therefore the token."""
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "s3cret\n")
    with faulty() as (url, asked_for):
        assert send(RUNS / "offline", url) == 2
    message = f"harness: --to {url}: MLFLOW_TRACKING_TOKEN is not valid in a header\n"
    assert capsys.readouterr().err == message
    assert asked_for == []


@pytest.mark.parametrize(
    ("variables", "header"),
    [
        ({}, None),
        ({"MLFLOW_TRACKING_TOKEN": "abc"}, "Bearer abc"),
        ({"MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": "pä"}, f"Basic {base64.b64encode('me:pä'.encode()).decode()}"),
    ],
)  # fmt: skip
def test_user_comes_from_the_variables_of_mlflow(
    variables: dict[str, str], header: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TOKEN", "USERNAME", "PASSWORD"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with faulty() as (url, asked_for):
        assert send(RUNS / "offline", url) == 0
    assert {sent for _, sent in asked_for} == {header}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["mlflow", "--to", "nonsense"], "--to: 'nonsense' is not a server: write http://HOST:PORT"),
        (["mlflow", "--to", "http://me:pw@host"], "--to: 'http://me:pw@host' is not a server"),
        (["mlflow", "--to", "http://127.0.0.1:1"], "as an MLflow tracking server (Connection refused): check that one listens there"),
        (["csv", "--to", "http://127.0.0.1:1"], "--to names a server: pass --format mlflow"),
        (["mlflow", "--to", "http://127.0.0.1:1", "--out", "x"], "and no --out"),
        (["mlflow"], "pass --out, or --to URL"),
    ],
)  # fmt: skip
def test_a_wrong_address_is_reported_in_one_line(
    words: list[str], line: str, refuses: Said
) -> None:
    assert line in refuses("export", RUNS / "offline", "--format", *words)
