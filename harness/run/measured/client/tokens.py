"""Sums the token counts that the replies of a run report."""

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, compress, pairwise
from operator import not_
from time import monotonic
from typing import Any

import numpy as np

from harness.core.otlp.boundaries import SECONDS_NS
from harness.errors import one_line
from harness.remote import HasSent, Remote, Sent, StreamReader, Usage
from harness.run.measured.client.repeats import Repeats
from harness.run.measured.client.tails import LEAST_NS, Tails
from harness.types import Array, Dataset

PERCENTILES = {"p50": 0.50, "p90": 0.90, "p99": 0.99}

MOST_PER_CHUNK = 1.25
"""A chunk with an unknown number of tokens counts as one token only if the mean number of tokens per chunk lies between
1 / MOST_PER_CHUNK and MOST_PER_CHUNK.
"""

AT_ONCE_NS, FEWEST_CHUNKS = LEAST_NS, 8
"""A stream with at least FEWEST_CHUNKS chunks counts as held back if the chunks arrived in less than AT_ONCE_NS each,
because no server computes 50,000 tokens/s for one prompt.
"""

FEWEST_ARRIVALS = 4
"""A stream's second arrival is compared with its other arrivals only if the stream has at least this many arrivals."""

_BY_LENGTH = frozenset(("length", "max_tokens", "model_length", "max_output_tokens"))
"""Values of finish_reason for answers that were cut off by a limit."""

NOTHING_COMPARED = dict.fromkeys(
    (
        *("compared_prompts", "changed_prompts", "long_prompts", "long_answers", "short_prompts"),
        *("short_answers", "bounded_prompts", "uncalled_prompts", "calling_prompts"),
        *("long_answered", "alike_prompts"),
    ),
    0,
)
"""The counts in `tokens` for a run without a server, because such a run compares no prompts."""

COMPARE_S = 10.0
"""The comparison of token counts with prompts ends after this time, because the supervisor waits only a few minutes for
the `ended` message.
"""

_LOADED = 256
"""This many samples are loaded at once for the comparison."""

_BLOCK = 64
"""Answers are counted in blocks of this many, because a block takes less than 0.2 ms."""

_MOST_REASONS = 16
_REASON_CHARACTERS = 60
"""At most _MOST_REASONS texts of each kind are stored, each cut to _REASON_CHARACTERS. The texts come from the server
or the plug-in.
"""


