"""Measures peaks in this process and reads stored peaks, so that a verb can compare its measurements with the peaks.

ONNX Runtime computes the products, because most models run on it. Measuring takes two seconds.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.errors import ConfigError
from harness.machine import host
from harness.machine.characterise import measured, peaks
from harness.machine.characterise.arithmetic.gemm import SIDES, product_point
from harness.machine.characterise.arithmetic.libraries.operations import FP32, INT8, LIBRARIES
from harness.machine.characterise.database import DEFAULT, Database
from harness.machine.characterise.measured import Measured
from harness.machine.characterise.movement.memory_copy import WARM, copy_point
from harness.machine.characterise.timing import Plan, timed
from harness.machine.characterise.versions import versions_of
from harness.machine.identity import machine_key
from harness.types import Point

_PLAN = Plan(repeats=2, point_ns=120_000_000)


class Rates(NamedTuple):
    """Peak rates for one number of threads."""

    flops_per_s: float
    """Rate of fp32 products, in FLOP/s."""
    bytes_per_s: float
    """Rate of a copy larger than the caches, in bytes read and written per second."""
    int8_per_s: float | None = None
    """Rate of int8 products in operations/s, or None if it was not measured."""


def measure(threads: int) -> Rates:
    """Returns the best rates over several calls and sizes, because noise can only slow calls down.

    Propagates ONNX Runtime's errors.
    """
    made = {
        precision: max(_rate(product_point("ort", precision, side, threads)) for side in SIDES)
        for precision in (FP32, INT8)
    }
    copied = 2 * _rate(copy_point(peaks.COPY_BYTES, WARM, threads))
    return Rates(made[FP32], copied, made[INT8])


def _rate(point: Point) -> float:
    with point.open() as ready:
        fastest_ns: float = timed(ready, _PLAN)["fastest_ns"]
    return point.work / fastest_ns * 1e9


def stored(threads: int, database: Path = DEFAULT) -> Mapping[str, float]:
    """Returns the fields of `Rates` that `machine` has stored for this machine and the installed versions."""
    if not database.is_file():
        return {}
    key = machine_key(host.fingerprint()["machine"])
    results = Database(database).newest(key, [versions_of(name) for name in ("", *LIBRARIES)])
    return rates_of(measured.from_json(_named(results)), threads)


def stored_or_none(threads: int, database: Path = DEFAULT) -> Mapping[str, float]:
    """Returns the same rates as `stored`, or {} if the database cannot be read; for verbs that also work without the
    rates.
    """
    try:
        return stored(threads, database)
    except (ConfigError, ValueError):
        return {}


def stored_of(machine: Mapping[str, Any], database: Path = DEFAULT) -> Mapping[str, float]:
    """Returns a machine's stored fields of `Rates` for `cores_usable` threads, or {} if none are stored. machine: as in
    environment.json.
    """
    if not database.is_file() or "cores_usable" not in machine:
        return {}
    try:
        results = Database(database).newest(machine_key(machine))
        return rates_of(measured.from_json(_named(results)), machine["cores_usable"])
    except (ConfigError, ValueError):
        return {}


def _named(results: list[Any]) -> dict[str, Any]:
    return {str(number): result for number, result in enumerate(results)}


def rates_of(points: list[Measured], threads: int) -> dict[str, float]:
    """Returns the fields of `Rates` that can be computed from the points."""
    products, copies = peaks.arithmetic(points), peaks.memory(points)
    found = {
        "flops_per_s": products.get((FP32, threads)),
        "int8_per_s": products.get((INT8, threads)),
        "bytes_per_s": copies.get(threads),
    }
    return {name: peak.per_s for name, peak in found.items() if peak is not None}
