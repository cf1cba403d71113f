"""Computes a machine's key from the properties that determine its speed, so that measurements of different machines are
not mixed.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

FIELDS = ("cpu", "architecture", "cores_usable", "cores_physical", "smt_active", "turbo")
"""Fields of `machine` in `host.fingerprint()` that affect the speed of a kernel."""


def machine_key(machine: Mapping[str, Any]) -> str:
    """Returns a key of 16 hexadecimal digits, which is the same for all machines with the same FIELDS.

    machine: `machine` of harness.machine.host.fingerprint().
    """
    text = json.dumps({name: machine.get(name) for name in FIELDS}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
