"""Makes prompts of random token IDs with given lengths. Several prompts may begin with the same prefix, and an option
sets the prefix's share of the tokens. The prompts measure only speed.
"""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from harness.datasets.parts.prompts.options import Options, drawn
from harness.datasets.parts.prompts.tokens import TokenPrompts
from harness.datasets.parts.sources import refuse_data_dir
from harness.types import Array, Dataset, DatasetSetup

COUNT = 1024
MOST = 1_000_000
INPUT_TOKENS = 512
OUTPUT_TOKENS = 128

_PREFIXES, _OWN = 1, 2
"""Keys of two independent streams of random numbers."""


class SyntheticPromptsDataset(TokenPrompts):
    """Prompts of random token IDs.

    --dataset-option:
    input, output  tokens of a prompt and of its answer: a number, LOW:HIGH, or a lognormal distribution
    prefix         share of each prompt's tokens that form a prefix common with other prompts (0)
    prefixes       number of different common prefixes (1); each prompt has one of them, drawn from the seed
    tokens         range of the token ids, excluding its end
    count          number of prompts
    draw           number of a draw (1): another draw has other tokens, but the same lengths
    """

    options = ("input", "output", "prefix", "prefixes", "tokens", "count", "draw")

    def __init__(self, setup: DatasetSetup) -> None:
        refuse_data_dir(setup, "synthetic-prompts")
        options = Options(setup.options)
        count = options.whole("count", COUNT, MOST)
        wanted = {
            "input": options.lengths("input", INPUT_TOKENS),
            "output": options.lengths("output", OUTPUT_TOKENS),
        }
        inputs, outputs = (drawn(w, count, setup.seed, name) for name, w in wanted.items())
        draw = options.whole("draw", 1, MOST)
        self._tokens = options.token_range()
        self._seed = (setup.seed,) if draw == 1 else (setup.seed, draw)
        self._share, prefixes = options.share("prefix"), options.whole("prefixes", 1, MOST)
        random = np.random.default_rng([setup.seed, *b"prefixes"])
        self._prefix_of = random.integers(0, prefixes, count)
        self._prefix_tokens = np.rint(self._share * inputs).astype(np.int64)
        self._longest = int(self._prefix_tokens.max())
        self._prefixes: dict[int, Array] = {}
        self._about = {
            "source": f"seeded token ids, seed {setup.seed}"
            + (f", draw {draw}" if draw > 1 else ""),
            "from": {name: str(w) for name, w in wanted.items()},
            "tokens": str(self._tokens),
            **({"prefix_share": self._share, "prefixes": prefixes} if self._share else {}),
        }
        super().__init__(setup, "synthetic-prompts", inputs, outputs, self._parts)

    def _parts(self, index: int) -> Sequence[Array]:
        common = int(self._prefix_tokens[index])
        own = self._drawn(_OWN, index, int(self._inputs[index]) - common)
        if not common:
            return (own,)
        which = int(self._prefix_of[index])
        if which not in self._prefixes:
            self._prefixes[which] = self._drawn(_PREFIXES, which, self._longest)
        return self._prefixes[which][:common], own

    def _drawn(self, stream: int, number: int, count: int) -> Array:
        random = np.random.default_rng([*self._seed, stream, number])
        return random.integers(int(self._tokens.low), int(self._tokens.high), count)

    def describe(self) -> Mapping[str, object]:
        content = (
            *self._seed,
            self._inputs.tolist(),
            self._outputs.tolist(),
            tuple(self._tokens),
            self._prefix_tokens.tolist(),
            self._prefix_of.tolist(),
        )
        digest = hashlib.sha256(repr(content).encode()).hexdigest()
        return {**self.about(), **self._about, "digest": digest}


_: type[Dataset] = SyntheticPromptsDataset
