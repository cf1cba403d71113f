"""Settings for all test files."""

import faulthandler
import signal
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import settings

from harness.cli.main import main
from harness.core.shown import secrets
from tests.builders.refusals import Said

# Examples have no deadline, because a busy machine must not fail a test.
settings.register_profile("harness", deadline=None)
settings.load_profile("harness")

# A script's background job ignores Ctrl-C, and the commands that the suite starts would inherit this setting.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Loads torch's compiler first, because loading it after TensorFlow ends the process with a segmentation fault."""
    if any(item.get_closest_marker("slow") for item in session.items):
        with suppress(ImportError):
            import_module("triton._C.libtriton")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Replaces pytest's time limit with the limit in the test's mark `limit_s`, if the test has this mark; pytest
    restores the limit afterwards.
    """
    limit = item.get_closest_marker("limit_s")
    if limit is not None and item.config.getini("faulthandler_timeout"):
        stderr = item.config.stash[fault_handler_stderr_fd_key]
        faulthandler.dump_traceback_later(limit.args[0], exit=True, file=stderr)


@pytest.fixture(autouse=True)
def forgotten_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes learned secrets: the process keeps them, but the secrets of one test must not mask texts in other tests."""
    monkeypatch.setattr(secrets, "_known", set())
    monkeypatch.setattr(secrets, "_patterns", [])


@pytest.fixture
def prints(capsys: pytest.CaptureFixture[str]) -> Said:
    """Calls the command, checks that it ends with `status`, and returns what it printed to stdout."""

    def run(*words: str | Path, status: int = 0) -> str:
        assert main([str(word) for word in words]) == status
        return capsys.readouterr().out

    return run


@pytest.fixture
def refuses(capsys: pytest.CaptureFixture[str]) -> Said:
    """Calls the command, checks that it ends with `status`, and returns its only line on stderr without `harness: `."""

    def run(*words: str | Path, status: int = 2) -> str:
        assert main([str(word) for word in words]) == status
        error = capsys.readouterr().err
        assert error.startswith("harness: ")
        assert error.endswith("\n")
        assert error.count("\n") == 1
        return error.removeprefix("harness: ").removesuffix("\n")

    return run
