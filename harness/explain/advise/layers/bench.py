"""Measures each layer alone under each setting, using the times of its kernels.

The time of a whole call is not a lower bound. When a layer runs alone, additional kernels at its inputs and outputs
convert the layout or quantise. The whole model does not run such kernels between its layers, so their times are stored
separately.
"""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

from harness.core.units import NS_PER_MS
from harness.errors import one_line
from harness.explain.advise.layers.settings import FILE, INT8, Setting
from harness.explain.advise.layers.units import Unit
from harness.explain.kernels.ort_events import NS_PER_US, Event, kernels_by_run, read_events
from harness.explain.pieces.cut import Cut
from harness.explain.pieces.database import Database
from harness.models.opened.ort_session import open_session
from harness.models.precision.onnx import quantise, recipe
from harness.types import Array

_WARM_UP, _LEAST_RUNS, _MOST_RUNS, _ENOUGH_NS = 2, 10, 100, 150 * NS_PER_MS

BORDERS = frozenset(
    ("ReorderInput", "ReorderOutput", "QuantizeLinear", "DequantizeLinear", "Transpose", "Cast")
)
"""Operators that only convert a layout or a type."""


Clock = Literal["cpu", "wall"]


class LayerTimes(NamedTuple):
    """Times of one layer that was run alone under one setting, with one number per run.
    kernel_ns: time of the kernels that compute the layer.
    call_ns, cpu_ns: wall time and CPU time of the whole call.
    border_ns: time of the BORDERS kernels at the layer's ends, which the whole model does not run.
    kernels: executed operators.
    failed: reason for missing numbers, or "".
    passes: number of measurements, which are far apart in time.
    """

    kernel_ns: tuple[int, ...] = ()
    call_ns: tuple[int, ...] = ()
    cpu_ns: tuple[int, ...] = ()
    border_ns: tuple[int, ...] = ()
    kernels: tuple[str, ...] = ()
    failed: str = ""
    passes: int = 1

    def least_ns(self, clock: Clock) -> float | None:
        """Returns the shortest time of all runs.

        clock: if it is `cpu`, the result is the shortest CPU time of a call, multiplied by the median fraction of a
        call that is spent in kernels. This result is meaningful only if the setting uses one thread.
        """
        if not self.kernel_ns:
            return None
        if clock == "wall":
            return float(min(self.kernel_ns))
        calls = zip(self.kernel_ns, self.call_ns, strict=True)
        return min(self.cpu_ns) * median(kernel / call for kernel, call in calls)

    def joined(self, later: "LayerTimes") -> "LayerTimes":
        """Appends the runs of a later pass."""
        passes = self.passes + later.passes
        if later.failed or self.failed:
            return (later if self.failed else self)._replace(passes=passes)
        return later._replace(
            passes=passes,
            kernel_ns=self.kernel_ns + later.kernel_ns,
            call_ns=self.call_ns + later.call_ns,
            cpu_ns=self.cpu_ns + later.cpu_ns,
            border_ns=self.border_ns + later.border_ns,
        )

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "LayerTimes":
        numbers = {name: tuple(content[name]) for name in cls._fields[:5]}
        return cls(**numbers, failed=str(content["failed"]), passes=int(content["passes"]))


class Counts(NamedTuple):
    """Counts of one call of `measure`.
    ran: number of measurements. found: number of results read from the database.
    elsewhere: number of results in the database that cannot be used because they belong to another machine or version.
    was_stopped: whether Ctrl-C ended the measurements.
    """

    ran: int
    found: int
    elsewhere: int
    was_stopped: bool = False


