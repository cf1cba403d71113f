"""Documents the section of result.json about a run of several models, served from a cache (--models)."""

from collections.abc import Sequence

from typing_extensions import TypedDict  # pydantic requires it before Python 3.12


class Loads(TypedDict):
    """Number of loads by the location of the model's file."""

    local: int
    """Loads from a local file."""
    source: int
    """Loads from the source, after its file was copied."""


class FileCounts(TypedDict):
    """Counts of the cache of local files, by the measured process, for all models together."""

    hits: int
    """Loads that found their file in the cache."""
    copies: int
    """Files that were copied from their source."""
    evictions: int
    """Local files that were removed to make room."""


class ModelLatency(TypedDict):
    """Latency of one model's queries in ns, from the schedule."""

    p50: int
    """ns."""
    p90: int
    """ns."""
    p99: int
    """ns; with fewer than 100 queries, the slowest query."""
    max: int
    """ns."""


class OneModel(TypedDict):
    """One model of the set."""

    name: str
    """Name in the set."""
    bytes: int
    """Size that counts towards the capacity."""
    share: float
    """Share of the queries by its popularity, in [0, 1]."""
    requests: int
    """Answered queries for this model."""
    hits: int
    """Queries that found the model resident."""
    joined: int
    """Queries that waited for a load started by a different query."""
    loads: Loads
    """Loads after which the model stayed in the cache."""
    alone: Loads
    """Loads for one query alone, because the cache had no room for the model."""
    failed: int
    """Queries whose load failed."""
    evictions: int | None
    """Number of evictions of the model; null if the run did not end by itself."""
    latency_ns: ModelLatency | None
    """Latency of the model's queries; null without a query."""
    load_ns: int
    """Time of a load before the run, in ns."""
    first_ns: int
    """Time of the first sample after that load, in ns."""
    run_ns: int
    """Time of the next sample, in ns."""
    saved_ns: float
    """Mean load time that a query of the run saves if the model stays resident: share x load_ns."""
    keep: bool
    """Whether the model is among the models that save most time per byte and together fit into the capacity."""


class HitRate(TypedDict):
    """Point of the curve."""

    capacity_bytes: int
    """Capacity of the cache."""
    hit_rate: float
    """Share of the queries that need no load, in [0, 1]."""


class Curve(TypedDict):
    """Hit rate by capacity, simulated with the run's sequence of requests. The simulated requests do not overlap."""

    policy: str
    """The simulated policy."""
    requests: int
    """Requests of the sequence: the first requests of the run, at most 20,000."""
    points: Sequence[HitRate]
    """Points in order of capacity."""


class Models(TypedDict):
    """A run of several models served from a cache, from the journal of the performance run."""

    policy: str
    """Eviction policy: lru, lcu, fifo, never or eager."""
    capacity_bytes: int
    """Capacity of the cache in memory."""
    local_capacity_bytes: int | None
    """Capacity of the cache of local files; null if the files themselves are local."""
    law: str
    """Law of the popularity: zipf, pareto or measured."""
    top_share: float
    """Share of the queries that the most popular 20 % of the models should get, in [0, 1]."""
    requests: int
    """Queries that were answered."""
    hit_rate: float
    """Share of the requests that found their model resident, in [0, 1]."""
    hits: int
    """Queries whose model was resident."""
    joined: int
    """Queries that waited for a load started by a different query."""
    loads: Loads
    """Loads after which the model stayed in the cache."""
    alone: Loads
    """Loads for one query alone."""
    failed: int
    """Queries whose load failed."""
    evictions: int
    """Models that were evicted."""
    files: FileCounts | None
    """Counts of the cache of local files; null without such a cache, or if the run did not end by itself."""
    expected_load_ns: float
    """Mean load time of a query if exactly the models with `keep` were resident."""
    load_ns: float
    """Mean time that a query waited for its model: `acquire` of `stages_ns`."""
    curve: Sequence[Curve]
    """Curve of the run's policy, and also of lru if the run's policy is different."""
    models: Sequence[OneModel]
    """The models in the order of the file."""
