"""Writes the embedded language model as a GPT-2 for the Hugging Face libraries, so that their servers return the
model's answers.

Both models compute the same function. GPT-2's head has no bias. Therefore, we shift the last normalisation's bias by a
vector whose product with the head's matrix equals our head's bias. The residual stream is repeated COPIES times. The
copies have the same mean and variance as one stream, so the normalisations do not change. Attention heads become COPIES
times as long, padded with zeros, because vLLM does not support heads of size 16 on a CPU.
"""

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from harness.models.manifest.lookup import load_model
from harness.models.train_tinylm import CONTEXT, HEADS, LAYERS, PIECES, WIDTH

COPIES = 2
HEAD = WIDTH // HEADS

Array = NDArray[np.float32]

_END, _UNKNOWN = "<end>", PIECES[1]
_TOKENS = (_END, *PIECES[1:])
_CONFIG = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "activation_function": "relu",
    "vocab_size": len(PIECES),
    "n_positions": CONTEXT,
    "n_embd": COPIES * WIDTH,
    "n_head": HEADS,
    "n_inner": 4 * WIDTH,
    "n_layer": LAYERS,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    "dtype": "float32",
}
_GENERATION = {"eos_token_id": 0, "pad_token_id": 0, "do_sample": False}
_TOKENIZER = {
    "version": "1.0",
    "added_tokens": [
        {
            "id": 0,
            "content": _END,
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
    ],
    "pre_tokenizer": {
        "type": "Split",
        "pattern": {"Regex": "sort |reverse |."},
        "behavior": "Isolated",
        "invert": False,
    },
    "decoder": {"type": "Fuse"},
    "model": {
        "type": "WordLevel",
        "vocab": {piece: token for token, piece in enumerate(_TOKENS)},
        "unk_token": _UNKNOWN,
    },
}
_TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "eos_token": _END,
    "pad_token": _END,
    "unk_token": _UNKNOWN,
    "model_max_length": CONTEXT,
    "clean_up_tokenization_spaces": False,
    "chat_template": "{{ messages[-1]['content'] }}",
}


def write(folder: Path) -> None:
    """Writes a folder that `from_pretrained` can load."""
    folder.mkdir(parents=True)
    texts = {
        "config": _CONFIG,
        "generation_config": _GENERATION,
        "tokenizer": _TOKENIZER,
        "tokenizer_config": _TOKENIZER_CONFIG,
    }
    for name, content in texts.items():
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    (folder / "model.safetensors").write_bytes(_safetensors(weights()))


def weights() -> Mapping[str, Array]:
    """Returns the arrays under GPT-2's names. Dense arrays are (in, out), as in our model; the head is (out, in)."""
    graph = onnx.load(str(load_model("tinylm").path(("onnx",)))).graph
    ours = {w.name: numpy_helper.to_array(w) for w in graph.initializer}
    shift = np.linalg.lstsq(ours["head.weight"].T, ours["head.bias"], rcond=None)[0]
    found = {
        "transformer.wte.weight": _copied(ours["token.weight"]),
        "transformer.wpe.weight": _copied(ours["position.weight"]),
        "transformer.ln_f.weight": _copied(ours["norm.weight"]),
        "transformer.ln_f.bias": _copied(ours["norm.bias"] + shift.astype(np.float32)),
        "lm_head.weight": np.ascontiguousarray(_read(ours["head.weight"]).T),
    }
    for i in range(LAYERS):
        block, layer = f"blocks.{i}", f"transformer.h.{i}"
        for part in ("weight", "bias"):
            found[f"{layer}.ln_1.{part}"] = _copied(ours[f"{block}.norm1.{part}"])
            found[f"{layer}.ln_2.{part}"] = _copied(ours[f"{block}.norm2.{part}"])
            found[f"{layer}.mlp.c_proj.{part}"] = _copied(ours[f"{block}.down.{part}"])
        found[f"{layer}.mlp.c_fc.weight"] = _read(ours[f"{block}.up.weight"])
        found[f"{layer}.mlp.c_fc.bias"] = ours[f"{block}.up.bias"]
        found[f"{layer}.attn.c_attn.weight"] = _read(_queries(ours[f"{block}.qkv.weight"]))
        found[f"{layer}.attn.c_attn.bias"] = _queries(ours[f"{block}.qkv.bias"])
        found[f"{layer}.attn.c_proj.weight"] = _copied(_longer(ours[f"{block}.out.weight"].T).T)
        found[f"{layer}.attn.c_proj.bias"] = _copied(ours[f"{block}.out.bias"])
    return found


def _copied(written: Array) -> Array:
    """Returns the weights with which a layer writes to every copy."""
    return np.tile(written, COPIES)


def _read(weight: Array) -> Array:
    """Extends weights (WIDTH, n) so that a layer reads only the first copy."""
    return np.pad(weight, ((0, (COPIES - 1) * WIDTH), (0, 0)))


def _longer(heads: Array) -> Array:
    """Returns (..., HEADS * HEAD) with zeros appended to each head."""
    apart = heads.reshape(*heads.shape[:-1], HEADS, HEAD)
    width = [(0, 0)] * (apart.ndim - 1) + [(0, (COPIES - 1) * HEAD)]
    return np.pad(apart, width).reshape(*heads.shape[:-1], -1)


def _queries(qkv: Array) -> Array:
    """Returns the weights, (..., 3 * WIDTH). Scores are divided by the square root of a head's length, so queries are
    scaled by the same factor.
    """
    query, key, value = np.split(qkv, 3, -1)
    return np.concatenate([_longer(query * COPIES**0.5), _longer(key), _longer(value)], -1)


def _safetensors(arrays: Mapping[str, Array]) -> bytes:
    """Returns the bytes of a safetensors file: the length of a JSON header, the header, and the arrays."""
    head: dict[str, object] = {"__metadata__": {"format": "pt"}}
    parts, begin = [], 0
    for name, array in arrays.items():
        parts.append(np.ascontiguousarray(array, "<f4").tobytes())
        end = begin + len(parts[-1])
        head[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(head).encode()
    return b"".join([struct.pack("<Q", len(text)), text, *parts])
