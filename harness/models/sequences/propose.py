"""Finds the batch axes, constants and states of a model file by running the model with zeros. `init` writes the result
to a manifest.

An axis is the batch axis if the model accepts sizes 2 and 3 on this axis. An output is the next state of an input if
both have the same shape and type, and one of two conditions holds: their names denote the same state, or no other input
has this shape and the batch is not the first dimension.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from typing import Any

import numpy as np

from harness.errors import one_line
from harness.models.sequences.names import is_batch, is_like_a_state, likely_value, paired
from harness.types import Array, Backend, Batch, HasOutputs, Shape, TensorSpec

SIZES = (2, 3)
"""Batch sizes with which the model is run to find out which axis of an output is the batch axis."""

MOST_TRIALS = 32
"""Maximum number of combinations of batch axes that the search tries."""

NO_SAMPLES = "no input has a dimension for the samples of a batch"

GUESSED_SIZE = 1
"""Size that is assumed for an open dimension if the user does not set it. One step of a recurrent network accepts size
1 in every dimension.
"""

Shapes = Mapping[str, tuple[int, ...]]
"""Maps an input's name to the sizes that the user gives, in the order of the file. The size of the batch axis is
ignored.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Proposed fields of a manifest. The tensor specifications come from the file, with known or guessed sizes."""

    inputs: tuple[TensorSpec, ...]
    """Inputs that are not states, including constants."""
    axes: Mapping[str, int | None]
    """Batch axis of each input of the file."""
    values: Mapping[str, bool | int | float]
    """Value of each constant."""
    states: Mapping[str, tuple[str, TensorSpec]]
    """Maps the name of a state's input to the name and specification of its output."""
    outputs: Mapping[str, int | None]
    """Batch axis of each output that is not a state; None if the number of rows depends on the data."""
    guessed: frozenset[str] = field(default_factory=frozenset)
    """Inputs for which a size was guessed."""
    fixed: int | None = None
    """The batch size that the file requires."""
    vocabulary: int | None = None
    """Number of tokens in a language model's vocabulary; None for any other model."""

    @property
    def is_plain(self) -> bool:
        """Whether each input and output is a batch of samples with the batch axis first."""
        axes = [*self.axes.values(), *self.outputs.values()]
        return not self.states and not self.values and all(axis == 0 for axis in axes)


class _Unfit(Exception):
    """Raised if the model rejects a combination of axes."""


def propose(
    backend: Backend, specs: Sequence[TensorSpec], shapes: Shapes
) -> tuple[Proposal | None, str]:
    """Returns the proposal, or None and the reason. specs: all inputs, in the file's layout. backend: a backend that
    accepts arrays in the file's layout (BackendSetup.batch_axes).
    """
    why = ""
    if any(spec.dtype == "string" for spec in specs):
        return None, "an input takes texts"
    for axes in islice(_axes(specs), MOST_TRIALS):
        try:
            return _Trial(backend, specs, shapes, axes).proposal(), ""
        except _Unfit as e:
            why = why or one_line(e)
    return None, why


def _axes(specs: Sequence[TensorSpec]) -> Iterator[Mapping[str, int | None]]:
    """Yields combinations of batch axes, the most likely first. Omits combinations with two different fixed batch
    sizes.
    """
    open_sizes = [size for spec in specs for size in set(spec.shape) if isinstance(size, str)]
    names = {size for size in open_sizes if is_batch(size)}
    names = names or {size for size in open_sizes if open_sizes.count(size) > 1}
    choices = [_choices(spec.shape, names) for spec in specs]
    for axes in product(*choices):
        pairs = zip(specs, axes, strict=True)
        sizes = {spec.shape[axis] for spec, axis in pairs if axis is not None}
        if sum(isinstance(size, int) for size in sizes) <= 1:
            yield dict(zip((spec.name for spec in specs), axes, strict=True))


def _choices(shape: Shape, names: set[Any]) -> Sequence[int | None]:
    """Returns the axes that may be the batch axis. names: size names that denote the batch."""
    named = [at for at, size in enumerate(shape) if size in names and isinstance(size, str)]
    if named:
        return named
    if not shape or (len(shape) == 1 and isinstance(shape[0], int)):
        return [None]
    unknown = [at for at, size in enumerate(shape) if size is None]
    unknown += [at for at, size in enumerate(shape) if isinstance(size, str)]
    if unknown:
        return unknown
    # In a state [layers, batch, hidden] with one layer, the first two sizes are 1, so the second axis is tried first as
    # the batch axis.
    is_state = len(shape) > 2 and shape[:2] == (1, 1)
    return [1, 0, *range(2, len(shape))] if is_state else range(len(shape))


