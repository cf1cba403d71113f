"""Compares a run's frames with real time. Has no side effects."""

from harness.core.units import NS_PER_S
from harness.models.manifest.model import Model
from harness.results.evidence.evidence import Evidence
from harness.results.schema.performance import RealTime


def section(run: Evidence, model: Model, infer_s: float) -> RealTime | None:
    """Returns the section of result.json; None if the manifest states no frame period, or if nothing was completed.

    infer_s: total time of all batches in the backend.
    """
    period_ns, done = run.plan.frame_period_ns or model.frame_period_ns, run.done
    if period_ns is None or not done:
        return None
    streams = run.plan.streams
    of_each = model.manifest.frames if model.manifest is not None else None
    frames: int | None = len(done)
    if streams is None:
        frames = None if of_each is None else len(done) * of_each
    factor = None if frames is None else infer_s * NS_PER_S / (frames * period_ns)
    late = None if streams is None else int((done.latency_ns > period_ns).sum())
    return {
        "frame_period_ns": period_ns,
        "streams": streams,
        "frames": frames,
        "late_frames": late,
        "real_time_factor": factor,
    }
