"""Trains the small embedded language model, and writes it together with the prompts for its score.

    python -m harness.models.train_tinylm [--out DIR]

Writes FILES under DIR (default: the root of the repository). Prints the SHA-256 of each file, and the share of held-out
prompts with an exactly correct answer.

Task: a prompt consists of a word and a string of digits, such as `sort 40271=` or `reverse 40271=`. The answer is the
digits, sorted or in reverse order. The correct answer is therefore known, and is as long as the string. All strings
come from a seeded generator, so the script does not download data. Training excludes the strings of held-out prompts.

Model: a transformer decoder with normalisation before each part and with learned positions. Its inputs and outputs use
the names of Optimum's ONNX exports, including the keys and values of earlier tokens (docs/manifest.md, `generation`).

Repeated runs on one machine write identical bytes. Another CPU model or other package versions may round differently
and produce different weights.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.models.manifest.files import sha256_of
from harness.models.train_digits import DETERMINISTIC_ENVIRONMENT, IR_VERSION

SEED = 2026
HELD_OUT = 500
SHORTEST, LONGEST = 3, 20  # number of digits in a string
STEPS, BATCH = 4000, 128  # number of optimiser steps, and number of prompts per step
PEAK_LEARNING_RATE = 3e-3
MAX_GRADIENT = 1.0  # gradients with a larger norm are clipped to this norm

WIDTH, HEADS, LAYERS = 64, 4, 2
CONTEXT = 48  # number of positions, at least 2 * LONGEST + 3 for the longest prompt and its answer

PIECES = ("", "?", "sort ", "reverse ", "=", *"0123456789")
"""The text of each token. Token 0 ends an answer; token 1 stands for any other character."""

END, SORT, REVERSE, ASK, ZERO = 0, 2, 3, 4, 5

FILES = ("datasets/parts/digit_strings.jsonl", "harness/models/shipped/tinylm.onnx")

Tokens = NDArray[np.int64]
Weights = Mapping[str, NDArray[np.float32]]


class Drawn(NamedTuple):
    """Prompts, each followed by its answer."""

    tokens: Tokens
    """(n, 2 * LONGEST + 3), with END after the answer and for padding."""
    lengths: Tokens
    """(n,) number of digits in each string; the answer begins at token length + 2.
    """


def draw(random: np.random.Generator, count: int) -> Drawn:
    """Draws prompts in which all tasks, lengths and digits are equally likely."""
    lengths = random.integers(SHORTEST, LONGEST + 1, count)
    digits = random.integers(0, 10, (count, LONGEST)) + ZERO
    tasks = random.integers(SORT, REVERSE + 1, count)
    tokens = np.full((count, 2 * LONGEST + 3), END)
    for row, length, string, task in zip(tokens, lengths, digits, tasks, strict=True):
        asked = string[:length]
        answer = np.sort(asked) if task == SORT else asked[::-1]
        row[: 2 * length + 2] = [task, *asked, ASK, *answer]
    return Drawn(tokens, lengths)


def held_out() -> Drawn:
    """Returns the scored prompts, which are the same on every call."""
    return draw(np.random.default_rng([SEED, 0]), HELD_OUT)


def _strings(drawn: Drawn) -> list[bytes]:
    """Returns the digits of each prompt as a key, for comparing prompts."""
    rows = zip(drawn.tokens, drawn.lengths, strict=True)
    return [row[1 : length + 1].tobytes() for row, length in rows]


def build_network() -> Any:
    """Returns the untrained torch model, which maps (n, length) tokens to (n, length, len(PIECES)) logits."""
    import torch
    from torch import nn

    class Block(nn.Module):  # type: ignore[misc] # torch may not be installed
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            n, length, _ = x.shape
            parts = self.qkv(self.norm1(x)).view(n, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            seen = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
            x = x + self.out(seen.transpose(1, 2).reshape(n, length, WIDTH))
            return x + self.down(torch.relu(self.up(self.norm2(x))))

    class Decoder(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.token, self.position = (
                nn.Embedding(len(PIECES), WIDTH),
                nn.Embedding(CONTEXT, WIDTH),
            )
            self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(PIECES))
            nn.init.normal_(self.token.weight, std=0.1)
            nn.init.normal_(self.position.weight, std=0.1)

        def forward(self, tokens: Any) -> Any:
            x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return Decoder()


def train(unseen: Sequence[bytes]) -> Any:
    """Returns the trained torch model in evaluation mode. unseen: strings to exclude from training."""
    import torch

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(SEED)
    random = np.random.default_rng([SEED, 1])
    network, left_out = build_network(), set(unseen)
    optimizer = torch.optim.AdamW(network.parameters(), betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, PEAK_LEARNING_RATE, STEPS, pct_start=0.1
    )
    for _ in range(STEPS):
        drawn = draw(random, BATCH)
        new = np.array([string not in left_out for string in _strings(drawn)])
        tokens, lengths = drawn.tokens[new], drawn.lengths[new, np.newaxis]
        width = int(2 * lengths.max() + 3)
        places = np.arange(width - 1)
        is_answer = torch.from_numpy((places > lengths) & (places < 2 * lengths + 2))
        given = torch.from_numpy(tokens[:, :width])
        logits = network(given[:, :-1])[is_answer]
        loss: Any = torch.nn.functional.cross_entropy(logits, given[:, 1:][is_answer])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), MAX_GRADIENT)
        optimizer.step()
        schedule.step()
    return network.eval()


def exact(network: Any, drawn: Drawn) -> float:
    """Returns the share of prompts for which every token of the answer is the most likely token."""
    import torch

    with torch.no_grad():
        likeliest = network(torch.from_numpy(drawn.tokens[:, :-1])).argmax(-1).numpy()
    places, lengths = np.arange(drawn.tokens.shape[1] - 1), drawn.lengths[:, np.newaxis]
    is_answer = (places > lengths) & (places < 2 * lengths + 2)
    return float(((likeliest == drawn.tokens[:, 1:]) | ~is_answer).all(1).mean())


def weights_of(network: Any) -> Weights:
    """Returns the trained arrays by name. Matrices of dense layers are (in, out), as in MatMul."""
    found = {}
    for name, value in network.state_dict().items():
        array = value.numpy().astype(np.float32)
        is_dense = array.ndim == 2 and name not in ("token.weight", "position.weight")
        found[name] = np.ascontiguousarray(array.T) if is_dense else array
    return found


def write_onnx(path: Path, weights: Weights) -> None:
    """Builds the file node by node, because an exporter would write its version and names into the file."""
    from onnx import checker

    from harness.models.made.onnx_graph import FLOAT, INT64, Ports, build

    nodes = _Nodes()
    constants = {
        **weights,
        "one": np.array(1),
        "axis1": np.array([1]),
        "axes12": np.array([1, 2]),
        "nothing": np.array(0, np.float32),
        "never": np.array(-1e9, np.float32),  # the exponential of this number is exactly 0
        "scale": np.array((WIDTH // HEADS) ** -0.5, np.float32),
        "by_head": np.array([0, 0, 3 * HEADS, WIDTH // HEADS]),
        "joined": np.array([0, 0, WIDTH]),
    }
    total = nodes("Gather", nodes("Shape", "attention_mask"), "one")
    new = nodes("Gather", nodes("Shape", "input_ids"), "one")
    zero, past = nodes("Sub", "one", "one"), nodes("Sub", total, new)
    columns, rows = nodes("Range", zero, total, "one"), nodes("Range", past, total, "one")
    causal = nodes("LessOrEqual", columns, nodes("Unsqueeze", rows, "axis1"))
    is_token = nodes("Cast", nodes("Unsqueeze", "attention_mask", "axes12"), to=9)  # bool
    bias = nodes("Where", nodes("And", causal, is_token), "nothing", "never")
    x = nodes(
        "Add",
        nodes("Gather", "token.weight", "input_ids"),
        nodes("Gather", "position.weight", "position_ids"),
    )
    for i in range(LAYERS):
        x = _block(nodes, x, bias, i)
    # The graph does not end with an Identity, because OpenVINO would give the output the name of the Identity's input.
    projected = nodes("MatMul", nodes.norm(x, "norm"), "head.weight")
    nodes.add("Add", (projected, "head.bias"), ("logits",))
    cached = [f"{i}.{part}" for i in range(LAYERS) for part in ("key", "value")]
    shape = ("batch", HEADS, "past", WIDTH // HEADS)
    inputs: Ports = {
        "input_ids": (INT64, ["batch", "new"]),
        "attention_mask": (INT64, ["batch", "total"]),
        "position_ids": (INT64, ["batch", "new"]),
        **{f"past_key_values.{name}": (FLOAT, [*shape]) for name in cached},
    }
    outputs: Ports = {
        "logits": (FLOAT, ["batch", "new", len(PIECES)]),
        **{f"present.{n}": (FLOAT, ["batch", HEADS, "total", WIDTH // HEADS]) for n in cached},
    }
    model = build("tinylm", nodes.made, inputs, outputs, constants, IR_VERSION)
    checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString(deterministic=True))


class _Nodes:
    """Collects the nodes of a graph. A call adds a node and returns the name of its only output."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    def add(self, kind: str, inputs: Sequence[str], outputs: Sequence[str], **options: Any) -> None:
        from harness.models.made.onnx_graph import node

        self.made.append(node(kind, [*inputs], [*outputs], name=f"{outputs[0]}_{kind}", **options))

    def __call__(self, kind: str, *inputs: str, **options: Any) -> str:
        name = f"{kind.lower()}{len(self.made)}"
        self.add(kind, inputs, (name,), **options)
        return name

    def dense(self, x: str, layer: str) -> str:
        return self("Add", self("MatMul", x, f"{layer}.weight"), f"{layer}.bias")

    def norm(self, x: str, layer: str) -> str:
        return self("LayerNormalization", x, f"{layer}.weight", f"{layer}.bias", axis=-1)


