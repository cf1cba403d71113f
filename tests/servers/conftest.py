"""Addresses of real servers with our models; each server starts when a test first needs it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.servers import real_servers
from tests.servers.real_servers import Addresses


@pytest.fixture(scope="session")
def server_cache(pytestconfig: pytest.Config) -> Path:
    """Returns the folder for the servers' environments."""
    return Path(pytestconfig.cache.mkdir("servers"))


def _server(start: Callable[[Path, Path], AbstractContextManager[Addresses]]) -> Any:
    """Makes a fixture that yields a server's addresses."""

    @pytest.fixture(scope="session", name=start.__name__)
    def addresses(
        server_cache: Path, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[Addresses]:
        with start(server_cache, tmp_path_factory.mktemp(start.__name__)) as found:
            yield found

    return addresses


def _url(name: str) -> Any:
    """Makes a fixture that yields a server's URL."""

    @pytest.fixture(scope="session", name=f"{name}_url")
    def url(request: pytest.FixtureRequest) -> str:
        found: Addresses = request.getfixturevalue(name)
        return found.url

    return url


triton = _server(real_servers.triton)
mlserver = _server(real_servers.mlserver)
kserve_sdk = _server(real_servers.kserve_sdk)
transformers = _server(real_servers.transformers)
vllm = _server(real_servers.vllm)
llama_cpp = _server(real_servers.llama_cpp)
llama_cpp_tinylm = _server(real_servers.llama_cpp_tinylm)

triton_url, mlserver_url, kserve_sdk_url = map(_url, ("triton", "mlserver", "kserve_sdk"))
