"""MLPerf LoadGen: the only file that imports it.

What is worked around here was seen on real runs of 6.0.17 and is told in docs/decisions.md:
callbacks must not raise, StartTest runs off the main thread, FromConfig counts once per process.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.core.clock import wall_ns
from harness.errors import ConfigError, PluginUnavailable
from harness.loadgen.answers import AnswerRow, Ragged
from harness.loadgen.plan import MIN_DURATION_MS, LoadPlan, Seeds
from harness.loadgen.scenario import scenario_named
from harness.loadgen.versions import PINNED_VERSION, installed_version
from harness.types import Array

try:
    import mlperf_loadgen as lg
except ImportError as e:
    raise PluginUnavailable(
        "LoadGen cannot be imported: pip install mlcommons-loadgen==6.0.17"
    ) from e


NO_AUDIT = "no-audit.config"
"""LoadGen reads audit.config from the working directory unless another name is passed."""


def settings_for(plan: LoadPlan) -> "lg.TestSettings":
    """Quick settings fix the count, not the time: sizing by time fails when the calibration is off
    by 15 %, and a fixed count halves LoadGen's memory. Official settings come from FromConfig.
    """
    settings = lg.TestSettings()
    scenario = scenario_named(plan.scenario)
    settings.scenario = getattr(lg.TestScenario, scenario.loadgen_name)
    settings.mode = lg.TestMode.AccuracyOnly if plan.accuracy else lg.TestMode.PerformanceOnly
    if plan.model_key is not None:
        _official(settings, plan)
        return settings
    settings.min_duration_ms = 0
    settings.min_query_count = plan.query_count
    settings.accuracy_log_sampling_target = plan.logged_answers
    settings.qsl_rng_seed = plan.seeds.qsl
    settings.sample_index_rng_seed = plan.seeds.sample_index
    settings.schedule_rng_seed = plan.seeds.schedule
    settings.server_coalesce_queries = True
    for field, value in scenario.settings(plan):
        setattr(settings, field, value)
    return settings


def _official(settings: "lg.TestSettings", plan: LoadPlan) -> None:
    """FromConfig, once, then every value that must have come of it is checked."""
    name = scenario_named(plan.scenario).loadgen_name
    status = settings.FromConfig(plan.user_conf, plan.model_key, name, 1)
    if status != 0:
        raise ConfigError(f"{plan.user_conf}: LoadGen refused it (FromConfig returned {status})")
    settings.server_coalesce_queries = True
    found = Seeds(settings.qsl_rng_seed, settings.sample_index_rng_seed, settings.schedule_rng_seed)
    if found != plan.seeds:
        raise ConfigError(
            f"LoadGen {installed_version()} carries other seeds than the round's: "
            f"{tuple(found)} instead of {tuple(plan.seeds)}; "
            f"install mlcommons-loadgen=={PINNED_VERSION}"
        )
    if settings.min_duration_ms < MIN_DURATION_MS:
        raise ConfigError(
            f"{plan.user_conf}: min_duration is {settings.min_duration_ms} ms after loading, "
            f"official runs need at least {MIN_DURATION_MS}"
        )


class OfficialLoad(NamedTuple):
    """What the official rules make of a user.conf. Rates in queries/s, bound in ns."""

    queries: int
    performance_count: int
    samples_per_query: int
    expected_s: float
    target_qps: float | None
    percentile: float
    latency_bound_ns: int | None


def official_load(
    scenario: str, model_key: str, user_conf: str, total: int, held: int
) -> OfficialLoad:
    """Reads the settings in a way that can be repeated: conf_type 0 is the built-in file alone and
    2 the user's alone, neither of which uses up the one conf_type 1 load a process has.
    """
    asked = scenario_named(scenario)
    s = lg.TestSettings()
    s.scenario = getattr(lg.TestScenario, asked.loadgen_name)
    s.FromConfig("", model_key, asked.loadgen_name, 0)
    status = s.FromConfig(user_conf, model_key, asked.loadgen_name, 2)
    if status != 0:
        raise ConfigError(f"{user_conf}: LoadGen refused it (FromConfig returned {status})")
    seconds = s.min_duration_ms / 1e3
    load = asked.expected_load(s, seconds)
    return OfficialLoad(
        queries=max(int(load.queries) + 1, s.min_query_count),
        performance_count=min(s.performance_sample_count_override or held, total),
        samples_per_query=load.samples_per_query,
        expected_s=seconds,
        target_qps=load.target_qps,
        percentile=load.percentile,
        latency_bound_ns=load.latency_bound_ns,
    )


Complete = Callable[[Any], None]
"""Takes a list of QuerySampleResponse, on any thread."""


class Responder:
    """Completes one worker's batches. Not thread-safe: each worker has its own.

    LoadGen copies nothing in a performance run and copies inside the call in an accuracy run, so
    response objects and the buffer they point into are made once and used for every batch.
    """

    __slots__ = ("_buffer", "_complete", "_one", "_one_row", "_pool", "_set_id")

    def __init__(self, max_batch: int, row: AnswerRow, complete: Complete | None = None) -> None:
        """row: what one answer is like; all answers must have its dtype and shape."""
        shape: tuple[Any, ...] = (max_batch, *row.shape)  # numbers: responder_for
        self._buffer: Array = np.zeros(shape, row.dtype)
        base, size = self._buffer.ctypes.data, self._buffer.nbytes // max_batch
        self._pool = [lg.QuerySampleResponse(0, base + i * size, size) for i in range(max_batch)]
        self._one, self._one_row = self._pool[:1], self._buffer[:1]
        self._set_id = lg.QuerySampleResponse.id.fset
        self._complete = complete or lg.QuerySamplesComplete

    def complete(self, ids: Sequence[int], answers: Array) -> int:
        """ids: (n,) LoadGen's. answers: (n, ...) rows in the same order.

        Returns the wall clock as LoadGen's call begins: it stamps the completion there, and what
        the call does afterwards (or waits for the GIL) is no part of the latency.
        """
        count = len(ids)
        if count == 1:
            self._one_row[...] = answers  # half the time of a slice's
            responses = self._one
            responses[0].id = ids[0]
        else:
            self._buffer[:count] = answers
            responses = self._pool[:count]
            deque(map(self._set_id, responses, ids), maxlen=0)  # a fifth less than a loop
        completed_ns = wall_ns()
        self._complete(responses)
        return completed_ns

    def complete_empty(self, ids: Sequence[int]) -> int:
        """For failed batches: a sample left unanswered would hang LoadGen for ever."""
        return _complete_empty(ids, self._complete)


class RaggedResponder:
    """The same for answers of different lengths: they lie one after another in one buffer, which
    grows when a batch needs more. Not thread-safe.
    """

    __slots__ = ("_buffer", "_complete", "_pool", "_setters")

    def __init__(self, max_batch: int, row: AnswerRow, complete: Complete | None = None) -> None:
        self._buffer: Array = np.empty(0, row.dtype)
        self._pool = [lg.QuerySampleResponse(0, 0, 0) for _ in range(max_batch)]
        kind = lg.QuerySampleResponse
        self._setters = (kind.id.fset, kind.data.fset, kind.size.fset)
        self._complete = complete or lg.QuerySamplesComplete

    def complete(self, ids: Sequence[int], answers: Ragged) -> int:
        """As Responder.complete: (n,) ids, n rows in the same order, one call of LoadGen's."""
        flat = [row.ravel() for row in answers.rows]
        ends = list(accumulate(map(len, flat), initial=0))
        if ends[-1] > len(self._buffer):  # doubled, so that it seldom happens
            self._buffer = np.empty(max(ends[-1], 2 * len(self._buffer)), answers.dtype)
        np.concatenate(flat, out=self._buffer[: ends[-1]])
        base, item = self._buffer.ctypes.data, self._buffer.itemsize
        responses = self._pool[: len(ids)]
        starts = (base + item * start for start in ends)
        sizes = (item * len(row) for row in flat)
        for set_field, values in zip(self._setters, (ids, starts, sizes), strict=True):
            deque(map(set_field, responses, values), maxlen=0)
        completed_ns = wall_ns()
        self._complete(responses)
        return completed_ns

    def complete_empty(self, ids: Sequence[int]) -> int:
        """As Responder.complete_empty."""
        return _complete_empty(ids, self._complete)


