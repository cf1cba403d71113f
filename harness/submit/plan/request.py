"""What is to be submitted: one benchmark on one system, all its runs."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.core.config.parse import Slo, parse_meter, parse_slo
from harness.core.config.run_config import RunConfig, from_plain
from harness.core.registry import METERS
from harness.errors import ConfigError
from harness.machine.power.meters import ptdaemon
from harness.submit.plan import rate
from harness.submit.rules.layout import REHEARSAL_SUBMITTER, REHEARSAL_SUFFIX
from harness.submit.rules.tree.round_names import DEFAULT
from harness.submit.rules.tree.rounds import Benchmark, Round, load_round

FILE = "request.yaml"
OURS = {
    "SingleStream": "single-stream",
    "MultiStream": "multi-stream",
    "Server": "server",
    "Offline": "offline",
}
DECIDED = ("scenario", "mode", "out", "mlperf", "audit", "queries", "seed")
"""Options of a run that the round or the matrix decides."""

OF_SERVER = ("target_qps", "slo", "dispatch", "batch_wait")
"""Options that reach no other scenario."""

CONFIRM = "60s"
"""--duration of the runs that confirm a rate: nearer to 600 s than a search's own 10 s."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """folder: of the benchmark in the tree, another than `benchmark` only in the open division.

    scenarios: of the round; () means those the category requires. options: of every run, under
    their names on the command line; `meter` of performance runs alone. rehearsal: any data, any model; with `duration` among the
    options short, too. An `slo` without a rate asks for a search of Server's; a short rehearsal is
    judged by it.
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
        yield from self._name_problems(rules)
        for key in DECIDED:
            if key in self.options:
                yield f"--{key.replace('_', '-')} is decided by the round and the matrix: drop it"
        if "duration" in self.options and not self.rehearsal:
            yield "--duration is for --rehearsal: a real run takes what the rules say"
        yield from self._meter_problems()
        if self.benchmark in rules.benchmarks and self.category in rules.categories:
            yield from self._scenario_problems(rules)
            yield from self._slo_problems(rules)

    def _name_problems(self, rules: Round) -> Iterator[str]:
        for flag, name in (
            ("--submitter", self.submitter),
            ("--system", self.system),
            *([("--folder", self.called)] if self.called else []),
        ):
            if not _NAME.fullmatch(name):
                what = f"{name!r} is no name of a folder" if name else "is missing"
                yield f"{flag} {what}: letters, digits and .+-_, 100 at most"
            marked = name == REHEARSAL_SUBMITTER or name.endswith(REHEARSAL_SUFFIX)
            if marked and not self.rehearsal:
                yield f"{flag} {name} is the mark of a rehearsal: choose another name"
        if self.division == "closed" and self.called != self.benchmark:
            yield "--folder is for the open division: closed folders have the benchmark's name"
        known = rules.benchmark_of(self.called, {self.called: self.benchmark})
        if self.benchmark in rules.benchmarks and known != self.benchmark:
            yield f"--folder {self.called} is the round's name for {known}: choose another"

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

    def _meter_problems(self) -> Iterator[str]:
        """Power is submitted from PTDaemon sessions, and from nothing else."""
        try:
            meters = self.meters
        except ValueError as e:
            yield f"--meter: {e}"
            return
        for name, argument in meters:
            if name != ptdaemon.NAME:
                about = METERS[name].about if name in METERS else "a plug-in's readings"
                yield (
                    f"--meter {name} ({about}) is no MLPerf Power, which PTDaemon reads at the wall "
                    f"of the whole system: drop it, or {ptdaemon.USAGE}"
                )
                continue
            try:
                ptdaemon.PtdaemonMeter(argument)
            except ConfigError as e:
                yield str(e)
        if len(meters) > 1:
            yield "--meter is given twice: keep one"

    def _slo_problems(self, rules: Round) -> Iterator[str]:
        if "slo" not in self.options:
            return
        try:
            slo = parse_slo(str(self.options["slo"]))
        except ValueError as e:
            yield f"--slo: {e}"
            return
        if "Server" not in self.wanted_scenarios:
            yield "--slo is of Server, which is not among the scenarios: drop it"
        if self.is_short:
            return
        if self.is_rate_given:
            yield "--slo is what Server's rate is searched under, and one is given: drop either"
        yield from self.looser(slo, "--slo", rules)

    def looser(self, slo: Slo, what: str, rules: Round) -> Iterator[str]:
        """At most one: a rate found under a looser bound than the round's says nothing."""
        limit_ns = self.of_round.latency_limit_ns.get("Server")
        limit = Slo(rules.percentiles["Server"], limit_ns or slo.bound_ns)
        if slo.percentile < limit.percentile or slo.bound_ns > limit.bound_ns:
            yield f"{what} {slo}: the round judges Server by {limit}: it must not be looser"

    @property
    def meters(self) -> tuple[tuple[str, str], ...]:
        """Name and argument. A ValueError where one is no meter's name."""
        given = self.options.get("meter") or ()
        texts = given if isinstance(given, list | tuple) else [given]
        return tuple(parse_meter(str(text)) for text in texts)

    @property
    def conf_rate(self) -> float | None:
        """Server's in --user-conf."""
        path = self.options.get("user_conf")
        return rate.of_user_conf(Path(str(path)), self.of_round.loadgen) if path else None

    @property
    def is_rate_given(self) -> bool:
        return "target_qps" in self.options or self.conf_rate is not None

    @property
    def searches(self) -> bool:
        """Whether Server's rate is to be found by `peak`."""
        asked = "slo" in self.options and not self.is_rate_given
        return asked and "Server" in self.wanted_scenarios

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

    def run_config(
        self, scenario: str, mode: str, audit: Path | None, found_rate: float | None = None
    ) -> RunConfig:
        """One run of the matrix. found_rate: Server's by a search, in queries/s."""
        plain = {**self.options, "scenario": OURS[scenario], "mode": mode}
        if scenario != "Server":
            plain = {k: v for k, v in plain.items() if k not in OF_SERVER}
        elif found_rate is not None:
            plain["target_qps"] = found_rate
        if scenario in ("SingleStream", "MultiStream"):
            plain.pop("instances", None)
        if audit is not None:
            plain["audit"] = str(audit)
        if audit is not None or mode != "performance":
            plain.pop("meter", None)
        limit_ns = self.of_round.latency_limit_ns.get(scenario)
        if self.is_short and limit_ns is not None:
            plain.setdefault("slo", f"p99={limit_ns / 1e6:g}ms")
        if not self.is_short:
            plain.pop("slo", None)
            plain |= {"mlperf": True, "mlperf_model": self.of_round.loadgen}
            plain.setdefault("performance_count", self.of_round.performance_samples)
        return from_plain(plain, FILE)

    def search_config(self) -> RunConfig:
        """Of `peak`, under the `slo` of the options."""
        plain = {**self.options, "scenario": "server", "mode": "performance"}
        plain = {k: v for k, v in plain.items() if k not in ("user_conf", "meter")}
        if not self.is_short:
            plain["duration"] = CONFIRM
            plain.setdefault("performance_count", self.of_round.performance_samples)
        return from_plain(plain, FILE)
