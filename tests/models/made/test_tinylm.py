"""The files of the embedded language model equal the script's output, except for the trained parts."""

from pathlib import Path

import numpy as np
import pytest

from harness.models import train_tinylm as script
from harness.models.manifest.lookup import load_model
from harness.models.manifest.model import MODELS_DIR

PROMPTS, MODEL = (MODELS_DIR.parents[2] / name for name in script.FILES)


def test_the_prompts_are_drawn_by_the_seed(tmp_path: Path) -> None:
    drawn = script.held_out()
    script.write_prompts(tmp_path / "again", drawn)
    assert (tmp_path / "again").read_bytes() == PROMPTS.read_bytes()
    lengths = set(drawn.lengths.tolist())
    assert lengths == set(range(script.SHORTEST, script.LONGEST + 1))
    for row, length in zip(drawn.tokens, drawn.lengths, strict=True):
        string, answer = row[1 : length + 1].tolist(), row[length + 2 : 2 * length + 2].tolist()
        assert answer == (sorted(string) if row[0] == script.SORT else string[::-1])
        assert not row[2 * length + 2 :].any()


def test_the_file_is_written_again_from_its_weights(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    found = onnx.load(MODEL).graph.initializer
    weights = {w.name: onnx.numpy_helper.to_array(w) for w in found if "." in w.name}
    assert sum(w.size for w in weights.values()) == 105_103
    script.write_onnx(tmp_path / "again.onnx", weights)
    assert (tmp_path / "again.onnx").read_bytes() == MODEL.read_bytes()


def test_the_manifest_has_the_scripts_tokens() -> None:
    about = load_model("tinylm").generation
    assert about is not None
    assert about.pieces == script.PIECES
    assert about.context == script.CONTEXT >= 2 * script.LONGEST + 3
    assert about.end == (script.END,)


@pytest.mark.slow
def test_the_weights_of_a_network_are_named_as_in_the_file() -> None:
    pytest.importorskip("torch")
    onnx = pytest.importorskip("onnx")
    weights = script.weights_of(script.build_network())
    found = {w.name: tuple(w.dims) for w in onnx.load(MODEL).graph.initializer if "." in w.name}
    assert {name: w.shape for name, w in weights.items()} == found
    assert all(w.dtype == np.float32 and w.flags.c_contiguous for w in weights.values())
