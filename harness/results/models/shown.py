"""Describes a run with several models in one line of the answer."""

from collections.abc import Mapping
from typing import Any

from harness.core.units import counted, show_bytes, show_ns, show_percent


def shown(result: Mapping[str, Any]) -> str | None:
    """Returns the cache, hits, loads and evictions; None for a result with one model."""
    found = result.get("models")
    if not found:
        return None
    loads = {key: found["loads"][key] + found["alone"][key] for key in ("local", "source")}
    origins = [f"{count:,} {key}" for key, count in loads.items() if count]
    return (
        f"{show_percent(found['hit_rate'], 1)} hits of {counted(len(found['models']), 'model')} in "
        f"{show_bytes(found['capacity_bytes'])} ({found['policy']}), "
        f"{counted(sum(loads.values()), 'load')}{f' ({chr(44).join(origins)})' if len(origins) > 1 else ''}, "
        f"{counted(found['evictions'], 'eviction')}; a query waited {show_ns(found['load_ns'])} for its model"
    )
