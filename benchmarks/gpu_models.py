"""Creates the networks of the GPU day from random weights: python benchmarks/gpu_models.py FOLDER [--short]

resnet50.pt2, bert.pt2 (BERT-large's shape, 384 tokens) and gpt.pt2 (a decoder of 12 layers over 512 tokens) are
torch.export programs with a variable batch size; resnet50.pt is TorchScript. --short creates small networks with the
same structure.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn


class Widths(NamedTuple):
    """Sizes of the three networks."""

    image: int
    blocks: Sequence[int]
    bert: tuple[int, int, int]
    """Width, layers and tokens."""
    gpt: tuple[int, int, int]
    """Width, layers and tokens."""


FULL = Widths(224, (3, 4, 6, 3), (1024, 24, 384), (768, 12, 512))
SHORT = Widths(32, (1, 1, 1, 1), (64, 2, 16), (64, 2, 16))
VOCABULARY = 30522
NAMES = ("resnet50.pt2", "bert.pt2", "gpt.pt2", "resnet50.pt")
HEAD = 64
"""Width of an attention head."""


class Bottleneck(nn.Module):  # type: ignore[misc]
    def __init__(self, entering: int, width: int, stride: int) -> None:
        super().__init__()
        leaving = 4 * width
        self.body = nn.Sequential(
            *_convolved(entering, width, 1, 1), nn.ReLU(),
            *_convolved(width, width, 3, stride), nn.ReLU(),
            *_convolved(width, leaving, 1, 1),
        )  # fmt: skip
        same = stride == 1 and entering == leaving
        self.around = (
            nn.Identity() if same else nn.Sequential(*_convolved(entering, leaving, 1, stride))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.around(x))


def _convolved(entering: int, leaving: int, side: int, stride: int) -> tuple[nn.Module, nn.Module]:
    convolution = nn.Conv2d(entering, leaving, side, stride, side // 2, bias=False)
    return convolution, nn.BatchNorm2d(leaving)


def resnet50(blocks: Sequence[int]) -> nn.Module:
    layers: list[nn.Module] = [*_convolved(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    entering = 64
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            layers.append(Bottleneck(entering, width, stride))
            entering = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(entering, 1000))


class Attention(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, *, causal: bool) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.causal = causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.into(x).unflatten(-1, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Layer(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, *, causal: bool) -> None:
        super().__init__()
        self.attention = Attention(width, causal=causal)
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x))
        return x + self.wide(self.between(x))


class Transformer(nn.Module):  # type: ignore[misc]
    """Maps each token to two numbers (the spans of BERT), or to the logits of the next token."""

    def __init__(self, width: int, layers: int, tokens: int, *, causal: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(tokens, width)
        self.layers = nn.Sequential(*(Layer(width, causal=causal) for _ in range(layers)))
        self.causal = causal
        self.out = nn.Linear(width, VOCABULARY if causal else 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.layers(self.words(ids) + self.places(places))
        return self.out(x[:, -1] if self.causal else x)


def make(folder: Path, widths: Widths) -> list[Path]:
    """Creates the missing files. Returns the paths of all files."""
    torch.manual_seed(0)
    images = torch.randn(2, 3, widths.image, widths.image)
    networks = (
        (resnet50(widths.blocks), images),
        (Transformer(*widths.bert, causal=False), _ids(widths.bert[2])),
        (Transformer(*widths.gpt, causal=True), _ids(widths.gpt[2])),
        (resnet50(widths.blocks), images),
    )
    made = dict(zip(NAMES, networks, strict=True))
    folder.mkdir(parents=True, exist_ok=True)
    for name, (module, example) in made.items():
        if not (folder / name).exists():
            # A process that is stopped leaves no broken file under the final name.
            unfinished = folder / f"unfinished-{name}"
            write(module.eval(), example, unfinished)
            unfinished.replace(folder / name)
    return [folder / name for name in made]


def _ids(tokens: int) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (2, tokens))


def write(module: nn.Module, example: torch.Tensor, path: Path) -> None:
    with torch.no_grad():
        if path.suffix == ".pt":
            torch.jit.trace(module, example).save(path)
            return
        batch: Any = torch.export.Dim("batch", min=1, max=4096)
        program = torch.export.export(module, (example,), dynamic_shapes=({0: batch},))
        torch.export.save(program, path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--short", action="store_true")
    given = parser.parse_args()
    make(given.folder, SHORT if given.short else FULL)
