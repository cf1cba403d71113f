"""A real Prometheus for tests: from PATH, or from Debian's package without installation."""

import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

DASHBOARDS = Path(__file__).parents[4] / "dashboards"


def programs(folder: Path) -> Path:
    """Returns the paths of `prometheus` and `promtool`. Skips the test if the programs are not available."""
    found = shutil.which("prometheus")
    if found and shutil.which("promtool"):
        return Path(found).parent
    return unpacked("prometheus", folder)


def unpacked(package: str, folder: Path) -> Path:
    """Unpacks a Debian package into `folder`, and returns the folder of its programs."""
    if shutil.which("apt-get") is None:
        pytest.skip(f"needs {package} on PATH, or Debian's packages")
    folder.chmod(0o777)  # apt downloads as a separate user, who must be able to write to the folder
    fetched = subprocess.run(
        ["apt-get", "download", package], cwd=folder, capture_output=True, check=False
    )
    packages = list(folder.glob(f"{package}_*.deb"))
    if fetched.returncode or not packages:
        pytest.skip(f"Debian's package {package} cannot be fetched")
    subprocess.run(["dpkg", "-x", packages[0], folder / "root"], check=True)
    return folder / "root/usr/bin"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


class Prometheus:
    """A running Prometheus with the part of the HTTP API that a panel needs. target: the scraped port."""

    def __init__(self, port: int, target: int) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self.target = target

    def get(self, path: str, **parameters: object) -> Any:
        url = f"{self._url}/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = answer.read()
        return json.loads(text)["data"] if path.startswith("api") else text

    def now(self, expr: str) -> list[Mapping[str, Any]]:
        """Returns series with their newest value."""
        found: list[Mapping[str, Any]] = self.get("api/v1/query", query=expr)["result"]
        return found

    def since(self, expr: str, seconds: float) -> list[Mapping[str, Any]]:
        """Returns series with their values of the last `seconds`, one value per second."""
        end = time.time()
        answer = self.get("api/v1/query_range", query=expr, start=end - seconds, end=end, step="1s")
        found: list[Mapping[str, Any]] = answer["result"]
        return found


@contextmanager
def prometheus(bin_folder: Path, folder: Path) -> Iterator[Prometheus]:
    """Starts Prometheus with the repository's configuration, except for the scraped port."""
    port, target = free_port(), free_port()
    config = yaml.safe_load((DASHBOARDS / "prometheus.yml").read_text())
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{target}"]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    shutil.copy(DASHBOARDS / "rules.yml", folder)
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [
                bin_folder / "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stderr=log,
        )
    server = Prometheus(port, target)
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                server.get("-/ready")
                break
            except OSError:
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.1)
        yield server
    finally:
        process.terminate()
        process.wait()
