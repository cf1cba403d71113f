"""Converts a backend's outputs to answers with the manifest's steps, in the timed part of a run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import inf, isfinite
from operator import methodcaller
from typing import Any, NamedTuple

import numpy as np

from harness.core.units import counted
from harness.errors import ConfigError, PluginUnavailable, one_line
from harness.loadgen.answers import Answers, Ragged, flattened
from harness.models.steps.boxes import detections
from harness.models.steps.ctc import best_path
from harness.models.steps.notes import transcribed
from harness.types import Array, Batch, HasOwnOrder, Outputs, Step, show_shape

Rows = Array | list[Array]
"""n rows, or n arrays of different lengths."""

Apply = Callable[[Any, Sequence[int]], Any]
"""One step, which takes rows and sample indices, and returns rows. If the first step is `stack` or `hook`, it takes all
outputs instead of rows.
"""

Hook = Callable[[Outputs, Sequence[int]], Any]
"""The user's function, which takes outputs and sample indices, and returns an array of n rows, or n arrays. A hook that
is the first step takes the outputs by name, regardless of the backend. A hook that is a later step takes the rows of
the previous step.
"""

_SMALL = 8192
"""Arrays with more elements do not use a dot product, because BLAS may start threads for large arrays and disturb the
run.
"""


def wrong_count(answers: int, samples: int, output: str | None = None) -> str:
    """Returns the error message for a batch with different numbers of answers and samples. output: name of the model
    output that contains the answers.
    """
    source = f" in the output {output!r}" if output is not None else ""
    return (
        f"the model returned {counted(answers, 'row')}{source} for {counted(samples, 'sample')}: the first dimension "
        "of each input and output must be the batch. If a model returns several rows per sample "
        "(detection heads, non-maximum suppression inside the model), a manifest with `batch_axis: none` for "
        "this output takes one sample at a time, and a manifest with the postprocessing step `hook` combines "
        "them into one answer: --model FILE.yaml, docs/manifest.md"
    )


NOT_FINITE = "the model's outputs contain NaN or +Inf"


class Postprocess(NamedTuple):
    """The postprocessing steps of a run."""

    answers: Callable[[Outputs, Sequence[int]], Answers]
    """Takes outputs and indices, and returns (n, ...) answers."""
    not_finite: Callable[[Outputs, Answers], bool]
    """Takes outputs and their answers, and returns whether an output contains NaN or +Inf."""
    output: str | None = None
    """Name of the manifest's output, for messages."""


def _topk(rows: Array, k: int) -> Array:
    """Returns the k best classes. Among equal values, the lower class comes first, as in argmax."""
    classes = rows.shape[1]
    if k > classes:
        raise ConfigError(f"topk.k is {k}, but the output has only {classes} classes")
    least = np.partition(rows, classes - k, axis=1)[:, classes - k, np.newaxis]
    best = np.empty((len(rows), k), np.int64)
    # `<` is false for NaN, so NaN stays among the best and counts as larger than every number
    for into, row, kept in zip(best, rows, ~(rows < least), strict=True):
        backwards = np.flatnonzero(kept)[::-1]
        into[:] = backwards[np.argsort(row[backwards], kind="stable")][: -k - 1 : -1]
    return best


def _softmax(rows: Array) -> Array:
    powers = np.exp(rows - rows.max(axis=-1, keepdims=True))
    shares: Array = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def _shift(rows: Array, by: int) -> Array:
    """Adds `by`. Converts integers to int64, as argmax does, because 0 - 1 would be 255 in uint8."""
    shifted: Array = np.add(rows, by, dtype=np.int64) if rows.dtype.kind in "iub" else rows + by
    return shifted


def _threshold(rows: Array, above: float) -> Array:
    if rows.size != len(rows):
        raise ConfigError(f"threshold takes one score per sample, not {show_shape(rows.shape[1:])}")
    return (rows.reshape(len(rows)) > above).astype(np.int64)


