"""The backend trees on models that XGBoost, LightGBM and scikit-learn train on scikit-learn's own data."""

import json
import pickle
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml

from harness.backends.parts.trees.xgboost_calls import scores_of
from harness.cli.main import main
from harness.core import registry
from harness.core.config.run_config import RunConfig, make_config
from harness.errors import HarnessError
from harness.models.manifest.formats import format_of
from harness.models.opened.template import manifest_of
from harness.types import Array, BackendSetup, Batch, TensorSpec
from tests.builders.refusals import refusal

ROOT = Path(__file__).parents[4]
FORMATS = {".ubj": "xgboost", ".json": "xgboost", ".txt": "lightgbm", ".tl": "treelite"}

treelite: Any = pytest.importorskip("treelite")
xgboost: Any = pytest.importorskip("xgboost")
pytestmark = pytest.mark.slow


class Table(NamedTuple):
    x: Array
    y: Array
    held: Array
    right: Array


def table(name: str) -> Table:
    """Returns a table whose every third row is held out."""
    from sklearn import datasets

    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    x, out = x.astype(np.float32), np.arange(len(x)) % 3 == 0
    return Table(x[~out], y[~out], np.ascontiguousarray(x[out]), y[out])


def boosted(data: Table, **settings: Any) -> Any:
    settings = {"max_depth": 3, "nthread": 1, **settings}
    return xgboost.train(settings, xgboost.DMatrix(data.x, data.y), 20)


def opened(path: Path, **more: Any) -> Any:
    return registry.load("backend", "trees")(
        BackendSetup(model=path, model_name="trees", **{"threads": 1, **more})
    )


def answers(path: Path, rows: Array, **options: str) -> Array:
    with opened(path, options=options) as backend:
        (spec,) = backend.signature()
        assert spec == TensorSpec("features", "float32", (None, rows.shape[1]))
        found: Array = backend.infer(Batch(len(rows), {"features": rows}))
    return found


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("steps", [1, 2])
def test_library_answers_as_its_package_does(dtype: str, steps: int) -> None:
    """steps: distance between rows; at 2, the rows are not contiguous."""
    data = table("wine")
    booster = boosted(data, objective="multi:softprob", num_class=3)
    rows = np.repeat(data.held.astype(dtype), steps, axis=0)[::steps]
    rows[0, 0] = np.nan  # a NaN represents a missing feature
    scores = scores_of(booster)
    wanted = booster.inplace_predict(rows)
    assert np.array_equal(scores(rows), wanted)
    first = scores(rows[:1])
    scores(rows[1:2])
    assert np.array_equal(first, wanted[:1]), "a copy"


def test_package_answers_if_the_library_has_no_such_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = table("diabetes")
    booster = boosted(data, objective="reg:squarederror")
    wanted = scores_of(booster)(data.held)
    monkeypatch.setattr(xgboost.core, "_LIB", object())
    found = scores_of(booster)
    monkeypatch.undo()
    assert np.array_equal(found(data.held), wanted)
    assert wanted.shape == (len(data.held), 1)


@pytest.mark.parametrize("suffix", [".ubj", ".json"])
@pytest.mark.parametrize(
    ("name", "settings", "scores"),
    [
        ("breast_cancer", {"objective": "binary:logistic"}, 1),
        ("wine", {"objective": "multi:softprob", "num_class": 3}, 3),
        ("diabetes", {"objective": "reg:squarederror"}, 1),
    ],
)
def test_xgboost_files_answer_as_the_booster_and_gtil_agrees(
    name: str, settings: dict[str, Any], scores: int, suffix: str, tmp_path: Path
) -> None:
    data = table(name)
    booster = boosted(data, **settings)
    path = tmp_path / f"model{suffix}"
    booster.save_model(path)
    wanted = booster.predict(xgboost.DMatrix(data.held)).reshape(len(data.held), scores)
    assert answers(path, data.held).tolist() == wanted.tolist()
    by_gtil = answers(path, data.held, engine="gtil")
    assert by_gtil.shape == wanted.shape
    assert np.allclose(by_gtil, wanted, rtol=1e-5, atol=1e-5)


def test_softmax_of_xgboost_answers_scores_with_both_engines(tmp_path: Path) -> None:
    data = table("wine")
    booster = boosted(data, objective="multi:softmax", num_class=3)
    booster.save_model(tmp_path / "model.ubj")
    labels = booster.predict(xgboost.DMatrix(data.held))
    for engine in ("own", "gtil"):
        found = answers(tmp_path / "model.ubj", data.held, engine=engine)
        assert found.shape == (len(labels), 3)
        assert found.argmax(axis=1).tolist() == labels.tolist()
        assert np.allclose(found.sum(axis=1), 1)


