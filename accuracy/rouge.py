"""Scores texts by ROUGE, with the rouge-score package, like MLPerf's evaluate-accuracy.py of LLMs."""

from collections.abc import Iterable, Mapping

from harness.accuracy.parts.text import TextLabels, texts
from harness.types import Answer, Metric, Score

KINDS = ("rouge1", "rouge2", "rougeL", "rougeLsum")


class Rouge(TextLabels):
    """Mean F-measures of stemmed words, in percent. `rougeLsum` treats each line as a sentence.

    The value is rouge1; the details have all four. `texts` describes labels and answers.
    """

    def __init__(self, dtype: str) -> None:
        from rouge_score.rouge_scorer import RougeScorer

        self._dtype = dtype
        self._scorer = RougeScorer(KINDS, use_stemmer=True)

    def score(self, answers: Iterable[Answer], labels: Mapping[int, object]) -> Score:
        sums = dict.fromkeys(KINDS, 0.0)
        total = characters = 0
        for text, right in texts(answers, labels, self._dtype):
            total += 1
            characters += len(text)
            for kind, measures in self._scorer.score(right, text).items():
                sums[kind] += measures.fmeasure
        means = {kind: 100.0 * value / total for kind, value in sums.items()}
        rounded = {kind: round(value, 4) for kind, value in means.items()}
        return Score(
            metric="rouge",
            value=means["rouge1"],
            unit="%",
            samples=total,
            line=str({**rounded, "gen_len": characters, "gen_num": total}),
            details=means,
        )


_: type[Metric] = Rouge
