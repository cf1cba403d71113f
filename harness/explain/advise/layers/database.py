"""Stores the times of single layers for later models and later runs.

A row holds for one machine, one version of the runtime, one kind of layer and one setting; asked for
on another machine or version, it is a miss.
"""

import hashlib
import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from harness.explain.advise.layers.settings import Setting
from harness.explain.measurements import opened

SCHEMA = 1
_CREATE = """
CREATE TABLE IF NOT EXISTS layers (
    machine TEXT NOT NULL, runtime TEXT NOT NULL, layer TEXT NOT NULL, setting TEXT NOT NULL,
    about TEXT NOT NULL, measured_at TEXT NOT NULL, content TEXT NOT NULL,
    PRIMARY KEY (machine, runtime, layer, setting)
)
"""
_MACHINE = ("cpu", "architecture", "cores_usable", "cores_physical", "smt_active", "turbo")


class Timed(NamedTuple):
    """Times of one layer run alone under one setting, one number for each run.
    kernel_ns: kernels that compute the layer.
    call_ns, cpu_ns: the whole call; its CPU time.
    border_ns: kernels at its ends that only convert a layout or a type, absent inside a whole
    model.
    kernels: executed operators.
    failed: why there are no numbers; "" where there are.
    passes: how many times, far apart, it was measured.
    """

    kernel_ns: tuple[int, ...] = ()
    call_ns: tuple[int, ...] = ()
    cpu_ns: tuple[int, ...] = ()
    border_ns: tuple[int, ...] = ()
    kernels: tuple[str, ...] = ()
    failed: str = ""
    passes: int = 1

    def least_ns(self, *, cpu: bool) -> float | None:
        """The least of all runs. cpu: the least CPU time, times the median share of kernels in a
        call; meaningful with one thread only.
        """
        if not self.kernel_ns:
            return None
        if not cpu:
            return float(min(self.kernel_ns))
        calls = zip(self.kernel_ns, self.call_ns, strict=True)
        return min(self.cpu_ns) * median(kernel / call for kernel, call in calls)

    def joined(self, later: "Timed") -> "Timed":
        """Appends the runs of a later pass."""
        passes = self.passes + later.passes
        if later.failed or self.failed:
            return (later if self.failed else self)._replace(passes=passes)
        return later._replace(
            passes=passes,
            kernel_ns=self.kernel_ns + later.kernel_ns,
            call_ns=self.call_ns + later.call_ns,
            cpu_ns=self.cpu_ns + later.cpu_ns,
            border_ns=self.border_ns + later.border_ns,
        )

    def to_json(self) -> dict[str, Any]:
        return dict(self._asdict())

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Timed":
        numbers = {name: tuple(content[name]) for name in cls._fields[:5]}
        return cls(**numbers, failed=str(content["failed"]), passes=int(content.get("passes", 1)))


def machine_key(fingerprint: Mapping[str, Any]) -> str:
    """A digest of what a kernel's time depends on. fingerprint: `machine` of
    harness.machine.host.fingerprint().
    """
    text = json.dumps({name: fingerprint.get(name) for name in _MACHINE}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class LayerDatabase:
    """One file that several processes may use at once: each call opens it anew."""

    def __init__(self, path: Path, machine: str, runtime: str) -> None:
        """machine: from `machine_key`. runtime: name and version.
        Raises ConfigError where the file cannot be created or has another schema.
        """
        self.path = path
        self._where = (machine, runtime)
        with self._open():
            pass

    def _open(self) -> AbstractContextManager[sqlite3.Connection]:
        return opened(self.path, SCHEMA, _CREATE)

    def get(self, layer: str, setting: Setting) -> Timed | None:
        """Only times of this machine and runtime."""
        query = (
            "SELECT content FROM layers "
            "WHERE machine = ? AND runtime = ? AND layer = ? AND setting = ?"
        )
        with self._open() as db:
            row = db.execute(query, (*self._where, layer, str(setting))).fetchone()
        return Timed.from_json(json.loads(row[0])) if row else None

    def elsewhere(self, layers: Sequence[str]) -> int:
        """How many rows these layers have under another machine or runtime; they are not used."""
        query = "SELECT layer FROM layers WHERE NOT (machine = ? AND runtime = ?)"
        with self._open() as db:
            rows = [row[0] for row in db.execute(query, self._where)]
        keys = set(layers)
        return sum(layer in keys for layer in rows)

    def put(self, layer: str, setting: Setting, about: str, timed: Timed) -> None:
        """about: the layer's operators, for people."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        values = (*self._where, layer, str(setting), about, now, json.dumps(timed.to_json()))
        with self._open() as db:
            db.execute("INSERT OR REPLACE INTO layers VALUES (?, ?, ?, ?, ?, ?, ?)", values)
