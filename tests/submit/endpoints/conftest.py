"""MLCommons' programs for the slow tests: the checker from an environment in pytest's cache, the client from a
checkout.
"""

import os
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.submit.endpoints.rules import official
from harness.submit.endpoints.runs import Attempt
from tests.builders.submit.endpoints_events import made_attempt

CLIENT = "HARNESS_ENDPOINTS_CLIENT"
"""Environment variable with the folder of a checkout of mlcommons/endpoints."""

CHECKER = "HARNESS_ENDPOINTS_CHECKER"
"""Environment variable with an environment that contains the checker; default: an environment in pytest's cache."""


@pytest.fixture(scope="session")
def checker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if given := os.environ.get(CHECKER):
        return Path(given)
    cache = getattr(request.config, "cache", None)
    folder = cache.mkdir("endpoints") if cache else tmp_path_factory.mktemp("endpoints")
    try:
        official.ensure(Path(folder) / "checker", install=True)
    except ConfigError as e:
        pytest.skip(str(e))
    return Path(folder) / "checker"


@pytest.fixture(scope="session")
def client() -> Path:
    given = os.environ.get(CLIENT)
    if not given:
        pytest.skip(f"{CLIENT} names no checkout of mlcommons/endpoints")
    return Path(given)


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    """Returns a finished run."""
    return made_attempt(tmp_path / "runs/r4/attempt-1")
