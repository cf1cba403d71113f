"""Documents the section of result.json about the nodes of a run."""

from collections.abc import Sequence

from typing_extensions import TypedDict  # pydantic requires it before Python 3.12

from harness.results.schema.machine import Host


class Node(TypedDict):
    """A node of --nodes in the performance run."""

    node: str
    """Address of the node."""
    machine: str
    """Name of the node's machine."""
    instances: int
    """Copies of the model on the node."""
    threads: int
    """Threads of each instance."""
    max_batch: int
    """Samples in the largest batch."""
    cpus: Sequence[int]
    """Logical processors that the node may use."""
    rate_per_s: float
    """Samples/s of all instances of the node, measured before the run; the nodes share the work in proportion."""
    samples: int
    """Samples that the node answered, or held when it was lost."""
    batches: int
    """Requests with these samples."""
    failed: int
    """Failed samples among `samples`."""
    completed_per_s: float | None
    """Samples that the node answered per s, from the run's first scheduled sample to the node's last answer; null
    without answers."""
    infer_p50_ns: int | None
    """Median time of the node's batches in the model, in ns; null without the node's journal."""
    infer_p99_ns: int | None
    """99th percentile of the time of the node's batches in the model, in ns; null without the node's journal."""
    queue_p50_ns: int | None
    """Median time in ns from a batch's arrival at the node to its start in an instance; null without the node's
    journal."""
    network_p50_ns: int | None
    """Median time of batches on the network, both ways together, in ns; null without the node's journal."""
    clock_offset_ns: int | None
    """Lead of the node's clock in ns, measured with pings after the run, else before; null if the
    node did not answer them."""
    clock_error_ns: int | None
    """Largest error of the offset, plus or minus, in ns: half of the shortest round trip."""
    drift_ppm: float | None
    """Drift of the node's clock in parts per million, measured with pings before and after the run; positive if it runs
    faster."""
    clock_step_ns: int | None
    """Size of a step of the node's clock in the run, in ns. Each batch counts as a ping: the step is the largest
    change that neither errors (`clock_error_ns`) nor slewing explain. 0 without a step, null if not checked."""
    stage_error_ns: int | None
    """Largest error of the node's stages of a batch in ns: the drift of its clock during the longest batch, or the
    step; null without both pings."""
    lost: str
    """How the node was lost; empty if it was not lost."""
    lost_samples: int
    """Samples that the node held when it was lost; they failed."""
    no_journal: str
    """Why the node's journal and the stages of the nodes are missing; empty if they are not."""
    host: Host | None
    """The node's machine from the loading of the samples to the end of the run, with the keys of the driver's `host`.
    The measured process is the node's process. Null with a reason in `no_host`."""
    no_host: str
    """Why `host` is null; otherwise empty."""
