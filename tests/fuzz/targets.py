"""The readers of foreign bytes, each with real files that the tests break.

A reader may raise only errors of the harness's own kinds.
"""

import contextlib
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np

from harness import read_run
from harness.backends.parts.executorch import program
from harness.backends.parts.native.mnn_file import read as read_mnn
from harness.backends.parts.native.ncnn_file import read_layers, weight_types
from harness.cli import main as cli
from harness.cli.start.config_files import from_file
from harness.core.config.run_config import make_config
from harness.core.files import reading
from harness.core.formats.protobuf import onnx_origin
from harness.datasets.text.sessions import SessionsDataset
from harness.errors import ConfigError, HarnessError
from harness.loadgen import arrivals, user_conf
from harness.loadgen.logs import (
    ACCURACY,
    DETAIL,
    SUMMARY,
    AccuracyLogError,
    read_detail,
    read_logged_answers,
)
from harness.loadgen.schedule import read_stored, store
from harness.machine.host_log import HostLog
from harness.machine.power.energy import PowerLog
from harness.machine.power.ptdaemon_client import PowerClient
from harness.machine.power.ptdaemon_log import PtdaemonLog
from harness.models.graph.onnx_file import read as read_onnx
from harness.models.manifest.lookup import load_model
from harness.models.manifest.requirements import Environment, problems, read_environment
from harness.models.network import files as network_files
from harness.models.network.tflite import of_tflite
from harness.models.tables.tables import tables_of
from harness.results import database
from harness.results.evidence.summary import differences, read_summary
from harness.results.export.formats import FORMATS
from harness.submit.plan.request_file import read_request
from harness.types import DatasetSetup, PowerSource, TensorSpec
from tests.builders.models.table_nets import MODELS, saved
from tests.builders.result import stored_result
from tests.fuzz import mutate
from tests.golden.make_runs import FOLDERS
from tests.machine.power.test_ptdaemon_log import SAMPLES, SESSION

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "harness/models/shipped"


class Target(NamedTuple):
    """A reader of foreign bytes, with the real files that the tests break."""

    seeds: Callable[[], list[bytes]]
    """Real contents that the tests break."""
    mutate: Callable[[bytes, Random], bytes]
    read: Callable[[bytes, Path], None]
    """Reads the content; the reader may write to the folder, which is initially empty."""
    share: float = 1.0
    """Share of the rounds for this reader; smaller for a slow reader."""


def _file(*paths: Path) -> Callable[[], list[bytes]]:
    return lambda: [path.read_bytes() for path in paths]


def _golden(name: str) -> list[Path]:
    return sorted(path for path in FOLDERS.glob(f"*/{name}") if path.is_file())


def _as_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes, Path], None]:
    def reads(content: bytes, folder: Path) -> None:
        path = folder / name
        path.write_bytes(content)
        read(path)

    return reads


_FOLDER_FILES: Mapping[str, Callable[[bytes, Random], bytes]] = {
    "result.json": mutate.json_document,
    "findings.json": mutate.json_document,
    "environment.json": mutate.json_document,
    "config.yaml": mutate.yaml_document,
    "host.csv": mutate.text,
    "performance/run_1/run.json": mutate.json_document,
    "performance/run_1/completions.npz": mutate.arrays,
    f"performance/run_1/{DETAIL}": mutate.text,
    f"performance/run_1/{SUMMARY}": mutate.text,
    f"performance/run_1/{ACCURACY}": mutate.json_document,
    f"accuracy/{DETAIL}": mutate.text,
    f"accuracy/{ACCURACY}": mutate.json_document,
    "accuracy/accuracy.txt": mutate.text,
    "accuracy/run.json": mutate.json_document,
}


def _refusing(read: Callable[[Path], object]) -> Callable[[Path], object]:
    """Wraps a plug-in's reader in the same way as the backend's base class, which reports the reader's ValueErrors."""

    def reads(path: Path) -> object:
        try:
            return read(path)
        except ValueError as e:
            raise ConfigError(str(e)) from e

    return reads


