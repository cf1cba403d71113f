"""Reads the embedded prompts of the model `tinylm`: 500 strings of digits to sort or reverse.

The file is written by harness/models/train_tinylm.py from a seed. The model was not trained on these strings.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from harness.datasets.parts.sources import refuse_data_dir
from harness.datasets.text.prompts import PromptsDataset
from harness.types import Dataset, DatasetSetup

FILE = Path(__file__).parents[1] / "parts" / "digit_strings.jsonl"


class DigitStringsDataset(PromptsDataset):
    """Prompts of token IDs. The labels are the right answers."""

    def __init__(self, setup: DatasetSetup) -> None:
        refuse_data_dir(setup, "digit-strings")
        super().__init__(replace(setup, data_dir=FILE))

    def describe(self) -> Mapping[str, object]:
        about = {**super().describe(), "name": "digit-strings", "source": "train_tinylm.py"}
        # Drops the note that the key `text` is not sent, because `text` only explains the IDs to readers.
        about.pop("notes", None)
        return about


_: type[Dataset] = DigitStringsDataset
