"""Chooses the quantisation samples, which determine the value ranges for int8."""

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
from harness.models.manifest.model import Model
from harness.models.opened.loading import open_dataset
from harness.types import Array, Dataset, HasCalibration, TensorSpec

SAMPLES = 200
"""Maximum number of samples that are used; they are spread evenly over the dataset."""

Feed = Mapping[str, Array]
"""Maps an input's name to an (n, ...) array."""


class QuantisationSamples(NamedTuple):
    """The inputs that determine the activation ranges of int8."""

    feeds: Sequence[Feed]
    """Batches of inputs."""
    about: str
    """Number and origin of the samples, as text for people."""
    total: int
    are_scored: bool = False
    """Whether the accuracy is measured on these samples because the dataset has no other samples."""

    @property
    def sha256(self) -> str:
        return digest(self.feeds)


def quantisation_samples(
    config: RunConfig,
    model: Model,
    inputs: Sequence[TensorSpec],
    batch: int,
    folder: Path | None,
    *,
    synthetic: bool,
    scored: Sequence[int] | None = None,
) -> QuantisationSamples:
    """Returns noise if no sample is scored. Otherwise, returns the samples in `folder`, or the dataset's calibration
    samples.

    batch: samples per feed. folder: a --data-dir for the same dataset. scored: the dataset indices that are scored, or
    None for all. Uses samples that are not scored if the dataset has no calibration samples. If all samples are
    scored, uses scored samples.
    """
    if synthetic or model.has_random_weights:
        # The seed differs from the run's seed, so that the run is not measured on its quantisation samples.
        noise = replace(config, seed=(config.seed or 0) + 1, data_dir=None)
        dataset = open_dataset(noise, model, "synthetic", inputs)
        return _read(dataset, range(len(dataset)), batch, set(), "seeded noise")
    name = config.dataset or default_dataset(model)
    whole = open_dataset(config, model, name, inputs)
    if folder is not None:
        other = open_dataset(replace(config, data_dir=folder), model, name, inputs)
        return _read(other, range(len(other)), batch, _digests(whole), str(folder))
    if isinstance(whole, HasCalibration):
        own = whole.calibration()
        about = f"{own.describe()['name']!r}"
        return _read(own, range(len(own)), batch, _digests(whole), about)
    if scored is None:
        raise ConfigError(
            f"int8 takes its ranges from samples that are not scored, but dataset {name!r} has none: "
            "pass such samples with --calibration-dir, which takes the same kind of path as --data-dir"
        )
    others = sorted(set(range(len(whole))) - set(scored))
    if others:
        return _read(whole, others, batch, set(), f"dataset {name!r}")
    return _read_scored(whole, batch, f"dataset {name!r}")


def _read(
    dataset: Dataset, indices: Sequence[int], batch: int, scored: set[str], about: str
) -> QuantisationSamples:
    """scored: digests of samples to omit."""
    feeds = _spread(dataset, indices)
    unscored = [feed for feed in feeds if not scored or digest([feed]) not in scored]
    if not unscored:
        raise ConfigError(f"all samples of {about} are also scored: name different samples")
    text = f"{len(unscored)} samples of {about}, none of them scored"
    if len(unscored) < len(feeds):
        text += f" ({len(feeds) - len(unscored)} scored ones were left out)"
    return QuantisationSamples(_batches(unscored, batch), text, len(unscored))


def _read_scored(dataset: Dataset, batch: int, about: str) -> QuantisationSamples:
    feeds = _spread(dataset, range(len(dataset)))
    text = (
        f"{len(feeds)} samples of {about}, which are also scored, because the dataset has no others"
    )
    return QuantisationSamples(_batches(feeds, batch), text, len(feeds), are_scored=True)


def _spread(dataset: Dataset, indices: Sequence[int]) -> list[Feed]:
    """Returns at most SAMPLES of the samples at `indices`, evenly spread."""
    total = len(indices)
    if total > SAMPLES:
        indices = [indices[i * total // SAMPLES] for i in range(SAMPLES)]
    return [_one(dataset, index) for index in indices]


def _batches(feeds: Sequence[Feed], size: int) -> list[Feed]:
    """Returns batches of `size` samples, and repeats samples to fill the last batch. Returns single samples if shapes
    differ.
    """
    if len({tuple(rows.shape for rows in feed.values()) for feed in feeds}) > 1:
        return list(feeds)
    full = list(feeds) + [feeds[-1]] * (-len(feeds) % size)
    return [
        {name: np.concatenate([feed[name] for feed in full[at : at + size]]) for name in full[0]}
        for at in range(0, len(full), size)
    ]


def _digests(dataset: Dataset) -> set[str]:
    return {digest([_one(dataset, index)]) for index in range(len(dataset))}


def _one(dataset: Dataset, index: int) -> Feed:
    with plugin("the dataset of the quantisation samples"):
        dataset.load([index])
        feed = {name: np.array(rows) for name, rows in dataset.batch([index]).inputs.items()}
        dataset.unload([index])
    return feed


def digest(feeds: Sequence[Feed]) -> str:
    """Returns the SHA-256 of the names, types, shapes and values."""
    whole = hashlib.sha256()
    for feed in feeds:
        for name, rows in sorted(feed.items()):
            whole.update(f"{name} {rows.dtype} {rows.shape}".encode())
            whole.update(np.ascontiguousarray(rows).tobytes())
    return whole.hexdigest()
