"""Decides which backends run in separate processes, and whether LoadGen's process ran named code."""

from collections.abc import Iterator

from harness.core import registry
from harness.core.config.parse import parse_on_off
from harness.core.config.run_config import RunConfig
from harness.errors import ConfigError
from harness.models.opened.resolved_run import ResolvedRun

PROCESSES_OPTION = "processes"
"""Backend option of the harness: `on` runs each instance in a separate process."""


def is_separate(config: RunConfig) -> bool:
    """Whether each instance runs in a separate process: as the option says, else plug-ins under --mlperf.

    Raises ConfigError if the option is neither on nor off.
    """
    if config.url:  # it sends requests without a hop between processes
        return False
    official = config.mlperf and registry.is_foreign("backend", config.backend)
    text = dict(config.backend_option).get(PROCESSES_OPTION, "on" if official else "off")
    try:
        return parse_on_off(text)
    except ValueError as e:
        raise ConfigError(f"--backend-option {PROCESSES_OPTION}: {e}") from None


def is_isolated(run: ResolvedRun) -> bool:
    """Whether no plug-in's code ran in the harness's processes: the measured one and the supervisor."""
    return not any(registry.is_foreign(kind, name) for kind, name in _beside_loadgen(run)) and (
        run.config.hook is None
    )


def _beside_loadgen(run: ResolvedRun) -> Iterator[tuple[str, str]]:
    """Kind and name of what runs in the measured process or the supervisor."""
    config = run.config
    yield "scenario", config.scenario
    yield from (("dataset", name) for name in run.model.datasets or (run.dataset,))
    if not is_separate(config):
        yield "backend", config.backend
    if run.metric is not None and config.runs_accuracy:
        yield "metric", run.metric
    yield from (("meter", name) for name, _ in config.meter)
