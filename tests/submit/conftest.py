"""A good submission for all tests; `pack` takes stand-in runs without the check that real runs get, for they have no journal."""

from pathlib import Path

import pytest

from tests.builders.submission.trees import build, copy


@pytest.fixture(autouse=True)
def unchecked_stand_ins(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow rehearsal makes real runs, and is checked."""
    if request.node.get_closest_marker("slow") is None:
        monkeypatch.setattr("harness.submit.pack.pack._edits", lambda _run: [])


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("submission")
    (folder / "raw").mkdir()
    return build(folder / "tree", folder / "raw")


@pytest.fixture
def tree(golden: Path, tmp_path: Path) -> Path:
    return copy(golden, tmp_path / "tree")
