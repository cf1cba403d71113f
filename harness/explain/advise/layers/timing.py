"""Times a whole model alternately under another setting and under the current setting."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.core.units import NS_PER_MS
from harness.errors import ConfigError, one_line
from harness.explain.advise.layers.settings import Setting
from harness.explain.kernels.kernels import Times
from harness.explain.kernels.ort import interleaved
from harness.models.opened import ort_session
from harness.types import Array

_WARM_UP = 2
_LEAST_NS = 30 * NS_PER_MS
"""A measurement takes at least this long, and its result is the mean of repeated calls."""
_MOST_CALLS = 200


Timing = Mapping[str, Sequence[int]]
"""wall_ns, cpu_ns: (n,) times of a call, with one entry per measurement. CPU time covers all threads of this
process.
"""


def open_session(path: Path, setting: Setting) -> Any:
    """Returns an onnxruntime.InferenceSession; raises ConfigError if ONNX Runtime refuses the file."""
    try:
        return ort_session.open_session(path, setting.session)
    except Exception as e:  # noqa: BLE001 - onnxruntime's own share no base but this
        raise ConfigError(f"{path}: ONNX Runtime refused it: {one_line(e)}") from None


def time_in_turns(
    first: Callable[[], object], second: Callable[[], object], pairs: int
) -> tuple[Timing, Timing]:
    """Measures in the order A B, B A, A B, ..., so that drift affects both calls equally."""
    calls = (first, second)
    a, b = interleaved(calls, pairs, repeats=[_repeats(call) for call in calls])
    return _timing(a), _timing(b)


def time_alone(call: Callable[[], object], calls: int) -> Timing:
    """Measures one call without alternating it with another call. calls: number of measurements."""
    for _ in range(_WARM_UP):
        call()
    (times,) = interleaved([call], calls)
    return _timing(times)


def _timing(times: Times) -> Timing:
    return {"wall_ns": times.wall_ns, "cpu_ns": times.cpu_ns}


def compare(
    now: tuple[Path, Setting],
    other: tuple[Path, Setting],
    feeds: Mapping[str, Array],
    pairs: int,
) -> tuple[Timing, Timing]:
    """Compares two files, or one file under two settings. Both sessions stay open throughout."""
    sessions = [open_session(*one) for one in (now, other)]
    try:
        return time_in_turns(
            lambda: sessions[0].run(None, feeds), lambda: sessions[1].run(None, feeds), pairs
        )
    except Exception as e:  # noqa: BLE001 - onnxruntime's own share no base but this
        raise ConfigError(f"{other[0]}: ONNX Runtime failed to run it: {one_line(e)}") from None


def _repeats(call: Callable[[], object]) -> int:
    """Returns the number of warm calls that together take _LEAST_NS."""
    (run_ns,) = time_alone(call, 1)["wall_ns"]
    return max(1, min(_MOST_CALLS, _LEAST_NS // max(run_ns, 1)))
