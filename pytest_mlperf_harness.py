"""pytest's plug-in: the fixture `latency_budget` (docs/python.md).

It lies beside the package `harness`, and imports it when the fixture is used only: pytest loads every
plug-in in every session, even if the project under test has another folder `harness`.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from harness.api.budget import LatencyBudget


@pytest.fixture
def latency_budget(tmp_path: Path) -> "LatencyBudget":
    """Measures a RunConfig; fails where the run is INVALID, or slower than its budget or a baseline.

    `latency_budget(config, p99="20ms")` returns the result, whose folder lies in tmp_path unless
    config.out names one.
    """
    from harness.api.budget import LatencyBudget

    return LatencyBudget(tmp_path)
