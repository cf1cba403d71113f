"""Runs batches of samples on a model whose file has states, constants or an unusual batch axis.

The model file computes one step. Without states, one step processes the whole batch. With states, a sample is a
sequence whose frames pass through the model one after the other. The first frame gets the start states, and each later
frame gets the states that the previous frame returned. States are reset after each batch, so the order of samples does
not matter.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Self

import numpy as np

from harness.errors import ConfigError
from harness.models.manifest.layout import Layout, axis_of
from harness.models.manifest.schema import Input, State
from harness.types import (
    OTHER_NAMES,
    Array,
    Backend,
    BackendSetup,
    Batch,
    HasOutputs,
    HasSignature,
    Outputs,
    Shape,
    TensorSpec,
    show_shape,
)

Arrays = Mapping[str, Array]


class SequenceBackend:
    """Computes the answers to batches of samples. The batch axis of samples and answers comes first. With states,
    samples and answers are (n, frames, ...).

    A batch of sequences advances frame by frame. The states of all sequences in the batch are joined along the states'
    batch axes.
    """

    def __init__(
        self, cls: Callable[[BackendSetup], Backend], layout: Layout, setup: BackendSetup
    ) -> None:
        """cls: the class of the backend that computes one step."""
        self.layout = layout
        self._name = setup.model_name
        self._step = cls(replace(setup, batch_axes=layout.input_axes))
        self._stack = ExitStack()
        self._filled: dict[int, Arrays] = {}
        self._is_checked = False

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._step)
            self._specs = self._signature_in_file()
            self.fixed = self._fixed_batch()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def signature(self) -> tuple[TensorSpec, ...]:
        """Returns the inputs that have data, with the batch axis first."""
        named = {spec.name: spec for spec in self._specs}
        return tuple(self.layout.sample(named[name], self.fixed) for name in self.layout.inputs)

    def outputs(self) -> tuple[str, ...]:
        """Returns the outputs that are not states, or () if the file does not name its outputs."""
        names = self._step.outputs() if isinstance(self._step, HasOutputs) else ()
        of_states = {state.output for state in self.layout.states.values()}
        return tuple(name for name in names if name not in of_states)

    @property
    def tunable(self) -> Mapping[str, Sequence[str]]:
        choices: Mapping[str, Sequence[str]] = getattr(self._step, "tunable", {})
        return choices

    def describe(self) -> Mapping[str, object]:
        states = {"states": list(self.layout.states)} if self.layout.states else {}
        return {**self._step.describe(), **states}

    def infer(self, batch: Batch) -> Outputs:
        size = self.fixed or batch.size
        if batch.size > size:
            raise ConfigError(
                f"the model takes batches of {size}, but {batch.size} samples arrived at once: use --max-batch {size}"
            )
        padded = {name: _padded(rows, size) for name, rows in batch.inputs.items()}
        if self.layout.states:
            return self._sequences(padded, size, batch.size)
        axes = self.layout.input_axes
        inputs = {name: _laid_out(rows, 0, axes[name]) for name, rows in padded.items()}
        return self._by_sample(self.step(inputs, {}, size)[0], batch.size)

    def _sequences(self, samples: Arrays, size: int, count: int) -> Outputs:
        """Returns the answers to `count` sequences by output, (count, frames, ...)."""
        states = self.starts(size)
        steps: list[Arrays] = []
        cut, frames = self.cut(samples)
        for at in range(frames):
            inputs = {name: rows[at] for name, rows in cut.items()}
            answers, states = self.step(inputs, states, size)
            steps.append(answers)
        whole = {
            name: np.stack([self._rows(name, step[name], count) for step in steps], axis=1)
            for name in steps[0]
        }
        return _alone_or_named(whole)

    def cut(self, samples: Arrays) -> tuple[Arrays, int]:
        """Returns one array (frames, ...) per input, with each frame in the file's layout, and the number of frames.

        samples: (n, frames, ...) by input.
        """
        axes = self.layout.input_axes
        lengths = {name: rows.shape[1] for name, rows in samples.items()}
        if len(set(lengths.values())) > 1:
            each = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise ConfigError(
                f"the inputs of a sequence differ in their number of frames ({each}): give each input the same number"
            )
        frames = next(iter(lengths.values()))
        if not frames:
            raise ConfigError("a sequence has no frames: give each sample at least one")
        return {name: _laid_out(rows, 1, axes[name]) for name, rows in samples.items()}, frames

    def advance(
        self, frames: Sequence[Arrays], states: Sequence[Arrays]
    ) -> tuple[Outputs, list[Arrays]]:
        """Advances sequences by one frame. Returns the answers by output, (n, ...), and the next states of each
        sequence.

        frames, states: the frame and the states of each sequence, in the file's layout with a batch of 1.
        """
        count = len(frames)
        size = self.fixed or count
        axes = self.layout.input_axes
        # Copies of the last sample fill up a batch of fixed size.
        copies = [*range(count), *[count - 1] * (size - count)]
        inputs, held = (_joined([each[at] for at in copies], axes) for each in (frames, states))
        answers, following = self.step(inputs, held, size)
        return self._by_row(answers, count), _apart(following, axes, count)

    def first_feeds(self, batch: Batch) -> dict[str, Array]:
        """Returns all inputs of the file for the samples of a batch, or for the first frames of the batch's sequences."""
        size = self.fixed or batch.size
        samples = {name: _padded(rows, size) for name, rows in batch.inputs.items()}
        if self.layout.states:
            cut, _ = self.cut(samples)
            inputs = {name: rows[0] for name, rows in cut.items()}
        else:
            axes = self.layout.input_axes
            inputs = {name: _laid_out(rows, 0, axes[name]) for name, rows in samples.items()}
        return {**inputs, **self.starts(size), **self._constants(size)}

    def starts(self, size: int) -> Arrays:
        """Returns the start states of `size` sequences, in the file's layout."""
        return {name: _full(one, size, one.start) for name, one in self.layout.states.items()}

    def step(self, inputs: Arrays, states: Arrays, size: int) -> tuple[Arrays, Arrays]:
        """Returns answers by output, and the next states by input. All arrays have the layout of the model file."""
        outputs = self._step.infer(Batch(size, {**inputs, **states, **self._constants(size)}))
        named = outputs if isinstance(outputs, Mapping) else self._named(outputs)
        if not self._is_checked:
            self._check(named, states)
            self._is_checked = True
        following = {
            name: np.asarray(named[one.output]) for name, one in self.layout.states.items()
        }
        return {name: np.asarray(named[name]) for name in self.layout.outputs}, following

    def _named(self, outputs: Array | Sequence[Array]) -> Arrays:
        """Returns the model's only output by name, for a backend that returns the output without a name."""
        only = next(iter(self.layout.outputs))
        return {only: outputs if isinstance(outputs, np.ndarray) else np.stack(list(outputs))}

    def _constants(self, size: int) -> Arrays:
        if size not in self._filled:
            self._filled[size] = {
                name: _full(one, size, one.value or 0)
                for name, one in self.layout.constants.items()
            }
        return self._filled[size]

    def _by_row(self, answers: Arrays, count: int) -> Outputs:
        return _alone_or_named({n: self._rows(n, rows, count) for n, rows in answers.items()})

    def _by_sample(self, answers: Arrays, count: int) -> Outputs:
        # The batch contains one sample, and the whole output is the answer to this sample.
        if self.layout.rows_follow_data:
            return {
                name: [rows] if self.layout.outputs[name] is None else self._rows(name, rows, count)  # type: ignore[misc]
                for name, rows in answers.items()
            }
        return self._by_row(answers, count)

    def _rows(self, name: str, rows: Array, count: int) -> Array:
        """Returns `count` rows of an output of the file, (count, ...)."""
        axis = self.layout.outputs[name]
        if axis is None:
            return rows[np.newaxis]
        if rows.ndim <= axis:
            raise ConfigError(
                f"output {name!r} of the model has the shape {show_shape(rows.shape)}, which has no axis {axis}: correct "
                "`batch_axis` of this output in the manifest"
            )
        return (np.moveaxis(rows, axis, 0) if axis else rows)[:count]

    def _check(self, outputs: Arrays, states: Arrays) -> None:
        """Raises ConfigError if an output is missing, or if a state changes its shape or type."""
        wanted = [*self.layout.outputs, *(one.output for one in self.layout.states.values())]
        for name in wanted:
            if name not in outputs:
                raise ConfigError(
                    f"model {self._name!r}: the manifest's output {name!r} is not among the file's "
                    f"outputs ({', '.join(outputs)}): {OTHER_NAMES}"
                )
        for name, before in states.items():
            output = self.layout.states[name].output
            after = np.asarray(outputs[output])
            if (after.dtype, after.shape) != (before.dtype, before.shape):
                raise ConfigError(
                    f"model {self._name!r}: the state {name!r} is {before.dtype} {show_shape(before.shape)}, but its "
                    f"output {output!r} is {after.dtype} {show_shape(after.shape)}: "
                    "correct `states` in the manifest, because a state keeps its shape and type"
                )

    def _signature_in_file(self) -> tuple[TensorSpec, ...]:
        """Returns all inputs of the file. Raises ConfigError if the manifest describes other inputs."""
        if not isinstance(self._step, HasSignature):
            raise ConfigError(
                f"model {self._name!r} has states, constants or other batch axes, but the backend does not report its "
                "file's inputs: use a different backend"
            )
        specs = self._step.signature()
        in_file, axes = {spec.name: spec for spec in specs}, self.layout.input_axes
        if in_file.keys() != axes.keys():
            raise ConfigError(
                f"model {self._name!r}: the manifest's inputs and states are {sorted(axes)}, but "
                "the file's inputs are "
                f"{sorted(in_file)}: {OTHER_NAMES}"
            )
        fed: Mapping[str, Input | State] = {**self.layout.constants, **self.layout.states}
        for name, one in fed.items():
            dtype, shape = in_file[name].dtype, in_file[name].shape
            if dtype != one.dtype or not _fits(one.shape, shape, axes[name]):
                raise ConfigError(
                    f"model {self._name!r}: the manifest's input {name!r} is {one.dtype} "
                    f"{show_shape(one.shape)}, but the file's is {dtype} {show_shape(shape)}"
                )
        for name in self.layout.inputs:
            axis = axes[name]
            if axis is not None and len(in_file[name].shape) <= axis:
                raise ConfigError(
                    f"model {self._name!r}: input {name!r} is {show_shape(in_file[name].shape)} in the file, which has no "
                    f"axis {axis}: correct its `batch_axis`"
                )
        return specs

    def _fixed_batch(self) -> int | None:
        """Returns the batch size that the file requires, or None if the file accepts any size."""
        sizes = {1} if self.layout.is_alone else set()
        for spec in self._specs:
            axis = self.layout.input_axes[spec.name]
            size = spec.shape[axis] if axis is not None else None
            if isinstance(size, int):
                sizes.add(size)
        if len(sizes) > 1:
            raise ConfigError(
                f"model {self._name!r}: the batch size is {' and '.join(map(str, sorted(sizes)))} "
                "in different inputs or outputs: "
                "correct `batch_axis` in the manifest"
            )
        return next(iter(sizes), None)


