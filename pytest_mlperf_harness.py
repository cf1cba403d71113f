"""The pytest plug-in with the fixture `latency_budget` (docs/python.md).

It lies next to the package `harness`, and imports the package only when the fixture is used: pytest loads
every plug-in in every session, even if the project under test has a different folder `harness`.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from harness.api.budget import LatencyBudget


@pytest.fixture
def latency_budget(tmp_path: Path) -> "LatencyBudget":
    """Measures a RunConfig; fails if the run is INVALID, or slower than its budget or a baseline.

    `latency_budget(config, p99="20ms")` returns the result. Its folder lies in tmp_path unless config.out is
    set.
    """
    from harness.api.budget import LatencyBudget

    return LatencyBudget(tmp_path)
