"""Decodes answers to texts, for metrics that compare texts."""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from harness.types import Answer


def texts(
    answers: Iterable[Answer], labels: Mapping[int, object], dtype: str
) -> Iterator[tuple[str, str]]:
    """Yields a pair (text, correct text) for each answer.

    If a label is the correct text, the answer must be UTF-8 as uint8, which may be padded with zeros. If a label is a
    mapping with `text` and `symbols`, the answer must be a list of positions in `symbols`.
    """
    for index, payload in answers:
        label = labels[index]
        right = text_of(index, label)
        symbols = label.get("symbols") if isinstance(label, Mapping) else None
        yield _text(payload, np.dtype(dtype), symbols), right


def text_of(index: int, label: object) -> str:
    """Returns a sample's correct text. Raises a ValueError if the label is not a string."""
    right = label["text"] if isinstance(label, Mapping) else label
    if not isinstance(right, str):
        shown = " ".join(repr(right).split())
        raise ValueError(f"the label of sample {index} is not a string: {shown:.40}")
    return right


class TextLabels:
    """Base class for metrics whose labels are strings."""

    def check_labels(self, labels: Mapping[int, object]) -> None:
        """Raises a ValueError if a label is not a string."""
        for index, label in labels.items():
            text_of(index, label)


def _text(payload: bytes, dtype: "np.dtype[np.generic]", symbols: object) -> str:
    if symbols is None:
        if dtype != np.uint8:
            raise ValueError(
                f"answers must be UTF-8 as uint8, or integers with `symbols`, but they are {dtype}"
            )
        return payload.rstrip(b"\0").decode(errors="replace")
    if dtype.kind not in "iu" or not isinstance(symbols, list | tuple):
        raise ValueError(
            f"`symbols` must be a list and answers integers, but the answers are {dtype}"
        )
    chosen = np.frombuffer(payload, dtype).tolist()
    if any(not 0 <= i < len(symbols) for i in chosen):
        raise ValueError(f"an answer has a position beyond the {len(symbols)} symbols")
    return "".join(symbols[i] for i in chosen)
