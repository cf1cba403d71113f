"""Tests a command on a node, without Ray: its files, its output and how it ends."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.cluster import on_nodes
from harness.cluster.ray.client import Host
from harness.cluster.ray.command import Command, inside, listed, put, sealed, unsealed
from harness.cluster.ray.gather import Asker, Node, NodeCommand, folder_names
from harness.core import files
from harness.core.child import Channel
from harness.errors import ConfigError, RunDied
from harness.results.database import newest_first
from tests.builders.refusals import Said
from tests.cluster.hosts import is_running
from tests.cluster.ray.test_client import StandIn

RESULT = {
    "reasons": [],
    **dict.fromkeys(("started", "scenario", "backend", "model", "dataset", "mode", "verdict"), "x"),
}
FACTS = {"address": "10.0.0.1", "environment": {"machine": {"fingerprint": "f", "cpu": "c"}}}


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", "", "a\0b"])
def test_a_name_from_another_machine_cannot_leave_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="is not a file name"):
        inside(tmp_path, name)


def test_files_are_listed_by_path_and_links_are_not(tmp_path: Path) -> None:
    put(tmp_path, "sweep/points/1/result.json", b"{}")
    (tmp_path / "latest").symlink_to("sweep")
    assert {name: about[0] for name, about in listed(tmp_path).items()} == {
        "sweep/points/1/result.json": 2
    }


def test_nodes_of_one_address_have_a_folder_each() -> None:
    assert folder_names(["a", "b", "a", "a"]) == ["a", "b", "a-2", "a-3"]


class OnNode:
    """The host of a node; its answers come from `states` and `files`, which the test sets."""

    def __init__(self) -> None:
        self.states: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}
        self.sent: dict[str, bytes] = {}
        self.started: dict[str, Any] = {}

    def _put(self, name: str, data: bytes) -> str:
        self.sent[name] = unsealed(name, data)
        return "{}"

    def _read(self, name: str) -> bytes | None:
        content = self.files.get(name)
        return None if content is None else sealed(content)

    def _start(self, text: str) -> str:
        self.started = json.loads(text)
        return "{}"

    def _remote(self, answer: Callable[..., object]) -> SimpleNamespace:
        return SimpleNamespace(remote=answer)

    @property
    def state(self) -> SimpleNamespace:
        return self._remote(lambda _: json.dumps(self.states.pop(0)))

    @property
    def read(self) -> SimpleNamespace:
        return self._remote(self._read)

    @property
    def put(self) -> SimpleNamespace:
        return self._remote(self._put)

    @property
    def start(self) -> SimpleNamespace:
        return self._remote(self._start)


class Answers(StandIn):
    def get(self, one: Any, timeout: float = 0) -> Any:
        return super().get(one)


@pytest.fixture
def node() -> OnNode:
    return OnNode()


@pytest.fixture
def command(node: OnNode, tmp_path: Path) -> NodeCommand:
    ours = Node("10.0.0.1", Host("node-1", node), FACTS)
    return NodeCommand(Answers(), ours, tmp_path / "10.0.0.1", lambda: False)


def state(log: str, names: dict[str, int], status: int | None = None) -> dict[str, Any]:
    about = {name: [1, changed] for name, changed in names.items()}
    told = {"status": status, "log": log, "log_to": len(log), "files": about}
    return {**told, "folder": "/tmp/there/results"}


def test_files_arrive_during_the_command_and_open_runs_at_its_end(
    node: OnNode, command: NodeCommand
) -> None:
    open_run = f"points/2{files.PARTIAL}/log"
    node.files = {"points/1/result.json": b"1", open_run: b"2"}
    node.states = [
        state("one\ntw", {"points/1/result.json": 5, open_run: 5}),
        state("o\nthree\n", {"points/1/result.json": 5, open_run: 5}, status=4),
    ]
    assert command.look() == ["one"]
    assert [*listed(command.folder)] == ["points/1/result.json"]
    assert command.is_open
    # The file is unchanged, so the coordinator must not read it again.
    node.files.pop("points/1/result.json")
    assert command.look() == ["two", "three"]
    assert (command.row["status"], command.is_open) == (4, False)
    assert {*listed(command.folder)} == {"points/1/result.json", open_run}


def test_a_file_renamed_while_it_is_fetched_does_not_lose_the_node(
    node: OnNode, command: NodeCommand
) -> None:
    node.files = {"result.json": b"{}"}
    node.states = [state("", {"result.json.new": 5}), state("end", {"result.json": 6}, status=0)]
    assert command.look() == []
    assert command.look() == ["end"]
    assert [*listed(command.folder)] == ["result.json"]


def test_lines_name_the_local_paths_of_files(node: OnNode, command: NodeCommand) -> None:
    node.states = [state("results  /tmp/there/results/run\n", {}, status=0)]
    assert command.look() == [f"results  {command.folder}/run"]


@pytest.mark.parametrize("data", [b"", b"short", sealed(b"{}")[:-1], sealed(b"{}") + b" "])
def test_a_file_that_does_not_arrive_as_it_was_sent_is_refused(data: bytes) -> None:
    with pytest.raises(RunDied, match=r"^sweep.json did not arrive as it was sent"):
        unsealed("sweep.json", data)


def test_finished_runs_of_all_nodes_are_in_one_database(tmp_path: Path) -> None:
    for place in ("10.0.0.1/run", "10.0.0.2/sweep/points/1", f"10.0.0.2/sweep/2{files.PARTIAL}"):
        (tmp_path / place).mkdir(parents=True)
        files.write_json(tmp_path / place / "result.json", RESULT)
    (tmp_path / "10.0.0.3").mkdir()
    files.write_json(tmp_path / "10.0.0.3/result.json", {**RESULT, "power": [1]})
    (tmp_path / "10.0.0.4/peak/probes/1").mkdir(parents=True)
    files.write_json(tmp_path / "10.0.0.4/peak/peak.json", {"peak": 250.0})
    for place in ("10.0.0.4/peak", "10.0.0.4/peak/probes/1"):
        files.write_json(tmp_path / place / "result.json", RESULT)
    # One name appears twice, because its run was repeated.
    for name in (
        "10.0.0.1",
        "10.0.0.2",
        "10.0.0.2",
        "10.0.0.3",
        "10.0.0.4",
    ):
        on_nodes._list_runs(tmp_path, name)
    rows = newest_first(tmp_path)
    assert {row["folder"]: row["peak"] for row in rows} == {
        "10.0.0.1/run": None,
        "10.0.0.2/sweep/points/1": None,
        "10.0.0.4/peak": 250.0,
    }
    assert not any(row["removed"] for row in rows)


def test_a_command_continues_from_the_local_files(node: OnNode, command: NodeCommand) -> None:
    put(command.folder, "sweep/sweep.json", b"{}")
    put(command.folder, "sweep/SHA256SUMS", b"old")
    command.start(["sweep"], "sweep", "/")
    assert node.sent == {"sweep/sweep.json": b"{}", "sweep/SHA256SUMS": b"old"}
    assert node.started["words"] == ["sweep"]
    node.states = [state("", {"sweep/sweep.json": 1}, status=0)]
    node.files = {"sweep/sweep.json": b"{1}"}
    command.look()
    assert (command.folder / "sweep/sweep.json").read_bytes() == b"{1}"
    # The node removed SHA256SUMS, so the local folder does not keep it.
    assert [*listed(command.folder)] == ["sweep/sweep.json"]


def test_a_stop_prevents_the_start_but_only_a_close_is_an_end() -> None:
    ours, theirs = map(Channel, socket.socketpair())
    with closing(theirs):
        asker = Asker(theirs)
        assert not asker.wants_no_start()
        ours.send("stop")
        assert asker.wants_no_start()
        assert (asker.look(), asker.stops) == (False, 1)
        ours.close()
        assert asker.look()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "the command is missing"),
        (["list"], "the command is missing"),
        (["run", "--out", "x"], "--out after `--`"),
        (["--nodes=a:1"], "--nodes after `--`: drop it, because a command runs on one machine"),
        (["sweep", "--batch", "{}"], "list the values with --share"),
    ],
)
def test_a_command_that_cannot_run_on_nodes_is_refused(
    tmp_path: Path, words: list[str], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        on_nodes.execute("ray://127.0.0.1:1", 1, words, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("values", "words", "why"),
    [
        (["1", "2"], ["sweep"], "put {} into the command"),
        (["1", "1"], ["sweep", "--batch", "{}"], "contains a value twice"),
        (["1", ""], ["sweep", "--batch", "{}"], "contains an empty value"),
    ],
)
def test_values_that_cannot_be_shared_are_refused(
    tmp_path: Path, values: list[str], words: list[str], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        on_nodes.execute("ray://127.0.0.1:1", 1, words, tmp_path / "out", values)
    assert not (tmp_path / "out").exists()


def test_values_with_the_same_letters_get_separate_folders() -> None:
    assert on_nodes.folder_names(["a/b", "a b", "1.5", ".."]) == ["a_b", "a_b-2", "1.5", "value"]


def test_values_without_a_measurement_are_measured_again(tmp_path: Path) -> None:
    asked = {"command": ["run", "{}"], "shared": ["a", "b", "c", "d", "e"]}
    # Status 5 means that the disk of the node was full.
    statuses = {"a": 0, "b": 4, "c": 5, "d": 130, "e": None}
    rows = [{"folder": name, "status": status, "lost": ""} for name, status in statuses.items()]
    files.write_json(tmp_path / "nodes.json", {**asked, "nodes": rows})
    assert list(on_nodes._earlier(tmp_path, asked)) == ["a", "b"]


def test_a_folder_of_another_command_is_refused(tmp_path: Path, refuses: Said) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "nodes.json").write_text('{"command": ["sweep"], "nodes": []}')
    words = ["on", "ray://127.0.0.1:1", "--node-count", "1", "--out", str(out), "--", "tune"]
    assert "contains the results of a different command" in refuses(*words)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["on", "a:1", "--node-count", "1", "--out", "x", "--", "sweep"], "is not a Ray cluster"),
        (["on", "ray://a", "--node-count", "0", "--out", "x", "--", "sweep"], "on: 0 must"),
        (["list", "--nodes", "local:2"], "there are none to list"),
        (["list", "--nodes", "x"], "--nodes: 'x' is not an address"),
    ],
)
def test_nodes_that_cannot_be_asked_are_refused(words: list[str], why: str, refuses: Said) -> None:
    assert why in refuses(*words)


@pytest.fixture
def running() -> Iterator[Command]:
    made = Command()
    yield made
    made.close()


def wait_for(command: Command, is_there: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    end_s = time.monotonic() + 120
    while not is_there(told := command.state(0)):
        assert time.monotonic() < end_s, told
        assert told["status"] is None, told
        time.sleep(0.1)
    return told


@pytest.mark.slow
def test_a_command_keeps_what_it_has_when_it_is_interrupted(running: Command) -> None:
    words = ["--scenario", "server", "--target-qps", "50", "--backend", "null", "--no-metrics"]
    running.start([*words, "--duration", "60s", "--mode", "performance"], "run")
    wait_for(running, lambda told: any("mlperf_log_detail" in name for name in told["files"]))
    running.interrupt()
    told = wait_for(running, lambda told: told["status"] is not None)
    assert told["status"] == 130
    # An interrupted run never gets the name of a complete run.
    assert "run.partial/result.json" in told["files"]


@pytest.mark.slow
def test_closing_a_command_ends_its_process_and_deletes_its_folder() -> None:
    command = Command()
    command.start(["--scenario", "offline", "--backend", "null", "--duration", "60s"], "run")
    assert command._process is not None
    pid = command._process.pid
    assert is_running(pid)
    command.close()
    assert not is_running(pid)
    assert not command.folder.exists()