_QUICK: Mapping[str, Callable[[Array], Array]] = {
    "none": lambda rows: rows,
    "argmax": methodcaller("argmax", 1),
}
_ON_ROWS: Mapping[str, Callable[..., Rows]] = {
    **_QUICK,
    "topk": _topk,
    "softmax": _softmax,
    "shift": _shift,
    "threshold": _threshold,
    "ctc": best_path,
    "notes": transcribed,
}
"""Steps that process each row separately. argmax returns int64, like the logs of MLPerf's image classification."""


def postprocessor(
    steps: Sequence[Step], output: str | None, hook: Hook | None = None
) -> Postprocess:
    """Returns the postprocessing of a run.

    output: the output to use if the backend returns several outputs and the first step does not select one. hook: the
    function of the step `hook`.
    """
    chain = [_function(step, hook) for step in steps]

    def answers(outputs: Outputs, indices: Sequence[int]) -> Answers:
        rows = _first_input(steps, output, outputs)
        for apply in chain:
            rows = apply(rows, indices)
        return rows if isinstance(rows, np.ndarray) else _gathered(rows)

    names = [step.name for step in steps] or ["none"]
    if names not in (["argmax"], ["none"]):
        return Postprocess(answers, not_finite, output)
    quick = _QUICK[names[0]]

    def quick_answers(outputs: Outputs, indices: Sequence[int]) -> Answers:
        return quick(outputs) if isinstance(outputs, np.ndarray) else answers(outputs, indices)

    checked = _winner_is_not_finite if names == ["argmax"] else not_finite
    return Postprocess(quick_answers, checked, output)


def _first_input(steps: Sequence[Step], output: str | None, outputs: Outputs) -> Any:
    """Returns the input of the first step: all outputs by name for `stack` and `hook`, otherwise the rows of one
    output.

    A backend with a single output may return the output without a name.
    """
    first = steps[0].name if steps else ""
    if first == "hook" and output is not None and not isinstance(outputs, Mapping):
        return {output: outputs}
    if first in ("stack", "hook"):
        return outputs
    return _rows(_chosen(outputs, output) if isinstance(outputs, Mapping) else outputs)


def flat(post: Postprocess) -> Postprocess:
    """Flattens each answer into one row of numbers, for models whose output shape depends on the input shape."""
    return Postprocess(
        lambda outputs, indices: flattened(post.answers(outputs, indices)),
        lambda outputs, _: not_finite(outputs),
        post.output,
    )


def by_frame(post: Postprocess) -> Postprocess:
    """Applies the steps to each frame of the sequences: (n, frames, ...) outputs become (n, frames, ...) answers."""

    def answers(outputs: Outputs, indices: Sequence[int]) -> Answers:
        rows = post.answers(*in_frames(outputs, indices))
        if isinstance(rows, Ragged):
            raise ConfigError(
                "the steps return answers of different lengths for the frames of a sequence: remove these steps"
            )
        return rows.reshape(len(indices), -1, *rows.shape[1:])

    return Postprocess(answers, lambda outputs, _: not_finite(outputs), post.output)


def identified(post: Postprocess, dataset: HasOwnOrder) -> Postprocess:
    """Inserts the sample's identity before each answer."""

    def answers(outputs: Outputs, indices: Sequence[int]) -> Answers:
        rows = post.answers(outputs, indices)
        return Ragged(
            dataset.identified([*(rows.rows if isinstance(rows, Ragged) else rows)], indices)
        )

    return Postprocess(answers, lambda outputs, _: not_finite(outputs), post.output)


def in_frames(outputs: Outputs, indices: Sequence[int]) -> tuple[Outputs, Sequence[int]]:
    """Returns outputs with one row per frame instead of one per sequence, and the sample of each row."""

    def merged(rows: Array) -> Array:
        return rows.reshape(-1, *rows.shape[2:])

    if isinstance(outputs, Mapping):
        frames = next(iter(outputs.values())).shape[1]
        rows: Outputs = {name: merged(each) for name, each in outputs.items()}
    else:
        whole = np.asarray(outputs)
        frames, rows = whole.shape[1], merged(whole)
    return rows, [index for index in indices for _ in range(frames)]


