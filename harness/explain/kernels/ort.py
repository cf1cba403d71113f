"""Profiles a model with ONNX Runtime's own profiler, which reports kernels, times and nodes in the file.

Calls with and without the profiler alternate, which shows the profiler's cost. Reported latencies never come from a
profiled run.
"""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from harness.errors import ConfigError
from harness.explain.kernels.kernels import LayerProfile, Times
from harness.explain.kernels.ort_events import from_events, read_events
from harness.models.graph.wiring import read_wiring
from harness.models.opened.ort_session import SessionSetup, open_session
from harness.types import Array


class NoNode(ConfigError):
    """Raised if ONNX Runtime runs no node of the model."""


_WEIGHTS_APART = {
    "session.optimized_model_external_initializers_file_name": "weights",
    "session.optimized_model_external_initializers_min_size_in_bytes": "64",
}
"""Session options that make ONNX Runtime save the executed graph without its weights. Only the graph's structure is
read.
"""


def profile(
    model: Path,
    feeds: Mapping[str, Array],
    *,
    runs: int = 20,
    warm_up: int = 3,
    setup: SessionSetup | None = None,
    keep_events: Path | None = None,
) -> LayerProfile:
    """Runs the model `runs` times without and `runs` times with the profiler, alternately (ABBA).

    feeds: arrays by input name. keep_events: a file for the profiler's JSON output. Two sessions are open at once, so
    twice the model's memory is needed. Raises ConfigError if ONNX Runtime refuses the model or the feeds, and NoNode if
    the model contains no node to run.
    """
    import onnxruntime as ort

    setup = setup or SessionSetup()
    with tempfile.TemporaryDirectory(prefix="harness-profile-") as name:
        folder = Path(name)
        plain, profiled = _sessions(model, setup, folder)
        calls = [partial(session.run, None, feeds) for session in (plain, profiled)]
        try:
            interleaved(calls, warm_up)
            times = interleaved(calls, runs)
        # because onnxruntime's exceptions have only this base class in common
        except Exception as e:
            raise ConfigError(f"{model}: ONNX Runtime failed to run it: {_first_line(e)}") from e
        del plain
        events_file = Path(profiled.end_profiling())
        calls.clear()
        del profiled
        events = read_events(events_file)
        if keep_events is not None:
            keep_events.write_bytes(events_file.read_bytes())
        executed = read_wiring(folder / "executed.onnx", may_be_empty=True)
    if not executed.nodes:
        raise NoNode(
            f"{model}: ONNX Runtime runs no node of the model: it has no nodes, or all were folded away"
        )
    file = read_wiring(model)
    return from_events(
        events,
        file,
        executed,
        runs=runs,
        runtime=f"onnxruntime {ort.__version__}",
        setup=setup,
        times=times,
    )


def interleaved(
    calls: Sequence[Callable[[], object]],
    runs: int,
    around: Sequence[Callable[[], AbstractContextManager[object]]] = (),
    repeats: Sequence[int] = (),
) -> tuple[Times, ...]:
    """Measures each call `runs` times. The order of the calls is reversed in each round, so that drift affects all
    calls equally.

    around: a context for each call. The time to enter and leave the context is not measured.
    repeats: number of calls in one measurement. A measurement is the mean over these calls.
    """
    around = around or [nullcontext] * len(calls)
    repeats = repeats or [1] * len(calls)
    rows: list[list[tuple[int, int, int]]] = [[] for _ in calls]
    order = list(range(len(calls)))
    for _ in range(runs):
        for i in order:
            with around[i]():
                cpu_ns, begin_ns = time.process_time_ns(), time.perf_counter_ns()
                for _ in range(repeats[i]):
                    calls[i]()
                wall_ns = time.perf_counter_ns() - begin_ns
                cpu_ns = time.process_time_ns() - cpu_ns
                rows[i].append((begin_ns, wall_ns // repeats[i], cpu_ns // repeats[i]))
        order.reverse()
    return tuple(
        Times(
            start_ns=tuple(start for start, _, _ in row),
            wall_ns=tuple(wall for _, wall, _ in row),
            cpu_ns=tuple(cpu for _, _, cpu in row),
        )
        for row in rows
    )


def _sessions(model: Path, setup: SessionSetup, folder: Path) -> tuple[Any, Any]:
    """Opens one session without the profiler and one with the profiler.

    The session with the profiler saves the executed graph in `folder`.
    """
    try:
        plain = open_session(model, setup)
        profiled = open_session(
            model,
            setup,
            profile_prefix=folder / "events",
            optimised=folder / "executed.onnx",
            config=_WEIGHTS_APART,
        )
    except Exception as e:  # because onnxruntime's exceptions have only this base class in common
        raise ConfigError(f"{model}: ONNX Runtime refused it: {_first_line(e)}") from e
    return plain, profiled


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
