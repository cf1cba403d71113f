"""Converts between texts and tokens, using the pieces that a manifest lists."""

import re
from collections.abc import Iterable, Sequence

from harness.models.generation.unfit_prompt import UnfitPrompt


class Vocabulary:
    """pieces: the text of each token, or "" for a token without text. unknown: the token for all other characters."""

    def __init__(self, pieces: Sequence[str], unknown: int | None) -> None:
        self._pieces = pieces
        self._unknown = unknown
        self._ids = {piece: token for token, piece in enumerate(pieces) if piece}
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._piece = re.compile("|".join([*map(re.escape, longest_first), "(?s:.)"]))

    def encode(self, text: str) -> list[int]:
        """Returns tokens, taking the longest piece at each position from left to right. Raises UnfitPrompt if
        a character has no token.
        """
        tokens = [self._ids.get(piece, self._unknown) for piece in self._piece.findall(text)]
        known = [token for token in tokens if token is not None]
        if len(known) < len(tokens):
            strange = next(piece for piece in self._piece.findall(text) if piece not in self._ids)
            raise UnfitPrompt(
                f"the model has no token for {strange!r}",
                "set `generation.unknown` in the manifest, or use other prompts",
            )
        return known

    def decode(self, tokens: Iterable[int]) -> str:
        return "".join(self._pieces[token] for token in tokens)
