"""ONNX files as other tools write them. Each function writes one file and returns its path.

No such file is stored in the repository: the functions run exporters, quantisers and optimisers, or imitate their
output node by node.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builders.models.nets import Net

onnx = pytest.importorskip("onnx")
FLOAT, INT64, STRING = (getattr(onnx.TensorProto, kind) for kind in ("FLOAT", "INT64", "STRING"))
_OPSET = 17
NOT_UTF8 = "pkg.torch.onnx.stack_trace", "File a.py, line 1, in forward\n" + "é" * 200
"""Text that torch stores in each node, long enough that a length byte exceeds 0x7f."""


def _model(
    graph: Any, path: Path, functions: Sequence[Any] = (), domains: Sequence[str] = ()
) -> Path:
    opsets = [onnx.helper.make_opsetid(name, 1) for name in domains]
    opsets.append(onnx.helper.make_opsetid("", _OPSET))
    made = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions)
    onnx.save(made, path)
    return path


def _value(name: str, *shape: int | str, kind: int = FLOAT) -> Any:
    return onnx.helper.make_tensor_value_info(name, kind, list(shape) if shape else None)


def _scalar(name: str, kind: int) -> Any:
    return onnx.helper.make_tensor_value_info(name, kind, [])


def _net(net: Net, path: Path, inputs: Sequence[Any], *outputs: str) -> Path:
    made = [_value(name) for name in outputs]
    return _model(onnx.helper.make_graph(net.nodes, "net", inputs, made, net.weights), path)


def with_metadata(path: Path, *, external: bool = False) -> Path:
    """Writes a residual network with everything that torch's newest exporter adds: doc strings, and metadata for the
    model, the graph, nodes and values. The weights of the network are in a separate file.
    """
    net = Net()
    end = net.add("Relu", net.conv("x"))
    end = net.add("Relu", net.add("Add", net.conv(end), end))
    net.save(path, end)
    model = onnx.load(path)
    parts = [model, model.graph, *model.graph.node, *model.graph.input, *model.graph.initializer]
    for part in parts:
        part.doc_string = NOT_UTF8[1]
        part.metadata_props.add(key=NOT_UTF8[0], value=NOT_UTF8[1])
    onnx.save(
        model,
        path,
        save_as_external_data=external,
        location=f"{path.name}.data",
        size_threshold=0,
    )
    return path


def from_torch(path: Path) -> Path:
    """Exports with torch's newest exporter. Call this function in a separate process: see `exported`."""
    import torch

    class Net(torch.nn.Module):  # type: ignore[misc] # torch may not be installed
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
            self.norm = torch.nn.BatchNorm2d(8)
            self.head = torch.nn.Linear(8, 4)

        def forward(self, x: Any) -> Any:
            x = torch.nn.functional.silu(self.norm(self.conv(x)))
            return self.head(x.mean((2, 3)))

    example = torch.zeros(2, 3, 16, 16)
    torch.onnx.export(
        Net().eval(),
        (example,),
        path,
        dynamo=True,
        dynamic_shapes={"x": {0: torch.export.Dim("batch")}},
        input_names=["x"],
        output_names=["logits"],
        verbose=False,
    )
    return path


def silu(path: Path) -> Path:
    """Writes x * sigmoid(x) after convolutions, as in EfficientNet, with a squeeze-excite gate."""
    net = Net()
    end = "x"
    for _ in range(2):
        end = net.conv(end)
        end = net.add("Mul", end, net.add("Sigmoid", end))
        gate = net.add("GlobalAveragePool", end)
        gate = net.add("Sigmoid", net.add("Conv", gate, net.weight(16, 16, 1, 1)))
        end = net.add("Mul", end, gate)
    return net.save(path, end)


def classifier(path: Path) -> Path:
    """Writes convolutions with a sum, pooling and a matrix product, which are the operators that quantisers change."""
    net = Net()
    end = net.add("Relu", net.conv("x"))
    for _ in range(2):
        inner = net.conv(net.add("Relu", net.conv(end)))
        end = net.add("Relu", net.add("Add", inner, end))
    flat = net.add("Flatten", net.add("GlobalAveragePool", end))
    return net.save(path, net.add("MatMul", flat, net.weight(16, 10)))


def quantised(source: Path, path: Path, kind: str, *, by_default: bool = False) -> Path:
    """Quantises with ONNX Runtime's tools. kind: QDQ, or QOperator (integer operators replace float operators).
    by_default: use the tools' default types, which are signed, instead of unsigned activations.
    """
    quantization = pytest.importorskip("onnxruntime.quantization")
    random = np.random.default_rng(0)
    feeds = [{"x": random.standard_normal((1, 16, 16, 16)).astype(np.float32)} for _ in range(4)]
    left = iter(feeds)

    class Samples(quantization.CalibrationDataReader):  # type: ignore[misc, name-defined]
        def get_next(self) -> Any:
            return next(left, None)

    unsigned = {"activation_type": quantization.QuantType.QUInt8, "per_channel": True}
    quantization.quantize_static(
        source,
        path,
        Samples(),
        quant_format=quantization.QuantFormat[kind],
        **{} if by_default else unsigned,
    )
    return path


