"""A stream gets fewer threads if the model's threads would fall asleep between two queries; tested in simulated time."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.errors import ConfigError
from harness.machine.cores import available
from harness.run.measured import answerer
from harness.run.measured.answerer import Answerer
from harness.run.measured.placement import fewer_threads, lone
from harness.run.measured.placement.fewer_threads import LIMIT_NS, Choice, choose, fewer, fewest
from harness.types import Batch
from tests.builders.support import UNCHANGED

US = 1_000
ROOT = Path(__file__).parents[3]


class Clock:
    """Simulated time, which advances when it is read and when the model computes."""

    def __init__(self) -> None:
        self.now_ns = 0

    def monotonic_ns(self) -> int:
        self.now_ns += 100
        return self.now_ns


class Sleeper:
    """A combined dataset and backend whose threads share the work. Threads that have waited longer than `spin_ns` must
    be woken.
    """

    def __init__(
        self, clock: Clock, threads: int, work_ns: int, wake_ns: int, spin_ns: int = 0
    ) -> None:
        self._clock, self._threads = clock, threads
        self._work_ns, self._wake_ns, self._spin_ns = work_ns, wake_ns, spin_ns
        self._asleep_ns = 0
        self.disturbed_ns = 0

    def batch(self, indices: Sequence[int]) -> Batch:
        return Batch(len(indices), {"samples": np.asarray(indices, np.int64)})

    def infer(self, batch: Batch) -> Any:
        clock = self._clock
        if self._threads > 1 and clock.now_ns > self._asleep_ns:
            clock.now_ns += self._wake_ns * (self._threads - 1)
        clock.now_ns += self._work_ns // self._threads + self.disturbed_ns
        self._asleep_ns = clock.now_ns + self._spin_ns
        return batch.inputs["samples"]


class Machine:
    """A model on a machine. opened: the thread counts of all opened instances, including the first."""

    def __init__(self, clock: Clock, threads: int, **model: int) -> None:
        self.clock, self.threads, self._model = clock, threads, model
        self.opened = [threads]
        self.refuses: tuple[int, ...] = ()
        self.usual: Any = Sleeper(clock, threads, **model)

    def reopen(self, threads: int) -> Any:
        if threads in self.refuses:
            raise ConfigError(f"not with {threads}")
        self.opened.append(threads)
        return self.made(threads)

    def made(self, threads: int) -> Any:
        return Sleeper(self.clock, threads, **self._model)

    def chosen(self) -> Choice:
        plugin: Any = self.usual
        usual = Answerer(plugin, plugin, UNCHANGED)
        return choose(usual, self.threads, self.reopen, lambda: [[1]])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    fake = SimpleNamespace(monotonic_ns=made.monotonic_ns)
    monkeypatch.setattr(lone, "time", fake)
    monkeypatch.setattr(answerer, "time", fake)
    monkeypatch.setattr(fewer_threads, "monotonic_ns", made.monotonic_ns)
    return made


def test_a_small_model_whose_threads_sleep_gets_one_thread(clock: Clock) -> None:
    machine = Machine(clock, 2, work_ns=20 * US, wake_ns=20 * US)
    found = machine.chosen()
    assert found.threads == 1
    assert found.answerer.backend is not machine.usual
    assert [n for n, _ in found.times_ns] == [2, 1]
    two_ns, one_ns = (ns for _, ns in found.times_ns)
    assert two_ns == pytest.approx(30 * US, abs=US)
    assert one_ns == pytest.approx(20 * US, abs=US)
    # Each number of threads is measured in turn with one instance, over three rounds.
    assert machine.opened == [2, 1, 2, 1]


def test_threads_that_spin_through_the_pause_stay(clock: Clock) -> None:
    machine = Machine(clock, 2, work_ns=20 * US, wake_ns=20 * US, spin_ns=100 * US)
    assert machine.chosen().threads == 2


@pytest.mark.parametrize("work_ns", [60 * US, 200 * US, 2000 * US, 3900 * US])
def test_a_model_that_gains_by_its_threads_keeps_them_after_one_round(
    clock: Clock, work_ns: int
) -> None:
    machine = Machine(clock, 2, work_ns=work_ns, wake_ns=20 * US)
    found = machine.chosen()
    assert found.threads == 2
    assert machine.opened == [2, 1, 2]
    assert [n for n, _ in found.times_ns] == [2, 1]


def test_a_long_query_is_not_tried_with_fewer_threads(clock: Clock) -> None:
    machine = Machine(clock, 2, work_ns=2 * LIMIT_NS + 1, wake_ns=0)
    found = machine.chosen()
    assert (found.threads, found.times_ns, machine.opened) == (2, (), [2])
    assert found.answerer.backend is machine.usual


def test_a_gain_below_a_tenth_changes_nothing(clock: Clock) -> None:
    """One thread takes 100 us; two threads take 50 us plus 57 us to wake the second, 107 us in all."""
    machine = Machine(clock, 2, work_ns=100 * US, wake_ns=57 * US)
    assert machine.chosen().threads == 2


def test_a_disturbance_in_one_round_changes_nothing(clock: Clock) -> None:
    """The model gains from more threads, but another program takes a core during their first turn."""
    machine = Machine(clock, 2, work_ns=100 * US, wake_ns=0)
    machine.usual.disturbed_ns = 100 * US
    assert machine.chosen().threads == 2
    assert machine.opened == [2, 1, 2]


def test_the_best_of_several_numbers_of_threads_is_taken(clock: Clock) -> None:
    """With 16 threads, 15 must be woken, which takes 160 us; 4 threads take 20 + 3 x 10 us."""
    machine = Machine(clock, 16, work_ns=80 * US, wake_ns=10 * US)
    found = machine.chosen()
    assert [n for n, _ in found.times_ns] == [16, 8, 4, 2, 1]
    assert found.threads in (2, 4)  # two threads and four threads both take 50 us
    assert found.threads == 2  # if the times are equal, the smaller number of threads is chosen


def test_threads_with_which_the_model_does_not_work_are_not_chosen(clock: Clock) -> None:
    machine = Machine(clock, 4, work_ns=20 * US, wake_ns=20 * US)
    machine.refuses = (1,)
    found = machine.chosen()
    assert found.threads == 2
    assert [n for n, _ in found.times_ns] == [4, 2]


def test_a_model_that_fails_with_fewer_threads_is_opened_again_with_all(clock: Clock) -> None:
    class Fails(Machine):
        def made(self, threads: int) -> Any:
            made = super().made(threads)
            if threads == 1:
                made.infer = lambda _: 1 / 0
            return made

    machine = Fails(clock, 2, work_ns=20 * US, wake_ns=20 * US)
    found = machine.chosen()
    assert found.threads == 2
    assert machine.opened == [2, 1, 2]
    assert [n for n, _ in found.times_ns] == [2]


def test_a_model_that_cannot_be_opened_again_names_the_way_out(clock: Clock) -> None:
    machine = Machine(clock, 2, work_ns=20 * US, wake_ns=20 * US)
    machine.refuses = (2,)
    told = (
        "a trial of fewer threads closed the model, which cannot be opened again (not with 2): pass --threads 2 "
        "to skip the trial"
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(told)}$"):
        machine.chosen()


@pytest.mark.parametrize(
    ("threads", "numbers"), [(1, []), (2, [1]), (6, [1, 2, 4]), (8, [1, 2, 4])]
)
def test_fewer_threads_are_powers_of_two(threads: int, numbers: list[int]) -> None:
    assert fewer(threads) == numbers


@pytest.mark.parametrize(
    ("rounds", "threads"),
    [
        ({2: [100, 100, 100], 1: [90, 89, 90]}, 1),
        ({2: [100, 100, 100], 1: [91, 50, 50]}, 2),  # one thread is not faster in every round
        # The limit depends on the fastest round of two threads.
        ({2: [100, 99, 100], 1: [90, 89, 90]}, 2),
        ({2: [100]}, 2),
        # Four threads and two threads are equal within 3 %.
        ({8: [100], 4: [50], 2: [51], 1: [80]}, 2),
        ({8: [100], 4: [50], 2: [52], 1: [80]}, 4),
    ],
)
def test_rule_takes_fewer_threads_that_are_clearly_faster(
    rounds: dict[int, list[float]], threads: int
) -> None:
    assert fewest(max(rounds), rounds) == threads


two_cores = pytest.mark.skipif(
    available().planned < 2, reason="a stream has one thread on one core"
)

PLUGIN = '''
"""A backend whose second thread sleeps between two queries, so that it takes longer than one thread."""

import time


class Sleeper:
    def __init__(self, setup):
        self.threads, self.name = setup.threads, None

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.threads = 0

    def infer(self, batch):
        assert self.threads, "closed"
        if self.threads > 1:
            time.sleep(0.0004)
        else:
            end = time.perf_counter() + 0.0001
            while time.perf_counter() < end:
                pass
        (rows,) = batch.inputs.values()
        return rows.reshape(len(rows), -1)[:, :10].copy()

    def describe(self):
        return {"framework": "sleeper", "device": "cpu", "precision": "float32", "threads": self.threads}
'''


@two_cores
@pytest.mark.parametrize("scenario", ["single-stream", "multi-stream"])
def test_a_run_keeps_the_threads_of_its_warm_up_and_explains_them(
    scenario: str, tmp_path: Path
) -> None:
    out = run_of(tmp_path, scenario)
    result = json.loads((out / "result.json").read_text())
    assert result["plan"]["threads"] == 1
    assert [n for n, _ in result["calibration"]["thread_latency_ns"]] == [2, 1]
    assert json.loads((out / "environment.json").read_text())["backend"]["threads"] == 1
    assert "threads: 1\n" in (out / "config.yaml").read_text()
    done = harness("check", str(out))
    assert done.returncode == 0, done.stdout + done.stderr


@two_cores
def test_threads_of_the_user_are_kept(tmp_path: Path) -> None:
    out = run_of(tmp_path, "single-stream", "--threads", "2")
    result = json.loads((out / "result.json").read_text())
    assert result["plan"]["threads"] == 2
    assert "thread_latency_ns" not in result["calibration"]


def run_of(folder: Path, scenario: str, *more: str) -> Path:
    (folder / "sleeper.py").write_text(PLUGIN)
    out = folder / "run"
    backend = f"{folder / 'sleeper.py'}:Sleeper"
    asked = ("--scenario", scenario, "--backend", backend, "--queries", "300", *more)
    done = harness(*asked, "--mode", "performance", "--no-report", "--out", str(out))
    assert (out / "result.json").exists(), done.stdout + done.stderr
    return out


def harness(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "harness", *words]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
