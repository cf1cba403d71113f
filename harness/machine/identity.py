"""Names a machine by what its speed depends on, so that measurements are not mixed up."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

FIELDS = ("cpu", "architecture", "cores_usable", "cores_physical", "smt_active", "turbo")
"""Fields of the machine in `host.fingerprint()` that the time of a kernel depends on."""


def machine_key(machine: Mapping[str, Any]) -> str:
    """16 hexadecimal digits, the same for machines that are alike in FIELDS.

    machine: `machine` of harness.machine.host.fingerprint().
    """
    text = json.dumps({name: machine.get(name) for name in FIELDS}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
