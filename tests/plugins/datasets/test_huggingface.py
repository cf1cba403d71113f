"""HuggingFace datasets on disk and by name; most tests are marked slow because the package is large."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.plugins.datasets.test_tables import refusal, setup, step
from tests.stand_ins.servers.hub import serving

ROOT = Path(__file__).parents[3]


def dataset_class() -> Any:
    pytest.importorskip("datasets.load")
    from harness.datasets.huggingface import HuggingFaceDataset

    return HuggingFaceDataset


def saved(folder: Path, **columns: Any) -> Path:
    from datasets.arrow_dataset import Dataset  # noqa: TID251 - HuggingFace's

    Dataset.from_dict(columns).save_to_disk(str(folder))
    return folder


@pytest.mark.slow
def test_a_saved_data_set_is_a_table(tmp_path: Path) -> None:
    cls = dataset_class()
    path = saved(tmp_path / "one", v=[[1.0, 2.0], [3.0, 4.0]], right=[1, 0], text=["a", "b"])
    data = cls(setup(path, x=(step("column", names=["v"], label="right"),)))
    data.load([1, 0])
    assert data.batch([0, 1]).inputs["x"].tolist() == [[1, 2], [3, 4]]
    assert [data.label(0), data.label(1)] == [1, 0]
    first = data.describe()
    assert (first["name"], first["count"]) == ("huggingface", 2)
    other = saved(tmp_path / "two", v=[[1.0, 2.0], [3.0, 5.0]], right=[1, 0], text=["a", "b"])
    again = cls(setup(other, x=(step("column", names=["v"], label="right"),)))
    assert again.describe()["digest"] != first["digest"]


@pytest.mark.slow
def test_unusable_data_set_is_reported(tmp_path: Path) -> None:
    cls = dataset_class()
    ragged = saved(tmp_path / "ragged", v=[[1.0, 2.0], [3.0]])
    assert refusal(cls, setup(ragged)) == [
        f"{ragged}: column 'v': row 2 has 1 values, but row 1 has 2"
    ]
    texts = saved(tmp_path / "texts", v=["a", None])
    assert refusal(cls, setup(texts)) == [f"{texts}: row 2: column 'v' is missing"]
    (tmp_path / "no").mkdir()
    (line,) = refusal(cls, setup(tmp_path / "no"))
    assert line.startswith(f"{tmp_path}/no is not a saved data set: ")
    from datasets.arrow_dataset import Dataset  # noqa: TID251 - HuggingFace's
    from datasets.dataset_dict import DatasetDict  # noqa: TID251

    split = Dataset.from_dict({"v": [1]})
    DatasetDict({"train": split, "test": split}).save_to_disk(str(tmp_path / "both"))
    both = tmp_path / "both"
    assert refusal(cls, setup(both)) == [
        f"{both} has several splits: pass {both}/train or {both}/test as --data-dir"
    ]


@pytest.mark.slow
def test_a_name_goes_to_the_hub_without_running_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cls = dataset_class()
    from datasets.load import load_from_disk  # noqa: TID251 - HuggingFace's

    asked = []

    def hub(*names: Any, **options: Any) -> Any:
        asked.append((names, options))
        if names[0] == "gone":
            raise ConnectionError("Couldn't reach 'gone' on the Hub")
        return load_from_disk(str(saved(tmp_path / "one", v=[[1.0, 2.0]])))

    monkeypatch.setattr("harness.datasets.huggingface.load_dataset", hub)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    data = cls(setup(Path("hf:nyu-mll/glue:sst2@test")))
    assert len(data) == 1
    assert asked == [(("nyu-mll/glue", "sst2"), {"split": "test", "revision": None})]
    assert "revision" not in data.describe()
    assert data.describe()["notes"] == [
        "the Hub did not answer: the revision of the data is unknown"
    ]
    (line,) = refusal(cls, setup(Path("hf:gone@test")))
    assert line == (
        "data set 'gone' cannot be loaded from the Hub (Couldn't reach 'gone' on the Hub): without a "
        "network, call save_to_disk on a different machine, and pass the folder as --data-dir"
    )
    (line,) = refusal(cls, setup(Path("hf:gone")))
    assert (
        line
        == "--data-dir hf:gone: write hf:NAME@SPLIT@COMMIT or hf:NAME:CONFIGURATION@SPLIT@COMMIT"
    )


@pytest.mark.slow
def test_a_revision_is_resolved_to_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cls = dataset_class()
    from datasets.load import load_from_disk  # noqa: TID251 - HuggingFace's

    asked = []
    rows = load_from_disk(str(saved(tmp_path / "one", v=[[1.0, 2.0]])))

    def hub(*names: Any, **options: Any) -> Any:
        asked.append(options["revision"])
        return rows

    monkeypatch.setattr("harness.datasets.huggingface.load_dataset", hub)
    with serving() as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.address)
        commit = server.push("org/data", {"rows.parquet": b"1"})
        for name in ("hf:org/data@test", "hf:org/data@test@main", f"hf:org/data@test@{commit}"):
            about = cls(setup(Path(name))).describe()
            assert about["revision"] == commit
            pinned = (
                []
                if name.endswith(commit)
                else [
                    f"the data behind this name may change: pin it with --data-dir hf:org/data@test@{commit}"
                ]
            )
            assert about.get("notes", []) == pinned
    assert asked == [commit] * 3


@pytest.mark.slow
def test_names_of_classes_come_from_the_features(tmp_path: Path) -> None:
    cls = dataset_class()
    from datasets.arrow_dataset import Dataset  # noqa: TID251 - HuggingFace's
    from datasets.features import ClassLabel  # noqa: TID251

    rows = Dataset.from_dict({"v": [[1.0, 2.0], [3.0, 4.0]], "label": [1, 0]})
    rows = rows.cast_column("label", ClassLabel(names=["no", "yes"]))
    rows.save_to_disk(str(tmp_path / "rows"))
    data = cls(setup(tmp_path / "rows", x=(step("column", names=["v"]),)))
    assert data.class_names() == {0: "no", 1: "yes"}
    plain = saved(tmp_path / "plain", v=[[1.0, 2.0], [3.0, 4.0]], label=[1, 0])
    assert cls(setup(plain, x=(step("column", names=["v"]),))).class_names() == {}


def test_our_folder_datasets_does_not_pass_for_the_package(tmp_path: Path) -> None:
    """In a checkout, `import datasets` finds our folder ./datasets."""
    code = (
        "import sys; sys.path = ['.'] + [p for p in sys.path if 'site-packages' not in p]\n"
        "from harness.core import registry\n"
        "print(registry.DATASETS['huggingface'].installed)\n"
        "try: registry.load('dataset', 'huggingface')\n"
        "except Exception as e: print(e)\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "False",
        # The option -S hides the metadata of installed packages.
        "dataset 'huggingface' needs the module 'datasets': ./run.sh install hf, and start with ./run.sh",
    ]
