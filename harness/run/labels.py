"""Checks labels against the metric that will score them, before a run."""

from collections.abc import Callable, Iterable

from harness.core import registry
from harness.errors import ConfigError
from harness.types import Dataset, HasClassCheck, HasLabelCheck


def check_labels(
    metric: str,
    labels: Callable[[], Iterable[object]],
    classes: range | None = None,
    dtype: str = "int64",
) -> None:
    """Raises ConfigError if the metric cannot score these labels. A label of None means that the sample has no label.

    labels: returns the labels of all samples. The labels may take hundreds of MB, so `labels` is called only if the
    metric checks labels. classes: the classes that the model can return; None if unknown. dtype: the type of the
    answers.
    """
    try:
        scorer = registry.load("metric", metric)(dtype)
    except ValueError:
        return  # the metric does not apply to this answer type, whose labels are not class numbers
    has_classes = isinstance(scorer, HasClassCheck) and classes is not None
    if not (isinstance(scorer, HasLabelCheck) or has_classes):
        return
    known = {i: label for i, label in enumerate(labels()) if label is not None}
    try:
        if isinstance(scorer, HasLabelCheck):
            scorer.check_labels(known)
        if isinstance(scorer, HasClassCheck) and classes is not None:
            scorer.check_classes(known, classes)
    except ValueError as e:
        raise ConfigError(f"metric {metric!r} cannot score the labels: {e}") from e


def check_complete(dataset: Dataset, source: object) -> None:
    """Raises ConfigError if only some samples have a label, because no metric can score such a dataset.

    source: the file, or the dataset's name.
    """
    count = len(dataset)
    bare = sum(dataset.label(index) is None for index in range(count))
    if 0 < bare < count:
        raise ConfigError(
            f"{source}: only {count - bare:,} of {count:,} samples have a label (prompts: `reference`), so no accuracy "
            "can be computed: give all samples a label, or pass --mode performance"
        )
