"""Measures one run for a Python program or a notebook; nothing is printed unless the caller wants it."""

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
    """A stream whose lines become records of the logger `harness`, at level INFO."""

    def write(self, text: str) -> int:
        for line in text.splitlines():
            if line:
                _LOG.info(line.removeprefix("harness: "))
        return len(text)


def measure(config: RunConfig, *, quiet: bool = True) -> Result:
    """Makes one run as configured, in a separate measured process. Blocks until the run has ended.

    The result folder is the command's: `config.out`, or a new folder in results/. No page is made
    (`report RUN` makes it), and no port is opened unless `config.metrics` names one. The backend, the
    dataset and other plug-ins run in another process, so they are named, not passed as objects.

    May be called in any thread. In the main thread, a signal that would end the program stops the run
    in order first: its folder is kept, and the signal takes its effect, e.g. KeyboardInterrupt.

    quiet: progress and messages become records of the logger `harness`, at level INFO, in place of
    lines on stderr.

    Returns the result of a VALID or INVALID run. Raises ConfigError where the configuration is wrong,
    PluginUnavailable where a plug-in cannot be loaded, RunDied where the measured process died or
    hung, and RunInvalid where the result folder could not be written.
    """
    for meter, _ in config.meter:
        if meter in job.EXECUTORS:
            raise ConfigError(f"measure() makes no sessions with --meter {meter}: use the command")
    if config.metrics is None and not config.metrics_linger_ns:
        config = replace(config, no_metrics=True)
    output: AbstractContextManager[None] = messages_to(_ToLog()) if quiet else nullcontext()
    with output:
        finished = measure_run(config, quiet=quiet)
    _raise_failure(finished)
    return read_run(finished.folder)


def _raise_failure(finished: Finished) -> None:
    """Repeats the signal that stopped the run, or raises why there is no whole result folder."""
    if finished.status >= INTERRUPT_EXIT:
        signal.raise_signal(finished.status - INTERRUPT_EXIT)
    for reason in finished.result["reasons"]:
        if finished.status == RunDied.exit_status:
            raise RunDied(f"{reason['text']}: see {finished.folder}")
        if reason["code"] == "not-saved":
            raise RunInvalid(reason["text"])
