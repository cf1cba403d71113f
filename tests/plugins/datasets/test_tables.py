"""Tables as arrays, CSV or Parquet become inputs and labels; errors name the unusable lines."""

import io
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from onnx import helper

from harness.datasets.csv_table import CsvDataset
from harness.datasets.npz import NpzDataset
from harness.datasets.parts import archive
from harness.datasets.parts.numbers import apply, cast, normalised, row_shape
from harness.errors import ConfigError
from harness.models.manifest.files import sha256_of
from harness.models.steps.steps import PREPROCESS
from harness.types import ClassName, DatasetSetup, Step, TensorSpec
from tests.builders.models.odd_files import value, write
from tests.builders.refusals import refusals
from tests.faults.command import ROOT, result, run

FEATURES = TensorSpec("x", "float32", ("batch", 2))


def step(name: str, **options: Any) -> Step:
    return Step(name, PREPROCESS[name](**options).model_dump())


def setup(path: Path, *specs: TensorSpec, **steps: tuple[Step, ...]) -> DatasetSetup:
    return DatasetSetup(inputs=specs or (FEATURES,), data_dir=path, steps=steps)


def loaded(cls: Any, made: DatasetSetup) -> Any:
    dataset = cls(made)
    dataset.load(range(len(dataset)))
    return dataset


def refusal(cls: Any, made: DatasetSetup) -> list[str]:
    return refusals(loaded, cls, made)


def csv(folder: Path, text: str) -> Path:
    path = folder / "data.csv"
    path.write_text(text)
    return path


def npz(folder: Path, **arrays: Any) -> Path:
    path = folder / "data.npz"
    np.savez(path, **arrays)
    return path


def test_a_csv_is_rows_of_every_column_but_the_label(tmp_path: Path) -> None:
    csv(tmp_path, '\ufeffwidth,label,"height, m"\r\n1,3,2.5\r\n\r\n-4,cat,5e1\r\n')
    table = CsvDataset(setup(tmp_path))
    table.load([1, 0])
    rows = table.batch([0, 1]).inputs["x"]
    assert rows.tolist() == [[1, 2.5], [-4, 50]]
    assert (len(table), str(rows.dtype)) == (2, "float32")
    assert [table.label(0), table.label(1)] == ["3", "cat"]


@pytest.mark.parametrize("other", ["1", "1.0", "-9007199254740993"])
def test_large_integers_keep_all_their_digits(other: str, tmp_path: Path) -> None:
    """Bug: 2^53 + 1 became 2^53."""
    csv(tmp_path, f"a,b,label\n9007199254740993,{other},0\n9223372036854775807,-3e0,1\n")
    table = CsvDataset(setup(tmp_path, TensorSpec("x", "int64", (None, 2))))
    table.load([0, 1])
    rows = table.batch([0, 1]).inputs["x"]
    assert rows.tolist() == [
        [2**53 + 1, int(float(other) if "." in other else other)],
        [2**63 - 1, -3],
    ]


def test_an_integer_that_no_type_holds_is_refused_and_for_floats_it_is_one(tmp_path: Path) -> None:
    path = csv(tmp_path, "a,label\n9223372036854775808,0\n1,1\n")
    (line,) = refusal(CsvDataset, setup(path, TensorSpec("x", "int64", (None, 1))))
    assert "does not fit input 'x', which is int64" in line
    table = CsvDataset(setup(path, TensorSpec("x", "float32", (None, 1))))
    table.load([0, 1])
    assert table.batch([0, 1]).inputs["x"].tolist() == [[2.0**63], [1.0]]
    csv(tmp_path, "a,label\n9007199254740993,0\n1.5,1\n")
    table = CsvDataset(setup(path, TensorSpec("x", "float32", (None, 1))))
    table.load([1])
    assert table.batch([1]).inputs["x"].tolist() == [[1.5]]


