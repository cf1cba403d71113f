"""Exports a run with MLflow's client, to a local file store or to a tracking server."""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from harness.core.config.options import option_key
from harness.core.config.run_config import RunConfig
from harness.core.extras import how_to_install
from harness.core.units import NS_PER_MS
from harness.errors import ConfigError, PluginUnavailable, one_line
from harness.results import run_folder
from harness.results.export.samples import span_ns
from harness.results.numbers import numbers
from harness.results.run_files import RunFiles, shown_config

EXPERIMENT = "mlperf-harness"
"""Name of the experiment that contains the runs."""

DIGEST_TAG = "harness.digest"
"""Tag that holds the digest of result.json. The export refuses to add a second run with the same digest."""

USER, PASSWORD, TOKEN = (f"MLFLOW_TRACKING_{name}" for name in ("USERNAME", "PASSWORD", "TOKEN"))

_SETTINGS = {
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_ALLOW_HTTP_REDIRECTS": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "NETRC": os.devnull,
    "no_proxy": "*",
}
"""Environment variables that are set for MLflow's client. With these variables, the client contacts only the named
server, never retries, and prints nothing.
"""

_LONGEST_VALUE = 6_000
_NOT_IN_A_NAME = re.compile(r"[^\w.\- ]", re.ASCII)
"""Matches characters that MLflow does not allow in names, and `/`. MLflow allows `/`, but would create folders from it.
"""


def write(run: RunFiles, out: Path) -> None:
    """Writes a run to a store's folder, and creates the folder if it is missing. Raises a ConfigError if the store
    already contains the run.
    """
    _export(run, out.absolute().as_uri(), f"--out {out}")


def send(run: RunFiles, url: str) -> str:
    """Sends a run to a server, and returns the address of the run's page. Raises a ConfigError if the server refuses
    the run.
    """
    experiment, run_id = _export(run, url, f"--to {url}")
    return f"{url.rstrip('/')}/#/experiments/{experiment}/runs/{run_id}"


def _export(run: RunFiles, store: str, target: str) -> tuple[str, str]:
    """Returns the ids of the experiment and the run. Deletes the run if the store accepted the run only in part.

    store: the store's address. target: the option that set this address.
    """
    # All values are computed before anything is sent, because each computation may fail.
    tags, metrics, params = _tags(run), _metrics(run), _params(run)
    started_ms, ended_ms = (ns // NS_PER_MS for ns in span_ns(run))
    with _client(store, target) as client:
        from mlflow import entities

        known = client.get_experiment_by_name(EXPERIMENT)
        experiment = known.experiment_id if known else client.create_experiment(EXPERIMENT)
        same = f"tags.`{DIGEST_TAG}` = '{tags[DIGEST_TAG]}'"
        if earlier := client.search_runs([experiment], same, max_results=1):
            there = earlier[0].info.run_id
            raise ConfigError(f"{target}: {run.folder} was exported there before, as run {there}")
        info = client.create_run(experiment, started_ms, tags, run.name).info
        if not info.run_id:
            raise ConfigError(f"{target} is not an MLflow tracking server: its run has no id")
        try:
            client.log_batch(
                info.run_id,
                [entities.Metric(name, value, ended_ms, 0) for name, value in metrics.items()],
                [entities.Param(name, value) for name, value in params.items()],
            )
            _keep(run.folder / run_folder.RESULT, info.artifact_uri, store)
            status = "FINISHED" if run.result["verdict"] == "VALID" else "FAILED"
            client.set_terminated(info.run_id, status, ended_ms)
        except BaseException:
            with suppress(Exception):
                client.delete_run(info.run_id)
            raise
    return experiment, info.run_id


@contextmanager
def _client(store: str, target: str) -> Iterator[Any]:
    """Yields MLflow's client for a store, and converts the client's errors to ConfigErrors. Raises PluginUnavailable if
    MLflow is not installed.
    """
    before = dict(os.environ)
    # The settings must precede the import, which starts MLflow's telemetry.
    os.environ.update(_SETTINGS)
    try:
        try:
            from mlflow import MlflowClient
            from mlflow.exceptions import MlflowException
        except ModuleNotFoundError as e:
            how = how_to_install("mlflow")
            raise PluginUnavailable(f"--format mlflow needs the module {e.name!r}: {how}") from e
        from google.protobuf.json_format import ParseError

        try:
            yield MlflowClient(store)
        except (MlflowException, ParseError, OSError) as e:
            raise ConfigError(f"{target}{_fault(e, store)}") from None
    finally:
        os.environ.clear()
        os.environ.update(before)


def _fault(error: Exception, store: str) -> str:
    """Returns the end of an error message. Hides the error's text if it quotes a header, because the header contains a
    secret.
    """
    from mlflow.exceptions import MlflowException, RestException
    from requests.exceptions import InvalidHeader

    if _is_folder(store):
        return f" cannot be written: {one_line(error)}"
    if isinstance(error, RestException):
        return f": {one_line(error)}"
    cause: BaseException = error
    if isinstance(error, MlflowException):
        if error.get_http_status_code() in (401, 403) and not {USER, TOKEN} & os.environ.keys():
            return f" requires a login: set {USER} and {PASSWORD}, or {TOKEN}"
        while further := cause.__cause__ or cause.__context__:
            cause = further
    if isinstance(cause, InvalidHeader):
        return f": {TOKEN} is not valid in a header"
    why = one_line(cause) or type(cause).__name__
    return f" does not answer as an MLflow tracking server ({why}): check that one listens there"


def _keep(file: Path, place: str, store: str) -> None:
    """Adds an artifact to the run, unless the store keeps artifacts on another server that requires credentials."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    parts = urlsplit(place)
    if (parts.scheme, parts.netloc) == ("file" if _is_folder(store) else "mlflow-artifacts", ""):
        get_artifact_repository(place, tracking_uri=store).log_artifact(str(file))


def _is_folder(store: str) -> bool:
    return store.startswith("file:")


def _metrics(run: RunFiles) -> Mapping[str, float]:
    """Returns the metrics by name. Each name ends with its unit."""
    units = str.maketrans({"/": "_per_", "%": "percent"})
    return {
        _NOT_IN_A_NAME.sub("_", f"{name}_{number.unit.translate(units)}"): float(number.value)
        for name, number in numbers(run.result).items()
    }


def _params(run: RunFiles) -> Mapping[str, str]:
    known = {option_key(field) for field in fields(RunConfig)}
    return {
        key: _value(value)
        for key, value in shown_config(run.config).items()
        if key in known and value not in (None, "", [])
    }


def _tags(run: RunFiles) -> Mapping[str, str]:
    result = run.result
    facts: Mapping[str, Any] = {
        DIGEST_TAG: hashlib.sha256((run.folder / run_folder.RESULT).read_bytes()).hexdigest()[:32],
        "mlflow.source.type": "LOCAL",
        "harness.verdict": result["verdict"],
        "harness.reasons": run.codes("reasons"),
        "harness.doubts": run.codes("doubts"),
        "harness.dataset": result["dataset"],
        "mlflow.note.content": "\n\n".join(
            f"{result['verdict']}: {reason['code']}: {reason['text']}"
            for reason in result["reasons"]
        ),
    }
    return {name: _value(value) for name, value in facts.items() if value}


def _value(value: object) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text[:_LONGEST_VALUE]
