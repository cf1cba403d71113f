"""Binds MLPerf LoadGen: settings, responses and runs. No other module imports LoadGen.

docs/decisions/loadgen.md records how LoadGen 6.0.17 behaved in real runs. An exception in a callback crashes LoadGen,
StartTest must not run on the main thread, and only the first FromConfig call of a process has an effect.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.core.clock import wall_ns
from harness.core.extras import how_to_install_packages
from harness.errors import ConfigError, PluginUnavailable
from harness.loadgen.answers import AnswerRow, Ragged
from harness.loadgen.plan import LoadPlan, Seeds, least_duration_ms
from harness.loadgen.scenario import scenario_named
from harness.loadgen.versions import PINNED_VERSION, installed_version
from harness.types import Array

try:
    import mlperf_loadgen as lg
except ImportError as e:
    raise PluginUnavailable(
        f"LoadGen cannot be imported: {how_to_install_packages('mlcommons-loadgen==6.0.17')}"
    ) from e


NO_AUDIT = "no-audit.config"
"""Name of a file that does not exist. Because the file does not exist, LoadGen does not read audit.config from the
working directory.
"""


def settings_for(plan: LoadPlan) -> "lg.TestSettings":
    """Returns LoadGen's settings for the plan. For an official run, FromConfig reads the settings.

    For all other runs, the settings fix the number of queries, not the duration. If LoadGen derived the number from
    the duration, a calibration error of 15 % would make the run fail. A fixed number also halves LoadGen's memory use.
    """
    settings = lg.TestSettings()
    scenario = scenario_named(plan.scenario)
    settings.scenario = getattr(lg.TestScenario, scenario.loadgen_name)
    settings.mode = lg.TestMode.AccuracyOnly if plan.accuracy else lg.TestMode.PerformanceOnly
    if plan.model_key is not None:
        _official(settings, plan)
        return settings
    if plan.token_latencies:
        _token_latencies(settings, plan)
    settings.min_duration_ms = 0
    settings.min_query_count = plan.query_count
    settings.accuracy_log_sampling_target = plan.logged_answers
    settings.accuracy_log_rng_seed = plan.answers_seed
    settings.qsl_rng_seed = plan.seeds.qsl
    settings.sample_index_rng_seed = plan.seeds.sample_index
    settings.schedule_rng_seed = plan.seeds.schedule
    settings.server_coalesce_queries = True
    for field, value in scenario.settings(plan):
        setattr(settings, field, value)
    return settings


def _token_latencies(settings: "lg.TestSettings", plan: LoadPlan) -> None:
    """Reads the bounds of token times from a file, because LoadGen's Python binding has no fields for them."""
    settings.use_token_latencies = True
    if plan.user_conf is not None:
        name = scenario_named(plan.scenario).loadgen_name
        # With conf_type 2, LoadGen keeps every setting that the file does not name, and may read several files.
        status = settings.FromConfig(plan.user_conf, "harness", name, 2)
        if status != 0:
            raise ConfigError(
                f"LoadGen refused {plan.user_conf} (FromConfig returned {status}): correct the file"
            )


def _official(settings: "lg.TestSettings", plan: LoadPlan) -> None:
    """Reads user.conf into `settings`, and then checks the values that the round prescribes."""
    name = scenario_named(plan.scenario).loadgen_name
    status = settings.FromConfig(plan.user_conf, plan.model_key, name, 1)
    if status != 0:
        raise ConfigError(
            f"LoadGen refused {plan.user_conf} (FromConfig returned {status}): correct the file"
        )
    settings.server_coalesce_queries = True
    seeds = Seeds(settings.qsl_rng_seed, settings.sample_index_rng_seed, settings.schedule_rng_seed)
    if seeds != plan.seeds:
        raise ConfigError(
            f"LoadGen {installed_version()} has the seeds {tuple(seeds)}, but the round has "
            f"{tuple(plan.seeds)}: install mlcommons-loadgen=={PINNED_VERSION}"
        )
    least_ms = least_duration_ms(plan.model_key)
    if settings.min_duration_ms < least_ms:
        raise ConfigError(
            f"{plan.user_conf}: LoadGen read a min_duration of {settings.min_duration_ms} ms, but official "
            f"runs need at least {least_ms}: correct the file"
        )


