"""Lists the mistakes that can occur between an image file and a model. Each mistake is a change to the baseline.

The schema determines the changes to declared steps, so that a new decoder or resize method is also measured. A change
that the schema does not allow is listed as `Impossible` with the reason.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from harness.core import registry
from harness.errors import HarnessError, one_line
from harness.models.manifest.formats import FORMATS
from harness.models.manifest.model import Model
from harness.models.steps.steps import choices, preprocess_step
from harness.types import Array, Step

Steps = tuple[Step, ...]

RAW_WHITE: Mapping[str, float] = {"digits": 16.0}
"""Largest pixel value of each dataset whose largest value is not 255."""


class StepChange(NamedTuple):
    """A change to the preprocessing steps. steps: steps that replace the declared steps."""

    kind: str
    name: str
    steps: Steps


class ArrayChange(NamedTuple):
    """A change to the input's values.

    apply: turns rows of the input, (n, ...), into changed rows of the same shape and type.
    """

    kind: str
    name: str
    apply: Callable[[Array], Array]


class BackendChange(NamedTuple):
    """A change of framework, file or precision with the same input. options: values of --backend-option."""

    kind: str
    name: str
    backend: str
    options: tuple[tuple[str, str], ...]


class Impossible(NamedTuple):
    kind: str
    name: str
    reason: str


Change = StepChange | ArrayChange | BackendChange


def step_changes(steps: Steps) -> Iterator[StepChange | Impossible]:
    """Yields the changes to steps. steps: declared steps of one input; all are image steps."""
    if steps[0].name != "decode":
        steps = (preprocess_step("decode"), *steps)
    yield from _other_options(steps, "decoder", "decode", ("decoder", "dct"))
    yield from _other_options(steps, "colour", "decode", ("colour",))
    yield from _other_options(steps, "resize", "resize", ("library", "method"))
    yield from _other_options(steps, "aspect", "resize", ("keep",))
    yield from _crops(steps)
    yield from _normalisations(steps)
    yield from _layouts(steps)


def array_changes(
    shape: Sequence[int],
    dtype: str,
    span: tuple[float, float],
    declared: Steps | None,
    white: float,
) -> Iterator[ArrayChange | Impossible]:
    """Yields the changes to an input's values.

    shape: (n, ...) of the input. span: smallest and largest value of the input in the baseline. declared: the steps
    that prepare the input, or (). white: the largest raw pixel value.
    """
    if dtype in ("float32", "float64"):
        yield ArrayChange("precision", "input rounded to float16", _through_float16)
    else:
        yield Impossible("precision", "input rounded to float16", f"the input is {dtype}")
    yield from _misread(shape)
    if not declared and dtype.startswith("float"):
        low, high = span
        yield ArrayChange("colour", "inverted", lambda x: np.subtract(low + high, x, dtype=x.dtype))
        name = f"0 to {white:g} instead of 0 to 1"
        if low < 0 or high > 1:
            yield Impossible("normalise", name, f"the input ranges from {low:.3g} to {high:.3g}")
        else:
            yield ArrayChange("normalise", name, lambda x: np.multiply(x, white, dtype=x.dtype))


def backend_changes(model: Model, baseline: str) -> Iterator[BackendChange | Impossible]:
    """Yields each installed backend with each of the model's files that the backend can read, and each lower precision."""
    for backend, entry in registry.rows("backend"):
        # The null backend does not run a model.
        if backend == "null" or backend in registry.REMOTE_BACKENDS:
            continue
        try:
            if not entry.installed:
                raise registry.missing_extra("backend", backend, entry)
            cls = registry.load("backend", backend)
        except HarnessError as e:
            yield Impossible("framework", backend, one_line(e))
            continue
        reads: tuple[str, ...] = getattr(cls, "formats", ())
        have = [name for name in reads if model.may_have(name)]
        if not have:
            files = [name for name in sorted(FORMATS) if model.may_have(name)]
            reason = (
                f"it reads {', '.join(reads) or 'no files'}, but the model has {', '.join(files)}"
            )
            yield Impossible("framework", backend, reason)
            continue
        yield from _formats(backend, have, baseline)
        precisions = getattr(cls, "options", {}).get("precision", ())
        for precision in precisions[1:]:
            options = (("precision", precision),)
            yield BackendChange("precision", f"{backend}, {precision}", backend, options)


def _formats(backend: str, formats: Iterable[str], baseline: str) -> Iterator[BackendChange]:
    """Yields a change per format. Skips the first format of the baseline's backend, because this format is the
    baseline.
    """
    for i, name in enumerate(formats):
        if i or backend != baseline:
            options = (("format", name),)
            yield BackendChange("framework", f"{backend}, {name} file", backend, options)


