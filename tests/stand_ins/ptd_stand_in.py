"""Stand-ins for PTDaemon and an NTP server, which power-dev's client and server use.

python tests/stand_ins/ptd_stand_in.py -l LOG -p PORT [FLAG] DEVICE_TYPE DEVICE_PORT

The stand-in speaks the socket protocol of SPEC PTDaemon (one command per line, as power-dev's server sends it) and
identifies itself as a stand-in, so that power-dev's checker refuses its fictitious "measurements".
"""

import argparse
import os
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

WATTS, VOLTS, AMPS = 50.0, 230.0, 0.3
NTP_ADDRESS = "127.0.0.123"
"""A loopback address, because power-dev can use only port 123."""

_NTP_EPOCH_S = 2_208_988_800  # the number of seconds from 1900 to 1970
_NO_MEASUREMENT = "Error: no measurement to stop"


class StandIn:
    """Reports one sample per second, WATTS plus a little more with each sample."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._unread: list[str] = []
        self._stop: threading.Event | None = None
        self._thread = threading.Thread()

    def answer(self, command: str) -> str:
        word, *arguments = command.split(",")
        if word == "RL":
            return self._read() if not arguments else "Error: Invalid number of parameters"
        if word == "SR":
            return f"Range {arguments[0]} changed"
        answers: dict[str, Callable[[], str]] = {
            "Hello": lambda: "Hello, PTDaemon here!",
            "Identify": lambda: "StandIn,no meter,version=0.0.0-test",
            "RR": lambda: "Ranges,1,-1.000000,1,-1.000000",
            "Go": lambda: self._go(*arguments),
            "Stop": self._end,
            "Watts": lambda: f"Watts,{WATTS}",
            "Uncertainty": lambda: "Uncertainty,unknown",
        }
        return answers.get(word, lambda: f"Error: Unknown command {word}")()

    def _go(self, period_ms: str, _ramp_up: str, mark: str) -> str:
        self._stop, self._unread = threading.Event(), []
        sampling = (self._stop, int(period_ms) / 1e3, mark)
        self._thread = threading.Thread(target=self._sample, args=sampling, daemon=True)
        self._thread.start()
        return (
            f"Starting untimed measurement, maximum 500000 samples at {period_ms}ms with 0 rampup "
            "samples"
        )

    def _sample(self, stop: threading.Event, period_s: float, mark: str) -> None:
        number = 0
        with self._log.open("a") as log:
            while not stop.wait(period_s):
                at = datetime.now(UTC).strftime("%m-%d-%Y %H:%M:%S.%f")[:-3]
                watts = WATTS + number / 100
                number += 1
                line = f"Time,{at},Watts,{watts:.6f},Volts,{VOLTS:.6f},Amps,{AMPS:.6f},PF,0.900000"
                self._unread.append(line)
                log.write(f"{line},Mark,{mark}\n")
                log.flush()

    def _end(self) -> str:
        if self._stop is None:
            return _NO_MEASUREMENT
        self._stop.set()
        self._thread.join()
        self._stop = None
        return "Stopping untimed measurement"

    def _read(self) -> str:
        unread, self._unread = self._unread, []
        return "\r\n".join([f"Last {len(unread)} samples", *unread])


class _Daemon(socketserver.TCPServer):
    # The port must be reusable, because power-dev starts the daemon repeatedly.
    allow_reuse_address = True

    def __init__(self, port: int, meter: StandIn) -> None:
        super().__init__(("127.0.0.1", port), _Lines)
        self.meter = meter
        self._parent = os.getppid()

    def service_actions(self) -> None:
        """Checks every half second whether the server that started this process is still alive, because this process
        would otherwise remain.
        """
        if os.getppid() != self._parent:
            raise SystemExit(1)


class _Lines(socketserver.StreamRequestHandler):
    server: _Daemon

    def handle(self) -> None:
        for line in self.rfile:
            answer = self.server.meter.answer(line.decode().strip())
            self.wfile.write(f"{answer}\r\n".encode())


@contextmanager
def ntp_server(address: str = NTP_ADDRESS, offset_s: float = 0.0) -> Iterator[str]:
    """Sends this machine's time, `offset_s` ahead. Raises an OSError if port 123 is not available."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address, 123))
        server.settimeout(0.1)
        stop = threading.Event()
        thread = threading.Thread(target=_tell_time, args=(server, stop, offset_s))
        thread.start()
        try:
            yield address
        finally:
            stop.set()
            thread.join()


def _tell_time(server: socket.socket, stop: threading.Event, offset_s: float) -> None:
    """Follows RFC 5905: the client's transmit time is returned as the origin; the receive and transmit times are ours."""
    while not stop.is_set():
        try:
            packet, client = server.recvfrom(256)
        except TimeoutError:
            continue
        now = int((time.time() + offset_s + _NTP_EPOCH_S) * 2**32)
        head = struct.pack("!BBBbII4s", 0 << 6 | 4 << 3 | 4, 1, 0, -20, 0, 0, b"LOCL")
        server.sendto(head + struct.pack("!Q8sQQ", now, packet[40:48], now, now), client)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-l", dest="log", type=Path, required=True)
    parser.add_argument("-p", dest="port", type=int, required=True)
    options, _device = parser.parse_known_args()
    with _Daemon(options.port, StandIn(options.log)) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
