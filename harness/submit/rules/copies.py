"""Reports logs that are copies of another run's log: equal bytes, the same process and date, or equal latencies."""

import hashlib
from collections.abc import Hashable, Iterator, Mapping, Sequence

from harness.submit.rules.findings import Finding
from harness.submit.rules.tree.submission import RANGING, Result, RunLog, read_run
from harness.submit.rules.tree.tree import LOG_LIMIT_BYTES

_FEWEST_LATENCIES = 5
"""If a run's log contains at least this many different latencies, these latencies identify the run, because two runs
never have the same minimum, mean and percentiles in ns.
"""


def copied_logs(every: Sequence[Result]) -> Iterator[Finding]:
    """Compares the logs of all results from all submitters.

    Some results may share logs: a submitter's inferred results, two targets of one benchmark, and results in two
    divisions.
    """
    seen: dict[Hashable, tuple[str, Mapping[str, object]]] = {}
    for result in every:
        if result.benchmark is None:
            continue
        for role, run in _runs(result):
            about = {
                "submitter": result.submitter.name,
                "system": result.system,
                "loadgen": result.benchmark.loadgen,
                "role": role,
            }
            firsts = [seen.setdefault(mark, (run.file, about)) for mark in _marks(result, run)]
            others = {first for first, known in firsts if first != run.file and known != about}
            for first in sorted(others)[:1]:
                actual = f"a copy of {first}"[:300]
                yield Finding("log-copied", run.file, actual, "the log of a separate run")


def _marks(result: Result, run: RunLog) -> Iterator[Hashable]:
    """Yields values that two different runs never share."""
    content = result.tree.content(run.file, LOG_LIMIT_BYTES)
    if content is not None:
        yield hashlib.sha256(content).digest()
    log = run.detail
    if log.pid is not None and log.get("test_datetime") is not None:
        yield result.submitter.name, result.system, log.pid, str(log.get("test_datetime"))
    latencies = tuple(
        (key, str(value))
        for key, value in log.values.items()
        if key.startswith("result_") and key.endswith("latency_ns")
    )
    if len({value for _, value in latencies}) >= _FEWEST_LATENCIES:
        yield latencies


def _runs(result: Result) -> Iterator[tuple[str, RunLog]]:
    """Yields (role, log) pairs. For an inferred result, the role contains the scenario that was actually measured."""
    ranging = read_run(result.tree, result.inside(RANGING))
    named = {"performance": result.performance, "accuracy": result.accuracy, "ranging": ranging}
    for name, run in {**named, **result.audits}.items():
        if run is not None:
            yield f"{name} {result.measured_scenario}", run
