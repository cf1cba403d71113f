"""Measures the cost of observation, by comparing a run that is scraped, displayed and metered with a run that is not.

python benchmarks/observer.py [--rows NAME,...] [--quick]
"""

import argparse
import socket
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import pairs
from benchmarks.command import Noise, Run, harness
from benchmarks.pairs import difference, estimate, ratio
from benchmarks.report import Row, command

SCRAPE_EVERY_S = 1.0
WATCHED = ("benchmarks/watching.py", "looks")
ALONE = ("benchmarks/watching.py", "blind")

_DIGITS = (
    "--scenario", "server", "--target-qps", "1000", "--duration", "10s", "--slo", "p99=1s",
    "--backend", "ort", "--mode", "performance",
)  # fmt: skip
_NULL = (
    "--scenario", "single-stream", "--queries", "300000",
    "--backend", "null", "--mode", "performance",
)  # fmt: skip


@contextmanager
def _scraper(port: int) -> Iterator[list[int]]:
    """Scrapes the port and yields the sizes of the pages. Before and after the run, no server listens on the port."""
    pages: list[int] = []
    over = threading.Event()

    def scrape() -> None:
        while not over.wait(SCRAPE_EVERY_S):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
                    pages.append(len(page.read()))
            except OSError:
                continue

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield pages
    finally:
        over.set()
        thread.join()


def watched(ask: tuple[str, ...]) -> Run:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with _scraper(port) as pages:
        place = ("--metrics", f"127.0.0.1:{port}", "--meter", "estimate")
        run = harness(*ask, *place, prefix=WATCHED)
    if not any(size > 10_000 for size in pages):
        raise RuntimeError("the run was never scraped, so there is nothing to compare")
    return run


def _alone(ask: tuple[str, ...]) -> Run:
    return harness(*ask, "--no-metrics", prefix=ALONE)


def _process(run: Run, key: str) -> float:
    return float(run.result["measured_process"][key])


def observer(count: int, noise: Noise) -> list[Row]:
    """Returns two rows from the same runs: the measured process's CPU time, and its voluntary context switches."""
    seen: dict[str, list[Run]] = {"watched": [], "alone": []}

    def measure(kind: str, run: Callable[[tuple[str, ...]], Run]) -> float:
        seen[kind].append(noise.quiet(lambda: run(_DIGITS)))
        return _process(seen[kind][-1], "cpu_s_per_query") * 1e6

    cpu_us = pairs.alternate(
        lambda: measure("watched", watched), lambda: measure("alone", _alone), count
    )
    switches = pairs.Pairs(
        *(
            tuple(_process(run, "voluntary_switches_per_query") for run in runs)
            for runs in seen.values()
        )
    )
    p99_us = {
        f"p99 {kind}, us": estimate(
            [float(r.result["latency_ns"]["p99"]) / 1e3 for r in runs]
        ).value
        for kind, runs in seen.items()
    }
    return [
        Row(
            name="observer-cpu",
            what="CPU time per query of the measured process, watched over alone, digits at 1,000/s",
            unit="",
            limit="at most",
            bar=1.03,
            found=pairs.compared(cpu_us, ratio),
            aa=pairs.same(cpu_us, ratio),
            neutral=1.0,
            beside={
                "watched, us": estimate(cpu_us.a).value,
                "alone": estimate(cpu_us.b).value,
                **p99_us,
            },
            runs={"watched_us": cpu_us.a, "alone_us": cpu_us.b},
        ),
        Row(
            name="observer-switches",
            what="voluntary context switches per query, watched minus alone, digits at 1,000/s",
            unit="",
            limit="at most",
            bar=0.03,  # the bar is 3 %, because a query causes only one or two switches
            found=pairs.compared(switches, difference),
            aa=pairs.same(switches, difference),
            beside={"watched": estimate(switches.a).value, "alone": estimate(switches.b).value},
            runs={"watched": switches.a, "alone": switches.b},
        ),
    ]


def ceiling(count: int, noise: Noise) -> list[Row]:
    def per_second(run: Run) -> float:
        return float(run.result["throughput_per_s"]["completed"])

    seen = pairs.alternate(
        lambda: noise.quiet(lambda: per_second(watched(_NULL))),
        lambda: noise.quiet(lambda: per_second(_alone(_NULL))),
        count,
    )
    return [
        Row(
            name="observer-ceiling",
            what="queries/s of the null backend, one after the other, watched over alone",
            unit="",
            limit="at least",
            bar=0.98,
            found=pairs.compared(seen, ratio),
            aa=pairs.same(seen, ratio),
            neutral=1.0,
            beside={"watched, /s": estimate(seen.a).value, "alone": estimate(seen.b).value},
            runs={"watched_per_s": seen.a, "alone_per_s": seen.b},
        )
    ]


ROWS: Mapping[str, Callable[[int, Noise], list[Row]]] = {
    "observer": observer,
    "observer-ceiling": ceiling,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    return command(ROWS, parser)


if __name__ == "__main__":
    sys.exit(main())
