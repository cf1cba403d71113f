"""Scores texts by ROUGE with the package rouge-score, like MLPerf's evaluate-accuracy.py for language models."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from harness.accuracy.parts.text import TextLabels, texts
from harness.types import Answer, Metric, Score

KINDS = ("rouge1", "rouge2", "rougeL", "rougeLsum")


class Rouge(TextLabels):
    """Mean F-measures over stemmed words, in percent. The metric's value is rouge1; the details contain all four
    measures.

    For `rougeLsum`, nltk splits texts into sentences, as in MLPerf's script. If nltk's data are not installed, each
    line counts as a sentence. Labels and answers have the form that `texts` (accuracy/parts/text.py) describes.
    """

    def __init__(self, dtype: str) -> None:
        from rouge_score.rouge_scorer import RougeScorer

        self._dtype = dtype
        self._scorer = RougeScorer(KINDS, use_stemmer=True)
        self._sentences = sentence_splitter()

    def score(self, answers: Iterable[Answer], labels: Mapping[int, object]) -> Score:
        sums = dict.fromkeys(KINDS, 0.0)
        total = characters = 0
        for pair in texts(answers, labels, self._dtype):
            text, right = map(self._by_sentence, pair)
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

    @classmethod
    def missing(cls) -> Iterator[str]:
        """Yields a reason if rougeLsum would differ from the value that MLPerf's script computes."""
        if sentence_splitter() is None:
            yield "rougeLsum needs nltk's sentence tokenizer: run python -m nltk.downloader punkt_tab"

    def _by_sentence(self, text: str) -> str:
        return "\n".join(self._sentences(text.strip())) if self._sentences else text


def sentence_splitter() -> Callable[[str], list[str]] | None:
    """Returns nltk's sentence splitter for English, or None if the splitter's data are not installed."""
    try:
        from nltk import sent_tokenize

        sent_tokenize("")
    except (ImportError, LookupError):
        return None
    splitter: Callable[[str], list[str]] = sent_tokenize
    return splitter


_: type[Metric] = Rouge