def _read_folder(run: str, name: str) -> Callable[[bytes, Path], None]:
    """Returns a reader that runs every verb for finished runs on a golden folder with one changed file."""

    def reads(content: bytes, folder: Path) -> None:
        run_folder = folder / "run"
        shutil.copytree(FOLDERS / run, run_folder)
        (run_folder / name).write_bytes(content)
        page = str(folder / "page.html")
        with Path(os.devnull).open("w") as null, contextlib.redirect_stdout(null):
            for words in (
                ["check", str(run_folder)],
                ["compare", str(run_folder), str(FOLDERS / run)],
                ["report", str(run_folder), "--out", page],
                *(
                    ["export", str(run_folder), "--format", kind, "--out", str(folder / kind)]
                    for kind in FORMATS
                ),
            ):
                assert cli.main(words) in (0, 2, 3, 4, 6)
        with contextlib.suppress(HarnessError):
            result = read_run(run_folder)
            assert result.verdict in repr(result) + result._repr_html_()
            assert len(result.frame()) >= len(result.latencies_ns)

    return reads


def _detail(path: Path) -> None:
    log = read_detail(path)
    text = (FOLDERS / "server/performance/run_1" / SUMMARY).read_text()
    list(differences(read_summary(text), log))


def _summary(path: Path) -> None:
    log = read_detail(FOLDERS / "server/performance/run_1" / DETAIL)
    list(differences(read_summary(path.read_text(errors="replace")), log))


def _config(path: Path) -> None:
    wrong: list[str] = []
    make_config(from_file(path, wrong), wrong)


def _manifest(path: Path) -> None:
    model = load_model(str(path))
    assert model.manifest is not None
    list(problems(model.name, model.manifest.requires, _environment()))
    # The error is expected, because this machine lacks most of the models' files.
    with contextlib.suppress(ConfigError):
        model.path(("onnx",))


@functools.cache
def _environment() -> Environment:
    return read_environment("onnxruntime")


def _user_conf(path: Path) -> None:
    user_conf.compose(user_conf.lint(path), iter([("Server.target_qps", "5")]))


def _host(path: Path) -> None:
    with _as_the_caller():
        HostLog.read(path)


def _power(path: Path) -> None:
    log = PowerLog((PowerSource("a", "b", "J"),), {"a": []})
    with _as_the_caller():
        log.read(path)
        log.energy(log.sources[0], (10**18, 10**18 + 10**10))


def _as_the_caller() -> contextlib.AbstractContextManager[None]:
    return reading("it cannot be read", also=(OSError,))


def _spl(content: bytes, folder: Path) -> None:
    for name in ("power", "run_1"):
        (folder / name).mkdir()
    (folder / "power/client.json").write_text(f'{{"session_name": "{SESSION}"}}')
    (folder / "run_1/spl.txt").write_bytes(content)
    log = PtdaemonLog.from_files({"refused": []}, folder)
    log.energy((10**18, 10**18 + 10**10))


def _client(path: Path) -> None:
    # The client gets the bytes as the pipe would deliver them.
    path.write_text(path.read_bytes().decode(errors="replace"))
    client = PowerClient(path, quiet=True)
    assert str(client.failure(1, has_run=False))


def _database(content: bytes, folder: Path) -> None:
    database.path_in(folder).write_bytes(content)
    with Path(os.devnull).open("w") as null, contextlib.redirect_stdout(null):
        assert cli.main(["runs", "--results", str(folder)]) in (0, 2)


def _database_seed() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        for number in range(3):
            database.add(Path(folder), f"run-{number}", stored_result(f"2026-11-2{number}"))
        return [database.path_in(Path(folder)).read_bytes()]


def _schedule_seed() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "schedule.npz"
        store(path, np.arange(20) * 10**6, np.arange(20))
        return [path.read_bytes()]


