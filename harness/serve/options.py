"""Declares the options of `serve`, and lists the run options that it takes, too."""

from dataclasses import dataclass
from typing import ClassVar

from harness.core.config.options import option
from harness.core.config.parse import Endpoint, parse_endpoint

DEFAULT_NAME = "mlperf-harness"

OF_A_RUN = (
    "backend",
    "threads",
    "max_batch",
    "backend_option",
    "device",
    "provider",
    "input_shape",
)
"""Fields of RunOptions, in the order of the help."""

OF_A_NODE = (
    "dataset",
    "data_dir",
    "lengths",
    "input_range",
    "seed",
    "performance_count",
    "instances",
    "pin",
    "oversubscribe",
    "hook",
)
"""Fields that `serve --node` takes, too."""


def _listening(text: str) -> Endpoint:
    return parse_endpoint(text, "127.0.0.1:8000")


def _listening_grpc(text: str) -> Endpoint:
    return parse_endpoint(text, "127.0.0.1:8001")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    GROUP: ClassVar = "server"

    listen: Endpoint = option(
        "address to listen on (default 127.0.0.1:8000; port 0 takes a free port)",
        parse=_listening,
        default=Endpoint("127.0.0.1", 8000),
        metavar="HOST:PORT",
    )
    grpc: Endpoint | None = option(
        "also answer the Open Inference Protocol over gRPC at this address (needs the extra kserve-grpc)",
        parse=_listening_grpc,
        default=None,
        metavar="HOST:PORT",
    )
    name: str = option(
        "server name that /v2 reports; MLPerf's Network division requires a different name for each server "
        f"(default {DEFAULT_NAME}). For a language model: names under which clients may ask for it, e.g. base,adapter",
        parse=str,
        default=DEFAULT_NAME,
        metavar="NAME",
    )
    postprocess: bool = option(
        "do the manifest's postprocessing in the server: reply with answers instead of outputs, as a client with "
        "--qdl expects",
        flag=True,
    )
    node: bool = option(
        "run as a node of --nodes: load the data, run one instance per core, and take queries with sample indices",
        flag=True,
    )
