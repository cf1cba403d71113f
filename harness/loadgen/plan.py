"""LoadPlan: everything LoadGen is told for one run, decided before its first query."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from harness.types import TensorSpec

MIN_DURATION_MS = 600_000
"""Of every official performance run (mlperf.conf, *.*.min_duration)."""


class Seeds(NamedTuple):
    qsl: int
    sample_index: int
    schedule: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """Rates in queries/s (Offline: samples/s), percentiles in (0, 1), times in ns.

    query_count: queries that will be generated (Offline and accuracy: samples).
    journal_samples: the most samples that can be issued; the journal is this long.
    logged_answers: about so many answers of a performance run go into LoadGen's accuracy log.
    expected_s: None where nothing tells; 0.0 in files of earlier versions.
    model_key: LoadGen's name of the benchmark under --mlperf, else None: then quick settings.
    schedule: file of the arrivals to replay (harness/loadgen/schedule.py), of the user's file with that
    digest. concurrency: queries to keep in flight. Either: our own scheduler, not LoadGen's.
    user_conf, audit_config: files that LoadGen reads.
    """

    scenario: str
    accuracy: bool
    query_count: int
    journal_samples: int
    total_count: int
    performance_count: int
    seeds: Seeds
    samples_per_query: int = 1
    target_qps: float | None = None
    percentile: float | None = None
    latency_bound_ns: int | None = None
    logged_answers: int = 0
    model_key: str | None = None
    user_conf: str | None = None
    audit_config: str | None = None
    expected_s: float | None = None
    schedule: str | None = None
    arrivals_sha256: str | None = None
    concurrency: int | None = None

    @property
    def harness_scheduled(self) -> bool:
        """Not by LoadGen, so that no log of LoadGen's exists: harness/results/evidence/own_log.py stands in."""
        return self.schedule is not None or self.concurrency is not None

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"seeds": list(self.seeds)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "LoadPlan":
        return cls(**{**values, "seeds": Seeds(*values["seeds"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What the measured process found after warm-up, without LoadGen.

    rate_per_s: samples/s with every instance busy on its largest batch (streams: None).
    latency_ns: median time of one query answered alone (server and offline: None).
    seconds: it took; None where neither was needed, 0.0 then in files of earlier versions.
    slowest_batch_ns: the slowest warmed-up batch of any size.
    answer_bytes: size of one answer.
    batch_latency_ns: (samples, ns) with every instance busy, where --dispatch deadline needs it.
    cold: import_s of the backend, load_s and first_batch_ns (of first_batch_samples) of each instance.
    warm_up: seconds, sizes, skipped (sizes there was no time for), flat (it had come to rest).
    placed: with --pin, of each instance the threads that computed, and those of them that may run
    elsewhere; None where the kernel does not tell.
    """

    slowest_batch_ns: int
    answer_bytes: int = 0
    rate_per_s: float | None = None
    latency_ns: int | None = None
    seconds: float | None = None
    batch_latency_ns: Sequence[tuple[int, int]] = ()
    cold: Mapping[str, Any] = field(default_factory=dict)
    warm_up: Mapping[str, Any] = field(default_factory=dict)
    placed: Sequence[tuple[int | None, int | None]] = ()


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the measured process found: its `loaded` message.

    inputs: of the model, which the dataset was made for. fixed_batch: samples, where the file
    allows no other batch.
    """

    inputs: tuple[TensorSpec, ...]
    total_count: int
    performance_count: int
    fixed_batch: int | None
    synthetic: bool
    backend: Mapping[str, Any]
    dataset: Mapping[str, Any]
    model_sha256: str | None
    model_bytes: int

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Loaded":
        inputs = tuple(TensorSpec(n, dtype, tuple(shape)) for n, dtype, shape in values["inputs"])
        return cls(**{**values, "inputs": inputs})


class Instances(NamedTuple):
    """instances: copies of the model; threads: of each; max_batch: samples.

    cores: worth of time there is. pinned: each instance's own logical processors, () without
    --pin. issuer: those planned for LoadGen's thread, () where it runs anywhere; the shared
    dispatcher, which the warm-up decides on, moves it to the first instance's. owns_cores: nothing
    of this process but one instance is on any core with a processor of its own.
    """

    instances: int
    threads: int
    max_batch: int
    cores: float = 0.0
    pinned: tuple[tuple[int, ...], ...] = ()
    issuer: tuple[int, ...] = ()
    owns_cores: bool = False

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Instances":
        pinned = tuple(tuple(cpus) for cpus in values["pinned"])
        return cls(**{**values, "pinned": pinned, "issuer": tuple(values["issuer"])})

    def __str__(self) -> str:
        told = f"{self.instances} x {self.threads} threads of {self.cores:g} cores"
        if self.pinned:
            places = " | ".join(",".join(map(str, cpus)) for cpus in self.pinned)
            told += f" pinned to {places}"
        return f"{told}, batch ≤ {self.max_batch}"
