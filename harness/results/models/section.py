"""Summarises a run with several models and its use of the cache. Has no side effects."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from harness.core.stats import percentile_ns
from harness.loadgen.plan import Loaded
from harness.models.cache.benefit import Benefit, Candidate, benefits, expected_load_ns
from harness.models.cache.cache import ORIGINS
from harness.models.cache.residents import LRU
from harness.models.cache.trace import curve
from harness.results.evidence.evidence import Evidence
from harness.results.models.requests import Requests, requests_of
from harness.results.schema.models import (
    Curve,
    FileCounts,
    Loads,
    ModelLatency,
    Models,
    OneModel,
)
from harness.types import Array

POINTS = 12
"""Number of evenly spaced capacities on the curve, up to the total size of all models. The run's capacity is added to
these capacities.
"""

MOST_REQUESTS = 20_000
"""At most this many requests are simulated for the curve."""

_HIT, _JOINED, _LOCAL, _SOURCE, _ALONE_LOCAL, _ALONE_SOURCE, _FAILED = range(len(ORIGINS))


def section(run: Evidence, loaded: Loaded | None) -> Models | None:
    """Returns the section of result.json; None if the run does not use a set of models, or if it completed nothing."""
    done = run.done
    requests = requests_of(done, loaded) if done else None
    if requests is None or loaded is None or done is None:
        return None
    about = loaded.dataset
    models: Sequence[Mapping[str, Any]] = about["models"]
    counts = requests.by_origin(len(models))
    total = counts.sum(axis=0).tolist()
    found = benefits(candidates(about), about["capacity_bytes"])
    told = (run.ended or {}).get("models") or {}
    columns = done.columns
    waited_ns = columns["acquired_ns"] - columns["gathered_ns"]
    return {
        "policy": about["policy"],
        "capacity_bytes": about["capacity_bytes"],
        "local_capacity_bytes": about["local_capacity_bytes"],
        "law": about["popularity"]["law"],
        "top_share": about["top_share"],
        "requests": len(done),
        "hit_rate": total[_HIT] / len(done),
        "hits": total[_HIT],
        "joined": total[_JOINED],
        "loads": _loads(total, _LOCAL, _SOURCE),
        "alone": _loads(total, _ALONE_LOCAL, _ALONE_SOURCE),
        "failed": total[_FAILED],
        "evictions": int(requests.evicted.sum()),
        "files": _files(told.get("files")),
        "expected_load_ns": expected_load_ns(found),
        "load_ns": float(waited_ns.mean()),
        "curve": _curves(requests.model, about),
        "models": _models(requests, done.latency_ns, counts, found, about, told.get("resident")),
    }


def candidates(about: Mapping[str, Any]) -> list[Candidate]:
    """Returns the models in a set. about: description of the set's dataset."""
    return [
        Candidate(each["share"], each["load_ns"], each["bytes"], each["always"])
        for each in about["models"]
    ]


def _loads(counts: Sequence[int], local: int, source: int) -> Loads:
    return {"local": counts[local], "source": counts[source]}


def _files(counted: Sequence[Mapping[str, int]] | None) -> FileCounts | None:
    if counted is None:
        return None
    return {
        "hits": sum(each["hits"] + each["joined"] for each in counted),
        "copies": sum(each["loads"] + each["alone"] for each in counted),
        "evictions": sum(each["evictions"] for each in counted),
    }


def _models(
    requests: Requests,
    latency_ns: Array,
    counts: Array,
    found: Sequence[Benefit],
    about: Mapping[str, Any],
    told: Sequence[Mapping[str, int]] | None,
) -> list[OneModel]:
    by_model = [latency_ns[requests.model == i] for i in range(len(counts))]
    return [
        {
            "name": each["name"],
            "bytes": each["bytes"],
            "share": each["share"],
            "requests": sum(row),
            "hits": row[_HIT],
            "joined": row[_JOINED],
            "loads": _loads(row, _LOCAL, _SOURCE),
            "alone": _loads(row, _ALONE_LOCAL, _ALONE_SOURCE),
            "failed": row[_FAILED],
            "evictions": told[i]["evictions"] if told is not None else None,
            "latency_ns": _latency(by_model[i]),
            "load_ns": each["load_ns"],
            "first_ns": each["first_ns"],
            "run_ns": each["run_ns"],
            "saved_ns": found[i].saved_ns,
            "keep": found[i].keep,
        }
        for i, (each, row) in enumerate(zip(about["models"], counts.tolist(), strict=True))
    ]


def _latency(latency_ns: Array) -> ModelLatency | None:
    if not len(latency_ns):
        return None
    ordered = np.sort(latency_ns)
    return {
        "p50": percentile_ns(ordered, 0.50),
        "p90": percentile_ns(ordered, 0.90),
        "p99": percentile_ns(ordered, 0.99),
        "max": int(ordered[-1]),
    }


def _curves(models: Array, about: Mapping[str, Any]) -> list[Curve]:
    sizes = {i: int(each["bytes"]) for i, each in enumerate(about["models"])}
    always = [i for i, each in enumerate(about["models"]) if each["always"]]
    requests = models[:MOST_REQUESTS].tolist()
    whole = sum(sizes.values())
    even = {max(1, whole * n // POINTS) for n in range(1, POINTS + 1)}
    capacities = sorted({*even, min(whole, about["capacity_bytes"])})
    return [
        {
            "policy": policy,
            "requests": len(requests),
            "points": [
                {"capacity_bytes": point.capacity_bytes, "hit_rate": point.hit_rate}
                for point in curve(requests, sizes, capacities, policy, always)
            ],
        }
        for policy in dict.fromkeys((about["policy"], LRU))
    ]
