"""Fixtures of the dispatchers' tests."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def _eager_switching() -> Iterator[None]:
    """Makes Python switch threads as often as possible, so that a missing lock shows."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
