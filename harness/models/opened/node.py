"""Describes a node of --nodes: what runs there, how fast it is, and in what it differs from the others."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import harness
from harness.core.registry import short_name
from harness.errors import ConfigError, refuse
from harness.types import TensorSpec

INDICES = "indices"
"""The input of a node's model `NAME@indices`: dataset indices, INT32, in place of the samples themselves."""

BACKEND = "the backend"
"""The word of `_compared` for it."""

ANSWER = "answer"
"""Its output: the answers of the manifest's postprocessing."""


def by_indices(model: str) -> str:
    """The node's name of the model that takes dataset indices."""
    return f"{model}@{INDICES}"


RUN_BYTES = 16
"""Length of the number that a run draws: its requests to load samples begin with it."""

IN_USE = 409
"""HTTP status of a node that works for another run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Facts that a node reports about itself, once it is ready."""

    machine: str
    """Name of the machine in its network."""
    boot: str
    """`boot_id` of its kernel, which all containers of one machine share."""
    process: str
    """Drawn by the node's process: the same node under two names has it twice."""
    version: str
    """Version of the harness."""
    code: str
    """SHA-256 of the harness's own modules."""
    backend: str
    backend_description: Mapping[str, Any]
    model: str
    model_sha256: str | None
    """None of a backend that reads no file."""
    model_bytes: int
    dataset: str
    dataset_description: Mapping[str, Any]
    total_count: int
    """Samples in the dataset."""
    inputs: Sequence[Sequence[Any]]
    """Name, type and shape of each input of the model."""
    instances: int
    threads: int
    """Threads of each instance."""
    max_batch: int
    """Samples in the largest batch."""
    rate_per_s: float
    """Samples/s of all instances, measured there before the node was ready."""
    slowest_batch_ns: int
    cpus: Sequence[int]
    """Logical processors that the node may use."""
    pid: int

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(n, d, tuple(shape)) for n, d, shape in self.inputs)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "NodeFacts":
        """Raises a TypeError for another version's."""
        return cls(**content)


@cache
def code_sha256() -> str:
    """Digest of the modules of the harness that is running."""
    root = Path(harness.__file__).parent
    digest = sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _compared(facts: NodeFacts) -> Mapping[str, object]:
    """Facts that must be equal, by the word for each."""
    about = facts.backend_description
    return {
        "the harness's version": facts.version,
        "the harness's code": facts.code,
        BACKEND: short_name(facts.backend),
        "the framework": about.get("framework"),
        "the precision": about.get("precision"),
        "the model": facts.model,
        "the model's file": facts.model_sha256,
        "the dataset": facts.dataset,
        "the data": facts.dataset_description.get("digest"),
        "the number of samples": facts.total_count,
    }


def differences(nodes: Mapping[str, NodeFacts], wanted: Mapping[str, object]) -> Iterator[str]:
    """Yields one line for each fact in which a node differs from `wanted`, or from the first node.

    nodes: by address. wanted: values of this machine and the command line, by the keys of `_compared`.
    """
    first, *others = nodes
    found = {name: _compared(facts) for name, facts in nodes.items()}
    for name in (first, *others):
        for what, value in found[name].items():
            expected = wanted.get(what, found[first][what])
            if value != expected:
                of = "this run's" if what in wanted else f"{first}'s"
                todo = f": pass --backend {value}" if what in wanted and what == BACKEND else ""
                yield f"{name}: {what} is {_short(value)}, {of} is {_short(expected)}{todo}"


def refuse_differences(nodes: Mapping[str, NodeFacts], wanted: Mapping[str, object]) -> None:
    """One ConfigError with every difference."""
    refuse([f"node-differs: {line}" for line in differences(nodes, wanted)])


def own_code() -> Mapping[str, object]:
    """Facts that a node must share with this machine, by the words of `_compared`."""
    return {"the harness's version": harness.__version__, "the harness's code": code_sha256()}


def _short(value: object) -> str:
    text = str(value)
    return f"{text[:12]}…" if len(text) == 64 and text.isalnum() else text


def check_streams(scenario: str, count: int) -> None:
    """Raises a ConfigError if a stream has several nodes: it sends one query at a time, so all but one would wait."""
    if count > 1:
        raise ConfigError(
            f"--nodes: {scenario} asks one query at a time, and {count} nodes are named: name one of them"
        )
