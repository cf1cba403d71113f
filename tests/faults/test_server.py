"""A server misbehaves on a real socket: samples fail by kind, the run is INVALID, and no run hangs or loses a sample."""

import ctypes
import fcntl
import html
import json
import os
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from base64 import b64encode, urlsafe_b64encode
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from harness.cli.main import main
from tests.stand_ins.servers import bad_server as bad
from tests.stand_ins.servers.bad_server import BadServer, Behaviour, Connection, Request, good
from tests.stand_ins.servers.certificate import self_signed

SLOW = pytest.mark.slow
QUERIES = 300
BEGUN = "*.partial/performance/run_1/mlperf_log_detail.txt"
"""LoadGen writes this file just before the run's first query."""


def in_the_run(folder: Path, behaviour: Any, every: int = 1, otherwise: Any = good) -> Any:
    """Misbehaves at every `every`-th request of the run, but never before the run. folder: contains the run's folder."""
    lock = threading.Lock()
    seen = 0

    def chosen(connection: Any, request: Any, nth: int) -> Any:
        nonlocal seen
        with lock:
            if seen or next(folder.glob(BEGUN), None) is not None:
                seen += 1
            turn = seen
        return (behaviour if turn and turn % every == 0 else otherwise)(connection, request, nth)

    return chosen


def ran(out: Path, server: Any, *words: str) -> tuple[int, dict[str, Any]]:
    command = [
        *("--scenario", "server", "--target-qps", "150", "--queries", str(QUERIES)),
        *("--backend", "kserve", "--url", server.url, "--model", "digits", "--mode", "performance"),
        *(
            "--slo",
            "p99=5s",
            "--connections",
            "8",
            "--no-metrics",
            "--no-report",
            "--out",
            str(out),
        ),
    ]
    status = main([*command, *words])
    return status, json.loads((out / "result.json").read_text())


def text_of(result: dict[str, Any], code: str) -> str:
    texts = [r["text"] for r in result["reasons"] if r["code"] == code]
    assert len(texts) == 1, result["reasons"]
    assert "\n" not in texts[0]
    return str(texts[0])


def is_whole(result: dict[str, Any]) -> None:
    """Checks that every sample has exactly one answer or one failure."""
    assert result["queries"]["samples_issued"] == QUERIES, result["reasons"]
    assert result["queries"]["samples_answered"] == QUERIES
    lost = {"samples-lost", "hung", "died", "loadgen-errors", "journal-impossible"}
    assert not {r["code"] for r in result["reasons"]} & lost