def measure(
    units: Sequence[Unit],
    settings: Sequence[Setting],
    database: Database,
    *,
    decided: Mapping[str, Array],
    passes: int = 3,
    between: Callable[[], None] = lambda: None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> tuple[dict[str, dict[Setting, LayerTimes]], Counts]:
    """Returns the times per unit key and setting. Measures only times that the database does not contain, and stores
    them. After Ctrl-C, returns the times measured so far.
    settings: settings of single kernels.
    decided: the result of pieces.cut.decisions.
    passes: number of measurements per layer. The measurements are far apart in time, so that a disturbance does not
    affect all of them. between: called before, between and after the passes. progress: called with (measurements done,
    total).
    """
    cuts = {unit.key: unit.cut for unit in units}
    layers = {key: "+".join(cut.brick.layers) for key, cut in cuts.items()}
    times: dict[str, dict[Setting, LayerTimes]] = {key: {} for key in cuts}
    for setting in settings:
        for key, content in database.read(cuts, str(setting)).items():
            times[key][setting] = LayerTimes.from_json(content)
    # If an earlier command was stopped, some layers have fewer passes in the database, and only the missing passes are
    # made.
    have = {
        (key, setting): times[key][setting].passes if setting in times[key] else 0
        for key, setting in product(cuts, settings)
    }
    turns = [[one for one in have if have[one] < number] for number in range(1, passes + 1)]
    lacking, total = set().union(*turns), sum(map(len, turns))
    elsewhere = database.elsewhere({key for key, _ in lacking}) if lacking else 0
    ran: list[tuple[str, Setting]] = []
    was_stopped = False
    with tempfile.TemporaryDirectory(prefix="harness-layers-") as name:
        try:
            between()
            for turn in filter(None, turns):
                for key, setting in turn:
                    timed = _layer_times(cuts[key], setting, Path(name), decided)
                    before = times[key].get(setting)
                    timed = before.joined(timed) if before else timed
                    times[key][setting] = timed
                    ran.append((key, setting))
                    database.add({key: timed._asdict()}, str(setting), layers)
                    progress(len(ran), total)
                between()
        except KeyboardInterrupt:
            was_stopped = True
    return times, Counts(len({*ran}), len(have) - len(lacking), elsewhere, was_stopped)


def _layer_times(
    cut: Cut, setting: Setting, folder: Path, decided: Mapping[str, Array]
) -> LayerTimes:
    try:
        path = _file(cut, setting.precision, folder, decided)
        runs, calls = _profiled(path, cut.feeds(decided), setting)
    except Exception as e:  # noqa: BLE001 - whatever refuses a layer, the others are measured
        return LayerTimes(failed=one_line(e) or type(e).__name__)
    return times_from(runs, calls, cut.brick.layers)


def _file(cut: Cut, precision: str, folder: Path, decided: Mapping[str, Array]) -> Path:
    """Returns the layer as a model file. Writes the file if it does not exist yet."""
    path = folder / f"{cut.brick.digest}-{precision}.onnx"
    if not path.is_file() and precision == INT8:
        own = _file(cut, FILE, folder, decided)
        quantise(own, path, [cut.feeds(decided)], recipe(INT8, own))
    elif not path.is_file():
        path.write_bytes(cut.model().SerializeToString())
    return path


def _profiled(
    path: Path, feeds: Mapping[str, Array], setting: Setting
) -> tuple[list[list[Event]], list[tuple[int, int]]]:
    """Returns the kernels of each run, and (wall ns, CPU ns) of each call."""
    calls: list[tuple[int, int]] = []
    with tempfile.TemporaryDirectory(prefix="harness-layer-") as folder:
        session = open_session(path, setting.session, profile_prefix=Path(folder) / "events")
        begin_ns = time.perf_counter_ns()
        while len(calls) < _WARM_UP + _LEAST_RUNS or (
            len(calls) < _MOST_RUNS and time.perf_counter_ns() - begin_ns < _ENOUGH_NS
        ):
            cpu_ns, wall_ns = time.process_time_ns(), time.perf_counter_ns()
            session.run(None, feeds)
            wall_ns = time.perf_counter_ns() - wall_ns
            calls.append((wall_ns, time.process_time_ns() - cpu_ns))
        events = read_events(Path(session.end_profiling()))
    return kernels_by_run(events, len(calls))[_WARM_UP:], calls[_WARM_UP:]


def times_from(
    runs: Sequence[Sequence[Event]], calls: Sequence[tuple[int, int]], op_types: Sequence[str]
) -> LayerTimes:
    """Returns the times of a layer.

    runs: the kernels of each run. calls: (wall ns, CPU ns) of each run. op_types: the unit's operators. A BORDERS
    kernel whose operator is not in op_types lies at one of the unit's ends.
    """
    borders = BORDERS - set(op_types)

    def total_ns(run: Sequence[Event], *, is_border: bool) -> int:
        chosen = (e["dur"] for e in run if (e["args"].get("op_name") in borders) == is_border)
        return int(sum(chosen)) * NS_PER_US

    return LayerTimes(
        tuple(total_ns(run, is_border=False) for run in runs),
        tuple(call for call, _ in calls),
        tuple(cpu for _, cpu in calls),
        tuple(total_ns(run, is_border=True) for run in runs),
        tuple(e["args"].get("op_name", "") for e in runs[0]),
    )
