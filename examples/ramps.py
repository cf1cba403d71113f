import hashlib

import numpy as np

from harness.types import Batch


class Ramps:
    """Images of 8 x 8 pixels that become brighter from left to right; the label is the brightness step."""

    def __init__(self, setup):
        (self.input,) = setup.inputs  # the model's input: `image`, float32 (batch, 1, 8, 8)
        self.labels = np.arange(100) % 10

    def __len__(self):
        return len(self.labels)

    def load(self, indices):  # not timed: decode and preprocess here
        ramp = np.linspace(0, 1, 8, dtype=np.float32)
        rows = [np.broadcast_to(ramp * np.float32(self.labels[i] / 10), (1, 8, 8)) for i in indices]
        self.rows, self.at = np.stack(rows), {index: row for row, index in enumerate(indices)}

    def unload(self, indices):
        del self.rows

    def batch(self, indices):  # timed: only gather the samples
        return Batch(len(indices), {self.input.name: self.rows[[self.at[i] for i in indices]]})

    def label(self, index):
        return int(self.labels[index])

    def describe(self):
        return {
            "name": "ramps",
            "count": len(self),
            "digest": hashlib.sha256(self.labels.tobytes()).hexdigest(),
        }
