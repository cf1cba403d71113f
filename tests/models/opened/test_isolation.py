"""A plug-in in a separate process cannot reach LoadGen or the run's files, and its failures are reported."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.core import registry
from harness.core.config.run_config import RunConfig
from harness.errors import PluginUnavailable
from harness.loadgen.plan import InstanceGroup
from harness.models.manifest.lookup import load_model
from harness.models.opened.isolation import is_isolated, is_separate
from harness.models.opened.resolved_run import ResolvedRun
from harness.models.opened.separate_instance import SeparateInstance, declared
from harness.results.recheck import check
from harness.types import BackendSetup
from tests.builders.refusals import refusal
from tests.faults.command import (
    DATA,
    SHORT,
    SOON,
    children,
    codes,
    doubts,
    ended,
    gone,
    only_all,
    result,
    run,
    start,
    wait_until_it_runs,
)

ADVERSARIES = Path(__file__).parents[2] / "adversaries"
EARLY = f"{ADVERSARIES}/times.py:AnswersEarly"
PROCESSES = ("--backend-option", "processes=on")
OFF = ("--backend-option", "processes=off")
SERVER = ("--scenario", "server", "--target-qps", "200", "--queries", "800", "--slo", "p99=1s")
STREAM = ("--scenario", "single-stream", "--queries", "2000")
MULTI = ("--scenario", "multi-stream", "--queries", "700")
OFFLINE = ("--scenario", "offline", "--queries", "20000")

REACHES = '''
import os, sys, tempfile
from pathlib import Path
import numpy as np

def tried(act):
    try:
        return act() or "done"
    except OSError as e:
        return e.strerror

class Reaches:
    """Reports in describe() whom it could reach."""
    formats = ("onnx", "pt")
    of_one_process = ("shared",)
    def __init__(self, setup): self.folder = Path(setup.options["folder"])
    def __enter__(self): return self
    def __exit__(self, *exc): pass
    def infer(self, batch): return np.zeros((batch.size, 10), np.float32)
    def describe(self):
        print("printed by the plug-in", flush=True)
        log, parent = self.folder / "log.txt", f"/proc/{os.getppid()}"
        return {
            "reached": {
                "write": tried(lambda: log.open("a").close()),
                "cut": tried(lambda: os.truncate(log, 0)),
                "remove": tried(log.unlink),
                "rename": tried(lambda: log.rename(self.folder / "moved.txt")),
                "make": tried(lambda: (self.folder / "made").mkdir()),
                "link": tried(lambda: os.link(log, Path(tempfile.gettempdir()) / "log")),
                "memory": tried(lambda: open(f"{parent}/mem", "r+b").close()),
                "descriptors": tried(lambda: [os.readlink(f"{parent}/fd/{n}") for n in range(3)]),
            },
            "temporary": tried(lambda: tempfile.NamedTemporaryFile().close()),
            "open": sorted(os.readlink(f"/proc/self/fd/{n}") for n in range(3)),
            "descriptors": tried(lambda: [
                link for n in os.listdir("/proc/self/fd")
                if os.path.exists(f"/proc/self/fd/{n}")
                for link in [os.readlink(f"/proc/self/fd/{n}")]
            ]),
            "words": " ".join(sys.orig_argv),
            "limited": [
                "NoNewPrivs:\\t1" in (task / "status").read_text()
                for task in Path("/proc/self/task").iterdir()
            ],
        }
'''

FAULTS = '''
import gc, os, sys, time
import numpy as np

class Faults:
    """One fault, in load, in warm-up, in the run or in close."""
    def __init__(self, setup): self.where, self.how = setup.options["fault"].split(":")
    def fault(self, where):
        if where != self.where: return
        if self.how == "raise": raise ValueError("no " + where)
        if self.how == "exit": os._exit(7)
        if self.how == "block": time.sleep(1e6)
    def __enter__(self):
        self.batches = 0
        self.fault("load")
        return self
    def __exit__(self, *exc): self.fault("close")
    def describe(self): return {"framework": "none"}
    def infer(self, batch):
        self.batches += 1
        self.fault("warm-up")
        if gc.get_freeze_count(): self.fault("run")  # the harness freezes objects when the run starts
        return np.zeros((batch.size, 10), np.float32)
'''


def needs_landlock(backend: SeparateInstance) -> None:
    writes = str(backend.describe()["writes"])
    if writes != "its temporary folder":
        pytest.skip(f"the kernel lets a plug-in write {writes}")


def setup(folder: Path) -> BackendSetup:
    return BackendSetup(model=None, model_name="test", options={"folder": str(folder)})


def test_a_plug_in_reaches_neither_files_nor_memory_of_the_harness(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Bug: with processes=on, a plug-in could still edit LoadGen's logs, because the path of the plug-in's output
    revealed the logs' folder and the run's name.
    """
    (tmp_path / "plugin.py").write_text(REACHES)
    (tmp_path / "log.txt").write_text("LoadGen's")
    with SeparateInstance(f"{tmp_path}/plugin.py:Reaches", setup(tmp_path)) as backend:
        about: Any = backend.describe()
        assert about["open"][0] == "/dev/null"
        assert [link.partition(":")[0] for link in about["open"][1:]] == ["pipe", "pipe"]
        assert str(tmp_path) not in " ".join([about["words"].replace(str(Path.cwd()), "")])
        kinds = sorted(link.partition(":")[0] for link in about["descriptors"])
        assert kinds.count("socket") == 1  # this socket is the channel for the harness's messages
        # One shared memory block holds the inputs, and the other holds the outputs.
        assert len([link for link in about["descriptors"] if "memfd" in link]) == 2
        assert about["temporary"] == "done"
        needs_landlock(backend)
        assert all(about["limited"])  # the limits apply to every thread, including numpy's threads
        assert set(about["reached"].values()) <= {"Permission denied", "Invalid cross-device link"}
    assert (tmp_path / "log.txt").read_text() == "LoadGen's"
    assert "printed by the plug-in" in capfd.readouterr().err


