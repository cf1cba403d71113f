"""Writes and reads the files from which a run's result can be derived again.

Files for each LoadGen run, in addition to LoadGen's logs:

run.json          start of the job, load plan, last message of the measured process, clock
completions.npz   one row per sample
before.npz        one row per sample before the last hold, with --arrivals ramp:RATE
cancelled.npz     one row per request that the client cancelled, with --cancel
samples.npz       model and sound of each sample, if there are several; written by the measured process
probes.npz        one row per probe, with --probe-rate; written by the measured process

Files for the whole job:

findings.json     the request, and readings that cannot be repeated: noise, why the run was stopped
power.csv         readings of the meters of --meter
host.csv          state of the machine, once per second of the performance run
server.csv        metrics of the servers, once per second of the performance run
"""

import dataclasses
import hashlib
import json
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from harness.core.clock import ClockWatch
from harness.core.codes import Reason
from harness.core.config.run_config import to_plain
from harness.core.files import parse_json, reading, write_json
from harness.core.shown.private import hidden
from harness.errors import ConfigError
from harness.loadgen.logs import (
    DETAIL,
    PROBE_ROWS,
    RAMP_ROWS,
    SAMPLE_FACTS,
    DetailLog,
    digests,
    read_detail,
)
from harness.loadgen.plan import Calibration, InstanceGroup, Loaded, LoadPlan
from harness.machine.host_log import HOST_CSV, HostLog
from harness.machine.power.energy import POWER_CSV, PowerLog
from harness.machine.power.ptdaemon_log import PtdaemonLog
from harness.results import run_folder
from harness.results.evidence.evidence import Evidence
from harness.results.evidence.own_log import detail_log
from harness.results.evidence.stages import Completions
from harness.results.findings import Findings
from harness.results.seal.digests import missing
from harness.results.tokens.facts import models_of
from harness.types import Array

COMPLETIONS = "completions.npz"
CANCELLED = "cancelled.npz"
BEFORE = "before.npz"
FINDINGS = "findings.json"
SERVER_CSV = "server.csv"
_EVENTS = ("scheduled_ns", "completed_ns")
"""Columns that every journal contains, from which `measured` computes its digest."""

_PLAIN = ("started", "dataset", "noise", "ceiling_per_s", "load")
"""Fields of Findings that are copied to findings.json unchanged."""


def write(outdir: Path, run: Evidence, started: str) -> None:
    """Writes one LoadGen run's files. started: start of the job, which shows which files belong together."""
    if run.done is not None:
        columns: dict[str, Any] = dict(run.done.columns)
        np.savez(outdir / COMPLETIONS, **columns)
        for name, part in ((CANCELLED, run.done.cancelled), (BEFORE, run.done.before)):
            if part is not None:
                left_out: dict[str, Any] = dict(part)
                np.savez(outdir / name, **left_out)
    write_json(
        outdir / run_folder.RUN,
        {
            "started": started,
            "plan": run.plan.to_json(),
            "ended": hidden(run.ended),
            "failure": hidden(run.failure._asdict()) if run.failure else None,
            "issued": run.done.issued if run.done is not None else 0,
            "clock": run.clock.to_json(),
            "looks": run.looks,
            "load_hosts": hidden(run.load_hosts),
            **({"witness": hidden(run.witness)} if run.witness is not None else {}),
        },
    )


def read(outdir: Path, loadgen_scenario: str) -> Evidence | None:
    """Reads one LoadGen run's files. Returns None if the folder contains no run. Raises a ConfigError that names a file
    if a run cannot have written the file's content.
    """
    path = outdir / run_folder.RUN
    if not path.is_file():
        return None
    with _reading(path):
        content = parse_json(path.read_text(encoding="utf-8"))
        failure = Reason.stored(content["failure"]) if content["failure"] else None
        plan = LoadPlan.from_json(content["plan"])
        done = _read_completions(outdir, content["issued"])
        return Evidence(
            plan=plan,
            loadgen_scenario=loadgen_scenario,
            log=log_of(plan, done, failure, loadgen_scenario, outdir),
            done=done,
            ended=content["ended"],
            failure=failure,
            clock=ClockWatch.from_json(content["clock"]),
            looks=[(int(at), int(answered)) for at, answered in content["looks"]],
            changed_files=changed_files(content["ended"], outdir),
            load_hosts=content.get("load_hosts", ()),
            probes=read_probes(outdir),
            ramp=read_ramp(outdir),
            models=models_of(read_facts(outdir)),
            witness=content.get("witness"),
        )


