"""Settings every test file shares."""

from contextlib import suppress
from importlib import import_module

import pytest
from hypothesis import settings

settings.register_profile("harness", deadline=None)  # a busy machine is not a failed test
settings.load_profile("harness")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Loads torch's compiler first: loaded after TensorFlow, it ends the process with a segmentation fault."""
    if any(item.get_closest_marker("slow") for item in session.items):
        with suppress(ImportError):
            import_module("triton._C.libtriton")
