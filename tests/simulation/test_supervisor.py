"""The supervisor under simulated time: deterministic for a seed, with a fault or a kill at any step."""

import json
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, NamedTuple

import pytest

from harness.core.codes import CODES, Kind
from harness.core.service_times import QUANTILES
from harness.core.signals import Stopping
from harness.errors import BY_EXIT_STATUS, ConfigError, HarnessError
from harness.results.outcome import Finished
from harness.results.recheck import check
from harness.run import messages
from harness.run.supervisor.measured_process import END_LIMIT_S, START_LIMIT_S
from tests.simulation.simulated import CLOSED, KINDS, SUBJECTS, Fault, World, simulate

FAST_SEEDS = 30
SLOW_SEEDS = 2910
LIMIT_S = 2 * (3 * START_LIMIT_S + 2 * END_LIMIT_S)
"""Limit in simulated seconds: the supervisor may wait for two processes, before, during and after each run."""

HARMLESS = ("none", "stay")
WATCHED = ("harness/run/supervisor/", "harness/core/files.py", "harness/results/r")
"""Files whose function calls a signal may interrupt."""


def drawn(seed: int) -> World:
    """Returns a world with a fault drawn from the seed."""
    random = Random(seed)
    subject, sign = random.choice([*SUBJECTS]), random.choice((-1, 1))
    has_two = subject == "server"  # a Server subject has a performance run and an accuracy run
    fault = Fault(
        kind=random.choice(KINDS),
        step=random.randrange(SUBJECTS[subject]),
        seconds=sign * 10 ** random.uniform(-4, 3),
        status=random.choice((0, 1, 2, 3, 4, 5, 77, -9, -11, -40)),
    )
    if has_two and random.random() < 0.3:
        fault = fault._replace(phase=1, step=random.randrange(16))
    return World(subject, seed, fault)


@pytest.fixture(autouse=True)
def no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns fsync off: tests/crash tests the disk, and syncing would take most of the time in these tests."""
    monkeypatch.setattr("os.fsync", lambda _fd: None)


class Outcome(NamedTuple):
    finished: Finished | None
    error: Exception | None
    folder: Path
    """The folder of the stored run; the folder does not exist if the run was not stored."""
    stored: dict[str, Any] | None
    """The content of result.json; None if the run was not stored."""


def outcome(world: World, out: Path, **options: Any) -> Outcome:
    finished, error = None, None
    try:
        finished = simulate(world, out, **options)
    except (HarnessError, RuntimeError) as e:
        error = e
    folder = out if out.is_dir() else out.with_name(f"{out.name}.partial")
    path = folder / "result.json"
    return Outcome(
        finished, error, folder, json.loads(path.read_text()) if path.is_file() else None
    )


def judge(world: World, ended: Outcome, *, killed: bool = False) -> None:
    """Compares the outcome with the world's state."""
    assert world.clock.now_ns < (LIMIT_S + 2 * abs(world.fault.seconds)) * 1e9
    # A bug in the harness must keep its traceback.
    if isinstance(ended.error, RuntimeError):
        assert "the measured process failed" in str(ended.error)
        assert world.fault.status not in BY_EXIT_STATUS
    elif ended.error is not None:
        assert "\n" not in str(ended.error)
    if ended.stored is None:
        assert isinstance(ended.error, ConfigError), "the run left nothing"
        assert not ended.folder.exists()
        return
    reasons = {reason["code"] for reason in ended.stored["reasons"]}
    assert (ended.stored["verdict"] == "INVALID") == bool(reasons)
    assert all(CODES[code].kind == Kind.REASON for code in reasons)
    assert not any("\n" in reason["text"] for reason in ended.stored["reasons"])
    if ended.finished is not None:
        assert (ended.finished.status == 0) == (not reasons)
        assert ended.finished.folder == ended.folder
        assert ended.finished.result["reasons"] == ended.stored["reasons"]
    if not reasons:
        assert world.complete, "VALID although something is missing"
        assert ended.folder.suffix != ".partial"
    if world.complete and world.fault.kind in HARMLESS and not killed:
        assert not reasons, reasons
    if (ended.folder / "config.yaml").is_file():
        # LoadGen's log is a copy, so it contains the dates of the golden run. If a stall delays rows, the rows still
        # keep their time stamps.
        lines = [
            line
            for line in check(ended.folder)
            if " in LoadGen's log" not in line
            and not (world.fault.kind == "stall" and "supervisor's first look" in line)
        ]
        of_result = [line for line in lines if line.startswith(("verdict:", "reasons:"))]
        assert (of_result if reasons else lines) == []


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_run_without_a_fault_is_valid(subject: str, tmp_path: Path) -> None:
    world = World(subject, 0, Fault())
    ended = outcome(world, tmp_path / "run")
    judge(world, ended)
    assert world.complete
    assert ended.stored is not None
    assert ended.stored["verdict"] == "VALID"
    assert ended.stored["queries"]["samples_answered"] == 64
    assert world.processes[0].number == SUBJECTS[subject], "drawn steps would miss the last ones"