def test_failed_write_limit_gives_its_reason_and_changes_nothing(
    tmp_path: Path,
) -> None:
    code = (
        "from pathlib import Path; from harness.machine.landlock import write_only_in; "
        f"print(write_only_in([Path('{tmp_path}/none')])); Path('{tmp_path}/written').touch()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Landlock: ")
    assert (tmp_path / "written").exists()


def test_temporary_folder_is_removed_after_its_instance(tmp_path: Path) -> None:
    (tmp_path / "plugin.py").write_text(
        REACHES.replace('"temporary":', '"at": tempfile.gettempdir(), "temporary":')
    )
    with SeparateInstance(f"{tmp_path}/plugin.py:Reaches", setup(tmp_path)) as backend:
        folder = Path(str(backend.describe()["at"]))
        assert folder.is_dir()
    assert not folder.exists()


def test_declarations_of_a_plug_in_are_read_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "plugin.py").write_text(f"{REACHES}\nimport harness\nharness.was_here = True")
    found = declared(f"{tmp_path}/plugin.py:Reaches")
    assert (found.formats, found.of_one_process) == (("onnx", "pt"), ("shared",))
    assert found.holds_gil is False
    import harness

    assert not hasattr(harness, "was_here")
    (tmp_path / "bad.py").write_text("1 / 0\nclass Bad: pass")
    name = f"{tmp_path}/bad.py:Bad"
    with pytest.raises(PluginUnavailable, match=r"bad\.py:Bad' cannot be imported: ZeroDivision"):
        declared(name)
    (tmp_path / "exits.py").write_text("import os\nos._exit(3)\nclass Exits: pass")
    with pytest.raises(PluginUnavailable, match="ended by itself, with status 3"):
        declared(f"{tmp_path}/exits.py:Exits")


def resolved(**options: Any) -> ResolvedRun:
    config = RunConfig(**{"scenario": "offline", "backend": "ort", **options})
    return ResolvedRun(
        config=config,
        model=load_model("digits"),
        scenario=registry.load("scenario", "offline"),
        dataset=config.dataset or "digits",
        metric=config.metric or "top1",
        slos=(),
        instances=InstanceGroup(1, 1, 1),
    )