def test_labels_of_a_column_are_of_one_kind(tmp_path: Path) -> None:
    """A transcript may consist only of digits."""
    for column, wanted in (("3 1.5 7", [3, 1.5, 7]), ("3 007 cat", ["3", "007", "cat"])):
        rows = "".join(f"1,2,{label}\n" for label in column.split())
        table = CsvDataset(setup(csv(tmp_path, f"a,b,label\n{rows}")))
        found = [table.label(i) for i in range(3)]
        assert found == wanted
        assert {type(label) for label in found} <= (
            {ClassName} if "cat" in wanted else {int, float}
        )


def test_columns_make_the_inputs_that_their_steps_say(tmp_path: Path) -> None:
    path = csv(tmp_path, "a,b,c,id,right\n1,2,3,u,1\n4,5,6,v,0\n")
    specs = (TensorSpec("n", "int64", ("batch",)), TensorSpec("m", "float32", (None, 2, 1)))
    table = CsvDataset(
        setup(
            path,
            *specs,
            n=(step("column", names=["b"], label="right"),),
            m=(
                step("column", names=["c", "a"]),
                step("normalise", mean=[1, 0], std=[2, 1]),
                step("clip", low=0, high=2),
            ),
        )
    )
    table.load([0, 1])
    batch = table.batch([0, 1]).inputs
    assert (batch["n"].tolist(), str(batch["n"].dtype)) == ([2, 5], "int64")
    assert batch["m"].tolist() == [[[1.0], [1.0]], [[2.0], [2.0]]]
    assert [table.label(i) for i in range(2)] == [1, 0]
    assert table.describe()["columns"] == {"n": ["b"], "m": ["c", "a"]}


def test_an_input_named_as_a_column_is_that_column(tmp_path: Path) -> None:
    path = csv(tmp_path, "b,a\n1,2\n")
    specs = (TensorSpec("a", "float32", ("n",)), TensorSpec("b", "float32", ("n", 1)))
    table = CsvDataset(setup(path, *specs))
    table.load([0])
    batch = table.batch([0]).inputs
    assert (batch["a"].tolist(), batch["b"].tolist()) == ([2.0], [[1.0]])
    assert table.label(0) is None


INT = TensorSpec("x", "int8", ("batch", 2))


@pytest.mark.parametrize(
    ("text", "spec", "told"),
    [
        ("", FEATURES, ["is empty: the first line must name the columns"]),
        ("1,2\n3,4\n", FEATURES, ["has no header: the first line must name the columns"]),
        ("a,b\n", FEATURES, ["has no rows: nothing can be measured"]),
        ("a,a,b\n1,2,3\n", FEATURES, ["it names column a twice: keep one"]),
        ("label\n1\n", FEATURES, ["no column is left for input 'x'"]),
        (
            "a,b,label\n1,,1\n2,3\nnan,x,\n\n1_0,2,3\n",
            FEATURES,
            [
                ":2: column 'b' is missing",
                ":3: 2 fields, 3 columns",
                ":4: column 'a' is 'nan', not a number",
                ":4: column 'b' is 'x', not a number",
                ":4: column 'label' is missing",
                ":6: column 'a' is '1_0', not a number",
            ],
        ),
        ("a,b,c\n1,2,3\n", FEATURES, ["input 'x' takes [2] per sample, but its columns have [3]"]),
        ("a,b\n1,2\n\n1,128\n", INT, ["line 4: [1.0, 128.0] does not fit input 'x', which is int8"]),
        ("a,b\n1,2.5\n", INT, ["line 2: [1.0, 2.5] does not fit input 'x', which is int8"]),
        ('a,b\n"1,2\n', FEATURES, [":2: unexpected end of data"]),
    ],
)  # fmt: skip
def test_problems_of_an_unusable_csv_are_reported_by_line(
    text: str, spec: TensorSpec, told: list[str], tmp_path: Path
) -> None:
    path = csv(tmp_path, text)
    lines = refusal(CsvDataset, setup(path, spec))
    wanted = [f"{path}{t}" if t[0] == ":" else t for t in told]
    assert [line.removeprefix(f"{path} ").removeprefix(f"{path}: ") for line in lines] == wanted


