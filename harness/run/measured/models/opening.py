"""Opens the files and datasets of a set of models for a run. Loads and times each model once."""

import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from harness.core.config.run_config import RunConfig
from harness.core.registry import plugin
from harness.core.units import counted
from harness.errors import ConfigError
from harness.loadgen.plan import InstanceGroup
from harness.models.cache.members import Members, Place, ResidentModels, of_member, places_of
from harness.models.cache.model_set import Member, ModelSet, models_of, slots_of
from harness.models.cache.popularity import top_share
from harness.models.manifest.files import sha256_of
from harness.models.opened.loading import batch_in_file, inputs_of, open_dataset, samples_held
from harness.run.measured.models.dataset import SetDataset
from harness.run.measured.models.instance import SetBackend
from harness.types import Dataset


class Opened(NamedTuple):
    """An opened set of models, which is ready for the warm-up."""

    models: ResidentModels
    backend: SetBackend
    dataset: SetDataset
    load_s: list[float]
    """Load time of each model. The models were loaded one after another."""
    slowest_ns: int
    """Time of the slowest load, including the model's first answer."""
    resident_bytes: int
    """Maximum number of bytes that the cache may hold."""


class _Tried(NamedTuple):
    """The result of loading one model alone."""

    dataset: Dataset
    held: int
    """Number of samples that may be loaded at once."""
    backend: Mapping[str, Any]
    """Result of the backend's `describe` method."""
    load_ns: int
    first_ns: int
    """Time of the first answer."""
    run_ns: int
    """Time of the second answer."""


def open_set(
    config: RunConfig,
    models: ModelSet,
    group: InstanceGroup,
    stack: ExitStack,
    progress: Callable[[int, int], None],
) -> Opened:
    """Loads each model alone and answers two samples, so that faults appear before the first query.

    progress: called with the number of loaded models and the total number of models. Raises ConfigError if a file is
    missing, or if a model cannot process a single sample.
    """
    places = places_of(config, models)
    copies = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="harness-models-")))
    members = Members(config, models, places, group, copies)
    resident = ResidentModels(members)
    stack.callback(resident.close)
    tried = _try_all(config, models, members, progress)
    seed = config.seed or 0
    shares = models.shares(seed)
    slots = slots_of(shares)
    about = {
        "source": f"{counted(int(slots.sum()), 'sample')} of {counted(len(tried), 'model')}",
        "digest": _digest(models, places, slots.tolist()),
        "seed": seed,
        "capacity_bytes": models.capacity_bytes,
        "local_capacity_bytes": models.local_capacity_bytes,
        "policy": models.content.policy,
        "popularity": _popularity(models),
        "top_share": top_share(shares),
        "models": [
            {
                "name": member.name,
                "model": member.model.name,
                "dataset": member.dataset,
                "bytes": place.bytes,
                "always": member.always,
                "share": float(share),
                "slots": int(count),
                "load_ns": one.load_ns,
                "first_ns": one.first_ns,
                "run_ns": one.run_ns,
            }
            for member, place, share, count, one in zip(
                models.members, places, shares, slots, tried, strict=True
            )
        ],
    }
    dataset = SetDataset(
        [one.dataset for one in tried],
        [one.held for one in tried],
        models_of(slots.tolist(), seed),
        about,
    )
    return Opened(
        models=resident,
        backend=SetBackend(resident, _about_backends([one.backend for one in tried])),
        dataset=dataset,
        load_s=[one.load_ns / 1e9 for one in tried],
        slowest_ns=max(one.load_ns + one.first_ns for one in tried),
        resident_bytes=min(models.capacity_bytes, sum(place.bytes for place in places)),
    )


def _try_all(
    config: RunConfig, models: ModelSet, members: Members, progress: Callable[[int, int], None]
) -> list[_Tried]:
    """Tries each model. Raises ConfigError if a file is missing, or if a model cannot process a single sample."""
    # The first load of a process is not timed, because this load also imports modules.
    members.open(0).stack.close()
    known: dict[tuple[Path | None, str, str], _Tried] = {}
    tried = []
    for number, member in enumerate(models.members):
        key = (members.places[number].path, member.model.name, member.dataset)
        if key not in known:
            known[key] = _try_one(of_member(config, member), members, number, member)
        tried.append(known[key])
        progress(number + 1, len(models.members))
    return tried


def _try_one(config: RunConfig, members: Members, number: int, member: Member) -> _Tried:
    start_ns = time.monotonic_ns()
    opened = members.open(number)
    load_ns = time.monotonic_ns() - start_ns
    with opened.stack:
        backend = opened.backend
        inputs = inputs_of(member.model, backend)
        if (fixed := batch_in_file(backend, inputs)) not in (None, 1):
            raise ConfigError(
                f"--models: {member.name!r} takes batches of {fixed} samples, but a query has one: export it with "
                "a dynamic batch, or with a batch of one"
            )
        dataset = open_dataset(config, member.model, member.dataset, inputs)
        held = samples_held(dataset, member.dataset, member.model.performance_count)
        about = dict(backend.describe())
        with plugin(f"backend {config.backend!r} on {member.name!r}"):
            dataset.load([0])
            times = []
            for _ in range(2):
                start_ns = time.monotonic_ns()
                backend.infer(dataset.batch([0]))
                times.append(time.monotonic_ns() - start_ns)
            dataset.unload([0])
    return _Tried(dataset, held, about, load_ns, *times)


def _about_backends(described: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Merges the descriptions of all backends. If backends have different values for a key, joins all distinct values
    into one string.
    """
    keys = dict.fromkeys(key for one in described for key in one)
    values = {
        key: list(dict.fromkeys(json.dumps(one.get(key), default=str) for one in described))
        for key in keys
    }
    return {
        key: json.loads(each[0]) if len(each) == 1 else ", ".join(text.strip('"') for text in each)
        for key, each in values.items()
    }


def _digest(models: ModelSet, places: list[Place], slots: list[int]) -> str:
    """Returns a digest of the models' files and the number of samples per model."""
    known: dict[Path, str] = {}
    lines = []
    for member, place, count in zip(models.members, places, slots, strict=True):
        if place.path is not None and place.path not in known:
            known[place.path] = sha256_of(place.path)
        file = known[place.path] if place.path is not None else "-"
        lines.append(f"{member.name} {member.dataset} {count} {file}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _popularity(models: ModelSet) -> Mapping[str, Any]:
    """Returns the name of the popularity distribution, and its parameter if it has one."""
    law = models.content.popularity
    own = {"zipf": {"exponent": law.exponent}, "pareto": {"alpha": law.alpha}}
    return {"law": law.law, **own.get(law.law, {})}
