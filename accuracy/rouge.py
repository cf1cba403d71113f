"""ROUGE of summaries, by the rouge-score package. As MLPerf's evaluate-accuracy.py of its LLMs."""

from collections.abc import Iterable, Mapping

from harness.accuracy.parts.text import texts
from harness.types import Answer, Metric, Score

KINDS = ("rouge1", "rouge2", "rougeL", "rougeLsum")


class Rouge:
    """Mean F-measures in percent, words stemmed. `rougeLsum` takes each line for a sentence.

    The value is rouge1's, the details hold all. Labels and answers: see `texts`.
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
            for kind, found in self._scorer.score(right, text).items():
                sums[kind] += found.fmeasure
        means = {kind: 100.0 * value / total for kind, value in sums.items()}
        told = {kind: round(value, 4) for kind, value in means.items()}
        return Score(
            metric="rouge",
            value=means["rouge1"],
            unit="%",
            samples=total,
            line=str({**told, "gen_len": characters, "gen_num": total}),
            details=means,
        )


_: type[Metric] = Rouge
