"""Samples to calibrate a precision with: real ones of the data, and never one that is scored."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from harness.core.config.run_config import RunConfig
from harness.core.registry import plugin
from harness.errors import ConfigError
from harness.models.manifest.defaults import default_dataset
from harness.models.manifest.manifest import Model
from harness.models.opened.loading import open_dataset
from harness.types import Array, Dataset, HasCalibration, TensorSpec

SAMPLES = 200
"""At most, evenly spread over those there are."""

Feed = Mapping[str, Array]
"""Input name -> (n, ...) array."""


class Calibration(NamedTuple):
    """feeds: batches of inputs. about: how many samples, and where they are from, in words."""

    feeds: Sequence[Feed]
    about: str

    @property
    def sha256(self) -> str:
        return digest(self.feeds)


def calibration(
    config: RunConfig,
    model: Model,
    inputs: Sequence[TensorSpec],
    batch: int,
    folder: Path | None,
    *,
    synthetic: bool,
) -> Calibration:
    """Noise where nothing is going to be scored; else those in `folder`, else the dataset's own.

    batch: samples in each feed. folder: a --data-dir for the same dataset.
    """
    if synthetic or model.has_random_weights:
        # Another seed than the run's, whose samples these are not.
        noise = replace(config, seed=(config.seed or 0) + 1, data_dir=None)
        return _read(open_dataset(noise, model, "synthetic", inputs), batch, set(), "seeded noise")
    name = config.dataset or default_dataset(model)
    scored = open_dataset(config, model, name, inputs)
    if folder is not None:
        there = open_dataset(replace(config, data_dir=folder), model, name, inputs)
        return _read(there, batch, _digests(scored), str(folder))
    if not isinstance(scored, HasCalibration):
        raise ConfigError(
            f"int8 takes its ranges from samples that are not scored, and dataset {name!r} has no "
            "others: name them with --calibration-dir, a --data-dir of the same kind"
        )
    own = scored.calibration()
    return _read(own, batch, _digests(scored), f"{own.describe()['name']!r}")


def _read(dataset: Dataset, batch: int, scored: set[str], about: str) -> Calibration:
    total = len(dataset)
    chosen = range(total) if total <= SAMPLES else [i * total // SAMPLES for i in range(SAMPLES)]
    looked_at = [_one(dataset, index) for index in chosen]
    kept = [feed for feed in looked_at if digest([feed]) not in scored]
    if not kept:
        raise ConfigError(f"{about}: every sample there is scored, too: calibrate with others")
    told = f"{len(kept)} samples of {about}, none of them scored"
    if len(kept) < len(looked_at):
        told += f" ({len(looked_at) - len(kept)} that are were left out)"
    return Calibration(_batches(kept, batch), told)


def _batches(feeds: Sequence[Feed], size: int) -> list[Feed]:
    """Of one shape: `size` together, the last samples again where they fill none. Else each alone."""
    if len({tuple(rows.shape for rows in feed.values()) for feed in feeds}) > 1:
        return list(feeds)
    full = [*feeds, *([feeds[-1]] * (-len(feeds) % size))]
    return [
        {name: np.concatenate([feed[name] for feed in full[at : at + size]]) for name in full[0]}
        for at in range(0, len(full), size)
    ]


def _digests(dataset: Dataset) -> set[str]:
    return {digest([_one(dataset, index)]) for index in range(len(dataset))}


def _one(dataset: Dataset, index: int) -> Feed:
    with plugin("the dataset to calibrate with"):
        dataset.load([index])
        feed = {name: np.array(rows) for name, rows in dataset.batch([index]).inputs.items()}
        dataset.unload([index])
    return feed


def digest(feeds: Sequence[Feed]) -> str:
    """SHA-256 of names, types, shapes and values."""
    whole = hashlib.sha256()
    for feed in feeds:
        for name, rows in sorted(feed.items()):
            whole.update(f"{name} {rows.dtype} {rows.shape}".encode())
            whole.update(np.ascontiguousarray(rows).tobytes())
    return whole.hexdigest()
