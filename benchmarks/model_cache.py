"""Measures how much time the model cache adds to a hit (acquire and release), with one thread and with four threads.

python benchmarks/model_cache.py [--rows NAME,...] [--quick]
"""

import argparse
import sys
import threading
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.command import Noise
from benchmarks.report import Row, absolute, command
from harness.models.cache.cache import Cache
from harness.models.cache.residents import POLICIES, Residents

MODELS = 100
HITS = 50_000
BAR_US = 5.0


def hit_us(policy: str, threads: int) -> float:
    """Returns the wall-clock time per hit over all threads."""
    # The policy `eager` keeps only the models in `always`.
    always = dict.fromkeys(range(MODELS), 1) if policy == "eager" else {}
    cache: Cache[object] = Cache(
        Residents(MODELS, policy, always),
        dict.fromkeys(range(MODELS), 1),
        lambda _key: object(),
        lambda _item: None,
    )
    for key in range(MODELS):
        cache.release(cache.acquire(key))

    def ask() -> None:
        for i in range(HITS):
            cache.release(cache.acquire(i % MODELS))

    workers = [threading.Thread(target=ask) for _ in range(threads)]
    start = time.monotonic()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return (time.monotonic() - start) * 1e6 / HITS / threads


def _rows(policy: str, threads: int, repeats: int, noise: Noise) -> Iterable[Row]:
    values = [noise.quiet(lambda: hit_us(policy, threads)) for _ in range(repeats)]
    name = f"model-cache-{policy}" + (f"-{threads}-threads" if threads > 1 else "")
    yield absolute(name, "acquire and release of a resident model", "us", BAR_US, values, {})


ROWS = {
    **{f"model-cache-{policy}": partial(_rows, policy, 1) for policy in POLICIES},
    "model-cache-lru-4-threads": partial(_rows, "lru", 4),
}

if __name__ == "__main__":
    sys.exit(command(ROWS, argparse.ArgumentParser(description=__doc__)))