def _complete_empty(ids: Sequence[int], complete: Complete) -> int:
    responses = [lg.QuerySampleResponse(sample_id, 0, 0) for sample_id in ids]
    completed_ns = wall_ns()
    complete(responses)
    return completed_ns


def responder_for(
    max_batch: int, row: AnswerRow, complete: Complete | None = None
) -> Responder | RaggedResponder:
    """complete: takes the responses instead of LoadGen, where another scheduler asked for them."""
    made = RaggedResponder if None in row.shape else Responder
    return made(max_batch, row, complete)


class Callbacks(NamedTuple):
    """None of them may raise: LoadGen would crash."""

    issue: Callable[[list[int], list[int]], None]
    load: Callable[[list[int]], None]
    unload: Callable[[list[int]], None]


def start_test(plan: LoadPlan, settings: "lg.TestSettings", outdir: Path, calls: Callbacks) -> None:
    """One LoadGen run; blocks until every sample is answered. Logs go to `outdir`, which exists."""
    log = lg.LogSettings()
    log.log_output.outdir = str(outdir)
    log.log_output.copy_summary_to_stdout = False
    log.enable_trace = False  # on by default: 640 bytes a query
    sut = lg.ConstructFastSUT(calls.issue, lambda: None)  # nothing is held back
    qsl = lg.ConstructQSL(plan.total_count, plan.performance_count, calls.load, calls.unload)
    lg.StartTestWithLogSettings(sut, qsl, settings, log, plan.audit_config or NO_AUDIT)
    lg.DestroyQSL(qsl)
    lg.DestroyFastSUT(sut)
