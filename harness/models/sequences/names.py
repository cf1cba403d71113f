"""Recognises by name which inputs and outputs hold the same state, and guesses the values of constants."""

import re
from collections.abc import Iterable, Mapping

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_OF_A_STEP = frozenset(
    [
        "in",
        "input",
        "out",
        "output",
        "n",
        "new",
        "next",
        "nxt",
        "init",
        "initial",
        "prev",
        "previous",
        "past",
        "present",
        "last",
        "final",
        "updated",
        "y",
        "t",
        "t0",
        "t1",
    ]
)
"""Words that distinguish the state before a frame from the state after it."""

_STATES = frozenset(
    [
        "h",
        "c",
        "hx",
        "cx",
        "hidden",
        "cell",
        "state",
        "states",
        "memory",
        "mem",
        "cache",
        "carry",
        "recurrent",
    ]
)
"""Words that occur in most names of states."""

_BATCH = ("b", "bs", "n")
"""Short names of the batch size."""

_AFTER = "_1"
"""End of a `state_key` with the additional number 1."""

_RATE_HZ = 16_000
_RATES = frozenset(["sr", "rate", "samplerate"])


def state_key(name: str) -> str:
    """Returns the same text for both names of a state: `h0` and `hn`, `state` and `stateN`, `in_cache` and `out_cache`."""
    words = _words(name)
    kept = [word for word in words if word not in _OF_A_STEP and not word.isdigit()] or words
    *front, last = kept
    if len(last) == 2 and last[1] == "n" and last[0] in "hcs":  # hn, cn, sn
        last = last[0]
    numbers = [word for word in words if word.isdigit() and word != "0"]
    return "_".join([*front, last, *numbers])


def is_like_a_state(name: str) -> bool:
    """Returns whether the name contains a word that is common in names of states."""
    return any(word in _STATES for word in state_key(name).split("_"))


def is_batch(size: str) -> bool:
    """Returns whether the name of an open size may denote the batch. `init` then runs the model to find out. A run, which
    does not try, refuses a file only for the word `batch` (`fixed_batch` in harness/types.py).
    """
    return "batch" in size.lower() or size.lower() in _BATCH


def likely_value(name: str, dtype: str) -> bool | int | float:
    """Returns a number to try as the value of an input without a batch."""
    if dtype == "bool":
        return False
    if _RATES & {*_words(name), "".join(_words(name))}:
        return _RATE_HZ
    return 1.0 if dtype.startswith("float") else 1


def paired(inputs: Mapping[str, object], outputs: Mapping[str, object]) -> dict[str, str]:
    """Maps input names to output names that have the same `state_key`, if the key is unique.

    An output whose key ends in an extra 1 is also the state after the frame: output `h1` belongs to input `h0`. In an
    input name, the number is the layer.
    """
    before, after = (
        _by_key(map(state_key, inputs), inputs),
        _by_key(map(state_key, outputs), outputs),
    )
    if not any(key.endswith(_AFTER) for key in before):
        stepped = (state_key(name).removesuffix(_AFTER) for name in outputs)
        after = {**_by_key(stepped, outputs), **after}
    return {
        names[0]: after[key][0]
        for key, names in before.items()
        if len(names) == 1 and len(after.get(key, ())) == 1
    }


def _by_key(keys: Iterable[str], names: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key, name in zip(keys, names, strict=True):
        found.setdefault(key, []).append(name)
    return found


def _words(name: str) -> list[str]:
    plain = name.partition(":")[0].removeprefix("serving_default_")
    return [word.lower() for word in _WORD.findall(plain)] or [plain]
