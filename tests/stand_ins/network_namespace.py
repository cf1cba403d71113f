"""Simulates the network of a second machine with a network namespace and a virtual cable that can be cut."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

HERE, THERE = "10.199.77.1", "10.199.77.2"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Machine:
    """`under`: words before a command that make it run on the simulated machine."""

    def __init__(self, name: str, cable: str) -> None:
        self.under: Sequence[str] = ("ip", "netns", "exec", name)
        self._cable = cable

    def pull_cable(self) -> None:
        """Drops all packets silently."""
        _ip("link", "set", self._cable, "down")

    def plug_cable(self) -> None:
        _ip("link", "set", self._cable, "up")


@contextmanager
def machine() -> Iterator[Machine]:
    """Yields the machine, or skips the test if this system does not allow network namespaces."""
    name, cable = f"harness-{os.getpid()}", f"hv{os.getpid() % 10**6}"
    far = f"{cable}x"
    if shutil.which("ip") is None:
        pytest.skip("needs the program ip")
    try:
        _ip("netns", "add", name)
    except subprocess.CalledProcessError:
        pytest.skip("this machine allows no network namespaces")
    try:
        try:
            _ip("link", "add", cable, "type", "veth", "peer", "name", far)
            _ip("link", "set", far, "netns", name)
            _ip("addr", "add", f"{HERE}/30", "dev", cable)
            _ip("link", "set", cable, "up")
            ups = ((("link", "set", one, "up")) for one in (far, "lo"))
            for words in (("addr", "add", f"{THERE}/30", "dev", far), *ups):
                _ip("-n", name, *words)
        except subprocess.CalledProcessError:
            pytest.skip("this machine allows no veth")
        yield Machine(name, cable)
    finally:
        subprocess.run(["ip", "link", "del", cable], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
