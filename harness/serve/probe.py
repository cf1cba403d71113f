"""Describes a server: its round-trip time, protocols and models, and how to measure the models."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from textwrap import indent
from typing import Any

from harness.core import registry
from harness.core.config.run_config import RunConfig
from harness.core.console import program, show
from harness.core.formats.strict_yaml import yaml_of
from harness.core.units import counted, show_ns
from harness.errors import ConfigError, HarnessError, one_line
from harness.models.manifest.lookup import named_models
from harness.models.opened.remote import request_timeout_s, servers_of
from harness.remote import Exchange, Reply, Request
from harness.serve.services import known, openapi
from harness.serve.services.described import Service
from harness.serve.services.known import json_of
from harness.types import BackendSetup, HasSignature, show_shape
from harness.wire.remote_backend import link_to

ROUND_TRIPS = 20
MOST_MODELS = 20
"""Maximum number of models that receive a sample of zeros."""

_PATHS = ("/v2", "/v1/models", "/")


def probe(config: RunConfig, model: str | None, *, as_json: bool = False) -> int:
    """Describes the server of --url. Returns the exit status. Raises ConfigError if the server cannot be reached, or if
    `model` has no meaning for the server.

    model: the server's name for a model, which a KServe server need not list.
    """
    found = looked_at(config, model)
    if model is not None and found["kserve"] is None:
        found |= _about(model, found)
    show(json.dumps(found, indent=2) if as_json else "\n".join(_lines(found)))
    return 0


def looked_at(config: RunConfig, model: str | None = None) -> dict[str, Any]:
    """Returns the server's description as plain values. Sends each model a sample of zeros to determine the encoding."""
    server = servers_of(config)[0]
    is_grpc = server.address.grpc
    link = link_to(server, request_timeout_s(config))
    exchange = link.exchange_at_start
    ask = registry.load("backend", "kserve").by_paths(exchange) if is_grpc else exchange
    try:
        link.open_at_start()
        replies = {path: ask(Request(path, method="GET")) for path in _PATHS}
        cheapest = "/v2" if is_grpc else min(replies, key=lambda path: len(replies[path].body))
        opened = link.opened
        times = [_timed(ask, cheapest) for _ in range(ROUND_TRIPS)]
        kserve = _kserve(ask, exchange, is_grpc, replies["/v2"], model)
        openai = _openai(replies["/v1/models"])
        is_other = kserve is None and openai is None and not is_grpc
        return {
            "url": str(server.address),
            "address": link.peer(),
            "local": link.is_local(),
            "software": None if is_grpc else replies["/v2"].header("Server"),
            "round_trip_ns": int(median(times)),
            "keeps_connections": link.opened == opened,
            "kserve": kserve,
            "openai_models": openai,
            **(_services(ask, replies["/v1/models"], model) if is_other else _NO_SERVICES),
        }
    finally:
        link.close()


