"""Decodes the class scores of a sequence greedily by connectionist temporal classification (CTC).

Source: best-path decoding in Graves et al., "Connectionist Temporal Classification" (2006).
"""

from harness.errors import ConfigError
from harness.types import Array


def best_path(scores: Array, *, blank: int) -> list[Array]:
    """Returns n arrays (k,) int64 with the best class of each position, without blanks and repeats.

    scores: (n, positions, classes). blank: the class that stands for no symbol and separates two equal symbols, or -1
    for the last class.
    """
    classes = scores.shape[2]
    if blank >= classes:
        raise ConfigError(
            f"ctc.blank is {blank}, but the output has only the classes 0 to {classes - 1}"
        )
    path = scores.argmax(axis=2)
    kept = path != (blank if blank >= 0 else classes - 1)
    kept[:, 1:] &= path[:, 1:] != path[:, :-1]
    return [row[is_symbol] for row, is_symbol in zip(path, kept, strict=True)]