@pytest.mark.parametrize(
    ("name", "settings", "scores"),
    [
        ("breast_cancer", {"objective": "binary"}, 1),
        ("wine", {"objective": "multiclass", "num_class": 3}, 3),
        ("diabetes", {"objective": "regression"}, 1),
    ],
)
def test_lightgbm_files_answer_as_the_booster_and_gtil_agrees(
    name: str, settings: dict[str, Any], scores: int, tmp_path: Path
) -> None:
    lightgbm: Any = pytest.importorskip("lightgbm")
    data = table(name)
    settings = {"verbosity": -1, "num_threads": 1, **settings}
    booster = lightgbm.train(settings, lightgbm.Dataset(data.x, data.y), 20)
    path = tmp_path / "model.txt"
    booster.save_model(path)
    wanted = booster.predict(data.held).reshape(len(data.held), scores)
    assert answers(path, data.held).tolist() == wanted.tolist()
    assert np.allclose(answers(path, data.held, engine="gtil"), wanted, rtol=1e-5)


@pytest.mark.parametrize(
    "kind",
    ["RandomForestClassifier", "GradientBoostingClassifier", "HistGradientBoostingClassifier"],
)
def test_forest_of_scikit_learn_answers_as_its_own_predictor(kind: str, tmp_path: Path) -> None:
    from sklearn import ensemble

    data = table("wine")
    forest = getattr(ensemble, kind)(random_state=0).fit(data.x, data.y)
    path = tmp_path / "model.tl"
    treelite.sklearn.import_model(forest).serialize(path)
    found = answers(path, data.held)
    assert np.allclose(found, forest.predict_proba(data.held), atol=1e-6)


def test_a_table_is_scored_as_the_booster_scores_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs the example of docs/backends.md, with a manifest written by `init`."""
    data = table("breast_cancer")
    booster = boosted(data, objective="binary:logistic")
    booster.save_model(tmp_path / "model.ubj")
    columns = [f"c{n}" for n in range(data.x.shape[1])]
    lines = [",".join([*columns, "label"])]
    lines += [
        ",".join([*map(repr, map(float, row)), str(label)])
        for row, label in zip(data.held, data.right, strict=True)
    ]
    (tmp_path / "held-out.csv").write_text("\n".join(lines) + "\n")
    manifest = tmp_path / "tumours.yaml"
    content = yaml.safe_load(manifest_of(tmp_path / "model.ubj", manifest, {}))
    assert content["inputs"] == [{"name": "features", "dtype": "float32", "shape": ["batch", 30]}]
    content |= {
        "outputs": [{"name": "scores", "postprocess": "threshold"}],
        "dataset": "csv",
        "accuracy": {"metric": "top1", "target": 90},
    }
    manifest.write_text(yaml.safe_dump(content))
    monkeypatch.chdir(tmp_path)
    words = ["--scenario", "offline", "--backend", "trees", "--model", "tumours.yaml"]
    words += ["--data-dir", "held-out.csv", "--mode", "accuracy", "--out", "out", "--quiet"]
    assert main(words) == 0
    result = json.loads((tmp_path / "out/result.json").read_text())
    right = (booster.inplace_predict(data.held) > 0.5) == data.right
    assert result["accuracy"]["value"] == pytest.approx(100 * right.mean())
    assert result["accuracy"]["value"] > 90


def test_without_a_model_the_trees_of_the_digits_run(tmp_path: Path) -> None:
    words = ["--scenario", "server", "--backend", "trees", "--mode", "accuracy", "--quiet"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    result = json.loads((tmp_path / "out/result.json").read_text())
    assert result["model"] == "digits-trees"
    assert result["accuracy"]["value"] >= result["accuracy"]["target"]


def test_only_the_backend_without_a_model_chooses_the_trees() -> None:
    chosen = {
        words: make_config({"scenario": "offline", **dict(words)}).model
        for words in (
            (("backend", "trees"),),
            (("backend", "trees"), ("model", "digits")),
            (("backend", "ort"),),
        )
    }
    assert [*chosen.values()] == ["digits-trees", "digits", "digits"]
    assert RunConfig.of(scenario="offline", backend="trees").model == "digits-trees"


@pytest.fixture(scope="module")
def forest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a forest with 13 features."""
    path = tmp_path_factory.mktemp("forest") / "model.ubj"
    boosted(table("wine"), objective="multi:softprob", num_class=3).save_model(path)
    return path


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ([("x", "float32", (None, 12))], "its trees take 13 features, but a sample of input 'x' has the shape [12]"),
        ([("x", "float32", (None, "length"))], "a sample of input 'x' has the shape ['length']"),
        ([("x", "int64", (None, 13))], "input 'x' is int64, but trees take float32 or float64"),
        ([("x", "float32", (None, 6)), ("y", "float32", (None, 7))], "the manifest has 2 inputs, but trees take one table"),
    ],
)  # fmt: skip
def test_input_that_the_trees_cannot_take_is_refused(
    inputs: Sequence[tuple[str, str, tuple[Any, ...]]], text: str, forest: Path
) -> None:
    backend = opened(forest, inputs=tuple(TensorSpec(*each) for each in inputs))
    assert text in refusal(backend.__enter__)


