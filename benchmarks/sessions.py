"""Replays 500 sessions with subagents and delays against `serve tinylm`, in turn with a bare asyncio client.

    python benchmarks/sessions.py [--rows NAME,...] [--quick] [--sessions 500] [--rounds 5]

Rows: `sessions-lag` (p99 of the time from a turn's due time until it is sent, minus the bare client's p99),
`sessions-bytes` (number of different digests of all bodies in the runs, which must be one), `sessions-hits` (tokens
that the server found in its prefix cache, as a percentage of the tokens that the prompts allow). The bare client sends
the same bodies over one connection per session, and uses loop.call_at for delays.
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import pairs
from benchmarks.command import ROOT, Noise, Run, environment, harness
from benchmarks.pairs import Estimate, Verdict, difference
from benchmarks.report import Row, command

SEED = 20261127
BLOCK = 4
"""Number of tokens in a block of the server's cache."""
MOST_LAG_MS = 1.0
MOST_DEVIATION_PERCENT = 1.0

Turn = dict[str, Any]


def sessions(count: int) -> list[list[Turn]]:
    """Returns sessions of 7 turns: a plan, two subagents with one and two calls, and three more turns.

    Every turn begins with the same 8 tokens, followed by 8 tokens that belong to its session. An answer has at most 3
    tokens.
    """
    random = np.random.default_rng(SEED)

    def drawn(tokens: int) -> list[int]:
        found: list[int] = random.integers(3, 13, tokens).tolist()
        return found

    shared = drawn(8)
    made = []
    for _ in range(count):
        own = [*shared, *drawn(8)]
        agent, other = [*own, *drawn(4)], [*own, *drawn(4)]
        later = [*own, *drawn(4)]
        after: list[tuple[str, list[int], list[str]]] = [
            ("plan", own, []),
            ("a1", agent, ["plan"]),
            ("a2", [*agent, *drawn(8)], ["a1"]),
            ("b1", other, ["plan"]),
            ("join", later, ["a2", "b1"]),
            ("next", [*later, *drawn(8)], ["join"]),
            ("last", [*later, *drawn(16)], ["next"]),
        ]
        delays = random.integers(200, 3000, len(after)).tolist()
        made.append(
            [
                {"id": name, "input_ids": ids, "after": waits, "delay_ms": delay, "max_tokens": 3}
                for (name, ids, waits), delay in zip(after, delays, strict=True)
            ]
        )
    return made


@contextmanager
def serving() -> Iterator[str]:
    """Yields the URL of a tinylm server with a prefix cache."""
    words = ("serve", "tinylm", "--listen", "127.0.0.1:0", "--max-batch", "64")
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "harness", *words, "--prefix-cache", f"{BLOCK}:1000000"],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        yield found[0]
    finally:
        process.terminate()
        process.wait()


def replayed(url: str, path: Path, count: int, turns: int) -> Run:
    return harness(
        *("--scenario", "server", "--backend", "openai", "--url", url, "--model", "tinylm"),
        *("--dataset", "sessions", "--data-dir", str(path), "--mode", "performance"),
        *("--concurrency", str(count), "--queries", str(turns), "--connections", str(count)),
        *("--backend-option", f"cache_block={BLOCK}", "--before-run", "vllm"),
        *("--slo", "p99=60s", "--no-metrics", "--no-report"),
    )


