"""A server misbehaves over gRPC: samples fail by kind, the run is INVALID, and no run hangs or loses a sample."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from harness.cli.main import main
from tests.faults.test_server import QUERIES, in_the_run, is_whole, ran, text_of
from tests.stand_ins.servers.certificate import self_signed
from tests.stand_ins.servers.grpc_server import Behaviour, GrpcServer, late, refuse, reply, sums

pytestmark = pytest.mark.slow


def no_number(_context: Any, _request: Any, _nth: int) -> Any:
    return reply([1, 10], b"\xff\xff\xff\xff" * 10)


@pytest.mark.parametrize(
    ("behaviour", "kind", "told"),
    [
        pytest.param(
            refuse("UNAVAILABLE", "busy"), "reset", "first failure: busy", id="unavailable"
        ),
        pytest.param(
            refuse("RESOURCE_EXHAUSTED", "too many"),
            "refused",
            "answered 8: RESOURCE_EXHAUSTED: too many",
            id="refused",
        ),
        pytest.param(
            lambda *_: reply([1, 9], bytes(36)), "bad-answer", "has the shape", id="shape"
        ),
        pytest.param(
            lambda *_: reply([1, 10], bytes(80), "FP64"), "bad-answer", "is FP64", id="datatype"
        ),
        pytest.param(
            lambda *_: reply([1, 10], bytes(36)), "bad-answer", "has 36 bytes", id="short"
        ),
        pytest.param(no_number, "bad-answer", "contain NaN", id="nan"),
        pytest.param(late(3), "timeout", "no reply within 1 s (--request-timeout)", id="deadline"),
    ],
)
def test_failed_calls_make_the_run_invalid(
    tmp_path: Path, behaviour: Behaviour, kind: str, told: str
) -> None:
    every = 30
    with GrpcServer(in_the_run(tmp_path, behaviour, every, sums)) as server:
        status, result = ran(tmp_path / "run", server, "--request-timeout", "1s")
    assert status == 4
    is_whole(result)
    assert result["client"]["failures"] == {kind: QUERIES // every}
    text = text_of(result, "requests-failed")
    assert f"{QUERIES // every} of {QUERIES} samples failed" in text
    assert told in text
    assert "notice" not in result["stages_ns"]
    assert result["client"]["no_notice"].startswith("gRPC's library")
    # `check` finds no contradiction among the run's files.
    assert main(["check", str(tmp_path / "run")]) == 0


def test_a_server_that_ends_within_the_run_is_given_up(tmp_path: Path) -> None:
    server = GrpcServer()

    def end(context: Any, request: Any, nth: int) -> Any:
        threading.Thread(target=server.stop).start()
        return sums(context, request, nth)

    chosen = in_the_run(tmp_path, end, 100, sums)
    server.infer = chosen
    with server:
        begin_s = time.monotonic()
        status, result = ran(tmp_path / "run", server, "--queries", "1500")
        took_s = time.monotonic() - begin_s
    assert status == 4
    assert result["queries"]["samples_answered"] == result["queries"]["samples_issued"] == 1500
    assert "Connection refused" in text_of(result, "server-gone")
    assert {*result["client"]["failures"]} >= {"reset", "server-gone"}
    assert took_s < 90


def test_a_port_without_a_server_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = GrpcServer()
    with server:
        pass
    words = ("--scenario", "offline", "--backend", "kserve", "--url", server.url)
    assert main([*words, "--model", "digits", "--no-metrics", "--out", str(tmp_path / "run")]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == (
        f"harness: --url {server.url} cannot be reached (Connection refused): start the server, or check "
        "the port"
    )


def test_a_run_over_tls_needs_a_trusted_name_or_insecure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = self_signed(tmp_path).read_bytes()
    with GrpcServer(tls=(both, both)) as server:
        with pytest.raises(FileNotFoundError):  # the refused run has no result.json
            ran(tmp_path / "refused", server)
        line = capsys.readouterr().err.splitlines()[-1]
        _, result = ran(tmp_path / "run", server, "--insecure")
    assert line.startswith(f"harness: --url {server.url} cannot be reached (its certificate")
    assert line.endswith("use the name in its certificate, or add --insecure")
    is_whole(result)
    assert result["queries"]["samples_failed"] == 0, result["reasons"]
    assert result["client"]["peers"][0]["url"] == server.url


def test_samples_in_shared_memory_are_answered_and_given_back(tmp_path: Path) -> None:
    named: list[
        bool
    ] = []  # for each request, true if the request contains the position of its sample

    def noted(context: Any, request: Any, nth: int) -> Any:
        named.append(bool(request.inputs[0].parameters))
        return sums(context, request, nth)

    with GrpcServer(noted) as server:
        _, result = ran(tmp_path / "run", server, "--backend-option", "encoding=shm")
        assert not server.regions
    assert sum(named) >= QUERIES  # only the requests of the warm-up send their tensors
    is_whole(result)
    assert result["queries"]["samples_failed"] == 0, result["reasons"]
    assert result["backend_description"]["encoding"] == "shm"
