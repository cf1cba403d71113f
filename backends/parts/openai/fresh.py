"""Inserts a prefix before every prompt of a run, so that a server's cache does not contain prompts of an earlier
run.
"""

import json
import random
import secrets

_TOKENS = 8
_PROMPT, _MESSAGES = b'"prompt":', b'"messages":['
_TEXTS = (b'"content":"', b'"text":"')


class Fresh:
    """One prefix for all prompts of a run. Prompts that share a prefix in the dataset therefore still share a prefix."""

    def __init__(self, seed: str) -> None:
        """seed: `on` draws a random seed."""
        self.seed = secrets.token_hex(8) if seed == "on" else seed
        self._ids = b""

    def put(self, sample: bytes) -> bytes:
        """Returns the prompt with the prefix. Raises a ValueError if the prompt has no text. sample: the prompt as
        datasets write it.
        """
        at = sample.rfind(_PROMPT)
        if at < 0:
            begin = sample.index(_MESSAGES)
            places = [
                sample.find(key, begin) + len(key) for key in _TEXTS if sample.find(key, begin) >= 0
            ]
            if not places:
                raise ValueError(
                    "fresh: a prompt has no text to which a new beginning could be added"
                )
            return self._before(sample, min(places))
        at += len(_PROMPT)
        if sample[at : at + 1] == b"[":
            return sample[: at + 1] + self._beginning(sample[at:-1]) + b"," + sample[at + 1 :]
        return self._before(sample, at + 1)

    def _before(self, sample: bytes, at: int) -> bytes:
        return b"%b[%b] %b" % (sample[:at], json.dumps(self.seed)[1:-1].encode(), sample[at:])

    def _beginning(self, ids: bytes) -> bytes:
        """Returns a prefix of token ids drawn from the first prompt, because the model is sure to know these ids."""
        if not self._ids:
            drawn = random.Random(self.seed).choices(json.loads(ids), k=_TOKENS)
            self._ids = ",".join(map(str, drawn)).encode()
        return self._ids