def test_missing_predictor_is_named_with_the_other_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.txt"
    path.write_bytes(b"tree\nversion=v4\nnum_class=1\n")
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    said = refusal(opened(path).__enter__, error=HarnessError)
    assert "needs the module 'lightgbm': " in said
    assert said.endswith(", or pass --backend-option engine=gtil")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (pickle.dumps({"a": 1}), "it is a pickle, which is code"),
        (b"binf" + b"\0" * 100, "it is XGBoost's old binary format"),
        (b"{}", "it is neither XGBoost's JSON or UBJSON, nor LightGBM's text, nor a treelite 4 checkpoint"),
        (b'{"learner": {"oops": 1}}', "xgboost cannot load it: "),
        (b"tree\nversion=v4\nnum_class=1\n", "cannot load it: "),
        (b"tree\nversion=v4\nnum_class=1\n", ": fetch it again, or convert it again"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_trees_is_refused_in_one_line(
    content: bytes, text: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    for engine in ("own", "gtil"):
        said = refusal(opened(path, options={"engine": engine}).__enter__, error=HarnessError)
        assert said.startswith(f"{path}: ")
        assert "\n" not in said
        assert text in said or engine == "gtil"


def test_formats_are_recognised_by_suffix_or_content(forest: Path, tmp_path: Path) -> None:
    xgboost_text = tmp_path / "model.json"
    booster = xgboost.Booster()
    booster.load_model(forest)
    booster.save_model(xgboost_text)
    (tmp_path / "model.txt").write_text("tree\nversion=v4\n")
    (tmp_path / "model.tl").touch()
    found = {path.suffix: format_of(path) for path in (forest, *tmp_path.iterdir())}
    assert {suffix: one and one.name for suffix, one in found.items()} == FORMATS
    xgboost_text.write_text('{"format": "graph-model"}')
    assert format_of(xgboost_text) is None


_READ_DAMAGED = """
import sys
import numpy as np
from harness.core import registry
from harness.errors import HarnessError
from harness.types import BackendSetup, Batch
from pathlib import Path

source, folder, engine, rounds = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
whole = source.read_bytes()
random = np.random.default_rng(1)
refused = answered = 0
for round in range(rounds):
    content = bytearray(whole)
    for place in random.integers(0, len(whole), 3):
        content[place] = random.integers(256)
    if not round % 4:
        del content[random.integers(len(content)):]
    path = folder / ("damaged" + source.suffix)
    path.write_bytes(content)
    setup = BackendSetup(model=path, model_name="m", options={"engine": engine})
    try:
        with registry.load("backend", "trees")(setup) as backend:
            (spec,) = backend.signature()
            if spec.shape[1] < 10_000:
                backend.infer(Batch(2, {"features": np.ones((2, spec.shape[1]), np.float32)}))
        answered += 1
    except HarnessError as e:
        assert chr(10) not in str(e), e
        refused += 1
print(refused, answered)
"""


def test_damaged_checkpoints_of_treelite_are_read_without_a_crash(
    forest: Path, tmp_path: Path
) -> None:
    path = tmp_path / "model.tl"
    treelite.frontend.load_xgboost_model(forest).serialize(path)
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        _READ_DAMAGED,
        str(path),
        str(tmp_path),
        "own",
        "600",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    refused, answered = map(int, re.findall(r"\d+", done.stdout))
    assert refused > 150
    assert answered > 0


def test_a_tree_with_a_circle_is_refused(forest: Path, tmp_path: Path) -> None:
    """GTIL would follow the circle endlessly."""
    path = tmp_path / "model.tl"
    model = treelite.frontend.load_xgboost_model(forest)
    tree = model.get_tree_accessor(0)
    left = tree.get_field("cleft").copy()
    inner = np.flatnonzero(left > 0)
    left[inner[-1]] = inner[-1]
    tree.set_field("cleft", left)
    model.serialize(path)
    assert "a node of a tree has two parents" in refusal(opened(path).__enter__)
