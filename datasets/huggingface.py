"""Reads HuggingFace data sets that were saved with save_to_disk, or that are on the Hub.

Columns become inputs as in any other table. Code in a data set is never run.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

# The modules are imported one by one, because `import datasets` would find our folder ./datasets if HuggingFace's
# package were missing.
from datasets.dataset_dict import DatasetDict  # noqa: TID251 - HuggingFace's
from datasets.load import load_dataset, load_from_disk  # noqa: TID251 - HuggingFace's
from huggingface_hub import HfApi, constants

from harness.core.config.parse import HUB
from harness.datasets.parquet import columns_of, used_columns
from harness.datasets.parts.sources import given_folder
from harness.datasets.parts.tables import Choice, Columns, TableDataset
from harness.errors import ConfigError
from harness.types import Dataset, DatasetSetup


class HubName(NamedTuple):
    name: str
    configuration: str | None
    """Name of the configuration; None if the data set has only one."""
    split: str
    revision: str | None = None
    """A commit, branch or tag; None for the default branch."""


class HuggingFaceDataset(TableDataset):
    """A HuggingFace data set. --data-dir is a folder, or hf:NAME[:CONFIGURATION]@SPLIT[@REV], e.g.
    hf:nyu-mll/glue:sst2@test.
    """

    name = "huggingface"
    _commit: str | None = None
    _notes: tuple[str, ...] = ()

    def find(self, setup: DatasetSetup) -> Path:
        if setup.data_dir is not None and str(setup.data_dir).startswith(HUB):
            hub = parse_hub_name(str(setup.data_dir))
            self._commit = _commit_of(hub)
            self._rows = _from_hub(hub._replace(revision=self._commit or hub.revision))
            self._notes = tuple(_pin_notes(hub, self._commit))
            return setup.data_dir
        folder = given_folder(
            setup, self.name, "a folder that save_to_disk wrote, or hf:NAME@SPLIT@COMMIT"
        )
        self._rows = _from_disk(folder)
        return folder

    def files(self) -> Mapping[str, Path]:
        paths = [Path(file["filename"]) for file in self._rows.cache_files]
        return {path.name: path for path in paths}

    def class_names(self) -> Mapping[int, str]:
        label = self._rows.features.get(self._choice.label or "")
        names = getattr(label, "names", None)
        return dict(enumerate(names)) if names else super().class_names()

    def describe(self) -> Mapping[str, object]:
        revision = {"revision": self._commit} if self._commit else {}
        notes = {"notes": list(self._notes)} if self._notes else {}
        return {**super().describe(), **revision, **notes}

    def header(self, path: Path) -> Sequence[str]:
        names: Sequence[str] = self._rows.column_names
        return names

    def read(self, path: Path, choice: Choice) -> Columns:
        table = self._rows.select_columns(used_columns(choice)).with_format("arrow")[:]
        return columns_of(table, choice, str(path))


def parse_hub_name(text: str) -> HubName:
    """Parses 'hf:NAME[:CONFIGURATION]@SPLIT[@REV]'."""
    match = re.fullmatch(
        r"hf:([\w.-]+(?:/[\w.-]+)?)(?::([\w.-]+))?@([\w.-]+)(?:@([\w./-]+))?", text
    )
    if match is None:
        raise ConfigError(
            f"--data-dir {text}: write hf:NAME@SPLIT@COMMIT or hf:NAME:CONFIGURATION@SPLIT@COMMIT"
        )
    return HubName(match[1], match[2], match[3], match[4])


def _commit_of(hub: HubName) -> str | None:
    """Returns the commit to which the revision currently refers; None if the Hub does not answer."""
    if hub.revision is not None and re.fullmatch("[0-9a-f]{40}", hub.revision):
        return hub.revision
    try:
        about = HfApi(endpoint=constants.ENDPOINT).dataset_info(hub.name, revision=hub.revision)
    except Exception:  # noqa: BLE001 - load_dataset may still use its cache, and reports faults
        return None
    return about.sha


def _pin_notes(hub: HubName, commit: str | None) -> Iterator[str]:
    """Yields a note if the name may later refer to different data."""
    if commit is None:
        yield "the Hub did not answer: the revision of the data is unknown"
    elif hub.revision != commit:
        configuration = f":{hub.configuration}" if hub.configuration else ""
        pinned = f"hf:{hub.name}{configuration}@{hub.split}@{commit}"
        yield f"the data behind this name may change: pin it with --data-dir {pinned}"


def _from_hub(hub: HubName) -> Any:
    """Loads a data set from the Hub or from the cache. Raises a ConfigError with a one-line message for any failure."""
    try:
        return load_dataset(hub.name, hub.configuration, split=hub.split, revision=hub.revision)
    except Exception as e:
        reason = " ".join(str(e).split())[:200]
        raise ConfigError(
            f"data set {hub.name!r} cannot be loaded from the Hub ({reason}): without a network, call "
            "save_to_disk on a different machine, and pass the folder as --data-dir"
        ) from e


def _from_disk(folder: Path) -> Any:
    try:
        saved = load_from_disk(str(folder))
    except Exception as e:
        reason = " ".join(str(e).split())[:200]
        raise ConfigError(f"{folder} is not a saved data set: {reason}") from e
    if isinstance(saved, DatasetDict):
        splits = " or ".join(str(folder / split) for split in saved)
        raise ConfigError(f"{folder} has several splits: pass {splits} as --data-dir")
    return saved


_: type[Dataset] = HuggingFaceDataset
