"""Generates the answers to several prompts at the same time. New prompts join and finished prompts leave at each step.

The model has the inputs and outputs of Optimum's ONNX exports. A step takes the new tokens of each sequence, and the
keys and values of the earlier tokens. The step returns logits, and the keys and values of all tokens. Generation is
greedy.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from harness.errors import ConfigError
from harness.models.generation.prefixes import Block, PrefixCache, StepPrefixes
from harness.models.generation.unfit_prompt import UnfitPrompt
from harness.models.manifest.schema import Generation
from harness.types import Array, Batch, Outputs, TensorSpec

TOKENS, MASK, POSITIONS, LOGITS = "input_ids", "attention_mask", "position_ids", "logits"
_PAST = re.compile(r"past_key_values(\..+)")
_FLOATS = ("float32", "float16")


class Answering:
    """One prompt and its answer so far."""

    __slots__ = (
        *("cached", "finish_reason", "ignores_end", "is_wanted", "least", "most"),
        *("prompt", "stops", "tokens"),
    )

    def __init__(
        self,
        prompt: Sequence[int],
        most: int,
        *,
        ignores_end: bool = False,
        least: int = 0,
        stops: frozenset[int] = frozenset(),
    ) -> None:
        """most: maximum number of tokens in the answer. least: minimum number of tokens before the answer may end.
        stops: additional tokens that end the answer.
        """
        self.prompt = prompt
        self.most = most
        self.ignores_end = ignores_end
        self.least = least
        self.stops = stops
        self.tokens: list[int] = []
        """The tokens of the answer, including the token that ends it."""
        self.cached = 0
        """Number of the prompt's tokens that were in the prefix cache when the prompt joined the batch."""
        self.finish_reason = ""
        """`stop` or `length` once the answer is complete."""
        self.is_wanted = True
        """False if no client waits for the answer any longer. The prompt then leaves the batch at the next step."""


class _Cache(NamedTuple):
    """Keys or values of one layer."""

    past: str
    """Name of the model input."""
    present: str
    """Name of the model output, which contains the input's content followed by the keys or values of the new tokens.
    """
    rows: Array
    """(sequences, heads, context, size). Each row holds the tokens of one sequence."""


