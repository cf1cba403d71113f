"""Matrix products and convolutions with LiteRT, from files that TensorFlow's converter writes."""

from collections.abc import Callable, Iterator
from typing import Any

from harness.machine.characterise.arithmetic.libraries import operations as op
from harness.types import Array, Ready


def product(side: int, precision: str, threads: int) -> Ready:
    x, w = op.operands((side, side), (side, side))
    return _ready(x, lambda tf, one: tf.linalg.matmul(one, tf.constant(w)), precision, threads)


def convolution(shape: op.Filter, precision: str, threads: int) -> Ready:
    images, weights = op.operands(shape.input_shape, shape.weight_shape)
    filters = weights.transpose(2, 3, 1, 0)
    return _ready(
        images.transpose(0, 2, 3, 1).copy(),
        lambda tf, one: tf.nn.conv2d(one, tf.constant(filters), 1, "SAME"),
        precision,
        threads,
    )


def _ready(x: Array, call: Callable[[Any, Any], Any], precision: str, threads: int) -> Ready:
    from ai_edge_litert.interpreter import Interpreter

    if precision == op.BF16:
        raise op.lacks("LiteRT", "bf16 on the processor")
    content = _converted(x, call, precision)
    interpreter = Interpreter(model_content=content, num_threads=threads)
    interpreter.allocate_tensors()
    (about,) = interpreter.get_input_details()
    interpreter.set_tensor(about["index"], x.astype(about["dtype"]))
    interpreter.invoke()
    return Ready(interpreter.invoke, facts={"input": about["dtype"].__name__})


def _converted(x: Array, call: Callable[[Any, Any], Any], precision: str) -> bytes:
    import tensorflow as tf

    function = tf.function(lambda one: call(tf, one)).get_concrete_function(
        tf.TensorSpec(x.shape, tf.float32)
    )
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function])

    def samples() -> Iterator[list[Array]]:
        yield [x]

    if precision == op.INT8:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = samples
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = tf.int8
    content: bytes = converter.convert()
    return content
