"""Compares Server's tail by load with the limit for any dispatcher, with fixed plans, and with MLPerf's reference
harness.

python benchmarks/tail.py [--rows tail-NAME,...] [--loads 0.2,0.4,...] [--reference CHECKOUT] [--page FOLDER] [--quick]

The limit is a first-in, first-out queue under the best of many policies. The script simulates the limit with the run's
arrivals, and with service times from bare loops just before and after the run. A single query on all cores is timed
after pauses as long as the load's, because a core that slept answers more slowly. Each load is relative to the rate of
the bare loops just before it, because this machine's speed changes within minutes. CHECKOUT: a checkout of
mlcommons/inference, as for reference_harness.py. --page: also plots p50 and p99 by load in FOLDER.
"""

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.command import HERE, Noise, harness
from benchmarks.framework_models import encoder_onnx
from benchmarks.pairs import estimate, neighbours, ratio
from benchmarks.reference_harness import Reference, reference_images
from benchmarks.report import Row, command
from benchmarks.tail_limit import BATCHES, Tail, Times, limit
from harness.core.config.run_config import RunConfig
from harness.core.service_times import QUANTILE_POINTS, ServiceTimes, together
from harness.core.units import NS_PER_S
from harness.loadgen.plan import InstanceGroup
from harness.loadgen.scenario import scenario_named
from harness.machine import cores
from harness.models.made import onnx_light
from harness.models.manifest.defaults import default_dataset
from harness.models.manifest.lookup import load_model
from harness.models.opened import instances
from harness.models.opened.loading import open_model
from harness.results.pages import page
from harness.results.pages.page import Article, Figure
from harness.results.pages.plots import line, rounded
from harness.run.progress import Progress
from harness.search.tune.candidates import Layout, Placement
from harness.search.tune.screening import time_layout
from harness.types import Array

LOADS = (0.1, 0.2, 0.4, 0.6, 0.75, 0.85, 0.9, 0.95)
"""Rates, relative to the samples/s of bare loops with one instance per core."""

JUDGED = (0.2, 0.9)
"""Between these loads, the tail must be near the limit."""

MOST_OVER_LIMIT = 1.5
SECONDS = 8.0
LEAST_QUERIES = 600
"""Minimum number of queries per run; six of them may be later than p99."""

LONE_SECONDS, LEAST_LONE = 2.0, 12
"""Duration of a loop of single queries with pauses, and its minimum number of queries."""

_BOUND = "p99=10s"
"""An SLO that every run meets, so that late queries do not end a run."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A served model. reference: whether MLPerf's reference harness can also serve it."""

    options: tuple[str, ...]
    reference: bool = False
    is_computing: bool = True
    """True if the model needs cores, so that several threads may answer one query."""


Made = Callable[[Path], Subject]
"""Maps the folder for the model's file to the subject."""


class Served(NamedTuple):
    tail: Tail
    due_ns: Array
    """(queries,) due times, ascending."""
    at_run_speed: float
    """p99 ÷ the p99 of a reference dispatcher whose model is as fast as the real model at each moment of the run."""


@dataclass(slots=True)
class Seen:
    """Maps each load to the tails of each system, round by round."""

    by_load: dict[float, dict[str, list[Tail]]] = field(default_factory=dict)
    at_run_speed: dict[float, list[float]] = field(default_factory=dict)
    """Maps each load to the harness's p99 ÷ the p99 of a reference dispatcher whose model is as fast as the real model
    at each moment of the run.
    """

    def add(self, load: float, system: str, tail: Tail) -> None:
        self.by_load.setdefault(load, {}).setdefault(system, []).append(tail)

    def over_limit(self, load: float) -> list[float]:
        """Returns the harness's p99 ÷ the limit's p99, round by round."""
        tails = self.by_load[load]
        return [a.p99_ms / b.p99_ms for a, b in zip(tails[OURS], tails[LIMIT], strict=True)]


OURS, LIMIT, REFERENCE = "default plan", "limit", "reference harness"
FIXED: Mapping[str, tuple[str, ...]] = {
    "greedy": (),
    **{f"batch {size}": ("--max-batch", str(size)) for size in (1, 8)},
}
"""Plans that answer every query on one core, even a query that waits alone."""