ON = (("processes", "on"),)


@pytest.mark.parametrize(
    ("options", "separate", "isolated"),
    [
        ({}, False, True),
        ({"backend_option": ON}, True, True),
        ({"mlperf": True}, False, True),
        ({"backend": "a.py:A"}, False, False),
        ({"backend": "module:A"}, False, False),
        ({"backend": "a-package-s"}, False, False),
        ({"backend": "a.py:A", "backend_option": ON}, True, True),
        ({"backend": "a.py:A", "mlperf": True}, True, True),
        ({"backend": "a-package-s", "mlperf": True}, True, True),
        (
            {"backend": "a.py:A", "mlperf": True, "backend_option": (("processes", "off"),)},
            False,
            False,
        ),
        ({"dataset": "a.py:A", "backend_option": ON}, True, False),
        ({"hook": Path("a.py")}, False, False),
        ({"metric": "a.py:A"}, False, False),
        ({"metric": "a.py:A", "mode": "performance"}, False, True),
        ({"meter": (("a.py:A", ""),)}, False, False),
        ({"meter": (("rapl", ""),)}, False, True),
    ],
)
def test_run_without_a_plug_in_beside_loadgen_is_isolated(
    options: dict[str, Any], separate: bool, isolated: bool
) -> None:
    run_ = resolved(**options)
    assert is_separate(run_.config) == separate
    assert is_isolated(run_) == isolated


