"""Checks the journal of a run with several models against the cache's counts and against a simulation. Has no side
effects.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from harness.core.codes import Reason
from harness.loadgen.plan import Loaded
from harness.models.cache.cache import ALONE, HIT, LOADED, ORIGINS
from harness.models.cache.residents import Residents
from harness.models.cache.trace import play
from harness.results.evidence.evidence import Evidence
from harness.results.models.requests import Requests, requests_of
from harness.types import Array

_HOW = {
    **dict.fromkeys(("hit",), HIT),
    **dict.fromkeys(("local", "source"), LOADED),
    **dict.fromkeys(("alone-local", "alone-source"), ALONE),
}
"""Maps an origin to how the request was served, in the terms that `play` uses."""


def reasons(run: Evidence, loaded: Loaded | None) -> Iterator[Reason]:
    """Yields a reason for each difference in the counts.

    Skips runs with failed samples, which are INVALID anyway, and runs that did not end by themselves.
    """
    told = (run.ended or {}).get("models")
    if told is None or not run.done or run.done.failed:
        return
    requests = requests_of(run.done, loaded)
    if requests is None or loaded is None:
        yield Reason("cache-differs", "the journal's rows do not match the set of models")
        return
    about = loaded.dataset
    for text in (*_counts(requests, told, about), *_played(requests, run, about)):
        yield Reason("cache-differs", text)


def _counts(requests: Requests, told: Mapping[str, Any], about: Mapping[str, Any]) -> Iterator[str]:
    counts = requests.by_origin(len(about["models"]))
    resident = told["resident"]
    if len(resident) != len(counts):
        yield f"the cache counted {len(resident)} models, but the set has {len(counts)}"
        return
    for each, row, own in zip(about["models"], counts, resident, strict=True):
        journal = _summed(row)
        if any(journal[name] != own[name] for name in journal):
            cache = {name: own[name] for name in journal}
            yield f"model {each['name']!r}: the journal has {journal}, but the cache counted {cache}"
            return
    evicted, own_evicted = int(requests.evicted.sum()), sum(one["evictions"] for one in resident)
    if evicted != own_evicted:
        yield f"the journal has {evicted:,} evictions, but the cache counted {own_evicted:,}"


def _summed(row: Array) -> dict[str, int]:
    """Counts one model's samples by how they were served. row: (origins,) sample counts of the model."""
    by_origin = dict(zip(ORIGINS, row.tolist(), strict=True))
    return {
        "hits": by_origin["hit"],
        "joined": by_origin["joined"],
        "loads": by_origin["local"] + by_origin["source"],
        "alone": by_origin["alone-local"] + by_origin["alone-source"],
    }


def _played(requests: Requests, run: Evidence, about: Mapping[str, Any]) -> Iterator[str]:
    """Compares the journal with `play`, which serves requests in the order of issue.
    Skips runs with several workers.
    """
    assert run.done is not None
    if len(set(run.done.columns["worker"].tolist())) > 1 or not run.done.answered_once:
        return
    sizes = {i: int(each["bytes"]) for i, each in enumerate(about["models"])}
    always = {i: sizes[i] for i, each in enumerate(about["models"]) if each["always"]}
    residents = Residents(about["capacity_bytes"], about["policy"], always)
    rows = zip(requests.origin.tolist(), requests.evicted.tolist(), strict=True)
    served = play(requests.model.tolist(), sizes, residents)
    for order, ((origin, evicted), one) in enumerate(zip(rows, served, strict=True)):
        how = _HOW.get(ORIGINS[origin])
        if how != one.how or evicted != len(one.evicted):
            yield (
                f"query {order:,}: the journal has {ORIGINS[origin]!r} with {evicted} evicted, but a simulation of "
                f"the same requests has {one.how!r} with {len(one.evicted)}"
            )
            return
