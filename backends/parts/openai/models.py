"""Finds the name under which the server knows the model, from the server's list of models."""

import json
from typing import Any

from harness.backends.parts.refusals import said
from harness.errors import ConfigError, one_line
from harness.remote import Exchange, Reply, Request
from harness.types import BackendSetup

_OK = 200
_NOT_THERE = (404, 405)
_SERVER_ERROR = 500


def served(exchange: Exchange, setup: BackendSetup, named: str | None = None) -> tuple[str, str]:
    """Returns the server's name for the model, and the name and version of the server's software (`unknown` if not
    reported).

    named: the model, if an option other than `served` names it; otherwise None.
    """
    wanted = setup.options.get("served")
    reply = exchange(Request("/v1/models", method="GET"))
    # The list is optional, and transformers' server fails to return the list without a download cache.
    if reply.status in _NOT_THERE or reply.status >= _SERVER_ERROR:
        return wanted or named or setup.model_name, "unknown"
    if reply.status != _OK:
        raise ConfigError(
            f"the server does not list its models: /v1/models answered {reply.status}: {said(reply)}"
        )
    listed = _json(reply)
    data = listed.get("data") if isinstance(listed, dict) else None
    entries = [m for m in data if isinstance(m, dict)] if isinstance(data, list) else []
    models = {i: m for m in entries if isinstance(i := m.get("id"), str) and i}
    names = [*models]
    ours = named if named in names else setup.model_name
    name = wanted or (ours if ours in names or len(names) != 1 else names[0])
    if names and name not in names:
        raise ConfigError(
            f"the server has no model {name!r}, only {one_line(', '.join(names[:8]))}: name one with "
            "--backend-option served=NAME"
        )
    owner = models.get(name, {}).get("owned_by") or ""
    about = _json(exchange(Request("/version", method="GET")))
    version = about.get("version") if isinstance(about, dict) else None
    return name, one_line(f"{owner} {version or ''}") or "unknown"


def _json(reply: Reply) -> Any:
    try:
        return json.loads(bytes(reply.body)) if reply.status == _OK else None
    except (ValueError, RecursionError):
        return None
