"""Documents the section of result.json about the nodes of a run."""

from collections.abc import Sequence

from typing_extensions import TypedDict  # pydantic reads typing's from Python 3.12 on only

from harness.results.schema.machine import Host


class Node(TypedDict):
    """A node of --nodes. Its numbers are of the performance run."""

    node: str
    """Its address."""
    machine: str
    """Name of its machine."""
    instances: int
    """Copies of the model there."""
    threads: int
    """Threads of each instance."""
    max_batch: int
    """Samples in its largest batch."""
    cpus: Sequence[int]
    """Logical processors that it may use."""
    rate_per_s: float
    """Samples/s of all its instances, measured there before the run; the shares of the work follow it."""
    samples: int
    """Samples that it answered, or held when it was lost."""
    batches: int
    """Requests that these came in."""
    failed: int
    """Failed samples among `samples`."""
    completed_per_s: float | None
    """Samples that it answered per s, from the first scheduled one of the run to its own last answer; null without any."""
    infer_p50_ns: int | None
    """Median ns of its batches in the model; null without its journal."""
    infer_p99_ns: int | None
    """99th percentile of its batches in the model, in ns; null without its journal."""
    queue_p50_ns: int | None
    """Median ns of its batches from their arrival there to an instance; null without its journal."""
    network_p50_ns: int | None
    """Median ns of its batches on the way, both ways together; null without its journal."""
    clock_offset_ns: int | None
    """By how much its clock is ahead, by pings after the run, else before; null where it did not answer them."""
    clock_error_ns: int | None
    """Largest error of the offset, plus or minus, in ns: half of the shortest round trip."""
    drift_ppm: float | None
    """By how much its clock runs faster, in parts per million, by the pings before and after the run."""
    clock_step_ns: int | None
    """By how much its clock was set in the run, by its batches, each of which is a ping: the largest change that neither
    errors (`clock_error_ns`) nor slewing explain; 0 without, null where it was not looked at."""
    stage_error_ns: int | None
    """Largest error of its stages of a batch in ns: what its clock gains on this machine's clock while it has the
    longest batch, or the step; null without both pings."""
    lost: str
    """How it was lost; empty where it was not."""
    lost_samples: int
    """Samples that it held then; they failed."""
    no_journal: str
    """Why its journal is missing, and with it the stages of the nodes; empty where it is there."""
    host: Host | None
    """Its machine from the loading of the samples to the end of the run, like `host` for the driver's; the measured
    process is the node's. Null: `no_host`."""
    no_host: str
    """Why nothing is known of its machine; empty where it is."""
