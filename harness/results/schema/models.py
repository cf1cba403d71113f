"""Documents the section of result.json about a run of several models, served from a cache (--models)."""

from collections.abc import Sequence

from typing_extensions import TypedDict  # pydantic reads typing's from Python 3.12 on only


class Loads(TypedDict):
    """Loads by where the model's file was."""

    local: int
    """From a local file."""
    source: int
    """From the source, whose file became a local one first."""


class FileCounts(TypedDict):
    """The cache of local files, as the measured process counted it; all models together."""

    hits: int
    """Loads that found their file there."""
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
    """ns; the slowest of fewer than 100 queries."""
    max: int
    """ns."""


class OneModel(TypedDict):
    """One model of the set."""

    name: str
    """Name in the set."""
    bytes: int
    """Size that counts against the capacity."""
    share: float
    """Share of the queries by its popularity, in [0, 1]."""
    requests: int
    """Queries that were answered for it."""
    hits: int
    """Served while it was resident."""
    joined: int
    """Waited for the load of another query."""
    loads: Loads
    """Loads that were kept."""
    alone: Loads
    """Loads for one query alone, where the cache had no place for the model."""
    failed: int
    """Queries whose load failed."""
    evictions: int | None
    """Times it was evicted; null where the run did not end by itself."""
    latency_ns: ModelLatency | None
    """Null without a query."""
    load_ns: int
    """A load before the run, in ns."""
    first_ns: int
    """The first sample after that load, in ns."""
    run_ns: int
    """The next sample, in ns."""
    saved_ns: float
    """Load time that a query of the run is spared on average if it stays resident: share x load_ns."""
    keep: bool
    """Whether it is among the models that save most for their bytes, as far as the capacity goes."""


class HitRate(TypedDict):
    """A point of the curve."""

    capacity_bytes: int
    """Capacity of the cache."""
    hit_rate: float
    """Share of the queries that need no load, in [0, 1]."""


class Curve(TypedDict):
    """Hit rate by capacity, simulated on the run's own sequence of requests, each ended before the next."""

    policy: str
    """The policy that was simulated."""
    requests: int
    """Requests of the sequence: the first of the run, 20,000 at most."""
    points: Sequence[HitRate]
    """By capacity."""


class Models(TypedDict):
    """A run of several models, served from a cache; from the journal of the performance run."""

    policy: str
    """Eviction policy: lru, lcu, fifo, never or eager."""
    capacity_bytes: int
    """Capacity of the cache in memory."""
    local_capacity_bytes: int | None
    """Capacity of the cache of local files; null where the files themselves are local."""
    law: str
    """zipf, pareto or measured."""
    top_share: float
    """Share of the queries that the most popular 20 % of the models should get, in [0, 1]."""
    requests: int
    """Queries that were answered."""
    hit_rate: float
    """Share of the requests that found their model resident, in [0, 1]."""
    hits: int
    """Queries whose model was resident."""
    joined: int
    """Queries that waited for the load of another one."""
    loads: Loads
    """Loads that were kept."""
    alone: Loads
    """Loads for one query alone."""
    failed: int
    """Queries whose load failed."""
    evictions: int
    """Models that were evicted."""
    files: FileCounts | None
    """Counts of the files' cache; null if files have no separate cache, or the run did not end by itself."""
    expected_load_ns: float
    """Mean load time of a query if exactly the models with `keep` were resident."""
    load_ns: float
    """Mean time that a query waited for its model: `acquire` of `stages_ns`."""
    curve: Sequence[Curve]
    """Curve of the run's policy, and of lru if the run's policy is not lru."""
    models: Sequence[OneModel]
    """In the order of the file."""
