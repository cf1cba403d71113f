"""A good submission for all tests; stand-in runs have no journal, so these tests neither compare the runs' files nor
open the data set.
"""

from pathlib import Path

import pytest

from harness.submit.plan import data_size
from harness.submit.plan.finished_run import FinishedRun
from tests.builders.submission.trees import build, copy


@pytest.fixture(autouse=True)
def unchecked_stand_ins(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "real_runs" not in request.fixturenames:
        monkeypatch.setattr(FinishedRun, "differences", lambda _run, **_: [])
        monkeypatch.setattr(data_size, "samples_of", lambda _config: None)


@pytest.fixture
def real_runs() -> None:
    """Marks a test that makes real runs, so that the files of the runs are compared."""


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("submission")
    (folder / "raw").mkdir()
    return build(folder / "tree", folder / "raw")


@pytest.fixture
def tree(golden: Path, tmp_path: Path) -> Path:
    return copy(golden, tmp_path / "tree")
