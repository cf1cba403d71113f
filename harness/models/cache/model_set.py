"""Reads the --models file, which defines a set of models, their popularity, and the cache that serves them."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from harness.core.formats.strict_yaml import load_yaml
from harness.core.units import parse_bytes, show_percent
from harness.errors import ConfigError, some_of
from harness.models.cache.popularity import allotted, measured, pareto, zipf
from harness.models.cache.residents import POLICIES
from harness.models.manifest.lookup import field_problem, is_path, load_model, model_from_json
from harness.models.manifest.model import Model
from harness.types import Array

NAME = "models"
"""Name of the dataset in a run with several models. Each model reads a separate dataset."""

SLOTS = 10_000
"""Number of samples in the run. Each sample belongs to one model. LoadGen draws samples uniformly at random, so a
model's share of the queries equals its share of the samples.
"""
SLOTS_PER_MODEL = 10

_DRAWN_BY_SLOTS = 0x51_075


def _size(value: object) -> object:
    """Returns the value. Raises ValueError if the value is not a size with a unit."""
    parse_bytes(str(value))
    return value


Size = Annotated[str, BeforeValidator(_size)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Entry(_Strict):
    """One line of `models`."""

    model: str
    """The model, in the syntax of --model."""
    name: str | None = None
    """Name of this model; by default, the name in its manifest."""
    dataset: str | None = None
    """The dataset, in the syntax of --dataset. Default: the dataset in the manifest, or else synthetic data."""
    requests: Annotated[int, Field(ge=0)] | None = None
    """Number of requests counted for the model, from which the popularity `measured` computes the model's share."""
    bytes: Size | None = None
    """The memory that the model needs. Default: the size of its files."""
    always: bool = False
    """Whether to load the model before the first query and never evict it."""
    copies: Annotated[int, Field(ge=1, le=1000)] = 1
    """Number of models to make from this file, named NAME-1 to NAME-N. Each model is loaded separately."""


class Popularity(_Strict):
    """Distribution of the queries over the models."""

    law: Literal["zipf", "pareto", "measured"]
    exponent: Annotated[float, Field(ge=0, le=10)] = 1.0
    """With zipf, the share of the model in line r is proportional to r ** -exponent."""
    alpha: Annotated[float, Field(gt=0, le=100)] = 1.16
    """With pareto, the shares are proportional to random draws, which --seed determines. The first line gets the
    largest share.
    """


class SetFile(_Strict):
    """The content of a --models file."""

    models: Annotated[list[Entry], Field(min_length=1)]
    capacity: Size
    """Capacity of the cache: the maximum total size of the models in memory, in bytes."""
    policy: Literal["lru", "lcu", "fifo", "never", "eager"] = "lru"
    popularity: Popularity = Popularity(law="zipf")
    local_capacity: Size | None = None
    """Maximum total size of the local copies of model files, in bytes. If this field is omitted, the original files
    count as local.
    """
    workers: Annotated[int, Field(ge=1, le=1024)] = 1
    """Number of threads that run queries. --instances overrides it."""


assert set(POLICIES) == set(SetFile.model_fields["policy"].annotation.__args__)  # type: ignore[union-attr]


class Member(NamedTuple):
    """One model of the set."""

    name: str
    model: Model
    dataset: str
    requests: int | None
    bytes: int | None
    always: bool


class ModelSet(Model):
    """The models of a run with several models. Replaces the single model of an ordinary run."""

    def __init__(self, name: str, content: SetFile, members: Sequence[Member]) -> None:
        super().__init__(name, None, Path(), None)
        self.content = content
        self.members = tuple(members)

    def to_json(self) -> dict[str, Any]:
        members = [{**member._asdict(), "model": member.model.to_json()} for member in self.members]
        return {"set": self.name, "file": self.content.model_dump(), "members": members}

    @property
    def dataset(self) -> str:
        return NAME

    @property
    def capacity_bytes(self) -> int:
        return parse_bytes(self.content.capacity)

    @property
    def local_capacity_bytes(self) -> int | None:
        text = self.content.local_capacity
        return None if text is None else parse_bytes(text)

    @property
    def has_random_weights(self) -> bool:
        return any(member.model.has_random_weights for member in self.members)

    @property
    def may_have_to_be_obtained(self) -> bool:
        return any(member.model.may_have_to_be_obtained for member in self.members)

    def obtain(self, formats: tuple[str, ...], say: Callable[[str], None]) -> None:
        for model in {id(member.model): member.model for member in self.members}.values():
            if model.may_have_to_be_obtained:
                model.obtain(formats, say)

    def is_pinned(self, _sha256: str | None, /) -> bool:
        """Returns True, because each member's manifest pins its file, and the loader refuses any other file."""
        return True

    @property
    def datasets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(member.dataset for member in self.members))

    @property
    def workers(self) -> int:
        return self.content.workers

    def shares(self, seed: int) -> Array:
        """Returns the share of each model: (models,) float64, with the sum 1. seed: the run's seed."""
        law = self.content.popularity
        if law.law == "measured":
            return measured([member.requests or 0 for member in self.members])
        if law.law == "pareto":
            return pareto(len(self.members), law.alpha, seed)
        return zipf(len(self.members), law.exponent)


