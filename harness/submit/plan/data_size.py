"""Checks before the first run that the request's data set has the size that the round requires, because `pack` refuses
any other size.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.core.child import call
from harness.core.config.run_config import RunConfig, from_plain, to_plain
from harness.core.units import counted
from harness.models.manifest.defaults import default_dataset
from harness.models.manifest.lookup import load_model
from harness.models.opened.loading import open_dataset
from harness.submit.plan.matrix import DONE, PlannedRun
from harness.submit.plan.request import Request


def problems(request: Request, rows: Sequence[PlannedRun]) -> Iterator[str]:
    """Yields a problem if the data set's size differs from the size that an unfinished scenario requires."""
    due = dict.fromkeys(row.scenario for row in rows if row.state != DONE)
    if not due or not request.is_closed:
        return
    config = rows[0].config
    samples = samples_of(config)
    name = config.dataset or default_dataset(load_model(config.model))
    for scenario in due:
        expected = request.of_round.samples_in(scenario)
        if samples not in (None, expected):
            yield (
                f"dataset {name!r} has {counted(samples, 'sample')} instead of the round's {expected:,} for "
                f"{request.benchmark}: pass the whole data set with --data-dir, or add --rehearsal"
            )


def samples_of(config: RunConfig) -> int | None:
    """Returns the number of samples; None if only the model file declares the inputs, because only a run opens that
    file.

    Opens the data set in a separate process, so that the data set occupies no memory during the runs. Raises a
    HarnessError if the data set cannot be opened.
    """
    if not load_model(config.model).inputs:
        return None
    return int(call(f"{__name__}:answer", {"config": to_plain(config)}, None)["samples"])


def answer(asked: Mapping[str, Any]) -> dict[str, int]:
    """Opens the data set that a configuration names, and counts its samples. The caller runs this function in a
    separate process.
    """
    config = from_plain(asked["config"], "the request")
    model = load_model(config.model)
    name = config.dataset or default_dataset(model)
    return {"samples": len(open_dataset(config, model, name, model.inputs))}
