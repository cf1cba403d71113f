"""Makes prompts with the lengths and shared blocks recorded in a trace of Mooncake, BurstGPT or Azure."""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from harness.core.formats.traces import read_trace
from harness.datasets.parts import sources
from harness.datasets.parts.prompts.options import Options
from harness.datasets.parts.prompts.tokens import TokenPrompts
from harness.types import Array, Dataset, DatasetSetup

BLOCK_TOKENS = 512
"""Number of tokens per block in Mooncake's traces."""

_MOST_BLOCK_TOKENS = 1 << 20
_BLOCKS, _OWN = 1, 2
"""Keys of two independent streams of random numbers."""


class TraceDataset(TokenPrompts):
    """Prompts that resemble the prompts of a trace. --data-dir is the trace. Sample i is request i in order of time, as
    with `--arrivals`.

    The token IDs are random, because a trace contains no text. Blocks that are equal in the trace get equal token IDs.

    --dataset-option:
    tokens  range of the token ids, excluding its end
    block   tokens of a block of hash_ids (512, as in Mooncake's own traces)
    """

    options = ("tokens", "block")

    def __init__(self, setup: DatasetSetup) -> None:
        self._path = sources.given_path(setup, "trace", "a trace of requests (docs/datasets.md)")
        options = Options(setup.options)
        self._tokens, self._seed = options.token_range(), setup.seed
        self._block = options.whole("block", BLOCK_TOKENS, _MOST_BLOCK_TOKENS)
        self._trace = read_trace(self._path)
        self._setup = setup
        super().__init__(
            setup, "trace", self._trace.input_tokens, self._trace.output_tokens, self._parts
        )

    def _parts(self, index: int) -> Sequence[Array]:
        """Returns the blocks and the remaining tokens. The block IDs seed the blocks, and the sample's number seeds the
        remaining tokens.
        """
        left = int(self._trace.input_tokens[index])
        parts = []
        for block in self._trace.blocks[index] if self._trace.blocks else ():
            if left > 0:
                parts.append(self._drawn(_BLOCKS, block, self._block)[:left])
                left -= self._block
        if left > 0:
            parts.append(self._drawn(_OWN, index, left))
        return parts

    def _drawn(self, stream: int, number: int, count: int) -> Array:
        random = np.random.default_rng([self._seed, stream, number])
        return random.integers(int(self._tokens.low), int(self._tokens.high), count)

    def describe(self) -> Mapping[str, object]:
        trace = self._trace
        hours = (int(trace.times_ns[-1]) - int(trace.times_ns[0])) / 3.6e12
        return {
            **self.about(),
            "source": str(self._path),
            "format": trace.format,
            "hours": round(hours, 4),
            "tokens": str(self._tokens),
            **({"left_out": trace.left_out} if trace.left_out else {}),
            **({"block": self._block, "prefix_share": self._shared()} if trace.blocks else {}),
            "digest": self._digest(),
        }

    def _digest(self) -> str:
        files = sources.digest({self._path.name: self._path}, self._setup)
        drawn = repr((self._seed, *self._tokens, self._block))
        return hashlib.sha256(f"{files} {drawn}".encode()).hexdigest()

    def _shared(self) -> float:
        """Returns the share of all tokens that belong to blocks of an earlier prompt."""
        seen: set[int] = set()
        shared = 0
        for blocks, size in zip(self._trace.blocks, self._trace.input_tokens.tolist(), strict=True):
            for place, block in enumerate(blocks):
                if block in seen:
                    shared += max(0, min(self._block, size - place * self._block))
            seen.update(blocks)
        return round(shared / int(self._trace.input_tokens.sum()), 4)


_: type[Dataset] = TraceDataset
