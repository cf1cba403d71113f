"""Fake runs of a system with a peak, which replace harness.run.supervisor.job.measure."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.core.config.run_config import RunConfig
from harness.errors import HarnessError
from harness.loadgen.plan import LoadPlan
from harness.results.outcome import Finished
from harness.run.progress import Progress

CAPACITY = 4000.0


def result(config: RunConfig, reasons: list[str], late: int | None) -> dict[str, Any]:
    """Returns the parts of result.json that a search reads; 7 queries were answered, whatever the plan."""
    rate = config.target_qps or CAPACITY / 4
    latency = dict.fromkeys(("mean", "p50", "p90", "p95", "p97", "p99", "p99.9"), int(1e9 / rate))
    return {
        "started": "2026-01-01T00:00:00.000+00:00",
        "verdict": "INVALID" if reasons else "VALID",
        "reasons": [{"code": code, "text": f"{code} it is"} for code in reasons],
        "doubts": [],
        "headline": None,
        "scenario": config.scenario,
        "backend": config.backend,
        "model": config.model,
        "dataset": "digits",
        "mode": config.mode,
        "latency_ns": latency,
        "throughput_per_s": {
            "asked": rate if config.scenario == "server" and reasons != ["interrupted"] else None,
            "scheduled": rate,
            "completed": rate,
        },
        "queries": {
            "planned": config.queries or 2010,
            "late": late,
            "mean_batch": 1.0,
            "samples_per_query": config.samples_per_query or 8,
            "samples_answered": 7 * (config.samples_per_query or 8),
        },
        "calibration": {"rate_per_s": CAPACITY},
        "environment": {},
    }


class System:
    """Stands in for a system that is VALID up to `peak` queries/s or samples per query. broken: maps the number of a
    run that is not VALID to a (reason's code, exit status), or to an error to raise. fastest_ns: maps the number of a
    run to its least latency, if the latency is not 1 us. model_ns: time of a batch of one in bare loops. final: reasons
    of complete runs, whose folder therefore has its final name.
    """

    def __init__(
        self,
        peak: float,
        broken: Mapping[int, tuple[str, int] | HarnessError] | None = None,
        fastest_ns: Mapping[int, int] | None = None,
        model_ns: float | None = None,
        final: Sequence[str] = (),
    ) -> None:
        self.peak = peak
        self.fastest_ns = fastest_ns or {}
        self.model_ns = model_ns
        self.final = ("slo-missed", *final)
        self.broken = broken or {}
        self.configs: list[RunConfig] = []

    def __call__(
        self,
        config: RunConfig,
        *,
        quiet: bool = True,
        shown: object = None,
        most_late: Callable[[LoadPlan], int] | None = None,
        probe_s: float = 0.0,
        progress: Progress | None = None,
    ) -> Finished:
        self.configs.append(config)
        if progress is not None:
            progress.show("performance", share=0.5)
        end = self.broken.get(len(self.configs))
        if isinstance(end, HarnessError):
            raise end
        if end is not None:
            return self._left(config, [end[0]], 0, end[1])
        load = config.samples_per_query if config.scenario == "multi-stream" else config.target_qps
        load = load or config.concurrency
        if load is None or load <= self.peak:
            return self._left(config, [], 0, 0)
        if most_late is not None and load > 1.5 * self.peak:
            return self._left(config, ["hopeless"], None, 4)
        return self._left(config, ["slo-missed"], 10**6, 4)

    def _left(
        self, config: RunConfig, reasons: list[str], late: int | None, status: int
    ) -> Finished:
        assert config.out is not None
        partial = status > 0 and reasons[0] not in self.final
        folder = config.out.with_name(config.out.name + ".partial") if partial else config.out
        (folder / "performance" / "run_1").mkdir(parents=True)
        made = result(config, reasons, late)
        made["latency_ns"]["min"] = self.fastest_ns.get(len(self.configs), 1000)
        if self.model_ns is not None:
            loops = {"batch": 1, "before": self.model_ns, "after": self.model_ns}
            made["reference"] = {"service_ns": [loops]}
        (folder / "result.json").write_text(json.dumps(made))
        return Finished(status, folder, made)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
