"""Loads a SavedModel for inference, and chooses the signature to call."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from harness.errors import ConfigError

_SIGNATURE = "serving_default"
_GRAPH = "saved_model.pb"


def load(path: Path) -> tuple[Any, Any]:
    """Returns the loaded object and the signature to call. The object must be kept as long as the signature.

    If there are several signatures, `serving_default` is called. The optimiser state that training left in the file is
    not loaded. Raises a ConfigError if no signature can be chosen.
    """
    try:
        model = tf.saved_model.load(str(path))
    except AttributeError:  # raised because an optimiser of an unknown class lacks `add_slot`
        model = _without_optimisers(path)
    return model, _signature(path, model.signatures)


def _signature(path: Path, signatures: Mapping[str, Any]) -> Any:
    if _SIGNATURE in signatures:
        return signatures[_SIGNATURE]
    if len(signatures) == 1:
        return next(iter(signatures.values()))
    if not signatures:
        raise ConfigError(
            f"{path} has no signature to call: save the model with "
            "tf.saved_model.save(model, folder, signatures=...), or a Keras model with model.export(folder)"
        )
    raise ConfigError(
        f"{path} has the signatures {', '.join(signatures)}, but not {_SIGNATURE!r}: save the model with it"
    )


def _without_optimisers(path: Path) -> Any:
    """Loads a copy of the graph without slot variables; variables and assets are read from `path`."""
    content = saved_model_pb2.SavedModel.FromString((path / _GRAPH).read_bytes())
    for meta_graph in content.meta_graphs:
        for node in meta_graph.object_graph_def.nodes:
            node.ClearField("slot_variables")
    with tempfile.TemporaryDirectory(prefix="harness-savedmodel-") as name:
        folder = Path(name)
        (folder / _GRAPH).write_bytes(content.SerializeToString())
        for part in path.iterdir():
            if part.name != _GRAPH:
                (folder / part.name).symlink_to(part.absolute())
        return tf.saved_model.load(name)