class Streams:
    """Stores the gaps between the arrivals in streams. Each gap takes 16 bytes."""

    def __init__(self, bound_ns: int | None = None) -> None:
        """bound_ns: bound of the time between tokens; None without such an SLO."""
        self._bound_ns = bound_ns
        self._gaps_ns = array("q")
        self._sizes = array("q")  # number of tokens in the chunk that ends each gap
        self._second_ns = array("q")  # gap before the second arrival of each stream
        # Two numbers per stream: the position of the stream's first gap, and the number of tokens in the stream's first
        # arrival.
        self._begins = array("q")
        self._extra = self._chunks = self._tokens = self._at_once = self._several = 0
        self._long = self._held = 0
        self._all_exact = self._all_known = True

    def add(
        self, arrivals: Sequence[tuple[int, int]], tokens: int | None, chunks: int, *, exact: bool
    ) -> int:
        """Adds a stream. Returns the number of tokens that missed the bound; 0 without a bound.

        arrivals: (time stamp in ns, number of tokens so far), or the number of chunks so far if `exact` is false.
        chunks: total number of chunks.
        """
        late, bound_ns = 0, self._bound_ns
        self._chunks += chunks
        self._tokens += tokens or 0
        self._all_exact &= exact
        self._all_known &= tokens is not None
        if tokens is not None and tokens > 1:
            self._several += 1
            self._at_once += chunks <= 1
        if chunks >= FEWEST_CHUNKS and arrivals:
            self._long += 1
            self._held += arrivals[-1][0] - arrivals[0][0] < AT_ONCE_NS * chunks
        if arrivals:
            self._begins.append(len(self._gaps_ns))
            self._begins.append(arrivals[0][1])
            self._extra += arrivals[0][1] - 1
            if len(arrivals) >= FEWEST_ARRIVALS:
                self._second_ns.append(max(0, arrivals[1][0] - arrivals[0][0]))
        for (before_ns, before), (stamp_ns, count) in pairwise(arrivals):
            gap_ns, size = max(0, stamp_ns - before_ns), count - before
            self._gaps_ns.append(gap_ns)
            self._sizes.append(size)
            if bound_ns is not None and gap_ns > bound_ns * size:
                late += size
        return late

    def summary(self) -> dict[str, Any] | None:
        """Returns `streams` for the `ended` message; None if no chunk arrived.

        The time between tokens (ITL) is a gap divided by the number of tokens in the arrival after the gap. The
        percentiles count the ITL once per token. In the first arrival, the ITL of every token except the first is 0.
        The ITL is None if the number of tokens per chunk is unknown and seems to be far from one.
        """
        if not self._chunks:
            return None
        gaps, sizes = np.array(self._gaps_ns), np.array(self._sizes)
        per_chunk = self._tokens / self._chunks if self._all_known else None
        itl: Mapping[str, int] | None = None
        positions: list[dict[str, int]] = []
        if self._all_exact or (
            per_chunk is not None and 1 / MOST_PER_CHUNK <= per_chunk <= MOST_PER_CHUNK
        ):
            between = np.append(gaps / np.maximum(sizes, 1), 0.0)
            itl = percentiles(between, np.append(sizes, self._extra))
            positions = self._by_position(gaps, sizes)
        return {
            "chunks": self._chunks,
            "tokens_per_chunk": per_chunk,
            "exact": self._all_exact,
            "several": self._several,
            "at_once": self._at_once,
            "long": self._long,
            "held_back": self._held,
            "itl_ns": itl,
            "second_gap_ns": percentiles(
                np.array(self._second_ns), np.ones(len(self._second_ns), np.int64)
            ),
            "itl_by_position": positions,
            "chunk_gap_ns": percentiles(gaps, np.ones_like(gaps)),
            "chunk_gaps": {
                "counts": np.bincount(
                    np.searchsorted(SECONDS_NS, gaps), minlength=len(SECONDS_NS) + 1
                ).tolist(),
                "sum_ns": int(gaps.sum()),
            },
        }

    def _by_position(self, gaps: Array, sizes: Array) -> list[dict[str, int]]:
        """Returns percentiles of the ITL by the later token's position. Each range of positions is twice as long as the
        range before it.
        """
        begins, firsts = np.array(self._begins, np.int64).reshape(-1, 2).T
        counts = np.diff(np.append(begins, len(gaps)))
        before = np.cumsum(sizes) - np.repeat(
            (np.cumsum(sizes) - sizes)[begins[counts > 0]], counts[counts > 0]
        )
        position = before + np.repeat(firsts, counts)
        found = []
        place = np.ceil(np.log2(np.maximum(position, 1))).astype(np.int64)
        for power in np.unique(place).tolist():
            mine = place == power
            times = percentiles((gaps / np.maximum(sizes, 1))[mine], sizes[mine])
            if times is not None:
                first = 2 ** (power - 1) + 1 if power else 1
                found.append(
                    {
                        "first": first,
                        "last": 2**power,
                        "tokens": int(sizes[mine].sum()),
                        "p50_ns": times["p50"],
                        "p99_ns": times["p99"],
                    }
                )
        return found


def percentiles(values: Array, weights: Array) -> Mapping[str, int] | None:
    """Returns percentiles of weighted values; None if all weights are 0. Uses the same definition as `percentile_ns`."""
    order = np.argsort(values, kind="stable")
    ends = np.cumsum(weights[order])
    if not len(ends) or not ends[-1]:
        return None
    places = {name: int(ends[-1] * share) for name, share in PERCENTILES.items()}
    return {
        name: int(values[order[np.searchsorted(ends, place, side="right")]])
        for name, place in places.items()
    }


def _count(counter: Counter[str], texts: Iterable[str]) -> None:
    for whole, times in Counter(texts).items():
        text = whole[:_REASON_CHARACTERS]
        if text in counter or len(counter) < _MOST_REASONS:
            counter[text] += times


