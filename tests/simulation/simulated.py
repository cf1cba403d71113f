"""Simulates a measured process and its time, so that the same seed gives the same run.

The supervisor's own code runs, with real files. Only the clock, the connection and the process are stand-ins, and time
passes only where the supervisor waits. The process repeats a golden run (tests/golden/runs), or answers queries in a
closed loop at made-up times.
"""

import math
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from harness.core.config.run_config import RunConfig, from_plain
from harness.core.files import read_json
from harness.core.units import NS_PER_S
from harness.loadgen.logs import DETAIL, FILES, digests
from harness.loadgen.plan import LoadPlan
from harness.models.opened.resolved_run import ResolvedRun
from harness.results.outcome import Finished
from harness.run.journal import Journal
from harness.run.supervisor import preflight
from harness.run.supervisor.job import measure
from tests.golden.make_runs import FOLDERS

START_NS = 1_800_000_000 * NS_PER_S
NO_PID = 2**22 + 1
"""A number above the kernel's largest process ID."""

BEFORE_QUERIES_S = 0.5
STAMPS = ("taken_ns", "gathered_ns", "inferred_ns", "postprocessed_ns", "completed_ns")
CLOSED = "made-up closed loop"
SUBJECTS = {CLOSED: 73, "server": 136, "single-stream": 136, "offline": 25}
"""Maps a subject to its number of steps: with simulated answers, or with the answers of a golden run."""


class Fault(NamedTuple):
    """One fault at one step in one of the run's measured processes."""

    kind: str = "none"
    step: int = 0
    seconds: float = 0.0
    status: int = 0
    phase: int = 0
    """0 means the run's first measured process."""


KINDS = (
    *("none", "die", "die-held", "hang", "stall", "lose", "repeat", "error"),
    *("cut-log", "change-log", "step-clock", "stay"),
)
"""die-held: a child of the process keeps its connection open. lose: the step does nothing. repeat: an answer is written
again in place of the next answer. stay: the process sends its last message and does not exit.
"""


class Clock:
    """Stands in for Python's module `time` in the supervisor."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.stepped_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def monotonic(self) -> float:
        return self.now_ns / NS_PER_S

    def time_ns(self) -> int:
        return START_NS + self.now_ns + self.stepped_ns

    def time(self) -> float:
        return self.time_ns() / NS_PER_S

    def sleep(self, seconds: float) -> None:
        self.now_ns += int(seconds * NS_PER_S)

    def put_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Replaces the real clock in every module of the supervisor."""
        replaced = {
            id(time): self,
            id(time.time_ns): self.time_ns,
            id(time.monotonic_ns): self.monotonic_ns,
        }
        for name, module in list(sys.modules.items()):
            if name == "harness.core.clock" or name.startswith("harness.run.supervisor."):
                for attribute, value in list(vars(module).items()):
                    if id(value) in replaced:
                        monkeypatch.setattr(module, attribute, replaced[id(value)])


_Step = tuple[float, str, Callable[[], object]]
"""Seconds after the previous step, kind of the step, and the function that performs it."""


@dataclass(slots=True)
class Known:
    """The messages and settings of a golden run, which the simulated process repeats."""

    folder: Path
    asked: Mapping[str, Any]
    loaded: Mapping[str, Any]
    calibration: Mapping[str, Any]
    environment: Mapping[str, Any]

    @classmethod
    def of(cls, name: str) -> "Known":
        folder = FOLDERS / name
        findings = read_json(folder / "findings.json")
        machine = read_json(folder / "environment.json")
        keys = ("machine", "system", "packages", "variables", "harness")
        return cls(
            folder,
            findings["asked"],
            findings["loaded"],
            findings["calibration"],
            {key: machine[key] for key in keys},
        )


