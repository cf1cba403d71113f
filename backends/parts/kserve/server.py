"""Reads the metadata of an Open Inference Protocol v2 server, and of one of its models."""

import json
from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote

from harness.backends.parts.kserve.datatypes import NAMES, Tensor
from harness.backends.parts.kserve.values import shown
from harness.backends.parts.refusals import said
from harness.errors import ConfigError
from harness.remote import Exchange, Reply, Request, ServerTotals

_OK = 200
_MOST_VALUES = 2**31
_NOT_THERE = (404, 405, 501)
"""Statuses that a server returns for an endpoint that it lacks; the protocol makes some endpoints optional."""


class ServedModel(NamedTuple):
    """A server's description of a model."""

    path: str
    """The path of the model's endpoints, such as `/v2/models/digits`."""
    server: str
    """Name and version of the server, such as `triton 2.51.0`; `unknown` if the server does not report them."""
    platform: str
    inputs: tuple[Tensor, ...]
    """The model's inputs; () if the server reports none."""
    outputs: tuple[Tensor, ...]
    max_batch: int | None
    """Number of samples in the largest request; None if the server has no limit or does not state one."""
    properties: Mapping[str, object] = MappingProxyType({})
    """Properties of the model that the protocol does not define, e.g. precision and threads, which the harness's
    `serve` reports.
    """


def ask(exchange: Exchange, model: str, version: str | None) -> ServedModel:
    """Reads the model's metadata. Raises a ConfigError if no server of this protocol is ready, or if the server lacks
    the model.
    """
    path = f"/v2/models/{quote(model, safe='')}"
    if version is not None:
        path += f"/versions/{quote(version, safe='')}"
    ready = exchange(_get("/v2/health/ready"))
    if ready.status != _OK and ready.status not in _NOT_THERE:
        raise ConfigError(
            f"the server is not ready: /v2/health/ready answered {_said(ready)}: wait until it has "
            "loaded its models"
        )
    about = exchange(_get("/v2"))
    server = _object(about)
    refusal = _said(about)
    reply = exchange(_get(path))
    metadata = _object(reply)
    if metadata is None or not isinstance(metadata.get("name"), str):
        if server is None or not isinstance(server.get("name"), str):
            raise ConfigError(
                f"the server does not support KServe v2: /v2 answered {refusal}; pass its address with --url, "
                "and the path that comes before /v2, or pass --backend openai if it has a language model"
            )
        raise ConfigError(_no_such_model(exchange, model, version, _said(reply)))
    # Triton states the largest batch in its reply to this request.
    config = _object(exchange(_get(f"{path}/config"))) or {}
    limit = config.get("max_batch_size")
    server, properties = server or {}, metadata.get("properties")
    return ServedModel(
        path,
        " ".join(str(server[key]) for key in ("name", "version") if server.get(key)) or "unknown",
        str(metadata.get("platform") or config.get("backend") or "unknown"),
        _tensors(metadata.get("inputs"), "input"),
        _tensors(metadata.get("outputs"), "output"),
        limit if isinstance(limit, int) and limit > 0 else None,
        properties if isinstance(properties, dict) else {},
    )


def name(exchange: Exchange) -> str:
    """Returns the server's name, which is Triton's --id or the --name of the harness's `serve`; '' if the server
    reports none.
    """
    told = (_object(exchange(_get("/v2"))) or {}).get("name")
    return told if isinstance(told, str) else ""


def totals(exchange: Exchange, path: str) -> ServerTotals | None:
    """Returns the statistics of Triton and similar servers; None if the server reports none.

    path: the path of the model's endpoints. Sums the statistics over all versions of the model. Source: Triton's
    statistics extension.
    """
    content = _object(exchange(_get(f"{path}/stats")))
    if content is None:
        return None
    sums = [0, 0, 0, 0]
    try:
        for model in content["model_stats"]:
            stats = model["inference_stats"]
            success = stats["success"]
            for i, value in enumerate(
                (
                    success["count"],
                    stats["queue"]["ns"],
                    stats["compute_infer"]["ns"],
                    success["ns"],
                )
            ):
                sums[i] += int(value)
    except (KeyError, TypeError, ValueError):
        return None
    return ServerTotals(*sums)


def _get(path: str) -> Request:
    return Request(path, method="GET")


def _object(reply: Reply) -> Mapping[str, Any] | None:
    """Returns the JSON object in a reply with status 200; None for any other reply."""
    if reply.status != _OK:
        return None
    content = _json(reply)
    return content if isinstance(content, dict) else None


def _json(reply: Reply) -> object:
    try:
        return json.loads(bytes(reply.body))
    except (ValueError, RecursionError):
        return None


def _said(reply: Reply) -> str:
    return f"{reply.status} ({said(reply)})"


def _tensors(listed: object, kind: str) -> tuple[Tensor, ...]:
    if not isinstance(listed, list):
        return ()
    return tuple(_tensor(one, kind) for one in listed)


def _tensor(one: object, kind: str) -> Tensor:
    about = one if isinstance(one, dict) else {}
    name, datatype, shape = (about.get(key) for key in ("name", "datatype", "shape"))
    is_shape = isinstance(shape, list) and all(type(size) is int and size for size in shape)
    if is_shape and prod(max(size, 1) for size in shape or ()) > _MOST_VALUES:
        raise ConfigError(
            f"the server's metadata list the {kind} {shown(name)} with shape {shown(shape)}, which no request can hold: "
            "correct the model's configuration on the server"
        )
    if not (isinstance(name, str) and isinstance(datatype, str) and datatype in NAMES and is_shape):
        raise ConfigError(
            f"the server's metadata list the {kind} {shown(name)} with datatype {shown(datatype)} and shape {shown(shape)}, "
            "which KServe v2 does not allow: correct the model's configuration on the server"
        )
    return Tensor(name, datatype, tuple(None if size < 0 else size for size in shape or ()))


def _no_such_model(exchange: Exchange, model: str, version: str | None, said: str) -> str:
    what = f"model {model!r}" if version is None else f"version {version!r} of model {model!r}"
    listed = _index(exchange)
    for entry in listed:
        if entry["name"] == model and entry.get("state") not in (None, "", "READY"):
            why = f" ({entry['reason']})" if entry.get("reason") else ""
            return f"the {what} of the server is {entry['state']}{why}: see the server's log"
    if version is None:
        option, have = "served=NAME", [entry["name"] for entry in listed]
    else:
        same = [entry for entry in listed if entry["name"] == model and entry.get("version")]
        option, have = "version=VERSION", [str(entry["version"]) for entry in same]
    found = f"it has {', '.join(dict.fromkeys(have))}" if have else f"it answered {said}"
    return f"the server has no {what}: {found}; see --backend-option {option}"


def _index(exchange: Exchange) -> Sequence[Mapping[str, Any]]:
    """Returns the models that the server lists; () if the server does not offer a list."""
    headers = (("Content-Type", "application/json"),)
    reply = exchange(Request("/v2/repository/index", headers, (b"{}",)))
    content = _json(reply) if reply.status == _OK else None
    if not isinstance(content, list):
        # Servers built with the KServe SDK list their models at this path.
        names = (_object(exchange(_get("/v2/models"))) or {}).get("models")
        content = [{"name": name} for name in names] if isinstance(names, list) else []
    return [e for e in content if isinstance(e, dict) and isinstance(e.get("name"), str)]
