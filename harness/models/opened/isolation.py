"""Decides which backends run in separate processes, and whether LoadGen's process ran a plug-in's code."""

from collections.abc import Iterator

from harness.core import registry
from harness.core.config.parse import parse_on_off
from harness.core.config.run_config import RunConfig
from harness.errors import ConfigError
from harness.models.opened.resolved_run import ResolvedRun

PROCESSES_OPTION = "processes"
"""A backend option that the harness handles: `on` runs each instance in a separate process."""


def is_separate(config: RunConfig) -> bool:
    """Returns whether each instance runs in a separate process.

    By default, only instances of plug-ins under --mlperf run in separate processes. Raises ConfigError if the option is
    neither on nor off.
    """
    if config.url:  # requests to a server do not need a separate process
        return False
    official = config.mlperf and registry.is_foreign("backend", config.backend)
    text = dict(config.backend_option).get(PROCESSES_OPTION, "on" if official else "off")
    try:
        return parse_on_off(text)
    except ValueError as e:
        raise ConfigError(f"--backend-option {PROCESSES_OPTION}: {e}") from None


def is_isolated(run: ResolvedRun) -> bool:
    """Returns whether the measured process and the supervisor ran no code from plug-ins."""
    return not any(registry.is_foreign(kind, name) for kind, name in _beside_loadgen(run)) and (
        run.config.hook is None
    )


def _beside_loadgen(run: ResolvedRun) -> Iterator[tuple[str, str]]:
    """Yields the kind and name of each plug-in in the measured process or the supervisor."""
    config = run.config
    yield "scenario", config.scenario
    yield from (("dataset", name) for name in run.model.datasets or (run.dataset,))
    if not is_separate(config):
        yield "backend", config.backend
    if run.metric is not None and config.runs_accuracy:
        yield "metric", run.metric
    yield from (("meter", name) for name, _ in config.meter)
