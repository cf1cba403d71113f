"""A fictitious PTDaemon session next to a run in a tree, and ways to break the session. The session satisfies every
rule of power-dev's checker. No power was measured, and the session is written only to a temporary folder.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from harness.loadgen.logs import DETAIL, SUMMARY
from harness.results.power import OFFICIAL
from harness.submit.plan.matrix import PERFORMANCE, plan
from harness.submit.plan.request import Request
from tests.builders.submission.trees import (
    CLOSED,
    ROUND,
    Mutation,
    another_run,
    changed_log,
    write,
    write_summary,
)
from tests.stand_ins.fake_submission_runs import ANSWERS, make_runs
from tests.stand_ins.fake_submission_runs import CLOSED as REQUEST

METER = "ptdaemon=/opt/power-dev,director=192.168.1.2:4950,ntp=192.168.1.1"
POWERED = replace(REQUEST, options={**REQUEST.options, "meter": [METER]})
TOLD = ANSWERS | {
    "power_analyzer": "Firmware F1.04, calibrated 2026-03-01.",
    "power_settings": "Governor performance, fans automatic.",
    "system_power_capacity": "1200",
}
PLACE = f"{CLOSED}/Server/performance"
SERVER_JSON, CLIENT_JSON = f"{PLACE}/power/server.json", f"{PLACE}/power/client.json"
PTD_LOG = f"{PLACE}/power/ptd_logs.txt"
SESSION = "2026-11-21_03-40-11_made_up"
EARLIER = timedelta(seconds=700)
"""Time from the start of the ranging run to the start of the testing run; each run takes 601 s."""

FORM = "%m-%d-%Y %H:%M:%S.%f"
GO = "Starting untimed measurement, maximum 500000 samples at 1000ms with 0 rampup samples"
TALK = [
    ("Hello", "Hello, PTDaemon here!"),
    ("Identify", "YokogawaWT310E,made up,version=1.11.1-0"),
    ("RR", "Ranges,1,-1.000000,1,-1.000000"),
    ("SR,V,Auto", "Range V changed"),
    ("SR,A,Auto", "Range A changed"),
    (f"Go,1000,0,{SESSION}_ranging", GO),
    ("Stop", "Stopping untimed measurement"),
    ("SR,V,230.0", "Range V changed"),
    ("SR,A,0.33", "Range A changed"),
    (f"Go,1000,0,{SESSION}_testing", GO),
    ("Stop", "Stopping untimed measurement"),
    ("Stop", "Error: no measurement to stop"),
    ("SR,V,Auto", "Range V changed"),
    ("SR,A,Auto", "Range A changed"),
    ("SR,A,Auto", "Range A changed"),
]


def stamp(at: datetime) -> str:
    return at.strftime(FORM)[:-3]


def window(root: Path, folder: str = "run_1") -> tuple[datetime, datetime]:
    text = (root / PLACE / folder / DETAIL).read_text()
    found = [re.search(rf'"power_{end}", "value": "([^"]+)"', text) for end in ("begin", "end")]
    begin, end = (datetime.strptime(m[1], FORM).replace(tzinfo=UTC) for m in found if m)
    return begin, end


def spl(begin: datetime, end: datetime, mark: str, watts: float) -> str:
    lines = []
    at = begin - timedelta(seconds=5)
    while at < end + timedelta(seconds=5):
        lines.append(
            f"Time,{stamp(at)},Watts,{watts:.6f},Volts,230.000000,Amps,{watts / 207:.6f},PF,0.900000,Mark,{mark}"
        )
        at += timedelta(seconds=1)
    return "\n".join(lines) + "\n"


def session(root: Path) -> None:
    """Writes the session next to the run in PLACE."""
    begin, end = window(root)
    times = {"power_begin": stamp(begin - EARLIER), "power_end": stamp(end - EARLIER)}
    run = (root / PLACE / "run_1" / DETAIL).read_text()
    ranging = changed_log(another_run(run, f"ranging before {begin}"), times)
    write(root / PLACE / "ranging" / DETAIL, ranging)
    write_summary(root / PLACE / "ranging", (root / PLACE / "run_1" / SUMMARY).read_text())
    for mode, folder, watts in (("ranging", "ranging", 50.0), ("testing", "run_1", 49.5)):
        text = spl(*window(root, folder), f"{SESSION}_{mode}", watts)
        write(root / PLACE / folder / "spl.txt", text)
    go = stamp(begin - EARLIER - timedelta(seconds=8))
    done, before = stamp(end - EARLIER + timedelta(seconds=8)), stamp(begin - EARLIER * 2)
    in_ranging = stamp(begin - EARLIER)
    write(
        root / PTD_LOG,
        "Analyzer 1\n"
        f"{before}: Uncertainty checking for YokogawaWT310E is activated\n"
        f"{go}: Go with mark '{SESSION}_ranging'\n"
        f"{in_ranging}: ERROR: Current appears to be too high for set range\n"
        f"{done}: Completed test\n"
        f"{stamp(begin)}: Go with mark '{SESSION}_testing'\n"
        f"{stamp(end)}: ERROR: USB.\n",
    )
    for name in ("client.log", "server.log"):
        write(root / PLACE / "power" / name, "made up\n")
    write(root / CLIENT_JSON, json.dumps(_description(root, 0.0)))
    more = {
        "ptd_messages": [{"cmd": cmd, "reply": reply} for cmd, reply in TALK],
        "ptd_config": [{"device_type": 49, "command": ["ptd", "-p", "8888"], "channel": None}],
    }
    write(root / SERVER_JSON, json.dumps(_description(root, 0.1) | more))
    for name in ("analyzer_table.md", "power_settings.md"):
        write(root / CLOSED / "Server" / name, "made up\n")


def make_power_runs(request: Request, work: Path, **changed: Any) -> None:
    """Works like `make_runs`, but adds `--meter ptdaemon` to each performance run."""
    power = {"readings": [{"source": "ptdaemon"}], "missing": [], "note": OFFICIAL}
    make_runs(request, work, **{"power": power, "power_reason": None, **changed})
    for row in plan(request, work):
        if row.kind == PERFORMANCE:
            assert row.folder is not None
            scratch = work / "scratch"
            shutil.copytree(row.folder / "performance", scratch / PLACE)
            session(scratch)
            shutil.rmtree(row.folder / "performance")
            (scratch / PLACE).rename(row.folder / "performance")
            shutil.rmtree(scratch)
            write(row.folder / "performance/run_1/ptd_out.txt", "Analyzer 1:\n")
            for name in ("power-client.log", "power-check.log", "power.csv", "ranging/result.json"):
                write(row.folder / name, "never packed")


def _description(root: Path, ahead_s: float) -> dict[str, Any]:
    begin, end = window(root)
    steps = [begin - timedelta(seconds=12), begin - timedelta(seconds=2),
             end + timedelta(seconds=2), end + timedelta(seconds=12)]  # fmt: skip
    phases = {
        mode: [[(at - early).timestamp() + ahead_s, 1.0] for at in steps]
        for mode, early in (("ranging", EARLIER), ("testing", timedelta(0)))
    }
    place = root / PLACE
    hashed = {
        name: hashlib.sha1((place / name).read_bytes()).hexdigest() for name in ROUND.power.hashed
    }
    talk = [
        ("mlcommons/power client v3", "mlcommons/power server v3"),
        ("time", f"{begin.timestamp() + ahead_s}"),
        ("new,made_up,uuid", f"OK {SESSION},uuid"),
    ]
    return {
        "version": "1.0",
        "timezone": 0,
        "modules": {},
        "sources": dict(ROUND.power.sources[0]),
        "messages": [{"cmd": cmd, "reply": reply} for cmd, reply in talk],
        "uuid": {"client": "0f" * 16, "server": "1e" * 16},
        "session_name": SESSION,
        "results": hashed,
        "phases": phases,
    }


def powered(*mutations: Mutation) -> Mutation:
    """Writes the session, inserts the faults, and hashes the files again."""

    def mutate(root: Path) -> None:
        session(root)
        for mutation in mutations:
            mutation(root)

    return mutate


def hashed_anew(*mutations: Mutation) -> Mutation:
    """Inserts faults that the checksums do not reveal, because the checksums are computed afterwards."""

    def mutate(root: Path) -> None:
        powered(*mutations)(root)
        for path in (CLIENT_JSON, SERVER_JSON):
            content = json.loads((root / path).read_text())
            for name in content["results"]:
                if (root / PLACE / name).is_file():
                    data = (root / PLACE / name).read_bytes()
                    content["results"][name] = hashlib.sha1(data).hexdigest()
            write(root / path, json.dumps(content))

    return mutate


def said(path: str, change: Callable[[Any], object]) -> Mutation:
    """`change` modifies a description in place."""

    def mutate(root: Path) -> None:
        content = json.loads((root / path).read_text())
        change(content)
        write(root / path, json.dumps(content))

    return mutate


def both(change: Callable[[Any], object]) -> Mutation:
    def mutate(root: Path) -> None:
        for path in (CLIENT_JSON, SERVER_JSON):
            said(path, change)(root)

    return mutate


def ptd(place: int, cmd: str = "", reply: str = "") -> Mutation:
    """Changes a command or reply in PTDaemon's messages."""

    def change(content: Any) -> None:
        message = content["ptd_messages"][place]
        message["cmd"], message["reply"] = cmd or message["cmd"], reply or message["reply"]

    return said(SERVER_JSON, change)


