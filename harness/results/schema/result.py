"""Documents result.json: every key with its unit, its source, and the cases in which it is null or missing.

scripts/docs.py generates docs/result.md and result.schema.json from the classes in this folder and their
docstrings.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict  # pydantic requires this TypedDict before Python 3.12

from harness.results.schema import machine, performance
from harness.results.schema.client import (
    ByModel,
    Cancellations,
    Client,
    Goodput,
    LoadHost,
    Media,
    Probes,
    Ramp,
    Servers,
    Sessions,
    Tokens,
    Witness,
)
from harness.results.schema.models import Models
from harness.results.schema.nodes import Node


class ReasonEntry(TypedDict):
    """A reason or a doubt."""

    code: str
    """Stable identifier, explained in docs/verdict.md."""
    text: str
    """One line with the measured numbers and advice."""


class ModelSource(TypedDict):
    """Key of `Result` that describes where the model came from."""

    model_source: NotRequired[str]


class ClientSection(TypedDict):
    """Keys of `Result` that describe the harness as a client."""

    client: NotRequired[Client]
    servers: NotRequired[Servers]
    load_hosts: NotRequired[Sequence[LoadHost]]
    witness: NotRequired[Witness]
    tokens: NotRequired[Tokens]
    sessions: NotRequired[Sessions]
    probes: NotRequired[Probes]
    cancellations: NotRequired[Cancellations]
    by_model: NotRequired[ByModel]
    media: NotRequired[Media]
    ramp: NotRequired[Ramp]
    nodes: NotRequired[Sequence[Node]]


class CostSection(TypedDict):
    """Key of `Result` that describes the cost."""

    cost: NotRequired[performance.Cost]


class ModelsSection(TypedDict):
    """Key of `Result` that describes a set of models."""

    models: NotRequired[Models]


class RealTimeSection(TypedDict):
    """Key of `Result` that describes frames in real time."""

    real_time: NotRequired[performance.RealTime]


class Headline(TypedDict):
    """The scenario's main number, as LoadGen's summary shows it."""

    name: str
    """Name of the quantity, such as `completed queries`."""
    value: float
    """Value in `unit`."""
    unit: str
    """`ns`, `queries/s` or `samples/s`."""
    source: str
    """Name of the scheduler, and the key in its detail log."""


class Result(TypedDict):
    """The content of result.json, of one run."""

    schema_version: int
    """Version of the formats of the configuration and the result."""
    verdict: Literal["VALID", "INVALID"]
    """VALID if `reasons` is empty."""
    reasons: Sequence[ReasonEntry]
    """Reasons why the numbers must not be quoted."""
    doubts: Sequence[ReasonEntry]
    """Facts that should be checked before the numbers are used, even in a VALID run."""
    not_for_submission: Sequence[str]
    """Reasons why the run is not an MLPerf submission."""
    started: str
    """Start of the run in ISO 8601, UTC."""
    scenario: str
    """Value of --scenario."""
    mode: str
    """Value of --mode: performance, accuracy or both."""
    backend: str
    """Name of the backend. A plug-in in a file is named without its folder."""
    model: str
    """Name of the model's manifest."""
    model_source: NotRequired[str]
    """The value of --model with its commit, `hf:ORG/NAME@COMMIT:FILE`; only for a model from the HuggingFace Hub."""
    dataset: str
    """Name of the dataset, in the same form as `backend`."""
    isolated: bool
    """Whether the processes of LoadGen and the harness ran no code of a plug-in (docs/trust.md)."""
    slo: str | None
    """The SLOs, such as `p99=50ms` or `ttft:p99=2s tpot:p99=200ms`; null if the run has none."""
    headline: Headline | None
    """MLPerf's metric for the scenario; null without a complete performance run."""
    latency_ns: performance.Latency | None
    """Latency percentiles; null without a performance run."""
    latency_intervals_ns: performance.Intervals | None
    """Confidence intervals of the percentiles; null in Offline, or if no query was completed."""
    throughput_per_s: performance.Throughput | None
    """Offered and completed rates; null without a performance run."""
    goodput: Goodput | None
    """Queries that met every SLO; null without an SLO or a performance run."""
    accuracy: performance.Scored | performance.NotScored
    """The score, or the reason why it is missing."""
    power: machine.Power | None
    """Energy by source, from the meters of --meter; null for the reason in `power_reason`."""
    power_reason: str | None
    """Reason why `power` is null; otherwise null."""
    cost: NotRequired[performance.Cost]
    """Cost of the run; missing without --price, or without a complete performance run."""
    stages_ns: Mapping[str, performance.Stage] | None
    """Time of samples per stage, from the journal; null if nothing was completed."""
    client: NotRequired[Client]
    """The harness as the client of a server; missing if no server answered, or if the run did not end by itself."""
    servers: NotRequired[Servers]
    """Metrics that the servers reported; missing if no server answered, or without a performance run."""
    nodes: NotRequired[Sequence[Node]]
    """The nodes in the order of --nodes; missing without nodes, or if the run did not end by itself."""
    load_hosts: NotRequired[Sequence[LoadHost]]
    """The hosts that shared the load. `client` describes all of them together. Missing without --load-hosts."""
    witness: NotRequired[Witness]
    """The coordinator's own queries to the same server; missing without load hosts on other machines, or if the run
    did not end by itself.
    """
    tokens: NotRequired[Tokens]
    """Tokens of a language model's answers; missing for other models, or if the run did not end by itself."""
    sessions: NotRequired[Sessions]
    """The run's sessions; missing if the dataset has no sessions."""
    by_model: NotRequired[ByModel]
    """Answers by the model or adapter that the requests name; missing unless the requests name at least two."""
    media: NotRequired[Media]
    """Sound of the requests or answers; missing for runs without sound."""
    probes: NotRequired[Probes]
    """Small requests during the load; missing without --probe-rate, or if the run was cut off."""
    ramp: NotRequired[Ramp]
    """Steps of the rate; missing without --arrivals ramp:RATE."""
    cancellations: NotRequired[Cancellations]
    """Requests that the client cancelled; missing without --cancel."""
    models: NotRequired[Models]
    """The models of --models and their cache; missing for a single model, or if nothing was completed."""
    real_time: NotRequired[performance.RealTime]
    """Model speed compared with real-time frames; missing if the manifest has no `frame_period_ms`, or if nothing was
    completed.
    """
    reference: performance.Reference | performance.NoReference | None
    """Result that a dispatcher without cost would have reached; null if the run did not end by itself."""
    input_probe: performance.InputProbe | performance.NotProbed | None
    """Result of changing and exchanging inputs after the run; null if the run did not end by itself."""
    steady: performance.Steady | None
    """Whether the run was steady; null with too few samples, or if the rate of replayed arrivals changes."""
    queries: performance.Queries | None
    """Counts; null without a performance run."""
    arrivals: performance.Arrivals | None
    """Source of the schedule; null without a performance run."""
    host: machine.Host | None
    """The machine during the run; null without a complete performance run or without rows in its window."""
    measured_process: machine.MeasuredProcess | None
    """Resources of the measured process; null if the run did not end by itself."""
    noise_floor_ns: machine.NoiseFloor | None
    """Timer noise before the run; null if it was not measured."""
    plan: machine.Plan
    """Instances, threads and dispatcher."""
    calibration: machine.Calibration | None
    """Measurements before the run; null if the run ended before its calibration."""
    cold: machine.Cold | None
    """First use of the model; null if `calibration` is null."""
    warm_up: machine.WarmUp | None
    """Warm-up before the calibration; null if `calibration` is null."""
    backend_description: Mapping[str, Any] | None
    """The backend's report: versions, device, precision; null if the model was not loaded."""
    dataset_description: Mapping[str, Any] | None
    """The dataset's report: count, source, digest; null if the model was not loaded.

    For synthetic data also `ranges`. Each input with numbers from a range has `low`, `high` (excluded) and `source`
    (--input-range, the indexed table in the model's file, or the default).
    """
    environment: Mapping[str, Any]
    """The content of environment.json; empty if the run ended before it was written."""