class Tokens:
    """Sums the token counts of a run's answers. Only one thread may call the methods."""

    def __init__(self, itl_bound_ns: int | None = None) -> None:
        """itl_bound_ns: bound of the SLO on the time between tokens; None without such an SLO."""
        self._held: list[tuple[Usage, int, Array | None]] = []
        self._answers = self._input = self._output = self._cached = self._alone = 0
        self._from_cache = self._reasoning = self._media_ns = 0
        # `_prompts` maps a dataset index to the first prompt token count that the server reported; `_longest` maps a
        # dataset index to the length of the longest answer.
        self._prompts: dict[int, int] = {}
        self._longest: dict[int, int] = {}
        # `_shortest` maps a dataset index to the length of the shortest answer that the model itself ended.
        self._shortest: dict[int, int] = {}
        self._without_call: set[int] = set()
        self._repeats = Repeats()
        self._varied = 0  # number of answers whose prompt token count differs from the first report
        self._contradictions: Counter[str] = Counter()
        self._doubts: Counter[str] = Counter()
        self._signs: Counter[str] = Counter()
        self._known: Counter[str] = Counter()
        self._sources: Counter[str] = Counter()
        self._finished: Counter[str] = Counter()
        self._streams = Streams(itl_bound_ns)
        self._tails = Tails()

    def stream(
        self, arrivals: Sequence[tuple[int, int]], tokens: int | None, reader: StreamReader
    ) -> int:
        """Adds a streamed answer, and returns its number of late tokens.

        arrivals: as in Flight.chunks. tokens: number of tokens in the answer.
        """
        return self._streams.add(arrivals, tokens, reader.chunks, exact=reader.is_exact)

    def tail(
        self, arrivals: Sequence[tuple[int, int]], usage: Usage, end_ns: int, *, exact: bool
    ) -> None:
        """Adds an answer's tokens without text. The arguments are the same as in `Tails.add`."""
        if usage.silent:
            self._tails.add(arrivals, usage, end_ns, exact=exact)

    def generated(self, stamps_ns: Sequence[int], usage: Usage, index: int) -> int:
        """Adds an answer that this process generated, and returns its number of late tokens.

        stamps_ns: time stamp of each token. index: see `add`.
        """
        self.add(usage, index)
        count = len(stamps_ns)
        arrivals = [(ns, i) for i, ns in enumerate(stamps_ns, 1)]
        return self._streams.add(arrivals, count, count, exact=True)

    def add(self, usage: Usage, index: int, answer: Array | None = None) -> None:
        """Adds the token counts of one answer.

        index: dataset index of the answer's sample. answer: None if this process generated the answer.
        """
        self._held.append((usage, index, answer))
        if len(self._held) >= _BLOCK:
            self._count_held()

    def _count_held(self) -> None:
        """Counts the answers collected so far.

        If a plug-in's count is not a number, the run becomes INVALID but keeps its other results.
        """
        held, self._held = self._held, []
        if not held:
            return
        try:
            self._count_block(held)
        except Exception as e:  # noqa: BLE001 - a plug-in's reader may fail
            text = f"a count cannot be read ({one_line(e)})"
            _count(self._contradictions, [text] * len(held))

    def _count_block(self, held: Sequence[tuple[Usage, int, Array | None]]) -> None:
        """Counts a block of answers field by field, which takes half as long as counting answer by answer."""
        usages, indices, answers = zip(*held, strict=True)
        columns = zip(*usages, strict=True)
        told: Mapping[str, tuple[Any, ...]] = dict(zip(Usage._fields, columns, strict=True))
        self._answers += len(usages)
        self._input += self._sum("input", told)
        self._cached += self._sum("cached", told)
        self._reasoning += self._sum("reasoning", told)
        self._output += sum(filter(None, told["output"]))
        self._media_ns += sum(filter(None, told["media_ns"]))
        self._alone += told["output"].count(1)
        self._from_cache += sum(map(bool, told["cached"]))
        self._sources.update(told["source"])
        _count(self._finished, told["finish_reason"])
        _count(self._contradictions, filter(None, told["contradiction"]))
        _count(self._doubts, filter(None, told["doubt"]))
        prompts, longest = self._prompts, self._longest
        for index, count, output in zip(indices, told["input"], told["output"], strict=True):
            if count is not None:
                self._varied += prompts.setdefault(index, count) != count
            if output is not None and output > longest.get(index, 0):
                longest[index] = output
        if answers[0] is not None:
            self._count_of_server(indices, told, answers)

    def _count_of_server(
        self, indices: Sequence[int], told: Mapping[str, tuple[Any, ...]], answers: Sequence[Array]
    ) -> None:
        self._repeats.add(indices, answers, told["reply_id"])
        _count(self._signs, chain.from_iterable(told["signs"]))
        if not all(told["has_call"]):
            self._without_call.update(compress(indices, map(not_, told["has_call"])))
        shortest = self._shortest
        for index, output, end in zip(indices, told["output"], told["finish_reason"], strict=True):
            if output is not None and end not in _BY_LENGTH:
                shortest[index] = min(output, shortest.get(index, output))

    def _sum(self, name: str, told: Mapping[str, tuple[Any, ...]]) -> int:
        known = [count for count in told[name] if count is not None]
        self._known[name] += len(known)
        return sum(known)

    def summary(self) -> dict[str, Any]:
        """Returns `tokens` for the `ended` message. A sum is None if a reply lacks the count, or if no answer arrived."""
        self._count_held()
        answers = self._answers
        return {
            "answers": answers,
            "input": self._input if 0 < self._known["input"] == answers else None,
            "output": self._output if answers and "" not in self._sources else None,
            "cached": self._cached if 0 < self._known["cached"] == answers else None,
            "cached_answers": self._from_cache,
            "reasoning": self._reasoning if self._known["reasoning"] else None,
            "media_ns": self._media_ns,
            "one_token_answers": self._alone,
            "sources": dict(self._sources),
            "finish_reasons": dict(self._finished),
            "contradictions": dict(self._contradictions),
            "doubts": dict(self._doubts),
            "signs": dict(self._signs),
            **self._repeats.summary(),
            "varied_prompts": self._varied,
            "tails": self._tails.streams,
            "tails_at_once": self._tails.at_once,
            "streams": self._streams.summary(),
        }

    def compared(self, remote: Remote, dataset: Dataset) -> Mapping[str, int]:
        """Compares the server's counts with the sent prompts: token IDs are compared exactly, and other prompts by
        bounds.

        Loads samples after the run. If the dataset raises an error or takes longer than COMPARE_S, the comparison
        covers only the prompts loaded until then.
        """
        self._count_held()
        sent: dict[int, Sent] = {}
        if isinstance(remote, HasSent):
            with suppress(Exception):  # a plug-in may fail, or its files may be unreadable
                self._load_sent(remote, dataset, sent)
        prompts = [(told, sent[i]) for i, told in self._prompts.items() if i in sent]
        exact = [(told, s.prompt_tokens) for told, s in prompts if s.prompt_tokens]
        longest = [(told, sent[i].max_tokens) for i, told in self._longest.items() if i in sent]
        return {
            "compared_prompts": len(exact),
            "changed_prompts": sum(told != ids for told, ids in exact),
            "long_prompts": sum(told > s.most_prompt_tokens for told, s in prompts),
            "long_answers": sum(most is not None and told > most for told, most in longest),
            "short_prompts": sum(told < s.least_prompt_tokens for told, s in prompts),
            "short_answers": sum(
                told < sent[i].min_tokens for i, told in self._shortest.items() if i in sent
            ),
            "bounded_prompts": sum(s.min_tokens > 0 for s in sent.values()),
            "uncalled_prompts": sum(sent[i].wants_call for i in self._without_call if i in sent),
            "calling_prompts": sum(s.wants_call for s in sent.values()),
            **self._repeats.alike({i: s.prompt_hash for i, s in sent.items()}),
        }

    def _load_sent(self, remote: HasSent, dataset: Dataset, sent: dict[int, Sent]) -> None:
        """Adds the sent prompt of each sample to `sent` until the time limit."""
        indices = [*{**self._prompts, **self._longest, **dict.fromkeys(self._without_call)}]
        end_s = monotonic() + COMPARE_S
        for begin in range(0, len(indices), _LOADED):
            if monotonic() >= end_s:
                return
            part = indices[begin : begin + _LOADED]
            dataset.load(part)
            sent.update((index, remote.sent(dataset.batch([index]))) for index in part)
            dataset.unload(part)