def _fits(ours: Shape, theirs: Shape, axis: int | None) -> bool:
    """Returns whether the sizes agree. Ignores the batch axis and sizes that the file leaves open."""
    pairs = enumerate(zip(ours, theirs, strict=False))
    return len(ours) == len(theirs) and not any(
        at != axis and isinstance(x, int) and isinstance(y, int) and x != y for at, (x, y) in pairs
    )


def _full(one: Input | State, size: int, number: float) -> Array:
    """Returns an array for a constant, or for the start of a state."""
    axis = axis_of(one.batch_axis)
    shape = [size if at == axis else count for at, count in enumerate(one.shape)]
    filled: Array = np.full(tuple(int(count or 0) for count in shape), number, one.dtype)
    filled.setflags(write=not shape)  # writable, because OpenVINO refuses a read-only scalar
    return filled


def _padded(rows: Array, size: int) -> Array:
    """Returns `size` rows, (size, ...), by repeating the last row."""
    short = size - len(rows)
    return np.concatenate([rows, np.repeat(rows[-1:], short, axis=0)]) if short else rows


def _laid_out(rows: Array, frames: int, axis: int | None) -> Array:
    """Moves the batch axis from the first position to its position in the file, and returns contiguous rows. frames: 1
    to put the frame axis first, or 0 for rows without a frame axis.
    """
    # the manifest's validation ensures that an input without a batch axis has a `value`
    assert axis is not None
    if frames:
        return np.ascontiguousarray(np.moveaxis(rows, (1, 0), (0, 1 + axis)))
    return np.ascontiguousarray(np.moveaxis(rows, 0, axis))


def _joined(each: Sequence[Arrays], axes: Mapping[str, int | None]) -> Arrays:
    """Joins the arrays of several sequences along their batch axes."""
    if len(each) == 1:
        return {name: np.ascontiguousarray(rows) for name, rows in each[0].items()}
    return {
        name: np.concatenate([one[name] for one in each], axis=axes[name] or 0) for name in each[0]
    }


def _apart(joined: Arrays, axes: Mapping[str, int | None], count: int) -> list[Arrays]:
    """Splits joined arrays into separate arrays for each of the first `count` sequences, the inverse of `_joined`."""
    if all((axis := axes[name]) is None or rows.shape[axis] == 1 for name, rows in joined.items()):
        return [joined]
    return [
        {name: rows.take([at], axis=axes[name] or 0) for name, rows in joined.items()}
        for at in range(count)
    ]


def _alone_or_named(answers: Arrays) -> Outputs:
    return next(iter(answers.values())) if len(answers) == 1 else answers
