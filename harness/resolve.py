"""What a run decided for itself: config.yaml and environment.json."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.config import RunConfig
from harness.layout import Instances
from harness.loadgen import ROUNDS, installed_version
from harness.manifest import is_path
from harness.parse import HUB, Slo
from harness.plan import LoadPlan
from harness.sizing import Loaded


def config(
    asked: RunConfig, plan: LoadPlan, loaded: Loaded, spec: Instances, dataset: str
) -> RunConfig:
    """This run again: everything that was decided on the way is set."""
    values: dict[str, Any] = {
        "model": str(Path(asked.model).absolute()) if is_path(asked.model) else asked.model,
        "backend": _absolute(asked.backend),
        "metric": _absolute(asked.metric) if asked.metric else None,
        "data_dir": _absolute_data(asked.data_dir),
        "user_conf": asked.user_conf.absolute() if asked.user_conf else None,
        "dataset": _absolute(dataset),
        "lengths": tuple(
            (name, given.absolute() if isinstance(given, Path) else given)
            for name, given in asked.lengths
        ),
        "meter": tuple((_absolute(name), argument) for name, argument in asked.meter),
        "instances": spec.instances,
        "threads": spec.threads,
        "max_batch": spec.max_batch,
        "dataset_digest": loaded.dataset.get("digest"),
        "model_sha256": loaded.model_sha256,
        "loadgen_version": installed_version(),
    }
    if not asked.mlperf:
        values |= {
            "qsl_seed": plan.seeds.qsl,
            "sample_index_seed": plan.seeds.sample_index,
            "schedule_seed": plan.seeds.schedule,
        }
        if plan.percentile is not None and plan.latency_bound_ns is not None:
            values["slo"] = Slo(plan.percentile, plan.latency_bound_ns)
        if not plan.accuracy:
            values |= {"queries": plan.query_count, "target_qps": plan.target_qps}
    return dataclasses.replace(asked, **values)


def _absolute(name: str) -> str:
    """The path of a plug-in's file, so that config.yaml runs from any folder; names stay names."""
    path, separator, attribute = name.rpartition(".py:")
    return f"{Path(path + '.py').absolute()}:{attribute}" if separator else name


def _absolute_data(path: Path | None) -> Path | None:
    return path if path is None or str(path).startswith(HUB) else path.absolute()


def environment(machine: Mapping[str, Any], plan: LoadPlan, loaded: Loaded) -> Mapping[str, Any]:
    """environment.json: the machine, and what ran on it."""
    official = ROUNDS.get(installed_version())
    return {
        **machine,
        "loadgen": {
            "version": installed_version(),
            "round": official.name if official else None,
            "seeds": plan.seeds._asdict(),
        },
        "backend": loaded.backend,
        "dataset": loaded.dataset,
        "model_sha256": loaded.model_sha256,
    }