def _about(model: str, found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the facts that differ if the user names a model. Raises ConfigError if the server lacks the model, or does
    not name its models.
    """
    listed = found["openai_models"]
    if listed is not None:
        if model in listed:
            # The command that is printed measures the first model.
            return {"openai_models": [model, *(name for name in listed if name != model)]}
        shown = ", ".join(listed[:MOST_MODELS]) or "no model"
        raise ConfigError(f"--model {model}: the server lists {shown}: name a listed model")
    if found["services_protocol"] != known.TF_SERVING:
        raise ConfigError(f"--model {model}: this server does not name its models: drop --model")
    if not found["services"]:
        raise ConfigError(f"--model {model}: the server does not describe it: check the name")
    return {}


def _timed(exchange: Exchange, path: str) -> int:
    begin_ns = time.monotonic_ns()
    exchange(Request(path, method="GET"))
    return time.monotonic_ns() - begin_ns


def _kserve(
    ask: Exchange, exchange: Exchange, is_grpc: bool, about: Reply, model: str | None
) -> Mapping[str, Any] | None:
    """Returns facts about a KServe server, or None if the server is of a different kind.

    ask: exchanges requests with HTTP paths. exchange: exchanges requests in the protocol of the plug-in.
    """
    server = json_of(about)
    if not isinstance(server, dict) or not isinstance(server.get("name"), str):
        return None
    names = [model] if model is not None else _names(ask)[:MOST_MODELS]
    extensions = server.get("extensions")
    return {
        "name": server["name"],
        "version": str(server.get("version", "")),
        "extensions": [str(e) for e in extensions] if isinstance(extensions, list) else [],
        "models": [_model(exchange, is_grpc, name) for name in names],
    }


def _names(exchange: Exchange) -> list[str]:
    headers = (("Content-Type", "application/json"),)
    listed = json_of(exchange(Request("/v2/repository/index", headers, (b"{}",))))
    if not isinstance(listed, list):
        about = json_of(exchange(Request("/v2/models", method="GET")))
        listed = about.get("models") if isinstance(about, dict) else None
    entries = listed if isinstance(listed, list) else []
    names = [e.get("name") if isinstance(e, dict) else e for e in entries]
    return list(dict.fromkeys(str(name) for name in names if name))


def _model(exchange: Exchange, is_grpc: bool, name: str) -> dict[str, Any]:
    """Returns the facts about a model that the plug-in can determine."""
    transport = "grpc" if is_grpc else "http"
    setup = BackendSetup(model=None, model_name=name, transport=transport)
    try:
        remote = registry.load("backend", "kserve")(setup)
        remote.open(exchange)
    except (HarnessError, ValueError) as e:
        return {"name": name, "problem": one_line(e)}
    inputs = remote.signature() if isinstance(remote, HasSignature) else ()
    return {
        "name": name,
        "inputs": [{"name": s.name, "dtype": s.dtype, "shape": list(s.shape)} for s in inputs],
        "outputs": list(remote.outputs()),
        **remote.describe(),
    }


def _openai(reply: Reply) -> list[str] | None:
    listed = json_of(reply)
    data = listed.get("data") if isinstance(listed, dict) else None
    if not isinstance(data, list):
        return None
    names = [model.get("id") for model in data if isinstance(model, dict)]
    return [one_line(name) for name in names if isinstance(name, str) and name]


_NO_SERVICES: Mapping[str, Any] = {"services_protocol": None, "services": []}


def _services(ask: Exchange, models: Reply, model: str | None) -> Mapping[str, Any]:
    """Returns the protocol and the addresses of a JSON service. models: the reply to GET /v1/models."""
    if model is not None and (found := known.tf_serving(ask, model)) is not None:
        return _described(known.TF_SERVING, [found])
    if known.is_tf_serving(models):
        return _described(known.TF_SERVING, [])
    if (of_mlflow := known.mlflow(ask)) is not None:
        version, found = of_mlflow
        return _described(f"{known.MLFLOW} {version}", [found])
    for path in openapi.PAGES:
        page = json_of(ask(Request(path, method="GET")))
        title = openapi.title(page)
        if title is not None:
            return _described(title, openapi.services(page))
    return _NO_SERVICES


def _described(protocol: str, found: Sequence[Service]) -> Mapping[str, Any]:
    return {"services_protocol": protocol, "services": [one.to_json() for one in found]}


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    where = "this machine" if found["local"] else "another machine"
    named = f", {found['software']}" if found["software"] else ""
    yield f"{found['url']}   {found['address'] or 'a Unix socket'} ({where}){named}"
    kept = (
        "kept open"
        if found["keeps_connections"]
        else "closed after each reply: each request opens a new one"
    )
    yield f"round trip   {show_ns(found['round_trip_ns'])}, median of {ROUND_TRIPS}; connections are {kept}"
    about = found["kserve"]
    if about is not None:
        over = "gRPC" if found["url"].startswith("grpc") else "HTTP"
        yield f"protocol     KServe v2 over {over}: {about['name']} {about['version']}".rstrip()
        for model in about["models"]:
            yield from _model_lines(found["url"], model)
        if not about["models"]:
            yield "models       not listed: pass a model's name with --model"
    if found["openai_models"] is not None:
        yield f"protocol     OpenAI: models {', '.join(found['openai_models']) or 'none'}"
        yield from _openai_lines(found["url"], found["openai_models"])
    if found["services_protocol"] is not None:
        yield from _service_lines(found)
    elif about is None and found["openai_models"] is None:
        yield (
            "protocol     unknown: neither KServe v2 nor OpenAI, and no page describes it; --backend http-json sends "
            "JSON of any structure, --backend http-raw raw bytes"
        )


def _model_lines(url: str, model: Mapping[str, Any]) -> Iterator[str]:
    if "problem" in model:
        yield f"model        {model['name']}: {model['problem']}"
        return
    inputs = ", ".join(
        f"{i['name']} {i['dtype']} {show_shape(i['shape'])}" for i in model["inputs"]
    )
    limit = model["server_max_batch"]
    most = f"; at most {counted(limit, 'sample')} per request" if limit else ""
    yield (
        f"model        {model['name']}: {inputs} -> {', '.join(model['outputs'])}; {model['encoding']} "
        f"requests, {model['reply_encoding']} replies{most}"
    )
    name = model["name"]
    if name not in named_models():
        name = f"{name}.yaml"
        write = f"this machine has no model with this name; write this into {name}, then add its data and steps:"
        yield from _manifest_lines(name, write, _manifest(model))
    yield f"try          {program()} --scenario server --backend kserve --url {url} --model {name}"


def _openai_lines(url: str, models: Sequence[str]) -> Iterator[str]:
    """Yields lines that show how to measure the first model."""
    if not models:
        return
    served, more = models[0], ""
    name = served
    if served not in named_models():
        name = f"{served.rsplit('/', 1)[-1]}.yaml"
        more = " --data-dir prompts.jsonl"
        if len(models) > 1:
            more += f" --backend-option served={served}"
        fields = {
            "name": name.removesuffix(".yaml"),
            "files": {},
            "inputs": [{"name": "request", "dtype": "string", "shape": ["batch"]}],
            "outputs": [{"name": "answer"}],
            "dataset": "prompts",
        }
        write = f"this machine has no model with this name; write this into {name}, and prompts into prompts.jsonl:"
        yield from _manifest_lines(name, write, fields)
    yield (
        f"try          {program()} --scenario server --backend openai --url {url} --model {name}{more} "
        "--target-qps 1 --slo p99=5s"
    )


def _service_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yields lines with a JSON service's addresses and the manifest for each address."""
    yield f"protocol     {found['services_protocol']}"
    if not found["services"]:
        missing = (
            "pass a model's name with --model"
            if "TensorFlow" in found["services_protocol"]
            else "none"
        )
        yield f"service      not listed: {missing}"
    for one in found["services"]:
        manifest = one["manifest"]
        yield f"service      POST {one['path']}{one['note'] and ': '}{one['note']}"
        if manifest is None:
            continue
        name = f"{manifest['name']}.yaml"
        write = f"write this into {name}, then set its open sizes, data and steps:"
        yield from _manifest_lines(name, write, manifest)
        yield (
            f"try          {program()} --scenario server --backend http-json --url {found['url']} --model {name}"
        )


def _manifest_lines(name: str, write: str, fields: Mapping[str, Any]) -> Iterator[str]:
    """Yields a manifest to write into the file `name`. A file with this name may be the model's manifest, which must not be
    overwritten.

    write: advice on how to use the manifest.
    """
    if Path(name).is_file():
        yield f"manifest     {name} exists in this folder: it must have the inputs and outputs above"
        return
    yield f"manifest     {write}"
    yield indent(_as_yaml(fields), "    ")


def _as_yaml(fields: Mapping[str, Any]) -> str:
    return yaml_of(fields, default_flow_style=None, width=120).rstrip()


def _manifest(model: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a minimal manifest with synthetic data for a model on a server."""
    sizes = [spec["shape"] for spec in model["inputs"]]
    shapes = [
        ["batch" if size is None and not at else size for at, size in enumerate(shape)]
        for shape in sizes
    ]
    return {
        "name": model["name"],
        "files": {},
        "inputs": [
            {"name": spec["name"], "dtype": spec["dtype"], "shape": shape}
            for spec, shape in zip(model["inputs"], shapes, strict=True)
        ],
        "outputs": [{"name": name} for name in model["outputs"]],
        "dataset": "synthetic",
    }
