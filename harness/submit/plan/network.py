"""Checks runs on remote servers against the rules of the Network division. Servers must be on other machines, and each
server must have a unique name.

Source: mlcommons/inference_policies ac93e89, inference_rules.adoc, "Network Division". harness/core/config/problems.py
checks the limits for the query dispatch library (QDL) together with the options of every run.
"""

import ipaddress
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psutil

from harness.core.config.address import Address, parse_address
from harness.core.config.run_config import RunConfig
from harness.loadgen.logs import NETWORK_SUT

NETWORK = "network"


def urls_of(options: Mapping[str, Any]) -> Sequence[str]:
    """Returns the server URLs in a request's options."""
    urls = options.get("url") or ()
    return [str(url) for url in urls] if isinstance(urls, list | tuple) else [str(urls)]


def urls_here(options: Mapping[str, Any]) -> list[str]:
    """Returns the URLs whose text names this machine. Skips texts that are not URLs."""
    here = []
    for url in urls_of(options):
        try:
            address = parse_address(url)
        except ValueError:  # the check of the run's options reports this error
            continue
        if _is_here(address):
            here.append(url)
    return here


def _is_here(address: Address) -> bool:
    host = address.host.lower()
    if address.unix or host in ("localhost", socket.gethostname().lower()):
        return True
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:  # the run itself resolves the name and checks the server's address
        return host.endswith(".localhost")
    cards = psutil.net_if_addrs().values()
    own = {card.address.partition("%")[0] for addresses in cards for card in addresses}
    return ip.is_loopback or str(ip) in own


def option_problems(division: str, options: Mapping[str, Any], *, rehearsal: bool) -> Iterator[str]:
    """Yields the problems with a request for `division`, without connecting to a server."""
    if division != NETWORK:
        if options.get("qdl") and division == "closed":
            yield (
                "--qdl is not for the closed division, in which LoadGen runs on the system: drop it, or use "
                "--division network"
            )
        return
    if not urls_of(options):
        yield (
            "--division network measures servers on other machines: pass their URLs, e.g. --backend kserve "
            "--url http://10.0.0.2:8000"
        )
    for url in urls_here(options) if not rehearsal else ():
        yield (
            f"--url {url} is this machine, but in the Network division LoadGen and the servers run on separate "
            "machines: pass a different URL, or add --rehearsal"
        )


def notes(division: str, options: Mapping[str, Any], *, rehearsal: bool) -> Iterator[str]:
    """Yields a note for each URL that only a rehearsal may use."""
    if division == NETWORK and rehearsal:
        for url in urls_here(options):
            yield f"--url {url} is this machine: a rehearsal may use it, a submission may not"


def forbidden(config: RunConfig, client: Mapping[str, Any] | None) -> Iterator[str]:
    """Yields the reasons why a run against servers cannot be submitted. client: section `client` in result.json."""
    if not config.url or client is None:
        return
    for peer in client["peers"]:
        if config.qdl and peer["local"]:
            yield (
                f"its server {peer['url']} is on LoadGen's machine, but the Network division requires separate machines"
            )
        elif not config.qdl and not peer["local"]:
            yield (
                f"its server {peer['url']} is on another machine, which only the Network division and the open "
                "division with --qdl allow"
            )
    if config.qdl and not client["sut_name"].startswith(NETWORK_SUT):
        yield f"LoadGen did not get the servers' names at the end of the run: {client['sut_name']}"
