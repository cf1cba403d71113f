"""Compares a measured run with latency budgets and a baseline, for the pytest fixture `latency_budget`."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from harness.api.measuring import measure
from harness.api.result import Result
from harness.core.config.parse import Slo, parse_slo
from harness.core.config.run_config import RunConfig
from harness.core.units import show_ns
from harness.errors import ConfigError, refuse
from harness.results.compare.compare import compare
from harness.results.compare.finished import sides_of
from harness.results.compare.limits import Limit, judge, parse_limit
from harness.results.evidence.stages import PERCENTILES


class LatencyBudget:
    """Measures a configuration, and fails the test if the run is INVALID or misses its budget."""

    def __init__(self, folder: Path) -> None:
        """folder: parent of the result folders, for configurations that do not set `out`."""
        self._folder = folder
        self._runs = 0

    def __call__(
        self,
        config: RunConfig,
        *,
        baseline: Path | str | None = None,
        fail_on: str | Sequence[str] = (),
        noise: float | None = None,
        **bounds: str,
    ) -> Result:
        """Measures a run. Returns the run's result if the run is VALID and within its budget.

        bounds: maximum latency for each percentile (p50, p90, p95, p97, p99; p99_9 for p99.9), such as p99="20ms". The
        first bound becomes the run's SLO if the configuration sets neither an SLO nor --mlperf. baseline: folder of an
        earlier run. fail_on: limits as in `compare --fail-on`, such as "p99:+5%". noise: a share, such as 0.05 for
        --noise 5%.

        If the run is INVALID or misses its budget, fails the test with the line that the verdict, the budget check or
        `compare` reports.

        Raises ConfigError if a bound or limit is malformed, and the errors that `measure` raises.
        """
        slos, limits = _slos(bounds), _limits(fail_on)
        if bool(limits) != (baseline is not None):
            raise ConfigError("baseline and fail_on must be passed together: pass both, or neither")
        if slos and not config.slo and not config.mlperf and config.runs_performance:
            config, slos = replace(config, slo=tuple(slos[:1])), slos[1:]
        if config.out is None:
            self._runs += 1
            config = replace(config, out=self._folder / f"run-{self._runs}")
        result = measure(config)
        missed = [*failures(result, slos)]
        if baseline is not None and result.is_valid:
            missed += regressions(baseline, result.folder, limits, noise)
        if missed:
            pytest.fail("\n".join([*missed, f"results: {result.folder}"]), pytrace=False)
        return result


def failures(result: Result, slos: Sequence[Slo]) -> Iterator[str]:
    """Yields the reasons why a run is INVALID, and one line for each budget that the run exceeds."""
    # pytest's summary shows the first line only.
    verdict = "" if result.is_valid else f"the run is {result.verdict}: "
    for i, reason in enumerate(result.reasons):
        yield f"{'' if i else verdict}{reason.code}: {reason.text}"
    if verdict and not result.reasons:
        yield verdict.removesuffix(": ")
    for slo in slos:
        latency_ns = result.latency_ns.get(slo.name)
        if latency_ns is None:
            yield f"{slo.name} was not measured, but the budget is {slo}"
        elif latency_ns > slo.bound_ns:
            allowed = show_ns(slo.bound_ns)
            yield f"{slo.name} is {show_ns(latency_ns)}, but the budget {slo} allows {allowed}"


def regressions(
    baseline: Path | str, folder: Path, limits: Sequence[Limit], noise: float | None
) -> Iterator[str]:
    """Yields the lines that `compare` prints for limits that the run exceeds, or the reason why the runs cannot be
    compared.
    """
    before, after = sides_of([str(baseline), str(folder)])
    comparison = compare(before, after, noise, [limit.name for limit in limits])
    yield from (f"not comparable: {refusal.text}" for refusal in comparison.refusals)
    yield from (f"limit: {one.line}" for one in judge(comparison, limits) if one.broken)


def _limits(fail_on: str | Sequence[str]) -> list[Limit]:
    problems, limits = [], []
    for text in [fail_on] if isinstance(fail_on, str) else fail_on:
        try:
            limits.append(parse_limit(text))
        except ValueError as e:
            problems.append(f"fail_on: {e}")
    refuse(problems)
    return limits


def _slos(bounds: dict[str, str]) -> list[Slo]:
    problems, slos = [], []
    for name, bound in bounds.items():
        percentile = name.replace("_", ".")
        try:
            if percentile not in PERCENTILES:
                raise ValueError(f"it is not one of {', '.join(PERCENTILES)}")
            slos.append(parse_slo(f"{percentile}={bound}"))
        except ValueError as e:
            problems.append(f"latency_budget: {name}: {e}")
    refuse(problems)
    return slos
