"""Turns a backend's outputs into answers: runs the manifest's steps in the timed part."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import methodcaller
from typing import Any, NamedTuple

import numpy as np

from harness.errors import ConfigError, PluginUnavailable, one_line
from harness.loadgen.answers import Answers, Ragged, flattened
from harness.models.steps.boxes import detections
from harness.types import Array, Batch, Outputs, Step

Rows = Array | list[Array]
"""n rows, or n arrays of different lengths."""

Apply = Callable[[Any, Sequence[int]], Any]
"""One step. (rows, indices of the samples) -> rows; a first step may see the mapping of outputs."""

Hook = Callable[[Outputs, Sequence[int]], Any]
"""The user's: (outputs, indices of the samples) -> an array of n rows, or n arrays. As the first step
it gets the outputs by name, whatever backend gives them; later what the step before gave.
"""

_SMALL = 8192
"""Elements; above it BLAS may use threads for a dot product, which would disturb the run."""


def wrong_count(answers: int, samples: int) -> str:
    """Why a batch cannot be answered whose answers are not one a sample, and what to do."""
    return (
        f"{answers:,} outputs for {samples:,} samples: each sample needs one answer. Where a model gives "
        "several rows a sample (detection heads, non-maximum suppression inside the model), a manifest "
        "with the postprocessing step `hook` makes one answer of them: --model FILE.yaml, "
        "docs/manifest.md"
    )


class Postprocess(NamedTuple):
    """answers: (outputs, indices) -> (n, ...). has_nan: whether those outputs, with their answers, hold NaN."""

    answers: Callable[[Outputs, Sequence[int]], Answers]
    has_nan: Callable[[Outputs, Answers], bool]


def _topk(rows: Array, k: int) -> Array:
    """Of equal values the first comes first, as in argmax."""
    classes = rows.shape[1]
    if k > classes:
        raise ConfigError(f"topk of {k}, but the output has {classes} classes")
    least = np.partition(rows, classes - k, axis=1)[:, classes - k, np.newaxis]
    best = np.empty((len(rows), k), np.int64)
    for into, row, kept in zip(best, rows, ~(rows < least), strict=True):  # NaN is kept
        backwards = np.flatnonzero(kept)[::-1]
        into[:] = backwards[np.argsort(row[backwards], kind="stable")][: -k - 1 : -1]
    return best


def _softmax(rows: Array) -> Array:
    powers = np.exp(rows - rows.max(axis=-1, keepdims=True))
    shares: Array = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def _shift(rows: Array, by: int) -> Array:
    """Integers become int64, as argmax gives them: in a model's own uint8, 0 - 1 were 255."""
    shifted: Array = np.add(rows, by, dtype=np.int64) if rows.dtype.kind in "iub" else rows + by
    return shifted


_ON_ROWS: Mapping[str, Callable[..., Array]] = {
    "none": lambda rows: rows,
    "argmax": methodcaller("argmax", 1),
    "topk": _topk,
    "softmax": _softmax,
    "shift": _shift,
}
"""What each row gets alone. argmax: int64, the answer MLPerf's image classification logs."""


def postprocessor(
    steps: Sequence[Step], output: str | None, hook: Hook | None = None
) -> Postprocess:
    """output: which one to use where the backend gives several and the first step picks none.
    hook: what the step of that name runs.
    """
    chain = [_made(step, hook) for step in steps]

    def answers(outputs: Outputs, indices: Sequence[int]) -> Answers:
        rows = _given_first(steps, output, outputs)
        for apply in chain:
            rows = apply(rows, indices)
        return rows if isinstance(rows, np.ndarray) else _gathered(rows)

    names = [step.name for step in steps] or ["none"]
    if names not in (["argmax"], ["none"]):
        return Postprocess(answers, has_nan)
    quick = _ON_ROWS[names[0]]

    def quick_answers(outputs: Outputs, indices: Sequence[int]) -> Answers:
        return quick(outputs) if isinstance(outputs, np.ndarray) else answers(outputs, indices)

    return Postprocess(quick_answers, _winner_is_nan if names == ["argmax"] else has_nan)


def _given_first(steps: Sequence[Step], output: str | None, outputs: Outputs) -> Any:
    """What the first step gets: `stack` and `hook` all outputs by name, the others one output's rows.

    A backend may give the only output without its name.
    """
    first = steps[0].name if steps else ""
    if first == "hook" and output is not None and not isinstance(outputs, Mapping):
        return {output: outputs}
    if first in ("stack", "hook"):
        return outputs
    return _rows(_chosen(outputs, output) if isinstance(outputs, Mapping) else outputs)


def flat(post: Postprocess) -> Postprocess:
    """The same, each answer as one row of numbers: for answers whose shape goes with the input's."""
    return Postprocess(
        lambda outputs, indices: flattened(post.answers(outputs, indices)),
        lambda outputs, _: has_nan(outputs),
    )


