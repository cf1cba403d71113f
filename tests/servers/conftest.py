"""Addresses of real servers with our models: each server starts for the first test that needs it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import real_servers
from tests.servers.real_servers import Addresses


@pytest.fixture(scope="session")
def server_cache(pytestconfig: pytest.Config) -> Path:
    """The environments of the servers."""
    return Path(pytestconfig.cache.mkdir("servers"))


@pytest.fixture(scope="session")
def triton(server_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    with real_servers.triton(server_cache, tmp_path_factory.mktemp("triton")) as addresses:
        yield addresses


@pytest.fixture(scope="session")
def mlserver(server_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    with real_servers.mlserver(server_cache, tmp_path_factory.mktemp("mlserver")) as addresses:
        yield addresses


@pytest.fixture(scope="session")
def kserve_sdk(server_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    with real_servers.kserve_sdk(server_cache, tmp_path_factory.mktemp("kserve")) as addresses:
        yield addresses


@pytest.fixture(scope="session")
def transformers(
    server_cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Addresses]:
    with real_servers.transformers(server_cache, tmp_path_factory.mktemp("serve")) as addresses:
        yield addresses


@pytest.fixture(scope="session")
def vllm(server_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    with real_servers.vllm(server_cache, tmp_path_factory.mktemp("vllm")) as addresses:
        yield addresses


@pytest.fixture(scope="session")
def llama_cpp(server_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    with real_servers.llama_cpp(server_cache, tmp_path_factory.mktemp("llama")) as addresses:
        yield addresses


@pytest.fixture(scope="session")
def triton_url(triton: Addresses) -> str:
    return triton.url


@pytest.fixture(scope="session")
def mlserver_url(mlserver: Addresses) -> str:
    return mlserver.url


@pytest.fixture(scope="session")
def kserve_sdk_url(kserve_sdk: Addresses) -> str:
    return kserve_sdk.url
