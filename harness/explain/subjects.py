"""Opens the models and data that `pitfalls` and `advise` examine. The defaults are the digits and two photographs."""

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness.core import registry
from harness.core.config.run_config import make_config
from harness.core.console import say
from harness.core.extras import how_to_install
from harness.errors import ConfigError, HarnessError
from harness.explain.baseline import Subject
from harness.models.made.onnx_light import PREFIX
from harness.models.manifest.defaults import default_dataset
from harness.models.manifest.lookup import load_model
from harness.models.manifest.model import Model
from harness.models.opened.loading import missing_data, unknown_names
from harness.types import Step

LENDER = "mobilenet"
"""Model whose preprocessing steps are used for models that have the same input but declare no steps, such as light/*.
"""

_AT_HAND = (LENDER, "resnet50", f"{PREFIX}squeezenet")
"""If no model is named, the first of these models whose file is on this machine is used. The harness creates the last
of these models itself, with random weights.
"""

_OF_IMAGE_FILES = ("folder", "imagenet", "coco")


def subjects(values: Mapping[str, Any], stack: ExitStack) -> Iterator[Subject]:
    """Yields the subjects. values: parsed options. `stack` removes the files that were made for the subjects."""
    if "model" in values or "dataset" in values:
        yield _named(values)
    elif "data_dir" in values:
        raise ConfigError(
            f"--data-dir {values['data_dir']}: name its dataset with --dataset, e.g. folder"
        )
    else:
        yield from _defaults(values, stack)


def _named(values: Mapping[str, Any]) -> Subject:
    """Returns the subject that the options name. values: parsed options. Raises one ConfigError that lists all
    problems.
    """
    values = {"scenario": "offline", **values}
    problems = [*unknown_names(values), *missing_data(values.get("data_dir"))]
    config = make_config(values, problems)
    if "model" not in values and config.dataset in _OF_IMAGE_FILES:
        name, backend = _at_hand(config.backend)
        config = replace(config, model=name, backend=backend)
    model = load_model(config.model)
    steps, notes = _steps(model)
    return Subject(config, model, config.dataset or default_dataset(model), steps, notes)


def _defaults(values: Mapping[str, Any], stack: ExitStack) -> Iterator[Subject]:
    """Yields the digits, and the photographs if scikit-learn includes them. values: contains only the backend."""
    yield _named({**values, "dataset": "digits"})
    photographs = _photographs()
    if not photographs:
        say(f"to include two photographs: {how_to_install('photographs')}")
        return
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="harness-pitfalls-")))
    (folder / "photographs").mkdir()
    for path in photographs:
        (folder / "photographs" / path.name).symlink_to(path)
    subject = _named({**values, "dataset": "folder", "data_dir": folder})
    yield subject._replace(label="scikit-learn's photographs")


def _photographs() -> list[Path]:
    """Returns scikit-learn's JPEG files, without importing scikit-learn."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        return []
    return sorted((Path(spec.origin).parent / "datasets/images").glob("*.jpg"))


def _at_hand(backend: str) -> tuple[str, str]:
    """Returns an image model whose file is on this machine, and its backend. If no such file exists, the backend is
    `null`.
    """
    for name in _AT_HAND if backend != "null" else ():
        try:
            formats = getattr(registry.load("backend", backend), "formats", ())
            model = load_model(name)
            if model.has_random_weights:
                model.obtain(formats, say)
            model.path(formats)
        except HarnessError:
            continue
        return name, backend
    return LENDER, "null"


def _steps(model: Model) -> tuple[Mapping[str, tuple[Step, ...]], tuple[str, ...]]:
    """Returns the preprocessing steps by input. Adds a note if the steps or the weights do not belong to the model."""
    if not model.has_random_weights:
        return model.steps, ()
    notes = ["random weights: changed answers show nothing about a trained model"]
    lender = load_model(LENDER)
    (lent,) = lender.inputs
    bare = [spec for spec in model.inputs if not model.steps[spec.name]]
    if len(model.inputs) != 1 or not bare or bare[0].shape[1:] != lent.shape[1:]:
        return model.steps, tuple(notes)
    notes.append(f"{model.name} declares no steps: the steps of {LENDER} are used")
    return {bare[0].name: lender.steps[lent.name]}, tuple(notes)
