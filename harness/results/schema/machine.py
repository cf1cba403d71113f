"""Documents the sections of result.json about power, the machine and the plan of the run."""

from collections.abc import Mapping, Sequence
from typing import Literal, NotRequired

from typing_extensions import TypedDict  # pydantic requires this TypedDict before Python 3.12


class EnergyParts(TypedDict):
    """Energy of the window, divided among its requests. At each moment, the energy is divided equally among the
    requests in flight.
    """

    input_joules: float
    """Energy in J while requests waited for their first token."""
    output_joules: float
    """Energy in J while later tokens were generated."""
    idle_joules: float
    """Energy in J without a request in flight. The three parts add up to `joules`."""
    joules_per_computed_input_token: float | None
    """`input_joules` per prompt token that was not in the server's cache; null if these tokens are unknown."""
    joules_per_output_token: float | None
    """`output_joules` per answer token; null if the tokens are unknown."""


class PowerReading(TypedDict):
    """Energy of one source in the window."""

    source: str
    """Name of the counter or sensor, such as `rapl:package-0`."""
    domain: str
    """Part of the machine that the source covers. For `command`, the program's name and a digest of its arguments."""
    provenance: Literal["measured", "estimated"]
    """`measured` or `estimated`."""
    joules: float
    """Energy in the window, in J."""
    mean_watts: float
    """Mean power in W over the window."""
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
    """Energy in J divided by the prompt tokens; missing if the number of prompt tokens is unknown."""
    joules_per_output_token: NotRequired[float]
    """Energy in J divided by the answer tokens; missing if the number of answer tokens is unknown."""
    joules_per_token: NotRequired[float]
    """Energy in J divided by the sum of prompt and answer tokens; missing if one count is unknown."""
    parts: NotRequired[EnergyParts]
    """Energy by phase of the requests; missing without streams."""


class MissingReading(TypedDict):
    """A source without a usable reading."""

    source: str
    """Name of the counter or sensor."""
    reason: str
    """Reason why the source has no energy."""


class Power(TypedDict):
    """Energy of the performance run."""

    readings: Sequence[PowerReading]
    """One entry per source with energy."""
    missing: Sequence[MissingReading]
    """One entry per source without energy."""
    seconds: float
    """Length of the window in s."""
    window: str
    """Origin of the start and end of the window."""
    note: str
    """Whether the numbers may be called an MLPerf Power result."""


class PowerSection(TypedDict):
    """Keys of `Result` that describe the power."""

    power: Power | None
    power_reason: str | None


class FrequencyThirds(TypedDict):
    """Median frequency of the fastest core in the first and the last third of the run. Both values are null in a short
    run or if the kernel does not report frequencies.
    """

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
    """A GPU within LoadGen's window, read once per second. A value that NVML does not report is null."""

    number: int
    """Number of the GPU in CUDA's numbering for the process."""
    busy_share: float | None
    """Mean share of the time in which the GPU ran a kernel, in [0, 1]."""
    sm_mhz: Clocks | None
    """Clock of the multiprocessors."""
    hottest_celsius: float | None
    """Highest temperature, in degrees Celsius."""
    peak_watts: float | None
    """Highest power of the board, in W."""
    memory_used_bytes: float | None
    """Largest memory use of all processes together, in bytes."""
    slowdowns: Mapping[str, float] | None
    """Maps a cause of a lower clock to the share of rows in which it applied."""
    ecc_errors: float | None
    """Number of memory errors that ECC could not correct."""
    other_processes: float | None
    """Largest number of other processes that computed on the GPU at the same time."""
    mig: NotRequired[bool | None]
    """Whether the GPU was divided into instances (MIG); missing in files of earlier versions."""


class Host(TypedDict):
    """The machine within LoadGen's window, from host.csv. A value that the kernel does not report is null."""

    rows: int
    """Number of rows in host.csv, one per second."""
    cpu_shares: Mapping[str, float] | None
    """Maps a mode to its share of the time of all cores, in [0, 1]."""
    fastest_core_mhz: FrequencyThirds
    """Frequency of the fastest core in the first and last third of the run."""
    hottest_celsius: float | None
    """Highest temperature of any sensor, in degrees Celsius."""
    thermal_throttles: float | None
    """Number of throttle events of the processor."""
    cgroup_throttled_s: float | None
    """Seconds in which the container's CPU quota throttled the run."""
    memory_available_bytes: float | None
    """Minimum available memory, in bytes."""
    measured_rss_bytes: float | None
    """Largest resident set of the measured process, in bytes."""
    measured_minor_faults: float | None
    """Number of page faults of the measured process without disk access."""
    measured_major_faults: float | None
    """Number of page faults of the measured process with disk access."""
    measured_voluntary_switches: float | None
    """Number of voluntary context switches of the measured process."""
    measured_involuntary_switches: float | None
    """Number of involuntary context switches of the measured process."""
    measured_cpu_s: float | None
    """CPU time of the measured process in s."""
    measured_confined_threads: float | None
    """Number of times that a thread of the measured process lost the right to use a core."""
    measured_lowered_threads: float | None
    """Number of times that a thread of the measured process lost priority."""
    measured_stopped_looks: float | None
    """Number of rows in which the measured process was stopped by a signal or a debugger."""
    measured_anonymous_bytes: Sequence[float] | None
    """Memory of the measured process without files and shared pages, in bytes, at the beginning and after each quarter
    of the run; null with fewer than nine rows."""
    settings: Mapping[str, float]
    """Settings of the machine in the last row, such as the number of cores per governor."""
    settings_changed: Mapping[str, Sequence[float]]
    """[lowest, highest] of each setting that changed during the run."""
    gpus: NotRequired[Sequence[Gpu]]
    """The GPUs that the run used, from NVML; missing without --device cuda or without NVML."""


