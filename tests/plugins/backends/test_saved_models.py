"""Foreign SavedModels, with an optimiser's state, different signatures or a vocabulary."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from harness.backends.parts.saved_model import load
from tests.builders.refusals import refusal

ROWS = tf.TensorSpec([None, 4], tf.float32, name="x")


class Doubles(tf.Module):  # type: ignore[misc] # TensorFlow has no types
    def __init__(self) -> None:
        super().__init__()
        self.weight = tf.Variable(2 * np.eye(4, dtype=np.float32))

    @tf.function(input_signature=[ROWS])  # type: ignore[untyped-decorator]
    def __call__(self, x: Any) -> Any:
        return {"y": x @ self.weight}


def answer(path: Path, value: Any) -> Any:
    model, function = load(path)
    (found,) = function(x=tf.constant(value)).values()
    del model
    return found.numpy().tolist()


@pytest.mark.parametrize("optimiser", ["AdamOptimizer", "MomentumOptimizer"])
def test_the_state_of_an_optimiser_is_left_out(optimiser: str, tmp_path: Path) -> None:
    """Bug: the message was "'_UserObject' object has no attribute 'add_slot'"."""
    train, model = tf.compat.v1.train, Doubles()
    more = {"momentum": 0.9} if optimiser == "MomentumOptimizer" else {}
    model.optimiser = getattr(train, optimiser)(0.5, **more)
    zero = tf.zeros_like(model.weight)
    model.optimiser.apply_gradients([(zero, model.weight)])
    tf.saved_model.save(model, str(tmp_path / "m"), signatures=model.__call__)
    with pytest.raises(AttributeError, match="add_slot"):
        tf.saved_model.load(str(tmp_path / "m"))
    assert answer(tmp_path / "m", [[1.0, 2, 3, 4]]) == [[2, 4, 6, 8]]


def test_single_signature_of_any_name_is_called(tmp_path: Path) -> None:
    model = Doubles()
    tf.saved_model.save(model, str(tmp_path / "m"), signatures={"predict": model.__call__})
    assert answer(tmp_path / "m", [[1.0, 2, 3, 4]]) == [[2, 4, 6, 8]]


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (
            ("a", "b"),
            "has the signatures a, b, but not 'serving_default': save the model with it",
        ),
        ((), "has no signature to call: save the model with tf.saved_model.save"),
    ],
)
def test_missing_or_ambiguous_signature_is_reported_in_one_line(
    names: tuple[str, ...], line: str, tmp_path: Path
) -> None:
    model = Doubles()
    signatures = dict.fromkeys(names, model.__call__)
    tf.saved_model.save(model, str(tmp_path / "m"), signatures=signatures)
    assert refusal(load, tmp_path / "m").startswith(f"{tmp_path / 'm'} {line}")


class Words(tf.Module):  # type: ignore[misc]
    def __init__(self, vocabulary: Path) -> None:
        super().__init__()
        index = tf.lookup.TextFileIndex
        source = tf.lookup.TextFileInitializer(
            str(vocabulary), tf.string, index.WHOLE_LINE, tf.int64, index.LINE_NUMBER
        )
        self.table = tf.lookup.StaticHashTable(source, -1)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="x")])  # type: ignore[untyped-decorator]
    def __call__(self, x: Any) -> Any:
        return {"number": self.table.lookup(x)}


def test_a_vocabulary_beside_the_graph_is_read(tmp_path: Path) -> None:
    (tmp_path / "vocabulary.txt").write_text("one\ntwo\nthree\n")
    model = Words(tmp_path / "vocabulary.txt")
    tf.saved_model.save(model, str(tmp_path / "m"), signatures=model.__call__)
    (tmp_path / "vocabulary.txt").unlink()
    assert answer(tmp_path / "m", ["three", "four"]) == [2, -1]
