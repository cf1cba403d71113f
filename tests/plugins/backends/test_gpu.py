"""The backend `torch` returns the same answers on a real GPU as on the processor. The tests are skipped on machines
without a GPU.
"""

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.core import registry
from harness.errors import ConfigError, PluginUnavailable
from harness.types import Array, BackendSetup, Batch

torch: Any = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]

SIZES = (*range(1, 20), 33, 64)
CLOSE = {"f32": 1e-4, "tf32": 5e-3, "f16": 1e-2, "bf16": 6e-2}
"""The largest allowed error relative to the largest answer, by precision."""


class Network(torch.nn.Module):  # type: ignore[misc] # torch may not be installed
    """A network that maps images to a dict of two outputs. Only the output `scores` depends on convolutions."""

    def __init__(self) -> None:
        super().__init__()
        nn = torch.nn
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2), nn.ReLU(),
            nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 10),
        )  # fmt: skip

    def forward(self, image: Any) -> dict[str, Any]:
        places = torch.arange(image.shape[0], device=image.device)
        return {"scores": self.body(image), "mean": image.mean((1, 2, 3)) + 0 * places}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models")
    rows: Any = torch.export.Dim("rows", min=1, max=1024)
    example = (torch.randn(2, 3, 24, 24),)
    program = torch.export.export(Network().eval(), example, dynamic_shapes=({0: rows},))
    torch.export.save(program, folder / "network.pt2")
    return {"pt2": folder / "network.pt2"}


def opened(path: Path, device: str = "cuda", **options: str) -> Any:
    setup = BackendSetup(
        model=path, model_name="m", device=device, threads=2, max_batch=64, options=options
    )
    return registry.load("backend", "torch")(setup)


def images(count: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((count, 3, 24, 24), np.float32)


def answers(backend: Any, sizes: Sequence[int], seed: int = 0) -> list[dict[str, Array]]:
    return [
        dict(backend.infer(Batch(size, {"image": images(size, seed + size)}))) for size in sizes
    ]


def largest_error(found: Sequence[dict[str, Array]], right: Sequence[dict[str, Array]]) -> float:
    return max(
        float(np.abs(a[name] - b[name]).max() / np.abs(b[name]).max())
        for a, b in zip(found, right, strict=True)
        for name in b
    )


@pytest.mark.parametrize("graph", ["off", "on"])
@pytest.mark.parametrize("layout", ["default", "channels-last"])
@pytest.mark.parametrize("precision", CLOSE)
def test_answers_are_the_processors(
    files: dict[str, Path], precision: str, layout: str, graph: str
) -> None:
    with opened(files["pt2"], "cpu") as cpu:
        right = answers(cpu, SIZES)
    options = {"precision": precision, "layout": layout, "cuda_graph": graph}
    with opened(files["pt2"], **options) as gpu:
        found = [*answers(gpu, SIZES), *answers(gpu, SIZES)]
        assert gpu.used()["cuda_graphs"] == (0 if graph == "off" else 15)
        kind = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}.get(precision, precision)
        assert gpu.describe()["precision"] == kind
    error = largest_error(found, [*right, *right])
    assert error < CLOSE[precision]
    assert (error > 1e-5) == (precision != "f32")


def test_batches_made_in_the_graphs_memory_have_their_own_answers(files: dict[str, Path]) -> None:
    with opened(files["pt2"], "cpu") as cpu:
        right = answers(cpu, SIZES)
    with opened(files["pt2"]) as gpu:
        answers(gpu, SIZES)
        found = []
        for size in reversed(SIZES):
            into = gpu.buffers(size)
            into["image"][...] = images(size, size)
            found.append(dict(gpu.infer(Batch(size, into))))
    assert largest_error(found[::-1], right) < CLOSE["f32"]


