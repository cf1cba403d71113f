"""Scores classification by the share of samples whose correct label is among the best five answers."""

from harness.accuracy.top1 import Top1
from harness.types import HasAnswerShape, Metric


class Top5(Top1):
    """Percentage of correct answers. An answer contains at least five labels with the best one first, as the step
    `topk` returns them.
    """

    _name = "top5"
    _counts = 5


_: type[Metric] = Top5
__: type[HasAnswerShape] = Top5