class Generator:
    """Applies continuous batching to one model. Only one thread may use the generator.

    In each cache, the first rows belong to the active sequences, in the sequences' order. When a row becomes free, the
    last row moves into the free row, so that a step reads adjacent rows.
    """

    def __init__(
        self,
        infer: Callable[[Batch], Outputs],
        inputs: Sequence[TensorSpec],
        about: Generation,
        most_sequences: int,
    ) -> None:
        """infer: the backend's method `infer`. inputs: the inputs that the model file declares. most_sequences: maximum
        number of active sequences.
        """
        self._infer = infer
        self._about = about
        self._end = frozenset(about.end)
        self._most = most_sequences
        names = [spec.name for spec in inputs]
        self._has_mask, self._has_positions = MASK in names, POSITIONS in names
        self._caches = [*_caches(inputs, about.context, most_sequences)]
        self._working: list[Answering] = []
        # number of tokens in each row of the caches
        self._lengths = np.zeros(most_sequences, np.int64)
        self._waiting: deque[Answering] = deque()
        self.prefixes: PrefixCache | None = None
        """The prefix cache, or None if every prompt is computed in full."""

    def keep_prefixes(self, cache: PrefixCache) -> None:
        """Turns on the prefix cache. Raises ConfigError if the model cannot continue prefixes of different lengths in
        one batch.
        """
        if not (self._has_mask and self._has_positions):
            raise ConfigError(
                f"a prefix cache needs a model with the inputs {MASK} and {POSITIONS}: drop --prefix-cache"
            )
        self.prefixes = cache

    @property
    def is_idle(self) -> bool:
        return not (self._working or self._waiting)

    def room(self, prompt: Sequence[int]) -> int:
        """Returns the maximum number of tokens that the context leaves for an answer to the prompt. Raises ValueError
        if the context is too short for an answer.
        """
        return room_of(self._about, prompt)

    def add(self, one: Answering) -> None:
        """Queues the prompt, which joins the batch at the next step that has room. Raises the same ValueError as
        `room`.
        """
        one.most = min(one.most, self.room(one.prompt))
        self._waiting.append(one)

    def embed(self, prompts: Sequence[Sequence[int]]) -> Array:
        """Returns the logits after each prompt's last token as float32 vectors of length 1: (n, vocabulary). Does not
        change the active sequences. Raises the same ValueError as `room`.
        """
        for prompt in prompts:
            self.room(prompt)
        parts = [
            self._embed(prompts[begin : begin + self._most])
            for begin in range(0, len(prompts), self._most)
        ]
        vectors = np.concatenate(parts).astype(np.float32)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        found: Array = vectors / np.maximum(norms, np.finfo(np.float32).tiny)
        return found

    def _embed(self, prompts: Sequence[Sequence[int]]) -> Array:
        lengths = np.array([len(prompt) for prompt in prompts])
        outputs = self._read_prompts(prompts, lengths)
        logits: Array = outputs[LOGITS][np.arange(len(prompts)), lengths - 1]
        return logits

    def drop_all(self) -> None:
        """Removes every sequence, for example after a step that raised an error."""
        self._working.clear()
        self._waiting.clear()

    def step(self) -> Sequence[Answering]:
        """Adds a token to each active sequence, starts waiting sequences, and returns all sequences that got a token."""
        self._remove(lambda one: not one.is_wanted)
        if self._working:
            self._decode()
        joined = self._join()
        if joined:
            self._begin(joined)
        answered = [*self._working]
        if self.prefixes is not None:
            for row, one in enumerate(answered):
                # The last token is left out, because the model never processed the last token of a finished answer.
                if one.finish_reason:
                    self._keep(self.prefixes, row, [*one.prompt, *one.tokens[:-1]])
        self._remove(lambda one: bool(one.finish_reason))
        return answered

    def _join(self) -> list[Answering]:
        joined: list[Answering] = []
        computing = StepPrefixes(self.prefixes)
        while self._waiting and len(self._working) + len(joined) < self._most:
            one = self._waiting[0]
            if one.is_wanted and not computing.take(one.prompt):
                break
            self._waiting.popleft()
            if one.is_wanted:
                joined.append(one)
        return joined

    def _begin(self, joined: Sequence[Answering]) -> None:
        """Processes the prompts, padded at the end to the longest prompt, and generates the first token of each answer.

        If the cache contains a prefix of the prompt, computes only the tokens after the prefix.
        """
        begin = len(self._working)
        self._restore(joined, begin)
        known = np.array([one.cached for one in joined])
        sizes = np.array([len(one.prompt) for one in joined]) - known
        count, width, longest = len(joined), int(sizes.max()), int(known.max())
        tokens, places = np.zeros((count, width), np.int64), np.arange(width)
        for line, one in zip(tokens, joined, strict=True):
            line[: len(one.prompt) - one.cached] = one.prompt[one.cached :]
        is_new = places < sizes[:, np.newaxis]
        is_token = np.hstack([np.arange(longest) < known[:, np.newaxis], is_new])
        rows = slice(begin, begin + count)
        past = {cache.past: cache.rows[rows, :, :longest] for cache in self._caches}
        positions = np.where(is_new, known[:, np.newaxis] + places, 0)
        outputs = self._run(tokens, is_token, positions, past)
        for cache in self._caches:
            present = outputs[cache.present][:, :, longest:]
            if not longest:
                cache.rows[rows, :, :width] = present
                continue
            for row, (start, size) in enumerate(zip(known, sizes, strict=True)):
                cache.rows[begin + row, :, start : start + size] = present[row, :, :size]
        self._lengths[rows] = known + sizes
        if self.prefixes is not None:
            for row, one in enumerate(joined, begin):
                self._keep(self.prefixes, row, one.prompt)
        self._working += joined
        self._take(joined, outputs[LOGITS][np.arange(count), sizes - 1])

    def _restore(self, joined: Sequence[Answering], begin: int) -> None:
        """Copies cached prefixes into the rows of the new prompts. begin: the first of these rows."""
        if self.prefixes is None:
            return
        for row, one in enumerate(joined, begin):
            blocks = self.prefixes.take(one.prompt)
            one.cached = len(blocks) * self.prefixes.block_tokens
            self._fill(row, blocks, self.prefixes.block_tokens)

    def _fill(self, row: int, blocks: Sequence[Block], size: int) -> None:
        for place, block in enumerate(blocks):
            for cache, part in zip(self._caches, block.parts, strict=True):
                cache.rows[row, :, place * size : (place + 1) * size] = part

    def _keep(self, prefixes: PrefixCache, row: int, tokens: Sequence[int]) -> None:
        prefixes.put(
            tokens,
            lambda begin, end: [cache.rows[row, :, begin:end].copy() for cache in self._caches],
        )

    def _read_prompts(
        self, prompts: Sequence[Sequence[int]], lengths: Array
    ) -> Mapping[str, Array]:
        """Returns the model's outputs for complete prompts, padded at the end."""
        count, width = len(prompts), int(lengths.max())
        tokens, places = np.zeros((count, width), np.int64), np.arange(width)
        for row, prompt in zip(tokens, prompts, strict=True):
            row[: len(prompt)] = prompt
        is_token = places < lengths[:, np.newaxis]
        past = {cache.past: cache.rows[:count, :, :0] for cache in self._caches}
        return self._run(tokens, is_token, np.where(is_token, places, 0), past)

    def _decode(self) -> None:
        """Adds one token to each active sequence."""
        count = len(self._working)
        lengths = self._lengths[:count]
        longest = int(lengths.max())
        tokens = np.array([[one.tokens[-1]] for one in self._working])
        is_token = np.ones((count, longest + 1), np.bool_)
        is_token[:, :-1] = np.arange(longest) < lengths[:, np.newaxis]
        past = {cache.past: cache.rows[:count, :, :longest] for cache in self._caches}
        outputs = self._run(tokens, is_token, lengths[:, np.newaxis], past)
        rows = np.arange(count)
        for cache in self._caches:
            cache.rows[rows, :, lengths] = outputs[cache.present][:, :, -1]
        self._lengths[:count] += 1
        self._take(self._working, outputs[LOGITS][:, -1])

    def _run(
        self, tokens: Array, is_token: Array, positions: Array, past: Mapping[str, Array]
    ) -> Mapping[str, Array]:
        given = {
            TOKENS: tokens,
            **{name: np.ascontiguousarray(rows) for name, rows in past.items()},
        }
        if self._has_mask:
            given[MASK] = is_token.astype(np.int64)
        if self._has_positions:
            given[POSITIONS] = np.ascontiguousarray(positions)
        outputs = self._infer(Batch(len(tokens), given))
        # a model with a key-value cache returns the logits and the cache
        assert isinstance(outputs, Mapping)
        return outputs

    def _take(self, sequences: Sequence[Answering], logits: Array) -> None:
        """logits: (n, vocabulary)."""
        if any(len(one.tokens) < one.least for one in sequences):
            logits = self._without_ends(sequences, logits)
        for one, token in zip(sequences, logits.argmax(-1).tolist(), strict=True):
            one.tokens.append(token)
            if token in one.stops or (token in self._end and not one.ignores_end):
                one.finish_reason = "stop"
            elif len(one.tokens) >= one.most:
                one.finish_reason = "length"

    def _without_ends(self, sequences: Sequence[Answering], logits: Array) -> Array:
        """Returns a copy of the logits. For answers that are still too short, the end tokens' logits are set to -inf."""
        logits = logits.copy()
        for one, row in zip(sequences, logits, strict=True):
            if len(one.tokens) < one.least:
                ends = self._end | one.stops
                row[[token for token in ends if 0 <= token < len(row)]] = -np.inf
        return logits

    def _remove(self, leaves: Callable[[Answering], bool]) -> None:
        working, lengths = self._working, self._lengths
        for row in reversed(range(len(working))):
            if not leaves(working[row]):
                continue
            last, one = len(working) - 1, working.pop()
            if row < last:
                working[row], lengths[row] = one, lengths[last]
                for cache in self._caches:
                    cache.rows[row] = cache.rows[last]


