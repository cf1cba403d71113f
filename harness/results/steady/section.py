"""Writes the steady-state verdict into result.json."""

from datetime import UTC, datetime

from harness.core.units import NS_PER_S
from harness.machine.host_log import HostLog
from harness.results.schema import performance as schema
from harness.results.steady.host_lines import HostLines, host_lines
from harness.results.steady.official import Official
from harness.results.steady.referee import Judged, Refereed


def section(
    run: Refereed, official: Official | None, begin_ns: int, host: HostLog | None
) -> schema.Steady:
    """Returns the section. begin_ns: wall clock at the start of the run. host: the machine's log, if it was kept."""
    found: schema.Steady = {
        "verdict": run.verdict,
        "needed_s": run.needed_s,
        "warm_up_s": run.warm_up_s,
        "warm_up_change": run.warm_up_change,
        "judged_s": run.judged_s,
        "series": {one.name: _series(one) for one in run.series},
        "change": _change(run.cause, begin_ns, host) if run.cause is not None else None,
    }
    if official is not None:
        found["official"] = _official(official, run)
    return found


def _series(one: Judged) -> schema.SteadySeries:
    return {
        "verdict": one.verdict,
        "change": one.change,
        "shape": one.shape,
        "end_change": one.end_change,
        "half_width": one.half_width,
        "correlation_s": one.correlation_s,
    }


def _change(cause: Judged, begin_ns: int, host: HostLog | None) -> schema.SteadyChange:
    near = host_lines(host.rows, cause.at_ns) if host is not None else None
    at = datetime.fromtimestamp(cause.at_ns / NS_PER_S, UTC)
    return {
        "series": cause.name,
        "size": cause.change,
        "shape": cause.shape,
        "after_s": (cause.at_ns - begin_ns) / NS_PER_S,
        "at": at.isoformat(timespec="milliseconds"),
        "host": _host(near) if near is not None else None,
    }


def _host(near: HostLines) -> schema.SteadyHost:
    return {
        "lines": list(near.lines),
        "changed": {one.name: [one.before, one.after] for one in near.columns},
    }


def _official(official: Official, run: Refereed) -> schema.SteadyOfficial:
    """Returns the official verdict, and how it differs from the harness's verdict."""
    window = official.window
    return {
        "is_found": official.is_found,
        "is_clean": official.is_clean,
        "reason": official.reason,
        "passes": official.passes,
        "warm_up_passes": official.warm_up_passes,
        "window": [window.first_pass, window.end_pass] if window is not None else None,
        "difference": _difference(official, run),
    }


def _difference(official: Official, run: Refereed) -> str | None:
    if official.is_clean and run.verdict == "not steady":
        return (
            "MLPerf Endpoints' rule would find the run steady, because the run has a steady window"
        )
    if run.verdict == "steady" and not official.is_clean:
        found = "warns about its window" if official.is_found else "finds no steady window"
        return f"MLPerf Endpoints' rule would not find the run steady: the rule {found}"
    return None
