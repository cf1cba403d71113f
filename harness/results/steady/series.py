"""Converts a run's samples to short series of batch means, one series for each quantity that must stay the same. Has no
side effects.

If samples in the dataset repeat, each time is compared with other times for the same sample. The mix of long and short
samples then does not matter, and a few seconds reveal as much as whole passes over the dataset.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from harness.types import Array

BATCHES = 64
"""Maximum number of batches."""

LEAST_BATCHES = 16
"""Minimum number of batches, which `levels_of` requires."""

BATCH_SAMPLES = 6
"""Minimum number of samples in a batch."""

FEWEST = LEAST_BATCHES * BATCH_SAMPLES
"""Minimum number of samples in a series."""

_EVENTS = 60
"""The tail gets a series only if at least this many samples are late."""

_TAILS = (0.99, 0.95, 0.90)
"""Percentiles above which samples count as late. The highest percentile with enough events is used."""

_FEWEST_FAILURES = 10

_SPARSE = 10
"""If the largest sample index is at most this multiple of the run's samples, a table of all indices is used."""

_ROUNDS, _EXACT = 12, 1e-5
"""The paired estimate ends after this many rounds, or once no batch changes by more than _EXACT."""

_NEIGHBOURS, _SPIKE = 5, 4.0
"""Limits for a spike. A batch that is more than _SPIKE deviations from the median of its neighbours is moved to this
distance, because single stalls are reported separately.
"""


class Stream(NamedTuple):
    """A run's samples in the order of issue. Every array is (n,)."""

    issued_ns: Array
    latency_ns: Array
    sample: Array
    """Index of the sample in the dataset."""
    is_ok: Array
    """False for a failed sample, whose times are not used."""
    ttft_ns: Array | None = None
    """NaN for a sample without tokens."""
    tpot_ns: Array | None = None
    """NaN for a sample without a second token."""
    done_ns: Array | None = None
    """Time at which each sample was answered; None if it is the issue time plus `latency_ns`."""
    work: Array | None = None
    """Work in each entry, such as its number of samples; None if each entry is one sample of the dataset."""
    is_paced: bool = False
    """Whether a schedule decides when samples are issued. The rate then describes the schedule instead of the system."""


class Series(NamedTuple):
    """Batch means of one quantity."""

    name: str
    """latency, rate, TTFT, TPOT, tail or failures."""
    values: Array
    """(batches,) logarithms, so that a difference of 0.1 is a change of about 10 %."""
    begins_ns: Array
    """(batches,) time at which the first sample of each batch was issued; in the series of the rate, the time at which
    this sample was answered.
    """
    counts: bool
    """Whether the values count rare events. Such a series can show that something changed, but never that nothing did.
    """


def series_of(stream: Stream) -> Mapping[str, Series]:
    """Returns every series for which the stream has enough samples; {} for a short run."""
    ok = stream.is_ok.astype(bool)
    stream = stream._replace(sample=_dense(stream.sample))
    latency, effects = _timed("latency", stream, stream.latency_ns, ok)
    found = {
        "latency": latency,
        "rate": None if stream.is_paced else _rate(stream, ok, effects),
        "TTFT": _timed("TTFT", stream, stream.ttft_ns, ok)[0],
        "TPOT": _timed("TPOT", stream, stream.tpot_ns, ok)[0],
        "tail": _tail(stream, ok),
        "failures": _events("failures", stream.issued_ns, ~ok, _FEWEST_FAILURES),
    }
    return {name: one for name, one in found.items() if one is not None}


def _dense(index: Array) -> Array:
    """Returns the (n,) indices of the samples, renumbered from 0 without gaps."""
    if len(index) and int(index.max()) > _SPARSE * len(index):
        return np.unique(index, return_inverse=True)[1]
    number = np.cumsum(np.bincount(index) > 0) - 1
    dense: Array = number[index]
    return dense


