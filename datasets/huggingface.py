"""Reads HuggingFace data sets: saved with save_to_disk, or by name from the Hub.

Columns become inputs as in any other table. No code from a data set is run.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

# The modules, not the package: where the package is not installed, ./datasets would be imported.
from datasets.dataset_dict import DatasetDict  # noqa: TID251 - HuggingFace's
from datasets.load import load_dataset, load_from_disk  # noqa: TID251 - HuggingFace's

from harness.core.config.parse import HUB
from harness.datasets.parquet import columns_of, used_columns
from harness.datasets.parts.sources import given_folder
from harness.datasets.parts.tables import Choice, Columns, TableDataset
from harness.errors import ConfigError
from harness.types import Dataset, DatasetSetup


class HubName(NamedTuple):
    name: str
    configuration: str | None
    """None where the data set has only one."""
    split: str


class HuggingFaceDataset(TableDataset):
    """--data-dir is a folder, or hf:NAME[:CONFIGURATION]@SPLIT, e.g. hf:nyu-mll/glue:sst2@test."""

    name = "huggingface"

    def find(self, setup: DatasetSetup) -> Path:
        if setup.data_dir is not None and str(setup.data_dir).startswith(HUB):
            self._rows = _from_hub(parse_hub_name(str(setup.data_dir)))
            return setup.data_dir
        folder = given_folder(
            setup, self.name, "a folder that save_to_disk wrote, or hf:NAME@SPLIT"
        )
        self._rows = _from_disk(folder)
        return folder

    def files(self) -> Mapping[str, Path]:
        paths = [Path(file["filename"]) for file in self._rows.cache_files]
        return {path.name: path for path in paths}

    def header(self, path: Path) -> Sequence[str]:
        names: Sequence[str] = self._rows.column_names
        return names

    def read(self, path: Path, choice: Choice) -> Columns:
        table = self._rows.select_columns(used_columns(choice)).with_format("arrow")[:]
        return columns_of(table, choice, str(path))


def parse_hub_name(text: str) -> HubName:
    """text: 'hf:NAME[:CONFIGURATION]@SPLIT'."""
    match = re.fullmatch(r"hf:([\w.-]+(?:/[\w.-]+)?)(?::([\w.-]+))?@([\w.-]+)", text)
    if match is None:
        raise ConfigError(f"--data-dir {text}: write hf:NAME@SPLIT or hf:NAME:CONFIGURATION@SPLIT")
    return HubName(match[1], match[2], match[3])


def _from_hub(hub: HubName) -> Any:
    """Loads from the Hub or its cache. A ConfigError, one line, for any failure."""
    try:
        return load_dataset(hub.name, hub.configuration, split=hub.split)
    except Exception as e:
        reason = " ".join(str(e).split())[:200]
        raise ConfigError(
            f"data set {hub.name!r} cannot be loaded from the Hub: {reason}: without network, call "
            "save_to_disk on it elsewhere, and pass that folder as --data-dir"
        ) from e


def _from_disk(folder: Path) -> Any:
    try:
        saved = load_from_disk(str(folder))
    except Exception as e:
        reason = " ".join(str(e).split())[:200]
        raise ConfigError(f"{folder} is not a saved data set: {reason}") from e
    if isinstance(saved, DatasetDict):
        splits = ", ".join(str(folder / split) for split in saved)
        raise ConfigError(f"{folder} holds several splits: pass one as --data-dir: {splits}")
    return saved


_: type[Dataset] = HuggingFaceDataset
