"""Reads kernels from the events of an ONNX Runtime profile and from the executed graph.

This module has no side effects. The input is a profile's events and two graphs; the output is a table of kernels.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.core.files import reading
from harness.errors import ConfigError
from harness.explain.kernels.fused import KernelMap, map_kernels
from harness.explain.kernels.kernels import Kernel, LayerProfile, Session, Times
from harness.models.opened.ort_session import SessionSetup
from harness.profiler import CONTROL_FLOW, Tensor, Wiring

NS_PER_US = 1_000
"""Nanoseconds per unit of ONNX Runtime's profiler, which counts whole microseconds."""

MOST_EVENTS = 1_000_000
"""A profile contains at most this many events; later events are dropped. Source: onnxruntime/core/common/profiler.h,
max_num_events_.
"""

Event = Mapping[str, Any]
"""One entry of the profile's list. The args of an entry hold numbers as strings."""

KERNEL = "_kernel_time"
"""Suffix of a kernel event's name, after the node's name."""

_RUN, _EXECUTE = "model_run", "SequentialExecutor::Execute"


def read_events(path: Path) -> list[Event]:
    """Reads a profile that ONNX Runtime wrote. Raises ConfigError for any other file."""
    problem = f"{path} is not a profile of ONNX Runtime"
    with reading(problem, also=(OSError,)):
        events = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    if not isinstance(events, list) or not all(_is_event(e) for e in events):
        raise ConfigError(f"{problem}: it must be a list of events")
    return events


def _is_event(event: object) -> bool:
    return (
        isinstance(event, dict)
        and isinstance(event.get("name"), str)
        and all(type(event.get(key)) is int for key in ("ts", "dur"))
        and isinstance(event.get("args"), dict)
    )


def from_events(
    events: Sequence[Event],
    file: Wiring,
    executed: Wiring,
    *,
    runs: int,
    runtime: str,
    setup: SessionSetup,
    times: tuple[Times, ...],
) -> LayerProfile:
    """Reads the last `runs` runs of a profile. All earlier runs were warm-up. Has no side effects. times: the plain
    calls, then the profiled calls. Raises ConfigError if the profile is truncated or belongs to another graph.
    """
    every = _runs(events, runs)
    last = every[-runs:]
    origins = map_kernels(file, executed)
    table = [_matched(_inside(events, run), executed) for run in last]
    first = _matched(_inside(events, every[0]), executed)
    peaks = [_number(e, "mem_in_use_peak") for row in (first, *table) for e in row]
    return LayerProfile(
        runtime=runtime,
        setup=setup,
        kernels=tuple(_kernels(table, first, last, origins)),
        eliminated=origins.eliminated,
        session=Session(
            load_ns=_total_ns(e for e in events if e["name"].startswith("model_loading")),
            initialise_ns=_total_ns(e for e in events if e["name"] == "session_initialization"),
            run_start_ns=tuple(run["ts"] * NS_PER_US for run in last),
            run_ns=tuple(run["dur"] * NS_PER_US for run in last),
            execute_ns=tuple(_execute_ns(events, run) for run in last),
        ),
        plain=times[0],
        profiled=times[1],
        peak_bytes=max((p for p in peaks if p is not None), default=None),
    )


def _runs(events: Sequence[Event], least: int) -> list[Event]:
    every = [e for e in events if e["name"] == _RUN]
    if len(every) < least:
        raise ConfigError(
            f"the profile has only {len(every)} of {least} runs, because ONNX Runtime keeps at most "
            f"{MOST_EVENTS:,} events: profile fewer runs"
        )
    return every


def kernels_by_run(events: Sequence[Event], runs: int) -> list[list[Event]]:
    """Returns the kernels of the main graph in each of `runs` runs, in the order of execution. Raises
    ConfigError if the profile is truncated.
    """
    return [_inside(events, run) for run in _runs(events, runs)]


