"""Describes a model in which some inputs or outputs are not batches with the batch axis first.

A manifest may declare another batch axis, inputs with a fixed value, and states. All other parts of the harness see
arrays with the batch axis first. A sample contains only the inputs that have data. If the model has states, a sample is
a sequence of frames.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from harness.models.manifest.schema import (
    NO_BATCH,
    BatchAxis,
    Input,
    Manifest,
    Output,
    State,
)
from harness.types import TensorSpec

FRAMES = "frames"
"""The name of the frame axis if sequences differ in length. The frame axis directly follows the batch axis."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a model's inputs and outputs in its file."""

    inputs: Mapping[str, Input]
    """The inputs that have data, by name."""
    constants: Mapping[str, Input]
    """The inputs with a `value`, by name."""
    states: Mapping[str, State]
    """The states by input name."""
    outputs: Mapping[str, int | None]
    """Batch axis of each output in the manifest. The axis is None if the number of rows depends on the data."""
    frames: int | None

    @property
    def input_axes(self) -> Mapping[str, int | None]:
        """Batch axis of every input of the file, by name; None for an input without a batch."""
        tensors: Mapping[str, Input | State] = {**self.inputs, **self.constants, **self.states}
        return {name: axis_of(one.batch_axis) for name, one in tensors.items()}

    @property
    def rows_follow_data(self) -> tuple[str, ...]:
        """The outputs without a batch."""
        return tuple(name for name, axis in self.outputs.items() if axis is None)

    @property
    def is_alone(self) -> bool:
        """Whether batches contain only one sample, because a state or an output has no batch."""
        states = [one.batch_axis for one in self.states.values()]
        return bool(self.rows_follow_data) or NO_BATCH in states

    def samples(self, fixed: int | None = None) -> tuple[TensorSpec, ...]:
        """Returns the inputs that have data, with the batch axis first. fixed: the batch size in the file, or None for
        any size.
        """
        return tuple(self.sample(one.spec, fixed) for one in self.inputs.values())

    def sample(self, spec: TensorSpec, fixed: int | None) -> TensorSpec:
        """Returns an input of the file with the batch axis first and the frame axis second. fixed: see `samples`."""
        axis = self.input_axes[spec.name]
        # the manifest's validation ensures that an input without a batch axis has a `value`
        assert axis is not None
        batch = spec.shape[axis] if fixed is None else fixed
        frames = (self.frames or FRAMES,) if self.states else ()
        rest = (*spec.shape[:axis], *spec.shape[axis + 1 :])
        return TensorSpec(spec.name, spec.dtype, (batch, *frames, *rest))


def axis_of(axis: BatchAxis) -> int | None:
    return axis if isinstance(axis, int) else None


def layout_of(manifest: Manifest) -> Layout | None:
    """Returns the layout, or None if each input and output is a batch of samples with the batch axis first."""
    tensors: list[Input | Output] = [*manifest.inputs, *manifest.outputs]
    has_values = any(one.value is not None for one in manifest.inputs)
    if not manifest.states and not has_values and all(one.batch_axis == 0 for one in tensors):
        return None
    return Layout(
        inputs={one.name: one for one in manifest.inputs if one.value is None},
        constants={one.name: one for one in manifest.inputs if one.value is not None},
        states=manifest.states,
        outputs={one.name: axis_of(one.batch_axis) for one in manifest.outputs},
        frames=manifest.frames,
    )
