import numpy as np

from harness.types import Score


class MeanError:
    """Mean absolute difference between the digit in the answer and the correct digit."""

    def __init__(self, dtype):
        self.dtype = dtype  # number type of an answer, such as int64

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
