"""Checks every label and every sample of a dataset for `data check`, before a long run needs them."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from harness.core import registry
from harness.core.config.run_config import RunConfig, make_config
from harness.core.registry import plugin
from harness.core.units import counted, show_rate
from harness.errors import ConfigError, HarnessError
from harness.models.manifest.lookup import load_model
from harness.models.manifest.model import Model
from harness.models.opened.loading import missing_data, open_dataset, samples_held, unknown_names
from harness.run.labels import check_labels
from harness.run.progress import Progress
from harness.run.supervisor.progress import show_loading
from harness.types import ClassName, Dataset, HasClassNames, HasFaults

SHOWN_CLASSES = 20
"""All classes are listed if the dataset has at most this many. With more classes, only the largest and the smallest are
listed.
"""

SHOWN_LARGEST, SHOWN_SMALLEST = 10, 5
"""If a dataset has more than SHOWN_CLASSES classes, this many of the largest and of the smallest are listed."""

LONGEST_NAME = 40
"""A class's name is cut to this many characters."""

OFFICIAL_COUNTS = {"resnet50": 50_000, "yolo": 1_525, "bert": 10_833, "3d-unet": 43}
"""Maps LoadGen's name for a benchmark to the number of samples in the complete dataset (SQuAD: windows).

Source: MLPerf's submission checker, v6.1.
"""


class Checked(NamedTuple):
    """The result of a check."""

    lines: list[str]
    """The description of the dataset."""
    faults: list[str]
    """One line per fault that makes the dataset unusable."""


def check(
    name: str,
    data_dir: Path | None,
    model: str | None,
    dataset_option: Sequence[tuple[str, str]] = (),
) -> Checked:
    """Reads every label and decodes every sample. If `model` is set, the model's steps are applied, too."""
    options = {
        "scenario": "offline",
        "dataset": name,
        "data_dir": data_dir,
        "model": model,
        "dataset_option": dataset_option,
    }
    values = {key: value for key, value in options.items() if value is not None}
    loaded = load_model(model) if model else Model("none", None, Path(), None)
    config = make_config(values, [*unknown_names({"dataset": name}), *missing_data(data_dir)])
    with Progress() as progress:
        show = partial(show_loading, progress, name)
        dataset = open_dataset(config, loaded, name, loaded.inputs, progress=show)
        labels, faults = _labels(dataset)
        begun_s = time.perf_counter()
        faults += _unscorable(loaded, labels)
        faults += _unusable(dataset, name, config)
        speed = len(dataset) / (time.perf_counter() - begun_s)
    with plugin(f"dataset {name!r}: describe()"):
        about = dataset.describe()
        names = dataset.class_names() if isinstance(dataset, HasClassNames) else {}
    rows = [("dataset", f"{name}, {counted(len(dataset), 'sample')}")]
    rows += [(key, str(about[key])) for key in ("source", "digest", "cache") if key in about]
    rows += [("steps", line) for line in _steps(about, model)]
    rows += [("labels", line) for line in _histogram(labels, names)]
    notes = (*notes_of(about), *_count(loaded, len(dataset)), *_one_label(labels, data_dir))
    rows += [("note", note) for note in notes]
    rows.append(("speed", f"{show_rate(speed)} samples/s decoded and preprocessed"))
    return Checked([f"{key:<12}{text}" for key, text in rows], faults)


def _labels(dataset: Dataset) -> tuple[list[object], list[str]]:
    """Returns every label, and a fault for each label that cannot be read."""
    labels: list[object] = []
    faults = []
    for i in range(len(dataset)):
        try:
            labels.append(dataset.label(i))
        except Exception as e:  # noqa: BLE001 - a plug-in may raise anything; the other labels are still checked
            faults.append(f"sample {i}: label raised {type(e).__name__}: {e}")
    bare = sum(label is None for label in labels)
    if 0 < bare < len(labels):
        first = next(i for i, label in enumerate(labels) if label is None)
        faults.append(
            f"{counted(bare, 'sample')} without a label although others have one: the first is sample {first}"
        )
    return labels, faults


def _unscorable(model: Model, labels: Sequence[object]) -> Iterator[str]:
    """Yields a fault if the metric of the model's manifest cannot score the labels."""
    if model.accuracy is None or registry.is_foreign("metric", model.accuracy.metric):
        return
    try:
        check_labels(model.accuracy.metric, lambda: labels)
    except HarnessError as e:
        yield str(e)


