"""Requests for several samples are joined from pieces that were encoded when the samples were loaded."""

import json
from collections.abc import Sequence

import numpy as np
import pytest

from harness.backends.http_json import HttpJsonRemote
from harness.backends.http_raw import HttpRawRemote
from harness.remote import Request
from harness.run.measured.client import joined_samples as module
from harness.run.measured.client.joined_samples import JoinedSamples, joins_samples
from harness.types import BackendSetup, Batch, TensorSpec
from tests.builders.refusals import refusal

X = TensorSpec("x", "float32", ("batch", 2))


class Dataset:
    """Sample i is [i, -i], and sample 13 is NaN. The dataset counts its batches."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def batch(self, indices: Sequence[int]) -> Batch:
        self.asked += indices
        rows = [[np.nan, 0] if i == 13 else [i, -i] for i in indices]
        return Batch(len(indices), {"x": np.array(rows, np.float32)})


@pytest.fixture
def remote() -> HttpJsonRemote:
    return HttpJsonRemote(BackendSetup(model=None, model_name="m", inputs=(X,), max_batch=8))


@pytest.fixture
def dataset() -> Dataset:
    return Dataset()


@pytest.fixture
def joined(remote: HttpJsonRemote, dataset: Dataset) -> JoinedSamples:
    return JoinedSamples(remote, dataset)  # type: ignore[arg-type] # needs `batch` alone


def instances(request: Request) -> object:
    (body,) = request.body
    return json.loads(bytes(body))["instances"]


def test_loaded_samples_are_encoded_once(joined: JoinedSamples, dataset: Dataset) -> None:
    joined.prepare([1, 2, 3, 2])
    assert dataset.asked == [1, 2, 3]
    dataset.asked.clear()
    for indices in ([1, 2], [3, 3, 1], [2]):
        assert instances(joined.request(indices)) == [[i, -i] for i in indices]
    assert dataset.asked == []


def test_joined_request_equals_that_of_the_batch(
    joined: JoinedSamples, remote: HttpJsonRemote, dataset: Dataset
) -> None:
    joined.prepare([1, 2])
    assert joined.request([2, 5, 1]) == remote.request(dataset.batch([2, 5, 1]))


def test_samples_that_are_not_loaded_are_encoded_when_due(
    joined: JoinedSamples, dataset: Dataset
) -> None:
    joined.prepare([1])
    joined.prepare([2])
    dataset.asked.clear()
    assert instances(joined.request([1, 2])) == [[1, -1], [2, -2]]
    assert dataset.asked == [1]


def test_sample_that_cannot_be_encoded_fails_its_request_alone(joined: JoinedSamples) -> None:
    joined.prepare([13, 1])
    assert instances(joined.request([1])) == [[1, -1]]
    with pytest.raises(ValueError, match=r"^input 'x': "):
        joined.request([1, 13])


def test_samples_that_take_too_much_memory_are_refused(
    joined: JoinedSamples, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "available_memory_bytes", lambda: 200)
    joined.prepare([20, 21])
    assert refusal(joined.prepare, range(20, 60)) == (
        "the encoded requests of 40 samples need more than 0.0 GiB, half of the free memory: lower --performance-count"
    )


def test_long_pieces_are_not_copied(remote: HttpJsonRemote) -> None:
    pieces = [[b"1" * 70_000], [b"2" * 70_000]]
    body = remote.joined(pieces).body
    assert [part for part in body if len(memoryview(part)) > 100] == [pieces[0][0], pieces[1][0]]
    assert b"".join(map(bytes, body)) == b'{"instances":[%b,%b]}' % (pieces[0][0], pieces[1][0])
    assert body[1] is pieces[0][0]


def test_only_plug_ins_with_pieces_are_joined(remote: HttpJsonRemote) -> None:
    assert joins_samples(remote, qdl=False) is remote
    assert joins_samples(remote, qdl=True) is None
    raw = HttpRawRemote(BackendSetup(model=None, model_name="m", inputs=(X,)))
    assert joins_samples(raw, qdl=False) is None