class Bare:
    """The bare client, which uses one connection and one task per session, with asyncio timers."""

    def __init__(self, url: str, made: list[list[Turn]]) -> None:
        self._address = url.removeprefix("http://").rpartition(":")
        self._made = made
        self.lags_ns: list[int] = []

    def run(self) -> float:
        """Returns the lag's p99 in ms."""
        asyncio.run(self._all())
        return float(np.percentile(self.lags_ns, 99)) / 1e6

    async def _all(self) -> None:
        host, _, port = self._address
        links = [
            [await asyncio.open_connection(host, int(port)) for _ in range(2)] for _ in self._made
        ]
        begin_ns = time.monotonic_ns()
        await asyncio.gather(
            *(
                self._session(turns, link, begin_ns)
                for turns, link in zip(self._made, links, strict=True)
            )
        )
        for link in links:
            for _, writer in link:
                writer.close()

    async def _session(self, turns: list[Turn], links: Any, begin_ns: int) -> None:
        done: dict[str, asyncio.Future[int]] = {
            turn["id"]: asyncio.get_running_loop().create_future() for turn in turns
        }
        free: asyncio.Queue[Any] = asyncio.Queue()
        for link in links:
            free.put_nowait(link)
        await asyncio.gather(*(self._turn(turn, done, free, begin_ns) for turn in turns))

    async def _turn(
        self, turn: Turn, done: Mapping[str, "asyncio.Future[int]"], free: Any, begin_ns: int
    ) -> None:
        body = {"model": "tinylm", "temperature": 0, "stream": True, "max_tokens": 3}
        text = json.dumps({**body, "prompt": turn["input_ids"]}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        request = head + b"Content-Length: %d\r\n\r\n" % len(text) + text
        waited = [await done[name] for name in turn["after"]]
        due_ns = max(waited, default=begin_ns) + turn["delay_ms"] * 1_000_000
        wakes: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_at(due_ns / 1e9, wakes.set_result, None)
        await wakes
        reader, writer = await free.get()
        writer.write(request)
        self.lags_ns.append(time.monotonic_ns() - due_ns)
        await reader.readuntil(b"0\r\n\r\n")
        free.put_nowait((reader, writer))
        done[turn["id"]].set_result(time.monotonic_ns())


def _reset(url: str) -> None:
    connection = HTTPConnection(url.removeprefix("http://"))
    connection.request("POST", "/reset_prefix_cache")
    connection.getresponse().read()
    connection.close()


def measured(count: int, rounds: int, noise: Noise) -> tuple[list[Run], pairs.Pairs]:
    made = sessions(count)
    turns = sum(map(len, made))
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as folder, serving() as url:
        path = Path(folder, "sessions.jsonl")
        path.write_text(
            "".join(json.dumps({"turns": one}) + "\n" for one in made), encoding="ascii"
        )

        def ours() -> float:
            runs.append(noise.quiet(lambda: replayed(url, path, count, turns)))
            return float(runs[-1].result["sessions"]["send_lag_ns"]["p99"]) / 1e6

        def bare() -> float:
            _reset(url)
            return noise.quiet(Bare(url, made).run)

        return runs, pairs.alternate(ours, bare, rounds)


def rows_of(count: int, rounds: int) -> Callable[[int, Noise], Iterator[Row]]:
    def rows(number: int, noise: Noise) -> Iterator[Row]:
        runs, seen = measured(count, max(2, rounds or number), noise)
        yield _lag(count, runs, seen)
        yield _bytes(count, runs)
        yield _hits(count, runs)

    return rows


def _met(holds: bool) -> Verdict:
    return "met" if holds else "missed"


def _lag(count: int, runs: list[Run], seen: pairs.Pairs) -> Row:
    p50 = [float(run.result["sessions"]["send_lag_ns"]["p50"]) / 1e6 for run in runs]
    return Row(
        name="sessions-lag",
        what=f"p99 of the lag of sends, {count} sessions, minus a bare asyncio client's",
        unit="ms",
        limit="at most",
        bar=MOST_LAG_MS,
        found=pairs.compared(seen, difference),
        aa=pairs.same(seen, difference),
        beside={
            "ours p99, ms": float(np.median(seen.a)),
            "bare p99, ms": float(np.median(seen.b)),
            "ours p50, ms": float(np.median(p50)),
            "turns": len(runs[0].columns["entry_ns"]),
            "codes": ", ".join(
                sorted({one["code"] for run in runs for one in run.result["reasons"]})
            )
            or "VALID",
        },
        runs={"harness": seen.a, "bare": seen.b, "harness p50": p50},
    )


def _bytes(count: int, runs: list[Run]) -> Row:
    digests = [run.result["tokens"]["bodies_sha256"] for run in runs]
    different = float(len({*digests}))
    return Row(
        name="sessions-bytes",
        what=f"different digests of all bodies in {len(runs)} runs of {count} sessions",
        unit="",
        limit="at most",
        bar=1.0,
        found=Estimate(different, different, different),
        decided=_met(different == 1 and None not in digests),
        runs={"digests": digests},
    )


def _hits(count: int, runs: list[Run]) -> Row:
    told = [run.result["tokens"] for run in runs]
    off = [abs(one["cached"] / one["reusable"] - 1) * 100 for one in told]
    return Row(
        name="sessions-hits",
        what=f"cached tokens against the tokens that the prompts of {count} sessions allow",
        unit="%",
        limit="at most",
        bar=MOST_DEVIATION_PERCENT,
        found=Estimate(max(off), min(off), max(off)),
        decided=_met(max(off) <= MOST_DEVIATION_PERCENT),
        beside={
            "cached": told[0]["cached"],
            "allowed": told[0]["reusable"],
            "prompt tokens": told[0]["input"],
        },
        runs={
            "cached": [one["cached"] for one in told],
            "allowed": [one["reusable"] for one in told],
        },
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sessions", type=int, default=500, metavar="N")
    parser.add_argument(
        "--rounds", type=int, default=0, metavar="N", help="pairs of runs, at least 2"
    )
    known, _ = parser.parse_known_args()
    return command({"sessions": rows_of(known.sessions, known.rounds)}, parser)


if __name__ == "__main__":
    sys.exit(main())
