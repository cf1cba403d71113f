"""Times bricks on ONNX Runtime, and the models they were cut from.

A brick is measured with caches in the same state as inside its model. The brick's input was just written, and all other
weights of the model were read since the brick's weights were last read. To create this state, the bricks of a model
take turns. If the model's weights are larger than the weights of its bricks, the difference (at most CACHE_BYTES) is
read from memory between two turns. An empty model measures the overhead of a run.
"""

import functools
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from harness.core.extras import how_to_install
from harness.errors import PluginUnavailable, one_line
from harness.explain.bricks.time.layouts import Reorders, never_converts, reorders
from harness.explain.kernels.ort_events import read_events
from harness.explain.pieces.cut import Cut, decisions
from harness.explain.pieces.ends import UNKNOWN
from harness.explain.pieces.made_up import activations
from harness.models.graph.graph import Graph
from harness.models.opened.ort_session import SessionSetup, open_session
from harness.types import Array

CACHE_BYTES = 64 << 20
"""This many bytes are read to evict the caches' contents."""

_REORDER_RUNS = 7
_IN_A_ROW = 2
"""Each turn makes this many timed runs after one untimed run."""

_ERROR_LEVEL = 3
_OPTIMISED = "optimised.onnx"

_IN_THE_SHARED_ARENA = {
    "session.use_env_allocators": "1",
    "session.use_device_allocator_for_initializers": "1",
}


Samples = dict[str, list[int]]
"""Samples by `cpu_ns` and `wall_ns`, with one entry per run."""


def onnxruntime() -> Any:
    try:
        import onnxruntime as ort
    except ModuleNotFoundError as e:
        raise PluginUnavailable(
            f"running bricks needs the module {e.name!r}: {how_to_install('ort')}"
        ) from e
    ort.set_default_logger_severity(_ERROR_LEVEL)
    return ort


@functools.cache
def _share_arena() -> None:
    """Lets all sessions take activation memory from one arena. The memory is then as warm for a brick as for a layer
    inside a model.
    """
    ort = onnxruntime()
    kind, use = ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, ort.OrtMemType.DEFAULT
    ort.create_and_register_allocator(ort.OrtMemoryInfo("Cpu", kind, 0, use), None)


def _brick_session(model: bytes, setup: SessionSetup, folder: Path | None = None) -> Any:
    """Opens a session for a brick. folder: folder for the profile and the optimised graph. If `folder` is None, neither
    the profile nor the graph is written.
    """
    _share_arena()
    return open_session(
        model,
        setup,
        profile_prefix=folder / "profile" if folder else None,
        optimised=folder / _OPTIMISED if folder else None,
        config=_IN_THE_SHARED_ARENA,
    )


