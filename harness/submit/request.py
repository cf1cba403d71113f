"""What is to be submitted, kept in WORK/request.yaml: one benchmark on one system, all its runs."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from harness.config import RunConfig, config_from, from_plain
from harness.errors import ConfigError
from harness.manifest import load_yaml
from harness.results import write_yaml
from harness.submit.rounds import DEFAULT, Benchmark, Round, load_round
from harness.submit.rules_tree import REHEARSAL_SUBMITTER, REHEARSAL_SUFFIX

FILE = "request.yaml"
OURS = {
    "SingleStream": "single-stream",
    "MultiStream": "multi-stream",
    "Server": "server",
    "Offline": "offline",
}
DECIDED = ("scenario", "mode", "out", "mlperf", "audit", "queries", "seed", "slo", "meter")
"""Options of a run that the round or the matrix decides."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """folder: of the benchmark in the tree, another than `benchmark` only in the open division.

    scenarios: of the round; () means those the category requires. options: of every run, under
    their names on the command line; target_qps only reaches Server. rehearsal: any data, any
    model; with `duration` among the options short, too.
    """

    division: str
    submitter: str
    system: str
    category: str
    benchmark: str
    folder: str = ""
    scenarios: tuple[str, ...] = ()
    rehearsal: bool = False
    round: str = DEFAULT
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise ConfigError("\n".join(problems))

    def _problems(self) -> Iterator[str]:
        rules = load_round(self.round)
        choices = (
            ("--division", self.division, [d for d in rules.divisions if d != "network"]),
            ("--category", self.category, rules.categories),
            ("--benchmark", self.benchmark, list(rules.benchmarks)),
        )
        for flag, given, known in choices:
            if given not in known:
                yield f"{flag} {given or 'is missing'}: choose from {'; '.join(known)}"
        for flag, name in (
            ("--submitter", self.submitter),
            ("--system", self.system),
            ("--folder", self.called),
        ):
            if not _NAME.fullmatch(name):
                what = f"{name!r} is no name of a folder" if name else "is missing"
                yield f"{flag} {what}: letters, digits and .+-_"
        if self.division == "closed" and self.called != self.benchmark:
            yield "--folder is for the open division: closed folders have the benchmark's name"
        for key in DECIDED:
            if key in self.options:
                yield f"--{key.replace('_', '-')} is decided by the round and the matrix: drop it"
        if "duration" in self.options and not self.rehearsal:
            yield "--duration is for --rehearsal: a real run takes what the rules say"
        if self.benchmark in rules.benchmarks and self.category in rules.categories:
            yield from self._scenario_problems(rules)

    def _scenario_problems(self, rules: Round) -> Iterator[str]:
        benchmark = rules.benchmarks[self.benchmark]
        required = benchmark.scenarios(self.category)
        if not required:
            yield f"--benchmark {self.benchmark} has no place in {self.category}: another category"
        for name in self.scenarios:
            if name not in OURS:
                yield f"--scenarios {name}: choose from {', '.join(OURS)}"
        missing = [s for s in required if self.scenarios and s not in self.scenarios]
        if self.division == "closed" and missing:
            yield f"--scenarios: the closed division requires {', '.join(required)}, too"
        unplanned = [a for a in benchmark.audits if not rules.audits[a].runs]
        if unplanned or benchmark.token_limits_ns is not None:
            yield f"--benchmark {self.benchmark}: language generation is not run by this harness"

    @property
    def rules(self) -> Round:
        return load_round(self.round)

    @property
    def of_round(self) -> Benchmark:
        return self.rules.benchmarks[self.benchmark]

    @property
    def called(self) -> str:
        """The benchmark's folder."""
        return self.folder or self.benchmark

    @property
    def wanted_scenarios(self) -> tuple[str, ...]:
        """In the order of the round's table."""
        known = self.rules.benchmarks[self.benchmark].scenarios(self.category)
        return tuple(s for s in OURS if s in (self.scenarios or known))

    @property
    def audits(self) -> tuple[str, ...]:
        return self.of_round.audits if self.division == "closed" else ()

    @property
    def is_short(self) -> bool:
        return self.rehearsal and "duration" in self.options

    @property
    def tree_names(self) -> tuple[str, str]:
        """Submitter and system as the tree calls them; a rehearsal's cannot be mistaken."""
        if not self.rehearsal:
            return self.submitter, self.system
        return REHEARSAL_SUBMITTER, self.system.removesuffix(REHEARSAL_SUFFIX) + REHEARSAL_SUFFIX

    def run_config(self, scenario: str, mode: str, audit: Path | None) -> RunConfig:
        """One run of the matrix."""
        plain = {**self.options, "scenario": OURS[scenario], "mode": mode}
        if scenario != "Server":
            plain.pop("target_qps", None)
        if scenario in ("SingleStream", "MultiStream"):
            plain.pop("instances", None)
        if audit is not None:
            plain["audit"] = str(audit)
        limit_ns = self.of_round.latency_limit_ns.get(scenario)
        if self.is_short and limit_ns is not None:
            plain["slo"] = f"p99={limit_ns / 1e6:g}ms"
        if not self.is_short:
            plain |= {"mlperf": True, "mlperf_model": self.of_round.loadgen}
            plain.setdefault("performance_count", self.of_round.performance_samples)
        return from_plain(plain, FILE)


