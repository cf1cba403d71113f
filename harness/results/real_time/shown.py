"""Describes a run with real-time sequences in one line of the answer."""

from collections.abc import Mapping
from typing import Any

from harness.core.units import counted, show_ns, show_percent


def shown(result: Mapping[str, Any]) -> str | None:
    """Returns the number of streams, the late frames and the real-time factor; None without real-time sequences."""
    found = result.get("real_time")
    if not found:
        return None
    factor, frames = found["real_time_factor"], found["frames"]
    speed = "the frames of a sequence are unknown, and so is the real-time factor"
    if factor is not None:
        speed = f"real-time factor {factor:.3g} in the model"
    if found["streams"] is None:
        return speed
    return (
        f"{counted(found['streams'], 'stream')}, a frame every {show_ns(found['frame_period_ns'])}: {found['late_frames']:,} "
        f"of {frames:,} frames ({show_percent(found['late_frames'] / frames, 2)}) were answered after the next frame "
        f"was due; {speed}"
    )