def _block(nodes: _Nodes, x: str, bias: str, i: int) -> str:
    """Adds one layer of the decoder, like `Block` in build_network, and returns the layer's output."""
    layer = f"blocks.{i}"
    parts = nodes(
        "Reshape", nodes.dense(nodes.norm(x, f"{layer}.norm1"), f"{layer}.qkv"), "by_head"
    )
    heads = nodes("Transpose", parts, perm=[0, 2, 1, 3])
    query, key, value = (f"{layer}.{part}" for part in ("query", "key", "value"))
    nodes.add("Split", (heads,), (query, key, value), axis=1)
    keys, values = f"present.{i}.key", f"present.{i}.value"
    nodes.add("Concat", (f"past_key_values.{i}.key", key), (keys,), axis=2)
    nodes.add("Concat", (f"past_key_values.{i}.value", value), (values,), axis=2)
    scores = nodes("MatMul", query, nodes("Transpose", keys, perm=[0, 1, 3, 2]))
    shares = nodes("Softmax", nodes("Add", nodes("Mul", scores, "scale"), bias), axis=-1)
    seen = nodes("Transpose", nodes("MatMul", shares, values), perm=[0, 2, 1, 3])
    x = nodes("Add", x, nodes.dense(nodes("Reshape", seen, "joined"), f"{layer}.out"))
    up = nodes("Relu", nodes.dense(nodes.norm(x, f"{layer}.norm2"), f"{layer}.up"))
    return nodes("Add", x, nodes.dense(up, f"{layer}.down"))