@pytest.mark.parametrize("looks", [lambda x: x * x.sum().item(), lambda x: x[x > 0]])
def test_a_module_that_waits_for_the_gpu_runs_without_graphs(looks: Any) -> None:
    """Closing one instance does not affect the graphs of other instances."""
    cuda: Any = import_module("harness.backends.parts.torch_cuda")
    device = torch.device("cuda", 0)

    def module(call: Any) -> Any:
        return cuda.CudaModule(call, device, largest=8, graphs=True, spins=True)

    waiting, plain = module(looks), module(lambda x: x + 1)
    rows = np.ones((3, 4), np.float32)
    for count in (1, 2, 3):
        expected = looks(torch.from_numpy(rows[:count]))
        np.testing.assert_allclose(waiting.answer([rows[:count]]).numpy(), expected.numpy())
        np.testing.assert_allclose(plain.answer([rows[:count]]).numpy(), rows[:count] + 1)
    assert waiting.used()["cuda_graphs"] == 0
    assert waiting.used()["cuda_graphs_reason"]
    assert plain.used()["cuda_graphs"] == 3


def test_large_outputs_are_copied_out() -> None:
    cuda: Any = import_module("harness.backends.parts.torch_cuda")
    device = torch.device("cuda", 0)
    runs = cuda.CudaModule(lambda x: x * 2, device, largest=64, graphs=True, spins=False)
    kept = [(n, runs.answer([np.full((n, 10_000), n, np.float32)])) for n in (64, 17, 20, 63)]
    assert all(bool((answer == 2 * n).all()) and len(answer) == n for n, answer in kept)


def test_compiled_answers_are_the_processors(files: dict[str, Path]) -> None:
    with opened(files["pt2"], "cpu") as cpu:
        right = answers(cpu, (1, 8, 64))
    with opened(files["pt2"], compile="on") as gpu:
        assert largest_error(answers(gpu, (1, 8, 64)), right) < CLOSE["f32"]


def test_instances_side_by_side_do_not_disturb_each_other(files: dict[str, Path]) -> None:
    """Bug: a graph's input memory was freed after its capture, and was reused for another instance's answers."""
    with opened(files["pt2"], "cpu") as cpu:
        right = {seed: answers(cpu, SIZES, seed) for seed in range(3)}
    errors: list[float] = []

    def work(gpu: Any) -> None:
        for _ in range(10):
            errors.extend(largest_error(answers(gpu, SIZES, seed), right[seed]) for seed in right)

    with ExitStack() as stack:
        gpus = [stack.enter_context(opened(files["pt2"])) for _ in range(3)]
        threads = [threading.Thread(target=work, args=(gpu,)) for gpu in gpus]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(errors) == 90
    assert max(errors) < CLOSE["f32"]


def test_instances_share_their_weights(files: dict[str, Path]) -> None:
    with opened(files["pt2"]) as first, opened(files["pt2"]) as second:
        assert first._module is second._module
        with opened(files["pt2"], precision="f16") as third:
            assert third._module is not first._module


def test_too_large_a_batch_is_reported_in_one_line(files: dict[str, Path]) -> None:
    with opened(files["pt2"], cuda_graph="off") as gpu:
        held = torch.empty(0, dtype=torch.uint8, device="cuda")
        free, _ = torch.cuda.mem_get_info()
        held = torch.empty(free - (64 << 20), dtype=torch.uint8, device="cuda")
        with pytest.raises(
            PluginUnavailable,
            match=r"PyTorch cannot answer .* at once: the memory of GPU 0 is full",
        ):
            gpu.infer(Batch(40_000, {"image": images(1).repeat(40_000, axis=0)}))
        del held
        torch.cuda.empty_cache()
        assert len(gpu.infer(Batch(2, {"image": images(2)}))["scores"]) == 2


def test_a_full_gpu_is_refused_in_one_line(files: dict[str, Path]) -> None:
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1e-6)
    try:
        with pytest.raises(ConfigError, match="the memory of GPU 0 is full"):
            opened(files["pt2"]).__enter__()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
