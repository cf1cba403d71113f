"""With samples in shared memory, the server finds each sample's bytes at the stated place, and no memory is left
behind.
"""

import errno
import json
import mmap
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import Any, cast

import numpy as np
import pytest

from harness.backends.kserve import KserveRemote
from harness.core.config.address import parse_address
from harness.core.config.run_config import RunConfig
from harness.errors import ConfigError
from harness.run.measured.client.shared_samples import SharedSamples, check_here
from harness.run.shared_region import REGIONS, region_of, release
from harness.types import BackendSetup, Batch, TensorSpec
from harness.wire.connections import Server
from harness.wire.remote_backend import Link, link_to
from tests.stand_ins.servers.quiet import QuietHandler, in_thread

IMAGE = {"name": "image", "datatype": "FP32", "shape": [-1, 3]}
TEXT = {"name": "text", "datatype": "BYTES", "shape": [-1, 1]}
SAMPLES = 5


class Machine:
    """Triton's endpoints for shared memory, and a model that returns the bytes it finds."""

    def __init__(self) -> None:
        self.regions: dict[str, mmap.mmap] = {}
        self.refuses = False

    def answer(self, path: str, body: bytes) -> tuple[int, object]:
        *_, region, last = path.split("/")
        if last == "register":
            return self._map(region, json.loads(body))
        if last == "unregister":
            self.regions.pop(region).close()
            return 200, {}
        if last == "infer":
            head = body.partition(b'"binary_data_output":true}}')
            inputs = json.loads(head[0] + head[1])["inputs"]
            return 200, {"model_name": "m", "outputs": [self._found(one) for one in inputs]}
        known: dict[str, object] = {
            "/v2": {"name": "triton", "version": "2"},
            "/v2/models/m": {"name": "m", "inputs": [IMAGE, TEXT], "outputs": []},
            "/v2/systemsharedmemory/status": [],
        }
        return (200, known[path]) if path in known else (404, {})

    def _map(self, region: str, about: dict[str, Any]) -> tuple[int, object]:
        if self.refuses:
            return 400, {"error": "Unable to open shared memory region"}
        with (REGIONS / about["key"].strip("/")).open("rb") as file:
            size = about["byte_size"]
            self.regions[region] = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        return 200, {}

    def _found(self, one: dict[str, Any]) -> dict[str, Any]:
        place = one["parameters"]
        if "shared_memory_region" not in place:  # only the probe sends its data in the request
            return {"name": one["name"], "datatype": "BYTES", "shape": [1, 1], "data": [""]}
        region = self.regions[place["shared_memory_region"]]
        begin = place["shared_memory_offset"]
        values = region[begin : begin + place["shared_memory_byte_size"]].hex()
        return {"name": one["name"], "datatype": "BYTES", "shape": [1, 1], "data": [values]}


class Dataset:
    """A dataset whose samples have an image and a text, with different lengths."""

    def __len__(self) -> int:
        return SAMPLES

    def batch(self, indices: Sequence[int]) -> Batch:
        images = np.array([[i, i + 0.5, -i] for i in indices], np.float32)
        texts = np.array([["x" * (i * 40)] for i in indices], object)
        return Batch(len(indices), {"image": images, "text": texts})