def write_prompts(path: Path, drawn: Drawn) -> None:
    """Writes one line per prompt, in the format of the dataset `prompts`. The field `text` is for readers."""
    with path.open("w", encoding="utf-8") as file:
        for row, length in zip(drawn.tokens.tolist(), drawn.lengths.tolist(), strict=True):
            asked, answer = row[: length + 2], row[length + 2 : 2 * length + 2]
            line = {
                "input_ids": asked,
                "reference": "".join(PIECES[token] for token in answer),
                "text": "".join(PIECES[token] for token in asked),
            }
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


def write_all(root: Path) -> None:
    """Writes all FILES under `root`."""
    prompts, onnx = (root / name for name in FILES)
    for path in (prompts, onnx):
        path.parent.mkdir(parents=True, exist_ok=True)
    drawn = held_out()
    network = train(_strings(drawn))
    write_prompts(prompts, drawn)
    write_onnx(onnx, weights_of(network))
    print(f"exact answers to the {HELD_OUT} held-out prompts: {exact(network, drawn):.4f}")
    for name in FILES:
        print(sha256_of(root / name), name)


def main() -> None:
    """Parses the command line, sets the environment before the libraries are imported, and writes the files."""
    root = Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description="Train the embedded language model.")
    parser.add_argument("--out", type=Path, default=root, help="root folder of the written files")
    options = parser.parse_args()
    os.environ.update(DETERMINISTIC_ENVIRONMENT)
    write_all(options.out)


if __name__ == "__main__":
    main()
