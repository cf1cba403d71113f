"""What a run decided for itself: the plan of instances, config.yaml and environment.json."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.config import MAX_BATCH, RunConfig
from harness.loadgen import ROUNDS, installed_version
from harness.manifest import Model, is_path
from harness.parse import HUB, Slo
from harness.plan import LoadPlan
from harness.scenario import Scenario
from harness.sizing import Loaded

DEFAULT_MAX_BATCH = 8


class Instances(NamedTuple):
    """instances: copies of the model; threads: of each; max_batch: samples."""

    instances: int
    threads: int
    max_batch: int


def instances(config: RunConfig, scenario: Scenario, model: Model, cores: int) -> Instances:
    """Streams: one instance with all cores. Otherwise one a core: that gives the best throughput on
    most CPUs; a search finds out for a given model.
    """
    count = config.instances or (1 if scenario.streams else cores)
    threads = config.threads or max(1, cores // count)
    hint = model.manifest.max_batch if model.manifest else None
    largest = config.max_batch or hint or DEFAULT_MAX_BATCH
    if scenario.streams:  # a query is answered at once, in one batch where the user allows it
        samples = scenario.samples_per_query(config)
        largest = min(samples, config.max_batch or samples)
    return Instances(count, threads, min(largest, MAX_BATCH))


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
        "audit": asked.audit.absolute() if asked.audit else None,
        "dataset": _absolute(dataset),
        "lengths": tuple(
            (name, given.absolute() if isinstance(given, Path) else given)
            for name, given in asked.lengths
        ),
        "meter": tuple((_absolute(name), argument) for name, argument in asked.meter),
        **spec._asdict(),
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
