"""Documents the section of result.json about the nodes of a run."""

from collections.abc import Sequence

from typing_extensions import TypedDict  # pydantic requires this TypedDict before Python 3.12

from harness.results.schema.machine import Host


class Node(TypedDict):
    """A node of --nodes in the performance run."""

    node: str
    """Address of the node."""
    machine: str
    """Name of the node's machine."""
    instances: int
    """Number of copies of the model on the node."""
    threads: int
    """Number of threads per instance."""
    max_batch: int
    """Samples in the largest batch."""
    cpus: Sequence[int]
    """Logical processors that the node may use."""
    rate_per_s: float
    """Samples/s of all instances of the node, measured before the run. The nodes share the work in proportion to their
    rates.
    """
    samples: int
    """Number of samples that the node answered, or that it held when it was lost."""
    batches: int
    """Number of requests that contained these samples."""
    failed: int
    """Number of samples in `samples` that failed."""
    completed_per_s: float | None
    """Answered samples per s, from the run's first scheduled sample to the node's last answer; null without answers."""
    infer_p50_ns: int | None
    """Median time in ns that the node's batches spent in the model; null without the node's journal."""
    infer_p99_ns: int | None
    """99th percentile of the time in ns that the node's batches spent in the model; null without the node's journal."""
    queue_p50_ns: int | None
    """Median time in ns between a batch's arrival at the node and its start in an instance; null without the node's
    journal.
    """
    network_p50_ns: int | None
    """Median time in ns that batches spent on the network, in both directions together;
    null without the node's journal.
    """
    clock_offset_ns: int | None
    """Lead of the node's clock over the driver's in ns, from pings after the run or, if these are missing, before it.
    Null if the node answered no ping.
    """
    clock_error_ns: int | None
    """Largest error of the offset in either direction, in ns. This error is half of the shortest round trip."""
    drift_ppm: float | None
    """Drift of the node's clock in parts per million, from pings before and after the run. Positive if the clock runs
    too fast.
    """
    clock_step_ns: int | None
    """Size of a step of the node's clock during the run, in ns. Each batch counts as a ping. The step is the largest
    change that neither the errors (`clock_error_ns`) nor slewing explain. 0 without a step, null if not checked.
    """
    stage_error_ns: int | None
    """Largest error of the node's stages of a batch, in ns. The error comes from the drift of the clock during the
    longest batch, or from the step. Null if the pings before or after the run are missing.
    """
    lost: str
    """How the node was lost; empty if it was not lost."""
    lost_samples: int
    """Number of samples that the node held when it was lost. These samples failed."""
    no_journal: str
    """Reason why the node's journal and stages are missing; empty if they are present."""
    host: Host | None
    """The node's machine from the loading of the samples to the end of the run, with the same keys as the driver's
    `host`. The `measured_` keys of `host` describe the node's process. Null for the reason in `no_host`.
    """
    no_host: str
    """Reason why `host` is null; otherwise empty."""
