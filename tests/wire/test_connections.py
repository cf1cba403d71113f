"""A connection uses the first address that accepts it, and waits for a free local port if necessary."""

import errno
import socket
from collections.abc import Callable, Mapping

import pytest

from harness.core.config.address import parse_address
from harness.wire import connections
from harness.wire.connections import Server, connect

SERVER = Server(address=parse_address("http://localhost:8000"))
OPENED = object()
V4, V6 = socket.AF_INET, socket.AF_INET6


def connecting(
    monkeypatch: pytest.MonkeyPatch, outcomes: Mapping[int, list[int]]
) -> Callable[[], object]:
    """outcomes: the errno of each attempt for an address family; 0 means success. The last outcome is repeated."""

    def open_(_server: Server, at: tuple[int, object], _timeout_s: float, _number: int) -> object:
        left = outcomes[at[0]]
        number = left.pop(0) if len(left) > 1 else left[0]
        if number:
            raise OSError(number, "no")
        return OPENED

    monkeypatch.setattr(connections, "_connect", open_)
    monkeypatch.setattr(connections, "_resolve", lambda _: [(family, "") for family in outcomes])
    return lambda: connect(SERVER, 1.0)


def test_a_port_that_becomes_free_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = errno.EADDRNOTAVAIL
    assert connecting(monkeypatch, {V4: [busy, busy, 0]})() is OPENED


@pytest.mark.parametrize(
    ("outcomes", "told"),
    [
        # A machine without IPv6 refuses an IPv6 address with the same errno as a machine without a free port.
        ({V4: [errno.ECONNREFUSED], V6: [errno.EADDRNOTAVAIL]}, errno.ECONNREFUSED),
        ({V6: [errno.EADDRNOTAVAIL], V4: [errno.ECONNREFUSED]}, errno.ECONNREFUSED),
        ({V4: [errno.EADDRNOTAVAIL], V6: [errno.ECONNREFUSED]}, errno.EADDRNOTAVAIL),
        ({V4: [errno.EADDRNOTAVAIL]}, errno.EADDRNOTAVAIL),
        ({V6: [errno.EADDRNOTAVAIL]}, errno.EADDRNOTAVAIL),
    ],
)
def test_reported_error_is_that_of_a_usable_address(
    outcomes: Mapping[int, list[int]], told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_PORT_WAIT_S", 0.2)
    with pytest.raises(OSError, match="no") as raised:
        connecting(monkeypatch, outcomes)()
    assert raised.value.errno == told


def test_the_first_address_that_takes_the_connection_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert connecting(monkeypatch, {V6: [errno.ECONNREFUSED], V4: [0]})() is OPENED
