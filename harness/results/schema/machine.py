"""Documents the sections of result.json about power, the machine and the plan of the run."""

from collections.abc import Mapping, Sequence
from typing import Literal, NotRequired

from typing_extensions import TypedDict  # pydantic requires it before Python 3.12


class EnergyParts(TypedDict):
    """The energy of the window, divided among its requests: at each moment equally among the requests in flight."""

    input_joules: float
    """Energy in J while requests waited for their first token."""
    output_joules: float
    """Energy in J while further tokens were generated."""
    idle_joules: float
    """Energy in J without a request in flight. The three parts add up to `joules`."""
    joules_per_computed_input_token: float | None
    """`input_joules` per token of prompts that was not in the server's cache; null if they are unknown."""
    joules_per_output_token: float | None
    """`output_joules` per token of answers; null if they are unknown."""


class PowerReading(TypedDict):
    """Energy of one source in the window."""

    source: str
    """Name of the counter or sensor, e.g. `rapl:package-0`."""
    domain: str
    """Part of the machine that the source covers; for `command`, the program's name and a digest of its arguments."""
    provenance: Literal["measured", "estimated"]
    """`measured` or `estimated`."""
    joules: float
    """Energy in the window, in J."""
    mean_watts: float
    """Mean power in W."""
    peak_watts: float
    """Highest mean power over one second, in W."""
    readings: int
    """Number of readings used for the window."""
    idle_watts: float | None
    """Mean power before the run, in W; null if no idle baseline was read."""
    joules_per_query: float
    """Energy in J divided by the number of queries."""
    joules_per_sample: float
    """Energy in J divided by the number of samples."""
    joules_per_input_token: NotRequired[float]
    """Energy in J divided by the tokens of all prompts; missing if they are unknown."""
    joules_per_output_token: NotRequired[float]
    """Energy in J divided by the tokens of all answers; missing if they are unknown."""
    joules_per_token: NotRequired[float]
    """Energy in J divided by the tokens of prompts and answers together; missing if one count is unknown."""
    parts: NotRequired[EnergyParts]
    """The energy by phase of the requests; missing without streams."""


class MissingReading(TypedDict):
    """A source without a usable reading."""

    source: str
    """Name of the counter or sensor."""
    reason: str
    """Why it has no energy."""


class Power(TypedDict):
    """Energy of the performance run."""

    readings: Sequence[PowerReading]
    """One entry per source with energy."""
    missing: Sequence[MissingReading]
    """One entry per source without energy."""
    seconds: float
    """Length of the window in s."""
    window: str
    """Origin of the window's ends."""
    note: str
    """Whether the numbers may be called an MLPerf Power result."""


class PowerSection(TypedDict):
    """The keys of `Result` about power."""

    power: Power | None
    power_reason: str | None


class FrequencyThirds(TypedDict):
    """Median frequency of the fastest core; both null if the run is short or the kernel does not report it."""

    first_third: float | None
    """MHz."""
    last_third: float | None
    """MHz."""


class Clocks(TypedDict):
    """Range of a clock."""

    lowest: float
    """MHz."""
    highest: float
    """MHz."""


class Gpu(TypedDict):
    """A GPU in LoadGen's window, read once per second. A value that NVML does not report is null."""

    number: int
    """Number of the GPU in CUDA's numbering for the process."""
    busy_share: float | None
    """Mean share of the time in which a kernel ran, in [0, 1]."""
    sm_mhz: Clocks | None
    """Clock of the multiprocessors."""
    hottest_celsius: float | None
    """Highest temperature, in degrees Celsius."""
    peak_watts: float | None
    """Highest power of the board, in W."""
    memory_used_bytes: float | None
    """Highest memory use of all processes, in bytes."""
    slowdowns: Mapping[str, float] | None
    """Cause of a lower clock -> share of the rows."""
    ecc_errors: float | None
    """Memory errors that ECC could not correct."""
    other_processes: float | None
    """Largest number of other processes that computed on the GPU at the same time."""


class Host(TypedDict):
    """The machine in LoadGen's window, from host.csv. A value that the kernel does not report is null."""

    rows: int
    """Rows of host.csv, one per second."""
    cpu_shares: Mapping[str, float] | None
    """Mode -> share of the time of all cores, in [0, 1]."""
    fastest_core_mhz: FrequencyThirds
    """Frequency of the fastest core at both ends of the run."""
    hottest_celsius: float | None
    """Highest temperature of any sensor, in degrees Celsius."""
    thermal_throttles: float | None
    """Throttle events of the processor."""
    cgroup_throttled_s: float | None
    """Seconds in which the container's CPU quota throttled the run."""
    memory_available_bytes: float | None
    """Minimum available memory, in bytes."""
    measured_rss_bytes: float | None
    """Largest resident set of the measured process, in bytes."""
    measured_minor_faults: float | None
    """Page faults of the measured process without disk access."""
    measured_major_faults: float | None
    """Page faults of the measured process with disk access."""
    measured_voluntary_switches: float | None
    """Voluntary context switches of the measured process."""
    measured_involuntary_switches: float | None
    """Involuntary context switches of the measured process."""
    measured_cpu_s: float | None
    """CPU time of the measured process in s."""
    measured_confined_threads: float | None
    """Number of times that a thread of the measured process lost cores that it could run on."""
    measured_lowered_threads: float | None
    """Number of times that a thread of the measured process lost priority."""
    measured_stopped_looks: float | None
    """Rows in which a signal or a debugger had stopped the measured process."""
    measured_anonymous_bytes: Sequence[float] | None
    """Memory of the measured process without files and shared pages, in bytes: at the beginning and after each quarter
    of the run; null with fewer than nine rows."""
    settings: Mapping[str, float]
    """Settings of the machine in the last row, e.g. cores by governor."""
    settings_changed: Mapping[str, Sequence[float]]
    """Settings that changed in the run -> [lowest, highest]."""
    gpus: NotRequired[Sequence[Gpu]]
    """The GPUs that the run used, from NVML; missing without --device cuda or without NVML."""


