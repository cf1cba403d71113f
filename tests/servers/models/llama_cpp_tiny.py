"""Serves a model on llama.cpp's own HTTP server: `python llama_cpp_tiny.py PORT [FILE.gguf]`. Without a file, the model
is a Llama with random weights.
"""

import sys
import time
from pathlib import Path

import gguf
import numpy as np
import xllamacpp

CONTEXT, WIDTH, HEADS, LAYERS, INNER = 512, 64, 4, 2, 128
SLOTS = 4
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = [f"\u2581{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
CONTROL = ["<unk>", "<s>", "</s>"]
TOKENS = [*CONTROL, *BYTES, *WORDS]


def write(path: Path) -> None:
    """Writes a GGUF file; in a text without spaces before its letters, each byte becomes one token."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("llama")
    writer.add_token_list([token.encode() for token in TOKENS])
    writer.add_token_scores(
        [0.0] * (len(TOKENS) - len(WORDS)) + [-1.0 - n for n in range(len(WORDS))]
    )
    types = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    types += [gguf.TokenType.BYTE] * len(BYTES) + [gguf.TokenType.NORMAL] * len(WORDS)
    writer.add_token_types(types)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    _add_weights(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_weights(writer: "gguf.GGUFWriter") -> None:
    random = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        weights = random.standard_normal(shape) * 0.05 if len(shape) > 1 else np.ones(shape)
        writer.add_tensor(f"{name}.weight", weights.astype(np.float32))

    add("token_embd", len(TOKENS), WIDTH)
    add("output_norm", WIDTH)
    add("output", len(TOKENS), WIDTH)
    for layer in range(LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            add(f"blk.{layer}.{norm}", WIDTH)
        for square in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{square}", WIDTH, WIDTH)
        add(f"blk.{layer}.ffn_gate", INNER, WIDTH)
        add(f"blk.{layer}.ffn_up", INNER, WIDTH)
        add(f"blk.{layer}.ffn_down", WIDTH, INNER)


def serve(port: int, file: Path) -> None:
    """Serves until the process is ended."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(file)
    parameters.n_ctx, parameters.n_parallel = SLOTS * CONTEXT, SLOTS
    parameters.hostnames, parameters.port = ["127.0.0.1"], port
    server = xllamacpp.Server(parameters)
    while server.listening_address:
        time.sleep(3600)


if __name__ == "__main__":
    given = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    file = given or Path("tiny.gguf")
    if given is None:
        write(file)
    serve(int(sys.argv[1]), file)
