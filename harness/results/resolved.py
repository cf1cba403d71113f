"""Builds environment.json, and config.yaml with every value resolved."""

import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.core.config import code
from harness.core.config.parse import HUB
from harness.core.config.run_config import RunConfig
from harness.core.config.schema import RunOptions
from harness.loadgen.plan import Loaded, LoadPlan
from harness.loadgen.versions import ROUNDS, installed_version
from harness.models.manifest.lookup import is_path
from harness.models.manifest.model import Model
from harness.models.opened.resolved_run import ResolvedRun


def config(run: ResolvedRun, plan: LoadPlan, loaded: Loaded) -> RunConfig:
    """Returns the configuration that repeats this run. This configuration contains every value that the run chose."""
    requested, spec = run.config, run.instances
    values: dict[str, Any] = {
        "arrivals_sha256": plan.arrivals_sha256,
        "dataset": run.dataset if requested.models is None else None,
        "max_batch": spec.max_batch,
        "dataset_digest": loaded.dataset.get("digest"),
        "model_sha256": loaded.model_sha256,
        "loadgen_version": installed_version(),
    }
    if requested.url:
        values["connections"] = spec.connections
    elif requested.nodes is None:  # with --nodes, each node makes a separate plan
        values |= {"instances": spec.instances, "threads": spec.threads}
    if not requested.mlperf:
        values |= {
            "qsl_seed": plan.seeds.qsl,
            "sample_index_seed": plan.seeds.sample_index,
            "schedule_seed": plan.seeds.schedule,
        }
        values["slo"] = run.slos
        if not plan.accuracy:
            values |= {"queries": _queries(plan), "target_qps": plan.target_qps}
    return dataclasses.replace(requested, **values)


def _queries(plan: LoadPlan) -> int:
    """Returns the value of --queries that repeats the run. With --until but without a schedule of arrivals, the value
    is the minimum number of queries.
    """
    least = plan.least_queries if plan.schedule is None else None
    return least or plan.query_count


def absolute(requested: RunConfig) -> dict[str, Any]:
    """Returns a mapping from field name to absolute path, so that the configuration works in any folder. Adds the
    digests of plug-in files.
    """
    values = _absolute_paths(requested)
    values["meter"] = tuple((_absolute(m[0]), absolute_argument(*m)) for m in requested.meter)
    return {**values, "plugin_sha256": code.digests(values)}


def without_folder(config: RunOptions) -> list[str]:
    """Returns the fields in a stored configuration that contain a file name without a folder, as `publish` writes them."""
    fields = [
        name for name, value in _absolute_paths(config).items() if value != getattr(config, name)
    ]
    return [*fields, *(["meter"] if any(_absolute(m) != m for m, _ in config.meter) else [])]


def _absolute_paths(requested: RunOptions) -> dict[str, Any]:
    model = requested.model
    repeated = (f.name for f in dataclasses.fields(requested) if f.metadata["repeated"])
    values = ((name, getattr(requested, name)) for name in repeated)
    return {
        **{
            name: value.absolute()
            for name, value in values
            if isinstance(value, Path) and not str(value).startswith(HUB)
        },
        "model": str(Path(model).absolute()) if is_path(model) else model,
        "backend": _absolute(requested.backend),
        "dataset": _absolute(requested.dataset) if requested.dataset else None,
        "metric": _absolute(requested.metric) if requested.metric else None,
        "lengths": tuple(
            (name, lengths.absolute() if isinstance(lengths, Path) else lengths)
            for name, lengths in requested.lengths
        ),
    }


def _absolute(name: str) -> str:
    """Makes a plug-in file's path absolute. Leaves a plug-in's name unchanged."""
    path, separator, attribute = name.rpartition(".py:")
    return f"{Path(path + '.py').absolute()}:{attribute}" if separator else name


def absolute_argument(meter: str, argument: str) -> str:
    """Returns a meter's argument with absolute paths: the folder for rapl and hwmon, the words of the command for other
    meters.
    """
    if meter in ("rapl", "hwmon"):
        return str(Path(argument).absolute()) if argument else ""
    if meter != "command":
        return argument
    words = shlex.split(argument)
    resolved = [_absolute_word(word, first=not i) for i, word in enumerate(words)]
    return shlex.join(resolved) if resolved != words else argument


def _absolute_word(word: str, *, first: bool) -> str:
    """Makes the path of a file absolute. Searches PATH for a first word without a slash. Leaves other words without a
    slash or dot unchanged (`ipmitool power`), even if a file has the same name.
    """
    is_named = "/" in word or ("." in word and not first)
    return str(Path(word).absolute()) if is_named and Path(word).is_file() else word


def environment(
    machine: Mapping[str, Any], plan: LoadPlan, loaded: Loaded, model: Model
) -> Mapping[str, Any]:
    """Returns the content of environment.json: the machine, LoadGen, the backend, the dataset and the model."""
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
        "postprocess": [{step.name: dict(step.options)} for step in model.postprocess],
        "model_sha256": loaded.model_sha256,
        "manifest_sha256": model.manifest_sha256,
    }
