"""Texts out of answers, for the metrics that compare texts."""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from harness.types import Answer


def texts(
    answers: Iterable[Answer], labels: Mapping[int, object], dtype: str
) -> Iterator[tuple[str, str]]:
    """(text, right text) of each answer.

    A label is the right text, and its answers are uint8: UTF-8, padded with zeros or not. Or it is
    a mapping of `text` and `symbols`, and its answers are integers: which symbols make the text.
    """
    for index, payload in answers:
        label = labels[index]
        right = label["text"] if isinstance(label, Mapping) else label
        if not isinstance(right, str):
            raise ValueError(f"the label of sample {index} is no text: {right!r:.40}")
        symbols = label.get("symbols") if isinstance(label, Mapping) else None
        yield _text(payload, np.dtype(dtype), symbols), right


def _text(payload: bytes, dtype: "np.dtype[np.generic]", symbols: object) -> str:
    if symbols is None:
        if dtype != np.uint8:
            raise ValueError(f"answers are texts in uint8 or have symbols, these are {dtype}")
        return payload.rstrip(b"\0").decode(errors="replace")
    if dtype.kind not in "iu" or not isinstance(symbols, list | tuple):
        raise ValueError(f"symbols are a list that integers choose from, the answers are {dtype}")
    chosen = np.frombuffer(payload, dtype).tolist()
    if any(not 0 <= i < len(symbols) for i in chosen):
        raise ValueError(f"an answer names a symbol beyond the {len(symbols)} there are")
    return "".join(symbols[i] for i in chosen)