def room_of(about: Generation, prompt: Sequence[int]) -> int:
    """Returns the maximum number of tokens that the context leaves for an answer to the prompt. Raises UnfitPrompt if
    the context is too short for an answer.
    """
    room = about.context - len(prompt)
    if not prompt or room < 1:
        shorter = f"use shorter prompts (--dataset-option input={about.context // 2} of synthetic-prompts), or raise"
        raise UnfitPrompt(
            f"the prompt has {len(prompt):,} tokens, but the model takes 1 to {about.context - 1:,}",
            f"{shorter} `generation.context` in the manifest" if prompt else "remove this prompt",
        )
    if max(prompt) >= about.vocabulary or min(prompt) < 0:
        raise UnfitPrompt(
            f"the prompt has a token outside the vocabulary of {about.vocabulary:,} tokens",
            f"use other prompts (--dataset-option tokens=0:{about.vocabulary} of synthetic-prompts), or correct "
            "`generation.vocabulary` in the manifest",
        )
    return room


def _caches(inputs: Sequence[TensorSpec], context: int, sequences: int) -> Iterator[_Cache]:
    """Raises ConfigError if the file's inputs do not match the inputs of an export with a cache."""
    past = {spec.name: spec for spec in inputs if _PAST.fullmatch(spec.name)}
    names = {spec.name for spec in inputs}
    if TOKENS not in names or not past or names - past.keys() - {TOKENS, MASK, POSITIONS}:
        raise ConfigError(
            f"`generation` needs a model with the inputs {TOKENS} and past_key_values.*, and optionally {MASK} and "
            f"{POSITIONS}; the file has {', '.join(sorted(names))}"
        )
    for name, spec in past.items():
        heads, size = spec.shape[1], spec.shape[-1]
        if len(spec.shape) != 4 or not isinstance(heads, int) or not isinstance(size, int):
            raise ConfigError(
                f"input {name!r} must have the shape [batch, HEADS, past, SIZE], with numbers for HEADS and SIZE"
            )
        if spec.dtype not in _FLOATS:
            raise ConfigError(
                f"input {name!r} is {spec.dtype}, but a cache must be {' or '.join(_FLOATS)}"
            )
        rows = np.zeros((sequences, heads, context, size), spec.dtype)
        yield _Cache(name, _PAST.sub(r"present\1", name), rows)
