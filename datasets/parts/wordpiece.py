"""Tokenises texts into BERT's wordpieces with the package `tokenizers`, as `tokenise` steps declare."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tokenizers

from harness.datasets.parts.sources import refuse, unreadable
from harness.errors import ConfigError
from harness.types import Array, DatasetSetup, Step

SPECIAL = ("[CLS]", "[SEP]", "[UNK]")
PADDING_ID = 0
"""As MLPerf's create_squad_data.py fills up, whatever the vocabulary calls that line."""


class Pieces(NamedTuple):
    """One text. offsets: (start, end) of each piece, in characters of the text."""

    ids: Sequence[int]
    tokens: Sequence[str]
    offsets: Sequence[tuple[int, int]]


class Wordpiece:
    """A vocabulary, one piece a line. Raises ConfigError for a file that is none."""

    def __init__(self, vocab: Path, *, lower: bool) -> None:
        try:
            pieces = vocab.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeError) as e:
            raise unreadable(vocab, e) from e
        missing = [piece for piece in SPECIAL if piece not in pieces]
        if missing:
            raise ConfigError(f"{vocab} lacks {', '.join(missing)}: it is no BERT vocabulary")
        self._tokenizer = tokenizers.BertWordPieceTokenizer(str(vocab), lowercase=lower)
        self.cls_id, self.sep_id = (self._tokenizer.token_to_id(p) for p in SPECIAL[:2])

    def encode(self, texts: Sequence[str]) -> list[Pieces]:
        """In parallel, without [CLS] and [SEP]."""
        encoded = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [Pieces(e.ids, e.tokens, e.offsets) for e in encoded]

    def rows(self, texts: Sequence[str], max_length: int) -> dict[str, Array]:
        """ids, mask and types of [CLS] text [SEP], each (n, max_length) int32, cut or filled up."""
        given = ("ids", "mask", "types")
        made = {name: np.zeros((len(texts), max_length), np.int32) for name in given}
        made["ids"][:] = PADDING_ID
        for row, pieces in enumerate(self.encode(texts)):
            ids = [self.cls_id, *pieces.ids[: max_length - 2], self.sep_id]
            made["ids"][row, : len(ids)] = ids
            made["mask"][row, : len(ids)] = 1
        return made


def tokenise_step(setup: DatasetSetup, dataset: str) -> Step:
    """What the inputs' `tokenise` steps have in common, which is all but `gives`.

    A ConfigError where an input has none, where they differ, or where an input has another length.
    """
    problems: list[str] = []
    found: dict[str, Step] = {}
    for spec in setup.inputs:
        steps = [s for s in setup.steps.get(spec.name, ()) if s.name == "tokenise"]
        if not steps:
            problems.append(
                f"dataset {dataset!r} needs a `tokenise` step for input {spec.name!r}: declare it "
                "in the model's manifest"
            )
            continue
        found[spec.name] = steps[0]
        length = steps[0].options["max_length"]
        if len(spec.shape) != 2 or (isinstance(spec.shape[1], int) and spec.shape[1] != length):
            problems.append(
                f"input {spec.name!r} is {list(spec.shape)}, its tokenise.max_length is {length}"
            )
    shared = {name: _shared(step) for name, step in found.items()}
    first = next(iter(shared.values()), None)
    problems += [
        f"input {name!r}: its tokenise step differs from {next(iter(shared))!r}'s in {key}"
        for name, options in shared.items()
        for key in options
        if first is not None and options[key] != first[key]
    ]
    refuse(problems)
    return next(iter(found.values()))


def _shared(step: Step) -> dict[str, object]:
    return {key: value for key, value in step.options.items() if key != "gives"}


def vocab_path(setup: DatasetSetup, step: Step) -> Path:
    """Beside the manifest, else in --data-dir, or beside the file that this is."""
    name: str = step.options["vocab"]
    data = setup.data_dir
    beside = data.parent if data is not None and data.is_file() else data
    folders = [f for f in (setup.model_dir, beside) if f is not None and f.is_dir()]
    for folder in folders:
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ConfigError(f"tokenise.vocab {name} leaves the manifest's folder")
        if path.is_file():
            return path
    told = " or ".join(str(f) for f in folders)
    raise ConfigError(f"there is no vocabulary {name}: put the model's own into {told}")
