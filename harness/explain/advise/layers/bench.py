"""Measures layers alone under each setting: micro-benchmarks from the kernels' own times.

The time of a whole call is no lower bound: a layer alone has kernels at its ends that change the
layout, or quantise, and that a model does not have between its layers. They are kept apart.
"""

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from harness.core.units import NS_PER_MS
from harness.errors import ConfigError, one_line
from harness.explain.advise.layers.database import LayerDatabase, Timed
from harness.explain.advise.layers.settings import FILE, INT8, Setting
from harness.explain.advise.layers.units import Unit, cut, inputs_of, noise
from harness.explain.kernels.ort_events import NS_PER_US, Event, read_events
from harness.models.graph.graph import Graph
from harness.models.opened.ort_session import open_session
from harness.models.precision.onnx import quantise, recipe
from harness.profiler import CONTROL_FLOW
from harness.types import Array

_SUFFIX = "_kernel_time"
_WARM_UP, _LEAST_RUNS, _MOST_RUNS, _ENOUGH_NS = 2, 10, 100, 150 * NS_PER_MS
_SEED = 1
_BORDERS = frozenset(
    ("ReorderInput", "ReorderOutput", "QuantizeLinear", "DequantizeLinear", "Transpose", "Cast")
)


class Counted(NamedTuple):
    """Counts of one call of `measure`.
    ran: measurements made. found: taken from the database.
    elsewhere: in the database for another machine or version, not used.
    was_stopped: Ctrl-C ended it before all were made.
    """

    ran: int
    found: int
    elsewhere: int
    was_stopped: bool = False


class _Pieces:
    """Units as models of their own, each made when first needed and stored in `folder`."""

    def __init__(self, graph: Graph, units: Sequence[Unit], folder: Path) -> None:
        self._graph = graph
        self._units = {unit.key: unit for unit in units}
        self._folder = folder

    def op_types(self, key: str) -> list[str]:
        return [self._graph.nodes[i].op_type for i in self._units[key].nodes]

    def path(self, key: str, precision: str) -> Path:
        path = self._folder / f"{key}-{precision}.onnx"
        if not path.is_file() and precision == INT8:
            file = self.path(key, FILE)
            quantise(file, path, [self.feeds(key)], recipe(INT8, file))
        elif not path.is_file():
            nodes = [self._graph.nodes[i] for i in self._units[key].nodes]
            path.write_bytes(cut(self._graph, nodes).SerializeToString())
        return path

    def feeds(self, key: str) -> dict[str, Array]:
        random = np.random.default_rng(_SEED)
        nodes = [self._graph.nodes[i] for i in self._units[key].nodes]
        tensors = {name: self._graph.tensors[name] for name in inputs_of(self._graph, nodes)}
        return {
            name: noise(tuple(n or 0 for n in t.shape), t.dtype, random)
            for name, t in tensors.items()
        }