class Bench:
    """Serves one subject at rates relative to its capacity."""

    def __init__(self, subject: Subject, checkout: Path | None, folder: Path) -> None:
        self._options = subject.options
        named = dict(zip(subject.options[::2], subject.options[1::2], strict=True))
        self._config = RunConfig.of(
            scenario="server",
            backend=named["--backend"],
            model=named.get("--model", "digits"),
            backend_option=tuple(text for text in subject.options if "_ms=" in text),
        )
        self._model = load_model(self._config.model)
        self._is_computing = subject.is_computing
        self._folder = folder
        self._file = named.get("--model")
        self._reference = (
            Reference(checkout, folder / "images") if checkout and subject.reference else None
        )
        self.cores = cores.available().planned
        self._on_all_cores = Layout(1, self.cores, (("spinning", "on"),))

    def narrow(self) -> ServiceTimes:
        """Measures service times with one busy instance per core."""
        return self._service(Layout(self.cores, 1))

    def wide(self) -> ServiceTimes | None:
        """Measures service times of one instance that spins on all cores; returns None if the model needs no cores."""
        if not self._is_computing or self.cores == 1:
            return None
        return self._service(self._on_all_cores)

    def _service(self, layout: Layout) -> ServiceTimes:
        config, spec = self._placed(layout)
        return time_layout(
            config,
            default_dataset(self._model),
            spec,
            BATCHES,
            None,
            self._folder / "bare.log",
            Progress(quiet=True),
        ).service

    def lone(self, pause_s: float) -> Array | None:
        """Returns (queries,) times in ns of single queries on all cores, each after a pause; returns None if the model
        needs no cores.
        """
        if not self._is_computing or self.cores == 1:
            return None
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, context) as process:
            return process.submit(_lone_ns, *self._placed(self._on_all_cores), pause_s).result()

    def _placed(self, layout: Layout) -> tuple[RunConfig, InstanceGroup]:
        config = Placement(layout, BATCHES[-1]).applied(self._config)
        spec = instances.plan(config, scenario_named("server"), self._model, cores.available())
        return config, spec

    def capacity_per_s(self, narrow: ServiceTimes) -> float:
        """Returns the samples/s of bare loops at their best batch size."""
        return max(self.cores * size * NS_PER_S / float(narrow.of(size).mean()) for size in BATCHES)

    def served(self, rate_per_s: float, *more: str) -> Served:
        """Makes one run."""
        count = max(LEAST_QUERIES, round(SECONDS * rate_per_s))
        load = ("--target-qps", f"{rate_per_s:.4g}", "--queries", str(count), "--slo", _BOUND)
        run = harness("--scenario", "server", "--mode", "performance", *self._options, *load, *more)
        latency = run.result["latency_ns"]
        return Served(
            Tail.of_ns(latency["p50"], latency["p99"]),
            np.sort(run.columns["scheduled_ns"]),
            run.result["reference"]["at_run_speed"]["ratio"],
        )

    def referred(self, rate_per_s: float) -> Tail | None:
        """Returns the reference harness's tail at this rate; None if the reference harness cannot serve the model."""
        if self._reference is None or self._file is None:
            return None
        count = max(LEAST_QUERIES, round(SECONDS * rate_per_s))
        found = self._reference.tail_ns(Path(self._file), round(rate_per_s), count)
        return Tail.of_ns(*found)


def _lone_ns(config: RunConfig, spec: InstanceGroup, pause_s: float) -> Array:
    """Loads the model and times single queries. Runs in a separate process, so that nothing else has warmed it up."""
    count = max(LEAST_LONE, round(LONE_SECONDS / pause_s))
    model = load_model(config.model)
    name = default_dataset(model)
    with ExitStack() as stack:
        _, (backend,), _, _, dataset = open_model(
            config, model, name, spec, stack, lambda _done, _total: None
        )
        dataset.load([0])
        batch = dataset.batch([0])
        found_ns = []
        for _ in range(count + 1):
            time.sleep(pause_s)
            begun_ns = time.monotonic_ns()
            backend.infer(batch)
            found_ns.append(time.monotonic_ns() - begun_ns)
    return np.asarray(found_ns[1:])  # the first query warms up the backend


def measure(
    name: str, made: Made, options: argparse.Namespace, count: int, noise: Noise
) -> list[Row]:
    seen = Seen()
    with tempfile.TemporaryDirectory() as parent, reference_images() as images:
        folder = Path(parent)
        (folder / "images").symlink_to(images)
        bench = Bench(made(folder), options.reference, folder)
        for turn in range(count):
            for load in options.loads:
                _one_load(bench, load, seen, noise, forward=turn % 2 == 0)
    if options.page:
        _draw(name, seen, options.page)
    judged = [n for n in options.loads if JUDGED[0] <= n <= JUDGED[1]] or list(options.loads)
    worst = max(judged, key=lambda load: estimate(seen.over_limit(load)).value)
    tails = seen.by_load[worst]
    return [
        Row(
            name=name,
            what=f"p99 ÷ the limit of any dispatcher at the worst load, {worst:.0%} of bare loops",
            unit="",
            limit="at most",
            bar=MOST_OVER_LIMIT,
            found=estimate(seen.over_limit(worst)),
            aa=neighbours([tail.p99_ms for tail in tails[OURS]], ratio),
            neutral=1.0,
            beside=dict(_beside(seen)),
            runs={
                f"{load:.0%}": {system: list(map(list, tails)) for system, tails in of.items()}
                for load, of in seen.by_load.items()
            },
        )
    ]


