"""Declares the options of `serve`, and names those of a run that it takes, too."""

from dataclasses import dataclass
from typing import ClassVar

from harness.core.config.options import option
from harness.core.config.parse import Endpoint, parse_endpoint

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    GROUP: ClassVar = "server"

    listen: Endpoint = option(
        "address to listen at (default 127.0.0.1:8000; port 0: a free one)",
        parse=parse_endpoint,
        default=Endpoint("127.0.0.1", 8000),
        metavar="HOST:PORT",
    )
