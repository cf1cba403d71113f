"""Validates a submission tree against every rule, and returns all findings together."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from harness.errors import ConfigError
from harness.submit.rules import accuracy, audit, layout, raw_logs, settings
from harness.submit.rules import run as rules_run
from harness.submit.rules import system as rules_system
from harness.submit.rules.copies import copied_logs
from harness.submit.rules.findings import OF_A_REHEARSAL, OF_OTHER_DATA, SHORTENED, Finding
from harness.submit.rules.power import rules
from harness.submit.rules.tree.rounds import Round
from harness.submit.rules.tree.submission import Result, Submitter, results, submitters
from harness.submit.rules.tree.tree import Tree, is_folder, shown


class Checked(NamedTuple):
    findings: list[Finding]
    """All findings, starting with the mark of a rehearsal."""
    results: list[str]
    """Paths to all results in the tree."""
    short: Mapping[str, Collection[str]] = MappingProxyType({})
    """Maps a result's path to the rules that the result cannot comply with, because its logs show a short run or other
    data.
    """
    unknown_to: Collection[str] = ()
    """MLCommons' checkers that do not know a benchmark in the tree, so that their verdicts are ignored."""

    def of_result(self, path: str) -> list[Finding]:
        """Returns the findings about the result at `path`: inside it, in its system, or in a folder above it."""
        return [f for f in self.findings if _concerns(f.file, path)]

    def counted(self, *, shortened: bool) -> list[Finding]:
        """Returns the findings that count against the tree. With `shortened`, omits the findings that a rehearsal
        cannot avoid.
        """
        return [f for f in self.findings if not (shortened and self._is_forgiven(f))]

    def _is_forgiven(self, finding: Finding) -> bool:
        return finding.rule in OF_A_REHEARSAL or any(
            finding.rule in rules and finding.file.startswith(f"{path}/")
            for path, rules in self.short.items()
        )


def _concerns(file: str, path: str) -> bool:
    if file == path or file.startswith(f"{path}/") or path.startswith(f"{file}/"):
        return True
    division, submitter, _, system, *_ = path.split("/")
    parts = file.split("/")
    if len(parts) < 3:
        return len(parts) == 1 or parts[0] == division
    if parts[:2] != [division, submitter] or parts[2] == "results":
        return False
    return parts[2] != "systems" or parts[3].startswith(f"{system}.")


def validate(
    root: Path, mlperf_round: Round, only: str | None = None, raw: Path | None = None
) -> Checked:
    """Checks every submitter in the tree, or only the submitter `only`.

    raw: a folder that contains the untruncated accuracy logs, or None. Raises a ConfigError if `root` is not a folder.
    Reports every fault inside `root` as a finding.
    """
    if not is_folder(root):
        raise ConfigError(f"{root} is not a folder: pass the root of a submission tree")
    tree = Tree(root)
    findings = [*layout.mark(tree), *layout.whole_tree(tree, mlperf_round)]
    every: list[Result] = []
    for who in submitters(tree, mlperf_round, only):
        mine = list(results(who))
        findings += _submitter(who, mine, raw)
        every += mine
    findings += copied_logs(every)
    if not every:
        expected = "<division>/<submitter>/results/<system>/<benchmark>/<scenario>"
        findings.append(Finding("no-results", only or ".", "no result", expected))
    findings += layout.unreadable(tree)
    printable = [Finding(f.rule, *map(shown, f[1:])) for f in findings]
    short = {shown(r.path): frozenset(_unavoidable(r)) for r in every}
    unknown_to = {name for r in every if r.benchmark for name in r.benchmark.unknown_to}
    return Checked(list(dict.fromkeys(printable)), list(short), short, unknown_to)


_TOTAL = "qsl_reported_total_count"


def _unavoidable(result: Result) -> Iterator[str]:
    """Yields the rules that, according to its logs, a rehearsal's result does not meet. A result with full-length runs
    and the round's data must comply with every rule.
    """
    run = result.performance
    if run is None or result.benchmark is None:
        return
    setting_ms = run.number("effective_min_duration_ms")
    if setting_ms is not None and setting_ms < result.round.min_duration_ms:
        yield from SHORTENED
        if result.scenario in result.benchmark.results:
            # LoadGen counts tokens only under the official rules, so a quick run's log contains no token counts.
            yield "result-missing"
    counts = {None, result.benchmark.samples_in(str(result.scenario)), result.benchmark.samples}
    of_performance = run.number(_TOTAL)
    of_accuracy = result.accuracy.number(_TOTAL) if result.accuracy else None
    separate = {*counts, result.benchmark.performance_samples}
    if of_performance not in separate or of_accuracy not in counts:
        yield from OF_OTHER_DATA


def _submitter(who: Submitter, mine: list[Result], raw: Path | None) -> Iterator[Finding]:
    yield from layout.submitter_folder(who)
    for system in who.systems():
        yield from rules_system.system_description(who, system)
    yield from layout.benchmark_folders(who, mine)
    for result in mine:
        yield from _result(result, raw)


def _result(result: Result, raw: Path | None) -> Iterator[Finding]:
    yield from layout.scenario_folder(result)
    if result.scenario is None:
        return
    yield from rules_system.measurements(result)
    yield from settings.user_conf(result)
    if result.performance is not None:
        yield from rules_run.performance(result, result.performance)
        yield from settings.main_run(result.performance)
    yield from accuracy.accuracy(result, result.accuracy)
    yield from audit.audits(result)
    if raw is not None:
        yield from raw_logs.raw_logs(result, raw)
    yield from rules.power(result)