def slots_of(shares: Array) -> Array:
    """Returns the number of the run's samples that use each model: (models,) int64."""
    return allotted(shares, max(SLOTS, SLOTS_PER_MODEL * len(shares)))


def models_of(slots: Sequence[int], seed: int) -> Array:
    """Returns the model of each sample: (samples,) int64. slots: number of samples per model. seed: the run's seed."""
    each = np.repeat(np.arange(len(slots)), slots)
    return np.random.default_rng([_DRAWN_BY_SLOTS, seed]).permutation(each)


def load_model_set(path: Path, *, without_files: bool = False) -> ModelSet:
    """Returns the model set that a --models file describes. Raises ConfigError with a list of all faults in the file.
    without_files: whether model files may be missing, as in a published copy.
    """
    content: Any = load_yaml(path)
    if not isinstance(content, dict):
        raise ConfigError(
            f"{path}: a set of models must be a mapping with `models` and `capacity`, as in docs/models-sharing.md"
        )
    try:
        parsed = SetFile.model_validate(content)
    except ValidationError as e:
        raise ConfigError(some_of([f"{path}: {field_problem(p)}" for p in e.errors()])) from None
    problems: list[str] = []
    members: list[Member] = []
    for entry in parsed.models:
        try:
            members += _members(entry, path.parent, without_files=without_files)
        except ConfigError as e:
            problems.append(f"{path}: {e}")
    problems += [f"{path}: {line}" for line in _problems(parsed, members)]
    if problems:
        raise ConfigError("\n".join(problems))
    return ModelSet(path.stem, parsed, members)


def _members(entry: Entry, folder: Path, *, without_files: bool) -> Iterator[Member]:
    text = entry.model
    beside = folder / text
    if without_files and is_path(text) and not beside.exists():
        model = Model(beside.stem, None, folder, beside)
    else:
        model = load_model(str(beside) if is_path(str(beside)) and beside.exists() else text)
    name = entry.name or model.name
    for i in range(entry.copies):
        yield Member(
            name=name if entry.copies == 1 else f"{name}-{i + 1}",
            model=model,
            dataset=entry.dataset or model.dataset,
            requests=entry.requests,
            bytes=None if entry.bytes is None else parse_bytes(entry.bytes),
            always=entry.always,
        )


def _problems(parsed: SetFile, members: Sequence[Member]) -> Iterator[str]:
    names = Counter(member.name for member in members)
    for name in sorted(name for name, count in names.items() if count > 1):
        yield f"the name {name!r} appears twice: give each model a different `name`"
    for member in members:
        if member.model.generates:
            yield (
                f"{member.name!r} generates its answers token by token, which a set of models "
                "does not support: remove this model"
            )
    is_measured = parsed.popularity.law == "measured"
    counted = [member.requests for member in members]
    if is_measured and (None in counted or not any(c for c in counted if c)):
        yield "the popularity `law: measured` needs `requests` for each model, at least one of them above 0"
    if not is_measured and any(count is not None for count in counted):
        yield f"`requests` apply only to the popularity `law: measured`, but the law is {parsed.popularity.law}"
    always = sum(member.bytes or 0 for member in members if member.always)
    if always > parse_bytes(parsed.capacity):
        share = show_percent(always / parse_bytes(parsed.capacity))
        yield f"the models with `always: true` take {share} of the capacity"


def any_model_from_json(values: Mapping[str, Any]) -> Model:
    """Creates a model or a set of models from the result of `to_json`."""
    if "set" not in values:
        return model_from_json(values)
    members = [
        Member(**{**member, "model": model_from_json(member["model"])})
        for member in values["members"]
    ]
    return ModelSet(values["set"], SetFile.model_validate(values["file"]), members)
