"""Builds models that consist of one operator (matrix product, convolution or LSTM), like DeepBench.

The shapes come from DeepBench's lists of operators in speech, vision and text models (github.com/
baidu-research/DeepBench, code/kernels/*_problems.h). DeepBench's batch n corresponds to the batch of a run. The weights
are seeded random numbers, because the time of these operators does not depend on their values.
"""

import hashlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.core.extras import how_to_install
from harness.core.files import cache_dir, cached_file
from harness.errors import PluginUnavailable

RECIPE = "1"
"""Part of the folder's name. Change RECIPE whenever the models change, so that old files are not reused."""

_SEED = 0


class Gemm(NamedTuple):
    """A matrix product with m outputs and k inputs."""

    m: int
    k: int

    @property
    def name(self) -> str:
        return f"gemm_m{self.m}_k{self.k}"

    @property
    def about(self) -> str:
        return f"matrix product, weights {self.m} x {self.k}, the batch is n"

    @property
    def flop_per_sample(self) -> int:
        return 2 * self.m * self.k


class Conv(NamedTuple):
    """A convolution of an image (size x size pixels, c channels) with k filters of r x r pixels."""

    size: int
    c: int
    k: int
    r: int
    pad: int
    stride: int

    @property
    def name(self) -> str:
        return f"conv_{self.size}x{self.size}x{self.c}_k{self.k}_r{self.r}_s{self.stride}"

    @property
    def about(self) -> str:
        return (
            f"convolution, {self.size} x {self.size} x {self.c}, {self.k} filters of "
            f"{self.r} x {self.r}, stride {self.stride}"
        )

    @property
    def flop_per_sample(self) -> int:
        places = (self.size + 2 * self.pad - self.r) // self.stride + 1
        return 2 * places * places * self.k * self.c * self.r * self.r


class Lstm(NamedTuple):
    """An LSTM layer with as many inputs as hidden units, over `steps` time steps."""

    hidden: int
    steps: int

    @property
    def name(self) -> str:
        return f"lstm_h{self.hidden}_t{self.steps}"

    @property
    def about(self) -> str:
        return f"LSTM, {self.hidden} hidden units, {self.steps} time steps"

    @property
    def flop_per_sample(self) -> int:
        """Counts the eight products of a time step. Ignores the other operations of the gates, because they are few."""
        return self.steps * 2 * 8 * self.hidden * self.hidden


Op = Gemm | Conv | Lstm

SUITE: dict[str, Sequence[Op]] = {
    "gemm": (Gemm(1760, 1760), Gemm(2560, 2560), Gemm(3072, 1024)),
    "conv": (Conv(224, 3, 64, 7, 3, 2), Conv(56, 64, 64, 3, 1, 1), Conv(14, 256, 512, 1, 0, 1)),
    "lstm": (Lstm(256, 25), Lstm(512, 25), Lstm(1024, 25)),
}


def make(kinds: Sequence[str]) -> list[Path]:
    """Returns the paths of the model files of these kinds, and first writes the files that are missing."""
    if find_spec("onnx") is None:
        raise PluginUnavailable(f"--ops are made with the module 'onnx': {how_to_install('onnx')}")
    paths = []
    for op in (op for kind in kinds for op in SUITE[kind]):
        path = _folder() / f"{op.name}.onnx"
        if not path.is_file():
            with cached_file(path) as temporary:
                _write(op, temporary)
        paths.append(path)
    return paths


def work_of(model: str) -> dict[str, Any] | None:
    """Returns `flop_per_sample` and `about` for a file that `make` wrote, or None for other files."""
    path = Path(model)
    ops = {op.name: op for kind in SUITE.values() for op in kind}
    if path.parent != _folder() or path.stem not in ops:
        return None
    op = ops[path.stem]
    about = f"{op.name}: {op.about}, {op.flop_per_sample / 1e6:,.4g} MFLOP per sample"
    return {"flop_per_sample": op.flop_per_sample, "about": about}


def _folder() -> Path:
    digest = hashlib.sha256(f"{RECIPE} {SUITE}".encode()).hexdigest()
    return cache_dir() / "ops" / digest[:16]


def _write(op: Op, path: Path) -> None:
    from harness.models.made.onnx_graph import FLOAT, Ports, build, node

    weights: dict[str, Any] = {}
    random = np.random.default_rng(_SEED)

    def weight(name: str, *shape: int) -> str:
        scale = np.prod(shape[1:]) ** -0.5
        weights[name] = (random.standard_normal(shape) * scale).astype(np.float32)
        return name

    if isinstance(op, Gemm):
        shape = [op.k]
        nodes = [node("Gemm", ["x", weight("w", op.m, op.k)], ["y"], transB=1)]
    elif isinstance(op, Conv):
        shape = [op.c, op.size, op.size]
        filters = weight("w", op.k, op.c, op.r, op.r)
        same = {"pads": [op.pad] * 4, "strides": [op.stride] * 2}
        nodes = [node("Conv", ["x", filters], ["y"], **same)]
    else:
        shape = [op.steps, op.hidden]
        gates = [weight(name, 1, 4 * op.hidden, op.hidden) for name in ("w", "r")]
        # ONNX Runtime's CPU kernel expects the time axis before the batch axis, but a run puts the batch first.
        nodes = [
            node("Transpose", ["x"], ["by_time"], perm=[1, 0, 2]),
            node("LSTM", ["by_time", *gates], ["", "last"], hidden_size=op.hidden),
            node("Transpose", ["last"], ["y"], perm=[1, 0, 2]),
        ]
    inputs: Ports = {"x": (FLOAT, ["batch", *shape])}
    model = build(op.name, nodes, inputs, {"y": (FLOAT, None)}, weights)
    path.write_bytes(model.SerializeToString())