def check(
    steps: Sequence[Step], output: str | None, hook: Hook | None, outputs: Outputs, batch: Batch
) -> None:
    """The steps one by one on a first batch's outputs, untimed.

    A ConfigError names the manifest's step that cannot take what it gets; a hook that raises is a
    PluginUnavailable, as any code of the user's.
    """
    rows = _given_first(steps, output, outputs)
    for number, step in enumerate(steps):
        field = f"outputs.0.postprocess.{number}"
        if fault := _fault(step, rows, batch.inputs):
            raise ConfigError(f"the manifest's field {field!r}: {fault}")
        try:
            rows = _made(step, hook)(rows, batch.indices)
        except ConfigError as e:
            raise ConfigError(f"the manifest's field {field!r}: {e}") from e
        except Exception as e:
            told = f"{step.name} raised {type(e).__name__} for {_told(rows)}: {one_line(e)}"
            if step.name == "hook":
                raise PluginUnavailable(f"{step.options['file']}: {told}") from e
            raise ConfigError(f"the manifest's field {field!r}: {told}") from e


_RANKS: Mapping[str, tuple[int, int, str]] = {
    "argmax": (2, 9, "(n, classes, ...)"),
    "topk": (2, 2, "(n, classes)"),
    "softmax": (2, 9, "(n, ..., classes)"),
    "boxes": (3, 3, "(n, 4 + classes, anchors)"),
}
"""Step -> the fewest and the most dimensions of what it takes, the samples' included."""


def _fault(step: Step, rows: Any, inputs: Mapping[str, Array]) -> str:
    """Why the step cannot take these rows; empty where nothing is known against it."""
    if step.name == "hook":
        return ""
    if step.name == "stack":
        named = rows if isinstance(rows, Mapping) else {}
        shapes = {np.shape(named[n]) for n in step.options["outputs"] if n in named}
        return (
            f"stack takes outputs of one shape, these are {_told(rows)}" if len(shapes) > 1 else ""
        )
    least, most, wanted = _RANKS.get(step.name, (1, 9, ""))
    if any(not least <= rank <= most for rank in _ranks(rows)):
        return f"{step.name} takes {wanted}, here it gets {_told(rows)}"
    if step.name == "softmax" and any(np.asarray(row).dtype.kind != "f" for row in rows):
        return f"softmax takes floats, here it gets {_told(rows)}"
    if step.name == "boxes":
        return next(_wrong_side(step, inputs), "")
    return ""


def _ranks(rows: Rows) -> set[int]:
    return {rows.ndim} if isinstance(rows, np.ndarray) else {np.ndim(row) + 1 for row in rows}


def _wrong_side(step: Step, inputs: Mapping[str, Array]) -> Iterator[str]:
    """Channels first or last, two of an image's three dimensions are its sides."""
    side = step.options["side"]
    for name, rows in inputs.items():
        if rows.ndim == 4 and rows.shape[1:].count(side) < 2:
            shape = "x".join(map(str, rows.shape[1:]))
            yield f"boxes.side is {side}, the input {name!r} is {shape}: its sides must be that long"


def _told(rows: Any) -> str:
    """What rows are like, for messages."""
    if isinstance(rows, Mapping):
        return ", ".join(f"{name} {_told(value)}" for name, value in rows.items())
    if isinstance(rows, np.ndarray):
        return f"{rows.dtype} of shape ({', '.join(('n', *map(str, rows.shape[1:])))})"
    return f"{len(rows)} arrays, the first {np.asarray(rows[0]).dtype} of {np.shape(rows[0])}"


def _made(step: Step, hook: Hook | None) -> Apply:
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
        raise ConfigError("stack needs outputs by name, this backend gives one alone")
    chosen = [_rows(_chosen(outputs, name)) for name in names]
    if all(isinstance(rows, np.ndarray) for rows in chosen):
        return np.stack(chosen, axis=-1)
    return [np.stack(of_one, axis=-1) for of_one in zip(*chosen, strict=True)]


def _winner_is_nan(outputs: Outputs, answers: Any) -> bool:
    """numpy's argmax stops at the first NaN, so one row's winner tells for the whole row.

    answers: an array where outputs is one; not looked at otherwise.
    """
    if isinstance(outputs, np.ndarray) and answers.size == 1:
        winner = outputs.item(answers.item())
        return bool(winner != winner)  # noqa: PLR0124 - NaN alone
    return has_nan(outputs)


def has_nan(outputs: Outputs, _answers: Answers | None = None) -> bool:
    """One pass over the outputs: a sum of squares, or a maximum, is NaN where a term is."""
    if isinstance(outputs, np.ndarray):
        if outputs.dtype.kind not in "fc":
            return False
        if outputs.size <= _SMALL:  # a maximum costs microseconds, this a tenth of it
            flat = outputs.ravel()
            total = flat.dot(flat)
        else:
            total = outputs.max()
        # Complex infinities make a NaN square, too: look again.
        return bool(total != total) and bool(np.isnan(outputs).any())  # noqa: PLR0124 - NaN alone
    arrays = outputs.values() if isinstance(outputs, Mapping) else outputs
    return any(has_nan(a if _of_arrays(a) else np.asarray(a)) for a in arrays)


def _of_arrays(value: object) -> bool:
    """One output whose rows may differ in length, so that no one array can be made of them."""
    return isinstance(value, list | tuple) and any(isinstance(row, np.ndarray) for row in value)


def _chosen(outputs: Mapping[str, Array], name: str | None) -> Array:
    if name is None:
        return next(iter(outputs.values()))
    if name not in outputs:
        raise ConfigError(
            f"the manifest's output {name!r} is not among the model's: {', '.join(outputs)}"
        )
    return outputs[name]
