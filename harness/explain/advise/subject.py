"""Opens the model that `advise` measures: request, file, graph and first samples."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from harness.errors import ConfigError
from harness.explain.advise.layers.settings import Setting
from harness.explain.baseline import Baseline, Subject, open_runner
from harness.models.graph import flops, onnx_file
from harness.models.graph.flops import Cost
from harness.models.graph.graph import Graph
from harness.models.opened.loading import model_file
from harness.types import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """now: the present setting.
    axes: settings that may change.
    batch: samples in a call.
    samples: for measuring accuracy.
    pairs: measurements of each setting against now.
    passes: measurements of each layer.
    """

    now: Setting
    axes: Sequence[str]
    batch: int = 1
    samples: int = 200
    pairs: int = 7
    passes: int = 3
    database: Path


class Job(NamedTuple):
    """A model under measurement. feeds: the first samples of its dataset as one call's inputs."""

    request: Request
    subject: Subject
    baseline: Baseline
    path: Path
    feeds: Mapping[str, Array]
    graph: Graph
    costs: Sequence[Cost]
    folder: Path
    tell: Callable[[str], None]


def open_job(request: Request, subject: Subject, folder: Path, tell: Callable[[str], None]) -> Job:
    """folder: for temporary files. tell: prints one line for each step."""
    with ExitStack() as first:  # its session is not needed any longer than for the answers
        baseline = Baseline(subject, request.samples, open_runner(subject, first))
    path = model_file(subject.config, subject.model)
    assert path is not None  # the backend is `ort`, which reads one
    feeds = _first(baseline, request.batch)
    shapes = {name: rows.shape for name, rows in feeds.items()}
    graph = onnx_file.read(path, shapes=shapes)
    return Job(
        request, subject, baseline, path, feeds, graph, flops.graph_costs(graph), folder, tell
    )


def _first(baseline: Baseline, count: int) -> dict[str, Array]:
    """The first `count` samples as one batch, repeated where there are fewer."""
    _, inputs = next(baseline.chunks())
    try:
        rows = np.arange(count) % min(map(len, inputs.values()))
        return {name: np.ascontiguousarray(values[rows]) for name, values in inputs.items()}
    except MemoryError:
        raise ConfigError(f"--batch {count}: no memory for its input: take a smaller one") from None
