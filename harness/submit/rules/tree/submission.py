"""Finds the results in a tree, and each result's logs, system and benchmark."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from harness.core.numbers import number
from harness.loadgen.logs import DETAIL, SUMMARY, DetailLog, read_detail
from harness.results.evidence.summary import read_summary
from harness.submit.rules.tree.rounds import Benchmark, Round
from harness.submit.rules.tree.tree import LOG_LIMIT_BYTES, Tree, join

PERFORMANCE = "performance/run_1"
ACCURACY = "accuracy"
RANGING = "performance/ranging"
MAPPING = "model_mapping.json"


@dataclass(frozen=True)
class RunLog:
    """Logs from a LoadGen run. `folder` is relative to the tree's root."""

    folder: str
    detail: DetailLog
    summary: Mapping[str, str]

    @property
    def file(self) -> str:
        return join(self.folder, DETAIL)

    def number(self, key: str) -> float | None:
        """Returns the number logged under `key`; None if it is missing or not finite."""
        return number(self.detail.get(key))

    def text(self, key: str) -> str:
        value = self.detail.get(key)
        return "nothing" if value is None else f"{value}"[:200]


def read_run(tree: Tree, folder: str) -> RunLog | None:
    """Returns the logs in `folder`; None if the detail log is missing or too large."""
    path = join(folder, DETAIL)
    if not tree.has(path) or tree.size_bytes(path) > LOG_LIMIT_BYTES:
        return None
    summary = read_summary(tree.text(join(folder, SUMMARY)))
    return RunLog(folder, read_detail(tree.root / path), summary)


@dataclass(frozen=True)
class Submitter:
    tree: Tree
    round: Round
    division: str
    name: str

    @property
    def path(self) -> str:
        return join(self.division, self.name)

    @property
    def is_open(self) -> bool:
        return self.division == "open"

    @cached_property
    def mapping(self) -> dict[str, str]:
        """Content of model_mapping.json, which maps a folder to a benchmark in the open division. Omits values of other
        types.
        """
        content = self.tree.json(join(self.path, MAPPING)) if self.is_open else None
        if not isinstance(content, dict):
            return {}
        return {k: v for k, v in content.items() if isinstance(v, str)}

    def systems(self) -> list[str]:
        return self.tree.folders(join(self.path, "results"))

    def system_file(self, system: str) -> str:
        return join(self.path, "systems", f"{system}.json")

    def system(self, system: str) -> dict[str, Any]:
        """Returns the system's description; {} if it is missing or not a JSON object."""
        content = self.tree.json(self.system_file(system))
        return content if isinstance(content, dict) else {}


@dataclass(frozen=True)
class Result:
    """One scenario of one benchmark on one system, for which MLCommons publishes one number."""

    submitter: Submitter
    system: str
    folder: str
    scenario_folder: str

    @property
    def tree(self) -> Tree:
        return self.submitter.tree

    @property
    def round(self) -> Round:
        return self.submitter.round

    @property
    def path(self) -> str:
        return join(self.submitter.path, "results", self.system, self.folder, self.scenario_folder)

    def inside(self, *parts: str) -> str:
        return join(self.path, *parts)

    @cached_property
    def name(self) -> str | None:
        """Name of the benchmark in the round; None if this folder does not belong to a benchmark."""
        return self.round.benchmark_of(self.folder, self.submitter.mapping)

    @property
    def benchmark(self) -> Benchmark | None:
        return self.round.benchmarks[self.name] if self.name else None

    @cached_property
    def scenario(self) -> str | None:
        return self.round.scenario_of(self.scenario_folder)

    @cached_property
    def description(self) -> dict[str, Any]:
        return self.submitter.system(self.system)

    @property
    def category(self) -> str:
        return str(self.description.get("system_type"))

    @cached_property
    def performance(self) -> RunLog | None:
        return read_run(self.tree, self.inside(PERFORMANCE))

    @cached_property
    def accuracy(self) -> RunLog | None:
        return read_run(self.tree, self.inside(ACCURACY))

    @cached_property
    def audits(self) -> dict[str, RunLog]:
        """Maps each required audit that is a performance run to its logs."""
        logs = {}
        for name in self.required_audits:
            run = read_run(self.tree, self.inside(name, PERFORMANCE))
            if self.round.audits[name].runs and run is not None:
                logs[name] = run
        return logs

    @property
    def required_audits(self) -> tuple[str, ...]:
        return () if self.submitter.is_open or self.benchmark is None else self.benchmark.audits

    @property
    def measured_scenario(self) -> str | None:
        """The folder's scenario, or the log's scenario if the rules accept the log's scenario instead."""
        if self.performance is None or self.scenario is None:
            return self.scenario
        logged = str(self.performance.detail.get("effective_scenario"))
        served = (logged, self.scenario) in self.round.served_as
        inferred = (logged, self.scenario) in self.round.inferred and "edge" in self.category
        return logged if served or inferred else self.scenario


def submitters(tree: Tree, rules: Round, only: str | None = None) -> Iterator[Submitter]:
    for division in tree.folders(""):
        if division in rules.divisions:
            for name in tree.folders(division):
                if only is None or name == only:
                    yield Submitter(tree, rules, division, name)


def results(submitter: Submitter) -> Iterator[Result]:
    tree, top = submitter.tree, join(submitter.path, "results")
    for system in submitter.systems():
        for folder in tree.folders(join(top, system)):
            for scenario in tree.folders(join(top, system, folder)):
                yield Result(submitter, system, folder, scenario)