def _onnx_node_names(path: Path) -> None:
    onnx_origin(path)
    network_files.of_onnx(path)


def _tables_seed() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        chosen = ("a branch", "a loop", "an index of several numbers", "columns of a table")
        return [saved(*MODELS[name][:2], Path(folder)).read_bytes() for name in chosen]


_CLIENT_OUTPUT = b"""\
client 2026-11-21 10:04:11,001 [INFO] Running workload in ranging mode
client 2026-11-21 10:04:12,001 [ERROR] Could not connect to the server
Got response: 'Error: unknown command'
Traceback (most recent call last):
subprocess.CalledProcessError: Command 'workload.sh' returned non-zero exit status 5.
"""
_ARRIVALS = b"arrival,sample\n0.0,1\n0.25,2\n250ms,3\n1.5e0,4\n86400.5,5\n"
_USER_CONF = b"# a comment\n*.Server.target_qps = 20\nresnet50.Server.target_latency = 15\n"
_POWER = b"wall_ns,source,joules,watts\n1000000000000000000,a,1.5,\n1000000000100000000,a,2.5,\n"
_REQUEST = b"""\
division: closed
submitter: LabOrg
system: box
category: datacenter,edge
benchmark: resnet
scenarios: [SingleStream, MultiStream, Offline, Server]
rehearsal: true
options: {}
"""

_SESSIONS: Sequence[Mapping[str, object]] = (
    {"turns": [{"id": "a", "prompt": "x"}, {"messages": [{"role": "user", "content": "y"}], "after": ["a"], "delay_ms": 3}]},
    {"conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}]},
    {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"id": "1"}]}]},
    {"trajectory": [{"query": [{"role": "user", "content": "x"}], "response": "y", "execution_time": 0.5}]},
    {"session_id": "a", "turns": [{"messages": [{"role": "user", "content": "x"}], "forks": [], "spawns": [], "delay": 5}]},
    {"session_id": "a", "orchestrator": True, "rounds": [{"spawns": ["b"]}], "think_time_ms": 3, "think_time_sigma": 0.5},
    {"block_size": 4, "requests": [{"t": 0, "type": "n", "in": 5, "out": 3, "hash_ids": [1]}, {"type": "subagent", "t": 1, "requests": [{"t": 2, "in": 5, "out": 3, "api_time": 2}]}]},
    {"input_length": 9, "output_length": 3, "hash_ids": [1, 2], "session_id": "s", "delay": 4},
    {"payload": {"prompt": "x", "max_tokens": 4}, "extra": {"top_k": 1}},
    {"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "t", "startTimeUnixNano": "5", "attributes": [{"key": "gen_ai.input.messages", "value": {"arrayValue": {"values": [{"kvlistValue": {"values": [{"key": "role", "value": {"stringValue": "user"}}, {"key": "content", "value": {"stringValue": "x"}}]}}]}}}]}]}]}]},
    {"trace_id": "t", "start_time": "2026-01-01", "attributes": {"gen_ai.input.messages": '[{"role": "user", "parts": [{"type": "text", "content": "x"}]}]'}},
)  # fmt: skip


def _sessions(path: Path) -> None:
    inputs = (TensorSpec("request", "string", ("batch",)),)
    for history in ("recorded", "live"):
        options = {"history": history, "block": "4"}
        with contextlib.suppress(ConfigError):
            found = SessionsDataset(DatasetSetup(inputs=inputs, data_dir=path, options=options))
            turns = found.sessions()
            assert all(one < n for n, after in enumerate(turns.after) for one in after)
            assert (turns.delay_ns >= 0).all()
            found.describe()