@pytest.mark.parametrize("seeds", [range(FAST_SEEDS)], ids=str)
def test_run_with_any_fault_ends_with_a_reason(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        world = drawn(seed)
        try:
            judge(world, outcome(world, tmp_path / f"run-{seed}"))
        except BaseException as e:
            e.add_note(f"seed {seed}: {world.subject}, {world.fault}")
            raise


@pytest.mark.slow
@pytest.mark.parametrize("first", range(FAST_SEEDS, SLOW_SEEDS, 144))
def test_run_with_any_fault_of_more_seeds_ends_with_a_reason(first: int, tmp_path: Path) -> None:
    test_run_with_any_fault_ends_with_a_reason(range(first, first + 144), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("subject", SUBJECTS)
def test_the_measured_process_may_die_at_every_step(subject: str, tmp_path: Path) -> None:
    phases = [SUBJECTS[subject], 16] if subject == "server" else [SUBJECTS[subject]]
    for phase, steps in enumerate(phases):
        for step in range(steps):
            world = World(subject, 0, Fault("die", step, status=-9, phase=phase))
            ended = outcome(world, tmp_path / f"{phase}-{step}")
            judge(world, ended)
            assert ended.stored is not None
            is_last = step == steps - 1  # the last step is the exit of the process
            assert (ended.stored["verdict"] == "VALID") == is_last, step


@pytest.mark.parametrize("seed", range(0, FAST_SEEDS, 10))
def test_the_same_seed_is_the_same_run(seed: int, tmp_path: Path) -> None:
    runs = []
    for _ in range(2):
        world = drawn(seed)
        ended = outcome(world, tmp_path / "run")
        if ended.stored is not None:
            del ended.stored["started"]
            shutil.rmtree(ended.folder)
        runs.append((world.trace, ended.stored, repr(ended.error)))
    assert runs[0] == runs[1]


def test_other_seeds_are_other_runs(tmp_path: Path) -> None:
    worlds = [World(CLOSED, seed, Fault()) for seed in range(2)]
    for number, world in enumerate(worlds):
        outcome(world, tmp_path / str(number))
    assert worlds[0].trace != worlds[1].trace


def _without(values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the message with each key removed, and with a value of a wrong type for each key."""
    for key in values:
        yield {name: value for name, value in values.items() if name != key}
        yield {**values, key: [[]]}


def _forgeries(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    event, content = message["event"], dict(message)
    del content["event"]
    changed = [*_without(content)]
    if event == "calibrated":
        # Most values of `calibrated` have defaults, so only wrong values are errors, not missing
        # values.
        changed = changed[1::2]
    if event == "ended":
        used = {key: value for key, value in content["used"].items() if key != "run_queue_s"}
        changed += [{**content, "used": one} for one in _without(used)]
        times = {"sizes": [1], "ns": [[1.0] * QUANTILES], "counts": [1]}
        bares = [{}, {"before": times}, *({"before": times, "after": t} for t in _without(times))]
        bares.append({"before": times, "after": {**times, "sizes": [2]}})
        bares.append({"before": times, "after": {**times, "ns": [[0.0] * QUANTILES]}})
        changed += [{**content, "bare": bare} for bare in bares]
        changed += [{**content, "answer_dtype": "no"}, {**content, "failed_samples": -1}]
    return ({**one, "event": event} for one in changed)


def _forge(event: str, forged: dict[str, Any], message: dict[str, Any]) -> dict[str, Any]:
    return forged if message["event"] == event else message


@pytest.mark.parametrize("event", ["loaded", "calibrated", "ended"])
def test_forged_message_is_reported_in_one_line_and_the_result_kept(
    event: str, tmp_path: Path
) -> None:
    """Bug: if the last message lacked keys, the supervisor raised a KeyError."""
    real: dict[str, dict[str, Any]] = {}
    simulate(World(CLOSED, 0, Fault(), lambda m: real.setdefault(m["event"], m)), tmp_path / "real")
    read = {"loaded": messages.loaded, "calibrated": messages.calibration}.get(
        event, lambda forged: messages.check(forged, ["ended"])
    )
    for number, forged in enumerate(_forgeries(real[event])):
        with pytest.raises(messages.BadMessage):
            read(forged)
        if number % 12:
            # Only every twelfth case makes a complete run, because a complete run takes longer.
            continue
        world = World(CLOSED, 0, Fault(), partial(_forge, event, forged))
        try:
            ended = outcome(world, tmp_path / str(number))
            judge(world, ended)
            assert ended.stored is not None
            (reason,) = ended.stored["reasons"]
            assert reason["code"] == ("died" if event == "ended" else "did-not-start")
            assert "that the harness does not send" in reason["text"]
        except BaseException as e:
            e.add_note(f"forged: {forged}")
            raise


def _is_stoppable() -> bool:
    return isinstance(getattr(signal.getsignal(signal.SIGTERM), "__self__", None), Stopping)


@contextmanager
def signalled(at: int) -> Iterator[list[int]]:
    """Sends SIGTERM at the `at`-th call of a function in WATCHED. Yields a list whose only item is the number of calls
    so far.
    """
    calls = [0]

    def on_event(frame: FrameType, event: str, _arg: object) -> None:
        watched = event == "call" and any(part in frame.f_code.co_filename for part in WATCHED)
        if watched and _is_stoppable():
            calls[0] += 1
            if calls[0] == at:
                signal.raise_signal(signal.SIGTERM)

    sys.setprofile(on_event)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def kill_at(call: int, subject: str, out: Path) -> tuple[Outcome, int]:
    world = World(subject, 0, Fault())
    with signalled(call) as calls:
        ended = outcome(world, out)
    try:
        judge(world, ended, killed=True)
        assert ended.stored is not None
        assert ended.finished is not None
        if ended.stored["verdict"] == "INVALID":
            assert "interrupted" in {reason["code"] for reason in ended.stored["reasons"]}
            assert ended.finished.status == 128 + signal.SIGTERM
    except BaseException as e:
        e.add_note(f"signalled at call {call} of {subject}")
        raise
    return ended, calls[0]


@pytest.mark.parametrize("subject", [CLOSED, "server"])
def test_signal_at_any_step_keeps_the_measurements(subject: str, tmp_path: Path) -> None:
    whole, calls = kill_at(0, subject, tmp_path / "whole")
    assert whole.stored is not None
    assert whole.stored["verdict"] == "VALID"
    for call in range(1, calls, max(1, calls // 6)):
        kill_at(call, subject, tmp_path / str(call))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_a_signal_at_every_step(part: int, tmp_path: Path) -> None:
    _, calls = kill_at(0, "server", tmp_path / "whole")
    for call in range(1 + part, calls, 8):
        kill_at(call, "server", tmp_path / str(call))


@pytest.mark.parametrize("bound", [1, 40])
def test_a_hopeless_run_ends_early_with_its_reason(bound: int, tmp_path: Path) -> None:
    """bound: number of queries that may be late. The worker stops for 7 s, so four queries are late."""
    world = World(CLOSED, 0, Fault("stall", step=40, seconds=7))
    ended = outcome(world, tmp_path / "run", most_late=lambda _plan: bound)
    judge(world, ended)
    assert ended.stored is not None
    found = {reason["code"] for reason in ended.stored["reasons"]}
    assert ("hopeless" in found) == (bound == 1)
