"""Defines a request to submit one benchmark on one system, and derives the settings for its runs."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from harness.core import registry
from harness.core.config.options import flag_name
from harness.core.config.parse import Slo, parse_meter, parse_slo
from harness.core.config.run_config import RunConfig, from_plain
from harness.core.registry import METERS, REMOTE_BACKENDS
from harness.errors import ConfigError, PluginUnavailable, refuse
from harness.machine.power.meters import ptdaemon
from harness.submit.plan import network, rate
from harness.submit.plan.network import NETWORK
from harness.submit.plan.options import REFUSED
from harness.submit.rules.layout import REHEARSAL_SUBMITTER, REHEARSAL_SUFFIX
from harness.submit.rules.tree.consistency import TEST06
from harness.submit.rules.tree.lengths import TEST09
from harness.submit.rules.tree.round_names import DEFAULT
from harness.submit.rules.tree.rounds import Benchmark, Round, load_round

FILE = "request.yaml"
OURS = {
    "SingleStream": "single-stream",
    "MultiStream": "multi-stream",
    "Server": "server",
    "Interactive": "server",
    "Offline": "offline",
}
AT_A_RATE = ("Server", "Interactive")
"""Scenarios whose runs need a target rate."""

OF_TOKENS = (TEST06, TEST09)
"""Audits that count the tokens in answers."""

_WITHOUT_TOKENS = ("kserve", "http-raw")
"""Server backends whose replies contain no token counts."""

INTERACTIVE = "-interactive"
"""Suffix of LoadGen's key for a language task with the token limits of the Interactive scenario."""

OF_SERVER = ("target_qps", "slo", "dispatch", "batch_wait")
"""Options that are accepted only for runs of the scenarios in AT_A_RATE."""

