"""Matrix products and convolutions with TensorFlow, compiled as a graph with a constant second operand."""

from collections.abc import Callable
from typing import Any

from harness.machine.characterise.arithmetic.libraries import operations as op
from harness.types import Array, Ready


def _tensorflow(threads: int) -> Any:
    """Returns the TensorFlow module. The number of TensorFlow's threads can be set only once per process, before the
    first operation.
    """
    import tensorflow as tf

    if tf.config.threading.get_intra_op_parallelism_threads() != threads:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    return tf


def product(side: int, precision: str, threads: int) -> Ready:
    tf = _tensorflow(threads)
    shape = (side, side)
    if precision == op.INT8:
        a, b = op.small_integers(shape, "int8"), op.small_integers(shape, "int8")
        weights = tf.constant(b)
        right = op.right_rows(a, b)
        return _ready(
            tf, lambda x: tf.linalg.matmul(x, weights, output_type=tf.int32), tf.constant(a), right
        )
    kind = tf.bfloat16 if precision == op.BF16 else tf.float32
    x, w = (tf.cast(tf.constant(one), kind) for one in op.operands(shape, shape))
    right = op.right_rows(tf.cast(x, tf.float64).numpy(), tf.cast(w, tf.float64).numpy())
    return _ready(tf, lambda x: tf.linalg.matmul(x, w), x, right)


def convolution(shape: op.Filter, precision: str, threads: int) -> Ready:
    if precision == op.INT8:
        raise op.lacks("TensorFlow", "int8 convolution on the processor, outside of TFLite")
    tf = _tensorflow(threads)
    kind = tf.bfloat16 if precision == op.BF16 else tf.float32
    images, weights = op.operands(shape.input_shape, shape.weight_shape)
    x = tf.cast(tf.constant(images.transpose(0, 2, 3, 1)), kind)
    w = tf.cast(tf.constant(weights.transpose(2, 3, 1, 0)), kind)
    return _ready(tf, lambda x: tf.nn.conv2d(x, w, 1, "SAME"), x, None)


def _ready(tf: Any, call: Callable[[Any], Any], x: Any, right: Array | None) -> Ready:
    graph = tf.function(call).get_concrete_function(tf.TensorSpec(x.shape, x.dtype))
    facts = {}
    if right is not None:
        answer = tf.cast(graph(x), tf.float64).numpy()
        facts["relative_error"] = op.relative_error(answer, right)
    return Ready(lambda: graph(x), facts=facts)