class Pool:
    """Input memory that all bricks share, because the layers of a model also share memory."""

    ALIGNED_BYTES = 4096

    def __init__(self) -> None:
        self._memory = np.zeros(0, np.uint8)

    def place(self, arrays: Sequence[Array]) -> list[Array]:
        """Returns a place in memory for each array. Every call reuses the same memory."""
        step = self.ALIGNED_BYTES
        starts = np.cumsum([0, *(-(-array.nbytes // step) * step for array in arrays)])
        if len(self._memory) < starts[-1] + step:
            self._memory = np.zeros(int(starts[-1]) + step, np.uint8)
        shift = -self._memory.ctypes.data % step
        return [
            np.ndarray(array.shape, array.dtype, self._memory, shift + int(start))
            for array, start in zip(arrays, starts[:-1], strict=True)
        ]


class TimedSession:
    """A session whose inputs lie in a pool and whose outputs ONNX Runtime allocates and frees."""

    def __init__(self, session: Any, inputs: Sequence[Array], pool: Pool) -> None:
        self.session = session
        self._binding = session.io_binding()
        self._given = list(inputs)
        self._pool = pool
        self._inputs = [i.name for i in session.get_inputs()]
        self._outputs = [o.name for o in session.get_outputs()]
        self.run()

    def run(self) -> tuple[int, int]:
        """Writes the inputs as the previous layer would, then runs the layer once. Returns (CPU ns, wall ns)."""
        binding = self._binding
        places = self._pool.place(self._given)
        for name, place, array in zip(self._inputs, places, self._given, strict=True):
            np.copyto(place, array)
            binding.bind_input(name, "cpu", 0, array.dtype, array.shape, place.ctypes.data)
        for name in self._outputs:
            binding.bind_output(name)
        wall, cpu = time.perf_counter_ns(), time.process_time_ns()
        self.session.run_with_iobinding(binding)
        cpu_ns, wall_ns = time.process_time_ns() - cpu, time.perf_counter_ns() - wall
        values = zip(self._outputs, binding.get_outputs(), strict=True)
        self.shapes = {name: tuple(value.shape()) for name, value in values}
        binding.clear_binding_outputs()
        return cpu_ns, wall_ns


def _no_samples() -> Samples:
    return {"cpu_ns": [], "wall_ns": []}


@dataclass
class ModelSamples:
    """Samples of one model and its bricks.
    whole: samples of the model. overhead: samples of the empty model alone.
    bricks: the data of each brick by digest: its samples, the samples of the empty model right after each run of the
    brick (`beside`), and `reorders`. A brick that did not run contains only the reason (`failed`).
    why_not: reason why the whole model did not run.
    setup_s: time to build and load everything.
    """

    whole: Samples = field(default_factory=_no_samples)
    overhead: Samples = field(default_factory=_no_samples)
    bricks: dict[str, dict[str, Any]] = field(default_factory=dict)
    why_not: str | None = None
    setup_s: float = 0.0
    was_stopped: bool = False


def measure(
    graph: Graph | None,
    weight_bytes: int,
    cuts: Mapping[str, Cut],
    setup: SessionSetup,
    rounds: int,
    progress: Callable[[int], None] = lambda _done: None,
) -> ModelSamples:
    """Runs the model and the given bricks (by digest) alternately. After Ctrl-C, returns the samples so far and sets
    `was_stopped`.
    graph: None if the model is missing. weight_bytes: size of the model's weights.
    rounds: turns of all bricks, each after a turn of the model.
    progress: called with the number of rounds done.
    """
    start = time.monotonic()
    measured = ModelSamples()
    whole: list[tuple[TimedSession, Samples]] = []
    bricks: list[tuple[TimedSession, Any]] = []
    decided: dict[str, Array] = {}
    try:
        if graph is not None:
            feeds = _made_inputs(graph)
            decided = decisions(graph, cuts.values(), feeds, setup)
            # The whole model is opened from its file, and its symbolic dimensions get the same sizes as in the bricks.
            session = open_session(graph.path, setup, sizes=graph.sizes)
            whole.append((TimedSession(session, list(feeds.values()), Pool()), measured.whole))
    except Exception as e:  # noqa: BLE001 - bricks of a model that does not run may still run
        measured.why_not = one_line(e)
    empty, pool, brick_bytes = _empty(setup), Pool(), 0
    for digest, cut in cuts.items():
        try:
            timed, reorders = _brick(cut, setup, pool, decided)
        except Exception as e:  # noqa: BLE001 - a brick that does not run is a result
            measured.bricks[digest] = {"failed": one_line(e)}
            continue
        beside = _no_samples()
        result = {**_no_samples(), "beside": beside, "reorders": reorders._asdict()}
        measured.bricks[digest] = result
        bricks += [(timed, result), (empty, beside)]
        brick_bytes += cut.brick.weight_bytes
    measured.setup_s = time.monotonic() - start
    filler = _filler(max(0, weight_bytes - brick_bytes))
    try:
        for done in range(rounds):
            progress(done)
            _turn(whole, np.zeros(0))
            _turn([(empty, measured.overhead)], np.zeros(0))
            _turn(bricks, filler)
    except KeyboardInterrupt:
        measured.was_stopped = True
    return measured


def _made_inputs(graph: Graph) -> dict[str, Array]:
    random, feeds = np.random.default_rng(0), {}
    for name in graph.inputs:
        tensor = graph.tensors.get(name)
        if tensor is None:
            raise ValueError(f"the file records no shape of input {name!r}")
        if tensor.dtype in ("string", "undefined"):
            raise ValueError(f"cannot generate numbers for input {name!r}, which is {tensor.dtype}")
        feeds[name] = activations(random, tensor)
    return feeds


def _turn(sessions: Sequence[tuple[TimedSession, Samples]], filler: Array) -> None:
    for number in range(1 + _IN_A_ROW):
        for timed, samples in sessions:
            cpu_ns, wall_ns = timed.run()
            if number:
                samples["cpu_ns"].append(cpu_ns)
                samples["wall_ns"].append(wall_ns)
        filler.sum()


def _filler(size_bytes: int) -> Array:
    return np.ones(min(size_bytes, CACHE_BYTES) // 8)


def _empty(setup: SessionSetup) -> TimedSession:
    """Opens a model that does nothing, to measure the overhead of a run."""
    from onnx import TensorProto, helper

    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    node = helper.make_node("Identity", ["x"], ["y"])
    graph = helper.make_graph([node], "empty", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data = [np.ones(1, np.float32)]
    return TimedSession(open_session(model.SerializeToString(), setup), data, Pool())


def _brick(
    cut: Cut, setup: SessionSetup, pool: Pool, decided: Mapping[str, Array]
) -> tuple[TimedSession, Reorders]:
    """Checks, loads and runs a brick once. Raises ValueError if the brick's output contradicts the graph."""
    import onnx

    model = cut.model()
    if UNKNOWN not in cut.brick.outputs:  # because the checker refuses outputs without a type
        onnx.checker.check_model(model)
    content = model.SerializeToString()
    del model
    inputs = list(cut.feeds(decided).values())
    reorders = _reorders(content, cut, setup, inputs, pool)
    timed = TimedSession(_brick_session(content, setup), inputs, pool)
    for name, tensor in zip(cut.outputs, cut.brick.outputs, strict=True):
        shape = timed.shapes.get(cut.numbers[name])
        if tensor == UNKNOWN or shape is None:  # because maps and sequences have no shape
            continue
        pairs = zip(shape, tensor.shape, strict=False)
        if len(shape) != len(tensor.shape) or any(b not in (None, a) for a, b in pairs):
            raise ValueError(
                f"its output has the shape {shape}, but in the model this output is {tensor}"
            )
    return timed, reorders


def _reorders(
    content: bytes, cut: Cut, setup: SessionSetup, inputs: Sequence[Array], pool: Pool
) -> Reorders:
    """Measures conversions in a separate profiled session; all other times of this session are ignored."""
    if never_converts(cut.brick.layers):
        return Reorders((0,) * len(cut.inputs), (0,) * len(cut.outputs))
    with tempfile.TemporaryDirectory(prefix="harness-bricks-") as name:
        folder = Path(name)
        session = _brick_session(content, setup, folder)
        timed = TimedSession(session, inputs, pool)
        for _ in range(_REORDER_RUNS):
            timed.run()
        events = read_events(Path(session.end_profiling()))
        numbers = cut.numbers
        return reorders(
            folder / _OPTIMISED,
            events,
            [numbers[name] for name in cut.inputs],
            [numbers[name] for name in cut.outputs],
            cut.brick.layers,
        )
