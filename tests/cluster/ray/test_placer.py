"""The process that reserves nodes for a run detects the end of the run (without Ray)."""

import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, NoReturn

import pytest

from harness.cluster.ray import placer
from harness.cluster.ray.client import AskerGone
from harness.core.child import Channel
from tests.stand_ins.open_files import many_open_files


def test_the_end_of_a_run_with_a_thousand_connections_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bug: the process used `select`, which accepts only descriptors below 1024."""
    seen: list[bool] = []

    @contextmanager
    def connected(_nodes: str) -> Iterator[None]:
        yield

    def placed(_ray: Any, _count: int, *, is_gone: Callable[[], bool], gpus: bool) -> NoReturn:
        assert not gpus
        seen.append(is_gone())
        ours.close()
        seen.append(is_gone())
        raise AskerGone

    monkeypatch.setattr(placer, "connected", connected)
    monkeypatch.setattr(placer, "placed", placed)
    with many_open_files():
        ours, theirs = map(Channel, socket.socketpair())
        assert theirs.fileno() > 1024
        with closing(theirs):
            ours.send("setup", nodes="ray://a", count=1, config={}, cwd="/", transport=None)
            placer._place(theirs)
    assert seen == [False, True]
