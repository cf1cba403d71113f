# PYTHON_ARGCOMPLETE_OK
"""Entry point of the program. Finds and calls the verb, and converts errors to lines of text and an exit status.

Modules are imported only when they are needed, so that `--help` takes at most 0.3 s.
"""

import errno
import os
import signal
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path

from harness.cli import verbs
from harness.core.console import program, say, show
from harness.core.shown.secrets import learn, learn_from_urls
from harness.core.signals import INTERRUPT_EXIT, Terminated, signal_name, terminable
from harness.errors import ConfigError, HarnessError, RunInvalid

ABOUT = """\
mlperf-harness measures how fast and how accurately a model answers under load. MLPerf LoadGen
decides when each query arrives. Each run's folder lets you repeat, compare and check the run."""
EXAMPLES = """\
examples:
  # the embedded digits model under Poisson arrivals, at a demonstration rate
  {program} --scenario server --backend ort
  # any ONNX file on synthetic data, as many samples per second as possible
  {program} --scenario offline --model model.onnx --mode performance
  # the highest rate at which 99 % of the queries take at most 10 ms
  {program} peak --scenario server --slo p99=10ms
"""


_URLS = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
"""Environment variables whose URLs may contain a password."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""Error numbers for a full or read-only file system. `main` handles these errors, because any write in any verb can
raise them.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program, and returns its exit status. Catches HarnessErrors and the errors of a full disk. Any other
    error is a bug in the harness.
    """
    if "_ARGCOMPLETE" in os.environ:
        from harness.cli.start.completion import complete

        complete()
    _fill_standard_streams()
    typed = sys.argv[1:] if arguments is None else arguments
    learn_from_urls([*typed, *(os.environ.get(name, "") for name in _URLS)])
    learn(os.environ.get("RAY_AUTH_TOKEN", ""))
    try:
        return _call(typed)
    except HarnessError as e:
        say(_with_sources(str(e), typed) if isinstance(e, ConfigError) else str(e))
        return e.exit_status
    except OSError as e:
        if e.errno not in _FULL:
            raise
        say(
            f"{e.filename or 'a file'} cannot be written ({e.strerror}): free space there, or write elsewhere"
        )
        return RunInvalid.exit_status
    except KeyboardInterrupt as e:  # Ctrl-C arrived before the run could handle signals
        return _stopped(e)
    except RuntimeError as e:
        # Before Python 3.12, an error in a descriptor's __set_name__ is wrapped in another error, even during imports.
        if isinstance(e.__cause__, KeyboardInterrupt):
            return _stopped(e.__cause__)
        raise


def _call(typed: Sequence[str]) -> int:
    """Calls the verb or prints a help page."""
    if page := verbs.options_page(typed):
        show(page.strip("\n"))
        return 0
    name, words = verbs.find(typed)
    if name in verbs.VERBS:
        with terminable():
            return verbs.VERBS[name](words)
    show(_front_page() if name == verbs.FRONT else verbs.group_page(name))
    return 0 if words else ConfigError.exit_status


def _with_sources(problems: str, typed: Sequence[str]) -> str:
    """Adds a source to each problem: the --config file that set the problem's options."""
    if not any(word.startswith("--config") for word in typed):
        return problems
    from harness.cli.run_options import with_sources

    return with_sources(problems, typed)


def _stopped(e: KeyboardInterrupt) -> int:
    number = e.signum if isinstance(e, Terminated) else signal.SIGINT
    say(f"stopped by {'Ctrl-C' if number == signal.SIGINT else signal_name(number)}")
    return INTERRUPT_EXIT + number


def _front_page() -> str:
    """Returns the help page for a call without a verb: a description of the program, examples, and all verbs."""
    return (
        f"{ABOUT}\n\nusage: {program()} [run] --scenario NAME [options]\n"
        f"       {program()} VERB [options]\n\n{EXAMPLES.format(program=program())}\n"
        f"{verbs.verb_list(verbs.VERBS)}\n\n"
        f"`{program()} VERB --help` lists the options of a verb, `run` included."
    )


def _fill_standard_streams() -> None:
    """Opens /dev/null for each closed standard stream.

    Otherwise the next opened file would get the closed stream's descriptor, and the program's output would go into that
    file. Also makes stdout print escapes for characters that it cannot encode, as stderr does.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the new descriptor is `number`, the lowest free one
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - for good
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
