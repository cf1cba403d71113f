"""Addresses of real servers with the digits model: each is started for the first test that asks for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import real_servers


@pytest.fixture(scope="session")
def server_cache(pytestconfig: pytest.Config) -> Path:
    """The environments of the servers."""
    return Path(pytestconfig.cache.mkdir("servers"))


@pytest.fixture(scope="session")
def triton_url(server_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with real_servers.triton(server_cache, tmp_path_factory.mktemp("triton")) as url:
        yield url


@pytest.fixture(scope="session")
def mlserver_url(server_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with real_servers.mlserver(server_cache, tmp_path_factory.mktemp("mlserver")) as url:
        yield url


@pytest.fixture(scope="session")
def kserve_sdk_url(server_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with real_servers.kserve_sdk(server_cache, tmp_path_factory.mktemp("kserve")) as url:
        yield url