def official_settings(scenario: str, model_key: str, user_conf: str) -> "lg.TestSettings":
    """Returns the settings of an official run. This function can be called repeatedly within one process.

    To make this possible, the function reads the built-in file with conf_type 0 and the user's file with conf_type 2.
    The function cannot use conf_type 1, because conf_type 1 works only once per process and `settings_for` needs it.
    """
    name = scenario_named(scenario).loadgen_name
    settings = lg.TestSettings()
    settings.scenario = getattr(lg.TestScenario, name)
    settings.FromConfig("", model_key, name, 0)
    status = settings.FromConfig(user_conf, model_key, name, 2)
    if status != 0:
        raise ConfigError(
            f"LoadGen refused {user_conf} (FromConfig returned {status}): correct the file"
        )
    return settings


_SET_ID = lg.QuerySampleResponse.id.fset
_SET_DATA = lg.QuerySampleResponse.data.fset
_SET_SIZE = lg.QuerySampleResponse.size.fset
_SET_TOKENS = lg.QuerySampleResponse.n_tokens.fset

Complete = Callable[[Any], None]
"""Receives a list of QuerySampleResponse. May be called on any thread."""


class _Responder:
    """Completes LoadGen's samples for one worker. This class is not thread-safe, so each worker has a separate
    responder.

    The response objects and their buffer are created once and reused for every batch. Reuse is possible because LoadGen
    does not keep answers after the call: LoadGen copies the answers in an accuracy run, and ignores them in a
    performance run.
    """

    __slots__ = ("_begun", "_buffer", "_complete", "_pool")

    _buffer: Array
    _complete: Complete
    _pool: list["lg.QuerySampleResponse"]
    _begun: list["lg.QuerySampleResponse"]

    def first_tokens(self, ids: Sequence[int], tokens: Sequence[int | None]) -> None:
        """Reports the first tokens of samples to LoadGen, before the samples are completed.

        ids: (n,) LoadGen's IDs. tokens: (n,) token IDs; an entry is None if the ID is unknown. If answers are token
        IDs, LoadGen logs the first tokens together with the answers and in the same type. LoadGen copies the tokens
        during the call.
        """
        count, pool, dtype = len(ids), self._begun, self._buffer.dtype
        pool += [lg.QuerySampleResponse(0, 0, 0) for _ in range(count - len(pool))]
        deque(map(_SET_ID, pool, ids), maxlen=0)
        if dtype.kind == "i":
            data = np.array([token or 0 for token in tokens], dtype)
            base, size = data.ctypes.data, dtype.itemsize
            deque(map(_SET_DATA, pool, range(base, base + count * size, size)), maxlen=0)
            deque(map(_SET_SIZE, pool, [0 if t is None else size for t in tokens]), maxlen=0)
        lg.FirstTokenComplete(pool[:count])

    def tokens(self, counts: Sequence[int]) -> None:
        """Sets the token counts of the answers in the next call of `complete`. counts: (n,) one count per answer."""
        deque(map(_SET_TOKENS, self._pool, counts), maxlen=0)

    def complete_empty(self, ids: Sequence[int]) -> int:
        """Completes a failed batch, because LoadGen would wait forever for an unanswered sample.

        Returns the wall-clock time in ns just before LoadGen is called.
        """
        responses = [lg.QuerySampleResponse(sample_id, 0, 0) for sample_id in ids]
        completed_ns = wall_ns()
        self._complete(responses)
        return completed_ns


class Responder(_Responder):
    """A responder for answers with equal shapes."""

    __slots__ = ("_one", "_one_row")

    def __init__(self, max_batch: int, row: AnswerRow, complete: Complete | None = None) -> None:
        """row: dtype and shape of every answer. complete: called instead of LoadGen; None calls LoadGen."""
        shape: tuple[Any, ...] = (max_batch, *row.shape)
        self._buffer = np.zeros(shape, row.dtype)
        base, size = self._buffer.ctypes.data, self._buffer.nbytes // max_batch
        self._pool = [lg.QuerySampleResponse(0, base + i * size, size) for i in range(max_batch)]
        self._one, self._one_row = self._pool[:1], self._buffer[:1]
        self._begun = []
        self._complete = complete or lg.QuerySamplesComplete

    def complete(self, ids: Sequence[int], answers: Array) -> int:
        """Completes a batch. ids: (n,) LoadGen's IDs. answers: (n, ...), one row per ID.

        Returns the wall-clock time in ns just before LoadGen is called. LoadGen takes the time stamp of the completion
        at the beginning of the call. The latency therefore excludes the rest of the call and the wait for the GIL that
        follows.
        """
        count = len(ids)
        if count == 1:
            # An assignment to the slice `[:]` would take twice as long.
            self._one_row[...] = answers
            responses = self._one
            responses[0].id = ids[0]
        else:
            self._buffer[:count] = answers
            responses = self._pool[:count]
            # A loop would be 20 % slower than this `map`.
            deque(map(_SET_ID, responses, ids), maxlen=0)
        completed_ns = wall_ns()
        self._complete(responses)
        return completed_ns