def optimised(source: Path, path: Path, level: str) -> Path:
    """Saves the model as optimised by ONNX Runtime. level: BASIC, EXTENDED or ALL."""
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    # Hides ONNX Runtime's warning that the file fits only this machine.
    options.log_severity_level = 3
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    options.optimized_model_filepath = str(path)
    ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
    return path


def transformer(path: Path, length: int = 8, hidden: int = 32) -> Path:
    """Writes an attention block and a feed-forward block as exporters do, with matrix products and a GELU made from
    Erf.
    """
    net = Net()
    random = np.random.default_rng(1)

    def constant(value: Any, kind: type = np.float32) -> str:
        name = f"c{len(net.weights)}"
        net.weights.append(onnx.numpy_helper.from_array(np.asarray(value, kind), name))
        return name

    def linear(x: str, inputs: int, outputs: int) -> str:
        product = net.add("MatMul", x, net.weight(inputs, outputs))
        return net.add("Add", product, constant(random.standard_normal(outputs)))

    def normal(x: str) -> str:
        ones, zeros = constant(np.ones(hidden)), constant(np.zeros(hidden))
        return net.add("LayerNormalization", x, ones, zeros, axis=-1)

    heads = constant([0, 0, 4, hidden // 4], np.int64)
    q, k, v = (
        net.add("Transpose", net.add("Reshape", linear("x", hidden, hidden), heads), perm=perm)
        for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    )
    scores = net.add("Div", net.add("MatMul", q, k), constant(np.sqrt(hidden / 4)))
    mixed = net.add("MatMul", net.add("Softmax", scores, axis=-1), v)
    joined = net.add("Transpose", mixed, perm=[0, 2, 1, 3])
    joined = net.add("Reshape", joined, constant([0, 0, hidden], np.int64))
    end = normal(net.add("Add", linear(joined, hidden, hidden), "x"))
    inner = linear(end, hidden, 4 * hidden)
    erf = net.add("Erf", net.add("Div", inner, constant(np.sqrt(2))))
    gelu = net.add("Mul", net.add("Mul", inner, net.add("Add", erf, constant(1))), constant(0.5))
    end = normal(net.add("Add", linear(gelu, 4 * hidden, hidden), end))
    return _net(net, path, [_value("x", "batch", length, hidden)], end)


def shuffled(source: Path, path: Path) -> Path:
    """Reverses the order of the nodes, because onnx's converters write nodes in any order and runtimes sort them."""
    model = onnx.load(source)
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))
    onnx.save(model, path)
    return path


def with_functions(path: Path) -> Path:
    """Writes two calls of a function that calls a second function; the second function computes a product and its
    activation.
    """
    node, function = onnx.helper.make_node, onnx.helper.make_function
    opsets = [onnx.helper.make_opsetid("", _OPSET), onnx.helper.make_opsetid("local", 1)]
    body = [node("MatMul", ["a", "b"], ["p"]), node("Relu", ["p"], ["c"])]
    inner = function("local", "Product", ["a", "b"], ["c"], body, opsets)
    body = [node("Product", ["a", "b"], ["p"], domain="local"), node("Sigmoid", ["p"], ["c"])]
    outer = function("local", "Layer", ["a", "b"], ["c"], body, opsets)
    net = Net()
    calls = [
        node("Layer", ["x", net.weight(16, 32)], ["h"], "first", domain="local"),
        node("Layer", ["h", net.weight(32, 8)], ["y"], "second", domain="local"),
    ]
    sides = [_value("x", "batch", 16)], [_value("y", "batch", 8)]
    graph = onnx.helper.make_graph(calls, "net", *sides, net.weights)
    return _model(graph, path, [inner, outer], ["local"])


def with_einsum(path: Path) -> Path:
    """Writes attention with Einsum, as JAX and parts of torch do."""
    net = Net()
    scores = net.add("Einsum", "x", "x", equation="b i d, b j d -> b i j")
    mixed = net.add("Einsum", net.add("Softmax", scores), "x", equation="bij,bjd->bid")
    out = net.add("Einsum", mixed, net.weight(16, 24), equation="...d,dk->...k")
    return _net(net, path, [_value("x", "batch", 8, 16)], out)