def test_value_other_than_on_or_off_is_refused() -> None:
    wrong = replace(resolved().config, backend_option=(("processes", "2"),))
    assert refusal(is_separate, wrong) == "--backend-option processes: '2' is neither on nor off"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("times.py:AnswersEarly", STREAM),
        *only_all(
            ("times.py:AnswersEarly", SERVER),
            ("loadgens_files.py:PatchesBound", SERVER),
            ("loadgens_files.py:PatchesSamples", OFFLINE),
            ("loadgens_files.py:PatchesCount", MULTI),
            ("loadgens_files.py:PatchesSampling", STREAM),
        ),
    ],
)
@pytest.mark.slow
def test_a_cheat_that_changes_loadgens_process_fails_in_a_separate_process(
    name: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    """Each cheat is INVALID in LoadGen's process (tests/adversaries), whereas its numbers are honest in a separate
    process.
    """
    out = tmp_path / "r"
    done = run(*options, *PROCESSES, "--backend", f"{ADVERSARIES}/{name}", "--out", str(out))
    assert done.status == 0, done.said + done.printed
    found = result(out)
    assert found["isolated"]
    assert found["backend_description"]["process"] == "of its own"
    assert found["accuracy"]["compared"]["differing"] == 0
    assert "not isolated" not in done.printed
    assert check(out) == []


@pytest.mark.slow
def test_a_cheat_that_looks_for_the_log_does_not_find_it(tmp_path: Path) -> None:
    out = tmp_path / "r"
    backend = f"{ADVERSARIES}/loadgens_files.py:EditsRate"
    done = run(*SERVER, *PROCESSES, "--backend", backend, "--out", str(out))
    assert done.status == 0, done.said + done.printed
    assert doubts(out).count("close-raised") == 1
    assert check(out) == []


@pytest.mark.slow
def test_under_the_official_rules_a_plug_in_runs_in_its_own_process(tmp_path: Path) -> None:
    official = ("--scenario", "offline", "--mlperf", "--mode", "accuracy")
    plugin = ("--backend", EARLY)
    done = run(*official, *plugin, "--out", f"{tmp_path}/r")
    assert done.status == 0, done.said + done.printed
    found = result(tmp_path / "r")
    assert found["isolated"]
    assert found["backend_description"]["process"] == "of its own"
    assert check(tmp_path / "r") == []


@pytest.mark.slow
def test_code_beside_loadgen_is_named(tmp_path: Path) -> None:
    for n, (more, official, status) in enumerate(
        [
            # The accuracy run of this plug-in reveals its cheat.
            (("--backend", EARLY, *OFF), ("--mlperf",), 4),
            (("--backend", "null", "--dataset", f"{DATA}:Good"), (), 0),
        ]
    ):
        out = tmp_path / str(n)
        done = run(
            *("--scenario", "offline", "--mode", "accuracy", "--details"),
            *(*official, *more, "--out", str(out)),
        )
        assert done.status == status, done.said + done.printed
        assert not result(out)["isolated"]
        note = "  note    not isolated: a plug-in or start-up code ran in a process of the harness"
        assert note in done.printed
        assert check(out) == []


def run_faults(fault: str, out: Path, tmp_path: Path, *more: str) -> Any:
    (tmp_path / "faults.py").write_text(FAULTS)
    return run(
        *("--scenario", "server", *SHORT, "--mode", "performance", *PROCESSES),
        *("--backend", f"{tmp_path}/faults.py:Faults", "--backend-option", f"fault={fault}"),
        *("--out", str(out), *more),
    )


@pytest.mark.parametrize(
    ("fault", "status", "code", "text"),
    [
        ("load:raise", 3, "did-not-start", "loading 'digits', raised ValueError: no load: see "),
        *only_all(
            ("load:exit", 3, "did-not-start", "ended by itself, with status 7"),
            ("load:block", 3, "did-not-start", "sent no 'loaded' for 6 s"),
            ("warm-up:raise", 3, "did-not-start", "on 'digits' raised ValueError: no warm-up"),
            ("warm-up:exit", 3, "did-not-start", "ended by itself, with status 7"),
            ("run:raise", 4, "batch-failed", "ValueError: no run"),
            ("run:exit", 4, "batch-failed", "ended by itself, with status 7"),
            ("run:block", 5, "hung", "the measured process hung"),
        ),
    ],
)
def test_a_fault_has_the_same_reason_as_elsewhere(
    fault: str, status: int, code: str, text: str, tmp_path: Path
) -> None:
    out = tmp_path / "r"
    # The time limit is longer, because a start takes longer on a busy machine.
    more = SOON if fault == "load:block" else ()
    done = run_faults(fault, out, tmp_path, *more)
    assert done.status == status, done.said + done.printed
    folder = out if out.exists() else tmp_path / "r.partial"
    assert codes(folder) == [code]
    assert text in result(folder)["reasons"][0]["text"]


@pytest.mark.slow
def test_a_fault_in_close_is_a_doubt(tmp_path: Path) -> None:
    done = run_faults("close:raise", tmp_path / "r", tmp_path)
    assert done.status == 0, done.said + done.printed
    assert "close-raised" in doubts(tmp_path / "r")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_leaves_no_process_behind(number: signal.Signals, tmp_path: Path) -> None:
    process = start(
        *("--scenario", "server", "--target-qps", "500", "--duration", "60s", *PROCESSES),
        *("--backend", EARLY, "--out", str(tmp_path / "r")),
    )
    wait_until_it_runs(process, tmp_path / "r.partial")
    measured = children(process.pid)
    instances = [pid for each in measured for pid in children(each)]
    assert instances
    process.send_signal(number)
    ended(process)
    assert gone([*measured, *instances])


@pytest.mark.slow
def test_a_plug_in_without_a_measured_process_ends(tmp_path: Path) -> None:
    process = start(
        *("--scenario", "server", "--target-qps", "500", "--duration", "60s", *PROCESSES),
        *("--backend", EARLY, "--out", str(tmp_path / "r")),
    )
    wait_until_it_runs(process, tmp_path / "r.partial")
    measured = children(process.pid)
    instances = [pid for each in measured for pid in children(each)]
    for pid in measured:
        os.kill(pid, signal.SIGKILL)
    assert ended(process).status == 5
    assert gone(instances)
    assert codes(tmp_path / "r.partial") == ["died"]


def test_plug_in_that_queries_a_server_is_not_isolated() -> None:
    config = RunConfig.of(
        scenario="offline", backend="remote.py:Mine", url=["http://127.0.0.1:8000"], mlperf=True
    )
    assert not is_separate(config)
