"""The encoder that build_minilm writes agrees with the same arithmetic in plain numpy."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from harness.models.build_minilm import build, manifest, read_safetensors
from harness.models.manifest.lookup import parse_manifest

HIDDEN, HEADS, WIDE, EPSILON = 8, 2, 16, 1e-12


def weights() -> dict[str, Any]:
    random = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (20, HIDDEN),
        "embeddings.position_embeddings.weight": (12, HIDDEN),
        "embeddings.token_type_embeddings.weight": (2, HIDDEN),
    }
    norms = ["embeddings.LayerNorm"]
    for i in range(2):
        at = f"encoder.layer.{i}"
        dense = {f"attention.self.{n}": (HIDDEN, HIDDEN) for n in ("query", "key", "value")}
        dense["attention.output.dense"] = (HIDDEN, HIDDEN)
        dense |= {"intermediate.dense": (WIDE, HIDDEN), "output.dense": (HIDDEN, WIDE)}
        for name, shape in dense.items():
            shapes |= {f"{at}.{name}.weight": shape, f"{at}.{name}.bias": shape[:1]}
        norms += [f"{at}.attention.output.LayerNorm", f"{at}.output.LayerNorm"]
    for name in norms:
        shapes |= {f"{name}.weight": (HIDDEN,), f"{name}.bias": (HIDDEN,)}
    return {n: random.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


def embedding(w: dict[str, Any], ids: list[int]) -> Any:
    """Returns the embedding of one sentence without padding, in float64."""

    def dense(x: Any, name: str) -> Any:
        return x @ w[f"{name}.weight"].T.astype(float) + w[f"{name}.bias"]

    def norm(x: Any, name: str) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON)
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    tables = [w[f"embeddings.{n}_embeddings.weight"] for n in ("word", "position", "token_type")]
    x = norm(tables[0][ids] + tables[1][: len(ids)] + tables[2][0], "embeddings.LayerNorm")
    for i in range(2):
        at = f"encoder.layer.{i}"
        q, k, v = (dense(x, f"{at}.attention.self.{n}") for n in ("query", "key", "value"))
        heads = []
        for part in np.split(np.arange(HIDDEN), HEADS):
            score = np.exp(q[:, part] @ k[:, part].T / math.sqrt(len(part)))
            heads.append(score / score.sum(-1, keepdims=True) @ v[:, part])
        mixed = dense(np.concatenate(heads, axis=1), f"{at}.attention.output.dense")
        x = norm(x + mixed, f"{at}.attention.output.LayerNorm")
        wide = dense(x, f"{at}.intermediate.dense")
        bent = wide / 2 * (1 + np.vectorize(math.erf)(wide / math.sqrt(2)))
        x = norm(x + dense(bent, f"{at}.output.dense"), f"{at}.output.LayerNorm")
    mean = x.mean(axis=0)
    return mean / np.linalg.norm(mean)


def test_the_encoder_is_bert_and_filling_changes_nothing() -> None:
    made = build(weights(), heads=HEADS, epsilon=EPSILON)
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    sentences = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5, 8, 9, 7, 19]]
    ids, mask = np.zeros((2, 3, 10), np.int64)
    for row, sentence in enumerate(sentences):
        ids[row, : len(sentence)] = sentence
        mask[row, : len(sentence)] = 1
    (found,) = session.run(None, {"input_ids": ids, "attention_mask": mask})
    expected = [embedding(weights(), sentence) for sentence in sentences]
    assert np.abs(np.asarray(found) - expected).max() < 1e-5


def test_safetensors_are_read_as_they_are_written(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    about = {"dtype": "F32", "shape": [2, 3], "data_offsets": [4, 28]}
    header = json.dumps({"__metadata__": {"a": "b"}, "x": about}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4) + values.tobytes())
    assert read_safetensors(path)["x"].tolist() == values.tolist()
    path.write_bytes(b"PK\x03\x04 no")
    with pytest.raises(ValueError, match=r"model.safetensors is not a safetensors file$"):
        read_safetensors(path)


def test_written_manifest_is_valid(tmp_path: Path) -> None:
    (tmp_path / "minilm.onnx").touch()
    made = parse_manifest(manifest(tmp_path / "minilm.onnx"), "minilm.yaml")
    assert [i.preprocess[0].options["gives"] for i in made.inputs] == ["ids", "mask"]
