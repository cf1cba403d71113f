"""Checks a PTDaemon session: client.json and server.json, and whether messages, hashes, clocks and samples agree.

Each check yields (file, actual, expected). A malformed description may raise any exception in WRONG_CONTENT, which the
caller reports as a finding. Source of the checks: mlcommons/power-dev c4b3ad8, compliance/check.py. The docstrings say
which checks are stricter than power-dev's checks.
"""

import hashlib
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from harness.core.units import NS_PER_S, show_percent
from harness.machine.power.energy import utc_ns
from harness.machine.power.ptdaemon_log import SPL, read_samples, unusable
from harness.submit.rules.power.log import complaints
from harness.submit.rules.tree.rounds import Power
from harness.submit.rules.tree.submission import Result, read_run
from harness.submit.rules.tree.tree import LOG_LIMIT_BYTES

PHASES = {"ranging": "ranging", "testing": "run_1"}
"""Maps a power-dev phase to the folder that contains the phase's logs."""

_VERSION = re.compile(r"mlcommons/power (?:client|server) v(\d+)")
_RANGING_SHARE = 0.9
"""Samples must exist for at least this share of the seconds in the ranging run. The share is below 1, because a change
of range may lose samples.
"""

_PRODUCT = re.compile(
    r"^Time,[^,]*,Watts,([^,]*),Volts,([^,]*),Amps,([^,]*),PF,([^,]*),Mark,[^,]*\s*$", re.MULTILINE
)
_PRODUCT_SHARE = 0.1
"""Power may differ from volts x amps x power factor by at most this share; all values are means over one second."""

_SHORTER = 0.5
"""The testing run must last at least this share of the ranging run's duration. power-dev only warns about a shorter
run.
"""

Fault = tuple[str, str, str]


