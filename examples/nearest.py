import numpy as np


class Nearest:
    """Returns the mean brightness of ten bands, which is fast but usually the wrong answer."""

    def __init__(self, setup):
        pass  # setup.model is the file, setup.threads the number of threads it may use

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        pass

    def infer(self, batch):
        pixels = batch.inputs["image"].reshape(batch.size, -1)
        return np.stack([band.mean(axis=1) for band in np.array_split(pixels, 10, axis=1)], axis=1)

    def describe(self):
        return {"framework": f"numpy {np.__version__}", "precision": "float32"}
