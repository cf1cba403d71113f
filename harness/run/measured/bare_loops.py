"""Times the bare loops of one placement in a separate process, one batch size after another.

Within a process, a framework's instances share some threads, memory and settings. Each placement gets a separate
process, so that different placements do not share them. If a placement cannot be loaded or crashes the process, other
placements are not affected.

    receives   setup    the configuration with the placement, and the batch sizes
    sends      loaded   the backend's tunable options, and the batch size that the file fixes
    sends      timed    once per size; then `done`           (or `error` at any time)
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from harness.core.child import Channel, serve
from harness.core.config.run_config import RunConfig, from_plain
from harness.core.registry import plugin
from harness.core.service_times import ServiceTimes
from harness.loadgen.plan import InstanceGroup
from harness.models.manifest.lookup import load_model
from harness.models.opened.loading import open_model, samples_held
from harness.models.steps.postprocess import postprocessor
from harness.run.measured.answerer import Answerer, run_in_threads
from harness.run.measured.service_times import batches_of, measure
from harness.types import Backend, Batch, Dataset

SIZE_LIMIT_S = 0.06
"""A batch size is timed for at most this long, unless three batches take longer."""

GROWTH = 1.02
PATIENCE = 2
"""Larger sizes are skipped after this many consecutive sizes that did not raise samples/s by the factor GROWTH.
"""

_QUIET = 0.25
"""The decision to try larger sizes uses this quantile of the batch times. The quantile is low, because other load on
the machine only adds time.
"""

SAMPLES = 64
"""This many samples are loaded; larger batches contain some samples more than once."""


def main() -> None:
    """Entry point of the process."""
    serve(_measure)


def _measure(channel: Channel, _journal_fd: int) -> None:
    setup = channel.receive()
    if setup is not None:
        with ExitStack() as stack:
            _time_placement(channel, setup, stack)


def _time_placement(channel: Channel, setup: Mapping[str, Any], stack: ExitStack) -> None:
    config: RunConfig = from_plain(setup["config"])
    spec = InstanceGroup.from_json(setup["spec"])
    model = load_model(config.model)

    def report_progress(done: int, total: int) -> None:
        channel.send("loading", done=done, total=total)

    _, backends, _, fixed, dataset = open_model(
        config, model, setup["dataset"], spec, stack, report_progress
    )
    held = samples_held(dataset, setup["dataset"], config.performance_count)
    channel.send("loaded", tunable=_other_values(backends[0]), fixed_batch=fixed)
    unchanged = postprocessor((), None, None)
    cpus = spec.pinned or [()] * len(backends)
    answerers = [Answerer(b, dataset, unchanged, cpus[i]) for i, b in enumerate(backends)]
    loaded = list(range(min(held, SAMPLES)))
    with plugin(f"dataset {setup['dataset']!r}, loading samples,"):
        dataset.load(loaded)
    sizes = setup["sizes"] if fixed is None else [min(fixed, max(setup["sizes"]))]
    with plugin(f"backend {config.backend!r} on {setup['dataset']!r}"):
        for times in _times(answerers, dataset, loaded, sizes, setup):
            channel.send("timed", times=times.to_json())
    channel.send("done")


def _other_values(backend: Backend) -> Mapping[str, Sequence[str]]:
    """Returns, for each tunable option, the values that the backend does not currently use."""
    tunable: Mapping[str, Sequence[str]] = getattr(backend, "tunable", {})
    words = {True: "on", False: "off"}
    has = {k: words[v] if isinstance(v, bool) else v for k, v in backend.describe().items()}
    return {
        name: [value for value in values if value != has.get(name)]
        for name, values in tunable.items()
    }


def _times(
    answerers: Sequence[Answerer],
    dataset: Dataset,
    loaded: Sequence[int],
    sizes: Sequence[int],
    setup: Mapping[str, Any],
) -> Iterator[ServiceTimes]:
    """Yields the service times of each size, in ascending order, until larger sizes are no longer worthwhile."""
    best_per_s, fruitless = 0.0, 0
    for size in sizes:
        (alike,) = batches_of(dataset, loaded, [size])
        _warm(answerers, alike[0])
        times = measure(answerers, [alike], SIZE_LIMIT_S, pauses=setup["streams"])
        yield times
        quiet_ns = float(np.quantile(times.ns, _QUIET))
        per_s = size * 1e9 / quiet_ns
        fruitless = 0 if per_s > GROWTH * best_per_s else fruitless + 1
        best_per_s = max(best_per_s, per_s)
        if not setup["streams"] and fruitless >= PATIENCE:
            return
        if setup["most_ns"] is not None and quiet_ns > setup["most_ns"]:
            return


def _warm(answerers: Sequence[Answerer], batch: Batch) -> None:
    """Processes one batch per instance, so that the backend allocates memory and prepares kernels for this size."""

    def once(i: int) -> None:
        answerers[i].backend.infer(batch)

    run_in_threads(answerers, once)