TARGETS: Mapping[str, Target] = {
    "sessions": Target(
        lambda: [json.dumps(one).encode() for one in _SESSIONS],
        mutate.json_document,
        _as_file("s.json", _sessions),
    ),
    "detail": Target(_file(*_golden(f"*/run_1/{DETAIL}")), mutate.text, _as_file("log", _detail)),
    "summary": Target(
        _file(*_golden(f"*/run_1/{SUMMARY}")), mutate.text, _as_file("log", _summary)
    ),
    "accuracy-log": Target(
        _file(*_golden(f"accuracy/{ACCURACY}")),
        mutate.json_document,
        _as_file("log", lambda path: list(read_logged_answers(path))),
    ),
    "config": Target(_file(*_golden("config.yaml")), mutate.yaml_document, _as_file("c", _config)),
    "manifest": Target(
        _file(*sorted(SHIPPED.glob("*.yaml"))), mutate.yaml_document, _as_file("m.yaml", _manifest)
    ),
    "user-conf": Target(lambda: [_USER_CONF], mutate.text, _as_file("user.conf", _user_conf)),
    "request": Target(
        lambda: [_REQUEST],
        mutate.yaml_document,
        _as_file("request.yaml", lambda path: read_request(path.parent)),
    ),
    "arrivals": Target(lambda: [_ARRIVALS], mutate.text, _as_file("a.csv", arrivals.read)),
    "schedule": Target(
        _schedule_seed, mutate.arrays, _as_file("s.npz", lambda path: read_stored(str(path)))
    ),
    "host.csv": Target(_file(*_golden("host.csv")), mutate.text, _as_file("h.csv", _host)),
    "power.csv": Target(lambda: [_POWER], mutate.text, _as_file("p.csv", _power)),
    "spl.txt": Target(lambda: ["\n".join(SAMPLES).encode()], mutate.text, _spl),
    "power-client": Target(lambda: [_CLIENT_OUTPUT], mutate.text, _as_file("log", _client)),
    "runs.sqlite": Target(_database_seed, mutate.text, _database, 0.3),
    "onnx": Target(
        _file(SHIPPED / "digits.onnx"), mutate.text, _as_file("m.onnx", _onnx_node_names)
    ),
    "onnx-graph": Target(
        _file(SHIPPED / "digits.onnx"), mutate.text, _as_file("m.onnx", read_onnx), 0.3
    ),
    "tflite": Target(
        _file(SHIPPED / "digits.tflite"), mutate.text, _as_file("m.tflite", of_tflite)
    ),
    "executorch": Target(
        _file(SHIPPED / "digits.pte"), mutate.text, _as_file("m.pte", program.read)
    ),
    "openvino": Target(
        _file(SHIPPED / "digits_openvino/digits.xml"),
        mutate.text,
        _as_file("m.xml", network_files.of_openvino),
    ),
    "ncnn": Target(
        _file(SHIPPED / "digits_ncnn/digits.param"),
        mutate.text,
        _as_file("m.param", _refusing(lambda path: list(weight_types(read_layers(path))))),
    ),
    "mnn": Target(
        _file(SHIPPED / "digits.mnn"), mutate.text, _as_file("m.mnn", _refusing(read_mnn))
    ),
    "tables-onnx": Target(_tables_seed, mutate.text, _as_file("m.onnx", tables_of)),
    "tables-tflite": Target(
        _file(SHIPPED / "digits.tflite"), mutate.text, _as_file("m.tflite", tables_of)
    ),
    "tables-savedmodel": Target(
        _file(SHIPPED / "digits_savedmodel/saved_model.pb"),
        mutate.text,
        _as_file("saved_model.pb", lambda path: tables_of(path.parent)),
    ),
    "tables-openvino": Target(
        _file(SHIPPED / "digits_openvino/digits.xml"), mutate.text, _as_file("m.xml", tables_of)
    ),
    **{
        f"{run}/{name}": Target(_file(FOLDERS / run / name), mutation, _read_folder(run, name), 0.1)
        for run in ("server", "closed-loop")
        for name, mutation in _FOLDER_FILES.items()
        if (FOLDERS / run / name).is_file()
    },
}

OWN_ERRORS = (HarnessError, AccuracyLogError)
"""The exceptions that a reader may raise; the verbs turn both into one line."""
