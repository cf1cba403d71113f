"""Checks labels against the metric that will score them, before a run."""

from collections.abc import Sequence

from harness.core import registry
from harness.errors import ConfigError
from harness.types import HasClassCheck, HasLabelCheck


def check_labels(
    metric: str, labels: Sequence[object], classes: range | None = None, dtype: str = "int64"
) -> None:
    """A ConfigError if the metric cannot score these labels. None stands for a sample without a label.

    classes: those that the model can answer, None if they are not known. dtype: of the answers.
    """
    try:
        scorer = registry.load("metric", metric)(dtype)
    except ValueError:
        return  # it scores answers of another type, and its labels are no class numbers
    known = {i: label for i, label in enumerate(labels) if label is not None}
    try:
        if isinstance(scorer, HasLabelCheck):
            scorer.check_labels(known)
        if isinstance(scorer, HasClassCheck) and classes is not None:
            scorer.check_classes(known, classes)
    except ValueError as e:
        raise ConfigError(f"metric {metric!r} cannot score the labels: {e}") from e
