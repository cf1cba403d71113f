"""Load hosts behind a network that delays, holds and cuts connections: the messages of the run, and what the run leaves
behind.
"""

import itertools
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from harness.cli.main import main
from harness.cluster.load_hosts import remote_channel, remote_process
from harness.cluster.load_hosts.agent import Agent
from harness.core.config.parse import Endpoint
from harness.core.stats import percentile_ns
from harness.errors import ConfigError
from harness.loadgen.schedule import server_schedule_ns
from harness.results.load_hosts.section import HOST
from tests.cluster.load_hosts.agents import Host, load_host
from tests.cluster.load_hosts.shared_runs import (
    BUSY,
    Started,
    children,
    columns_of,
    named,
    result_of,
    words,
)
from tests.cluster.runs import codes
from tests.stand_ins.relay import Relay, relay

DELAY_S = 0.02


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    with ExitStack() as stack:
        yield [stack.enter_context(load_host()) for _ in range(4)]


def is_idle(host: Host, limit_s: float) -> bool:
    end_s = time.monotonic() + limit_s
    while children(host) and time.monotonic() < end_s:
        time.sleep(0.05)
    return not children(host)


@pytest.mark.slow
def test_four_remote_hosts_make_one_run(tmp_path: Path, url: str, hosts: list[Host]) -> None:
    out = tmp_path / "run"
    with relay(hosts[3].port, DELAY_S) as slow:
        ports = (*(host.port for host in hosts[:3]), slow.port)
        load = ("--target-qps", "200", "--queries", "600", "--connections", "8")
        main(words(url, out, *load, *named(*ports)))
    result, columns = result_of(out), columns_of(out)
    assert codes(result) <= BUSY, result["reasons"]
    assert "4 load hosts in place of one LoadGen" in result["not_for_submission"]
    assert result["accuracy"]["compared"]["differing"] == 0
    seeds = json.loads((out / "environment.json").read_text())["loadgen"]["seeds"]
    due_ns = server_schedule_ns(600, 200.0, seeds["schedule"])
    assert np.array_equal(columns["scheduled_ns"] - columns["scheduled_ns"][0], due_ns)
    latency_ns = np.sort(columns["completed_ns"] - columns["scheduled_ns"])
    for name, fraction in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
        assert result["latency_ns"][name] == percentile_ns(latency_ns, fraction)
    order = ("scheduled", "entry", "taken", "sent", "arrived", "read", "decoded", "completed")
    stamps = [columns[f"{name}_ns"] for name in order]
    assert all((one <= other).all() for one, other in itertools.pairwise(stamps))
    told = result["load_hosts"]
    assert [host["name"] for host in told] == [f"127.0.0.1:{port}" for port in ports]
    assert [int((columns[HOST] == n).sum()) for n in range(4)] == [h["queries"] for h in told]
    for host in told:  # both hosts run on one machine, so their clocks show the same time
        assert abs(host["clock_offset_ns"]) <= host["clock_error_ns"]
        assert host["clock_drift_ns"] is not None
    assert told[3]["clock_error_ns"] >= DELAY_S * 1e9 > 2 * told[0]["clock_error_ns"] > 0
    assert main(["check", str(out)]) == 0  # `check` finds no contradiction among the run's files
    assert all(is_idle(host, 10) for host in hosts)


def cut(through: Relay, _host: Host) -> str:
    through.cut()
    return "was cut off"


def freeze(through: Relay, _host: Host) -> str:
    through.freeze()
    return "sent nothing for 10 s"


def kill_process(_through: Relay, host: Host) -> str:
    children(host)[0].kill()
    return "was killed by SIGKILL"


@pytest.mark.slow
@pytest.mark.parametrize("act", [cut, freeze, kill_process], ids=lambda act: act.__name__)
def test_a_lost_host_ends_the_run_and_its_received_data_is_kept(
    tmp_path: Path, url: str, hosts: list[Host], act: object
) -> None:
    out = tmp_path / "run"
    assert callable(act)
    with relay(hosts[1].port) as through:
        load = ("--target-qps", "100", "--duration", "60s", "--mode", "performance")
        with Started(url, out, *load, *named(hosts[0].port, through.port)) as started:
            started.until(r"performance [1-9]\d* %")
            began_s = time.monotonic()
            text = act(through, hosts[1])
            assert started.end() == 5, started.printed
            # The run was ended early, because the complete run would have taken 60 s.
            assert time.monotonic() - began_s < 40
    lost = re.escape(f"load host 127.0.0.1:{through.port} is lost (")
    assert re.search(f"{lost}the measured process {text}.*, so the run was ended", started.printed)
    left = tmp_path / "run.partial"
    result, columns = result_of(left), columns_of(left)
    assert codes(result) == {"load-host-lost"}
    assert [bool(host["lost"]) for host in result["load_hosts"]] == [False, True]
    assert all(host["answered"] > 0 for host in result["load_hosts"])
    assert len(columns["order"]) == sum(host["answered"] for host in result["load_hosts"])
    assert main(["check", str(left)]) == 0
    # The host that does not get the message about the end detects the end itself, and accepts the next run.
    assert all(is_idle(host, 30) for host in hosts)


