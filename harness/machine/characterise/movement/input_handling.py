"""The benchmark `input-handling`, which passes a model's input to ONNX Runtime as an array, as an OrtValue, or through
IO binding.

The model scales an image by channel, so its input and output are as large as a network's input.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from harness.machine.characterise.arithmetic.libraries import ort
from harness.machine.characterise.arithmetic.libraries.operations import operands
from harness.types import Array, Benchmark, Point, Ready

BATCHES = (1, 64)
IMAGE = (3, 224, 224)
WAYS = ("array", "OrtValue", "IOBinding")


class InputHandling:
    """Passes inputs to ONNX Runtime. The work at each point is the number of bytes in the input."""

    about = "a model's input, copied and bound"

    def points(self, threads: int) -> Iterator[Point]:
        del threads
        for batch in BATCHES:
            for way in WAYS:
                yield Point(
                    settings={
                        "library": "ort",
                        "way": way,
                        "input": "x".join(map(str, (batch, *IMAGE))),
                    },
                    open=partial(_ready, way, (batch, *IMAGE)),
                    work=4 * batch * int(np.prod(IMAGE)),
                    unit="B",
                )


@contextmanager
def _ready(way: str, shape: tuple[int, ...]) -> Iterator[Ready]:
    images, scale = operands(shape, (1, 3, 1, 1))
    session = ort.session(_model(shape, scale), 1)
    call, answer = _CALLS[way](session, images)
    call()
    right = session.run(None, {"x": images})[0]
    same = bool(np.array_equal(answer(), right))
    yield Ready(call, facts={"same_as_array": same})


def _model(shape: tuple[int, ...], scale: Array) -> bytes:
    from onnx import TensorProto, helper

    kind = (TensorProto.FLOAT, shape)
    return ort.model([helper.make_node("Mul", ["x", "s"], ["y"])], {"s": scale}, kind, kind)


Called = tuple[Callable[[], Any], Callable[[], Array]]
"""The timed call, and a function that returns the call's result."""


def _array(session: Any, images: Array) -> Called:
    feed = {"x": images}
    return partial(session.run, None, feed), lambda: session.run(None, feed)[0]


def _ort_value(session: Any, images: Array) -> Called:
    import onnxruntime

    feed = {"x": onnxruntime.OrtValue.ortvalue_from_numpy(images)}

    def answer() -> Array:
        made: Array = session.run_with_ort_values(["y"], feed)[0].numpy()
        return made

    return partial(session.run_with_ort_values, ["y"], feed), answer


def _io_binding(session: Any, images: Array) -> Called:
    """Returns a call that copies neither the input nor the output, and reuses the output's memory."""
    import onnxruntime

    given = onnxruntime.OrtValue.ortvalue_from_numpy(images)
    made = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros_like(images))
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", given)
    binding.bind_ortvalue_output("y", made)
    return partial(session.run_with_iobinding, binding), made.numpy


_CALLS: dict[str, Callable[[Any, Array], Called]] = dict(
    zip(WAYS, (_array, _ort_value, _io_binding), strict=True)
)

_: type[Benchmark] = InputHandling
