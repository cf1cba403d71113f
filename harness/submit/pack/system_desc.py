"""Reads system_desc.json, in which MLCommons' tool describes a system, for `pack --describe`.

Source: mlperf-sysinfo 1.0.0a12, profile `inference`. The file contains the submission checker's flat keys, some
additional keys, and the block `mlperf_sysinfo` about the capture.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.errors import refuse

STAMP = "mlperf_sysinfo"
"""Key of the block that describes the capture. A file that contains this key is a system_desc.json."""

_UNKNOWN = ("n/a", "not available")
_UNKNOWN_BEGINS = ("not detected", "insert ")
"""Lower-case beginnings of texts that stand for an unknown fact."""


def is_system_desc(content: Mapping[Any, Any]) -> bool:
    return isinstance(content.get(STAMP), Mapping)


def answers(content: Mapping[Any, Any], path: Path, known: Collection[str]) -> dict[str, Any]:
    """Returns the file's values for the `known` keys. Raises a single ConfigError if the file is not a
    system_desc.json.
    """
    refuse(_problems(content[STAMP], path))
    return {key: content[key] for key in known if key in content and _is_found(content[key])}


def _problems(stamp: Mapping[Any, Any], path: Path) -> Iterator[str]:
    kind = stamp.get("profile")
    if stamp.get("shape") != "flat" or stamp.get("benchmark", "inference") != "inference":
        yield f"{path} has mlperf-sysinfo's profile {kind!r}: capture it with `profile: inference`"
    if stamp.get("complete") is not True:
        yield f"{path} is a partial capture, because a node did not answer: capture it again"


def _is_found(value: object) -> bool:
    if isinstance(value, str):
        text = value.strip().lower()
        return text not in ("", *_UNKNOWN) and not text.startswith(_UNKNOWN_BEGINS)
    return isinstance(value, int | float) and bool(value)