def _one_load(bench: Bench, load: float, seen: Seen, noise: Noise, *, forward: bool) -> None:
    """Measures all systems in turn, and the harness between bare loops."""
    narrow, wide = noise.quiet(bench.narrow), noise.quiet(bench.wide)
    rate_per_s = load * bench.capacity_per_s(narrow)
    lone = [noise.quiet(lambda: bench.lone(1 / rate_per_s))]
    ours = noise.quiet(lambda: bench.served(rate_per_s))
    narrow = _merged(narrow, noise.quiet(bench.narrow))
    if wide is not None and (again := noise.quiet(bench.wide)) is not None:
        wide = _merged(wide, again)
    lone.append(noise.quiet(lambda: bench.lone(1 / rate_per_s)))
    known = [ns for ns in lone if ns is not None]
    alone = np.quantile(np.concatenate(known), QUANTILE_POINTS) if known else None
    seen.add(load, OURS, ours.tail)
    seen.add(load, LIMIT, limit(ours.due_ns, Times(narrow, wide, alone), bench.cores))
    seen.at_run_speed.setdefault(load, []).append(ours.at_run_speed)
    others: dict[str, Callable[[], Tail | None]] = {
        plan: lambda more=more: bench.served(rate_per_s, "--dispatch", "greedy", *more).tail  # type: ignore[misc]
        for plan, more in FIXED.items()
    }
    others[REFERENCE] = lambda: bench.referred(rate_per_s)
    for system in others if forward else reversed(others):
        tail = noise.quiet(others[system])
        if tail is not None:
            seen.add(load, system, tail)


def _merged(before: ServiceTimes, after: ServiceTimes) -> ServiceTimes:
    """Merges the service times of the batch sizes that both measurements include."""
    sizes = set(before.sizes) & set(after.sizes)
    return together(before.only(sizes), after.only(sizes))


def _beside(seen: Seen) -> Iterator[tuple[str, str]]:
    """Yields each load with p50 / p99 of each system in ms, and the harness's p99 corrected for changes in the
    machine's speed.
    """
    for load, of in seen.by_load.items():
        texts = []
        for system, tails in of.items():
            p50, p99 = (estimate(column).value for column in zip(*tails, strict=True))
            texts.append(f"{system} {p50:.3g} / {p99:.3g}")
        ratio = estimate(seen.at_run_speed[load]).value
        texts[-1] += f" ms, default plan at the run's speed {ratio:.3g} x the reference dispatcher"
        yield f"{load:.0%}", ", ".join(texts)


def _draw(name: str, seen: Seen, folder: Path) -> None:
    """Writes FOLDER/NAME.html with p50 and p99 by load."""

    def figure(of: int, title: str) -> Figure:
        systems = dict.fromkeys(system for tails in seen.by_load.values() for system in tails)
        lines = []
        for system in systems:
            points = {
                100 * load: estimate([tail[of] for tail in tails[system]]).value
                for load, tails in sorted(seen.by_load.items())
                if system in tails
            }
            lines.append(line(system, points, [rounded(ms) for ms in points.values()]))
        axes = {
            "xaxis": {"title": "load, % of bare loops"},
            "yaxis": {"title": "ms", "type": "log"},
        }
        return Figure(title, "The median of the rounds.", lines, axes)

    folder.mkdir(parents=True, exist_ok=True)
    head = [f"<h1>{escape(name)}</h1>"]
    article = Article(head, [figure(0, "p50 by load"), figure(1, "p99 by load")], [])
    page.write([article], name, folder / f"{name}.html", script_in=folder)


def subjects() -> Mapping[str, Made]:
    """Maps row names to subjects."""

    def image(name: str, _folder: Path) -> Subject:
        return Subject(("--backend", "ort", "--model", str(onnx_light.make(name))), reference=True)

    def minilm(folder: Path) -> Subject:
        path = encoder_onnx(folder / "minilm.onnx")
        return Subject(("--backend", "ort", "--model", str(path)))

    def sleeper(each_ms: float, sample_ms: float, _folder: Path) -> Subject:
        options = (
            "--backend", f"{HERE / 'sleeper.py'}:Sleeper", "--backend-option", f"service_ms={each_ms}",
            "--backend-option", f"sample_ms={sample_ms}",
        )  # fmt: skip
        return Subject(options, is_computing=False)

    return {
        "tail-digits": lambda _folder: Subject(("--backend", "ort")),
        "tail-squeezenet": partial(image, "squeezenet"),
        "tail-resnet50": partial(image, "resnet50"),
        "tail-minilm": minilm,
        "tail-batching-pays": partial(sleeper, 8.0, 1.0),
        "tail-batching-never-pays": partial(sleeper, 0.0, 5.0),
    }


def rows(options: argparse.Namespace) -> Mapping[str, Callable[[int, Noise], list[Row]]]:
    return {
        name: lambda count, noise, name=name, made=made: measure(  # type: ignore[misc]
            name, made, options, count, noise
        )
        for name, made in subjects().items()
    }


def _shares(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(",")))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--loads", type=_shares, default=LOADS, metavar="SHARE,...")
    parser.add_argument(
        "--reference", type=Path, metavar="CHECKOUT", help="a checkout of mlcommons/inference"
    )
    parser.add_argument("--page", type=Path, metavar="FOLDER", help="draw p50 and p99 by load")
    options, _ = parser.parse_known_args(arguments)
    both = argparse.ArgumentParser(parents=[parser], description="Measures Server's tail by load.")
    return command(rows(options), both, arguments)


if __name__ == "__main__":
    sys.exit(main())
