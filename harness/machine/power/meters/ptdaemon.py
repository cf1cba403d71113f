"""Parses and checks `--meter ptdaemon`, for runs that MLPerf Power's PTDaemon measures.

The harness does not sample this meter. MLCommons' client and server, from the user's checkout of power-dev, start the
run and read the analyser at the wall socket (harness/run/supervisor/ptdaemon_session.py).
"""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

from harness.errors import ConfigError, one_line

NAME = "ptdaemon"
USAGE = "--meter ptdaemon=POWER_DEV,director=HOST[:PORT],ntp=HOST"
DEFAULT_PORT = 4950
"""Default port of power-dev's server (ptd_client_server/lib/common.py)."""

_HOST = re.compile(r"(?P<host>[A-Za-z0-9][\w.-]*)(?::(?P<port>\d{1,5}))?", re.ASCII)


class PtdaemonMeter:
    """argument: `POWER_DEV,director=HOST[:PORT],ntp=HOST`.

    power_dev: the checkout. host, port: address of power-dev's server on the director, which is the machine that runs
    PTDaemon. ntp: the NTP server against which the client checks the clocks.
    """

    def __init__(self, argument: str) -> None:
        checkout, *words = [word.strip() for word in argument.split(",")]
        hosts = dict(word.split("=", 1) for word in words if "=" in word)
        if not checkout or len(words) != 2 or set(hosts) != {"director", "ntp"}:
            raise ConfigError(
                f"meter {NAME!r}: it needs a checkout of MLCommons' power-dev, a director with "
                f"PTDaemon and an NTP server: {USAGE}"
            )
        director, ntp = _HOST.fullmatch(hosts["director"]), _HOST.fullmatch(hosts["ntp"])
        port = int((director and director["port"]) or DEFAULT_PORT)
        if director is None or not 0 < port <= 65_535:
            raise ConfigError(
                f"meter {NAME!r}: director={hosts['director']}: write HOST or HOST:PORT, e.g. "
                f"192.168.1.2:{DEFAULT_PORT}"
            )
        if ntp is None or ntp["port"]:
            raise ConfigError(f"meter {NAME!r}: ntp={hosts['ntp']}: write HOST, without a port")
        self.power_dev = Path(checkout).expanduser().absolute()
        self.host, self.port, self.ntp = director["host"], port, ntp["host"]

    @property
    def argument(self) -> str:
        """The argument with an absolute path, so that it is valid in any working directory."""
        return f"{self.power_dev},director={self.host}:{self.port},ntp={self.ntp}"

    @property
    def client(self) -> Path:
        return self.power_dev / "ptd_client_server" / "client.py"

    @property
    def checker(self) -> Path:
        return self.power_dev / "compliance" / "check.py"

    def problems(self) -> Iterator[str]:
        """Yields problems with the checkout, because power-dev's checker refuses results from changed sources."""
        for needed in (self.client, self.checker):
            if not needed.is_file():
                yield (
                    f"meter {NAME!r}: {needed} does not exist: name a checkout of "
                    "github.com/mlcommons/power-dev"
                )
                return
        path = self.checker.with_name("sources_checksums.json")
        try:
            allowed = json.loads(path.read_text(encoding="utf-8"))
            changed = _changed(self.client.parent, [dict(sources) for sources in allowed])
        except (OSError, ValueError, TypeError) as e:
            yield f"meter {NAME!r}: {path} cannot be read ({one_line(e)}): take a fresh checkout"
            return
        if changed:
            yield (
                f"meter {NAME!r}: {changed[0]} in {self.client.parent} differs from {path.name}, and "
                "the checker refuses results from changed sources: take a fresh checkout"
            )


def _changed(folder: Path, allowed: list[dict[str, str]]) -> list[str]:
    """Returns the sources that differ from the most similar entry in `allowed`, or [] if `folder` matches an entry."""
    digests = {
        path.relative_to(folder).as_posix(): hashlib.sha1(
            path.read_bytes(), usedforsecurity=False
        ).hexdigest()
        for path in folder.rglob("*.py")
    }
    differences = [
        sorted(name for name in {*digests, *sources} if digests.get(name) != sources.get(name))
        for sources in allowed
    ]
    return min(differences, key=len, default=sorted(digests))