def logged(seconds: float, text: str) -> Mutation:
    """Adds a line to PTDaemon's log, `seconds` after the start of the testing run."""

    def mutate(root: Path) -> None:
        at = stamp(window(root)[0] + timedelta(seconds=seconds))
        write(root / PTD_LOG, (root / PTD_LOG).read_text() + f"{at}: {text}\n")

    return mutate


def lines(path: str, change: Callable[[list[str]], list[str]]) -> Mutation:
    def mutate(root: Path) -> None:
        write(root / path, "\n".join(change((root / path).read_text().splitlines())) + "\n")

    return mutate


def text(path: str, old: str, new: str) -> Mutation:
    def mutate(root: Path) -> None:
        before = (root / path).read_text()
        assert old in before, f"{path}: no {old}"
        write(root / path, before.replace(old, new))

    return mutate


def drop_key(key: str) -> Callable[[Any], object]:
    return lambda content: content.pop(key)


def put(keys: str, value: Any) -> Callable[[Any], object]:
    """keys: a path such as 'phases/testing/0/0'. value: the new value, or a function of the old value."""

    def change(content: Any) -> None:
        *path, last = (int(k) if k.isdecimal() else k for k in keys.split("/"))
        for key in path:
            content = content[key]
        content[last] = value(content[last]) if callable(value) else value

    return change