@pytest.mark.slow
def test_a_host_ends_its_part_when_the_run_is_killed(
    tmp_path: Path, url: str, hosts: list[Host]
) -> None:
    load = ("--target-qps", "100", "--duration", "60s", *named(hosts[0].port))
    with Started(url, tmp_path / "run", *load) as started:
        started.until(r"performance \d+ %")
        assert len(children(hosts[0])) == 1
        os.kill(started.process.pid, signal.SIGKILL)
        started.process.wait()
    assert is_idle(hosts[0], 10)


@pytest.mark.slow
def test_a_stopped_host_leaves_no_process(tmp_path: Path, url: str) -> None:
    load = ("--target-qps", "100", "--duration", "60s")
    with load_host() as own, Started(url, tmp_path / "run", *load, *named(own.port)) as started:
        started.until(r"performance \d+ %")
        (process,) = children(own)
        own.process.send_signal(signal.SIGTERM)
        assert own.process.wait(10) == 0
        assert not process.is_running()
        assert started.end() == 5
        assert "is lost" in started.printed


@pytest.mark.slow
def test_a_load_host_does_not_execute_the_code_of_a_run(
    tmp_path: Path, url: str, hosts: list[Host], capfd: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "own.py"
    data.write_text("class Own:\n    pass\n")
    with load_host() as other:
        other.process.kill()
        ports = (hosts[0].port, other.port)
        more = ("--dataset", f"{data}:Own", "--mode", "performance", *named(*ports))
        assert main(words(url, tmp_path / "run", *more)) == 2
    errors = capfd.readouterr().err
    assert f"127.0.0.1:{ports[0]}: {data}:Own is a file or module, and a load host" in errors
    assert f"127.0.0.1:{ports[1]} does not answer" in errors  # the message must name both hosts


@pytest.mark.slow
def test_a_run_gets_no_variable_that_the_host_does_not_allow(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOKEN_A", "a")
    more = ("--header", "X-Key=env:TOKEN_A", "--mode", "performance")
    with load_host("--allow-env", "TOKEN_A") as allowing, load_host() as closed:
        named_both = named(allowing.port, closed.port)
        assert main(words(url, tmp_path / "refused", *more, *named_both)) == 2
        errors = capfd.readouterr().err
        assert (
            f"127.0.0.1:{closed.port}: --header X-Key=env:TOKEN_A: that host may not send" in errors
        )
        assert "start it with --allow-env TOKEN_A" in errors
        assert f"127.0.0.1:{allowing.port}:" not in errors
        assert main(words(url, tmp_path / "run", *more, *named(allowing.port))) in {0, 4}


def test_a_variable_that_is_not_set_cannot_be_allowed(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["load-host", "--allow-env", "NOT_SET_HERE"]) == 2
    assert "--allow-env NOT_SET_HERE: the variable is not set" in capfd.readouterr().err


def test_a_name_that_leaves_the_folder_is_refused(tmp_path: Path) -> None:
    for name in ("../x", "/etc/x", "a/b", "", ".hidden"):
        with pytest.raises(ValueError, match="is not a file name"):
            remote_channel.append_piece(tmp_path, {"name": name, "piece": ""})
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_not_a_load_host_is_reported(tmp_path: Path) -> None:
    """A different program listens and replies at the address."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        process = remote_process.RemoteProcess.__new__(remote_process.RemoteProcess)
        process._address = Endpoint("127.0.0.1", port)
        process._channel = remote_channel.channel_over(process._connected())
        peer, _ = other.accept()
        with peer:
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            with pytest.raises(ConfigError, match=r"answers, but is not a load host.*load-host"):
                process._answer()
        process.kill()


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1\r\n\r\n", b"{}\n", b"[1]\n", b'{"event": "plan"}\n']
)
def test_a_stranger_gets_an_error_message_and_begins_no_run(
    sent: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    """Bug: a request caused a traceback, and the load host printed `a run begins`."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as stranger,
        stranger.makefile() as lines,
    ):
        agent = Agent(listening, frozenset())
        connected, (peer, _) = listening.accept()
        agent._answering[connected] = threading.current_thread()
        stranger.sendall(sent)
        agent._answer(connected, peer)
        told = json.loads(lines.readline())
    assert told == {
        "event": "error",
        "status": 2,
        "text": "the message does not begin a run: use the same version of the harness on both hosts",
        "trace": "",
    }
    said = capfd.readouterr().err
    assert said.startswith("harness: 127.0.0.1 sent a message that no run sends: ")
    assert "a run begins" not in said
