"""Reads the options of datasets that make prompts, such as ranges of token IDs, length distributions and shares."""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from harness.core.config.parse import LONGEST_SEQUENCE, parse_lengths
from harness.datasets.parts.lengths import draw
from harness.errors import ConfigError
from harness.types import Array, Interval, Lognormal

LARGEST_TOKEN = 2**31
TOKENS = "1000:30000"
"""Default range of token IDs. Most vocabularies contain these IDs, and use them for ordinary tokens."""

Lengths = int | Interval | Lognormal


class Options:
    """The values of --dataset-option. Each method raises a ConfigError with the option's name if a value is wrong."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given

    def text(self, name: str, default: str) -> str:
        return self._given.get(name, default)

    def whole(self, name: str, default: int, most: int) -> int:
        text = self.text(name, str(default))
        if not re.fullmatch(r"[0-9]{1,12}", text) or not 1 <= int(text) <= most:
            raise self._problem(name, text, f"a whole number from 1 to {most:,}")
        return int(text)

    def share(self, name: str) -> float:
        """Returns a share from 0 to 1; 0 if the option is missing."""
        text = self.text(name, "0")
        if not re.fullmatch(r"[0-9]*\.?[0-9]+", text) or float(text) > 1:
            raise self._problem(name, text, "a share from 0 to 1, e.g. 0.5")
        return float(text)

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """Returns the chosen value; the first of `choices` if the option is missing."""
        text = self.text(name, choices[0])
        if text not in choices:
            raise self._problem(name, text, f"one of {', '.join(choices)}")
        return text

    def token_range(self) -> Interval:
        text = self.text("tokens", TOKENS)
        found = _interval(text)
        if found is None or found.low < 0 or found.high > LARGEST_TOKEN:
            raise self._problem(
                "tokens", text, f"a range of token ids, excluding its end, e.g. {TOKENS}"
            )
        return found

    def lengths(self, name: str, default: int) -> Lengths:
        """Returns lengths, which are a number, LOW:HIGH (uniform, excluding HIGH), or a lognormal distribution."""
        text = self.text(name, str(default))
        try:
            if text.startswith("lognormal:"):
                found: object = parse_lengths(f"{name}={text}")[1]
            elif re.fullmatch(r"[0-9]{1,9}", text):
                found = int(text)
            else:
                found = _interval(text)
        except ValueError as e:
            raise ConfigError(f"--dataset-option {e}") from None
        low, high = _bounds(found)
        if not 1 <= low <= high <= LONGEST_SEQUENCE:
            raise self._problem(
                name,
                text,
                "a number of tokens, a range LOW:HIGH or lognormal:median=512,sigma=0.6,max=4096, "
                f"from 1 to {LONGEST_SEQUENCE:,}",
            )
        assert isinstance(found, int | Interval | Lognormal)
        return found

    def _problem(self, name: str, text: str, expected: str) -> ConfigError:
        return ConfigError(f"--dataset-option {name}={text[:60]} is not {expected}")


def drawn(lengths: Lengths, count: int, seed: int, name: str) -> Array:
    """Returns (count,) int64 lengths. The lengths depend only on the seed and the name of the option."""
    if isinstance(lengths, Lognormal):
        return draw(lengths, count, seed, name)
    if isinstance(lengths, Interval):
        random = np.random.default_rng([seed, *name.encode()])
        return random.integers(int(lengths.low), int(lengths.high), count)
    return np.full(count, lengths, np.int64)


def _interval(text: str) -> Interval | None:
    match = re.fullmatch(r"([0-9]{1,10}):([0-9]{1,10})", text)
    if match is None or int(match[1]) >= int(match[2]):
        return None
    return Interval(int(match[1]), int(match[2]))


def _bounds(lengths: object) -> tuple[float, float]:
    match lengths:
        case int():
            return lengths, lengths
        case Interval():
            return lengths.low, lengths.high - 1
        case Lognormal():
            return 1, lengths.most
    return 0, 0