class Process:
    """Stands in for Popen and Channel of one simulated measured process."""

    pid = NO_PID

    def __init__(self, world: "World", fd: int, phase: int) -> None:
        self._world, self._fd = world, fd
        self._fault = world.fault if world.fault.phase == phase else Fault()
        self._sent: deque[dict[str, Any]] = deque()
        self._status: int | None = None
        self._is_open = True
        self._setup: Mapping[str, Any] = {}
        self._steps: Iterator[_Step] = iter(())
        self._next: _Step | None = None
        self._at_ns: float = math.inf
        self.number = 0
        """Number of steps that the process has done so far."""
        self.hit = ""
        """The step at which the fault occurred; "" before the fault."""
        self.completed = False
        """True if the process sent its last message after doing every step once."""
        self._unharmed = True
        self._again: Callable[[], object] | None = None

    # The supervisor calls the following methods on Channel.

    def send(self, event: str, **values: Any) -> None:
        self._world.note("to", event)
        if event == "setup":
            self._setup = values
            self._begin(self._before_the_plan())
        elif self._status is None:
            plan = LoadPlan.from_json(values["plan"])
            self._begin(self._run(plan, Journal(os.dup(self._fd))))

    def receive(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        until_ns = math.inf if timeout_s is None else self._world.clock.now_ns + timeout_s * 1e9
        while not self._sent:
            if self._status is not None and not self._is_open:
                return None
            if not self._advance(until_ns):
                raise TimeoutError
        message = self._sent.popleft()
        self._world.note("from", message["event"])
        forged = self._world.forge(message)
        self.completed &= forged is message
        return forged

    def close(self) -> None:
        self._is_open = False

    # The supervisor calls the following methods on Popen.

    def poll(self) -> int | None:
        return self._status

    @property
    def returncode(self) -> int | None:
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        until_ns = math.inf if timeout is None else self._world.clock.now_ns + timeout * 1e9
        while self._status is None:
            if not self._advance(until_ns):
                assert timeout is not None, "the supervisor waits forever"
                raise subprocess.TimeoutExpired("simulated", timeout)
        return self._status

    def kill(self, signum: int) -> None:
        if self._status is None:
            self._world.note("killed", signum)
            self._die(-signum)

    # The simulated process executes the following methods.

    def _begin(self, steps: Iterator[_Step]) -> None:
        self._steps = steps
        self._plan_next()

    def _plan_next(self) -> None:
        self._next = next(self._steps, None)
        after_s = math.inf if self._next is None else self._next[0]
        self._at_ns = self._world.clock.now_ns + after_s * 1e9

    def _advance(self, until_ns: float) -> bool:
        """Performs the next step if it is due by `until_ns`, or else moves the clock to `until_ns`; returns whether a
        step was performed.
        """
        self._world.waited()
        if self._status is not None or self._at_ns > until_ns:
            assert until_ns < math.inf, "the supervisor waits forever"
            self._world.clock.now_ns = max(self._world.clock.now_ns, int(until_ns))
            return False
        self._world.clock.now_ns = max(self._world.clock.now_ns, int(self._at_ns))
        assert self._next is not None
        _, kind, act = self._next
        self._do(kind, act)
        return True

    def _do(self, kind: str, act: Callable[[], object]) -> None:
        fault, is_hit = self._fault, self.number == self._fault.step
        self.number += 1
        if not is_hit:
            if self._again is not None and kind == "answer":
                self._again()
                self._unharmed = False
            else:
                act()
            self._again = None
            self._plan_next()
            return
        self.hit = kind
        if fault.kind in ("die", "die-held"):
            self._die(fault.status)
            self._is_open = fault.kind == "die-held"
            return
        if fault.kind == "hang" or (fault.kind == "lose" and kind in ("loaded", "calibrated")):
            self._unharmed, self._at_ns = False, math.inf
            return
        if fault.kind == "stall":
            self._fault = self._fault._replace(kind="none")
            self.number -= 1
            self._at_ns = self._world.clock.now_ns + abs(fault.seconds) * 1e9
            return
        if fault.kind == "error":
            text = "the simulated process fails"
            self._sent.append({"event": "error", "status": fault.status, "text": text, "trace": ""})
            self._die(fault.status)
            return
        if fault.kind == "lose":
            # Our own scheduler writes no LoadGen log, so the lost log does no harm.
            no_log = kind == "logs" and self._world.subject == CLOSED
            self._unharmed &= no_log or kind in ("loading", "alive")
        elif fault.kind == "repeat" and kind == "answer":
            act()
            self._again = act
        elif fault.kind == "step-clock":
            self._world.clock.stepped_ns += int(fault.seconds * 1e9)
            act()
        else:
            act()
        self._plan_next()

    def _die(self, status: int) -> None:
        self._status, self._is_open = status, False

    def _say(self, event: str, **values: Any) -> None:
        self._sent.append({"event": event, **values})

    def _before_the_plan(self) -> Iterator[_Step]:
        known, random = self._world.known, self._world.random
        for done in (100, 300):
            yield (
                random.uniform(0.01, 2),
                "loading",
                partial(self._say, "loading", done=done, total=500),
            )
        yield random.uniform(0.01, 5), "loaded", partial(self._say, "loaded", **known.loaded)
        calibrated = partial(self._say, "calibrated", **known.calibration)
        yield random.uniform(0.01, 5), "calibrated", calibrated

    def _run(self, plan: LoadPlan, journal: Journal) -> Iterator[_Step]:
        yield 0.1, "alive", partial(self._say, "alive")
        outdir = Path(self._setup["outdir"])
        golden = self._world.known.folder / outdir.relative_to(outdir.parents[1 - plan.accuracy])
        if self._world.subject == CLOSED:
            yield from self._closed_loop(plan, journal)
            ended = read_json(golden / "run.json")["ended"]
        else:
            ended = read_json(golden / "run.json")["ended"]
            yield from self._repeat(golden, journal)
        yield 0.01, "logs", partial(self._write_logs, golden, outdir)
        yield 0.01, "ended", lambda: self._end(ended, outdir)
        if self._fault.kind != "stay":
            yield 0.2, "exit", partial(self._die, 0)

    def _end(self, ended: Mapping[str, Any], outdir: Path) -> None:
        files = digests(outdir)
        if self._fault.kind == "change-log" and files:
            self._unharmed = False
            with (outdir / next(iter(files))).open("a") as log:
                log.write("\n")
        self._sent.append(
            {"client": None, "models": None, **ended, "event": "ended", "files": files}
        )
        self.completed = self._unharmed

    def _write_logs(self, golden: Path, outdir: Path) -> None:
        for name in FILES:
            if (golden / name).is_file():
                content = (golden / name).read_bytes()
                if self._fault.kind == "cut-log" and name == DETAIL:
                    self._unharmed = False
                    content = content[: int(len(content) * (self._fault.seconds % 1))]
                (outdir / name).write_bytes(content)

    def _closed_loop(self, plan: LoadPlan, journal: Journal) -> Iterator[_Step]:
        """Yields the steps of one worker that answers the queries one by one, with `concurrency` queries in flight."""
        issuer, writer, random = journal.issuer(), journal.writer(0), self._world.random
        samples = np.random.RandomState(plan.seeds.sample_index & 0xFFFFFFFF).randint(
            0, plan.performance_count, plan.query_count, dtype=np.int64
        )
        in_flight, clock = plan.concurrency or 1, self._world.clock

        def begin() -> None:
            journal.start_ns = clock.time_ns()
            issuer.issued(in_flight, journal.start_ns)

        def answer(query: int, taken_s: float) -> None:
            at_ns = clock.time_ns()
            taken_ns = max(at_ns - int(taken_s * 1e9), int(journal.entry_ns[query]))
            stamps = [taken_ns, taken_ns, taken_ns, at_ns, at_ns]
            writer.batch(query, [int(samples[query])], 0, *stamps)
            if issuer.count < plan.query_count:
                issuer.issued(1, at_ns)

        yield BEFORE_QUERIES_S, "issue", begin
        for query in range(plan.query_count):
            service_s = min(2.0, random.lognormvariate(-1.5, 0.5))
            yield service_s, "answer", partial(answer, query, service_s)

    def _repeat(self, golden: Path, journal: Journal) -> Iterator[_Step]:
        """Yields the golden run's rows at their original times after the start."""
        issuer, clock = journal.issuer(), self._world.clock
        if not (golden / "completions.npz").is_file():
            return
        with np.load(golden / "completions.npz") as file:
            columns = dict(file)
        begin_ns = int(columns["entry_ns"][0])
        moved_ns = clock.time_ns() + int(BEFORE_QUERIES_S * 1e9) - begin_ns
        events: list[tuple[int, str, Callable[[], object]]] = []
        entries, counts = np.unique(columns["entry_ns"], return_counts=True)
        for entry_ns, count in zip(entries.tolist(), counts.tolist(), strict=True):
            events.append((entry_ns, "issue", partial(issuer.issued, count, entry_ns + moved_ns)))
        writers = [journal.writer(n) for n in range(journal.workers)]
        for batch in range(int(columns["batch"].max()) + 1):
            (rows,) = np.nonzero(columns["batch"] == batch)
            stamps = [int(columns[name][rows[0]]) + moved_ns for name in STAMPS]
            writer = writers[int(columns["worker"][rows[0]])]
            indices = columns["index"][rows].tolist()
            write = partial(writer.batch, int(columns["order"][rows[0]]), indices, 0, *stamps)
            events.append((stamps[-1] - moved_ns, "answer", write))
        after_ns = begin_ns - int(BEFORE_QUERIES_S * 1e9)
        for at_ns, kind, act in sorted(events, key=lambda event: event[:2]):
            yield max(0, at_ns - after_ns) / 1e9, kind, act
            after_ns = max(after_ns, at_ns)


MOST_WAITS = 100_000


Forge = Callable[[dict[str, Any]], dict[str, Any]]
"""Turns each message of the measured process into the message that the supervisor receives."""


class World:
    """The simulated time and the simulated processes of one run."""

    def __init__(
        self, subject: str, seed: int, fault: Fault, forge: Forge = lambda message: message
    ) -> None:
        self.subject, self.fault, self.forge = subject, fault, forge
        self.random = Random(seed)
        self.clock = Clock()
        self.known = Known.of("closed-loop" if subject == CLOSED else subject)
        self.processes: list[Process] = []
        self.trace: list[tuple[int, str, object]] = []
        self._waits = 0

    @property
    def complete(self) -> bool:
        """Returns whether every measured process of the run did all steps exactly once."""
        phases = 2 if self.config(Path()).mode == "both" else 1
        return len(self.processes) == phases and all(one.completed for one in self.processes)

    def note(self, what: str, which: object) -> None:
        self.trace.append((self.clock.now_ns, what, which))

    def waited(self) -> None:
        self._waits += 1
        assert self._waits < MOST_WAITS, "the supervisor waits again and again"

    def connect(self, _module: str, fds: list[int], **_kwargs: Any) -> tuple[Process, Process]:
        self.processes.append(process := Process(self, fds[0], len(self.processes)))
        return process, process

    def config(self, out: Path) -> RunConfig:
        config = from_plain(self.known.asked)
        return replace(config, out=out, no_metrics=True, no_report=True)


@contextmanager
def _patched(world: World) -> Iterator[None]:
    resolved = _resolved(world.subject)
    with pytest.MonkeyPatch.context() as patch:
        world.clock.put_in(patch)
        supervisor = "harness.run.supervisor"
        patch.setattr(f"{supervisor}.measured_process.connect", world.connect)
        patch.setattr("os.killpg", lambda _pid, signum: world.processes[-1].kill(signum))
        machine, noise = world.known.environment, SimpleNamespace(to_json=lambda: _NOISE)
        patch.setattr("harness.machine.host.noise_floor", lambda _seconds: noise)
        patch.setattr("harness.machine.host.fingerprint", lambda: machine)
        patch.setattr("harness.machine.host.SystemLoad", lambda _pid: SimpleNamespace(since=dict))
        patch.setattr(f"{supervisor}.job.Repeated", lambda *_: nullcontext())
        seed = _answers_seed(world.known.folder)
        patch.setattr(f"{supervisor}.metrics.exporter.generate_latest", _families)
        patch.setattr(
            f"{supervisor}.metrics.exporter.Exporter.write", lambda self, _folder: self.page()
        )
        patch.setattr("secrets.randbits", lambda _bits: seed)
        patch.setattr(
            f"{supervisor}.preflight.resolve", lambda config: replace(resolved, config=config)
        )
        yield


def _families(registry: CollectorRegistry) -> bytes:
    """Collects all metrics without writing metrics.prom, which would take half of the test's time."""
    return "".join(f"{family.name}\n" for family in registry.collect()).encode()


@cache
def _resolved(subject: str) -> ResolvedRun:
    """Looks the names up only once, because the look-up takes longer than a simulated run."""
    return preflight.resolve(World(subject, 0, Fault()).config(Path("run")))


_NOISE = {"p50": 1000, "p99": 2000, "steal": 0.0}


def _answers_seed(folder: Path) -> int:
    """Returns the seed that selects which answers of the golden run are compared."""
    return int(read_json(folder / "performance/run_1/run.json")["plan"]["answers_seed"])


def simulate(world: World, out: Path, **options: Any) -> Finished:
    """Makes one run in `world`, from the configuration to the stored result; raises the same exceptions as `measure`."""
    with _patched(world):
        return measure(world.config(out), **options)