def test_a_column_of_texts_is_tokenised(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\ncat\n##s\n,\n")
    path = csv(tmp_path, 'words,label,n\n"The cats, the",1,5\ncat,0,6\n')
    specs = [TensorSpec(n, "int64", ("batch", "length")) for n in ("ids", "mask")]
    specs.append(TensorSpec("n", "float32", ("batch",)))
    steps = {
        name: (
            step("column", names=["words"]),
            step("tokenise", vocab="vocab.txt", max_length=6, gives=name),
        )
        for name in ("ids", "mask")
    }
    table = CsvDataset(setup(tmp_path / "data.csv", *specs, **steps))
    first = table.describe()["digest"]
    table.load([0, 1])
    batch = table.batch([0, 1]).inputs
    assert batch["ids"].tolist() == [[2, 4, 5, 6, 7, 3], [2, 5, 3, 0, 0, 0]]
    assert batch["mask"].tolist() == [[1] * 6, [1, 1, 1, 0, 0, 0]]
    assert (str(batch["ids"].dtype), batch["n"].tolist()) == ("int64", [5, 6])
    with (tmp_path / "vocab.txt").open("a") as vocab:
        vocab.write("more\n")
    assert CsvDataset(setup(path, *specs, **steps)).describe()["digest"] != first
    csv(tmp_path, "words,n\n ,1\n")
    assert refusal(CsvDataset, setup(path, *specs, **steps)) == [
        f"{path}:2: column 'words' is missing"
    ]
    unnamed = {**steps, "mask": steps["mask"][1:]}
    assert refusal(CsvDataset, setup(path, *specs, **unnamed)) == [
        f"{path}: input 'mask' is tokenised: name its only text column with a `column` step"
    ]


def test_only_the_first_problems_of_many_are_shown(tmp_path: Path) -> None:
    lines = refusal(CsvDataset, setup(csv(tmp_path, "a,b\n" + "1,\n" * 1000)))
    assert len(lines) == 21
    assert lines[-1] == "and 980 more problems like these"


def test_bytes_that_are_not_utf_8_are_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_bytes(b"a,b\n\xff\xfe,1\n")
    (line,) = refusal(CsvDataset, setup(tmp_path))
    assert line.startswith(f"{tmp_path}/data.csv cannot be read: 'utf-8' codec can't decode")


def test_all_missing_columns_are_reported(tmp_path: Path) -> None:
    path = csv(tmp_path, "a,b\n1,2\n")
    wants = (step("column", names=["a", "z"], label="y"), step("decode"))
    (line,) = refusal(CsvDataset, setup(path, x=wants))
    assert line == (
        "input 'x': dataset 'csv' has no step 'decode', only column, tokenise, normalise, clip: "
        "choose a different --dataset or change the manifest"
    )
    assert refusal(CsvDataset, setup(path, x=wants[:1])) == [
        f"{path}: the file has no label column 'y', only a, b",
        f"{path}: input 'x' needs column 'z', but the file has a, b",
    ]


def test_a_folder_must_hold_one_such_file(tmp_path: Path) -> None:
    (line,) = refusal(CsvDataset, setup(tmp_path))
    assert line == f"{tmp_path} must contain exactly one .csv file, but contains none: name one"
    for name in ("b.csv", "a.csv"):
        (tmp_path / name).touch()
    (line,) = refusal(CsvDataset, setup(tmp_path))
    assert (
        line
        == f"{tmp_path} must contain exactly one .csv file, but contains a.csv, b.csv: name one"
    )
    (line,) = refusal(CsvDataset, DatasetSetup(inputs=(FEATURES,)))
    assert line == "dataset 'csv' needs --data-dir: a .csv file, or a folder with one"
    (line,) = refusal(CsvDataset, setup(tmp_path / "none"))
    assert line == f"--data-dir {tmp_path}/none does not exist"


def test_model_without_declared_inputs_is_refused(tmp_path: Path) -> None:
    (line,) = refusal(NpzDataset, DatasetSetup(data_dir=tmp_path))
    assert line.startswith("dataset 'npz' needs the model's inputs: name a --model with a manifest")


def test_the_digest_is_of_the_content_and_of_the_steps(tmp_path: Path) -> None:
    path = csv(tmp_path, "a,b\n1,2\n")
    first = CsvDataset(setup(path)).describe()["digest"]
    assert CsvDataset(setup(tmp_path)).describe()["digest"] == first
    clipped = CsvDataset(setup(path, x=(step("clip", low=0, high=1),))).describe()["digest"]
    csv(tmp_path, "a,b\n1,3\n")
    changed = CsvDataset(setup(path)).describe()["digest"]
    assert len({first, clipped, changed}) == 3


def test_an_npz_is_its_arrays(tmp_path: Path) -> None:
    images = np.arange(48).reshape(4, 12)
    npz(tmp_path, image=images, labels=np.array([3, 1, 2, 0], np.int8), other=np.zeros(7))
    data = NpzDataset(setup(tmp_path, TensorSpec("image", "float32", ("n", 3, 2, 2))))
    data.load([2, 0, 1])
    batch = data.batch([2, 0])
    assert batch.inputs["image"].tolist() == images[[2, 0]].reshape(2, 3, 2, 2).tolist()
    assert np.shares_memory(batch.inputs["image"], data.batch([2, 0, 1]).inputs["image"])
    assert [data.label(i) for i in range(4)] == [3, 1, 2, 0]
    assert isinstance(data.label(0), int)
    assert data.describe()["count"] == 4


@pytest.mark.parametrize(
    "labels", [np.array([[2], [0]]), np.array([2.0, 0.0]), np.array([[2.0], [0.0]], np.float32)]
)
def test_labels_with_one_whole_number_are_ints_as_in_csv(labels: Any, tmp_path: Path) -> None:
    npz(tmp_path, x=np.zeros((2, 2)), labels=labels)
    data = NpzDataset(setup(tmp_path))
    assert [data.label(0), data.label(1)] == [2, 0]
    assert {type(data.label(i)) for i in range(2)} == {int}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_input_of_an_npz_that_is_not_finite_is_refused(value: float, tmp_path: Path) -> None:
    path = npz(tmp_path, x=np.array([[0, 1], [value, 1]]))
    data = NpzDataset(setup(tmp_path))
    assert refusals(data.load, [0, 1]) == [
        f"{path}: array 'x', row 1 has NaN or infinity: replace them, or remove the row"
    ]


def test_labels_of_several_numbers_are_rows_and_they_may_be_missing(tmp_path: Path) -> None:
    npz(tmp_path, x=np.zeros((2, 2)), labels=np.eye(2))
    label: Any = NpzDataset(setup(tmp_path)).label(1)
    assert label.tolist() == [0, 1]
    npz(tmp_path, x=np.zeros((2, 2)))
    assert NpzDataset(setup(tmp_path)).label(1) is None


@pytest.mark.parametrize(
    ("arrays", "spec", "told"),
    [
        ({"y": np.zeros(3)}, FEATURES, ["it has no array 'x', only y"]),
        ({"x": np.zeros((3, 5))}, FEATURES, ["array 'x' is [3, 5], but the input takes [2] per sample"]),
        ({"x": np.float32(1)}, FEATURES, ["array 'x' is one number, but the input takes [2] per sample"]),
        ({"x": np.zeros((0, 2))}, FEATURES, ["it has no samples: nothing can be measured"]),
        ({"x": np.zeros((3, 2)), "labels": np.zeros(2)}, FEATURES, ["the arrays have different lengths (x 3, labels 2)"]),
        (
            {"x": np.array([["a", "b"]]), "labels": np.array([1j])},
            FEATURES,
            [
                "array 'x' is <U1: only numbers can be an input",
                "array 'labels' is complex128: store numbers or strings",
            ],
        ),
        # The dataset executes no pickle.
        ({"x": np.array([[print, print]], object)}, FEATURES, ["array 'x' is object: only numbers can be an input"]),
        ({"x": np.array([[1, 2], [3, 300]])}, INT, ["array 'x', row 1: a value does not fit the input's type, int8"]),
    ],
)  # fmt: skip
def test_problems_of_an_unusable_npz_are_reported_by_array(
    arrays: dict[str, Any], spec: TensorSpec, told: list[str], tmp_path: Path
) -> None:
    path = npz(tmp_path, **arrays)
    assert refusal(NpzDataset, setup(path, spec)) == [f"{path}: {t}" for t in told]


@pytest.mark.parametrize("again", ["x.npy", "x", "labels.npy"])
def test_an_npz_with_two_members_of_one_name_is_refused(again: str, tmp_path: Path) -> None:
    """numpy and zipfile disagree about which of the two entries is meant."""
    path = npz(tmp_path, x=np.zeros((3, 2)), labels=np.arange(3))
    with zipfile.ZipFile(path, "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile warns about the repeated name
        archive.writestr(again, b"")
    name = again.removesuffix(".npy")
    told = [f"{path} has an array {name} twice: keep one"]
    assert refusal(NpzDataset, setup(path)) == told


@pytest.mark.parametrize("keep", [0, 20, 400])
def test_a_truncated_npz_is_reported_in_one_line(keep: int, tmp_path: Path) -> None:
    path = npz(tmp_path, x=np.zeros((50, 2)))
    path.write_bytes(path.read_bytes()[:keep])
    (line,) = refusal(NpzDataset, setup(path))
    assert line.startswith(f"{path} cannot be read: ")


def test_damaged_npz_is_reported_at_loading(tmp_path: Path) -> None:
    path = npz(tmp_path, x=np.zeros((50, 2)))
    content = bytearray(path.read_bytes())
    content[500] ^= 1
    path.write_bytes(content)
    (line,) = refusal(NpzDataset, setup(path))
    assert line == f"{path} cannot be read: Bad CRC-32 for file 'x.npy'"


def archived(path: Path, tmp_path: Path, **more: Any) -> NpzDataset:
    return NpzDataset(DatasetSetup(inputs=(FEATURES,), data_dir=path, cache_dir=tmp_path, **more))


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes every array count as too large for memory."""
    monkeypatch.setattr(archive, "WHOLE_BYTES", 0)
    # A block holds three rows of two float64 values.
    monkeypatch.setattr(archive, "_BLOCK_BYTES", 3 * 16)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("cached", [True, False])
def test_rows_of_a_large_npz_are_the_same(save: Any, cached: bool, tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((50, 2))
    names = np.array([f"row {i}" for i in range(50)])
    save(tmp_path / "data.npz", x=values, labels=names)
    cache = tmp_path / "cache" if cached else None
    data = NpzDataset(DatasetSetup(inputs=(FEATURES,), data_dir=tmp_path, cache_dir=cache))
    chosen = [7, 49, 0, 7, 23]
    for indices in (chosen, range(50)):
        data.load(indices)
        found = data.batch(indices).inputs["x"]
        assert np.array_equal(found, values[list(indices)].astype(np.float32))
    assert [data.label(i) for i in (0, 49)] == ["row 0", "row 49"]


@pytest.mark.usefixtures("large")
def test_compressed_npz_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "data.npz", x=np.eye(50, 2))
    archived(tmp_path / "data.npz", tmp_path).load([3])
    told: list[tuple[int, int]] = []
    again = archived(tmp_path / "data.npz", tmp_path, progress=lambda *done: told.append(done))
    monkeypatch.setattr(archive.ArchivedArray, "_blocks", None)
    again.load([0, 1])
    assert again.batch([0, 1]).inputs["x"].tolist() == [[1, 0], [0, 1]]
    assert told == [(2, 2)]
    np.savez_compressed(tmp_path / "data.npz", x=np.zeros((50, 2)))
    # The file has changed, so the dataset reads it again and calls the removed `_blocks`.
    with pytest.raises(TypeError):
        archived(tmp_path / "data.npz", tmp_path).load([0])


@pytest.mark.usefixtures("large")
def test_a_damaged_cache_of_an_npz_costs_only_work(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "data.npz", x=np.eye(50, 2))
    archived(tmp_path / "data.npz", tmp_path).load([0])
    (rows,) = (tmp_path / "arrays").glob("*/rows")
    rows.write_bytes(bytes(rows.stat().st_size))
    data = archived(tmp_path / "data.npz", tmp_path)
    data.load([1, 0])
    assert data.batch([0, 1]).inputs["x"].tolist() == [[1, 0], [0, 1]]


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damage_in_a_large_npz_is_reported_before_a_row_is_used(save: Any, tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    save(path, x=np.random.default_rng(0).standard_normal((50, 2)))
    content = bytearray(path.read_bytes())
    content[600] ^= 1
    path.write_bytes(content)
    (line,) = refusal(NpzDataset, setup(path))
    assert line.startswith(f"{path} cannot be read: ")


@pytest.mark.usefixtures("large")
def test_array_of_another_length_than_in_its_header_is_refused(tmp_path: Path) -> None:
    file = io.BytesIO()
    np.save(file, np.zeros((4, 2)))
    for kept, told in (
        (-8, "the archive ends in the middle"),
        (None, "x.npy is longer than its h"),
    ):
        content = file.getvalue()[:kept] if kept else file.getvalue() + bytes(8)
        with zipfile.ZipFile(tmp_path / "data.npz", "w") as made:
            made.writestr("x.npy", content)
        (line,) = refusal(NpzDataset, setup(tmp_path))
        assert line.startswith(f"{tmp_path}/data.npz cannot be read: {told}")


def test_an_npz_larger_than_its_run_takes_the_memory_of_the_run(tmp_path: Path) -> None:
    """The file has 128 MiB; a thousand of its rows take 1 MiB."""
    path = tmp_path / "data.npz"
    np.savez(path, x=np.zeros((131_072, 256), np.float32))
    code = (
        "import resource, sys; from pathlib import Path; import numpy\n"
        "from harness.datasets.npz import NpzDataset\n"
        "from harness.types import DatasetSetup, TensorSpec\n"
        "spec = TensorSpec('x', 'float32', ('n', 256))\n"
        "data = NpzDataset(DatasetSetup(inputs=(spec,), data_dir=Path(sys.argv[1])))\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "data.load(range(0, 131_072, 128)); data.describe()\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, path], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 40 * 1024, "KiB"


def test_an_npz_that_is_too_large_is_held_in_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # fmt: skip
    data = NpzDataset(setup(npz(tmp_path, x=np.zeros((9, 2)))))
    assert data.performance_count == 9
    monkeypatch.setattr("harness.datasets.npz.MEMORY_LIMIT_BYTES", 5 * 8)
    assert data.performance_count == 5


def test_npz_without_arrays_is_reported(tmp_path: Path) -> None:
    npz(tmp_path)
    assert refusal(NpzDataset, setup(tmp_path)) == [
        f"{tmp_path}/data.npz: it has no array 'x', nor any other"
    ]


def test_a_row_fits_as_it_is_or_spread_over_a_fixed_shape() -> None:
    assert row_shape((5, 7), TensorSpec("x", "float32", ("n", None, 7))) == (5, 7)
    assert row_shape((5, 7), TensorSpec("x", "float32", ("n", None, 8))) is None
    assert row_shape((4,), TensorSpec("x", "float32", ("n", 1, 2, 2))) == (1, 2, 2)
    assert row_shape((1,), TensorSpec("x", "float32", ("n",))) == ()
    assert row_shape((2, 3), TensorSpec("x", "float32", ("n", 1, 2, 3))) == (1, 2, 3)
    assert row_shape((3, 4, 2), TensorSpec("x", "float32", ("n", 2, 3, 4))) is None
    assert row_shape((2,), TensorSpec("x", "float32", ("n",))) is None


def test_values_that_a_type_cannot_hold_are_found() -> None:
    rows = np.array([[1.0], [2.0**40], [0.5]])
    assert cast(rows, "float16")[1] == 1
    assert cast(rows, "float32")[1] is None
    assert cast(rows, "int64")[1] == 2
    assert cast(rows[:1], "bool")[1] is None


def test_normalise_follows_its_formula_in_any_layout() -> None:
    values = np.asfortranarray(np.arange(24).reshape(2, 3, 4))
    options = {"scale": 2.0, "mean": (1.0, 2.0, 3.0, 4.0), "std": (2.0,)}
    found = normalised(values, options)
    assert found.tolist() == ((values * 2 - np.arange(1, 5)) / 2).tolist()
    assert str(found.dtype) == "float32"
    column = normalised(np.array([1, 2]), {"scale": 1, "mean": (1.0,), "std": (1.0,)})
    assert column.tolist() == [0, 1]


def test_normalise_with_another_number_of_means_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^normalise.mean has 3 numbers for 2 columns"):
        apply(np.zeros((1, 2)), (step("normalise", mean=[1, 2, 3]),))


def model(folder: Path) -> Path:
    """Writes x (batch, 3) -> logits equal to x, so the label is the largest column."""
    node = helper.make_node("MatMul", ["x", "w"], ["logits"])
    x, logits = (value(name, ["batch", 3]) for name in ("x", "logits"))
    write(folder / "model.onnx", [node], [x], [logits], {"w": np.eye(3, dtype=np.float32)})
    manifest = {
        "name": "largest", "version": "1", "description": "x", "licence": "Apache-2.0",
        "task": "table",
        "files": {"onnx": {"path": "model.onnx", "sha256": sha256_of(folder / "model.onnx")}},
        "inputs": [{"name": "x", "dtype": "float32", "shape": ["batch", 3]}],
        "outputs": [{"name": "logits", "postprocess": "argmax"}],
        "dataset": "npz", "accuracy": {"metric": "top1", "target": 70},
    }  # fmt: skip
    path = folder / "model.yaml"
    path.write_text(yaml.safe_dump(manifest))
    return path


def test_a_run_on_an_npz_is_scored_by_its_labels(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).permuted(np.tile([1.0, 2.0, 3.0], (40, 1)), axis=1)
    labels = rows.argmax(axis=1)
    labels[:10] = (labels[:10] + 1) % 3
    data = npz(tmp_path, x=rows, labels=labels)
    done = run(
        "--scenario", "offline", "--queries", "500", "--model", str(model(tmp_path)),
        "--data-dir", str(data), "--out", f"{tmp_path}/r",
    )  # fmt: skip
    assert done.status == 0, done.said + done.printed
    assert result(tmp_path / "r")["accuracy"]["value"] == 75.0


@pytest.mark.slow
def test_parquet_is_the_same_table(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    from harness.datasets.parquet import ParquetDataset

    path = tmp_path / "data.parquet"
    plain = {"a": [1, 2], "b": [0.5, 1.5], "label": [1, 0], "text": ["x", None]}
    pq.write_table(pa.table(plain), path)
    wants = (step("column", names=["a", "b"]),)
    table = ParquetDataset(setup(tmp_path, x=wants))
    table.load([1, 0])
    assert table.batch([0, 1]).inputs["x"].tolist() == [[1, 0.5], [2, 1.5]]
    assert [table.label(0), table.label(1)] == [1, 0]

    lists = pa.array([[1, 2], [3, 4]], pa.list_(pa.float32()))
    for column in (lists, lists.cast(pa.list_(pa.float32(), 2))):
        pq.write_table(pa.table({"v": column}), path)
        table = ParquetDataset(setup(path))
        table.load([0, 1])
        assert table.batch([0, 1]).inputs["x"].tolist() == [[1, 2], [3, 4]]

    found = [{"id": "q", "relevant": ["d"]}, {"id": "d", "relevant": None}]
    pq.write_table(pa.table({"v": lists, "label": found}), path)
    assert [ParquetDataset(setup(path)).label(i) for i in range(2)] == found

    for columns, told in (
        ({"a": [1, None], "b": [1.0, float("nan")]}, [
            "row 2: column 'a' is missing", "row 2: column 'b' is missing"]),
        ({"a": ["1"], "b": [1]}, ["column 'a': string is not a number"]),
        ({"a": [[1, 2], [3]]}, ["column 'a': row 2 has 1 values, but row 1 has 2"]),
        ({"a": [[1, 2], [3, None]]}, ["column 'a': a value is missing or not finite"]),
    ):  # fmt: skip
        pq.write_table(pa.table(columns), path)
        assert refusal(ParquetDataset, setup(path)) == [f"{path}: {t}" for t in told]
    path.write_bytes(b"PAR1" + bytes(50))
    (line,) = refusal(ParquetDataset, setup(path))
    assert line.startswith(f"{path} is not Parquet: ")