def _batches(n: int) -> int:
    return min(BATCHES, n // BATCH_SAMPLES)


def _blocks(n: int) -> tuple[Array, Array]:
    """Returns the (n,) batch numbers of the values, and the (batches,) position of the first value in each batch."""
    count = _batches(n)
    first = -(-np.arange(count) * n // count)
    return np.arange(n) * count // n, first


def _timed(
    name: str, stream: Stream, times_ns: Array | None, ok: Array
) -> tuple[Series | None, Array]:
    """Returns the series of a time per sample (None with too few times) and the (n,) effects of the samples."""
    effects = np.zeros(len(ok))
    if times_ns is None:
        return None, effects
    used = ok & (times_ns > 0)  # NaN compares as False, so a NaN time counts as unused
    if int(used.sum()) < FEWEST:
        return None, effects
    logs = np.log(times_ns[used].astype(np.float64))
    block, first = _blocks(len(logs))
    levels, effects[used] = _paired(logs, stream.sample[used], block, len(first))
    series = Series(name, without_spikes(levels), stream.issued_ns[used][first], counts=False)
    return series, effects


def _paired(logs: Array, sample: Array, block: Array, batches: int) -> tuple[Array, Array]:
    """Returns the (batches,) levels, and the (n,) effects of the samples that the values belong to.

    Levels and effects are fitted alternately. A sample's effect is its mean deviation from the levels. If a sample has
    few repeats, its effect is uncertain and is drawn towards 0 (a random effect), so that it cannot hide a change.
    """
    sizes = np.bincount(block, minlength=batches)
    repeats = np.bincount(sample)
    levels: Array = np.bincount(block, logs, batches) / sizes
    trust = _trust(logs - levels[block], sample, repeats)
    effects: Array = np.zeros(len(logs))
    if trust is None:
        return levels, effects
    for _ in range(_ROUNDS):
        effects = (trust * np.bincount(sample, logs - levels[block]))[sample]
        before = levels
        levels = np.bincount(block, logs - effects, batches) / sizes
        if np.abs(levels - before).max() < _EXACT:
            break
    return levels, effects


def _trust(rest: Array, sample: Array, repeats: Array) -> Array | None:
    """Returns factors of shape (samples,) that convert a sample's summed deviations into its effect, or None if no
    sample is repeated.
    """
    n, seen = len(rest), repeats > 0
    samples = int(seen.sum())
    if n - samples < FEWEST or samples == 1:
        return None
    each = np.maximum(repeats, 1)
    means = np.bincount(sample, rest) / each
    within = float(np.square(rest - means[sample]).sum()) / (n - samples)
    between = float(np.var(means[seen])) - within * float(np.mean(1 / repeats[seen]))
    if between <= 0:
        return None
    trust: Array = 1 / (each + within / between)
    return trust


def without_spikes(values: Array) -> Array:
    """Returns the values with single spikes reduced to a few deviations from the median of their neighbours."""
    half = _NEIGHBOURS // 2
    padded = np.pad(values, half, mode="edge")
    near = np.median(np.lib.stride_tricks.sliding_window_view(padded, _NEIGHBOURS), axis=1)
    apart = values - near
    limit = _SPIKE * 1.4826 * float(np.median(np.abs(apart)))
    cut: Array = near + np.clip(apart, -limit, limit)
    return cut if limit > 0 else values


def _rate(stream: Stream, ok: Array, effects: Array) -> Series | None:
    """Returns the series of work per second during the time in which samples are still issued.

    An answer's work is its sample's mean time, so that a batch of long samples does not look slow.
    """
    done_ns = stream.done_ns
    if done_ns is None:
        done_ns = stream.issued_ns + stream.latency_ns
    used = ok & (stream.latency_ns > 0) & (done_ns <= stream.issued_ns[-1])
    if int(used.sum()) < FEWEST:
        return None
    weights = np.exp(effects) if stream.work is None else stream.work
    order = np.argsort(done_ns[used], kind="stable")
    times = done_ns[used][order]
    work = np.cumsum(weights[used][order])
    last = np.flatnonzero(
        np.diff(times, append=times[-1] + 1)
    )  # if answers have the same time, only the last one counts
    times, work = times[last], work[last]
    batches = _batches(len(times) - 1)
    if batches < LEAST_BATCHES:
        return None
    edges = np.interp(np.linspace(work[0], work[-1], batches + 1), work, times.astype(np.float64))
    values = without_spikes(-np.log(np.diff(edges)))
    return Series("rate", values, edges[:-1].astype(np.int64), counts=False)


def _tail(stream: Stream, ok: Array) -> Series | None:
    """Returns the series of the share of slow samples."""
    latency_ns = stream.latency_ns[ok]
    for share in _TAILS:
        if len(latency_ns) * (1 - share) >= _EVENTS:
            rank = int(len(latency_ns) * share)
            late = latency_ns > np.partition(latency_ns, rank)[rank]
            return _events("tail", stream.issued_ns[ok], late, _EVENTS // 2)
    return None


def _events(name: str, issued_ns: Array, happened: Array, fewest: int) -> Series | None:
    """Returns the series of a share of samples; None if fewer than `fewest` events happened.

    The square root of a count of rare events has a standard deviation of about 1/2, regardless of the share. The series
    therefore contains twice the root of each count, divided by the root of the mean count. Changes in this series are
    close to the changes in the share's logarithm.
    """
    total = int(happened.sum())
    if total < fewest or len(happened) < FEWEST:
        return None
    block, first = _blocks(len(happened))
    counts = np.bincount(block, happened, len(first))
    values = 2 * np.sqrt((counts + 0.375) / (counts.mean() + 0.375))
    return Series(name, without_spikes(values), issued_ns[first], counts=True)
