"""Measures each way to share weights: the memory and start time of a second worker, and the answers of both workers."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.core.child import Channel, call, connect
from harness.core.config.run_config import RunConfig, to_plain
from harness.errors import HarnessError, PluginUnavailable, one_line
from harness.explain.cold.sharing.memory import pss_bytes
from harness.explain.cold.sharing.ways import FORK, HOW, INITIALISERS, MAPPED, Way
from harness.explain.cold.trials import page_cache
from harness.explain.cold.trials.turns import Start, Trials
from harness.models.manifest.files import files_of, size_bytes

_WORKER = "harness.explain.cold.sharing.worker"
_MAKE_MAPPED = "harness.explain.cold.formats.make:make_mapped"
_LIMIT_S = 900.0


class Pair(NamedTuple):
    """One way to share on one backend. folder: initially empty folder for the files that the workers share."""

    way: Way
    config: RunConfig
    path: Path
    threads: int
    folder: Path


def new_row(way: Way, backend: str, size_bytes: int | None, failed: str | None) -> dict[str, Any]:
    return {
        "way": way.name,
        "backend": backend,
        "about": HOW.get((way.name, backend), way.about),
        "size_bytes": size_bytes,
        "rounds": [],
        "failed": failed,
    }


def plan(way: Way, start: Start, ir: Path | None, trials: Trials, folder: Path) -> Pair:
    """Plans a pair of workers, and makes the file to map. start: the start of the backend's file. ir: the model's file
    in OpenVINO's format, or None.
    """
    folder.mkdir()
    config, path, threads = start.config, start.path, trials.threads
    options = dict(config.backend_option)
    if way.name == FORK:
        threads = 1  # because a forked process keeps only the calling thread
    if way.name == INITIALISERS and config.backend == "ort":
        options["share_weights"] = "on"
    if way.name == MAPPED and config.backend == "ort":
        request = {"source": str(path), "folder": str(folder), "threads": threads}
        path = Path(call(_MAKE_MAPPED, request, trials.log, limit_s=_LIMIT_S)["path"])
        options |= {"graph": "off", "share_weights": "off"}
    if way.name == MAPPED and config.backend == "openvino" and ir is not None:
        path = ir
    config = replace(config, backend_option=tuple(options.items()))
    return Pair(way, config, path, threads, folder)


def one_round(pair: Pair, row: dict[str, Any], trials: Trials) -> None:
    """Adds a round to the row, or the reason why the way is not possible."""
    if row["failed"] is not None:
        return
    page_cache.read(files_of(pair.path).values())
    try:
        row["rounds"].append(_round(pair, trials))
    except HarnessError as e:
        row["failed"] = one_line(e)
    except OSError as e:
        row["failed"] = f"the memory could not be read: {e}"


def _round(pair: Pair, trials: Trials) -> dict[str, Any]:
    """Measures one round. alone_bytes: PSS with one worker. growth_bytes: PSS that the second worker adds.
    of_model_bytes: the part of growth_bytes that the second process adds after it has imported its framework.
    """
    answers = [pair.folder / f"answer-{number}.npz" for number in range(2)]
    with ExitStack() as stack:
        first = stack.enter_context(_worker(pair, trials))
        pids = [first.pid]
        one = first.ask("load", answers[0])
        alone_bytes = ready_bytes = pss_bytes(pids)
        if pair.way.second == "process":
            second = stack.enter_context(_worker(pair, trials))
            pids.append(second.pid)
            ready_bytes = pss_bytes(pids)
            two = second.ask("load", answers[1])
        elif pair.way.second == "fork":
            two = first.ask("fork", answers[1])
            pids.append(two.pop("pid"))
        else:
            two = first.ask("load", answers[1])
        both_bytes = pss_bytes(pids)
    return {
        "first": one,
        "second": two,
        "alone_bytes": alone_bytes,
        "growth_bytes": both_bytes - alone_bytes,
        "of_model_bytes": both_bytes - ready_bytes,
    }


class _Asked(NamedTuple):
    pid: int
    channel: Channel
    log: Path

    def ask(self, event: str, answer: Path) -> dict[str, Any]:
        self.channel.send(event, answer=str(answer))
        return self.result()

    def result(self) -> dict[str, Any]:
        try:
            message = self.channel.receive(_LIMIT_S)
        except TimeoutError:
            raise PluginUnavailable(f"it took longer than {_LIMIT_S:.0f} s") from None
        if message is None:
            raise PluginUnavailable(f"the process died: see {self.log.name}")
        if message["event"] == "error":
            raise PluginUnavailable(message["text"])
        result: dict[str, Any] = message["result"]
        return result


@contextmanager
def _worker(pair: Pair, trials: Trials) -> Iterator[_Asked]:
    """Yields a worker that has imported its framework. The worker is killed at the end."""
    with trials.log.open("ab") as log:
        process, channel = connect(_WORKER, log=log)
    with process, closing(channel):
        try:
            request = {
                "config": to_plain(pair.config),
                "model": trials.model.to_json(),
                "path": str(pair.path),
                "dataset": trials.dataset,
                "threads": pair.threads,
                "runs": trials.runs,
                "way": pair.way.name,
                "folder": str(pair.folder),
            }
            channel.send("open", request=request)
            asked = _Asked(process.pid, channel, trials.log)
            asked.result()
            yield asked
        finally:
            process.kill()


def compare(plain: Path, other: Path) -> float:
    """Returns the largest difference between two answers, as a share of the largest value in `plain`. Returns 0 for
    bit-identical answers.
    """
    with np.load(plain, allow_pickle=False) as a, np.load(other, allow_pickle=False) as b:
        pairs = [(a[name], b[name]) for name in a.files]
    if all(x.tobytes() == y.tobytes() for x, y in pairs):
        return 0.0
    apart = max(float(np.abs(x.astype(float) - y.astype(float)).max()) for x, y in pairs)
    largest = max(float(np.abs(x.astype(float)).max()) for x, _ in pairs)
    return max(apart / largest if largest else apart, float(np.finfo(float).tiny))


def compare_all(pairs: Sequence[Pair], rows: Sequence[dict[str, Any]], plain: str) -> None:
    """Adds `difference` to every row with rounds. The difference is relative to the answer for the way `plain` on the
    same backend.
    """
    found = {
        pair.config.backend: pair.folder
        for pair, row in zip(pairs, rows, strict=True)
        if pair.way.name == plain and row["rounds"]
    }
    for pair, row in zip(pairs, rows, strict=True):
        home = found.get(pair.config.backend)
        if row["rounds"] and home is not None:
            row["difference"] = compare(home / "answer-0.npz", pair.folder / "answer-1.npz")


def planned(
    wanted: Sequence[tuple[Way, str, str | None]],
    by_backend: Mapping[str, Start],
    ir: Path | None,
    trials: Trials,
    made: Path,
) -> tuple[list[Pair], list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the pairs, their rows, and the rows of the ways that are not possible."""
    pairs, rows, absent = [], [], []
    numbers = count()
    for way, backend, reason in wanted:
        start = by_backend[backend]
        size = size_bytes(start.path)
        try:
            if reason is not None:
                raise PluginUnavailable(reason)
            pairs.append(plan(way, start, ir, trials, made / f"pair-{next(numbers)}"))
            rows.append(new_row(way, backend, size, None))
        except HarnessError as e:
            absent.append(new_row(way, backend, size, one_line(e)))
    return pairs, rows, absent
