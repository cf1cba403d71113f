"""Opens the models of a set one by one, from local copies of their files if `local_capacity` is set."""

import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from harness.core.config.run_config import RunConfig
from harness.errors import ConfigError
from harness.loadgen.plan import InstanceGroup
from harness.models.cache.cache import HIT, Cache, Counts, Lease
from harness.models.cache.model_set import Member, ModelSet
from harness.models.cache.residents import LRU, Residents
from harness.models.manifest.files import files_of, size_bytes
from harness.models.manifest.hook import load_hook, postprocessor_of
from harness.models.opened.loading import model_file, open_backends
from harness.models.steps.postprocess import Postprocess
from harness.types import Backend


class OpenModel(NamedTuple):
    """A loaded model."""

    backend: Backend
    stack: ExitStack
    """Closes the backend."""
    use: threading.Lock
    """Held by the thread that uses the backend, because only one thread may use the backend at a time."""
    from_source: bool
    """Whether this load had to copy the model's file from its source."""


class Place(NamedTuple):
    """Location and size of one model's files."""

    path: Path | None
    """None if the backend does not read a file."""
    bytes: int


def places_of(config: RunConfig, models: ModelSet) -> list[Place]:
    """Returns each model's file and size. Raises ConfigError with a list of all models whose files are missing."""
    places, problems = [], []
    for member in models.members:
        try:
            path = model_file(of_member(config, member), member.model)
            known = size_bytes(path) if path is not None else 0
            places.append(Place(path, known if member.bytes is None else member.bytes))
        except ConfigError as e:
            problems.append(f"{member.name}: {e}")
    if problems:
        raise ConfigError("\n".join(problems))
    return places


def of_member(config: RunConfig, member: Member) -> RunConfig:
    """Returns the configuration that opens one model of the set as if it were the only model."""
    return replace(config, models=None, dataset=member.dataset)


class Members:
    """The models in one measured process, and the cache of their files. `close` removes the copies."""

    def __init__(
        self,
        config: RunConfig,
        models: ModelSet,
        places: Sequence[Place],
        group: InstanceGroup,
        copies: Path,
    ) -> None:
        """group: the instance group of the run. copies: an empty folder for local copies."""
        self._configs = [of_member(config, member) for member in models.members]
        self.models, self.places = models, places
        self._group = group._replace(instances=1, pinned=())
        self._copies = copies
        self.postprocess: list[Postprocess] = [
            postprocessor_of(
                m.model.output, load_hook(m.model, None), has_states=m.model.has_states
            )
            for m in models.members
        ]
        self._files: Cache[Path] | None = None
        self.reset()

    def reset(self) -> None:
        """Deletes the local copies and resets their counts."""
        if self._files is not None:
            self._files.close()
        self._files = None
        capacity = self.models.local_capacity_bytes
        if capacity is not None:
            sizes = {
                i: size_bytes(place.path) if place.path else 0
                for i, place in enumerate(self.places)
            }
            self._files = Cache(Residents(capacity, LRU), sizes, self._copy, shutil.rmtree)

    @property
    def file_counts(self) -> Mapping[int, Counts] | None:
        """Request counts of the local copies, or None without a cache of files."""
        return self._files.counts if self._files is not None else None

    def open(self, number: int) -> OpenModel:
        """Loads the model. Raises the errors of the backend, and errors that occur while the model's file is copied."""
        source = self.places[number].path
        files = self._files
        if files is None or source is None:
            return self._open(number, source, from_source=False)
        lease = files.acquire(number)
        try:
            return self._open(number, lease.loaded / source.name, from_source=lease.how != HIT)
        finally:
            files.release(lease)

    def open_source(self, number: int) -> OpenModel:
        """Loads the model without local copies, as if it were the run's only model."""
        return self._open(number, self.places[number].path, from_source=False)

    def _open(self, number: int, path: Path | None, *, from_source: bool) -> OpenModel:
        stack = ExitStack()
        try:
            config, member = self._configs[number], self.models.members[number]
            (backend,) = open_backends(config, member.model, path, self._group, stack)
        except BaseException:
            stack.close()
            raise
        return OpenModel(backend, stack, threading.Lock(), from_source)

    def _copy(self, number: int) -> Path:
        source = self.places[number].path
        assert source is not None
        folder = self._copies / f"{number}-{time.monotonic_ns()}"
        into = folder / source.name if source.is_dir() else folder
        try:
            for name, file in files_of(source).items():
                (into / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, into / name)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return folder

    def close(self) -> None:
        if self._files is not None:
            self._files.close()


def residents_of(models: ModelSet, places: Sequence[Place]) -> Residents:
    """Returns an empty cache for the set. Raises ConfigError if the always-resident models do not fit."""
    always = {i: places[i].bytes for i, member in enumerate(models.members) if member.always}
    try:
        return Residents(models.capacity_bytes, models.content.policy, always)
    except ValueError as e:
        raise ConfigError(
            f"--models: {e}: raise the capacity, or set `always: true` for fewer models"
        ) from e


class ResidentModels:
    """The models of a run, served from a cache. Any thread may acquire a model and must later release it."""

    def __init__(self, members: Members) -> None:
        self.members = members
        self._cache = self._empty()

    def _empty(self) -> Cache[OpenModel]:
        places = self.members.places
        return Cache(
            residents_of(self.members.models, places),
            {i: place.bytes for i, place in enumerate(places)},
            self.members.open,
            lambda opened: opened.stack.close(),
        )

    @property
    def counts(self) -> Mapping[int, Counts]:
        return self._cache.counts

    def acquire(self, number: int) -> Lease[OpenModel]:
        """Returns the loaded model for exclusive use by the calling thread. Raises LoadFailed if the load fails."""
        lease = self._cache.acquire(number)
        lease.loaded.use.acquire()
        return lease

    def release(self, lease: Lease[OpenModel]) -> int:
        """Releases a model. Returns the number of models evicted by this call."""
        lease.loaded.use.release()
        return len(self._cache.release(lease))

    def reset(self) -> None:
        """Resets the cache to its state at the start of a run, with only the always-resident models loaded."""
        self._cache.close()
        self.members.reset()
        self._cache = self._empty()
        self._cache.load_always()
        self._cache.forget_counts()

    def close(self) -> None:
        self._cache.close()
        self.members.close()
