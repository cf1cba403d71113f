"""Sums up a run in a few lines of plain text that answer the question behind the run."""

from harness.results.answer.answer import (
    Answer,
    answer_of,
    headline_in_short,
    number_of,
    question_of,
)
from harness.results.answer.rows import answer_rows

__all__ = ["Answer", "answer_of", "answer_rows", "headline_in_short", "number_of", "question_of"]
