"""Tokenises texts into BERT's wordpieces with the package `tokenizers`, for `tokenise` steps."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers

from harness.datasets.parts.sources import IN_MANIFEST, own_step, refuse, unreadable
from harness.errors import ConfigError
from harness.types import Array, DatasetSetup, Step, show_shape

SPECIAL = ("[CLS]", "[SEP]", "[UNK]")
PADDING_ID = 0
"""ID of the padding, as in MLPerf's create_squad_data.py, regardless of the vocabulary's first line."""


class Pieces(NamedTuple):
    """The pieces of one text."""

    ids: Sequence[int]
    tokens: Sequence[str]
    offsets: Sequence[tuple[int, int]]
    """(start, end) of each piece, in characters of the text."""


class Wordpiece:
    """A vocabulary with one piece per line. Raises a ConfigError if the file has a different format."""

    def __init__(self, vocab: Path, *, lower: bool) -> None:
        try:
            pieces = vocab.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        except (OSError, UnicodeError) as e:
            raise unreadable(vocab, e) from e
        missing = [piece for piece in SPECIAL if piece not in pieces]
        if missing:
            raise ConfigError(f"{vocab} lacks {', '.join(missing)}: it is not a BERT vocabulary")
        self._tokenizer = tokenizers.BertWordPieceTokenizer(str(vocab), lowercase=lower)
        self.cls_id, self.sep_id = (self._tokenizer.token_to_id(p) for p in SPECIAL[:2])

    def encode(self, texts: Sequence[str]) -> list[Pieces]:
        """Tokenises in parallel, without [CLS] and [SEP]."""
        encoded = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [Pieces(e.ids, e.tokens, e.offsets) for e in encoded]

    def rows(self, texts: Sequence[str], max_length: int) -> dict[str, Array]:
        """Returns ids, mask and types of [CLS] text [SEP], each (n, max_length) int32. Texts are cut or padded."""
        arrays = empty_arrays(len(texts), max_length, np.int32)
        for row, pieces in enumerate(self.encode(texts)):
            ids = [self.cls_id, *pieces.ids[: max_length - 2], self.sep_id]
            arrays["ids"][row, : len(ids)] = ids
            arrays["mask"][row, : len(ids)] = 1
        return arrays


def empty_arrays(rows: int, length: int, dtype: type[np.integer[Any]]) -> dict[str, Array]:
    """Returns ids, mask and types that contain only padding, each (rows, length)."""
    arrays: dict[str, Array] = {
        name: np.zeros((rows, length), dtype) for name in ("ids", "mask", "types")
    }
    arrays["ids"][:] = PADDING_ID
    return arrays


def tokenise_step(setup: DatasetSetup, dataset: str) -> Step:
    """Returns the `tokenise` step of all inputs, which may differ only in `gives`.

    Raises a ConfigError if an input lacks the step or has a different length, or if the steps differ.
    """
    problems: list[str] = []
    steps: dict[str, Step] = {}
    for spec in setup.inputs:
        step = own_step(setup, spec.name, "tokenise")
        if step is None:
            problems.append(
                f"dataset {dataset!r} needs a `tokenise` step for input {spec.name!r}: declare it "
                f"{IN_MANIFEST}"
            )
            continue
        steps[spec.name] = step
        length = step.options["max_length"]
        if len(spec.shape) != 2 or (isinstance(spec.shape[1], int) and spec.shape[1] != length):
            problems.append(
                f"input {spec.name!r} is {show_shape(spec.shape)}, but its tokenise.max_length is {length}"
            )
    first, *_ = steps or [""]
    problems += [
        f"input {name!r}: its tokenise step differs from {first!r}'s in {key}"
        for name, step in steps.items()
        for key, value in step.options.items()
        if key != "gives" and value != steps[first].options[key]
    ]
    refuse(problems)
    return steps[first]


def vocab_path(setup: DatasetSetup, step: Step) -> Path:
    """Finds the vocabulary in the manifest's folder or in --data-dir. If --data-dir is a file, searches the folder that
    contains the file.
    """
    name: str = step.options["vocab"]
    data = setup.data_dir
    beside = data.parent if data is not None and data.is_file() else data
    folders = [f for f in (setup.model_dir, beside) if f is not None and f.is_dir()]
    for folder in folders:
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ConfigError(f"tokenise.vocab {name} is outside the manifest's folder")
        if path.is_file():
            return path
    places = " or ".join(str(f) for f in folders)
    raise ConfigError(f"vocabulary {name} does not exist: put the model's vocabulary in {places}")
