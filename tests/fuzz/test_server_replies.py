"""Replies of KServe v2 servers with missing values, odd values or broken bytes lead to an answer or a one-line error."""

import copy
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from harness.backends.kserve import KserveRemote
from harness.cli.main import main
from harness.errors import ConfigError
from harness.remote import BadAnswer, Refused, Reply, Request
from harness.serve.probe import _kserve
from harness.types import BackendSetup
from tests.faults.test_server import QUERIES, in_the_run, is_whole, ran
from tests.fuzz import mutate
from tests.stand_ins.servers import bad_server
from tests.stand_ins.servers.bad_server import BadServer, Behaviour, Connection

MODEL = {
    "name": "m",
    "versions": ["1"],
    "platform": "p",
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}],
    "properties": {"precision": "float32", "threads": 2},
}
ANSWER = {
    "model_name": "m",
    "model_version": "1",
    "id": "7",
    "parameters": {},
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}],
}
STATS = {
    "model_stats": [
        {
            "inference_stats": {
                "success": {"count": 1, "ns": 9},
                "queue": {"ns": 1},
                "compute_infer": {"ns": 5},
            }
        }
    ]
}
PATHS: Mapping[str, Any] = {
    "/v2/health/ready": {},
    "/v2": {"name": "s", "version": "1", "extensions": ["binary_tensor_data"]},
    "/v2/models/m": MODEL,
    "/v2/models/m/config": {"name": "m", "backend": "b", "max_batch_size": 8},
    "/v2/models/m/infer": ANSWER,
    "/v2/models/m/stats": STATS,
    "/v2/repository/index": [{"name": "m", "version": "1", "state": "READY"}],
}
MISSING = object()
ODD = [
    MISSING,
    None,
    "",
    [],
    {},
    0,
    -1,
    1,
    0.5,
    1e308,
    10**30,
    True,
    "text",
    ["x"],
    [None],
    [[]],
    [-1, -2],
    [10**12, 10**12],
    [2**62],
    {"a": 1},
    "\ud800",
    "9" * 5000,
]


def places(value: Any) -> Iterator[tuple[Any, ...]]:
    """Yields the path of every value nested in a JSON value, starting with the root's, `()`."""
    yield ()
    keys = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    for key in keys:
        yield from ((key, *rest) for rest in places(value[key]))


def changed(value: Any, place: tuple[Any, ...], odd: Any) -> Any:
    if not place:
        return odd
    made = copy.deepcopy(value)
    inner = made
    for key in place[:-1]:
        inner = inner[key]
    if odd is MISSING:
        del inner[place[-1]]
    else:
        inner[place[-1]] = odd
    return made


def reply(content: Any, head: bytes = b"HTTP/1.1 200 OK\r\n\r\n") -> Reply:
    body = b"" if content is MISSING else json.dumps(content).encode()
    return Reply(200, head, memoryview(body))


@pytest.mark.parametrize("path", PATHS)
def test_no_reply_of_a_server_is_a_traceback(path: str) -> None:
    for place in places(PATHS[path]):
        for odd in ODD:
            answers = {**PATHS, path: changed(PATHS[path], place, odd)}

            def exchange(request: Request, answers: Any = answers) -> Reply:
                found = answers.get(request.path, MISSING)
                return reply(found) if found is not MISSING else Reply(404, b"", memoryview(b""))

            told = f"{path} {place} {odd!r:.40}"
            remote = KserveRemote(BackendSetup(model=None, model_name="m"))
            try:
                remote.open(exchange)
                remote.answer(exchange(Request("/v2/models/m/infer")), 1)
                json.dumps([remote.describe(), remote.name(exchange)])
                text = ""
            except (ConfigError, Refused, BadAnswer) as e:
                text = str(e)
            except Exception as e:
                raise AssertionError(told) from e
            assert "\n" not in text, told
            assert len(text) < 2000, told
            _kserve(exchange, exchange, False, exchange(Request("/v2")), None)


def broken(seed: int) -> Behaviour:
    """Sends the bytes of a right reply, including its head, with some bytes changed."""
    random = Random(seed)

    def behave(connection: Connection, request: bad_server.Request, nth: int) -> None:
        connection.send(mutate.text(connection.reply(request).raw(), random))

    return behave


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 9))]
)
def test_broken_bytes_of_replies_fail_only_their_samples(seed: int, tmp_path: Path) -> None:
    with BadServer(in_the_run(tmp_path, broken(seed), 10)) as server:
        _, result = ran(tmp_path / "run", server, "--request-timeout", "3s")
    is_whole(result)
    failed = result["queries"]["samples_failed"]
    assert 0 < failed <= QUERIES // 10
    assert sum(result["client"]["failures"].values()) == failed
    assert main(["check", str(tmp_path / "run")]) == 0