CONFIRM = "60s"
"""Value of --duration for confirmation runs. This duration is closer to the official 600 s than a search's default of
10 s.
"""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A validated request to submit one benchmark. Raises a ConfigError that lists all problems.

    An `slo` without a rate requests a search for Server's rate. In a short rehearsal, the `slo` is the latency bound
    for the runs instead.
    """

    division: str
    submitter: str
    system: str
    category: str
    benchmark: str
    folder: str = ""
    """Name of the benchmark's folder in the tree. The name differs from `benchmark` only in the open division."""
    scenarios: tuple[str, ...] = ()
    """Scenario names in the round; () means the scenarios that the division requires for the category."""
    accuracy_data: str = ""
    """Value of --data-dir for the accuracy runs if the benchmark uses a separate data set for them; otherwise ''."""
    rehearsal: bool = False
    """Whether to accept any data and model, and short runs with the option `duration`."""
    round: str = DEFAULT
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options for every run, by their keys. `meter` applies only to performance runs."""

    def __post_init__(self) -> None:
        refuse(self._problems())

    def _problems(self) -> Iterator[str]:
        rules = load_round(self.round)
        choices = (
            ("--division", self.division, rules.divisions),
            ("--category", self.category, rules.categories),
            ("--benchmark", self.benchmark, list(rules.benchmarks)),
        )
        for flag, value, known in choices:
            if value not in known:
                near = get_close_matches(value, known, n=2)
                hint = (
                    f"did you mean {' or '.join(near)}?"
                    if near
                    else f"choose from {'; '.join(known)}"
                )
                yield f"{flag} {value or 'is missing'}: {hint}"
        yield from self._name_problems(rules)
        for key, reason in REFUSED.items():
            if key in self.options:
                yield f"{flag_name(key)} {reason}: remove it"
        if "duration" in self.options and not self.rehearsal:
            yield "--duration is only for --rehearsal: the rules set the duration of real runs"
        yield from self._meter_problems()
        yield from network.option_problems(self.division, self.options, rehearsal=self.rehearsal)
        if self.division == NETWORK and self.category not in rules.network_categories:
            yield (
                f"--category {self.category} is not in the Network division, which has only the datacenter suite: "
                f"use --category {' or '.join(rules.network_categories)}"
            )
        if self.benchmark in rules.benchmarks:
            yield from self._data_problems(rules.benchmarks[self.benchmark])
        if self.benchmark in rules.benchmarks and self.category in rules.categories:
            yield from self._scenario_problems(rules)
            yield from self._slo_problems(rules)

    def _data_problems(self, benchmark: Benchmark) -> Iterator[str]:
        if self.accuracy_data and not benchmark.has_accuracy_data:
            yield f"--accuracy-data: {self.benchmark} has one data set for all runs: pass it with --data-dir"
        if benchmark.has_accuracy_data and not self.accuracy_data and not self.rehearsal:
            yield (
                f"--accuracy-data is missing: pass the separate data set of {benchmark.samples:,} samples for the "
                f"accuracy runs of {self.benchmark}"
            )

    def _name_problems(self, rules: Round) -> Iterator[str]:
        for flag, name in (
            ("--submitter", self.submitter),
            ("--system", self.system),
            *([("--folder", self.called)] if self.called else []),
        ):
            if not _NAME.fullmatch(name):
                what = f"{name!r} is not a valid folder name" if name else "is missing"
                yield f"{flag} {what}: use at most 100 letters, digits and .+-_"
            marked = name == REHEARSAL_SUBMITTER or name.endswith(REHEARSAL_SUFFIX)
            if marked and not self.rehearsal:
                yield f"{flag} {name} marks a rehearsal: choose a different name"
        if self.division != "open" and self.called != self.benchmark:
            yield (
                "--folder is only for the open division: drop --folder, because the folder must "
                "have the benchmark's name"
            )
        known = rules.benchmark_of(self.called, {self.called: self.benchmark})
        if self.benchmark in rules.benchmarks and known != self.benchmark:
            yield f"--folder {self.called} is the round's name for {known}: choose a different name"

    def _scenario_problems(self, rules: Round) -> Iterator[str]:
        benchmark = rules.benchmarks[self.benchmark]
        required = benchmark.scenarios(self.category)
        if not required:
            ours = [c for c in rules.categories if benchmark.scenarios(c)]
            known = [c for c in ours if "," not in c or self.category in c.split(",")][:2]
            yield (
                f"--benchmark {self.benchmark} is not in the category {self.category}: pass --category {' or '.join(known)}"
            )
        for name in self.scenarios:
            if name not in OURS:
                yield f"--scenarios {name}: choose from {', '.join(OURS)}"
        if self.division != "open" and self.scenarios:
            yield from self._closed_scenario_problems(
                required, benchmark.optional_in(self.category)
            )
        if "Interactive" in self.scenarios and "Interactive" not in (
            benchmark.token_limits_ns or {}
        ):
            yield (
                "--scenarios Interactive: LoadGen has no Interactive settings for "
                f"{self.benchmark}: drop Interactive"
            )
        yield from self._rule_problems(rules, benchmark)
        if "target_qps" in self.options and {*AT_A_RATE} <= {*self.chosen_scenarios}:
            keys = (f"{self.loadgen_model(s)}.Server.target_qps" for s in AT_A_RATE)
            yield (
                f"--target-qps would give {' and '.join(AT_A_RATE)} the same rate: set both in a file, as {' and '.join(keys)}, "
                "and pass it with --user-conf"
            )

    def _rule_problems(self, rules: Round, benchmark: Benchmark) -> Iterator[str]:
        """Yields a problem for each benchmark rule that the harness cannot follow."""
        if benchmark.client and self.division != "open" and not self.rehearsal:
            yield (
                f"--benchmark {self.benchmark}: its speed is measured with {benchmark.client}: use that client, --division "
                "open, or --rehearsal"
            )
        for audit in self.audits:
            if needs := rules.audits[audit].needs:
                yield (
                    f"--benchmark {self.benchmark}: {audit} needs {needs}, which the harness does not have: "
                    "make it with MLCommons' reference, or use --division open"
                )
        is_official = self.division != "open" and not self.rehearsal
        if is_official and "ROUGELSUM" in benchmark.targets:
            yield from (f"--benchmark {self.benchmark}: {lack}" for lack in _lacks_of_rouge())
        if benchmark.counts_tokens or {*OF_TOKENS} & {*self.audits}:
            yield from self._token_problems()
        needs_tokens = benchmark.token_limits_ns is not None or {*OF_TOKENS} & {*self.audits}
        if self.is_short and needs_tokens:
            yield (
                f"--duration: the result of {self.benchmark} counts tokens, and LoadGen gets them "
                "only under the official rules: drop --duration"
            )

    def _token_problems(self) -> Iterator[str]:
        """Yields a problem if the replies do not contain the tokens that the benchmark counts."""
        backend = str(self.options.get("backend", ""))
        if self.division == NETWORK and backend in REMOTE_BACKENDS:
            yield (
                f"--division network: the result of {self.benchmark} counts tokens, but kserve, the only backend that reports "
                "the servers' names, reports no tokens: use a different division"
            )
        elif backend in _WITHOUT_TOKENS:
            yield (
                f"--backend {backend}: the result of {self.benchmark} counts tokens, but this backend reports none: use "
                "openai or http-json"
            )

    def _closed_scenario_problems(
        self, required: Sequence[str], optional: Sequence[str]
    ) -> Iterator[str]:
        lacks_one = bool(optional) and not {*optional} & {*self.scenarios}
        if lacks_one or not {*required} <= {*self.scenarios}:
            one_of = f" and one of {', '.join(optional)}" if optional else ""
            yield f"--scenarios: the {self.division} division requires {', '.join(required)}{one_of}"
        more = [s for s in self.scenarios if s in OURS and s not in (*required, *optional)]
        if required and more:
            yield (
                f"--scenarios {','.join(more)}: the category {self.category} has no submission of "
                f"{self.benchmark} in this scenario: drop the scenario"
            )

    def _meter_problems(self) -> Iterator[str]:
        """Yields a problem for each meter other than PTDaemon, because a power result requires a PTDaemon session."""
        try:
            meters = self.meters
        except ValueError as e:
            yield f"--meter: {e}"
            return
        for name, argument in meters:
            if name != ptdaemon.NAME:
                about = METERS[name].about if name in METERS else "a plug-in's readings"
                yield (
                    f"--meter {name} ({about}) cannot be submitted, because MLPerf Power accepts only PTDaemon's "
                    f"readings of the whole system at the wall: remove --meter, or use {ptdaemon.USAGE}"
                )
                continue
            try:
                ptdaemon.PtdaemonMeter(argument)
            except ConfigError as e:
                yield str(e)
        if len(meters) > 1:
            yield "--meter appears twice: keep one"

    def _slo_problems(self, rules: Round) -> Iterator[str]:
        if "slo" not in self.options:
            return
        given = self.options["slo"]
        texts = given if isinstance(given, list | tuple) else [given]
        if len(texts) != 1:
            yield "--slo appears twice: keep one"
            return
        try:
            slo = parse_slo(str(texts[0]))
        except ValueError as e:
            yield f"--slo: {e}"
            return
        if slo.of:
            yield f"--slo {slo}: the search for Server's rate accepts only a latency bound"
            return
        if "Server" in (self.of_round.token_limits_ns or {}) and not self.is_short:
            yield (
                f"--slo {slo}: the round bounds the token times of {self.benchmark}: search with `peak --slo ttft:p99=... "
                "--slo tpot:p99=...`, and pass the rate with --target-qps"
            )
            return
        if "Server" not in self.chosen_scenarios:
            benchmark = self.of_round
            is_possible = self.division == "open" or "Server" in (
                *benchmark.scenarios(self.category),
                *benchmark.optional_in(self.category),
            )
            rest = (
                "which is not among the scenarios: remove --slo, or add Server to --scenarios"
                if is_possible
                else f"which {self.benchmark} does not have in the category {self.category}: remove --slo"
            )
            yield f"--slo applies to Server, {rest}"
        if self.is_short:
            return
        if self.is_rate_given("Server"):
            yield "--slo requests a search for Server's rate, but the rate is set: remove one of them"
        yield from self.looser(slo, "--slo", rules)

    def looser(self, slo: Slo, what: str, rules: Round) -> Iterator[str]:
        """Yields a problem if `slo` is looser than the round's bound, because the rate might then be too high."""
        limit_ns = self.of_round.latency_limit_ns.get("Server")
        limit = Slo(rules.percentiles["Server"], limit_ns or slo.bound_ns)
        if slo.percentile < limit.percentile or slo.bound_ns > limit.bound_ns:
            yield f"{what} {slo}: this is looser than the round's bound for Server, {limit}: use that bound or a tighter one"

    @property
    def meters(self) -> tuple[tuple[str, str], ...]:
        """Returns a (name, argument) pair per meter. Raises a ValueError if a text does not describe a meter."""
        values = self.options.get("meter") or ()
        texts = values if isinstance(values, list | tuple) else [values]
        return tuple(parse_meter(str(text)) for text in texts)

    def user_conf_rate(self, scenario: str) -> float | None:
        """Returns the rate that the user's user.conf sets for the scenario. Raises a ConfigError if the file is faulty."""
        path = self.options.get("user_conf")
        return rate.of_user_conf(Path(str(path)), self.loadgen_model(scenario)) if path else None

    def is_rate_given(self, scenario: str) -> bool:
        return "target_qps" in self.options or self.user_conf_rate(scenario) is not None

    @property
    def searches(self) -> bool:
        requested = "slo" in self.options and not self.is_rate_given("Server")
        return requested and "Server" in self.chosen_scenarios

    @property
    def rules(self) -> Round:
        return load_round(self.round)

    @property
    def of_round(self) -> Benchmark:
        return self.rules.benchmarks[self.benchmark]

    def loadgen_model(self, scenario: str) -> str:
        """Returns the benchmark's key in LoadGen's built-in file mlperf.conf."""
        return self.of_round.loadgen + (INTERACTIVE if scenario == "Interactive" else "")

    @property
    def called(self) -> str:
        return self.folder or self.benchmark

    @property
    def chosen_scenarios(self) -> tuple[str, ...]:
        """The requested scenarios or, by default, the required scenarios, in the order of OURS. If the rules require
        any one of several scenarios, Server is chosen.
        """
        required = self.of_round.scenarios(self.category)
        if self.division != "open" and "Server" in self.of_round.optional_in(self.category):
            required += ("Server",)
        return tuple(s for s in OURS if s in (self.scenarios or required))

    @property
    def audits(self) -> tuple[str, ...]:
        return () if self.division == "open" else self.of_round.audits

    @property
    def is_short(self) -> bool:
        return self.rehearsal and "duration" in self.options

    @property
    def is_closed(self) -> bool:
        """Whether only the round's model and data are allowed; false in the open division and in a rehearsal."""
        return self.division != "open" and not self.rehearsal

    @property
    def tree_names(self) -> tuple[str, str]:
        """Names of the submitter and the system in the tree; a rehearsal uses names that mark it as a rehearsal."""
        if not self.rehearsal:
            return self.submitter, self.system
        return REHEARSAL_SUBMITTER, self.system.removesuffix(REHEARSAL_SUFFIX) + REHEARSAL_SUFFIX

    @property
    def _run_options(self) -> dict[str, Any]:
        """Options that a search and every run share."""
        return {**self.options, **({"qdl": True} if self.division == NETWORK else {})}

    def run_config(
        self,
        scenario: str,
        mode: str,
        audit: Path | None,
        searched_rate: float | None = None,
        conf: Path | None = None,
    ) -> RunConfig:
        """Returns the settings for one of the planned runs.

        searched_rate: Server's rate from a search, in queries/s. conf: user.conf with the round's settings; None
        without such settings.
        """
        plain = {**self._run_options, "scenario": OURS[scenario], "mode": mode}
        if scenario not in AT_A_RATE:
            plain = {k: v for k, v in plain.items() if k not in OF_SERVER}
        elif scenario == "Server" and searched_rate is not None:
            plain["target_qps"] = searched_rate
        if scenario in ("SingleStream", "MultiStream"):
            plain.pop("instances", None)
        if audit is not None:
            plain["audit"] = str(audit)
        if audit is not None or mode != "performance":
            plain.pop("meter", None)
        plain |= self._of_accuracy(plain) if mode == "accuracy" else _of_audit(plain, audit)
        limit_ns = self.of_round.latency_limit_ns.get(scenario)
        if self.is_short and limit_ns is not None:
            plain.setdefault("slo", f"p99={limit_ns / 1e6:g}ms")
        if not self.is_short:
            plain.pop("slo", None)
            plain |= {"mlperf": True, "mlperf_model": self.loadgen_model(scenario)}
            if conf is not None:
                plain["user_conf"] = str(conf)
            plain.setdefault("performance_count", self.of_round.performance_samples)
        return from_plain(plain, FILE)

    def _of_accuracy(self, plain: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the options that differ in an accuracy run. plain: the options for every run."""
        own: dict[str, Any] = {}
        if self.accuracy_data:
            own |= {"data_dir": self.accuracy_data, "performance_count": self.of_round.samples}
        given, most = plain.get("backend_option", ()), self.of_round.accuracy_max_tokens
        has_most = any(str(one).startswith("max_tokens=") for one in given)
        if most and plain.get("backend") == "openai" and not has_most:
            own["backend_option"] = [*given, f"max_tokens={most}"]
        return own

    def search_config(self) -> RunConfig:
        """Returns the settings for the `peak` search, which uses the options' `slo`."""
        plain = {**self._run_options, "scenario": "server", "mode": "performance"}
        plain = {k: v for k, v in plain.items() if k not in ("user_conf", "meter")}
        if not self.is_short:
            plain["duration"] = CONFIRM
            plain.setdefault("performance_count", self.of_round.performance_samples)
        return from_plain(plain, FILE)


def _of_audit(plain: Mapping[str, Any], audit: Path | None) -> dict[str, Any]:
    """Returns the options that differ in an audit. A score may need texts, whereas some audits need tokens."""
    if audit is None or audit.stem not in OF_TOKENS or plain.get("backend") != "openai":
        return {}
    given = [o for o in plain.get("backend_option", ()) if not str(o).startswith("answer=")]
    return {"backend_option": [*given, "answer=ids"]}


def _lacks_of_rouge() -> Sequence[str]:
    """Returns the missing requirements for computing rougeLsum with the metric `rouge` as MLPerf does. Packages are not
    listed, because the run itself reports missing packages.
    """
    try:
        metric: Any = registry.load("metric", "rouge")
    except PluginUnavailable:
        return ()
    return tuple(metric.missing())