def _find(steps: Steps, name: str) -> Step | None:
    return next((step for step in steps if step.name == name), None)


def _with(steps: Steps, name: str, **options: object) -> Steps:
    return tuple(
        preprocess_step(name, **{**step.options, **options}) if step.name == name else step
        for step in steps
    )


def _without(steps: Steps, name: str) -> Steps:
    return tuple(step for step in steps if step.name != name)


def _possible(kind: str, name: str, make: Callable[[], Steps]) -> StepChange | Impossible:
    try:
        return StepChange(kind, name, make())
    except ValueError as e:
        return Impossible(kind, name, str(e))


def _other_options(
    steps: Steps, kind: str, name: str, options: Sequence[str]
) -> Iterator[StepChange | Impossible]:
    """Yields every other combination of these options for one step."""
    step = _find(steps, name)
    if step is None:
        yield Impossible(kind, "any other", f"the model declares no step {name}")
        return
    for chosen in product(*(choices(name, option) for option in options)):
        values = dict(zip(options, chosen, strict=True))
        text = ", ".join(
            v if k == kind else f"{k} {v}" for k, v in values.items() if v != step.options[k]
        )
        if text:
            yield _possible(kind, text, lambda v=values: _with(steps, name, **v))  # type: ignore[misc]


def _crops(steps: Steps) -> Iterator[StepChange | Impossible]:
    crop, resize = _find(steps, "crop"), _find(steps, "resize")
    if crop is None:
        yield Impossible("crop", "left out", "the model declares no step crop")
        return
    bare = _without(steps, "crop")
    size = crop.options["size"]
    if size is None or resize is None:
        yield StepChange("crop", "left out", bare)
        return
    stretched = {"size": size, "keep": "none"}
    yield _possible(
        "crop", "left out, stretched to size", lambda: _with(bare, "resize", **stretched)
    )
    fraction = _height(size) / _height(resize.options["size"])
    yield _possible(
        "crop",
        f"fraction {fraction:.4g} before the resize",
        lambda: (
            bare[0],
            preprocess_step("crop", fraction=fraction),
            *_with(bare, "resize", **stretched)[1:],
        ),
    )


def _height(size: Any) -> int:
    return size if isinstance(size, int) else int(size[0])


def _normalisations(steps: Steps) -> Iterator[StepChange | Impossible]:
    step = _find(steps, "normalise")
    if step is None:
        at = len(steps) - (steps[-1].name == "layout")
        scaled = preprocess_step("normalise", scale=1 / 255)
        yield StepChange("normalise", "to 0 to 1", (*steps[:at], scaled, *steps[at:]))
        return
    yield StepChange("normalise", "left out", _without(steps, "normalise"))
    shifts = any(step.options["mean"]) or set(step.options["std"]) != {1.0}
    # If the step has only one part, omitting this part is the same as omitting the whole step.
    if shifts and step.options["scale"] != 1:
        plain = _with(steps, "normalise", mean=(0.0,), std=(1.0,))
        yield StepChange("normalise", "without mean and std", plain)
        yield StepChange("normalise", "without scale", _with(steps, "normalise", scale=1.0))


def _layouts(steps: Steps) -> Iterator[StepChange | Impossible]:
    step = _find(steps, "layout")
    have = step.options["order"] if step else "nhwc"
    for order in choices("layout", "order"):
        if order != have:
            layout = preprocess_step("layout", order=order)
            yield StepChange("layout", f"order {order}", (*_without(steps, "layout"), layout))


def _through_float16(x: Array) -> Array:
    with np.errstate(over="ignore"):  # because a number too large for float16 becomes infinity
        return x.astype(np.float16).astype(x.dtype)


def _misread(shape: Sequence[int]) -> Iterator[ArrayChange | Impossible]:
    """Yields mistakes that no shape check detects."""
    names = ("bytes of the other order", "height and width swapped")
    if len(shape) != 4:
        reason = f"the input has {len(shape) - 1} dimensions, but an image has 3"
        yield from (Impossible("layout", name, reason) for name in names)
        return
    first = shape[1] in (1, 3, 4)
    axes = (0, 2, 3, 1) if first else (0, 3, 1, 2)
    yield ArrayChange("layout", names[0], lambda x: x.transpose(axes).reshape(x.shape))
    height = 2 if first else 1
    if shape[height] == shape[height + 1]:
        yield ArrayChange("layout", names[1], lambda x: x.swapaxes(height, height + 1))
    else:
        yield Impossible("layout", names[1], "the input is not square")
