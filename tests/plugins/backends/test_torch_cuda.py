"""The part of the backend `torch` that feeds a GPU, tested with a stand-in for torch.cuda."""

import inspect
import threading
import warnings
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.errors import ConfigError
from harness.types import BackendSetup

torch: Any = pytest.importorskip("torch")
torch_cuda: Any = import_module("harness.backends.parts.torch_cuda")
stand_in: Any = import_module("tests.stand_ins.cuda")

pytestmark = [
    pytest.mark.slow,  # these tests are slow, because they import PyTorch
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]


def test_the_stand_in_has_the_interface_of_torch_cuda() -> None:
    """Every call of CudaModule must be possible with the arguments that the stand-in accepts."""
    device, stream = torch.device("cuda", 0), object()
    calls: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "Event": ((), {"blocking": True}),
        "Stream": ((device,), {}),
        "CUDAGraph": ((), {}),
        "graph_pool_handle": ((), {}),
        "set_stream": ((stream,), {}),
        "set_sync_debug_mode": (("error",), {}),
        "graph": ((object(),), {"pool": 0, "stream": stream, "capture_error_mode": "thread_local"}),
        "mem_get_info": ((device,), {}),
        "max_memory_allocated": ((device,), {}),
        "memory_reserved": ((device,), {}),
    }
    assert {name for name in vars(stand_in.FakeCuda) if not name.startswith("_")} == calls.keys()
    for name, (args, more) in calls.items():
        inspect.signature(getattr(torch.cuda, name)).bind(*args, **more)
        inspect.signature(getattr(stand_in.FakeCuda(), name)).bind(*args, **more)
    for name, methods in {
        "Event": ("record", "synchronize"),
        "Stream": ("synchronize",),
        "CUDAGraph": ("replay",),
    }.items():
        assert all(hasattr(getattr(torch.cuda, name), method) for method in methods)


def module(call: Any, cuda: Any, *, graphs: bool = True, largest: int = 8) -> Any:
    return torch_cuda.CudaModule(
        call, torch.device("cpu"), largest=largest, graphs=graphs, spins=True, cuda=cuda
    )


def rows(count: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((count, 3), np.float32)


@pytest.mark.parametrize("graphs", [True, False])
def test_every_batch_size_has_its_own_answers(graphs: bool) -> None:
    cuda = stand_in.FakeCuda()
    runs = module(lambda x: {"double": 2 * x, "sum": x.sum(1)}, cuda, graphs=graphs)
    for seed in range(3):
        for count in (5, 1, 8, 3):
            given = rows(count, seed)
            answer = runs.answer([given])
            np.testing.assert_array_equal(answer["double"].numpy(), 2 * given)
            np.testing.assert_allclose(answer["sum"].numpy(), given.sum(1), rtol=1e-6)
    assert cuda.captures == (4 if graphs else 0)
    assert runs.used()["cuda_graphs"] == cuda.captures
    assert runs.used()["cuda_graphs_reason"] == ("" if graphs else "off")


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("width", [3, 30_000])
def test_rows_are_copied_to_the_instances_memory(width: int) -> None:
    held = np.random.default_rng(0).standard_normal((10, width), np.float32)
    held.setflags(write=False)
    for places in ([7, 2, 2], np.array([0, 9, 4, 4, 1])):
        into = np.zeros((len(places), width), np.float32)
        torch_cuda.take_rows(held, places, into)
        np.testing.assert_array_equal(into, held[places])


def test_a_capture_that_fails_leaves_no_debug_mode_behind() -> None:
    cuda = stand_in.FakeCuda()
    runs = module(lambda x: 2 * x, cuda)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="Synchronization debug mode"):
            runs.answer([rows(2)])
    assert cuda.sync_debug_mode == "default"


