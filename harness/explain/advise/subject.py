"""Opens the model that `advise` measures: file, graph and first samples."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np

from harness.core.console import say
from harness.errors import ConfigError
from harness.explain.advise.layers.settings import Setting
from harness.explain.advise.options import AdviseOptions
from harness.explain.baseline import Baseline, Subject, open_runner
from harness.machine.cores import available
from harness.models.graph import flops, onnx_file
from harness.models.graph.flops import Cost
from harness.models.graph.graph import Graph
from harness.models.opened.loading import model_file
from harness.results import run_folder
from harness.run.progress import Progress
from harness.types import Array


class Job(NamedTuple):
    """A model under measurement.
    now: the current setting.
    feeds: inputs of one call, made from the dataset's first samples.
    folder: place for temporary files. noted: folder for the progress.
    report: prints the next step, and writes it to `noted` for `browse`. progress: shows the progress of a step.
    """

    options: AdviseOptions
    now: Setting
    subject: Subject
    baseline: Baseline
    path: Path
    feeds: Mapping[str, Array]
    graph: Graph
    costs: Sequence[Cost]
    folder: Path
    noted: Path
    report: Callable[[str], None]
    progress: Progress


def open_job(options: AdviseOptions, subject: Subject, folder: Path, noted: Path) -> Job:
    """folder: for temporary files. noted: folder for the progress, which `browse` shows."""
    if subject.model.layout is not None:
        raise ConfigError(
            f"model {subject.model.name!r} has states, constants or other batch axes, which `advise` does not support: "
            "use `profile` to see its layers, and `tune` to find its best settings"
        )
    # This stack is closed early, so that its contents do not disturb the measurement.
    with ExitStack() as first:
        runner = open_runner(subject, first)
        if runner.fixed not in (None, options.batch):
            raise ConfigError(
                f"model {subject.model.name!r}: the file fixes the batch at {runner.fixed}: "
                f"pass --batch {runner.fixed}"
            )
        baseline = Baseline(subject, options.samples, runner)
    path = model_file(subject.config, subject.model)
    assert path is not None  # because the backend is `ort`, which always reads a file
    feeds = subject.model.in_file(path, _first(baseline, options.batch))
    graph = onnx_file.read(path, shapes={name: rows.shape for name, rows in feeds.items()})

    def report(step: str) -> None:
        run_folder.note_progress(noted, step, None, None)
        if not options.quiet:
            say(step)

    return Job(
        options=options,
        now=Setting(options.graph, options.threads or available().planned, options.execution),
        subject=subject,
        baseline=baseline,
        path=path,
        feeds=feeds,
        graph=graph,
        costs=flops.graph_costs(graph),
        folder=folder,
        noted=noted,
        report=report,
        progress=Progress(quiet=options.quiet),
    )


def _first(baseline: Baseline, count: int) -> dict[str, Array]:
    """Returns the first `count` samples as one batch, and repeats samples if the dataset is too small."""
    _, inputs = next(baseline.chunks())
    try:
        rows = np.arange(count) % min(map(len, inputs.values()))
        return {name: np.ascontiguousarray(values[rows]) for name, values in inputs.items()}
    except MemoryError:
        raise ConfigError(
            f"--batch {count} needs more memory for the input than is free: pass a smaller batch"
        ) from None