def with_branch(path: Path) -> Path:
    """Writes a product, followed by an If whose branches scale the product."""
    node = onnx.helper.make_node
    net = Net()
    two = onnx.numpy_helper.from_array(np.float32(2), "two")
    branches = {
        f"{name}_branch": onnx.helper.make_graph(
            [node(op, ["h", "two"], [name])], name, [], [_value(name, "batch", 10)]
        )
        for name, op in (("then", "Mul"), ("else", "Add"))
    }
    nodes = [
        node("MatMul", ["x", net.weight(16, 10)], ["h"], "product"),
        node("ReduceSum", ["h"], ["s"], "sum", keepdims=0),
        node("Greater", ["s", "two"], ["c"], "greater"),
        node("If", ["c"], ["y"], "branch", **branches),
    ]
    sides = [_value("x", "batch", 16)], [_value("y", "batch", 10)]
    return _model(onnx.helper.make_graph(nodes, "net", *sides, [*net.weights, two]), path)


def with_loop(path: Path) -> Path:
    """Writes a product that Loop applies three times, and a running sum by Scan."""
    node = onnx.helper.make_node
    net = Net()
    weight = net.weight(16, 16)
    truth = onnx.TensorProto.BOOL
    body = onnx.helper.make_graph(
        [
            node("Identity", ["go"], ["again"]),
            node("MatMul", ["h", weight], ["p"], "inner"),
            node("Tanh", ["p"], ["h2"]),
        ],
        "body",
        [_scalar("i", INT64), _scalar("go", truth), _value("h", "batch", 16)],
        [_scalar("again", truth), _value("h2", "batch", 16)],
    )
    step = onnx.helper.make_graph(
        [node("Add", ["sum", "row"], ["sum2"]), node("Identity", ["sum2"], ["told"])],
        "step",
        [_value("sum", 16), _value("row", 16)],
        [_value("sum2", 16), _value("told", 16)],
    )
    given = {"times": np.int64(3), "yes": np.bool_(True), "zero": np.zeros(16, np.float32)}
    constants = [onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in given.items()]
    nodes = [
        node("Loop", ["times", "yes", "x"], ["looped"], "loop", body=body),
        node("Scan", ["zero", "looped"], ["total", "y"], "scan", body=step, num_scan_inputs=1),
    ]
    sides = [_value("x", "batch", 16)], [_value("y", "batch", 16)]
    return _model(onnx.helper.make_graph(nodes, "net", *sides, [*net.weights, *constants]), path)


def with_strings(path: Path) -> Path:
    """Writes a model that takes words and returns one number per word."""
    keys = ["bad", "good"]
    encoder = onnx.helper.make_node(
        "LabelEncoder", ["words"], ["y"], "encode", domain="ai.onnx.ml",
        keys_strings=keys, values_floats=[-1.0, 1.0],
    )  # fmt: skip
    sides = [_value("words", "batch", 1, kind=STRING)], [_value("y", "batch", 1)]
    graph = onnx.helper.make_graph([encoder], "net", *sides)
    model = onnx.load(_model(graph, path))
    model.opset_import.append(onnx.helper.make_opsetid("ai.onnx.ml", 2))
    onnx.save(model, path)
    return path


def detector(path: Path, rows: int = 20) -> Path:
    """Writes a detection head that returns one long list with `rows` candidates per sample, without a sample axis."""
    net = Net()
    flat = net.add("GlobalAveragePool", net.conv("x"))
    flat = net.add("Flatten", flat)
    wide = net.add("MatMul", flat, net.weight(16, 4 * rows))
    shape = onnx.numpy_helper.from_array(np.asarray([-1, 4], np.int64), "shape")
    net.weights.append(shape)
    return net.save(path, net.add("Reshape", wide, "shape"))


def embedding(path: Path, words: int = 1000, width: int = 16) -> Path:
    """Writes a table from which each call reads only a few rows."""
    net = Net()
    table = net.weight(words, width)
    out = net.add("MatMul", net.add("Gather", table, "ids"), net.weight(width, 4))
    return _net(net, path, [_value("ids", "batch", 8, kind=INT64)], out)


def recurrent(path: Path, kind: str = "LSTM", steps: int = 6) -> Path:
    """Writes a recurrent layer as exporters do (time first inside, batch first outside), followed by a product."""
    net = Net()
    gates = {"LSTM": 4, "GRU": 3}[kind]
    weights = [net.weight(1, gates * 32, 16), net.weight(1, gates * 32, 32)]
    first = net.add("Transpose", "x", perm=[1, 0, 2])
    made = net.add(kind, first, *weights, hidden_size=32)
    axes = onnx.numpy_helper.from_array(np.asarray([1], np.int64), "axes")
    net.weights.append(axes)
    back = net.add("Transpose", net.add("Squeeze", made, "axes"), perm=[1, 0, 2])
    end = net.add("MatMul", back, net.weight(32, 4))
    return _net(net, path, [_value("x", "batch", steps, 16)], end)
