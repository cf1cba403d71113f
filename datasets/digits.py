"""Reads the embedded default dataset: 500 handwritten digits that were not used to train the model.

Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository (1998),
CC BY 4.0, as included in scikit-learn. See harness/models/README.md.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from harness.datasets.parts.rows import LoadedRows
from harness.datasets.parts.sources import refuse, refuse_data_dir, synthetic_options
from harness.errors import ConfigError
from harness.types import Dataset, DatasetSetup, show_shape

FILE = Path(__file__).parent / "parts" / "digits.npz"
CALIBRATION_FILE = Path(__file__).parent / "parts" / "digits_calibration.npz"
WHITE = 16
"""Maximum grey value in the file."""


class DigitsDataset(LoadedRows):
    """500 images of 8 x 8 pixels, as float32 in [0, 1], for the model's only input."""

    name = "digits"
    file = FILE

    def __init__(self, setup: DatasetSetup) -> None:
        refuse_data_dir(setup, self.name)
        refuse([*synthetic_options(setup, self.name, shapes=setup.shapes)])
        try:
            self._bytes = self.file.read_bytes()
            with np.load(self.file, allow_pickle=False) as file:
                self._images, self._labels = file["images"], file["labels"]
        except (OSError, ValueError, KeyError) as e:
            raise ConfigError(f"{self.file} cannot be read ({e}): reinstall the package") from e
        self._setup = setup
        self._input = _image_input(setup)
        super().__init__(len(self._labels))

    def load(self, indices: Sequence[int]) -> None:
        images = self._images[np.asarray(indices)].astype(np.float32) / WHITE
        self.hold(indices, {self._input: images[:, np.newaxis]})

    def label(self, index: int) -> int:
        return int(self._labels[index])

    def calibration(self) -> Dataset:
        return DigitsCalibration(self._setup)

    def describe(self) -> Mapping[str, object]:
        return {
            "name": self.name,
            "count": len(self),
            "source": "UCI Optical Recognition of Handwritten Digits, CC BY 4.0",
            "digest": hashlib.sha256(self._bytes).hexdigest(),
        }


class DigitsCalibration(DigitsDataset):
    """200 images for quantisation. The default model was trained on these images, so they are never scored."""

    name = "digits, training images"
    file = CALIBRATION_FILE


def _image_input(setup: DatasetSetup) -> str:
    """Returns the name of the model's only input. Raises a ConfigError for a model with different inputs."""
    if not setup.inputs:
        return "image"
    first = setup.inputs[0]
    if len(setup.inputs) != 1 or first.shape[1:] != (1, 8, 8) or first.dtype != "float32":
        inputs = ", ".join(f"{i.name} {i.dtype} {show_shape(i.shape)}" for i in setup.inputs)
        raise ConfigError(
            f"dataset 'digits' has float32 images of shape [1, 8, 8], but the model takes {inputs}: "
            "choose a different --dataset, e.g. synthetic"
        )
    return first.name


_: type[Dataset] = DigitsDataset