def test_sizes_between_those_of_graphs_are_padded_by_at_most_a_quarter() -> None:
    sizes = [torch_cuda.graph_size(n, 64) for n in range(1, 65)]
    assert all(n <= size <= 1.25 * n for n, size in enumerate(sizes, 1))
    assert len({*sizes}) == 20
    assert torch_cuda.graph_size(61, 62) == 62


def test_a_padded_batch_has_its_own_answers() -> None:
    """A graph for 20 rows computes 17 rows, also after a batch of 20, and never returns the same memory twice."""
    cuda = stand_in.FakeCuda()
    runs = module(lambda x: (x + 1, x.sum(1)), cuda, largest=64)
    kept = []
    for count in (20, 17, 19, 18):
        given = rows(count, count)
        first, second = runs.answer([given])
        np.testing.assert_array_equal(first.numpy(), given + 1)
        np.testing.assert_allclose(second.numpy(), given.sum(1), rtol=1e-6)
        kept.append((first, given))
    assert all((first.numpy() == given + 1).all() for first, given in kept)
    assert cuda.captures == 1
    into = runs.buffers(18)
    assert [each.shape for each in into] == [(18, 3)]
    into[0][...] = rows(18, 5)
    np.testing.assert_array_equal(runs.answer(into)[0].numpy(), rows(18, 5) + 1)


def test_a_batch_is_not_padded_if_an_output_has_no_row_for_each_sample() -> None:
    cuda = stand_in.FakeCuda()
    runs = module(lambda x: x.sum(0), cuda, largest=64)
    for count in (17, 20, 17):
        given = rows(count, count)
        np.testing.assert_allclose(runs.answer([given]).numpy(), given.sum(0), rtol=1e-5)
    assert cuda.captures == 2


def test_samples_of_another_type_do_not_use_the_graph_of_the_first() -> None:
    """Bug: float64 rows came back as float32, and int64 rows lost their upper bits."""
    runs = module(lambda x: x + 1, stand_in.FakeCuda())
    for dtype in (np.float32, np.float64, np.int64, np.float32):
        given = np.full((2, 3), 2**20, dtype)
        answer = runs.answer([given]).numpy()
        assert answer.dtype == dtype
        np.testing.assert_array_equal(answer, given + 1)


def test_a_larger_batch_than_planned_runs_without_a_graph() -> None:
    cuda = stand_in.FakeCuda()
    runs = module(lambda x: x + 1, cuda)
    np.testing.assert_array_equal(runs.answer([rows(9)]).numpy(), rows(9) + 1)
    assert (cuda.captures, runs.buffers(9)) == (0, None)


def test_an_answer_outlives_the_next_batch() -> None:
    runs = module(lambda x: x + 1, stand_in.FakeCuda())
    first, second = rows(2, 0), rows(2, 1)
    kept = runs.answer([first])
    runs.answer([second])
    np.testing.assert_array_equal(kept.numpy(), first + 1)


@pytest.mark.parametrize("outputs", [lambda x: x.sum(1), lambda x: x.sum(1)[:, None] + 0 * x])
def test_large_inputs_and_outputs_are_copied_as_well(outputs: Any) -> None:
    runs = module(outputs, stand_in.FakeCuda())
    large = np.ones((4, torch_cuda._SMALL_BYTES), np.float32)
    for factor in (1, 2):
        answer = runs.answer([factor * large]).numpy()
        assert (answer == factor * torch_cuda._SMALL_BYTES).all()
        assert answer.shape[0] == 4


def test_a_batch_that_was_made_in_the_graphs_memory_is_not_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = module(lambda x, y: x + y, stand_in.FakeCuda())
    assert runs.buffers(2) is None
    runs.answer([rows(2), rows(2)])
    x, y = runs.buffers(2)
    assert runs.buffers(3) is None
    x[...], y[...] = rows(2, 1), rows(2, 2)
    monkeypatch.setattr(torch_cuda, "_copy", lambda *_: pytest.fail("it was copied"))
    np.testing.assert_array_equal(runs.answer([x, y]).numpy(), rows(2, 1) + rows(2, 2))


