"""Sends a run to a tracking server of MLflow by its REST API; MLflow itself is not needed.

Source: MLflow 3's REST API 2.0, and mlflow/store/artifact/mlflow_artifacts_repo.py for the artifacts.
"""

import base64
import http.client
import json
import os
import ssl
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from harness.core.files import reading
from harness.core.units import NS_PER_MS
from harness.errors import ConfigError, one_line
from harness.results import run_folder
from harness.results.export.mlflow import EXPERIMENT, entries, id_of, is_finished
from harness.results.export.samples import span_ns
from harness.results.run_files import RunFiles

USER, PASSWORD, TOKEN = (f"MLFLOW_TRACKING_{name}" for name in ("USERNAME", "PASSWORD", "TOKEN"))
"""Variables of the environment, by MLflow's own names."""

DIGEST_TAG = "harness.digest"
_API = "/api/2.0/mlflow"
_LIMIT_S = 30.0
_AT_ONCE = 100
"""Params or tags in one request, MLflow's limit; metrics may be more."""

_SERVED = "mlflow-artifacts:/"
"""Artifacts that go through the server; others lie in a store whose credentials only MLflow's client has."""

_OK, _UNAUTHORIZED, _FORBIDDEN = 200, 401, 403


def send(run: RunFiles, url: str) -> str:
    """Returns the address of the run's page. Raises a ConfigError if the server does not take the run.

    Refuses a run that was sent before; deletes a run from the server that took it in part.
    """
    result = (run.folder / run_folder.RESULT).read_bytes()
    found = list(entries(run))  # before anything is sent: they may be unusable
    with closing(_Server(url)) as server, reading(f"--to {url} is not an MLflow tracking server"):
        experiment = _experiment(server)
        _refuse_second(server, experiment, run, id_of(result))
        run_id = _sent(server, experiment, run, found, result)
    return f"{url.rstrip('/')}/#/experiments/{experiment}/runs/{run_id}"


def _experiment(server: "_Server") -> str:
    query = urlencode({"experiment_name": EXPERIMENT})
    found = server.call(
        "GET", f"{_API}/experiments/get-by-name?{query}", missing="RESOURCE_DOES_NOT_EXIST"
    )
    if found is None:
        return str(server.post("experiments/create", {"name": EXPERIMENT})["experiment_id"])
    return str(found["experiment"]["experiment_id"])


def _refuse_second(server: "_Server", experiment: str, run: RunFiles, digest: str) -> None:
    wanted = f"tags.\"{DIGEST_TAG}\" = '{digest}'"
    found = server.post("runs/search", {"experiment_ids": [experiment], "filter": wanted})
    if known := found.get("runs"):
        there = known[0]["info"]["run_id"]
        raise ConfigError(f"--to {server}: {run.folder} was sent there before, as run {there}")


def _sent(
    server: "_Server",
    experiment: str,
    run: RunFiles,
    found: Sequence[tuple[str, str, str | float]],
    result: bytes,
) -> str:
    """The id of the new run."""
    started_ms, ended_ms = (ns // NS_PER_MS for ns in span_ns(run))
    about = {"experiment_id": experiment, "start_time": started_ms, "run_name": run.name}
    tags = [{"key": DIGEST_TAG, "value": id_of(result)}]
    info = server.post("runs/create", {**about, "tags": tags})["run"]["info"]
    try:
        _fill(server, info["run_id"], found, ended_ms)
        _add_result(server, info["artifact_uri"], result)
        status = "FINISHED" if is_finished(run) else "FAILED"
        ended = {"run_id": info["run_id"], "status": status, "end_time": ended_ms}
        server.post("runs/update", ended)
    except ConfigError:
        with suppress(ConfigError):
            server.post("runs/delete", {"run_id": info["run_id"]})
        raise
    return str(info["run_id"])


def _fill(
    server: "_Server",
    run_id: str,
    found: Sequence[tuple[str, str, str | float]],
    at_ms: int,
) -> None:
    """Adds the metrics, params and tags."""
    for start in range(0, len(found), _AT_ONCE):
        batch: dict[str, list[dict[str, object]]] = {"metrics": [], "params": [], "tags": []}
        for kind, name, value in found[start : start + _AT_ONCE]:
            of_metric = {"timestamp": at_ms, "step": 0} if kind == "metrics" else {}
            batch[kind].append({"key": name, "value": value, **of_metric})
        server.post("runs/log-batch", {"run_id": run_id, **batch})


def _add_result(server: "_Server", artifacts: str, result: bytes) -> None:
    if not artifacts.startswith(_SERVED):
        return
    folder = urlsplit(artifacts).path.strip("/")
    path = f"/api/2.0/mlflow-artifacts/artifacts/{quote(f'{folder}/{run_folder.RESULT}')}"
    server.call("PUT", path, result)


class _Server:
    """One connection."""

    def __init__(self, url: str) -> None:
        self._url, parts = url, urlsplit(url)
        assert parts.hostname is not None  # by the parser
        self._prefix = parts.path.rstrip("/")
        self._connection = (
            http.client.HTTPConnection(parts.hostname, parts.port, timeout=_LIMIT_S)
            if parts.scheme == "http"
            else http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=_LIMIT_S, context=ssl.create_default_context()
            )
        )
        self._headers = _authorization()

    def __str__(self) -> str:
        return self._url

    def close(self) -> None:
        self._connection.close()

    def post(self, what: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """what: below the API's path."""
        body = json.dumps(content, allow_nan=False).encode()
        return self.call("POST", f"{_API}/{what}", body) or {}

    def call(
        self, method: str, path: str, body: bytes | None = None, missing: str = ""
    ) -> dict[str, Any] | None:
        """The object that the server answers. missing: code of an error for which it is None."""
        kind = "application/json" if method == "POST" else "application/octet-stream"
        headers = {**self._headers, **({"Content-Type": kind} if body is not None else {})}
        try:
            self._connection.request(method, f"{self._prefix}{path}", body, headers)
            answer = self._connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as e:
            why = one_line(e) or type(e).__name__
            raise ConfigError(
                f"--to {self._url} cannot be asked ({why}): is a server there?"
            ) from None
        content = _object(text)
        if answer.status == _OK and content is not None:
            return content
        if missing and content is not None and content.get("error_code") == missing:
            return None
        raise ConfigError(f"--to {self._url}: {self._refusal(answer.status, content)}")

    def _refusal(self, status: int, content: Mapping[str, Any] | None) -> str:
        if status in (_UNAUTHORIZED, _FORBIDDEN) and not self._headers:
            return f"it asks who you are: set {USER} and {PASSWORD}, or {TOKEN}"
        if content is None or "message" not in content:
            return f"it answered {status}, and not as a tracking server of MLflow does"
        return one_line(f"it answered {status}: {content['message']}")


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        content = json.loads(text or b"{}")
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def _authorization() -> dict[str, str]:
    if token := os.environ.get(TOKEN):
        return {"Authorization": f"Bearer {token}"}
    if user := os.environ.get(USER):
        both = f"{user}:{os.environ.get(PASSWORD, '')}".encode()
        return {"Authorization": f"Basic {base64.b64encode(both).decode()}"}
    return {}
