"""The content of overhead.json."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict


class MeanEntry(TypedDict):
    """The fields of `parts.Mean`."""

    mean_ns: float
    low_ns: float | None
    high_ns: float | None


class OverheadEntry(MeanEntry):
    of_model: float
    """Overhead as a multiple of the in-process time."""
    explained: float
    """The field of `parts.Overhead`."""
    in_process: MeanEntry
    served: MeanEntry
    parts: Mapping[str, MeanEntry]


class PairEntry(TypedDict):
    """The fields of `parts.Pair`."""

    in_process_ns: float
    served_ns: float
    floor_ns: float
    parts_ns: Mapping[str, float]
    overhead_ns: float


class ThroughputEntry(TypedDict):
    """Offline rates in samples/s."""

    in_process_per_s: float | None
    served_per_s: float | None
    kept: float | None
    """Share that remains on the server; None for the reason in `no_kept`."""
    no_kept: str
    max_batch: int


class AnswersEntry(TypedDict):
    """Fields of `agreement.Agreement` that the pages show; the file contains all of its fields."""

    samples: int
    identical: int
    alike: float
    least_alike: float
    """Minimum share of answers that must agree."""


class RunEntry(TypedDict):
    name: str
    folder: str
    """Path relative to the folder of the study."""
    status: int
    verdict: str
    reasons: Sequence[str]
    doubts: Sequence[str]


class Content(TypedDict):
    schema_version: int
    started: str
    """Start of the study in ISO 8601, UTC."""
    config: Mapping[str, Any]
    """Configurations of both sides."""
    model: str
    level: float
    """Level of the intervals."""
    withheld: str | None
    """Reason why `overhead` is None."""
    overhead: OverheadEntry | None
    server_times: str | None
    """Source of the server's times; None unless every served run reports times."""
    pairs: Sequence[PairEntry]
    throughput: ThroughputEntry | None
    """None with --no-throughput."""
    answers: AnswersEntry | None
    described: Mapping[str, Mapping[str, Any]]
    """By side: facts from the backend's report."""
    runs: Sequence[RunEntry]