def test_batches_of_several_shapes_are_made_elsewhere() -> None:
    runs = module(lambda x: x + 1, stand_in.FakeCuda())
    for width in (3, 4):
        runs.answer([np.zeros((2, width), np.float32)])
    assert runs.buffers(2) is None


def test_module_that_reads_values_runs_without_a_graph_for_a_reason() -> None:
    cuda = stand_in.FakeCuda()
    runs = module(lambda x: x if x.sum().item() > 0 else -x, cuda)
    for sign in (1, -1, 1):
        answer = runs.answer([np.full((2, 3), sign, np.float32)])
        assert answer.tolist() == [[1.0] * 3] * 2
    runs.answer([np.ones((3, 3), np.float32)])
    assert cuda.captures == 1
    assert runs.used()["cuda_graphs"] == 0
    assert runs.used()["cuda_graphs_reason"] == (
        "CUDA error: operation not permitted when stream is capturing"
    )


def test_further_shapes_run_without_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_cuda, "MOST_GRAPHS", 2)
    cuda = stand_in.FakeCuda()
    runs = module(lambda x: x * 3, cuda)
    for count in (1, 2, 3, 4, 3):
        np.testing.assert_array_equal(runs.answer([rows(count)]).numpy(), rows(count) * 3)
    assert cuda.captures == 2
    assert runs.used()["cuda_graphs_reason"] == "an instance already has 2 graphs, the maximum"


