import numpy as np


class Nearest:
    """Answers with the mean brightness of ten bands: fast, and wrong most of the time."""

    def __init__(self, setup):
        pass  # setup.model: the file, setup.threads: how many it may use

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        pass

    def infer(self, batch):
        pixels = batch.inputs["image"].reshape(batch.size, -1)
        return np.stack([band.mean(axis=1) for band in np.array_split(pixels, 10, axis=1)], axis=1)

    def describe(self):
        return {"framework": f"numpy {np.__version__}", "precision": "float32"}