def check(
    steps: Sequence[Step],
    output: str | None,
    hook: Hook | None,
    outputs: Outputs,
    batch: Batch,
    indices: Sequence[int],
) -> range | None:
    """Tries each step, untimed, on the outputs of a first batch, which contains the samples `indices`.

    Returns the possible classes of the answers, or None if the steps do not produce classes.

    Raises ConfigError that names the manifest's step if the step cannot process its input. An error in a hook becomes
    PluginUnavailable, like any error in the user's code.
    """
    rows, classes = _first_input(steps, output, outputs), None
    for number, step in enumerate(steps):
        field = f"outputs.0.postprocess.{number}"
        if fault := _fault(step, rows, batch.inputs):
            raise ConfigError(f"the manifest's field {field!r}: {fault}")
        before = rows
        try:
            rows = _function(step, hook)(rows, indices)
        except ConfigError as e:
            raise ConfigError(f"the manifest's field {field!r}: {e}") from e
        except Exception as e:
            problem = f"{step.name} raised {type(e).__name__} for {_describe(rows)}: {one_line(e)}"
            if step.name == "hook":
                raise PluginUnavailable(f"{step.options['file']}: {problem}") from e
            raise ConfigError(f"the manifest's field {field!r}: {problem}") from e
        classes = _classes_after(step, classes, before)
    return classes


def _classes_after(step: Step, classes: range | None, rows: Any) -> range | None:
    """Returns the classes after a step. rows: the rows before the step."""
    if step.name in ("argmax", "topk") and isinstance(rows, np.ndarray):
        return range(rows.shape[1])
    if step.name == "threshold":
        return range(2)
    if step.name == "shift" and classes is not None:
        by = int(step.options["by"])
        return range(classes.start + by, classes.stop + by)
    return classes if step.name == "none" else None


_RANKS: Mapping[str, tuple[int, int, str]] = {
    "argmax": (2, 9, "[n, classes, ...]"),
    "topk": (2, 2, "[n, classes]"),
    "softmax": (2, 9, "[n, ..., classes]"),
    "threshold": (1, 2, "[n] or [n, 1]"),
    "boxes": (3, 3, "[n, 4 + classes, anchors]"),
    "ctc": (3, 3, "[n, positions, classes]"),
    "notes": (4, 4, "[n, frames, pitches, 2], from the step `stack`"),
}
"""Maps a step to the minimum and maximum number of input dimensions, including the batch, and to a description of the
input.
"""


def _fault(step: Step, rows: Any, inputs: Mapping[str, Array]) -> str:
    """Returns the reason why the step cannot process these rows, or '' if the reason is unknown."""
    if step.name == "hook":
        return ""
    if step.name == "stack":
        named = rows if isinstance(rows, Mapping) else {}
        shapes = {np.shape(named[n]) for n in step.options["outputs"] if n in named}
        differ = f"stack takes outputs of one shape, but these are {_describe(rows)}"
        return differ if len(shapes) > 1 else ""
    least, most, expected = _RANKS.get(step.name, (1, 9, ""))
    is_empty = step.name in _ON_ROWS and expected and any(not np.size(row) for row in rows)
    if is_empty or any(not least <= rank <= most for rank in _ranks(rows)):
        least_one = ", with at least one number per sample" if is_empty else ""
        return f"{step.name} takes {expected}{least_one}, not {_describe(rows)}"
    if step.name == "softmax" and any(np.asarray(row).dtype.kind != "f" for row in rows):
        return f"softmax takes floats, not {_describe(rows)}"
    if step.name == "boxes":
        return next(_wrong_side(step, inputs), "")
    return ""


def _ranks(rows: Rows) -> set[int]:
    return {rows.ndim} if isinstance(rows, np.ndarray) else {np.ndim(row) + 1 for row in rows}


def _wrong_side(step: Step, inputs: Mapping[str, Array]) -> Iterator[str]:
    """Yields the image inputs whose height and width differ."""
    side = step.options["side"]
    for name, rows in inputs.items():
        if rows.ndim == 4 and rows.shape[1:].count(side) < 2:
            shape = show_shape(rows.shape[1:])
            yield f"boxes.side is {side}, but the input {name!r} is {shape}: its sides must equal boxes.side"