def test_one_capture_at_a_time() -> None:
    """An allocation by another thread would become part of the graph, or abort the capture."""
    inside, most = [0], [0]

    def call(x: Any) -> Any:
        return x + 1

    class Watched(stand_in.FakeCuda):  # type: ignore[misc]
        @contextmanager
        def graph(self, graph: Any, **more: object) -> Any:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            with super().graph(graph, **more):
                yield
            inside[0] -= 1

    modules = [module(call, Watched(), largest=30) for _ in range(4)]
    threads = [
        threading.Thread(target=lambda m=m: [m.answer([rows(n)]) for n in range(1, 30)])
        for m in modules
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


@pytest.mark.parametrize("graphs", [True, False])
def test_a_gpu_that_is_lost_fails_each_batch_and_keeps_the_use(graphs: bool) -> None:
    class Lost(stand_in.Event):  # type: ignore[misc]
        lost = False

        def synchronize(self) -> None:
            if self.lost:
                raise RuntimeError("CUDA error: unspecified launch failure\nCompile with ...")

    class LostCuda(stand_in.FakeCuda):  # type: ignore[misc]
        Event = Lost

    cuda = LostCuda()
    runs = module(lambda x: x + 1, cuda, graphs=graphs)
    given = rows(2)
    answered = runs.answer([given])
    Lost.lost = True
    for _ in range(3):
        with pytest.raises(RuntimeError) as lost:
            runs.answer([rows(2, 1)])
        told = torch_cuda.reason(lost.value, torch.device("cuda", 0), cuda)
        assert told == "CUDA error: unspecified launch failure"
    np.testing.assert_array_equal(answered.numpy(), given + 1)
    assert runs.used()["cuda_graphs"] == (1 if graphs else 0)


def test_loading_a_model_waits_for_the_end_of_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: the mode in which a capture refuses waits applies to the process, so it refused the copies of the weights."""
    backend: Any = import_module("harness.backends.torch")
    held: list[bool] = []
    monkeypatch.setattr(backend, "opened_device", lambda _: torch.device("cuda", 0))
    monkeypatch.setattr(
        backend.TorchBackend,
        "_load_on_device",
        lambda _: held.append(torch_cuda.capturing.locked()),
    )
    setup = BackendSetup(model=Path("model.pt2"), model_name="m", device="cuda")
    backend.TorchBackend(setup)._load()
    assert held == [True]
    assert not torch_cuda.capturing.locked()


def test_missing_gpu_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch_cuda.opened_device("cpu").type == "cpu"
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match=r"^--device cuda: PyTorch .* sees no CUDA device"):
            torch_cuda.opened_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert torch_cuda.opened_device("cuda") == torch.device("cuda", 0)
    with pytest.raises(ConfigError) as refused:
        torch_cuda.opened_device("cuda:2")
    assert str(refused.value) == "--device cuda:2: PyTorch sees 1 GPU, numbered from 0"


def recorded(name: str, start_us: float, end_us: float, **more: Any) -> Any:
    """Returns an event as PyTorch 2.11 records it with a GPU, without the types of its inputs."""
    event = {
        "name": name,
        "time_range": SimpleNamespace(start=start_us, elapsed_us=lambda: end_us - start_us),
        "cpu_memory_usage": 0,
        "device_memory_usage": 0,
        "input_shapes": [],
        "kernels": [],
        "cpu_children": [],
    }
    return SimpleNamespace(**event | more)


def test_an_operators_time_is_that_of_its_kernels_on_the_gpu() -> None:
    """Uses times from a recording of ResNet-50 on an H200: the launch took 31 us on the host, and the kernels took 13.3
    and 2.1 us.
    """
    kernels: Any = import_module("harness.backends.parts.torch_kernels")
    copy = SimpleNamespace(name="cudnn::nchwToNhwcKernel", duration=2.1)
    product = SimpleNamespace(name="sm80_xmma_fprop_implicit_gemm", duration=13.3)
    inner = recorded("aten::cudnn_convolution", 104.0, 129.0, kernels=[copy, product])
    middle = recorded("aten::convolution", 101.0, 130.0, cpu_children=[inner])
    outer = recorded(
        "aten::conv2d", 100.0, 131.0, cpu_children=[middle], device_memory_usage=1_605_632
    )
    called = kernels._called_on_gpu(outer, 90.0)
    assert (called.name, called.implementation) == ("aten::conv2d", product.name)
    assert (called.start_ns, called.duration_ns) == (10_000, 15_400)
    assert called.allocated_bytes == 1_605_632
    assert called.arguments == ()
    events = [
        recorded("aten::copy_", 90.0, 99.0),
        recorded("Memcpy HtoD (Pinned -> Device)", 92.0, 104.5),
        outer,
        recorded("Memcpy DtoH (Device -> Pinned)", 140.0, 141.5),
        recorded("Memcpy DtoH (Device -> Pinned)", 141.5, 142.0),
        recorded("Memcpy DtoD (Device -> Device)", 105.0, 106.0),
    ]
    assert kernels._copies(events) == {"to the GPU": 12_500, "from the GPU": 2_000}
    flatten = kernels._called_on_gpu(recorded("aten::flatten", 140.0, 144.0), 90.0)
    assert (flatten.implementation, flatten.duration_ns) == ("", 0)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in https://docs",
            "the memory of GPU 1 is full (268 MB of 85.5 GB are free): stop other programs on it, or lower --instances or --max-batch",
        ),
        (
            "CUDA error: unspecified launch failure\nCUDA kernel errors might be asynchronous",
            "CUDA error: unspecified launch failure",
        ),
    ],
)
def test_an_error_of_cuda_is_one_line(text: str, reason: str) -> None:
    cuda = stand_in.FakeCuda()
    assert torch_cuda.reason(RuntimeError(text), torch.device("cuda", 1), cuda) == reason


def test_a_full_gpu_that_cannot_be_asked_is_full_without_numbers() -> None:
    def mem_get_info(_device: Any) -> Any:
        raise RuntimeError("CUDA error: out of memory")

    found = torch_cuda.reason(
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB."),
        torch.device("cuda", 0),
        SimpleNamespace(mem_get_info=mem_get_info),
    )
    assert found.startswith("the memory of GPU 0 is full: stop other programs")
