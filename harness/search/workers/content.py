"""The content of workers.json."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict


class WorkersRow(TypedDict):
    """A run with one number of workers. A number is None if the run did not measure it."""

    workers: int
    completed_per_s: float | None
    p50_ns: float | None
    p99_ns: float | None
    hit_rate: float | None
    load_ns: float | None
    """Mean time that a query waited for its model."""
    verdict: str
    reasons: Sequence[str]
    doubts: Sequence[str]
    folder: str
    """Path relative to the folder of the sweep."""


class Misses(TypedDict):
    """The measurement by harness/models/cache/misses.py."""

    plain_ns: Sequence[int]
    cached_ns: Sequence[int]
    hits: int


class Content(TypedDict):
    schema_version: int
    config: Mapping[str, Any]
    model: str
    models: int
    capacity_bytes: int
    policy: str
    threads: int
    """Threads per worker."""
    workers: Sequence[WorkersRow]
    misses: Misses | None
    """None if the sweep was stopped before this measurement."""