def _unusable(dataset: Dataset, name: str, config: RunConfig) -> list[str]:
    if isinstance(dataset, HasFaults):
        with plugin(f"dataset {name!r}: faults()"):
            return list(dataset.faults())
    held = samples_held(dataset, name, config.performance_count)
    faults = []
    for start in range(0, len(dataset), held):
        indices = range(start, min(start + held, len(dataset)))
        try:
            dataset.load(indices)
            dataset.batch(indices[:1])
            dataset.unload(indices)
        except ConfigError as e:
            faults += str(e).splitlines()
        except Exception as e:  # noqa: BLE001 - a plug-in may raise anything
            samples = f"samples {start} to {indices[-1]}"
            faults.append(f"{samples}: loading raised {type(e).__name__}: {e}")
    return faults


def _count(model: Model, have: int) -> Iterator[str]:
    """Yields a note if the dataset and MLPerf's dataset differ in size, because an MLPerf result needs the complete
    dataset.
    """
    expected = OFFICIAL_COUNTS.get(model.manifest.mlperf_model or "") if model.manifest else None
    if expected is not None and have != expected:
        yield f"MLPerf's set for {model.name} has {expected:,} samples, but this one has {have:,}"


def _one_label(labels: Sequence[object], data_dir: Path | None) -> Iterator[str]:
    """Yields a note if all labels are equal, and suggests the sub-folder with the classes if one exists."""
    numbers = {
        label.number if isinstance(label, ClassName) else label
        for label in labels
        if isinstance(label, int | str)
    }
    if len(numbers) != 1 or len(labels) < 2:
        return
    folders = data_dir.iterdir() if data_dir is not None and data_dir.is_dir() else ()
    inner = [p for p in sorted(folders) if p.is_dir() and sum(q.is_dir() for q in p.iterdir()) > 1]
    meant = f": did you mean {' or '.join(map(str, inner))}?" if inner else ""
    yield f"all samples have the same label{meant}"


def notes_of(about: Mapping[str, object]) -> Sequence[str]:
    """Returns the notes in a dataset's description. about: the description that the plug-in returned."""
    notes = about.get("notes", ())
    return [str(note) for note in notes] if isinstance(notes, list | tuple) else []


def _steps(about: Mapping[str, object], model: str | None) -> Iterator[str]:
    none = "decode only: add --model to check the model's steps as well"
    if model:
        none = f"{model} declares none"
    steps = about.get("steps")
    for name, declared in steps.items() if isinstance(steps, Mapping) else ():
        words = []
        for step in declared:
            ((kind, options),) = step.items()
            words.append(f"{kind}({', '.join(f'{k}={v}' for k, v in options.items())})")
        yield f"{name}: {' '.join(words) or none}"


def _histogram(labels: Sequence[object], names: Mapping[int, str]) -> Iterator[str]:
    """Yields the classes with their names and counts; for detection, the categories of the objects."""
    objects = [
        one["category_id"]
        for label in labels
        if isinstance(label, Mapping)
        for one in label.get("annotations", ())
    ]
    classes = objects or [
        label.number if isinstance(label, ClassName) else label
        for label in labels
        if isinstance(label, int | str)
    ]
    if not classes:
        kind = type(labels[0]).__name__ if labels and labels[0] is not None else "none"
        yield kind if kind == "none" else f"of type {kind}"
        return
    by_class = Counter(classes)
    what = "objects" if objects else "samples"
    yield f"{len(classes):,} {what} in {counted(len(by_class), 'class', 'classes')}"
    if names:
        yield from _table(by_class, names, what)
    elif len(by_class) <= SHOWN_CLASSES:
        yield ", ".join(f"{k}: {by_class[k]:,}" for k in sorted(by_class, key=_in_order))
    else:
        ranked = by_class.most_common()
        yield f"most: {', '.join(f'{k}: {n:,}' for k, n in ranked[:5])}"
        yield f"fewest: {', '.join(f'{k}: {n:,}' for k, n in ranked[-5:])}"


def _table(counts: Mapping[Any, int], names: Mapping[int, str], what: str) -> Iterator[str]:
    """Yields one row per class, including classes without samples.

    If there are many classes, yields only the largest and the smallest.
    """
    every = {**dict.fromkeys(names, 0), **counts}
    order = sorted(every, key=_in_order)
    left_out = 0
    if len(order) > SHOWN_CLASSES:
        order.sort(key=lambda label: -every[label])
        left_out = len(order) - SHOWN_LARGEST - SHOWN_SMALLEST
        order = [*order[:SHOWN_LARGEST], *order[-SHOWN_SMALLEST:]]
    rows = [(str(k), names.get(k, "-")[:LONGEST_NAME], f"{every[k]:,}") for k in order]
    rows.insert(0, ("label", "name", what))
    first, second, third = (max(map(len, column)) for column in zip(*rows, strict=True))
    for i, (label, name, count) in enumerate(rows):
        yield f"{label:>{first}}  {name:<{second}}  {count:>{third}}"
        if left_out and i == SHOWN_LARGEST:
            yield f"{'…':>{first}}  {left_out:,} classes between them"


def _in_order(label: object) -> tuple[bool, object]:
    return isinstance(label, str), label