class RaggedResponder(_Responder):
    """A responder for answers with different lengths.

    The answers of a batch are stored one after another in one buffer, which grows with the largest batch.
    """

    __slots__ = ()

    def __init__(self, max_batch: int, row: AnswerRow, complete: Complete | None = None) -> None:
        self._buffer = np.empty(0, row.dtype)
        self._pool = [lg.QuerySampleResponse(0, 0, 0) for _ in range(max_batch)]
        self._begun = []
        self._complete = complete or lg.QuerySamplesComplete

    def complete(self, ids: Sequence[int], answers: Ragged) -> int:
        """Completes a batch, like Responder.complete."""
        flat = [row.ravel() for row in answers.rows]
        ends = list(accumulate(map(len, flat), initial=0))
        if ends[-1] > len(self._buffer):  # the size is doubled, so that the buffer rarely grows
            self._buffer = np.empty(max(ends[-1], 2 * len(self._buffer)), answers.dtype)
        np.concatenate(flat, out=self._buffer[: ends[-1]])
        base, item = self._buffer.ctypes.data, self._buffer.itemsize
        responses = self._pool[: len(ids)]
        starts = (base + item * start for start in ends)
        sizes = (item * len(row) for row in flat)
        deque(map(_SET_ID, responses, ids), maxlen=0)
        deque(map(_SET_DATA, responses, starts), maxlen=0)
        deque(map(_SET_SIZE, responses, sizes), maxlen=0)
        completed_ns = wall_ns()
        self._complete(responses)
        return completed_ns


def responder_for(
    max_batch: int, row: AnswerRow, complete: Complete | None = None
) -> Responder | RaggedResponder:
    """Returns a responder for answers like `row`. complete: called instead of LoadGen if the harness schedules."""
    cls = RaggedResponder if None in row.shape else Responder
    return cls(max_batch, row, complete)


class Callbacks(NamedTuple):
    """Functions that LoadGen calls on the thread of `start_test`. An error in one of these functions would crash
    LoadGen.
    """

    issue: Callable[[list[int], list[int]], None]
    """Receives the IDs and dataset indices of a query's samples."""
    load: Callable[[list[int]], None]
    """Receives the dataset indices of the run's samples."""
    unload: Callable[[list[int]], None]


def start_test(
    plan: LoadPlan,
    settings: "lg.TestSettings",
    outdir: Path,
    calls: Callbacks,
    name: Callable[[], str] | None = None,
) -> None:
    """Runs LoadGen until every sample is answered. outdir: an existing folder for LoadGen's logs.

    name: returns the name of the SUT; if set, the SUT is a query dispatch library (QDL), as MLPerf's Network division
    requires. LoadGen calls `name` before the first query and after the last query. The function must not raise an
    error.
    """
    log = lg.LogSettings()
    log.log_output.outdir = str(outdir)
    log.log_output.copy_summary_to_stdout = False
    log.enable_trace = False  # by default, LoadGen writes 640 bytes per query
    if name is None:
        sut = lg.ConstructFastSUT(calls.issue, _flush)
    else:
        sut = lg.ConstructQDL(_with_samples(calls.issue), _flush, name)
    qsl = lg.ConstructQSL(plan.total_count, plan.performance_count, calls.load, calls.unload)
    lg.StartTestWithLogSettings(sut, qsl, settings, log, plan.audit_config or NO_AUDIT)
    lg.DestroyQSL(qsl)
    (lg.DestroyFastSUT if name is None else lg.DestroyQDL)(sut)


def _flush() -> None:
    """Does nothing, because no query is held back until LoadGen flushes."""


def _with_samples(
    issue: Callable[[list[int], list[int]], None],
) -> Callable[[list["lg.QuerySample"]], None]:
    """Wraps `issue` for a QDL, which gets LoadGen's objects instead of lists of IDs and indices."""

    def of_samples(samples: list["lg.QuerySample"]) -> None:
        issue([sample.id for sample in samples], [sample.index for sample in samples])

    return of_samples
