"""Describes the software and the speed of a --nodes node, and how the node differs from other nodes."""

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
"""The input of a node's model `NAME@indices`, which accepts dataset indices (INT32) instead of samples."""

BACKEND = "the backend"
"""The key of the backend in `_compared`."""

ANSWER = "answer"
"""Name of the only output of a node's model: the answers after the manifest's postprocessing."""


def by_indices(model: str) -> str:
    """Returns the name under which a node serves the model that accepts dataset indices."""
    return f"{model}@{INDICES}"


RUN_BYTES = 16
"""Length in bytes of the random number that identifies a run. Requests to load a run's samples begin with this number.
"""

IN_USE = 409
"""The HTTP status with which a node refuses a run while another run is using the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Facts that a node reports about itself when it is ready."""

    machine: str
    """The machine's name on the network."""
    boot: str
    """The kernel's `boot_id`, which is the same in all containers of a machine."""
    process: str
    """A random number that identifies the node's process, and shows whether two names refer to the same node.
    """
    version: str
    """Version of the harness."""
    code: str
    """SHA-256 of the harness's modules."""
    backend: str
    backend_description: Mapping[str, Any]
    model: str
    model_sha256: str | None
    """The model file's SHA-256, or None for a backend that does not read a file."""
    model_bytes: int
    dataset: str
    dataset_description: Mapping[str, Any]
    total_count: int
    """Number of samples in the dataset."""
    inputs: Sequence[Sequence[Any]]
    """Name, type and shape of each input of the model."""
    instances: int
    threads: int
    """Number of threads per instance."""
    max_batch: int
    """Maximum number of samples per batch."""
    rate_per_s: float
    """Throughput of all instances in samples/s, which the node measured before it was ready."""
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
        """Raises TypeError if the facts come from a different version."""
        return cls(**content)


@cache
def code_sha256() -> str:
    """Returns the digest of the running harness's modules."""
    root = Path(harness.__file__).parent
    digest = sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _compared(facts: NodeFacts) -> Mapping[str, object]:
    """Returns the facts that must be equal on all nodes, by the names that messages use."""
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
    """Yields a line for each fact in which a node differs from `wanted` or from the first node.

    nodes: facts by address. wanted: values from this machine and the command line, under the keys of `_compared`.
    """
    first, *others = nodes
    found = {name: _compared(facts) for name, facts in nodes.items()}
    for name in (first, *others):
        for what, value in found[name].items():
            expected = wanted.get(what, found[first][what])
            if value != expected:
                of = "this run's" if what in wanted else f"{first}'s"
                todo = f": pass --backend {value}" if what in wanted and what == BACKEND else ""
                yield f"{name}: {what} is {_short(value)}, but {of} is {_short(expected)}{todo}"


def refuse_differences(nodes: Mapping[str, NodeFacts], wanted: Mapping[str, object]) -> None:
    """Raises a single ConfigError that lists all differences."""
    refuse([f"node-differs: {line}" for line in differences(nodes, wanted)])


def own_code() -> Mapping[str, object]:
    """Returns the facts that must be equal on a node and on this machine, under the keys of `_compared`."""
    return {"the harness's version": harness.__version__, "the harness's code": code_sha256()}


def _short(value: object) -> str:
    text = str(value)
    return f"{text[:12]}…" if len(text) == 64 and text.isalnum() else text


def check_streams(scenario: str, count: int) -> None:
    """Raises ConfigError if a stream scenario has several nodes, because a stream sends one query at a time and only
    one node would work.
    """
    if count > 1:
        raise ConfigError(
            f"--nodes: {scenario} sends one query at a time, but {count} nodes are named: name one of them"
        )
