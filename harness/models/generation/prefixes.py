"""Caches the keys and values of prompt prefixes, so that each prefix is computed only once.

A prefix is cut into blocks of equal length, as in vLLM. A block's key includes all earlier blocks, so the same tokens
at another position form another block. The last token of a prompt is always computed, even if its block is cached.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from harness.types import Array

_Key = tuple[int, tuple[int, ...]]
"""Number of the previous block (0 before the first block), and the tokens of this block."""


class Block(NamedTuple):
    number: int
    parts: Sequence[Array]
    """(heads, block, size): the keys or values of each layer."""


class PrefixCache:
    """Blocks of keys and values. When the cache is full, the least recently used blocks are dropped. Not
    thread-safe.
    """

    def __init__(self, block_tokens: int, most_blocks: int) -> None:
        self.block_tokens = block_tokens
        self._most = most_blocks
        self._blocks: OrderedDict[_Key, Block] = OrderedDict()
        self._last = 0
        self.queried_tokens = 0
        """Total number of tokens in the prompts that were looked up."""
        self.hit_tokens = 0
        """Number of looked-up tokens that were in the cache."""

    def __len__(self) -> int:
        return len(self._blocks)

    def clear(self) -> None:
        self._blocks.clear()

    def known(self, prompt: Sequence[int]) -> list[Block]:
        """Returns the cached blocks at the beginning of a prompt. The look-up does not count as a use."""
        return self._chain(prompt, (len(prompt) - 1) // self.block_tokens)[1]

    def take(self, prompt: Sequence[int]) -> list[Block]:
        """Returns the cached blocks at the beginning of a prompt, and counts the look-up as a use."""
        keys, blocks = self._chain(prompt, (len(prompt) - 1) // self.block_tokens)
        self._use(keys)
        self.queried_tokens += len(prompt)
        self.hit_tokens += len(blocks) * self.block_tokens
        return blocks

    def put(self, tokens: Sequence[int], copied: Callable[[int, int], Sequence[Array]]) -> None:
        """Stores the complete blocks of a sequence. copied: a function that returns a copy of the keys and values of a
        token range.
        """
        whole = len(tokens) // self.block_tokens
        keys, blocks = self._chain(tokens, whole)
        for place in range(len(blocks), whole):
            begin, end = place * self.block_tokens, (place + 1) * self.block_tokens
            key = (blocks[-1].number if blocks else 0, tuple(tokens[begin:end]))
            self._last += 1
            self._blocks[key] = block = Block(self._last, copied(begin, end))
            keys.append(key)
            blocks.append(block)
        self._use(keys)
        while len(self._blocks) > self._most:
            self._blocks.popitem(last=False)

    def _chain(self, tokens: Sequence[int], most: int) -> tuple[list[_Key], list[Block]]:
        keys: list[_Key] = []
        blocks: list[Block] = []
        size = self.block_tokens
        for begin in range(0, most * size, size):
            key = (blocks[-1].number if blocks else 0, tuple(tokens[begin : begin + size]))
            block = self._blocks.get(key)
            if block is None:
                break
            keys.append(key)
            blocks.append(block)
        return keys, blocks

    def _use(self, keys: Sequence[_Key]) -> None:
        """Marks these blocks as the most recently used, in reverse order, so that later blocks are dropped first."""
        for key in reversed(keys):
            self._blocks.move_to_end(key)


class StepPrefixes:
    """The prefixes that one step computes for its prompts. A prompt with the same prefix can wait until the prefix is
    computed.
    """

    def __init__(self, cache: PrefixCache | None) -> None:
        self._cache = cache
        self._computed: set[tuple[int, ...]] = set()

    def take(self, prompt: Sequence[int]) -> bool:
        """Returns whether the prompt may join this step. Returns False if the prompt should wait, because the cache
        will contain more of the prompt at the next step.
        """
        if self._cache is None:
            return True
        size = self._cache.block_tokens
        known = len(self._cache.known(prompt))
        if (known + 1) * size < len(prompt) and tuple(
            prompt[: (known + 1) * size]
        ) in self._computed:
            return False
        whole = len(prompt) // size
        self._computed.update(tuple(prompt[: n * size]) for n in range(known + 1, whole + 1))
        return True