def _total_ns(events: Iterable[Event]) -> int:
    return sum(int(e["dur"]) for e in events) * NS_PER_US


def _within(event: Event, outer: Event) -> bool:
    begin, end = outer["ts"], outer["ts"] + outer["dur"]
    return bool(begin <= event["ts"] and event["ts"] + event["dur"] <= end)


def _execute_ns(events: Sequence[Event], run: Event) -> int:
    """Returns the executor's time, or 0 if the profile does not contain the executor's span. The executor writes a
    separate span for a subgraph.
    """
    durations_ns = (int(e["dur"]) for e in events if e["name"] == _EXECUTE and _within(e, run))
    return max(durations_ns, default=0) * NS_PER_US


def _inside(events: Sequence[Event], run: Event) -> list[Event]:
    """Returns the run's kernels of the main graph. Kernels of a subgraph lie inside the span of an If, Loop or Scan."""
    nodes = [e for e in events if e.get("cat") == "Node" and _within(e, run)]
    kernels = [e for e in nodes if e["name"].endswith(KERNEL)]
    kernels.sort(key=lambda e: (e["ts"], -e["dur"]))
    outer = [e for e in kernels if e["args"].get("op_name") in CONTROL_FLOW]
    return [e for e in kernels if not any(e is not o and _within(e, o) for o in outer)]


def _matched(kernels: Sequence[Event], executed: Wiring) -> list[Event]:
    """Returns one event per node of the executed graph, in its order. The runtime usually executes the nodes in the
    order in which they were saved. The order may differ in parallel execution, where nodes are therefore identified by
    name. A node without a name gets a name from its operator and number.
    """
    ops = [node.op_type for node in executed.nodes]
    if [e["args"].get("op_name") for e in kernels] == ops:
        return list(kernels)
    waiting: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in kernels:
        name = event["name"].removesuffix(KERNEL)
        waiting[(event["args"].get("op_name", ""), name)].append(event)
    matched = []
    for node in executed.nodes:
        same = waiting.get((node.op_type, node.name))
        if not same:
            raise ConfigError(
                f"the profile has no kernel {node.name or node.op_type!r} of the executed graph: "
                "it belongs to another model, or to other settings"
            )
        matched.append(same.pop(0))
    return matched


def _kernels(
    table: Sequence[Sequence[Event]],
    first: Sequence[Event],
    runs: Sequence[Event],
    origins: KernelMap,
) -> Iterator[Kernel]:
    """Yields the kernels. table: events as [run][node]. first: events of the session's first run."""
    for i, origin in enumerate(origins.origins):
        last = table[-1][i]
        args = last["args"]
        yield Kernel(
            name=last["name"].removesuffix(KERNEL),
            op_type=args["op_name"],
            provider=args.get("provider", ""),
            nodes=origin.nodes,
            inserted=origin.inserted,
            inputs=_tensors(args.get("input_type_shape", ())),
            outputs=_tensors(args.get("output_type_shape", ())),
            activation_bytes=_number(last, "activation_size") or 0,
            parameter_bytes=_number(last, "parameter_size") or 0,
            output_bytes=_number(last, "output_size") or 0,
            allocated_bytes=_number(first[i], "mem_requested_in_use_delta"),
            start_ns=tuple(
                (row[i]["ts"] - run["ts"]) * NS_PER_US for row, run in zip(table, runs, strict=True)
            ),
            duration_ns=tuple(row[i]["dur"] * NS_PER_US for row in table),
        )


def _number(event: Event, key: str) -> int | None:
    """Reads a number. The profiler writes numbers as strings, and omits unknown numbers."""
    text = event["args"].get(key)
    return int(text) if text not in (None, "") else None


def _tensors(typed: Sequence[Mapping[str, Sequence[int]]]) -> tuple[Tensor, ...]:
    return tuple(Tensor(dtype, tuple(shape)) for one in typed for dtype, shape in one.items())
