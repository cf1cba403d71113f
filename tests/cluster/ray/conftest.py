"""One Ray cluster for all tests in a file, because starting a cluster takes longer than most tests."""

from collections.abc import Iterator

import pytest

from tests.cluster.hosts import is_running
from tests.cluster.ray.raylets import Raylets, raylets


@pytest.fixture(scope="module")
def running_cluster() -> Iterator[Raylets]:
    pytest.importorskip("ray")
    with raylets(2) as cluster:
        yield cluster


@pytest.fixture
def cluster(running_cluster: Raylets) -> Raylets:
    """A cluster with two nodes, even after a test that killed a node."""
    while sum(map(is_running, running_cluster.pids)) < 2:
        running_cluster.add()
    return running_cluster