def measure(
    graph: Graph,
    units: Sequence[Unit],
    settings: Sequence[Setting],
    database: LayerDatabase,
    *,
    passes: int = 3,
    between: Callable[[], None] = lambda: None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> tuple[dict[str, dict[Setting, Timed]], Counted]:
    """Returns key -> setting -> times. Runs only what the database lacks, and adds it. After
    Ctrl-C it returns the times so far.
    settings: of single kernels.
    passes: how often each is run, far apart, so that a disturbance does not hit one alone.
    between: called before, between and after the passes.
    progress: called with (measurements done, total).
    """
    keys = list(dict.fromkeys(unit.key for unit in units))
    known = {(key, s): database.get(key, s) for key in keys for s in settings}
    missing = [one for one, timed in known.items() if timed is None or timed.passes < passes]
    elsewhere = database.elsewhere([key for key, _ in missing]) if missing else 0
    ran: set[tuple[str, Setting]] = set()
    was_stopped = False
    with tempfile.TemporaryDirectory(prefix="harness-layers-") as name:
        pieces = _Pieces(graph, units, Path(name))
        try:
            between()
            for one, done, total in _in_turn(known, missing, passes):
                if one is None:
                    between()
                    continue
                timed, before = _timed(pieces, *one), known[one]
                known[one] = timed = before.joined(timed) if before else timed
                ran.add(one)
                database.put(*one, "+".join(pieces.op_types(one[0])), timed)
                progress(done, total)
        except KeyboardInterrupt:
            was_stopped = True
    times: dict[str, dict[Setting, Timed]] = {key: {} for key in keys}
    for (key, setting), timed_one in known.items():
        if timed_one is not None:
            times[key][setting] = timed_one
    return times, Counted(len(ran), len(known) - len(missing), elsewhere, was_stopped)


def _in_turn(
    known: Mapping[tuple[str, Setting], Timed | None],
    missing: Sequence[tuple[str, Setting]],
    passes: int,
) -> Iterator[tuple[tuple[str, Setting] | None, int, int]]:
    """Yields (the next measurement, its number, total); None as measurement after each pass.
    Measurements that an earlier start left incomplete get only their missing passes.
    """
    have = {one: timed.passes if (timed := known[one]) else 0 for one in missing}
    total, done = sum(passes - count for count in have.values()), 0
    for number in range(1, passes + 1 if missing else 1):
        for one in missing:
            if have[one] < number:
                done += 1
                yield one, done, total
        yield None, done, total


def _timed(pieces: _Pieces, key: str, setting: Setting) -> Timed:
    try:
        path = pieces.path(key, setting.precision)
        runs, calls = _profiled(path, pieces.feeds(key), setting)
    except Exception as e:  # noqa: BLE001 - whatever refuses a layer, the others are measured
        return Timed(failed=one_line(e) or type(e).__name__)
    return timed_from(runs, calls, pieces.op_types(key))


def _profiled(
    path: Path, feeds: Mapping[str, Array], setting: Setting
) -> tuple[list[list[Event]], list[tuple[int, int]]]:
    """Returns (kernels of each run, (wall ns, CPU ns) of each call)."""
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
    return list(split_runs(events, len(calls)))[_WARM_UP:], calls[_WARM_UP:]


def split_runs(events: Iterable[Event], runs: int) -> Iterator[list[Event]]:
    """Yields the kernels of each of `runs` equal, consecutive runs. Kernels inside an If, Loop or
    Scan are part of that kernel.
    """
    events_of_kernels = [
        e for e in events if e.get("cat") == "Node" and e["name"].endswith(_SUFFIX)
    ]
    kernels: list[Event] = []
    inside_until = -1
    for event in sorted(events_of_kernels, key=lambda e: (e["ts"], -e["dur"])):
        if event["ts"] >= inside_until:
            kernels.append(event)
            if event["args"].get("op_name") in CONTROL_FLOW:
                inside_until = event["ts"] + event["dur"]
    each, left = divmod(len(kernels), runs)
    if left:
        raise ConfigError(f"{len(kernels)} kernels are not {runs} times the same: control flow")
    for run in range(runs):
        yield kernels[run * each : (run + 1) * each]


def timed_from(
    runs: Sequence[Sequence[Event]], calls: Sequence[tuple[int, int]], op_types: Sequence[str]
) -> Timed:
    """runs: the kernels of each run. calls: (wall ns, CPU ns) of each run.
    op_types: the unit's own operators; other _BORDERS operators stand only at its ends.
    """
    borders = _BORDERS - set(op_types)

    def total_ns(run: Sequence[Event], *, is_border: bool) -> int:
        chosen = (e["dur"] for e in run if (e["args"].get("op_name") in borders) == is_border)
        return int(sum(chosen)) * NS_PER_US

    return Timed(
        tuple(total_ns(run, is_border=False) for run in runs),
        tuple(call for call, _ in calls),
        tuple(cpu for _, cpu in calls),
        tuple(total_ns(run, is_border=True) for run in runs),
        tuple(e["args"].get("op_name", "") for e in runs[0]),
    )
