"""Computes a machine's key from the properties that its speed depends on, so that measurements are not mixed up."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

FIELDS = ("cpu", "architecture", "cores_usable", "cores_physical", "smt_active", "turbo")
"""Fields of the machine in `host.fingerprint()` on which the time of a kernel depends."""


def machine_key(machine: Mapping[str, Any]) -> str:
    """Returns 16 hexadecimal digits, which are equal for machines with equal FIELDS.

    machine: `machine` of harness.machine.host.fingerprint().
    """
    text = json.dumps({name: machine.get(name) for name in FIELDS}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