@pytest.mark.parametrize(
    ("behaviour", "kinds", "told"),
    [
        pytest.param(bad.error_in_200, "refused", "answered 200", id="error-in-200", marks=SLOW),
        pytest.param(bad.reset_within, "reset", "", id="reset-within", marks=SLOW),
        pytest.param(
            bad.close_within, "bad-reply", "within a reply", id="close-within", marks=SLOW
        ),
        pytest.param(bad.other_shape, "bad-answer", "shape", id="other-shape", marks=SLOW),
        pytest.param(bad.other_dtype, "bad-answer", "FP64", id="other-dtype", marks=SLOW),
        pytest.param(bad.other_name, "bad-answer", "not-logits", id="other-name", marks=SLOW),
        pytest.param(bad.fewer_rows, "bad-answer", "", id="fewer-rows", marks=SLOW),
        pytest.param(bad.more_rows, "bad-answer", "2 rows", id="more-rows", marks=SLOW),
        pytest.param(bad.not_finite, "bad-answer", "", id="not-finite", marks=SLOW),
        pytest.param(bad.resized(3), "bad-answer", "bytes", id="too-long", marks=SLOW),
        pytest.param(bad.resized(-3), "bad-answer", "bytes", id="too-short", marks=SLOW),
        pytest.param(bad.no_json, "bad-answer", "not valid JSON", id="no-json", marks=SLOW),
        pytest.param(bad.trailing_bytes, "bad-reply", "7 bytes follow", id="trailing", marks=SLOW),
        pytest.param(
            bad.garbage(b"SSH-2\r\n\r\n"), "bad-reply", "HTTP/1.1", id="garbage", marks=SLOW
        ),
        pytest.param(bad.oversized_head(), "bad-reply", "head", id="long-head", marks=SLOW),
        pytest.param(bad.refuse(503), "refused", "answered 503", id="503", marks=SLOW),
        pytest.param(bad.refuse(429, "1"), "refused", "answered 429", id="429", marks=SLOW),
    ],
)
def test_failed_requests_make_the_run_invalid(
    tmp_path: Path, behaviour: Behaviour, kinds: str, told: str
) -> None:
    with BadServer(in_the_run(tmp_path, behaviour, 10)) as server:
        status, result = ran(tmp_path / "run", server)
    assert status == 4
    is_whole(result)
    failures = result["client"]["failures"]
    assert {*failures} == {*kinds.split()}
    assert sum(failures.values()) == result["queries"]["samples_failed"] == QUERIES // 10
    text = text_of(result, "requests-failed")
    assert f"{QUERIES // 10} of {QUERIES} samples failed" in text
    assert told in text
    # `check` finds no contradiction among the run's files.
    assert main(["check", str(tmp_path / "run")]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "behaviour",
    [
        pytest.param(bad.one_byte_segments, id="one-byte-segments"),
        pytest.param(bad.chunked(), id="chunked"),
        pytest.param(bad.continue_first, id="continue"),
        pytest.param(bad.until_close, id="until-close"),
        pytest.param(bad.say_close, id="say-close"),
        pytest.param(bad.close_after, id="close-after"),
        pytest.param(bad.other_id, id="other-id"),
        pytest.param(bad.stall(0.3), id="stall"),
    ],
)
def test_unusual_but_valid_http_causes_no_failure(tmp_path: Path, behaviour: Behaviour) -> None:
    with BadServer(in_the_run(tmp_path, behaviour, 5)) as server:
        _, result = ran(tmp_path / "run", server)
    is_whole(result)
    assert result["queries"]["samples_failed"] == 0, result["reasons"]


@pytest.mark.slow
def test_a_lost_keep_alive_is_resent_and_counted(tmp_path: Path) -> None:
    with BadServer(in_the_run(tmp_path, bad.stale, 10)) as server:
        status, result = ran(tmp_path / "run", server)
    is_whole(result)
    assert status == 4
    assert result["client"]["failures"] == {}
    assert 0 < result["client"]["resent"] <= QUERIES // 9
    assert "were sent twice" in text_of(result, "resent-often")


def test_a_server_that_closes_after_each_reply_is_measured(tmp_path: Path) -> None:
    """The server closes the connection after each stream, as llama.cpp does, so the run never reuses a connection."""
    with BadServer(bad.close_after) as server:
        _, result = ran(tmp_path / "run", server)
    is_whole(result)
    assert result["client"]["replies_per_connection"] == 1
    assert (result["client"]["resent"], result["queries"]["samples_failed"]) == (0, 0)
    assert "resent-often" not in [reason["code"] for reason in result["reasons"]]


