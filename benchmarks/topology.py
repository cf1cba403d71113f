"""A topology of the onnx package with seeded random weights and a symbolic batch.

The files in onnx/backend/test/data/light hold no weights: ConstantOfShape nodes make them at run
time, all equal, which leads to denormals; the batch is fixed at 1.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

_FLOAT = onnx.TensorProto.FLOAT


def write_light(name: str, path: Path) -> None:
    """name: e.g. 'squeezenet'. For models without a Reshape to a fixed batch."""
    light = Path(onnx.__file__).parent / "backend/test/data/light"
    model = onnx.load(light / f"light_{name}.onnx")
    graph = model.graph
    given = {i.name: i for i in graph.initializer}
    random = np.random.default_rng(0)
    weights, rest, shapes = {}, [], set()
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            dims = numpy_helper.to_array(given[node.input[0]])
            weights[node.output[0]] = _weights(random, tuple(int(d) for d in dims))
            shapes.add(node.input[0])
        else:
            rest.append(node)
    for tensor in graph.initializer:
        if tensor.name not in shapes and tensor.data_type == _FLOAT:
            weights[tensor.name] = _weights(random, tuple(tensor.dims))
    kept = [t for t in graph.initializer if t.name not in shapes | weights.keys()]
    made = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    _replace(graph.node, rest)
    _replace(graph.initializer, kept + made)
    _replace(graph.input, [i for i in graph.input if i.name not in given])
    _replace(graph.value_info, [])
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    model.ir_version = 8  # before 4, every weight had to be an input, too
    onnx.checker.check_model(model)
    onnx.save(model, path)


def _weights(
    random: np.random.Generator, shape: tuple[int, ...]
) -> "np.typing.NDArray[np.float32]":
    """Scaled (He) so that activations neither vanish nor overflow; biases small."""
    scale = (2.0 / np.prod(shape[1:])) ** 0.5 if len(shape) > 1 else 0.01
    return (random.standard_normal(shape) * scale).astype(np.float32)


def _replace(field: object, content: list[object]) -> None:
    del field[:]  # type: ignore[attr-defined] # a protobuf repeated field
    field.extend(content)  # type: ignore[attr-defined]
