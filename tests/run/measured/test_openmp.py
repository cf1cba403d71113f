"""The OpenMP threads of the warm-up end before the run, because otherwise no OpenMP thread of the process would spin."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.run.measured.placement import openmp

pytest.importorskip("ncnn")  # loads GNU OpenMP

PARALLEL = '''
import ctypes, json, os, threading
from pathlib import Path

import ncnn  # loads GNU OpenMP
import numpy as np

from harness.run.measured.placement import openmp

OUT = Path({out!r})

class Parallel:
    """Computes on two OpenMP threads, and reports in which threads it ran and which helpers still existed."""

    def __init__(self, setup):
        (path,) = list(openmp._loaded())[:1]
        self._parallel = ctypes.CDLL(path).GOMP_parallel
        self._region = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._note)
        self._helpers, self._ran = set(), set()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        pass

    def describe(self):
        return {{"framework": "numpy", "precision": "float32"}}

    def _note(self, _):
        self._ran.add(threading.get_native_id())

    def infer(self, batch):
        self._ran = set()
        self._parallel(self._region, None, 2, 0)
        if threading.current_thread() is threading.main_thread():
            self._helpers |= self._ran - {{os.getpid()}}
        elif threading.current_thread().name == "loadgen" and not OUT.exists():
            alive = [tid for tid in self._helpers if Path(f"/proc/self/task/{{tid}}").exists()]
            OUT.write_text(json.dumps([len(self._helpers), len(alive), len(self._ran)]))
        return np.zeros((batch.size, 10), np.float32)
'''


def compute_on_two_threads() -> None:
    # MNN's wheel contains a version before OpenMP 5.0, which cannot end threads.
    libraries = (ctypes.CDLL(path) for path in openmp._loaded())
    library = next(one for one in libraries if hasattr(one, "omp_pause_resource_all"))
    region = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)
    library.GOMP_parallel(region, None, 2, 0)


def tasks() -> int:
    return sum(1 for _ in Path("/proc/self/task").iterdir())


def test_own_threads_end_and_start_again() -> None:
    compute_on_two_threads()
    with_helper = tasks()
    openmp.end_own_threads()
    assert tasks() == with_helper - 1
    compute_on_two_threads()
    assert tasks() == with_helper
    openmp.end_own_threads()


def test_without_openmp_nothing_is_ended() -> None:
    program = (
        "from harness.run.measured.placement import openmp\n"
        "assert not list(openmp._loaded())\n"
        "openmp.end_own_threads()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_the_run_does_not_keep_the_threads_of_the_warm_up(tmp_path: Path) -> None:
    (tmp_path / "parallel.py").write_text(PARALLEL.format(out=str(tmp_path / "seen.json")))
    arguments = ["--scenario", "single-stream", "--backend", f"{tmp_path}/parallel.py:Parallel"]
    settings = ["--queries", "64", "--mode", "performance", "--threads", "2", "--no-metrics"]
    main([*arguments, *settings, "--quiet", "--out", str(tmp_path / "run")])
    assert (tmp_path / "seen.json").read_text() == "[1, 0, 2]"
