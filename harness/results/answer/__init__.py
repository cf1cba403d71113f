"""Answers the question that a run was made for, in a few lines of plain text."""

from harness.results.answer.answer import Answer, answer_of, number_of

__all__ = ["Answer", "answer_of", "number_of"]