def _describe(rows: Any) -> str:
    """Returns the type and shape of the rows, for messages."""
    if isinstance(rows, Mapping):
        return ", ".join(f"{name} {_describe(value)}" for name, value in rows.items())
    if isinstance(rows, np.ndarray):
        return f"{rows.dtype} of shape {show_shape(('n', *rows.shape[1:]))}"
    first = np.asarray(rows[0])
    return f"{len(rows)} arrays, the first {first.dtype} of shape {show_shape(first.shape)}"


def _function(step: Step, hook: Hook | None) -> Apply:
    if step.name == "hook":
        if hook is None:
            raise ConfigError(f"the hook {step.options['file']} was not loaded")
        return hook
    if step.name == "stack":
        return partial(_stack, names=step.options["outputs"])
    if step.name == "boxes":
        return lambda rows, indices: detections(np.asarray(rows), indices, **step.options)
    on_rows = partial(_ON_ROWS[step.name], **step.options)

    def apply(rows: Rows, _: Sequence[int]) -> Rows:
        if isinstance(rows, np.ndarray):
            return on_rows(rows)
        return [np.asarray(on_rows(row[np.newaxis])[0]) for row in rows]

    return apply


def _rows(value: Array | Sequence[Array]) -> Rows:
    return value if isinstance(value, np.ndarray) else [np.asarray(row) for row in value]


def _gathered(rows: Sequence[Any]) -> Answers:
    arrays = [np.asarray(row) for row in rows]
    return Ragged(arrays) if any(row.ndim for row in arrays) else np.array(arrays)


def _stack(outputs: Outputs, _: Sequence[int], names: Sequence[str]) -> Rows:
    if not isinstance(outputs, Mapping):
        raise ConfigError("stack needs outputs by name, but this backend returns a single one")
    chosen = [_rows(_chosen(outputs, name)) for name in names]
    if all(isinstance(rows, np.ndarray) for rows in chosen):
        return np.stack(chosen, axis=-1)
    return [np.stack(of_one, axis=-1) for of_one in zip(*chosen, strict=True)]


def _winner_is_not_finite(outputs: Outputs, answers: Any) -> bool:
    """Returns whether an output contains NaN or +Inf. For a single answer, checks only the winning score, because
    numpy's argmax returns the position of a row's first NaN.

    answers: an array if `outputs` is an array; otherwise unused.
    """
    if isinstance(outputs, np.ndarray) and answers.size == 1:
        return not outputs.item(answers.item()) < inf
    return not_finite(outputs)


def not_finite(outputs: Outputs, _answers: Answers | None = None) -> bool:
    """Returns whether an output contains NaN or +Inf. -Inf is allowed, because models use -Inf to mask scores.

    One pass over the outputs is enough, because a sum of squares is not finite if one term is not finite, and a maximum
    is NaN or +Inf if one element is NaN or +Inf.
    """
    if isinstance(outputs, np.ndarray):
        kind = outputs.dtype.kind
        if kind != "f":
            return kind == "c" and not np.isfinite(outputs).all()
        if outputs.size > _SMALL:
            return not outputs.max() < inf
        flat = outputs.ravel()  # a dot product takes a tenth of the time of a maximum
        # The sum also overflows for masked scores (-inf) and large numbers, which are allowed, so the maximum is
        # checked too.
        return not isfinite(flat.dot(flat)) and not outputs.max() < inf
    arrays = outputs.values() if isinstance(outputs, Mapping) else outputs
    return any(not_finite(a if _of_arrays(a) else np.asarray(a)) for a in arrays)


def _of_arrays(value: object) -> bool:
    """Returns whether the value is an output whose rows have different lengths and do not fit into one array."""
    return isinstance(value, list | tuple) and any(isinstance(row, np.ndarray) for row in value)


def _chosen(outputs: Mapping[str, Array], name: str | None) -> Array:
    if name is None:
        return next(iter(outputs.values()))
    if name not in outputs:
        raise ConfigError(
            f"the manifest's output {name!r} is not among the model's outputs: {', '.join(outputs)}"
        )
    return outputs[name]
