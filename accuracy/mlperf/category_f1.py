"""Scores product categories by the hierarchical F1, like MLPerf's accuracy script for Qwen3-VL."""

from collections.abc import Iterable, Mapping

from pydantic import BaseModel, ConfigDict, ValidationError

from harness.accuracy.parts.text import TextLabels, text_of, texts
from harness.types import Answer, Metric, Score

SEPARATOR = " > "
"""Characters between the levels of a category."""

SAME_BRAND = 0.9
"""Two brands count as equal if their similarity exceeds this value."""


class Product(BaseModel):
    """The required content of an answer, which is a JSON object."""

    model_config = ConfigDict(extra="forbid")

    category: str
    brand: str
    is_secondhand: bool


class CategoryF1(TextLabels):
    """F1 over the category levels of all samples. Levels count as correct up to the first difference.

    An answer that is not a `Product` counts as wrong in every level of its label. A label is the correct category, or a
    mapping with `text` (the category) and `brand`.
    Source: mlcommons/inference multimodal/qwen3-vl, evaluation.py.
    """

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype

    def score(self, answers: Iterable[Answer], labels: Mapping[int, object]) -> Score:
        answers = list(answers)
        shared = answered = right = unreadable = brands = branded = 0
        for answer, (text, category) in zip(
            answers, texts(answers, labels, self._dtype), strict=True
        ):
            product, levels = _product(text), _levels(category)
            predicted = _levels(product.category) if product else []
            shared += _common(predicted, levels)
            answered += len(predicted) if product else len(category.split(SEPARATOR))
            right += len(levels)
            unreadable += product is None
            label = labels[answer.sample]
            if isinstance(label, Mapping) and isinstance(label.get("brand"), str):
                branded += 1
                brands += product is not None and _is_same(product.brand, label["brand"])
        precision, recall = shared / answered, shared / right
        value = 2 * (precision * recall) / (precision + recall) if shared else 0.0
        of_brands = {"brand": brands / branded} if branded else {}
        return Score(
            metric="category-f1",
            value=value,
            unit="of 1",
            samples=len(answers),
            line=f'{{"f1": {value}}}',
            details={"unreadable": unreadable, **of_brands},
        )

    def check_labels(self, labels: Mapping[int, object]) -> None:
        super().check_labels(labels)
        for index, label in labels.items():
            if not text_of(index, label).strip():
                raise ValueError(f"the label of sample {index} has no category")


def _product(text: str) -> Product | None:
    try:
        return Product.model_validate_json(text)
    except ValidationError:
        return None


def _levels(category: str) -> list[str]:
    return [level.strip() for level in category.split(SEPARATOR)]


def _common(one: list[str], other: list[str]) -> int:
    """Returns the number of equal levels before the first difference."""
    count = 0
    for mine, yours in zip(one, other, strict=False):
        if mine != yours:
            break
        count += 1
    return count


def _is_same(one: str, other: str) -> bool:
    """Returns whether two brands are similar enough to count as equal. The similarity is the length of the longest
    common subsequence divided by the mean length.
    """
    one, other = one.strip().lower(), other.strip().lower()
    total = len(one) + len(other)
    return not total or 2 * _common_subsequence(one, other) / total > SAME_BRAND


def _common_subsequence(one: str, other: str) -> int:
    """Returns the length of the longest common subsequence. A row of the table is stored in the bits of one number.

    Source: H. Hyyrö, "Bit-parallel LCS-length computation revisited", 2004.
    """
    places: dict[str, int] = {}
    for at, character in enumerate(one):
        places[character] = places.get(character, 0) | 1 << at
    full = (1 << len(one)) - 1
    row = full
    for character in other:
        matches = row & places.get(character, 0)
        row = ((row + matches) | (row - matches)) & full
    return len(one) - row.bit_count()


_: type[Metric] = CategoryF1
