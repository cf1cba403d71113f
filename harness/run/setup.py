"""Defines the first message to the measured process: the run, before anything is loaded."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.config.run_config import RunConfig, from_plain, to_plain
from harness.loadgen.plan import InstanceGroup
from harness.models.cache.model_set import any_model_from_json
from harness.models.manifest.model import Model
from harness.models.opened.resolved_run import ResolvedRun

SESSION_ROWS = "sessions.npz"
"""File with the due time and session of each query, written at the end of a run with sessions."""

NODE_ROWS = "nodes.npz"
"""File next to LoadGen's logs, with the rows of the nodes' journals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The first message to the measured process."""

    config: RunConfig
    model: Model
    dataset: str
    metric: str | None
    """The metric that will score the answers. A metric that refuses the shape of the answers ends the run early."""
    instances: InstanceGroup
    dispatch: str
    """How the scenario's samples reach the model: inline, sliced or queued."""
    samples_per_query: int
    outdir: Path
    """Folder to which LoadGen writes its logs."""
    calibrate_s: float
    """Time for the calibration in seconds; 0 if the plan needs no calibration."""

    @classmethod
    def of(cls, run: ResolvedRun, *, outdir: Path, calibrate_s: float) -> "Setup":
        return cls(
            config=run.config,
            model=run.model,
            dataset=run.dataset,
            metric=run.metric,
            instances=run.instances,
            dispatch=run.scenario.dispatch,
            samples_per_query=run.scenario.samples_per_query(run.config),
            outdir=outdir.absolute(),
            calibrate_s=calibrate_s,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "config": to_plain(self.config),
            "model": self.model.to_json(),
            "dataset": self.dataset,
            "metric": self.metric,
            "instances": self.instances._asdict(),
            "dispatch": self.dispatch,
            "samples_per_query": self.samples_per_query,
            "outdir": str(self.outdir),
            "calibrate_s": self.calibrate_s,
        }

    @classmethod
    def from_json(cls, message: Mapping[str, Any]) -> "Setup":
        """message: result of `to_json`, as received from the channel."""
        return cls(
            config=from_plain(message["config"]),
            model=any_model_from_json(message["model"]),
            dataset=message["dataset"],
            metric=message["metric"],
            instances=InstanceGroup.from_json(message["instances"]),
            dispatch=message["dispatch"],
            samples_per_query=message["samples_per_query"],
            outdir=Path(message["outdir"]),
            calibrate_s=message["calibrate_s"],
        )