class MeasuredProcess(TypedDict):
    """The measured process, from the loading of the samples until LoadGen unloads them. Sources: getrusage and /proc."""

    cpu_s_per_query: float
    """CPU time per query in s."""
    cpu_over_wall: float | None
    """Mean number of busy cores."""
    run_queue_s_per_query: float | None
    """Time per query in s in which threads were ready to run but waited for a core; null if the kernel does not report
    this time."""
    busy_over_infer: float | None
    """CPU time plus time in the run queue, for all threads, divided by the time of the batches in the backend. The
    ratio is about 1 per computing thread. Null if one of these times is unknown.
    """
    voluntary_switches_per_query: float
    """Context switches per query because a thread waited."""
    involuntary_switches_per_query: float
    """Context switches per query because another thread took the core."""
    cyclic_garbage_objects: int | None
    """Number of Python objects left to the cyclic garbage collector; null if they were not counted."""
    rss_growth_bytes: int | None
    """Largest growth of the resident set since LoadGen's start, in bytes;
    null for the reason in `rss_growth_reason`.
    """
    rss_growth_reason: str | None
    """Reason why `rss_growth_bytes` is null; otherwise null."""


class NoiseFloor(TypedDict):
    """Delay of timed sleeps of 1 ms, measured before the run."""

    p50: int
    """ns."""
    p99: int
    """ns."""
    steal: float | None
    """Share of CPU time stolen by other guests; null if the kernel does not report it."""


class Placed(TypedDict):
    """Threads of one instance under --pin, as reported by the kernel."""

    threads: int | None
    """Number of threads that computed; null if the kernel does not report them."""
    outside: int | None
    """Number of computing threads that may run on processors outside the plan."""


class Slice(TypedDict):
    """Time slice of a thread. A thread with a short slice runs as soon as it wakes up."""

    ns: int | None
    """Length in ns; null for the kernel's default of about 3 ms."""
    reason: str | None
    """Reason why the slice is not short; null if it is short."""


class Elastic(TypedDict):
    """The wide instance, which has a thread on each core and answers queries that arrive alone."""

    cpus: Sequence[int] | None
    """Logical processors of the threads, first for the wide instance and then for each ordinary instance; null without a
    wide instance."""
    wide_ns: int | None
    """Median time of one sample in the wide instance before the run, in ns; null if the instance was not opened."""
    narrow_ns: int | None
    """Median time of one sample in an ordinary instance while nothing else computes, in ns."""
    samples: int
    """Number of samples that the wide instance answered."""
    reason: str | None
    """Reason why the run had no wide instance; null if it had one."""


class Plan(TypedDict):
    """The instance group and the dispatcher."""

    instances: int
    """Number of copies of the model."""
    threads: int
    """Number of threads per instance."""
    max_batch: int
    """Largest batch in samples."""
    cores: float
    """Processor time available to all instances, in cores."""
    pinned: Sequence[Sequence[int]] | None
    """Logical processors of each instance; null without --pin."""
    issuer: Sequence[int] | None
    """Logical processors of LoadGen's thread, or the planned processors if the run did not report them; null if the
    thread may run anywhere.
    """
    issuer_slice: NotRequired[Slice]
    """Time slice of LoadGen's thread; missing if this thread has other work besides issuing queries."""
    elastic: NotRequired[Elastic]
    """The wide instance of --dispatch elastic; missing if the plan has none, or if the dispatcher has no queue."""
    owns_cores: bool
    """Whether each core is used by only one instance."""
    placed: Sequence[Placed] | None
    """One entry per instance; null without --pin."""
    dispatch: str | None
    """Value of --dispatch; null without this option."""
    batch_wait_ns: int
    """Value of --batch-wait in ns."""
    dispatcher: str | None
    """The dispatcher that ran; null if the run did not end by itself."""


class Calibration(TypedDict):
    """Measurements before the run, without LoadGen."""

    rate_per_s: float | None
    """Samples/s while every instance is busy; null for streams."""
    latency_ns: int | None
    """Median latency in ns of a query that runs alone; null for Server and Offline."""
    slowest_batch_ns: int
    """Time of the slowest batch of any size after the warm-up, in ns."""
    batch_latency_ns: Sequence[Sequence[int]] | None
    """[samples, ns] by batch size while every instance is busy; null if the times are not needed by the dispatcher or
    for choosing Offline's batch."""
    thread_latency_ns: NotRequired[Sequence[Sequence[int]]]
    """[threads, ns] of a query that runs alone, in descending order of threads; missing if the warm-up did not try
    fewer threads.
    """
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
    """Number of batch sizes in the load plan."""
    skipped: int
    """Number of batch sizes that were skipped because time ran out."""
    flat: bool
    """Whether the times had become stable."""
