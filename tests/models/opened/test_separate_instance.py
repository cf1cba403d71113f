"""An instance in a separate process returns the same answers as an instance in this process, and reports failures."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as some

from harness.errors import ConfigError, PluginUnavailable
from harness.machine.threads import children_cpu_s
from harness.models.manifest.lookup import load_model
from harness.models.opened.separate_instance import Arena, SeparateInstance
from harness.results.recheck import check
from harness.types import BackendSetup, Batch, HasOutputs, HasSignature
from tests.faults.command import SERVER, SHORT, codes, result, run

DIGITS = load_model("digits")
PROCESSES = ("--backend-option", "processes=on")
PLUGIN = '''
import gc, os, time
import numpy as np

class Plugin:
    """Answers each sample with its first number, the way that it was asked to."""
    def __init__(self, setup): self.way = setup.options.get("way", "array")
    def __enter__(self):
        if self.way == "load": raise ValueError("no load")
        return self
    def __exit__(self, *exc):
        if self.way == "close": raise ValueError("no close")
    def describe(self): return {"framework": "plugin", "pid": os.getpid()}
    def infer(self, batch):
        rows = batch.inputs["x"][:, :1] * np.ones(10, np.float32)
        if self.way == "raise": raise ValueError("no answer")
        if self.way == "objects": return np.asarray([object()])
        if self.way == "die" and batch.size > 1: os._exit(7)
        if self.way == "rows": return [row[: n + 1] for n, row in enumerate(rows)]
        if self.way == "named": return {"a": rows, "b": batch.inputs["x"] + 1}
        if self.way == "sum": return sum(a.sum(axis=1) for a in batch.inputs.values())
        if self.way == "garbage":
            for _ in range(1000):
                cycle = []
                cycle.append(cycle)
            return np.asarray([gc.isenabled(), gc.get_freeze_count()])
        return rows
'''


@pytest.fixture
def plugin(tmp_path: Path) -> str:
    (tmp_path / "plugin.py").write_text(PLUGIN)
    return f"{tmp_path}/plugin.py:Plugin"


def setup(way: str = "array", model: Path | None = None) -> BackendSetup:
    options = {} if model else {"way": way}
    return BackendSetup(model=model, model_name="test", options=options, max_batch=8)


def batch(*samples: int) -> Batch:
    return Batch(len(samples), {"x": np.array([[x, 0, 0] for x in samples], np.float32)})


arrays = some.arrays(
    st.sampled_from([np.float32, np.int64, np.bool_, np.uint8]),
    some.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=40),
)


@given(st.lists(st.lists(arrays, max_size=4), min_size=1, max_size=4))
def test_arrays_are_read_as_written_whatever_came_before(rounds: list[list[Any]]) -> None:
    fd = os.memfd_create("test")
    try:
        writer, reader = Arena(fd), Arena(fd)
        for given_arrays in rounds:
            layout = writer.put((str(n), a) for n, a in enumerate(given_arrays))
            found = reader.get(layout)
            assert [name for name, _ in found] == [str(n) for n in range(len(given_arrays))]
            for (_, a), b in zip(found, given_arrays, strict=True):
                assert (a.dtype, a.shape) == (b.dtype, b.shape)
                assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("dtype", "shape", "start"),
    [
        ("|O", (2,), 0),
        ("i4,O", (1,), 0),
        ("<i4", (2,), -8),
        ("<i4", (10**6,), 0),
        ("<i4", (2,), 10**6),
    ],
)
def test_no_view_shows_memory_that_is_not_shared(dtype: str, shape: Any, start: int) -> None:
    """Bug: the other process could pass off its bytes as pointers to objects, or point to memory before the first byte."""
    fd = os.memfd_create("test")
    try:
        os.ftruncate(fd, 4096)
        with pytest.raises((ValueError, TypeError)):
            Arena(fd).get([("a", dtype, shape, start)])
    finally:
        os.close(fd)


def test_every_kind_of_answer_comes_back_as_it_is(plugin: str) -> None:
    with SeparateInstance(plugin, setup("array")) as backend:
        plain: Any = backend
        assert not isinstance(plain, HasSignature | HasOutputs)
        assert np.asarray(backend.infer(batch(4, 7))).tolist() == [[4.0] * 10, [7.0] * 10]
        assert np.asarray(backend.infer(batch(1))).shape == (1, 10)
        assert backend.describe()["pid"] != os.getpid()
    with SeparateInstance(plugin, setup("rows")) as backend:
        assert [len(row) for row in backend.infer(batch(4, 7))] == [1, 2]
    with SeparateInstance(plugin, setup("named")) as backend:
        found = backend.infer(batch(4, 7))
        assert isinstance(found, dict)
        assert (found["a"].shape, found["b"].tolist()) == (
            (2, 10),
            [[5.0, 1.0, 1.0], [8.0, 1.0, 1.0]],
        )


def test_a_framework_answers_as_it_does_here() -> None:
    from harness.backends.ort import OrtBackend

    rows = np.random.default_rng(0).random((8, 1, 8, 8), np.float32)
    asked = setup(model=DIGITS.path(("onnx",)))
    with OrtBackend(asked) as here, SeparateInstance("ort", asked) as there:
        made = Batch(8, {"image": rows})
        assert np.array_equal(np.asarray(here.infer(made)), np.asarray(there.infer(made)))
        assert there.signature() == here.signature()
        assert there.outputs() == here.outputs()
        assert there.describe() == {**here.describe(), "process": "of its own"}


def test_error_in_the_separate_process_is_raised_in_this_one(plugin: str) -> None:
    with pytest.raises(RuntimeError, match=r"^no load$"):
        SeparateInstance(plugin, setup("load")).__enter__()
    with pytest.raises(ConfigError, match="cannot load it"):
        SeparateInstance("ort", setup(model=Path(__file__))).__enter__()
    with SeparateInstance(plugin, setup("raise")) as backend:
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"^no answer$"):
                backend.infer(batch(1))
    with (
        SeparateInstance(plugin, setup("objects")) as backend,
        pytest.raises(RuntimeError, match="an array of object cannot be sent to another process"),
    ):
        backend.infer(batch(1))
    with (
        pytest.raises(RuntimeError, match=r"^no close$"),
        SeparateInstance(plugin, setup("close")) as backend,
    ):
        backend.infer(batch(1))


def test_no_garbage_is_collected_there_during_a_run(plugin: str) -> None:
    """Bug: objects were frozen before the warm-up, and the garbage collector ran during the run."""
    with SeparateInstance(plugin, setup("garbage")) as backend:
        warm, frozen = np.asarray(backend.infer(batch(1))).tolist()
        assert warm
        for _ in range(2):  # an accuracy run also loads two sets of samples
            backend.start_run()
            collects, now_frozen = np.asarray(backend.infer(batch(1))).tolist()
            assert not collects
            assert now_frozen > frozen
            assert 1000 <= (backend.end_run() or 0) < 2000
        assert np.asarray(backend.infer(batch(1))).tolist()[0]


def test_ended_process_fails_every_batch_without_a_hang(plugin: str) -> None:
    with SeparateInstance(plugin, setup("die")) as backend:
        backend.infer(batch(1))
        for _ in range(2):
            with pytest.raises(PluginUnavailable, match="ended by itself, with status 7"):
                backend.infer(batch(1, 2))
        assert backend.end_run() is None


def test_process_ends_with_its_instance(plugin: str) -> None:
    with SeparateInstance(plugin, setup()) as backend:
        pid = backend.describe()["pid"]
        os.kill(int(str(pid)), signal.SIGSTOP)
        os.kill(int(str(pid)), signal.SIGCONT)
    assert not Path(f"/proc/{pid}").exists()


def test_a_run_with_instances_in_processes_is_valid(tmp_path: Path) -> None:
    arguments = (*SERVER, *SHORT, *PROCESSES, "--oversubscribe", "--instances", "2")
    done = run(*arguments, "--out", f"{tmp_path}/r")
    assert done.status == 0, done.said + done.printed
    found = result(tmp_path / "r")
    assert found["accuracy"]["value"] >= 98.5
    assert found["backend_description"]["process"] == "of its own"
    assert found["measured_process"]["cyclic_garbage_objects"] >= 0
    assert check(tmp_path / "r") == []


def test_value_other_than_on_or_off_is_reported_in_one_line(tmp_path: Path) -> None:
    done = run(*SERVER, *SHORT, "--backend-option", "processes=2", "--out", f"{tmp_path}/r")
    assert done.status == 2
    assert done.said.endswith("--backend-option processes: '2' is neither on nor off\n")


@pytest.mark.slow
def test_a_run_whose_instance_dies_is_invalid(tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text(DIES)
    done = run(
        *SERVER, *SHORT, "--mode", "performance", "--instances", "1", *PROCESSES,
        "--backend", f"{tmp_path}/dies.py:Dies", "--out", f"{tmp_path}/r",
    )  # fmt: skip
    assert done.status == 4, done.said + done.printed
    assert "batch-failed" in codes(tmp_path / "r")
    assert result(tmp_path / "r")["queries"]["samples_answered"] == 700


DIES = """
import gc, os
import numpy as np

class Dies:
    def __init__(self, setup): pass
    def __enter__(self): return self
    def __exit__(self, *exc): pass
    def describe(self): return {}
    def infer(self, batch):
        if not gc.isenabled(): os._exit(7)  # in the run
        return np.zeros((batch.size, 10), np.float32)
"""


SPIN = "import time; t = time.process_time; e = t() + 0.2\nwhile t() < e: pass"


def test_processor_time_of_children_that_have_ended_is_counted() -> None:
    before_s = children_cpu_s()
    subprocess.run([sys.executable, "-S", "-c", SPIN], check=True)
    assert children_cpu_s() - before_s > 0.19


def test_processor_time_of_a_grandchild_that_lives_is_counted() -> None:
    told = f"{SPIN}\nprint(flush=True); input()"
    words = ["sh", "-c", f"{sys.executable} -S -c '{told}'; true"]
    before_s = children_cpu_s()
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        used_s = children_cpu_s() - before_s
    # The limit allows for an error, because the kernel counts CPU time in ticks of 10 ms.
    assert used_s > 0.15
