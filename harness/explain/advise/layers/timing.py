"""A whole model timed under a setting, in turns with what it runs under now."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.core.units import NS_PER_MS
from harness.errors import ConfigError, one_line
from harness.explain.advise.layers.settings import Setting
from harness.models.opened import ort_session
from harness.types import Array

_WARM_UP = 2
_LEAST_NS = 30 * NS_PER_MS
"""Of one measurement: as many calls, one after the other, and their mean is taken."""
_MOST_CALLS = 200


class Timing(NamedTuple):
    """(n,) mean of the calls of each measurement. cpu_ns: of all threads of this process."""

    wall_ns: tuple[int, ...]
    cpu_ns: tuple[int, ...]


def open_session(path: Path, setting: Setting) -> Any:
    """An onnxruntime.InferenceSession; a ConfigError where ONNX Runtime refuses the file."""
    try:
        return ort_session.open_session(path, setting.session)
    except Exception as e:  # noqa: BLE001 - onnxruntime's own share no base but this
        raise ConfigError(f"{path}: ONNX Runtime refused it: {one_line(e)}") from None


def alternated(
    first: Callable[[], object], second: Callable[[], object], pairs: int
) -> tuple[Timing, Timing]:
    """Measured as A B, B A, A B, ...: drift hits both alike."""
    calls = (first, second)
    counts = [_calls(call) for call in calls]
    seen: tuple[list[tuple[int, int]], ...] = ([], [])
    for i in range(pairs):
        for which in (0, 1) if i % 2 == 0 else (1, 0):
            seen[which].append(_once(calls[which], counts[which]))
    a, b = (Timing(*zip(*one, strict=True)) for one in seen)
    return a, b


def timed(call: Callable[[], object], calls: int) -> Timing:
    """Alone, each call by itself."""
    for _ in range(_WARM_UP):
        call()
    return Timing(*zip(*(_once(call, 1) for _ in range(calls)), strict=True))


def against(
    now: tuple[Path, Setting],
    other: tuple[Path, Setting],
    feeds: Mapping[str, Array],
    pairs: int,
) -> tuple[Timing, Timing]:
    """Two files, or one under two settings. Both sessions are alive meanwhile."""
    sessions = [open_session(*one) for one in (now, other)]
    try:
        return alternated(
            lambda: sessions[0].run(None, feeds), lambda: sessions[1].run(None, feeds), pairs
        )
    except Exception as e:  # noqa: BLE001 - onnxruntime's own share no base but this
        raise ConfigError(f"{other[0]}: ONNX Runtime failed to run it: {one_line(e)}") from None


def _calls(call: Callable[[], object]) -> int:
    """How many of them take _LEAST_NS, once they are warm."""
    for _ in range(_WARM_UP):
        call()
    took_ns = max(_once(call, 1)[0], 1)
    return max(1, min(_MOST_CALLS, _LEAST_NS // took_ns))


def _once(call: Callable[[], object], count: int) -> tuple[int, int]:
    cpu_ns, wall_ns = time.process_time_ns(), time.perf_counter_ns()
    for _ in range(count):
        call()
    wall_ns = time.perf_counter_ns() - wall_ns
    return wall_ns // count, (time.process_time_ns() - cpu_ns) // count
