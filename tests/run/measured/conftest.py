"""Fixtures for the tests of the dispatchers."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def _eager_switching() -> Iterator[None]:
    """Makes Python switch threads as often as possible, so that a missing lock becomes visible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
