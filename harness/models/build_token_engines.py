"""Writes the embedded language model in the formats of token engines, with the weights of tinylm.onnx.

    python -m harness.models.build_token_engines [--out DIR]

Writes FILES under DIR (default: the root of the repository), and prints the SHA-256 of each file. Each file computes
the same network as tinylm.onnx:

- ONNX Runtime GenAI: the ONNX file with the configuration that GenAI's model builder writes for a decoder.
- OpenVINO GenAI: an IR like Optimum Intel's exports, with the cache in variables and with the operation
  ScaledDotProductAttention. The IR does not contain a tokenizer, because prompts are token ids.
- llama.cpp: a GPT-2 in GGUF. llama.cpp's GPT-2 uses GELU and adds no bias after the last layer. STEEPNESS therefore
  turns GELU into ReLU, and the head's bias is merged into the bias of the last normalisation.

Repeated runs with the same versions of `openvino` and `gguf` write identical bytes.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.core.console import show
from harness.models.manifest.files import sha256_of
from harness.models.train_tinylm import CONTEXT, END, HEADS, LAYERS, PIECES, WIDTH

HEAD = WIDTH // HEADS
_SOURCE = "harness/models/shipped/tinylm.onnx"
FILES = tuple(f"harness/models/shipped/{name}" for name in ("tinylm_genai", "tinylm_ovgenai", "tinylm.gguf"))  # fmt: skip

STEEPNESS = 4096.0
"""GELU(s x) / s equals ReLU(x) if |x| is at least 10 / s."""

_EPSILON = 1e-5

Weights = Mapping[str, NDArray[np.float32]]


def weights_of(path: Path) -> Weights:
    """Returns the trained arrays of tinylm.onnx by name. The weights of dense layers are (in, out)."""
    import onnx

    found = onnx.load(str(path)).graph.initializer
    return {w.name: onnx.numpy_helper.to_array(w) for w in found if "." in w.name}


def write_genai(folder: Path, source: Path) -> None:
    """Writes a folder for ONNX Runtime GenAI. source: tinylm.onnx."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, folder / "model.onnx")
    decoder = {
        "session_options": {"provider_options": []},
        "filename": "model.onnx",
        "head_size": HEAD,
        "hidden_size": WIDTH,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "inputs": {
            **{name: name for name in ("input_ids", "attention_mask", "position_ids")},
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }
    tokens = {f"{name}_token_id": END for name in ("bos", "eos", "pad")}
    model = {"type": "llama", "context_length": CONTEXT, "vocab_size": len(PIECES), **tokens}
    search = {"max_length": CONTEXT, "do_sample": False, "past_present_share_buffer": False}
    _write_json(
        folder / "genai_config.json", {"model": {**model, "decoder": decoder}, "search": search}
    )


def write_openvino(folder: Path, weights: Weights) -> None:
    """Writes a folder for OpenVINO GenAI."""
    import openvino as ov

    folder.mkdir(parents=True, exist_ok=True)
    ov.save_model(_Ir(weights).model(), folder / "openvino_model.xml", compress_to_fp16=False)
    _write_json(folder / "generation_config.json", {"eos_token_id": END, "max_new_tokens": CONTEXT})
    config = {"model_type": "gpt2", "n_embd": WIDTH, "n_head": HEADS, "n_layer": LAYERS}
    sizes = {"n_positions": CONTEXT, "vocab_size": len(PIECES), "eos_token_id": END}
    _write_json(folder / "config.json", {**config, **sizes})


class _Ir:
    """Builds the graph from OpenVINO's operations."""

    def __init__(self, weights: Weights) -> None:
        from openvino import opset13

        self._ops, self._weights = opset13, weights

    def model(self) -> Any:
        import openvino as ov

        ops = self._ops
        names = ("input_ids", "attention_mask", "position_ids")
        tokens, mask, positions = (ops.parameter([-1, -1], np.int64, name=name) for name in names)
        beam = ops.parameter([-1], np.int32, name="beam_idx")
        parameters = [tokens, mask, positions, beam]
        for parameter in parameters:
            parameter.output(0).set_names({parameter.friendly_name})
        self._beam, self._sinks = beam, list[Any]()
        self._batch = ops.gather(ops.shape_of(tokens), self._whole([0]), self._whole(0))
        self._bias = self._causal(tokens, mask)
        x = ops.add(self._rows("token.weight", tokens), self._rows("position.weight", positions))
        for i in range(LAYERS):
            x = self._block(x, i)
        logits = self._dense(self._norm(x, "norm"), "head")
        result = ops.result(logits, name="logits")
        logits.output(0).set_names({"logits"})
        return ov.Model([result], self._sinks, parameters, "tinylm")

    def _whole(self, value: object) -> Any:
        return self._ops.constant(np.array(value, np.int64))

    def _constant(self, name: str) -> Any:
        return self._ops.constant(self._weights[name], name=name)

    def _rows(self, table: str, indices: Any) -> Any:
        return self._ops.gather(self._constant(table), indices, self._whole(0))

    def _dense(self, x: Any, layer: str) -> Any:
        ops = self._ops
        product = ops.matmul(x, self._constant(f"{layer}.weight"), False, False)
        return ops.add(product, self._constant(f"{layer}.bias"))

    def _norm(self, x: Any, layer: str) -> Any:
        ops = self._ops
        normal = ops.mvn(x, self._whole([2]), True, _EPSILON, "inside_sqrt")
        scaled = ops.multiply(normal, self._constant(f"{layer}.weight"))
        return ops.add(scaled, self._constant(f"{layer}.bias"))

    def _causal(self, tokens: Any, mask: Any) -> Any:
        """Returns the attention bias, (batch, 1, new, total). The bias is 0 for all tokens up to the current token, and
        -1e9 for later tokens.
        """
        ops, one = self._ops, self._whole(1)
        new, total = (ops.gather(ops.shape_of(x), one, self._whole(0)) for x in (tokens, mask))
        columns = ops.range(self._whole(0), total, one, "i64")
        rows = ops.range(ops.subtract(total, new), total, one, "i64")
        is_past = ops.less_equal(columns, ops.unsqueeze(rows, one))
        is_token = ops.convert(ops.unsqueeze(mask, self._whole([1, 2])), "boolean")
        zero, never = (ops.constant(np.array(value, np.float32)) for value in (0, -1e9))
        return ops.select(ops.logical_and(is_past, is_token), zero, never)

    def _heads(self, x: Any) -> Any:
        shape, order = self._whole([0, 0, HEADS, HEAD]), self._whole([0, 2, 1, 3])
        return self._ops.transpose(self._ops.reshape(x, shape, True), order)

    def _cached(self, x: Any, name: str) -> Any:
        """Returns the keys or values of all tokens, and stores them in a variable."""
        from openvino import PartialShape, Type

        ops = self._ops
        sizes = ops.concat([self._batch, self._whole([HEADS, 0, HEAD])], 0)
        start = ops.broadcast(ops.constant(np.array(0, np.float32)), sizes)
        past = ops.read_value(start, name, Type.f32, PartialShape([-1, HEADS, -1, HEAD]))
        both = ops.concat([ops.gather(past, self._beam, self._whole(0)), x], 2)
        self._sinks.append(ops.assign(both, name))
        return both

    def _block(self, x: Any, i: int) -> Any:
        """Adds one layer of the decoder, like `_block` in train_tinylm."""
        ops, layer = self._ops, f"blocks.{i}"
        parts = self._dense(self._norm(x, f"{layer}.norm1"), f"{layer}.qkv")
        split = ops.split(parts, self._whole(2), 3)
        query, key, value = (self._heads(split.output(n)) for n in range(3))
        keys = self._cached(key, f"past_key_values.{i}.keypresent.{i}.key")
        values = self._cached(value, f"past_key_values.{i}.valuepresent.{i}.value")
        seen = ops.scaled_dot_product_attention(query, keys, values, self._bias)
        joined = ops.transpose(seen, self._whole([0, 2, 1, 3]))
        joined = ops.reshape(joined, self._whole([0, 0, WIDTH]), True)
        x = ops.add(x, self._dense(joined, f"{layer}.out"))
        up = ops.relu(self._dense(self._norm(x, f"{layer}.norm2"), f"{layer}.up"))
        return ops.add(x, self._dense(up, f"{layer}.down"))


def write_gguf(path: Path, weights: Weights) -> None:
    """Writes a GPT-2 for llama.cpp. GGUF's matrices are (out, in)."""
    import gguf

    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_name("tinylm")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(4 * WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_eps(_EPSILON)
    writer.add_vocab_size(len(PIECES))
    _add_vocabulary(writer)
    for name, array in _gpt2(weights).items():
        writer.add_tensor(name, np.ascontiguousarray(array, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_vocabulary(writer: Any) -> None:
    """Adds the text of each token. Prompts are token ids, but llama.cpp's server needs the texts, because the server
    converts every answer to text.
    """
    from gguf import TokenType

    own = {0: ("<end>", TokenType.CONTROL), 1: (PIECES[1], TokenType.UNKNOWN)}
    every = [own.get(i, (piece.replace(" ", "\u2581"), TokenType.NORMAL)) for i, piece in enumerate(PIECES)]  # fmt: skip
    writer.add_tokenizer_model("llama")
    writer.add_token_list([text for text, _ in every])
    writer.add_token_scores([float(len(text)) for text, _ in every])
    writer.add_token_types([kind for _, kind in every])
    for add in (writer.add_bos_token_id, writer.add_eos_token_id, writer.add_pad_token_id):
        add(END)
    writer.add_unk_token_id(1)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)


def _gpt2(weights: Weights) -> Weights:
    """Returns the arrays under the names that llama.cpp uses."""
    shift = np.linalg.lstsq(weights["head.weight"].T, weights["head.bias"], rcond=None)[0]
    found = {
        "token_embd.weight": weights["token.weight"],
        "position_embd.weight": weights["position.weight"],
        "output_norm.weight": weights["norm.weight"],
        "output_norm.bias": weights["norm.bias"] + shift.astype(np.float32),
        "output.weight": weights["head.weight"].T,
    }
    parts = {"norm1": "attn_norm", "norm2": "ffn_norm", "qkv": "attn_qkv", "out": "attn_output"}
    for i in range(LAYERS):
        own, block = f"blocks.{i}", f"blk.{i}"
        for ours, theirs in (*parts.items(), ("up", "ffn_up"), ("down", "ffn_down")):
            weight = weights[f"{own}.{ours}.weight"]
            bias = weights[f"{own}.{ours}.bias"]
            factor = {"up": STEEPNESS, "down": 1 / STEEPNESS}.get(ours, 1)
            found[f"{block}.{theirs}.weight"] = weight.T * np.float32(factor)
            found[f"{block}.{theirs}.bias"] = bias * np.float32(STEEPNESS if ours == "up" else 1)
    return found


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def write_all(root: Path, source: Path) -> None:
    """Writes all FILES under `root`. source: tinylm.onnx."""
    genai, openvino, gguf = (root / name for name in FILES)
    gguf.parent.mkdir(parents=True, exist_ok=True)
    weights = weights_of(source)
    write_genai(genai, source)
    write_openvino(openvino, weights)
    write_gguf(gguf, weights)
    for name in FILES:
        show(f"{sha256_of(root / name)}  {name}")


def main() -> None:
    root = Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description="Write the embedded language model for engines.")
    parser.add_argument("--out", type=Path, default=root, help="root folder of the written files")
    write_all(parser.parse_args().out, root / _SOURCE)


if __name__ == "__main__":
    main()
