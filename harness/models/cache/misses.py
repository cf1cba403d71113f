"""Compares plain loads with loads through a cache that holds a single model, so that every request is a miss. Plain and
cached loads are measured in pairs.
"""

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.core.config.run_config import from_plain
from harness.loadgen.plan import InstanceGroup
from harness.models.cache.cache import Cache
from harness.models.cache.members import Members, OpenModel, places_of
from harness.models.cache.model_set import load_model_set
from harness.models.cache.residents import Residents


def measure(request: Mapping[str, Any]) -> dict[str, Any]:
    """Measures both kinds of load in a child process. request: contains `config`, `threads` per model, and `pairs`.

    Returns `plain_ns` and `cached_ns`, with one time per pair. A plain load closes the previous model and loads the
    next model. A cached load acquires and releases the next model, which makes the cache evict the previous model. The
    models alternate, and the two kinds of load alternate in the order ABBA.
    """
    config = from_plain(request["config"])
    assert config.models is not None
    models = load_model_set(config.models)
    places = places_of(config, models)
    with tempfile.TemporaryDirectory(prefix="harness-models-") as copies:
        group = InstanceGroup(1, request["threads"], 1)
        members = Members(config, models, places, group, Path(copies))
        try:
            return _pairs(members, request["pairs"])
        finally:
            members.close()


def _pairs(members: Members, pairs: int) -> dict[str, Any]:
    """Times plain and cached loads alternately. Each timed load first closes another model, because the load would
    otherwise need new memory pages.
    """
    count, hits = len(members.places), 0

    def plain(number: int) -> int:
        before = members.open_source((number + 1) % count)
        start_ns = time.monotonic_ns()
        before.stack.close()
        one = members.open_source(number)
        took_ns = time.monotonic_ns() - start_ns
        one.stack.close()
        return took_ns

    def cached(number: int) -> int:
        nonlocal hits
        cache: Cache[OpenModel] = Cache(
            Residents(1),
            dict.fromkeys(range(count), 1),
            members.open,
            lambda one: one.stack.close(),
        )
        cache.release(cache.acquire((number + 1) % count))
        start_ns = time.monotonic_ns()
        cache.release(cache.acquire(number))
        took_ns = time.monotonic_ns() - start_ns
        hits += sum(counts.hits for counts in cache.counts.values())
        cache.close()
        return took_ns

    ways = {"plain_ns": plain, "cached_ns": cached}
    for way in ways.values():
        # This load is not timed, because the first load of a process also imports modules.
        way(count - 1)
    times: dict[str, list[int]] = {name: [] for name in ways}
    for pair in range(pairs):
        for name in [*ways][:: 1 if pair % 2 else -1]:
            times[name].append(ways[name](pair % count))
    return {**times, "hits": hits}
