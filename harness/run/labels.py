"""Checks labels against the metric that will score them, before a run."""

from collections.abc import Sequence

from harness.core import registry
from harness.errors import ConfigError
from harness.types import HasLabelCheck


def check_labels(metric: str, labels: Sequence[object]) -> None:
    """A ConfigError if the metric cannot score these labels. None stands for a sample without a label."""
    scorer = registry.load("metric", metric)("int64")
    if not isinstance(scorer, HasLabelCheck):
        return
    try:
        scorer.check_labels({i: label for i, label in enumerate(labels) if label is not None})
    except ValueError as e:
        raise ConfigError(f"metric {metric!r} cannot score the labels: {e}") from e
