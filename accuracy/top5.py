"""Scores classification: the share of samples whose right label is among the best five answers."""

from harness.accuracy.top1 import Top1
from harness.types import HasAnswerShape, Metric


class Top5(Top1):
    """Answers are at least five labels, the best first, from the step `topk`."""

    _name = "top5"
    _counts = 5


_: type[Metric] = Top5
__: type[HasAnswerShape] = Top5
