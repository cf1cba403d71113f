"""Measures a model below the harness for `profile`: bare calls, peaks, counters."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from harness.core.config.run_config import RunConfig
from harness.errors import ConfigError, HarnessError, one_line
from harness.explain.kernels.ort import interleaved
from harness.explain.profile.measure import memory
from harness.explain.profile.measure.counters import Counters
from harness.loadgen.plan import InstanceGroup
from harness.machine.characterise import here
from harness.models.graph.graph import Graph
from harness.models.manifest.model import Model
from harness.models.opened import loading
from harness.models.sequences.backend import SequenceBackend
from harness.types import Array, Backend, Batch, Dataset

LEAST_RUNS = 5
BUDGET_S = 3.0
"""Each kind of call is repeated for at most this many seconds. Slow models are run fewer times, but at least LEAST_RUNS
times.
"""


@dataclass(frozen=True, slots=True)
class Subject:
    """The loaded model under profile.
    path: the model's file; None if the backend reads no file.
    fixed: the batch size that the file requires, or None if the file takes any batch size.
    dataset_name: the name under which the dataset was opened.
    """

    config: RunConfig
    model: Model
    path: Path | None
    spec: InstanceGroup
    backend: Backend
    dataset: Dataset
    dataset_name: str
    fixed: int | None

    def batch(self, size: int) -> Batch:
        """Returns the dataset's first samples. Repeats the samples if the dataset is too small. Sequences are cut to
        their first frames.
        """
        indices = [i % len(self.dataset) for i in range(size)]
        batch = self.dataset.batch(indices)
        if not self.model.has_states:
            return batch
        return Batch(size, {name: rows[:, :1] for name, rows in batch.inputs.items()})

    def feeds(self, size: int) -> dict[str, Array]:
        """Returns the inputs of a batch of this size by their names in the file."""
        assert self.path is not None
        batch, backend = self.batch(size), self.backend
        if isinstance(backend, SequenceBackend):
            return self.model.in_file(self.path, backend.first_feeds(batch))
        return self.model.in_file(self.path, batch.inputs)

    def shapes(self, size: int) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of `feeds`."""
        return {name: tuple(rows.shape) for name, rows in self.feeds(size).items()}


def opened(
    config: RunConfig, model: Model, dataset: str, spec: InstanceGroup, most: int, stack: ExitStack
) -> Subject:
    """Opens the model; `stack` closes it. most: number of samples to hold."""
    path, (backend,), _, fixed, samples = loading.open_model(config, model, dataset, spec, stack)
    held = list(range(min(most, len(samples))))
    samples.load(held)
    stack.callback(samples.unload, held)
    return Subject(config, model, path, spec, backend, samples, dataset, fixed)


def affordable(call: Callable[[], object], most_runs: int) -> int:
    """Calls the model once, and returns the number of calls to make: `most_runs`, or fewer if `most_runs` calls would
    take longer than BUDGET_S.
    """
    begin = time.perf_counter()
    call()
    call_s = max(time.perf_counter() - begin, 1e-9)
    return int(min(most_runs, max(LEAST_RUNS, BUDGET_S / call_s)))


def model_level(subject: Subject, batch: int, batches: Sequence[int], runs: int) -> dict[str, Any]:
    """Times bare calls of the backend at each batch size, without the harness, LoadGen or a profiler."""
    measured, skipped = {}, {}
    for size in sorted({batch, *batches}):
        try:
            call = partial(subject.backend.infer, subject.batch(size))
            measured[str(size)] = asdict(interleaved([call], affordable(call, runs))[0])
        # because a framework may raise any error if the model refuses the batch
        except Exception as e:
            if size == batch:
                raise ConfigError(f"batch {size}: {one_line(e)}") from e
            skipped[str(size)] = one_line(e)
    return {"batches": measured, "skipped": skipped, "about": dict(subject.backend.describe())}


def peaks(threads: int) -> dict[str, Any]:
    """Returns the peak rates, or `missing` with the reason. Without the rates, the profile lacks only the roofline."""
    try:
        return here.measure(threads)._asdict()
    except HarnessError:
        raise
    except ImportError as e:
        return {"missing": f"the measured peaks need the module {e.name!r}"}
    except Exception as e:  # noqa: BLE001 - of a framework
        return {"missing": one_line(e)}


def highest(*measured: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the highest value of each rate, because noise can only slow down calls. Returns `missing` if no rate was
    measured.
    """
    found = [one for one in measured if "flops_per_s" in one and "bytes_per_s" in one]
    if not found:
        return dict(next(one for one in reversed(measured) if "missing" in one))
    names = dict.fromkeys(name for one in found for name in one)
    rates = {name: [one[name] for one in found if one.get(name)] for name in names}
    return {name: max(values) if values else None for name, values in rates.items()}


def hardware(subject: Subject, batch: int, runs: int) -> dict[str, Any]:
    """Counts events per bare call of a new instance, including events of its threads."""
    with Counters() as counters, ExitStack() as stack:
        (backend,) = loading.open_backends(
            subject.config, subject.model, subject.path, subject.spec, stack
        )
        call = partial(backend.infer, subject.batch(batch))
        for _ in range(2):
            call()
        runs = affordable(call, runs)
        counters.start()
        for _ in range(runs):
            call()
        counters.stop()
        read = counters.read()
    values = {n: None if r.value is None else r.value / runs for n, r in read.items()}
    return {"runs": runs, "per_call": values, "reasons": {n: r.reason for n, r in read.items()}}


def memory_of(subject: Subject, graph: Graph | None, batch: int) -> dict[str, Any]:
    if graph is None:
        return {"missing": "the model's graph could not be read"}
    return memory.measure(graph, subject.shapes(batch))


def real_or_synthetic(subject: Subject, batch: int, runs: int) -> dict[str, Any]:
    """Calls the model alternately with the dataset's samples and with seeded noise of the same shapes."""
    if getattr(subject.dataset, "synthetic", False):
        return {"missing": "the dataset is synthetic, so it has no real samples to compare"}
    inputs = subject.batch(batch)
    texts = [name for name, rows in inputs.inputs.items() if rows.dtype.kind not in "biuf"]
    if texts:
        return {"missing": f"input {texts[0]!r} is not numeric, so it cannot get noise"}
    random = np.random.default_rng(subject.config.seed or 0)
    noise = {name: _noise(random, rows) for name, rows in inputs.inputs.items()}
    calls = [
        partial(subject.backend.infer, inputs),
        partial(subject.backend.infer, Batch(inputs.size, noise)),
    ]
    try:
        for call in calls:
            call()
        real, synthetic = interleaved(calls, runs)
    except HarnessError:
        raise
    except Exception as e:  # noqa: BLE001 - of a framework: noise is out of the model's range
        return {"missing": f"the model refuses noise: {one_line(e)}"}
    return {
        "dataset": dict(subject.dataset.describe()).get("name", ""),
        "real": asdict(real),
        "synthetic": asdict(synthetic),
    }


def _noise(random: np.random.Generator, rows: Array) -> Array:
    """Makes noise with the type and range of the samples, because token IDs must be valid."""
    if rows.dtype.kind in "iub":
        low, high = int(rows.min()), int(rows.max())
        return random.integers(low, high, rows.shape, endpoint=True).astype(rows.dtype)
    return random.uniform(float(rows.min()), float(rows.max()), rows.shape).astype(rows.dtype)