@contextmanager
def served(machine: Machine) -> Iterator[Server]:
    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            self.raw_requestline = self.rfile.readline()
            if not self.raw_requestline or not self.parse_request():
                self.close_connection = True
                return
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, content = machine.answer(self.path, body)
            self.reply(json.dumps(content).encode(), status)

    with in_thread(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as address:
        yield Server(address=parse_address(address))


@contextmanager
def opened(machine: Machine) -> Iterator[tuple[KserveRemote, Link, SharedSamples]]:
    inputs = (TensorSpec("image", "float32", (None, 3)), TensorSpec("text", "string", (None, 1)))
    options = {"encoding": "shm"}
    remote = KserveRemote(BackendSetup(model=None, model_name="m", inputs=inputs, options=options))
    with served(machine) as server:
        link = Link(server, 5)
        remote.open(link.exchange_at_start)
        samples = SharedSamples(remote, cast("Any", Dataset()), [server], 5)
        yield remote, link, samples
        samples.close()
        link.close()


def file() -> Any:
    return REGIONS / region_of(os.getpid())


def test_each_request_names_the_bytes_of_its_sample() -> None:
    machine = Machine()
    with opened(machine) as (remote, link, samples):
        for indices in ([4, 0, 2, 2], [1, 3]):  # the second set of samples replaces the first set
            samples.place(indices)
            assert not file().exists()
            assert [*machine.regions] == [region_of(os.getpid())]
            for index in indices:
                found = cast("Any", remote.answer(link.exchange(samples.request([index])), 1))
                image = np.frombuffer(bytes.fromhex(found["image"][0, 0]), np.float32)
                assert image.tolist() == [index, index + 0.5, -index]
                text = bytes.fromhex(found["text"][0, 0])
                assert text == (index * 40).to_bytes(4, "little") + b"x" * (index * 40)
        with pytest.raises(KeyError):
            samples.request([0])
    assert remote.describe()["encoding"] == "shm"
    assert not machine.regions


def test_refusal_of_the_region_is_one_line_and_leaves_nothing() -> None:
    machine = Machine()
    with opened(machine) as (_, _, samples):
        machine.refuses = True
        with pytest.raises(ConfigError, match=r"\(status 400: .*Unable to open shared memory"):
            samples.place([1])
    assert not file().exists()


def test_too_little_room_is_reported_in_one_line_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with (
        opened(Machine()) as (_, _, samples),
        pytest.raises(ConfigError, match=r"has no room .* \(No space left on device\)"),
    ):
        samples.place([1])
    assert not file().exists()


def test_shared_region_of_a_killed_process_is_released() -> None:
    machine = Machine()
    with served(machine) as server:
        region = region_of(os.getpid())
        file().write_bytes(bytes(8))
        link = Link(server, 5)
        assert link.exchange(KserveRemote.attach(region, 8, "http")).status == 200
        link.close()
        options = (("encoding", "shm"),)
        url = (str(server.address),)
        config = RunConfig(scenario="offline", backend="kserve", url=url, backend_option=options)
        release(config, os.getpid())
        assert not machine.regions
        assert not file().exists()
        release(config, os.getpid())  # a second call of `release` does no harm


def test_a_server_elsewhere_cannot_read_this_machines_memory() -> None:
    check_here([("127.0.0.1", True)])
    text = "encoding=shm: the server at 10.1.2.3 is on a different machine and "
    with pytest.raises(ConfigError, match=re.escape(text)):
        check_here([("127.0.0.1", True), ("10.1.2.3", False)])


def test_shared_memory_is_for_single_samples() -> None:
    told = "encoding=shm: a request has one sample: drop --max-batch 8"
    setup = BackendSetup(model=None, model_name="m", options={"encoding": "shm"}, max_batch=8)
    with pytest.raises(ConfigError, match=f"{told}$"):
        KserveRemote(setup)


class Images:
    """A dataset in which each sample is an image filled with its number."""

    def __len__(self) -> int:
        return SAMPLES

    def batch(self, indices: Sequence[int]) -> Batch:
        rows = [np.full((1, 8, 8), i, np.float32) for i in indices]
        return Batch(len(indices), {"image": np.stack(rows)})


def test_samples_are_shared_over_grpc_as_well() -> None:
    """Google's Protobuf is the reference: the server reads the sample at the place stated in the call."""
    pytest.importorskip("grpc")
    from tests.stand_ins.servers.grpc_server import GrpcServer

    options = {"encoding": "shm"}
    setup = BackendSetup(model=None, model_name="digits", options=options, transport="grpc")
    remote = KserveRemote(setup)
    with GrpcServer() as grpc:
        server = Server(address=parse_address(grpc.url))
        link = link_to(server, 5)
        remote.open(link.exchange_at_start)
        samples = SharedSamples(remote, cast("Any", Images()), [server], 5)
        samples.place([4, 1, 2])
        assert not file().exists()
        assert [*grpc.regions] == [region_of(os.getpid())]
        for index in (1, 4, 2):
            request = samples.request([index])
            assert sum(map(len, request.body)) < 256  # the request contains no tensor
            answers = cast("Any", remote.answer(link.exchange(request), 1))
            assert answers[0].tolist() == [index * n for n in (7, 7, 7, 7, *(6,) * 6)]
        assert remote.describe()["encoding"] == "shm"
        samples.close()
        assert not grpc.regions
        samples = SharedSamples(remote, cast("Any", Images()), [server], 5)
        samples.place([1])
        url = (grpc.url,)
        config = RunConfig(
            scenario="offline", backend="kserve", url=url, backend_option=tuple(options.items())
        )
        # The supervisor calls `release` after the measured process was killed.
        release(config, os.getpid())
        assert not grpc.regions
        samples.close()
        link.close()
