"""Whether runs may be ranked against each other, and what is not the same about them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from harness.results.compare.finished import FinishedRun


class Difference(NamedTuple):
    """What is not the same on both sides. before, after: as text."""

    name: str
    before: str
    after: str


def refusals(before: Sequence[FinishedRun], after: Sequence[FinishedRun]) -> Iterator[str]:
    first = before[0]
    for run in (*before, *after):
        if run.result["verdict"] != "VALID":
            codes = ", ".join(r["code"] for r in run.result["reasons"])
            yield f"{run.name} is INVALID ({codes})"
    for run in (*before[1:], *after):
        ours, theirs = _workload(first), _workload(run)
        for name in [n for n in ours if n in theirs]:
            if ours[name] != theirs[name]:
                yield f"{name}: {first.name} {_text(ours[name])}, {run.name} {_text(theirs[name])}"
    arrivals = [_arrivals(one) for one in (before, after)]
    if arrivals[0] != arrivals[1]:
        told = " on one side, ".join(map(_text, arrivals))
        yield f"arrivals: schedule seeds {told} on the other"
    for one in (before, after):
        for run in one[1:]:
            ours, theirs = _settings(one[0]), _settings(run)
            differ = [n for n in {**ours, **theirs} if ours.get(n) != theirs.get(n)]
            if differ:
                told = ", ".join(differ)
                yield f"{one[0].name} and {run.name} are not one configuration: {told}"


def _workload(run: FinishedRun) -> Mapping[str, Any]:
    """What must be the same before two runs can be ranked, as far as both measured it."""
    config, result = run.config, run.result
    performance, scored = {}, {}
    if result["throughput_per_s"] is not None:
        performance = {
            "largest batch": config.get("max_batch"),
            "samples per query": config.get("samples_per_query"),
            "offered rate": config.get("target_qps"),
            "arrivals": config.get("arrivals_sha256"),
            "queries in flight": config.get("concurrency"),
            "samples held": config.get("performance_count"),
        }
    if result["accuracy"] and result["accuracy"]["value"] is not None:
        scored = {"metric": result["accuracy"]["metric"]}
    return {
        "scenario": result["scenario"],
        "official rules": config.get("mlperf"),
        "model": result["model"],
        "model digest": config.get("model_sha256"),
        "precision": (result.get("backend_description") or {}).get("precision"),
        "dataset": result["dataset"],
        "dataset digest": config.get("dataset_digest"),
        "seeds": {k: seed for k, seed in _seeds(run).items() if k != "schedule"},
        **performance,
        **scored,
    }


def _seeds(run: FinishedRun) -> Mapping[str, Any]:
    return (run.environment.get("loadgen") or {}).get("seeds") or {}


def _arrivals(side: Sequence[FinishedRun]) -> list[str]:
    """Of --repeats each run has its own: both sides must have had the same ones."""
    return sorted({str(_seeds(run).get("schedule", "-")) for run in side})


_PER_RUN = frozenset(("queries", "duration", "out", "schedule_seed"))
"""Differ between runs of one configuration: a count is calibrated, --repeats take the next seed."""


def _settings(run: FinishedRun) -> Mapping[str, Any]:
    return {name: value for name, value in run.config.items() if name not in _PER_RUN}


def differences(
    before: Sequence[FinishedRun], after: Sequence[FinishedRun]
) -> Iterator[Difference]:
    """In config.yaml, environment.json and what the runs doubt."""
    told = [[_told(run) for run in one] for one in (before, after)]
    for name in dict.fromkeys(n for one in told for run in one for n in run):
        ours, theirs = (sorted({_text(run.get(name)) for run in one}) for one in told)
        if ours != theirs:
            yield Difference(name, " | ".join(ours), " | ".join(theirs))


def _told(run: FinishedRun) -> Mapping[str, Any]:
    doubts = sorted({d["code"] for d in run.result["doubts"]})
    environment = {k: v for k, v in run.environment.items() if k != "loadgen"}
    config = {k: v for k, v in run.config.items() if k != "out"}
    return {"doubts": " ".join(doubts) or None, **config, **dict(_flat(environment))}


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{k}={v}" for k, v in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "-" if value is None else str(value)
