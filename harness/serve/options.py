"""Declares the options of `serve`, and lists the run options that `serve` also accepts."""

import re
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

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
    "provider_option",
    "input_shape",
)
"""Fields of RunOptions that `serve` accepts, in the order in which the help lists them."""

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
"""Fields of RunOptions that only `serve --node` accepts."""


def _listening(text: str) -> Endpoint:
    return parse_endpoint(text, "127.0.0.1:8000")


def _listening_grpc(text: str) -> Endpoint:
    return parse_endpoint(text, "127.0.0.1:8001")


class PrefixBlocks(NamedTuple):
    """The size of a prefix cache."""

    block_tokens: int
    most_blocks: int

    def __str__(self) -> str:
        return f"{self.block_tokens}:{self.most_blocks}"


DEFAULT_BLOCKS = 4096


def parse_prefix_blocks(text: str) -> PrefixBlocks:
    """Parses TOKENS[:BLOCKS]. Raises ValueError for any other text."""
    match = re.fullmatch(r"([0-9]{1,6})(?::([0-9]{1,9}))?", text)
    if match is None or 0 in (size := [int(match[1]), int(match[2] or DEFAULT_BLOCKS)]):
        raise ValueError(
            f"{text[:40]!r} is not a block size in tokens: write e.g. 16, or 16:4096 for at most 4096 blocks"
        )
    return PrefixBlocks(*size)


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
        "also serve the Open Inference Protocol over gRPC at this address (extra: kserve-grpc)",
        parse=_listening_grpc,
        default=None,
        metavar="HOST:PORT",
    )
    name: str = option(
        "server name that /v2 reports; MLPerf's Network division requires a different name for each server (default "
        f"{DEFAULT_NAME}). For a language model: names that clients may request, e.g. base,adapter",
        parse=str,
        default=DEFAULT_NAME,
        metavar="NAME",
    )
    postprocess: bool = option(
        "apply the manifest's postprocessing in the server, and reply with answers instead of outputs, as a client "
        "with --qdl expects",
        flag=True,
    )
    node: bool = option(
        "run as a node for --nodes: load the data, run one instance per core, and accept queries with sample indices",
        flag=True,
    )
    prefix_cache: PrefixBlocks | None = option(
        "language models: cache the keys and values of prompts and answers in blocks of TOKENS tokens, so that a "
        f"common prompt prefix is computed only once; at most BLOCKS blocks (default {DEFAULT_BLOCKS}). POST "
        "/reset_prefix_cache clears the cache",
        parse=parse_prefix_blocks,
        default=None,
        metavar="TOKENS[:BLOCKS]",
    )