def changed_files(ended: Mapping[str, Any] | None, outdir: Path) -> list[str]:
    """Returns LoadGen's files that do not match the digests in the measured process's last message."""
    if ended is None:
        return []
    written, now = ended["files"], digests(outdir)
    return [name for name in sorted({*written, *now}) if written.get(name) != now.get(name)]


def log_of(
    plan: LoadPlan,
    done: Completions | None,
    failure: Reason | None,
    loadgen_scenario: str,
    outdir: Path,
) -> DetailLog:
    """Returns LoadGen's detail log. With the harness scheduler, derives the log from the journal; for a failed run,
    returns an empty log.
    """
    if failure is not None:
        return DetailLog()
    if plan.harness_scheduled:
        return detail_log(plan, done, loadgen_scenario)
    return read_detail(outdir / DETAIL)


def _read_completions(outdir: Path, issued: int) -> Completions | None:
    columns = _read_columns(outdir / COMPLETIONS)
    if columns is None:
        return None
    cancelled, before = (_read_columns(outdir / name) for name in (CANCELLED, BEFORE))
    order = columns["order"]
    left_out = [part["order"] for part in (cancelled, before) if part is not None]
    if left_out:
        order = np.sort(np.concatenate([order, *left_out]))
    once = len(order) == issued and bool((order == np.arange(len(order))).all())
    return Completions(columns, issued, once, cancelled, before)


def read_probes(outdir: Path) -> dict[str, Array] | None:
    """Returns the columns of the probes; None if the run used no probes or was cut off."""
    return _read_columns(outdir / PROBE_ROWS)


def read_ramp(outdir: Path) -> dict[str, Array] | None:
    """Returns the steps of a ramp; None if the run used no ramp or was cut off."""
    return _read_columns(outdir / RAMP_ROWS)


def read_facts(outdir: Path) -> dict[str, Array] | None:
    """Returns the plug-in's facts about each sample; None without facts."""
    return _read_columns(outdir / SAMPLE_FACTS)


def _read_columns(path: Path) -> dict[str, Array] | None:
    """Returns all columns in a file; None if the file does not exist."""
    if not path.is_file():
        return None
    with (
        reading(f"{path} cannot be read", also=(OSError,)),
        # This function opens the file, because numpy leaves a file open if the file is not an archive.
        path.open("rb") as opened,
    ):
        return _columns(path, opened)


def _columns(path: Path, opened: BinaryIO, names: Sequence[str] = ()) -> dict[str, Array]:
    """Reads the named columns; if `names` is empty, reads all columns."""
    _check_sizes(path)
    with np.load(opened, allow_pickle=False) as file:
        return {name: file[name] for name in names or file.files}


def measured(folder: Path, result: Mapping[str, Any]) -> str:
    """Returns a digest of the times between all of a run's events, in ns. Two different runs never share a digest.

    A copy keeps the run's digest even if the folder, dates or private names differ. result: the content of result.json,
    which is used if the run has no journal.
    """
    for part in run_folder.FOLDERS.values():
        path = folder / part / COMPLETIONS
        if not path.is_file():
            continue
        with reading(f"{path} cannot be read", also=(OSError,)), path.open("rb") as opened:
            stamps_ns = np.concatenate([*_columns(path, opened, _EVENTS).values()])
        if len(stamps_ns):
            return hashlib.sha256((stamps_ns - stamps_ns.min()).tobytes()).hexdigest()
    return json.dumps([result.get(key) for key in ("started", "latency_ns", "client")])


def _check_sizes(path: Path) -> None:
    """Raises ValueError if a column's header declares more or less data than the file contains, or if the column is
    compressed.
    """
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
                raise ValueError(f"{member.filename} is compressed or encrypted")
            with archive.open(member) as file:
                np.lib.format.read_magic(file)
                shape, _, dtype = np.lib.format.read_array_header_1_0(file)
                held = file.tell() + prod(shape) * dtype.itemsize
            if not held == member.file_size <= path.stat().st_size:
                raise ValueError(
                    f"{member.filename} does not have the length that its header declares"
                )