class MeasuredProcess(TypedDict):
    """The measured process from loading the samples until LoadGen unloads them, from getrusage and /proc."""

    cpu_s_per_query: float
    """CPU time per query in s."""
    cpu_over_wall: float | None
    """Mean number of busy cores."""
    run_queue_s_per_query: float | None
    """Time per query in s in which threads were ready to run but waited for a core; null if the kernel does not report
    it."""
    busy_over_infer: float | None
    """CPU time plus time in the run queue, for all threads, divided by the time of the batches in the backend: about 1
    per computing thread; null if one of these times is unknown."""
    voluntary_switches_per_query: float
    """Context switches per query because a thread waited."""
    involuntary_switches_per_query: float
    """Context switches per query because a different thread took the core."""
    cyclic_garbage_objects: int | None
    """Python objects left to the cyclic garbage collector; null if they were not counted."""
    rss_growth_bytes: int | None
    """Largest growth of the resident set since LoadGen's start, in bytes; null with a reason."""
    rss_growth_reason: str | None
    """Why `rss_growth_bytes` is null; otherwise null."""


class NoiseFloor(TypedDict):
    """Delay of timed sleeps of 1 ms before the run."""

    p50: int
    """ns."""
    p99: int
    """ns."""
    steal: float | None
    """Share of CPU time stolen by other guests; null if the kernel does not report it."""


class Placed(TypedDict):
    """Threads of one instance under --pin, from the kernel."""

    threads: int | None
    """Threads that computed; null if the kernel does not report them."""
    outside: int | None
    """Number of these threads that may run on processors outside the plan."""


class Slice(TypedDict):
    """Time slice of a thread. A thread with a short slice runs as soon as it wakes."""

    ns: int | None
    """Length in ns; null for the kernel's default of about 3 ms."""
    reason: str | None
    """Why the slice is not short; null if it is short."""


class Elastic(TypedDict):
    """The wide instance, which has a thread on each core and answers queries that are alone."""

    cpus: Sequence[int] | None
    """Logical processor of each thread of the wide instance, and of each usual instance in order; null without a wide
    instance."""
    wide_ns: int | None
    """Median time of one sample in the wide instance before the run, in ns; null if it was not opened."""
    narrow_ns: int | None
    """Median time of one sample in a usual instance while nothing else computes, in ns."""
    samples: int
    """Samples that the wide instance answered."""
    reason: str | None
    """Why there was no wide instance; null if there was one."""


class Plan(TypedDict):
    """The instance group and the dispatcher."""

    instances: int
    """Copies of the model."""
    threads: int
    """Threads of each instance."""
    max_batch: int
    """Largest batch in samples."""
    cores: float
    """Processor time available to all instances, in cores."""
    pinned: Sequence[Sequence[int]] | None
    """Logical processors of each instance; null without --pin."""
    issuer: Sequence[int] | None
    """Logical processors of LoadGen's thread, as planned if the run did not report them; null if the thread may run
    anywhere."""
    issuer_slice: NotRequired[Slice]
    """Time slice of LoadGen's thread; missing if that thread does more than issue."""
    elastic: NotRequired[Elastic]
    """The wide instance of --dispatch elastic; missing if the plan has none, or the dispatcher does not queue."""
    owns_cores: bool
    """Whether only one instance uses each core."""
    placed: Sequence[Placed] | None
    """One entry per instance; null without --pin."""
    dispatch: str | None
    """--dispatch; null without it."""
    batch_wait_ns: int
    """--batch-wait in ns."""
    dispatcher: str | None
    """The dispatcher that ran; null if the run did not end by itself."""


class Calibration(TypedDict):
    """Measurements before the run, without LoadGen."""

    rate_per_s: float | None
    """Samples/s with every instance busy; null for streams."""
    latency_ns: int | None
    """Median latency in ns of one query alone; null for Server and Offline."""
    slowest_batch_ns: int
    """Time of the slowest batch of any size after the warm-up, in ns."""
    batch_latency_ns: Sequence[Sequence[int]] | None
    """[samples, ns] by batch size, with every instance busy; null if neither the dispatcher nor the choice of
    Offline's batch needs the times."""
    thread_latency_ns: NotRequired[Sequence[Sequence[int]]]
    """[threads, ns] of a query that is alone, most threads first; missing if the warm-up did not try fewer threads."""
    seconds: float | None
    """Duration of the calibration in s; null if it was not needed."""


class Cold(TypedDict):
    """The first use of the model, before the warm-up."""

    import_s: float
    """Time to import the backend in s."""
    load_s: Sequence[float]
    """Time to load the model in s, per instance."""
    first_batch_ns: Sequence[int]
    """Time of the first batch in ns, per instance."""
    first_batch_samples: int
    """Samples in the first batch."""


class WarmUp(TypedDict):
    """Batches of every size before the calibration."""

    seconds: float
    """Duration in s."""
    sizes: int
    """Batch sizes of the load plan."""
    skipped: int
    """Batch sizes skipped for lack of time."""
    flat: bool
    """Whether the times had become stable."""