class _Trial:
    """Runs the model with one combination of batch axes."""

    def __init__(
        self,
        backend: Backend,
        specs: Sequence[TensorSpec],
        shapes: Shapes,
        axes: Mapping[str, int | None],
    ) -> None:
        self._backend, self._axes = backend, axes
        self._guessed: set[str] = set()
        self._specs = [self._sized(spec, shapes.get(spec.name)) for spec in specs]
        self._values = {
            spec.name: likely_value(spec.name, spec.dtype)
            for spec in specs
            if axes[spec.name] is None
        }
        sizes = {spec.shape[axis] for spec in specs if (axis := axes[spec.name]) is not None}
        self._fixed = next((size for size in sizes if isinstance(size, int)), None)

    def _sized(self, spec: TensorSpec, own: Sequence[int] | None) -> TensorSpec:
        """Returns the input with a number for each size except the batch size."""
        axis, sizes = self._axes[spec.name], list[int | str | None](spec.shape)
        for at, size in enumerate(spec.shape):
            if at == axis:
                sizes[at] = "batch" if not isinstance(size, int) else size
            elif not isinstance(size, int):
                given = own[at] if own is not None and at < len(own) else None
                sizes[at] = given or GUESSED_SIZE
                if given is None:
                    self._guessed.add(spec.name)
        return spec._replace(shape=tuple(sizes))

    def proposal(self) -> Proposal:
        sizes = SIZES if self._fixed is None else (self._fixed,)
        runs = {size: self._outputs(size) for size in sizes}
        names = list(runs[sizes[0]])
        axes = {
            name: _batch_axis({n: run[name].shape for n, run in runs.items()}) for name in names
        }
        states = self._states(runs[sizes[0]], sizes[0], axes)
        answers = {n: axis for n, axis in axes.items() if n not in states.values()}
        if not answers:
            raise _Unfit("every output is a state, so the model returns no answer")
        values = {name: one for name, one in self._values.items() if name not in states}
        if values.keys() | states.keys() == {spec.name for spec in self._specs}:
            raise _Unfit(NO_SAMPLES)
        if next(iter(answers.values())) is not None:
            # The first output contains the answers, so an unknown axis of the other outputs does not matter.
            answers = {name: axis or 0 for name, axis in answers.items()}
        named = {spec.name: spec for spec in self._specs}
        return Proposal(
            inputs=tuple(spec for spec in self._specs if spec.name not in states),
            axes=self._axes,
            values=values,
            states={name: (output, named[name]) for name, output in states.items()},
            outputs=answers,
            guessed=frozenset(self._guessed - states.keys()),
            fixed=self._fixed,
        )

    def _outputs(self, size: int) -> dict[str, Array]:
        """Runs a batch of zeros, and returns its outputs by name."""
        batch = Batch(size, {spec.name: self._zeros(spec, size) for spec in self._specs})
        try:
            outputs = self._backend.infer(batch)
        # A framework may raise any error when the model rejects these shapes.
        except Exception as e:
            raise _Unfit(one_line(e)) from e
        if isinstance(outputs, Mapping):
            return {name: np.asarray(rows) for name, rows in outputs.items()}
        names = self._backend.outputs() if isinstance(self._backend, HasOutputs) else ()
        return {next(iter(names), "output"): np.asarray(outputs)}

    def _zeros(self, spec: TensorSpec, size: int) -> Array:
        axis = self._axes[spec.name]
        shape = [size if at == axis else int(count or 0) for at, count in enumerate(_numbers(spec))]
        return np.full(tuple(shape), self._values.get(spec.name, 0), spec.dtype)

    def _states(
        self, outputs: Mapping[str, Array], size: int, axes: Mapping[str, int | None]
    ) -> dict[str, str]:
        """Maps the input name of each state to its output name. Returns {} if no input with data would remain."""
        every = {
            spec.name: self._zeros(spec, size)
            for spec in self._specs
            if spec.dtype != "bool"  # a bool may be a mask that the model passes through unchanged
        }
        states = {
            name: output
            for name, output in paired(every, outputs).items()
            if _is_alike(every[name], outputs[output])
        }
        inputs = {name: rows for name, rows in every.items() if name not in self._values}
        for name, rows in inputs.items():
            free = [
                n for n, one in outputs.items() if n not in states.values() and _is_alike(rows, one)
            ]
            own_axis = self._axes[name]
            same = [n for n in free if axes[n] in (own_axis, None)] or free
            rivals = [n for n, one in inputs.items() if n not in states and _is_alike(rows, one)]
            if name not in rivals or len(same) != len(rivals):
                continue
            # If several states have the same shape, outputs are matched to inputs in order.
            if all(map(is_like_a_state, rivals)) or (own_axis and len(rivals) == 1):
                states[name] = same[0]
        return states if inputs.keys() - states.keys() else {}


def _numbers(spec: TensorSpec) -> Sequence[int]:
    return [size if isinstance(size, int) else 0 for size in spec.shape]


def _is_alike(rows: Array, other: Array) -> bool:
    return rows.shape == other.shape and rows.dtype == other.dtype


def _batch_axis(shapes: Mapping[int, Sequence[int]]) -> int | None:
    """Returns the output axis whose size equals the batch size in every run, or None. shapes: output shapes by batch
    size.
    """
    ranks = {len(shape) for shape in shapes.values()}
    if len(ranks) > 1:
        return None
    places = range(ranks.pop())
    return next((at for at in places if all(s[at] == n for n, s in shapes.items())), None)
