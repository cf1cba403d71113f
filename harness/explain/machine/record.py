"""Defines the content of machine.json: measurements, machine, versions and settings."""

from collections.abc import Mapping
from typing import Any

from harness.core.clock import utc_text
from harness.machine import host
from harness.machine.characterise import energy, hygiene, measured
from harness.machine.characterise.measured import Measured
from harness.machine.characterise.timing import Plan
from harness.machine.characterise.versions import RECIPE
from harness.machine.identity import machine_key

SCHEMA = {"schema": 1}

_MATRIX_FLAGS = (
    *("amx_tile", "amx_int8", "amx_bf16", "amx_fp16", "avx512_vnni", "avx_vnni", "avx512_bf16"),
    *("avx512_fp16", "avx512f", "avx2", "fma", "bf16", "i8mm", "sve", "sve2", "asimddp"),
)
"""Instruction sets that affect the rate of a matrix product, as the kernel names them."""

Content = Mapping[str, Any]


def new(plan: Plan) -> dict[str, Any]:
    """Returns the content before the first measurement."""
    about = host.fingerprint()
    flags = host.cpu_flags()
    return {
        **SCHEMA,
        "started": utc_text(),
        "fingerprint": machine_key(about["machine"]),
        **about,
        "instruction_sets": [flag for flag in _MATRIX_FLAGS if flag in flags] if flags else None,
        "hygiene": [fact._asdict() for fact in hygiene.facts()],
        "energy": {"meter": energy.METER, "missing": energy.missing()},
        "units": "GB = 10^9 B, GFLOP = 10^9 FLOP",
        "plan": {**plan._asdict(), "recipe": RECIPE},
        "points": {},
    }


def points(content: Content) -> list[Measured]:
    return measured.from_json(content["points"])


def to_json(content: Content) -> dict[str, Any]:
    """Returns the content, and adds the numbers that are computed from each point's times."""
    derived = {
        point.name: {
            "median_ns": point.median_ns,
            "std_ns": point.std_ns,
            "variation": point.variation,
            "per_s": point.per_s,
            "std_per_s": point.std_per_s,
            "peak_per_s": point.peak_per_s,
        }
        for point in points(content)
    }
    shown = {name: {**point, **derived[name]} for name, point in content["points"].items()}
    return {**content, "points": shown}
