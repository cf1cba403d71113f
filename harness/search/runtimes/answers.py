"""Runs the same samples through each backend in a child process, outside the measured runs, and compares the backends'
answers.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.core import files
from harness.core.config.run_config import from_plain
from harness.core.number_types import number_type
from harness.core.registry import plugin
from harness.core.units import show_percent
from harness.loadgen.answers import Ragged
from harness.loadgen.plan import InstanceGroup
from harness.models.manifest.hook import load_hook, postprocessor_of
from harness.models.manifest.lookup import load_model
from harness.models.opened.loading import open_model, plain
from harness.results.agreement import Agreement, Limits, limits, of_pairs
from harness.run.measured.answerer import Answerer
from harness.types import Array

SAMPLES = 64
"""At most this many samples, spread over the dataset, are run."""

LEAST_SAMPLES = 8
MOST_S = 3.0
MOST_BYTES = 32 << 20
"""Once LEAST_SAMPLES samples have been run, the process stops after MOST_S seconds or MOST_BYTES of answers."""


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Runs samples through a backend. request: a run's `config`, its instance group `spec`, its `dataset`, and `out`,
    the .npz file for the answers.

    Returns the backend's description of itself (`backend`), the number of `samples`, and the median time per sample
    without the first batch (`sample_ns`; None if there was only one batch).
    """
    config = from_plain(request["config"])
    spec = InstanceGroup.from_json(request["spec"])._replace(instances=1, pinned=(), wide=())
    model = load_model(config.model)
    with ExitStack() as stack:
        _, (backend,), _, fixed, dataset = open_model(
            config, model, request["dataset"], spec, stack
        )
        steps = postprocessor_of(model.output, load_hook(model, config.hook))
        answerer = Answerer(backend, dataset, steps)
        size = min(spec.max_batch, fixed or spec.max_batch)
        with plugin(f"backend {config.backend!r} on {request['dataset']!r}"):
            found, took_ns = _answers(answerer, _chosen(len(dataset)), size)
        with plugin(f"backend {config.backend!r}: describe()"):
            about = plain(backend.describe())
    np.savez(request["out"], **{str(index): row for index, row in found.items()})  # type: ignore[arg-type]
    median_ns = float(np.median(took_ns[1:])) / size if len(took_ns) > 1 else None
    return {"backend": about, "samples": len(found), "sample_ns": median_ns}


def _chosen(total: int) -> list[int]:
    """Returns sample indices that are spread over the dataset.

    For any n, the first n indices are spread over the dataset as well.
    """
    spread = sorted({i * total // SAMPLES for i in range(SAMPLES)})
    order = np.random.default_rng(0).permutation(len(spread))
    return [spread[i] for i in order]


def _answers(
    answerer: Answerer, chosen: Sequence[int], size: int
) -> tuple[dict[int, Array], list[int]]:
    """Returns the answer to each sample, and the time of each batch. size: number of samples per batch."""
    found: dict[int, Array] = {}
    took_ns: list[int] = []
    begun_s, written = time.monotonic(), 0
    for start in range(0, len(chosen), size):
        indices = list(chosen[start : start + size])
        answerer.dataset.load(indices)
        before_ns = time.monotonic_ns()
        answers = answerer.answer(indices)
        took_ns.append(time.monotonic_ns() - before_ns)
        rows = answers.rows if isinstance(answers, Ragged) else answers
        for index, row in zip(indices, rows, strict=True):
            found[index] = np.array(row)
            written += found[index].nbytes
        answerer.dataset.unload(indices)
        enough = time.monotonic() - begun_s > MOST_S or written > MOST_BYTES
        if enough and len(found) >= LEAST_SAMPLES:
            break
    return found, took_ns


class Compared(NamedTuple):
    """A cell's answers compared with the first cell's answers."""

    agreement: Agreement
    limits: Limits

    @property
    def differs(self) -> str:
        """Reason why the answers do not count as equal; '' if they do."""
        same, least = self.agreement, self.limits
        if same.alike >= least.share:
            return ""
        return (
            f"its answers differ: {show_percent(same.alike, 1)} of {same.samples} are equal or within "
            f"{show_percent(least.far)}, but at least {show_percent(least.share)} must be"
        )


def compared(first: Path, other: Path, precisions: Sequence[object]) -> Compared | None:
    """Compares the answers to the samples that both files contain. Returns None if they have no samples in common.

    precisions: number types that the two backends report. The narrowest type determines the limits.
    """
    chosen = min(map(_limits, precisions), key=lambda one: one.share)
    ours, theirs = _read(first), _read(other)
    common = [name for name in ours if name in theirs]
    if not common:
        return None
    return Compared(of_pairs([(ours[n], theirs[n]) for n in common], chosen.far), chosen)


def _limits(reported: object) -> Limits:
    """Returns the limits for a precision. reported: a number type, or a list of number types, in any spelling."""
    names = reported if isinstance(reported, list) else [reported]
    return min((limits(number_type(str(name))) for name in names), key=lambda one: one.share)


def _read(path: Path) -> dict[str, Array]:
    problem = f"{path} is not an answers file"
    with (
        files.reading(problem, also=(OSError,)),
        path.open("rb") as opened,
        np.load(opened, allow_pickle=False) as file,
    ):
        return {name: file[name] for name in file.files}
