"""Converts a SavedModel to a LiteRT file in int8 or fp16 with TensorFlow's converter."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness.core.extras import how_to_install
from harness.errors import ConfigError, PluginUnavailable
from harness.models.precision.samples import QuantisationSamples

SOURCE = "savedmodel"
BACKEND = "tensorflow"
TITLE = "TensorFlow's converter"
SUFFIX = ".tflite"

_SIGNATURE = "serving_default"


def require(precision: str) -> None:
    if find_spec("tensorflow") is None:
        raise PluginUnavailable(
            f"{precision} of LiteRT is made by TensorFlow's converter: "
            f"{how_to_install('tensorflow')}"
        )


def check(precision: str, source: Path) -> None:
    if not source.is_dir():
        raise ConfigError(
            f"{precision} of LiteRT is made from a SavedModel, which is a folder, but {source} is not "
            "a folder: name both files in a manifest"
        )


def recipe(precision: str, _source: Path) -> dict[str, Any]:
    import tensorflow as tf

    versions = {"format": "tflite", "tensorflow": tf.__version__}
    if precision != "int8":
        return versions
    return {**versions, "weights": "int8 per channel", "activations": "int8"}


def write(
    source: Path, path: Path, samples: QuantisationSamples | None, _recipe: Mapping[str, Any]
) -> None:
    """Writes the file. With int8, all operators must have an integer kernel, and only the inputs and outputs keep their
    types.
    """
    import tensorflow as tf

    converter = tf.lite.TFLiteConverter.from_saved_model(str(source), signature_keys=[_SIGNATURE])
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if samples is None:
        converter.target_spec.supported_types = [tf.float16]
    else:
        feeds = samples.feeds
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.representative_dataset = lambda: (dict(feed) for feed in feeds)
    path.write_bytes(converter.convert())


def describe(_path: Path, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an empty `kernels`, because LiteRT does not report kernels."""
    if "samples" in recipe:
        about = (
            "LiteRT, full integer: weights int8 per channel, activations int8; "
            f"ranges from {recipe['samples']}"
        )
    else:
        about = "LiteRT: weights stored in float16; computed in float32 unless the CPU has float16"
    return {"kernels": {}, "about": about}