def given_request(values: Mapping[str, Any], options: Mapping[str, Any]) -> Request:
    """values: of the command line, None where not given. options: of the runs, as text."""
    problems: list[str] = []
    config_from(options, "command line", problems)
    if problems:
        raise ConfigError("\n".join(problems))
    known = {f.name: "" for f in fields(Request)}
    scenarios = values.get("scenarios")
    made = {name: values[name] for name in known if values.get(name) is not None}
    if isinstance(scenarios, str):
        made["scenarios"] = tuple(s.strip() for s in scenarios.split(",") if s.strip())
    for name in ("division", "submitter", "system", "category", "benchmark"):
        made.setdefault(name, "")
    return Request(**made, options=_absolute(options))


def _absolute(options: Mapping[str, Any]) -> dict[str, Any]:
    """Files as absolute paths: runs may be started from another folder later."""
    made = dict(options)
    for key in ("data_dir", "hook", "user_conf"):
        if key in made and not str(made[key]).startswith("hf:"):
            made[key] = str(Path(str(made[key])).expanduser().absolute())
    for key in ("model", "backend", "dataset", "metric"):
        file, colon, attribute = str(made.get(key, "")).rpartition(":")
        path = Path(file if colon else attribute).expanduser()
        if key in made and path.suffix and path.exists():
            made[key] = f"{path.absolute()}{colon}{attribute if colon else ''}"
    return made


def write_request(work: Path, request: Request) -> None:
    """A ConfigError where another request is kept there: its runs would be taken for this one's."""
    path = work / FILE
    if path.exists():
        if read_request(work) != request:
            raise ConfigError(
                f"{path} asks for something else: pass another --work, or change that file"
            )
        return
    try:
        work.mkdir(parents=True, exist_ok=True)
        content = asdict(request) | {"scenarios": list(request.scenarios)}
        write_yaml(path, content)
    except OSError as e:
        raise ConfigError(f"{path} cannot be written: {e.strerror}: pass another --work") from e


def read_request(work: Path) -> Request:
    path = work / FILE
    content = load_yaml(path)
    if not isinstance(content, dict) or not isinstance(content.get("options", {}), dict):
        raise ConfigError(f"{path} is not a request: `submit plan` writes one")
    known = {f.name for f in fields(Request)}
    unknown = [str(key) for key in content if key not in known]
    if unknown:
        raise ConfigError(f"{path}: unknown keys {', '.join(unknown)}")
    scenarios = content.get("scenarios") or ()
    missing = [f.name for f in fields(Request)[:5] if not isinstance(content.get(f.name), str)]
    if missing or not isinstance(scenarios, list | tuple):
        raise ConfigError(f"{path}: {', '.join(missing) or 'scenarios'} must be given as text")
    return Request(**{**content, "scenarios": tuple(map(str, scenarios))})
