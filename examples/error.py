import numpy as np

from harness.types import Score


class MeanError:
    """How far the answered digit lies from the right one, on average."""

    def __init__(self, dtype):
        self.dtype = dtype  # of one answer, e.g. int64 after argmax

    def score(self, answers, labels):
        errors = [
            abs(int(np.frombuffer(a.payload, self.dtype)[0]) - labels[a.sample]) for a in answers
        ]
        value = float(np.mean(errors))
        return Score(
            metric="mean_error",
            value=value,
            unit="",
            samples=len(errors),
            line=f"mean_error={value:.4f}",
            lower_is_better=True,
        )
