"""Lists the ways to share a model's weights, and the reasons why a framework cannot use a way."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

SHARED = 0.5
"""A second worker counts as sharing the weights if the memory that it adds is at most this share of the weights' size
(TrIMS).
"""

INSTANCES, PROCESSES = "instances", "processes"
MAPPED, INITIALISERS, FORK = "mapped", "initialisers", "fork"


class Way(NamedTuple):
    """A way to share.

    second: the second worker is a separate `process`, an `instance` in the first worker, or a `fork` of the first
    worker.
    """

    name: str
    second: str
    about: str


WAYS: Mapping[str, Way] = {
    way.name: way
    for way in (
        Way(INSTANCES, "instance", "two instances in one process; each loads the file"),
        Way(PROCESSES, "process", "two processes; each loads the file"),
        Way(
            MAPPED, "process", "two processes; the weights are mapped from a file and not repacked"
        ),
        Way(
            INITIALISERS,
            "instance",
            "two instances in one process; the second one uses the first's weights",
        ),
        Way(FORK, "fork", "the first process forks after its first answer; one thread each"),
    )
}

HOW: Mapping[tuple[str, str], str] = {
    (MAPPED, "ort"): "file optimised beforehand, external weights, prepacking off",
    (MAPPED, "openvino"): "IR, whose weights OpenVINO maps",
    (MAPPED, "litert"): "XNNPACK off, because its kernels repack the weights",
    (MAPPED, "torch"): "parameters of a file that torch.load maps",
    (INITIALISERS, "ort"): "--backend-option share_weights=on",
    (INITIALISERS, "openvino"): "another infer request of the same compiled model",
    (INITIALISERS, "torch"): "parameters of the first instance",
}
"""Description of each way by backend."""

_NO_SHARING = "its Python package has no call that accepts external weights"

_OWN_MEMORY = "TensorFlow restores variables into its own memory and accepts no external memory"

CANNOT: Mapping[tuple[str, str], str] = {
    (MAPPED, "tensorflow"): _OWN_MEMORY,
    (INITIALISERS, "tensorflow"): _OWN_MEMORY,
    (INITIALISERS, "litert"): "an interpreter uses only the weights in its file",
    (
        MAPPED,
        "executorch",
    ): "XNNPACK packs a copy of the weights for each loaded method",
    (INITIALISERS, "executorch"): "a program uses only the weights in its file",
    (MAPPED, "trees"): "tree libraries build their nodes in memory",
    (INITIALISERS, "trees"): "a forest uses only the nodes in its file",
    **{
        (way, backend): _NO_SHARING
        for way in (MAPPED, INITIALISERS)
        for backend in ("ncnn", "mnn", "tract")
    },
}


def pairs(backends: Mapping[str, object]) -> Iterator[tuple[Way, str, str | None]]:
    """Yields every way on every backend, with the reason why the way is not possible, or None."""
    for backend in backends:
        for way in WAYS.values():
            yield way, backend, CANNOT.get((way.name, backend))