def test_a_secret_echoed_by_the_server_is_neither_stored_nor_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = 'sk-"t0k3n/of+mine<&>'
    raw = secret.encode()
    encoded = (
        secret,
        json.dumps(secret)[1:-1],
        quote(secret, safe=""),
        html.escape(secret),
        b64encode(raw).decode(),
        urlsafe_b64encode(b"user:" + raw).decode().rstrip("="),
        raw.hex(),
    )

    def echo(connection: Connection, request: Request, nth: int) -> None:
        assert secret in request.headers["authorization"]
        bad.refuse(401, text=" ".join(encoded))(connection, request, nth)

    monkeypatch.setenv("SECRET", f"Bearer {secret}")
    with BadServer(in_the_run(tmp_path, echo, 10)) as server:
        status, result = ran(tmp_path / "run", server, "--header", "Authorization=env:SECRET")
    assert (status, result["client"]["failures"]) == (4, {"refused": QUERIES // 10})
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    texts = [*files, *(text.encode() for text in capfd.readouterr())]
    assert any(b"answered 401: ***" in text for text in texts)
    pieces = ("t0k3n", *(text[4:16] for text in encoded))
    found = [piece for piece in pieces if any(piece.encode() in text for text in texts)]
    assert not found


@pytest.mark.slow
@pytest.mark.parametrize("behaviour", [bad.stale, bad.reset_before])
def test_without_resending_a_lost_keep_alive_is_a_failure(
    tmp_path: Path, behaviour: Behaviour
) -> None:
    with BadServer(in_the_run(tmp_path, behaviour, 10)) as server:
        _, result = ran(tmp_path / "run", server, "--no-resend")
    is_whole(result)
    assert result["client"]["resent"] == 0
    assert {*result["client"]["failures"]} == {"reset"}


@pytest.mark.slow
def test_a_frozen_server_times_out_and_the_run_ends(tmp_path: Path) -> None:
    with BadServer(in_the_run(tmp_path, bad.freeze, 30)) as server:
        begin_s = time.monotonic()
        status, result = ran(tmp_path / "run", server, "--request-timeout", "1s")
        took_s = time.monotonic() - begin_s
    assert status == 4
    is_whole(result)
    assert result["client"]["failures"] == {"timeout": QUERIES // 30}
    assert "no reply within 1 s (--request-timeout)" in text_of(result, "requests-failed")
    assert took_s < 60


@pytest.mark.slow
def test_a_server_that_freezes_for_good_ends_the_run(tmp_path: Path) -> None:
    with BadServer(in_the_run(tmp_path, bad.freeze_all, 100)) as server:
        status, result = ran(tmp_path / "run", server, "--request-timeout", "1s")
    assert status in (4, 5)
    assert result["verdict"] == "INVALID"
    assert result["client"] is None or result["client"]["failures"]["timeout"] > 0


@pytest.mark.slow
def test_a_server_that_restarts_loses_what_was_in_flight(tmp_path: Path) -> None:
    with BadServer(in_the_run(tmp_path, bad.restart(1.0), 150)) as server:
        _, result = ran(tmp_path / "run", server)
    is_whole(result)
    assert result["queries"]["samples_failed"] < QUERIES / 2
    assert 0.5 < result["client"]["outage_s"] < 5
    assert "server-away" in [doubt["code"] for doubt in result["doubts"]]


@pytest.mark.slow
def test_a_server_that_is_gone_is_given_up(tmp_path: Path) -> None:
    with BadServer(in_the_run(tmp_path, bad.restart(3600), 100)) as server:
        begin_s = time.monotonic()
        status, result = ran(tmp_path / "run", server)
        took_s = time.monotonic() - begin_s
    assert status == 4
    is_whole(result)
    assert "Connection refused" in text_of(result, "server-gone")
    assert result["client"]["failures"]["server-gone"] > 0
    assert took_s < 60


@pytest.mark.slow
def test_a_replica_that_is_gone_is_named_though_the_others_answer(tmp_path: Path) -> None:
    """Bug: although one replica was gone, the run was VALID as a run on two servers."""
    with BadServer() as good_one, BadServer(bad.since(150, bad.restart(3600))) as server:
        words = ("--url", good_one.url, "--queries", "1500")
        status, result = ran(tmp_path / "run", server, *words)
    assert status == 4
    told = text_of(result, "server-gone")
    assert f"other servers answered the queries of {server.url}: " in told
    assert "Connection refused" in told


@pytest.mark.parametrize(
    ("behaviour", "told"),
    [
        pytest.param(
            bad.restart(3600),
            "closed the connection before its reply: read the server's log",
            id="end",
        ),
        pytest.param(bad.reset_before, "closed the connection before its reply", id="reset"),
        pytest.param(
            bad.stall(30),
            "no reply within 0.5 s (--request-timeout): check whether the server is stuck or busy",
            id="stall",
        ),
    ],
)
def test_a_server_that_fails_in_the_warm_up_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], behaviour: Behaviour, told: str
) -> None:
    with BadServer(bad.since(3, behaviour)) as server:
        run = ("--scenario", "offline", "--backend", "kserve", "--url", server.url)
        more = ("--model", "digits", "--no-metrics", "--out", str(tmp_path / "run"))
        assert main([*run, *more, "--request-timeout", "500ms"]) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        refused = "cannot be reached (Connection refused): start the server, or check the port"
    assert line.startswith(f"harness: --url {server.url}")
    assert told in line or (behaviour is not bad.reset_before and refused in line)


def test_samples_refused_in_the_warm_up_do_not_blame_the_plug_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: if a prompt was too long for every request, the message was "raised Refused", with the exit status of a
    broken plug-in.
    """
    too_long = bad.since(3, bad.refuse(400, text="the prompt is too long"))
    with BadServer(too_long) as server:
        run = ("--scenario", "offline", "--backend", "kserve", "--url", server.url)
        assert (
            main([*run, "--model", "digits", "--no-metrics", "--out", str(tmp_path / "run")]) == 2
        )
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == (
        f"harness: --url {server.url}: the server answered 400: the prompt is too long: check the model's "
        "inputs, or read the server's log"
    )


def refusal(capsys: pytest.CaptureFixture[str], out: Path, url: str, *words: str) -> str:
    """Returns the only line that a run prints if it is refused before it begins."""
    run = ("--scenario", "offline", "--backend", "kserve", "--url", url, "--model", "digits")
    assert main([*run, "--no-metrics", "--out", str(out), *words]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "loading" not in line]
    assert len(lines) == 1, lines
    return lines[0]


def test_a_missing_server_or_host_name_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with bad.refused() as url:
        assert refusal(capsys, tmp_path / "run", url) == (
            f"harness: --url {url} cannot be reached (Connection refused): start the server, or check the port"
        )
    url = "http://no-such-host.invalid:8000"
    line = refusal(capsys, tmp_path / "run", url)
    assert line.startswith(f"harness: {url}: the name 'no-such-host.invalid' cannot be resolved (")


@pytest.mark.slow
def test_tls_is_measured_only_if_the_certificate_has_the_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    key = self_signed(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(key.with_suffix(".crt")))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(key)
    with BadServer(in_the_run(tmp_path, bad.restart(1.0), 150), tls=context) as server:
        other = server.url.replace("localhost", "127.0.0.1")
        line = refusal(capsys, tmp_path / "other", other)
        assert "its certificate is not trusted: IP address mismatch" in line
        assert line.endswith("use the name in its certificate, or add --insecure")
        _, result = ran(tmp_path / "run", server)
    is_whole(result)
    assert result["queries"]["samples_failed"] < QUERIES / 2
    # The kernel's time stamps are also available over TLS, so `notice` is measured.
    assert result["stages_ns"]["notice"]["p50"] > 0
    with BadServer(tls=context) as server:
        server.url = server.url.replace("localhost", "127.0.0.1")
        _, result = ran(tmp_path / "insecure", server, "--insecure")
    is_whole(result)
    assert result["queries"]["samples_failed"] == 0, result["reasons"]


NEW_NET, NEW_USER = 0x4000_0000, 0x1000_0000
"""Flags for new namespaces; source: Linux, include/uapi/linux/sched.h."""
_SET_FLAGS, _UP = 0x8914, 0x41
"""ioctl request SIOCSIFFLAGS, and the flags IFF_UP and IFF_RUNNING."""
NOT_HERE = 77
"""Exit status if the kernel does not allow the namespace."""


def in_own_network(words: list[str]) -> str:
    """Runs `few_ports` in a separate network namespace, so that its ports belong to the test. Returns the output of
    `few_ports`.
    """
    unshared = "import tests.faults.test_server as t; t.enter_network(); t.few_ports(*__import__('sys').argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", unshared, *words],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=120,
        check=False,
    )
    if done.returncode == NOT_HERE:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def enter_network() -> None:
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(NEW_NET | (NEW_USER if os.geteuid() else 0)):
            raise OSError(ctypes.get_errno(), "unshare")
        with socket.socket() as control:
            fcntl.ioctl(control, _SET_FLAGS, struct.pack("16sH14x", b"lo", _UP))
        Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("40000 40039")
    except OSError as e:
        sys.stderr.write(f"no network of its own here: {e}")
        sys.exit(NOT_HERE)


def few_ports(case: str, out: str) -> None:
    """Runs with 40 ports: in the case `held` 35 ports are taken, in the case `closing` each request takes a new port."""
    with ExitStack() as stack:
        server = stack.enter_context(BadServer(bad.say_close if case == "closing" else None))
        if case == "closing":
            ran(Path(out), server)
            assert server.opened > QUERIES
            return
        count = 35 if case == "held" else 0
        address = ("127.0.0.1", server.port)
        for _ in range(count):
            stack.enter_context(socket.create_connection(address))
        run = ("--scenario", "offline", "--backend", "kserve", "--url", server.url)
        more = ("--model", "digits", "--no-metrics", "--out", out)
        assert main([*run, *more, "--connections", "8" if count else "64"]) == 2


@pytest.mark.slow
def test_exhausted_ports_are_reported_in_one_line(tmp_path: Path) -> None:
    told = in_own_network(["few", str(tmp_path / "few")])
    assert (
        "--connections 64 exceeds the 40 ports that this machine has for connections to one server"
        in told
    )
    told = in_own_network(["held", str(tmp_path / "held")])
    assert "cannot be reached (all local ports for connections to it are in use)" in told


@pytest.mark.slow
def test_ports_that_run_short_delay_requests_but_lose_none(tmp_path: Path) -> None:
    """The run opens 150 connections per second with 40 ports, and the kernel keeps each port for a second."""
    in_own_network(["closing", str(tmp_path / "run")])
    result = json.loads((tmp_path / "run/result.json").read_text())
    is_whole(result)
    assert result["queries"]["samples_failed"] == 0, result["reasons"]


@pytest.mark.slow
def test_a_stall_counts_in_the_latency_of_all_waiting_queries(tmp_path: Path) -> None:
    """The server stops for 2 s at 100 queries/s, so 20 % of the 10 s run waits, with waiting times spread evenly from 0
    to 2 s.
    """
    stopped = threading.Event()

    def stalls(connection: Connection, request: Request, nth: int) -> None:
        begin = stopped.is_set()
        stopped.set()
        if not begin:
            with connection.server.turn():
                connection.wait(2.0)
        else:
            with connection.server.turn():
                pass
        good(connection, request, nth)

    once = in_the_run(tmp_path, stalls)
    with BadServer(once) as server:
        words = ("--target-qps", "100", "--queries", "1000", "--connections", "256")
        command = [
            *(
                "--scenario",
                "server",
                "--backend",
                "kserve",
                "--url",
                server.url,
                "--model",
                "digits",
            ),
            *("--mode", "performance", "--slo", "p99=5s", "--no-metrics", "--no-report"),
            *("--out", str(tmp_path / "run"), *words),
        ]
        main(command)
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["queries"]["samples_failed"] == 0
    p99_s = result["latency_ns"]["p99"] / 1e9
    assert 1.7 < p99_s < 2.2
    assert "stalled" in [doubt["code"] for doubt in result["doubts"]]