@dataclass(frozen=True)
class Session:
    """A PTDaemon session. client, server: contents of client.json and server.json. Paths are relative to the folder
    `performance`.
    """

    result: Result
    client: Mapping[str, Any]
    server: Mapping[str, Any]

    @property
    def rules(self) -> Power:
        return self.result.round.power

    @property
    def sides(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        yield "power/client.json", self.client
        yield "power/server.json", self.server

    @cached_property
    def name(self) -> str:
        return str(self.client["session_name"])

    def content(self, file: str) -> bytes | None:
        return self.result.tree.content(self.result.inside("performance", file), LOG_LIMIT_BYTES)

    def text(self, file: str) -> str:
        return (self.content(file) or b"").decode("utf-8", "replace")

    def window_ns(self, phase: str) -> tuple[int, int]:
        """Returns LoadGen's power_begin and power_end in a phase's run, as wall-clock times in ns."""
        run = read_run(self.result.tree, self.result.inside("performance", PHASES[phase]))
        if run is None:
            raise ValueError(f"no LoadGen log in {PHASES[phase]}")
        begin, end = (utc_ns(str(run.detail.get(f"power_{which}"))) for which in ("begin", "end"))
        return begin, end


def described(session: Session) -> Iterator[Fault]:
    """Checks that both files describe the same complete session, and that the session did not use power-dev's debug
    mode.
    """
    for file, description in session.sides:
        missing = [key for key in session.rules.fields if key not in description]
        if missing:
            yield file, f"no {', '.join(missing)}", f"all of {', '.join(session.rules.fields)}"
    client, server = session.client, session.server
    for who in ("client", "server"):
        pair = [uuid.UUID(side["uuid"][who]) for side in (client, server)]
        if pair[0] != pair[1]:
            yield "power/server.json", f"uuid of the {who}: {pair[1]}", f"{pair[0]}, the client's"
    if uuid.UUID(client["uuid"]["client"]) == uuid.UUID(client["uuid"]["server"]):
        actual = f"uuid of the client and the server: {client['uuid']['client']}"
        yield "power/client.json", actual, "a different uuid for each"
    if client["session_name"] != server["session_name"]:
        actual = f"session {server['session_name']!r:.100}"
        yield "power/server.json", actual, f"{client['session_name']!r:.100}, the client's"
    if server.get("debug", False) is not False:
        yield "power/server.json", f"debug: {server['debug']!r:.40}", "a server without MLPP_DEBUG"


def talked(session: Session) -> Iterator[Fault]:
    """Checks that client and server recorded the same messages and used the same version of power-dev."""
    file = "power/server.json"
    ours, theirs = session.client["messages"], session.server["messages"]
    if len(ours) != len(theirs):
        yield file, f"{len(theirs)} messages", f"{len(ours)}, as in client.json"
    for number, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        for key in ("cmd", "reply") if one["cmd"] != "time" else ("cmd",):
            if one[key] != other[key]:
                actual = f"message {number}, {key}: {other[key]!r:.100}"
                yield file, actual, f"{one[key]!r:.100}, as in client.json"
    versions = [_VERSION.fullmatch(str(theirs[0][key])) for key in ("cmd", "reply")]
    if None in versions or len({m[1] for m in versions if m}) != 1:
        actual = f"{theirs[0]['cmd']!r:.60}, {theirs[0]['reply']!r:.60}"
        yield file, actual, "the same version of client and server"


def sources(session: Session) -> Iterator[Fault]:
    for file, description in session.sides:
        actual = description["sources"]
        if actual not in session.rules.sources:
            newest = session.rules.sources[-1]
            names = sorted(k for k in {*newest, *actual} if newest.get(k) != actual.get(k))
            expected = "power-dev's files in a version that the round accepts"
            yield file, f"changed: {', '.join(names)!r:.200}", expected


def clocks(session: Session) -> Iterator[Fault]:
    """Checks that the clocks agree, and that LoadGen's run lies within its phase. Both clocks must be in UTC."""
    tolerance_s = session.rules.clock_tolerance_ms / 1e3
    took_ns = {}
    for phase, folder in PHASES.items():
        ours, theirs = (side["phases"][phase] for side in (session.client, session.server))
        if len(ours) != len(theirs):
            actual = f"{len(theirs)} steps of {phase}"
            yield "power/server.json", actual, f"{len(ours)}, as in client.json"
        for number, (one, other) in enumerate(zip(ours, theirs, strict=False), 1):
            apart_s = abs(one[0] - other[0])
            if not apart_s <= tolerance_s:
                actual = f"step {number} of {phase}: {apart_s:.3f} s apart"
                yield "power/server.json", actual, f"at most {tolerance_s} s"
        begin_ns, end_ns = session.window_ns(phase)
        took_ns[phase] = end_ns - begin_ns
        first_ns, last_ns = (int(ours[step][0] * NS_PER_S) for step in (1, 2))
        if not first_ns < begin_ns <= end_ns < last_ns:
            actual = f"LoadGen's run is not within the {phase} phase"
            yield f"{folder}/mlperf_log_detail.txt", actual, "a run of this session"
    if took_ns["testing"] < _SHORTER * took_ns["ranging"]:
        actual = f"{took_ns['testing'] / NS_PER_S:.0f} s of testing"
        expected = f"about {took_ns['ranging'] / NS_PER_S:.0f} s, as in the ranging run"
        yield "run_1/mlperf_log_detail.txt", actual, expected


def hashes(session: Session) -> Iterator[Fault]:
    for file in session.rules.hashed:
        content = session.content(file)
        if content is None:
            continue  # the layout check reports the missing file
        digest = hashlib.sha1(content, usedforsecurity=False).hexdigest()
        recorded = {side["results"].get(file) for _, side in session.sides} - {None}
        if recorded != {digest}:
            checksums = " and ".join(f"{x!r:.50}" for x in sorted(map(str, recorded)))
            expected = f"{checksums or 'a checksum'}, recorded by the session"
            yield file, f"SHA-1 {digest}", expected


def meter(session: Session) -> Iterator[Fault]:
    """Checks that the round accepts this PTDaemon and analyser, and that the session restored the ranges."""
    file, rules = "power/server.json", session.rules
    for analyser in session.server["ptd_config"]:
        kind = analyser["device_type"]
        if kind not in rules.meters.values():
            yield file, f"device type {kind!r:.40}", f"one of {sorted(set(rules.meters.values()))}"
        if kind in rules.two_channels and not _has_two_channels(analyser):
            yield file, f"device type {kind} with one channel", "two channels, in -c and channel"
    exchanges = [(str(m["cmd"]), str(m["reply"])) for m in session.server["ptd_messages"]]
    identity = next((reply for cmd, reply in exchanges if cmd == "Identify"), "")
    model, version = identity.split(",")[0], re.search(r"(?<=version=)(.+?)-", identity)
    if version is None or version[1] not in rules.versions:
        yield file, f"PTDaemon {identity!r:.100}", f"version {' or '.join(rules.versions)}"
    if model not in rules.meters:
        yield file, f"analyser {model!r:.60}", f"one of {', '.join(rules.meters)}"
    for fault in (*_replies(exchanges), *_unrestored(exchanges)):
        yield (file, *fault)


def _has_two_channels(analyser: Mapping[str, Any]) -> bool:
    command = list(analyser["command"])
    argument = command[command.index("-c") + 1] if "-c" in command else ""
    channels = analyser["channel"]
    return len(str(argument).split(",")) == 2 and bool(channels) and len(channels) == 2


def _replies(exchanges: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Checks PTDaemon's replies. From the third Stop onwards, PTDaemon replies that it has nothing to stop."""
    go = "Starting untimed measurement, maximum 500000 samples at 1000ms with 0 rampup samples"
    expected = {"SR,A": "Range A changed", "SR,V": "Range V changed", "Go,1000,": go}
    stops = 0
    for cmd, reply in exchanges:
        right = next((text for start, text in expected.items() if cmd.startswith(start)), None)
        if cmd.startswith("Stop"):
            right = "Error: no measurement to stop" if stops > 1 else "Stopping untimed measurement"
            stops += cmd == "Stop"
        if right is not None and reply != right:
            yield f"{cmd!r:.60}: {reply!r:.100}", right


def _unrestored(exchanges: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Checks that the last commands restore the ranges that PTDaemon reported in the third message."""
    words = exchanges[2][1].split(",")
    for letter, place, turns in (("A", 1, (3, 4)), ("V", 3, (3,))):
        first = words[place + 1] if words[place] == "0" and float(words[place + 1]) > 0 else "Auto"
        commands = [cmd for cmd, _ in exchanges if cmd.startswith(f"SR,{letter}")]
        last = [commands[turn - 1] for turn in turns]
        if f"SR,{letter},{first}" not in last:
            expected = f"SR,{letter},{first}, the range before the session"
            yield f"{' and '.join(last)!r:.100}", expected


def complained(session: Session) -> Iterator[Fault]:
    file = "power/ptd_logs.txt"
    window_ns = session.window_ns("testing")
    for complaint in complaints(session.text(file), session.name, window_ns, session.rules):
        yield (file, *complaint)


def _products(file: str, text: str) -> Iterator[Fault]:
    """Compares a channel's mean power with volts x amps x power factor, if the log contains all three."""
    stated = product = 0.0
    for words in _PRODUCT.findall(text):
        try:
            watts, volts, amps, factor = map(float, words)
        # With several channels, the log contains only the sum of the channels' watts.
        except ValueError:
            continue
        stated += watts
        product += volts * amps * abs(factor)
    if product > 0 and not abs(stated / product - 1) <= _PRODUCT_SHARE:
        actual = f"the mean of Watts is {stated / product:.3f} x the mean of Volts x Amps x PF"
        yield file, actual, f"1 within {show_percent(_PRODUCT_SHARE)}"


def samples(session: Session) -> Iterator[Fault]:
    """Checks that spl.txt contains one sample per second of the testing run, and compares the mean power.

    power-dev requires only a single sample. This check also refuses gaps and samples with 0 W (docs/power.md).
    """
    watts = {}
    for phase, folder in PHASES.items():
        begin_ns, end_ns = session.window_ns(phase)
        text = session.text(f"{folder}/{SPL}")
        inside = [
            (at, power)
            for at, power in read_samples(text, f"{session.name}_{phase}")
            if begin_ns < at < end_ns
        ]
        alive = [power for _, power in inside if power > 0]
        problem = unusable(inside, begin_ns, end_ns) if phase == "testing" else ""
        seconds = (end_ns - begin_ns) / NS_PER_S
        if phase == "ranging" and len(inside) < _RANGING_SHARE * seconds:
            problem = f"{len(inside)} samples in {seconds:.0f} s"
        if problem or not alive:
            actual = problem or f"{SPL} has no sample above 0 W during the run"
            yield f"{folder}/{SPL}", actual, "one sample per second between LoadGen's begin and end"
        yield from _products(f"{folder}/{SPL}", text)
        watts[phase] = sum(alive) / len(alive) if alive else float("nan")
    share = watts["testing"] / watts["ranging"]
    if round((share - 1) * 100, 2) <= round((session.rules.least_share - 1) * 100, 2):
        actual = f"{watts['testing']:.3f} W, {show_percent(share, 1)} of the ranging run"
        expected = f"more than {show_percent(session.rules.least_share)}: the same load"
        yield f"run_1/{SPL}", actual, expected
