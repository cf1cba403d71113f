"""Measures one run for a Python program or a notebook. Prints only if the caller requests output."""

import io
import logging
import signal
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from harness.api.result import Result, read_run
from harness.cluster.job import measure as measure_run
from harness.core.config.run_config import RunConfig
from harness.core.console import messages_to
from harness.core.signals import INTERRUPT_EXIT
from harness.errors import ConfigError, RunDied, RunInvalid
from harness.results.outcome import Finished
from harness.run.supervisor import job

_LOG = logging.getLogger("harness")


class _ToLog(io.StringIO):
    """A stream whose lines become INFO records in the logger `harness`."""

    def write(self, text: str) -> int:
        for line in text.splitlines():
            if line:
                _LOG.info(line.removeprefix("harness: "))
        return len(text)


def measure(config: RunConfig, *, quiet: bool = True) -> Result:
    """Makes one run with this configuration, in a separate measured process. Returns after the run has ended.

    As on the command line, the result folder is `config.out` or a new folder in results/. The folder does not contain
    an HTML page; `report RUN` creates one. A port is opened only if `config.metrics` is set. The backend, dataset and
    other plug-ins run in a separate process, so the configuration contains their names instead of objects.

    This function may be called in any thread. When called in the main thread, the function reacts to a signal that
    would end the program: it first stops the run in an orderly way and saves the run's folder. The signal then takes
    effect, for instance as KeyboardInterrupt.

    quiet: whether progress and messages become INFO records in the logger `harness` instead of lines on stderr.

    Returns the run's result, which is VALID or INVALID. Raises ConfigError if the configuration is wrong,
    PluginUnavailable if a plug-in cannot be loaded, RunDied if the measured process died or hung, and RunInvalid if the
    result folder could not be written.
    """
    for meter, _ in config.meter:
        if meter in job.EXECUTORS:
            raise ConfigError(f"measure() cannot run a session of --meter {meter}: use the command")
    if config.metrics is None and not config.metrics_linger_ns:
        config = replace(config, no_metrics=True)
    output: AbstractContextManager[None] = messages_to(_ToLog()) if quiet else nullcontext()
    with output:
        finished = measure_run(config, quiet=quiet)
    _raise_failure(finished)
    return read_run(finished.folder)


def _raise_failure(finished: Finished) -> None:
    """Repeats the signal that stopped the run, or raises the error that left the result folder incomplete."""
    if finished.status >= INTERRUPT_EXIT:
        signal.raise_signal(finished.status - INTERRUPT_EXIT)
    for reason in finished.result["reasons"]:
        if finished.status == RunDied.exit_status:
            raise RunDied(f"{reason['text']}: see {finished.folder}")
        if reason["code"] == "not-saved":
            raise RunInvalid(reason["text"])
