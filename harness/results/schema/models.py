"""Documents the section of result.json about a run of several models that a cache serves (--models)."""

from collections.abc import Sequence

from typing_extensions import TypedDict  # pydantic requires this TypedDict before Python 3.12


class Loads(TypedDict):
    """Number of loads by the location of the model's file."""

    local: int
    """Number of loads from a local file."""
    source: int
    """Number of loads from the source, which included copying the file."""


class FileCounts(TypedDict):
    """Counts of the cache of local files in the measured process, for all models together."""

    hits: int
    """Number of loads that found their file in the cache."""
    copies: int
    """Number of files that were copied from their source."""
    evictions: int
    """Number of local files that were removed to make room."""


class ModelLatency(TypedDict):
    """Query latency of one model in ns, measured from each query's scheduled time."""

    p50: int
    """ns."""
    p90: int
    """ns."""
    p99: int
    """ns; the slowest query if the model has fewer than 100 queries."""
    max: int
    """ns."""


class OneModel(TypedDict):
    """One model of the set."""

    name: str
    """Name in the set."""
    bytes: int
    """Size in bytes that counts towards the capacity."""
    share: float
    """Share of queries that the model should receive according to its popularity, in [0, 1]."""
    requests: int
    """Number of answered queries for this model."""
    hits: int
    """Number of queries that found the model resident."""
    joined: int
    """Number of queries that waited for a load that another query had started."""
    loads: Loads
    """Loads after which the model stayed in the cache."""
    alone: Loads
    """Loads for a single query, because the cache had no room to keep the model."""
    failed: int
    """Number of queries whose load failed."""
    evictions: int | None
    """Number of times the model was evicted; null if the run did not end by itself."""
    latency_ns: ModelLatency | None
    """Latency of the model's queries; null without queries."""
    load_ns: int
    """Time of a load before the run, in ns."""
    first_ns: int
    """Time of the first sample after this load, in ns."""
    run_ns: int
    """Time of the next sample, in ns."""
    saved_ns: float
    """Mean load time per query of the run that a resident model saves: share x load_ns."""
    keep: bool
    """Whether the model belongs to the set that saves the most load time per byte and fits into the cache."""


class HitRate(TypedDict):
    """A point on the curve."""

    capacity_bytes: int
    """Capacity of the cache."""
    hit_rate: float
    """Share of the queries that do not need a load, in [0, 1]."""


class Curve(TypedDict):
    """Hit rate by capacity, simulated with the run's sequence of requests. Simulated requests do not overlap."""

    policy: str
    """The simulated policy."""
    requests: int
    """Number of simulated requests: the first requests of the run, at most 20,000."""
    points: Sequence[HitRate]
    """Points in the order of capacity."""


class Models(TypedDict):
    """A run of several models served from a cache, derived from the journal of the performance run."""

    policy: str
    """Eviction policy: lru, lcu, fifo, never or eager."""
    capacity_bytes: int
    """Capacity of the cache in memory."""
    local_capacity_bytes: int | None
    """Capacity of the cache of local files; null if the original files are local."""
    law: str
    """Distribution of the popularity: zipf, pareto or measured."""
    top_share: float
    """Share of the queries that the most popular 20 % of the models should receive, in [0, 1]."""
    requests: int
    """Number of answered queries."""
    hit_rate: float
    """Share of the queries that found their model resident, in [0, 1]."""
    hits: int
    """Number of queries whose model was resident."""
    joined: int
    """Number of queries that waited for a load that another query had started."""
    loads: Loads
    """Loads after which the model stayed in the cache."""
    alone: Loads
    """Loads for a single query."""
    failed: int
    """Number of queries whose load failed."""
    evictions: int
    """Number of evictions."""
    files: FileCounts | None
    """Counts of the cache of local files; null without such a cache, or if the run did not end by itself."""
    expected_load_ns: float
    """Mean load time per query if exactly the models with `keep` were resident."""
    load_ns: float
    """Mean time that a query waited for its model (the stage `acquire` in `stages_ns`)."""
    curve: Sequence[Curve]
    """Curve of the run's policy, and a curve of lru if the run had a different policy."""
    models: Sequence[OneModel]
    """The models in the order of the file."""
