"""Counts the answers that met an SLO, from the journal. Has no side effects."""

from typing import NamedTuple

import numpy as np

from harness.core.config.parse import Slo
from harness.core.stats import percentile_ns
from harness.results.evidence.stages import Completions, query_latency_ns
from harness.types import Array


class Judged(NamedTuple):
    """Result for one SLO, judged from the journal. A failed sample never meets an SLO."""

    slo: Slo
    late: int
    """Number of items, among the `of` judged, that exceeded the bound or failed."""
    of: int
    """Number of items judged. The items are queries; for ttft, answers; for tpot, answers with several or an unknown
    number of tokens; for itl, tokens after the first.
    """
    value_ns: int | None
    """The percentile, without failures and unknown times; None for itl, because only late tokens are counted."""
    unknown: int = 0
    """Number of items whose time is unknown: for tpot, answers whose tokens nobody counted. Such items do not count as
    on time.
    """

    @property
    def is_met(self) -> bool:
        """Whether the measured percentile is within the bound. A verdict may require more certainty."""
        return self.of > 0 and self.late + self.unknown <= self.most_late

    @property
    def most_late(self) -> int:
        return most_late(self.of, self.slo.percentile)


def most_late(of: int, percentile: float) -> int:
    """Returns the largest number of late items, among `of` items, that keeps the percentile within its bound. percentile:
    between 0 and 1.
    """
    return of - int(of * percentile) - 1


def judged(done: Completions, samples_per_query: int, slo: Slo) -> Judged:
    """Judges a run that completed at least one sample."""
    values_ns, failed = _values(done, samples_per_query, slo)
    if slo.of == "itl":
        tokens = _column(done, "tokens")
        late, of = int(_column(done, "late_tokens").sum()), int(np.maximum(tokens - 1, 0).sum())
        return Judged(slo, late, of, None)
    late = int(((values_ns > slo.bound_ns) | failed).sum())
    right = np.sort(values_ns[~failed])
    value_ns = percentile_ns(right, slo.percentile) if len(right) else None
    unknown = int(_uncounted(done).sum()) if slo.of == "tpot" else 0
    return Judged(slo, late, len(values_ns) + unknown, value_ns, unknown)


def good_queries(done: Completions, samples_per_query: int, slos: tuple[Slo, ...]) -> int:
    """Counts the queries that did not fail and whose answers all met every SLO."""
    good = done.columns["failed"] == 0
    for slo in slos:
        good = good & _met(done, slo)
    whole = len(good) // samples_per_query * samples_per_query
    return int(good[:whole].reshape(-1, samples_per_query).all(axis=1).sum())


def _met(done: Completions, slo: Slo) -> Array:
    """Returns a (samples,) mask that marks the samples which are known to have met the SLO. An answer with a single
    token cannot miss a bound on the time per token. An answer whose tokens nobody counted is not certain to meet such
    a bound.
    """
    tokens, first_ns = _column(done, "tokens"), _column(done, "first_token_ns")
    met: Array
    if not slo.of:
        met = done.latency_ns <= slo.bound_ns
        return met
    if slo.of == "ttft":
        met = first_ns - done.columns["scheduled_ns"] <= slo.bound_ns
    elif slo.of == "tpot":
        spent_ns = done.columns["completed_ns"] - first_ns
        met = (tokens == 1) | (spent_ns <= slo.bound_ns * (tokens - 1))
    else:
        late, gaps = _column(done, "late_tokens"), np.maximum(tokens - 1, 0)
        met = late <= np.floor(gaps * (1 - slo.percentile) + 1e-9)
    return met & (first_ns > 0)


def _values(done: Completions, samples_per_query: int, slo: Slo) -> tuple[Array, Array]:
    """Returns (n,) times in ns, and an (n,) mask that marks failures."""
    failed: Array = done.columns["failed"] > 0
    if not slo.of:
        values_ns = query_latency_ns(done, samples_per_query)
        whole = len(values_ns) * samples_per_query
        of_queries: Array = failed[:whole].reshape(-1, samples_per_query)
        return values_ns, np.logical_or.reduce(of_queries, axis=1)
    first_ns, tokens = _column(done, "first_token_ns"), _column(done, "tokens")
    failed = failed | (first_ns == 0)
    if slo.of == "ttft":
        return first_ns - done.columns["scheduled_ns"], failed
    several = failed | (tokens > 1)
    spent_ns = (done.columns["completed_ns"] - first_ns)[several]
    return spent_ns // np.maximum(tokens[several] - 1, 1), failed[several]


def _uncounted(done: Completions) -> Array:
    """Returns a (samples,) mask that marks answers which did not fail but contain an unknown number of tokens."""
    mask: Array = (
        (done.columns["failed"] == 0)
        & (_column(done, "first_token_ns") > 0)
        & (_column(done, "tokens") == 0)
    )
    return mask


def _column(done: Completions, name: str) -> Array:
    """Returns a column that only streams fill; zeros if no reply was a stream."""
    return done.columns.get(name, np.zeros(len(done), np.int64)).astype(np.int64)