def write_findings(folder: Path, findings: Findings) -> None:
    absent = hidden(findings.no_server_metrics)
    write_json(
        folder / FINDINGS,
        {
            "asked": to_plain(findings.config),
            **{name: getattr(findings, name) for name in _PLAIN},
            # Only runs with servers write this key.
            **({"no_server_metrics": absent} if absent else {}),
            **({"scored_again": findings.scored_again} if findings.scored_again else {}),
            "code": findings.code,
            "spec": findings.spec._asdict(),
            "power": hidden(findings.power.to_json()) if findings.power else None,
            "ptdaemon": findings.ptdaemon.to_json() if findings.ptdaemon else None,
            "loaded": hidden(dataclasses.asdict(findings.loaded)) if findings.loaded else None,
            "calibration": dataclasses.asdict(findings.calibration)
            if findings.calibration
            else None,
            "stopped": hidden(findings.stopped._asdict()) if findings.stopped else None,
            "scored": any(findings.scoring),
        },
    )


def read_findings(folder: Path) -> tuple[dict[str, Any], bool]:
    """Returns two values: the fields of Findings by name, including `dataset` and `spec`, and whether the run has a
    score.
    """
    path = folder / FINDINGS
    if not path.is_file():
        raise ConfigError(missing(folder, FINDINGS, "another version of the harness wrote the run"))
    with _reading(path):
        content = parse_json(path.read_text(encoding="utf-8"))
        loaded, calibration, stopped = (content[k] for k in ("loaded", "calibration", "stopped"))
        values = {
            **{name: content[name] for name in _PLAIN},
            "no_server_metrics": content.get("no_server_metrics", ""),
            "scored_again": str(content.get("scored_again", "")),
            "environment": {"code": content["code"]} if content.get("code") else {},
            "spec": InstanceGroup.from_json(content["spec"]),
            "power": _read_power(content["power"], folder),
            "ptdaemon": (
                PtdaemonLog.from_files(content["ptdaemon"], folder / "performance")
                if content["ptdaemon"]
                else None
            ),
            "host": _read_log(folder / HOST_CSV),
            "server_metrics": _read_log(folder / SERVER_CSV),
            "loaded": Loaded.from_json(loaded) if loaded else None,
            "calibration": Calibration(**calibration) if calibration else None,
            "stopped": Reason.stored(stopped) if stopped else None,
        }
        return values, bool(content["scored"])


class Samples(NamedTuple):
    """Readings taken during the performance run; None for a kind that was not read."""

    host: HostLog | None = None
    power: PowerLog | None = None
    server: HostLog | None = None


NOTHING_BESIDE = Samples()


def samples_of(findings: Findings) -> Samples:
    return Samples(findings.host, findings.power, findings.server_metrics)


def write_samples(folder: Path, samples: Samples) -> None:
    logs = ((samples.host, HOST_CSV), (samples.power, POWER_CSV), (samples.server, SERVER_CSV))
    for log, name in logs:
        if log is not None:
            log.write(folder / name)


def read_samples(folder: Path) -> Samples:
    """Reads the files that `write_samples` wrote. Raises a ConfigError that names a file if a run cannot have written
    it.
    """
    path = folder / FINDINGS
    with _reading(path):
        content = parse_json(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return Samples(
            _read_log(folder / HOST_CSV),
            _read_power(content.get("power"), folder),
            _read_log(folder / SERVER_CSV),
        )


def _read_log(path: Path) -> HostLog | None:
    with _reading(path):
        return HostLog.read(path) if path.is_file() else None


def _read_power(content: Mapping[str, Any] | None, folder: Path) -> PowerLog | None:
    """Parses the readings of the meters. content: a part of findings.json, whose faults the caller reports."""
    if not content:
        return None
    log, path = PowerLog.from_json(content), folder / POWER_CSV
    with _reading(path):
        log.read(path)
    return log


def _reading(path: Path) -> AbstractContextManager[None]:
    hint = "copy the run's whole folder again"
    return reading(f"{path} is not a file of a run", hint, also=(OSError,))
