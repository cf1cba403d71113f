"""Datasets return rows in the loaded order, as views if possible, and identical bytes for the same seed."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.config.parse import parse_input_shape
from harness.datasets.digits import FILE, DigitsDataset
from harness.datasets.parts.rows import LoadedRows
from harness.datasets.synthetic import COUNT, MEMORY_LIMIT_BYTES, SyntheticDataset
from harness.errors import ConfigError
from harness.types import Dataset, DatasetSetup, TensorSpec
from tests.builders.refusals import refusal, refusals

TOTAL = 50


def rows_of(indices: Sequence[int]) -> tuple[LoadedRows, Any]:
    """Returns rows whose content is their index, and the array that contains them."""
    rows = LoadedRows(TOTAL)
    held = np.repeat(np.asarray(indices, np.int64)[:, None], 3, axis=1)
    rows.hold(indices, {"x": held})
    return rows, held


def test_empty_set_of_rows_is_accepted() -> None:
    """Bug: an empty list caused an IndexError, because numpy turns it into an array of floats."""
    rows, _ = rows_of([])
    with pytest.raises(KeyError, match="sample 0 is not loaded"):
        rows.batch([0])


loaded = st.lists(st.integers(0, TOTAL - 1), min_size=1, max_size=30)


@given(loaded, st.data())
def test_batch_holds_the_requested_rows_in_order(indices: list[int], data: Any) -> None:
    asked = data.draw(st.lists(st.sampled_from(indices), min_size=1, max_size=20))
    rows, _ = rows_of(indices)
    batch = rows.batch(asked)
    assert batch.size == len(asked)
    assert batch.inputs["x"].tolist() == [[i, i, i] for i in asked]


@given(st.permutations(range(20)), st.integers(0, 19), st.integers(1, 20))
def test_rows_side_by_side_are_a_view_and_others_one_copy(
    order: list[int], start: int, size: int
) -> None:
    rows, held = rows_of(order)
    side_by_side = order[start : start + size]
    assert np.shares_memory(rows.batch(side_by_side).inputs["x"], held)
    if len(side_by_side) > 1:
        backwards = rows.batch(side_by_side[::-1]).inputs["x"]
        assert not np.shares_memory(backwards, held)


@given(loaded, st.data())
def test_a_batch_can_be_made_in_the_callers_memory(indices: list[int], data: Any) -> None:
    asked = data.draw(st.lists(st.sampled_from(indices), min_size=1, max_size=20))
    rows, held = rows_of(indices)
    into = np.full((len(asked), 3), -1)
    taken = []

    def take(held: Any, places: Any, to: Any) -> None:
        taken.append(places)
        to[...] = held[places]

    batch = rows.batch_into(asked, {"x": into}, take)
    assert batch.size == len(asked)
    assert batch.inputs["x"].tolist() == [[i, i, i] for i in asked]
    assert (batch.inputs["x"] is into) != np.shares_memory(batch.inputs["x"], held)
    assert len(taken) == (batch.inputs["x"] is into)
    if TOTAL - 1 not in indices:
        with pytest.raises(KeyError, match=f"sample {TOTAL - 1} is not loaded"):
            rows.batch_into([asked[0], TOTAL - 1], {"x": into[:2]}, take)


def test_a_single_row_is_a_view() -> None:
    rows, held = rows_of([5, 3])
    (row,) = rows.batch([3]).inputs["x"]
    assert np.shares_memory(row, held)
    assert row.tolist() == [3, 3, 3]


def test_an_index_loaded_twice_keeps_its_first_row() -> None:
    """Multi-stream ends its list with duplicates; the earlier queries stay contiguous."""
    rows, held = rows_of([4, 2, 9, 4, 2])
    batch = rows.batch([4, 2, 9])
    assert np.shares_memory(batch.inputs["x"], held[:3])
    assert not np.shares_memory(rows.batch([2, 4, 9]).inputs["x"], held)
    # The batch contains the last row and the duplicates.
    wrapped = rows.batch([9, 4, 2]).inputs["x"]
    assert wrapped[:, 0].tolist() == [9, 4, 2]


@pytest.mark.parametrize("asked", [[7], [1, 7], [7, 1], [1, 2, 7, 3]])
def test_a_sample_that_is_not_loaded_is_named(asked: list[int]) -> None:
    rows, _ = rows_of([1, 2, 3])
    assert refusal(rows.batch, asked, error=KeyError) == "'sample 7 is not loaded'"


def test_earlier_rows_are_dropped_at_the_next_load() -> None:
    rows, _ = rows_of([1, 2])
    rows.hold([3], {"x": np.zeros((1, 3))})
    assert refusal(rows.batch, [1], error=KeyError) == "'sample 1 is not loaded'"
    rows.unload([])
    assert refusal(rows.batch, [3], error=KeyError) == "'sample 3 is not loaded'"


IMAGE = TensorSpec("pixels", "float32", ("batch", 1, 8, 8))


def test_digits_are_500_images_between_0_and_1_with_their_labels() -> None:
    digits = DigitsDataset(DatasetSetup(inputs=(IMAGE,)))
    order = [499, 0, 17]
    digits.load(order)
    images = digits.batch(order).inputs["pixels"]
    assert (images.shape, str(images.dtype)) == ((3, 1, 8, 8), "float32")
    assert (float(images.min()), float(images.max())) == (0.0, 1.0)
    with np.load(FILE) as file:
        assert images[:, 0].tolist() == (file["images"][order] / 16).tolist()
        assert [digits.label(i) for i in range(500)] == file["labels"].tolist()
    assert len(digits) == 500
    assert {digits.label(i) for i in range(500)} == set(range(10))


@pytest.mark.parametrize(
    ("cls", "name"), [(DigitsDataset, "digits"), (SyntheticDataset, "synthetic")]
)
def test_a_folder_that_is_not_read_is_refused(cls: Any, name: str) -> None:
    """If the harness accepted the folder, the run would silently ignore the user's samples."""
    with pytest.raises(
        ConfigError, match=f"^dataset '{name}' does not use --data-dir: drop --data-dir, or "
    ):
        cls(DatasetSetup(inputs=(IMAGE,), data_dir=Path("mine")))


def test_digits_follow_no_input_shape() -> None:
    """Bug: the option was ignored, so the run did not use the user's sizes."""
    assert refusals(
        DigitsDataset, DatasetSetup(inputs=(IMAGE,), shapes={"pixels": (1, 1, 9, 9)})
    ) == ["--input-shape belongs to dataset 'synthetic': drop it for 'digits'"]


def test_digits_describe_the_file_they_come_from() -> None:
    about = DigitsDataset(DatasetSetup()).describe()
    assert about["count"] == 500
    assert len(str(about["digest"])) == 64


@pytest.mark.parametrize(
    ("inputs", "shown"),
    [
        ((TensorSpec("x", "float32", ("n", 3, 8, 8)),), "x float32 [n, 3, 8, 8]"),
        ((TensorSpec("x", "uint8", ("n", 1, 8, 8)),), "x uint8 [n, 1, 8, 8]"),
        ((IMAGE, TensorSpec("y", "int64", (1,))), "pixels float32 [batch, 1, 8, 8], y int64 [1]"),
    ],
)
def test_a_model_that_takes_no_digits_is_refused(
    inputs: tuple[TensorSpec, ...], shown: str
) -> None:
    assert refusal(DigitsDataset, DatasetSetup(inputs=inputs)) == (
        f"dataset 'digits' has float32 images of shape [1, 8, 8], but the model takes {shown}: "
        "choose a different --dataset, e.g. synthetic"
    )


SPECS = (
    TensorSpec("image", "float32", (None, 3, 4)),
    TensorSpec("half", "float16", (None, 2)),
    TensorSpec("ids", "int64", (None, 5)),
    TensorSpec("mask", "bool", (None, 1)),
)


def synthetic(seed: int, specs: tuple[TensorSpec, ...] = SPECS) -> SyntheticDataset:
    return SyntheticDataset(DatasetSetup(inputs=specs, seed=seed))


@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, COUNT - 1), min_size=1, max_size=6))
def test_same_seed_gives_the_same_bytes_in_any_order_of_loading(
    seed: int, indices: list[int]
) -> None:
    one, other = synthetic(seed), synthetic(seed)
    one.load(indices)
    other.load(sorted(set(indices)))
    a, b = one.batch(indices).inputs, other.batch(indices).inputs
    for spec in SPECS:
        assert a[spec.name].dtype == np.dtype(spec.dtype)
        assert a[spec.name].shape == (len(indices), *spec.shape[1:])
        assert a[spec.name].tobytes() == b[spec.name].tobytes()


def test_another_seed_gives_other_samples_and_another_digest() -> None:
    one, other = synthetic(1), synthetic(2)
    one.load([0])
    other.load([0])
    assert one.batch([0]).inputs["image"].tolist() != other.batch([0]).inputs["image"].tolist()
    assert one.describe()["digest"] != other.describe()["digest"]
    assert one.describe() == synthetic(1).describe()


@pytest.mark.parametrize("batch", ["batch_size", "N", 1, None])
def test_name_of_the_batch_dimension_does_not_change_the_digest(batch: str | int | None) -> None:
    """Bug: `sweep --backend ort,openvino` measured only one backend, with the message 'the dataset has changed'."""
    spelt = tuple(spec._replace(shape=(batch, *spec.shape[1:])) for spec in SPECS)
    one, other = synthetic(1), synthetic(1, spelt)
    assert one.describe()["digest"] == other.describe()["digest"]
    wider = (*SPECS[:3], SPECS[3]._replace(shape=(None, 2)))
    assert one.describe()["digest"] != synthetic(1, wider).describe()["digest"]
    typed = (*SPECS[:3], SPECS[3]._replace(dtype="uint8"))
    assert one.describe()["digest"] != synthetic(1, typed).describe()["digest"]


def test_description_names_integer_inputs_of_only_0_and_1() -> None:
    """Bug: an embedding was silently measured on only two rows, both of them in the cache."""
    specs = (*SPECS, TensorSpec("ids", "int64", (None, 4)))
    integers = {spec.name for spec in specs if np.dtype(spec.dtype).kind != "f"}
    assert set(synthetic(1, specs).describe()["zero_or_one"]) == integers  # type: ignore[call-overload]
    floats = tuple(spec for spec in SPECS if np.dtype(spec.dtype).kind == "f")
    assert "zero_or_one" not in synthetic(1, floats).describe()


def test_samples_differ_from_one_another() -> None:
    made = synthetic(0)
    made.load(range(20))
    images = made.batch(range(20)).inputs["image"]
    assert len({image.tobytes() for image in images}) == 20


def test_integers_are_0_or_1_so_that_any_embedding_has_them() -> None:
    made = synthetic(0)
    made.load(range(20))
    assert set(made.batch(range(20)).inputs["ids"].ravel().tolist()) == {0, 1}


def test_synthetic_samples_have_no_label_and_are_marked_as_synthetic() -> None:
    made: Dataset = synthetic(0)
    assert SyntheticDataset.synthetic
    assert [made.label(i) for i in (0, COUNT - 1)] == [None, None]


def test_large_samples_are_held_in_smaller_numbers() -> None:
    row = 1 << 20
    made = synthetic(0, (TensorSpec("x", "float32", (None, row)),))
    assert made.performance_count == MEMORY_LIMIT_BYTES // (4 * row)
    assert synthetic(0).performance_count == COUNT
    assert synthetic(0, (TensorSpec("x", "uint8", (None, 1 << 30)),)).performance_count == 1


SYMBOLIC = TensorSpec("ids", "int64", ("batch", "sequence"))
MIXED = TensorSpec("x", "float32", (None, 3, "h", "w"))


NO_TEXTS = (
    "input 's' is tensor(string), a type without synthetic data: pass --dataset FILE.py:CLASS, "
    "which returns strings as an array of objects"
)


@pytest.mark.parametrize(
    ("inputs", "shapes", "lines"),
    [
        ((SYMBOLIC,), {}, ["input 'ids' has the symbolic shape [batch, sequence]: set its sizes, e.g. --input-shape ids=1x64"]),
        (
            (SYMBOLIC, MIXED),
            {},
            [
                "input 'ids' has the symbolic shape [batch, sequence]: set its sizes, e.g. --input-shape ids=1x64",
                "input 'x' has the symbolic shape [?, 3, h, w]: set its sizes, e.g. --input-shape x=1x3x64x64",
            ],
        ),
        ((SYMBOLIC,), {"ids": (1, 2, 3)}, ["--input-shape ids=1x2x3 does not fit [batch, sequence]"]),
        ((MIXED,), {"x": (1, 4, 8, 8)}, ["--input-shape x=1x4x8x8 does not fit [?, 3, h, w]"]),
        ((MIXED,), {"x": (3, 8, 8)}, ["--input-shape x=3x8x8 does not fit [?, 3, h, w]: the batch is its first size, e.g. x=1x3x8x8"]),
        ((MIXED,), {"x": (1, 3, 8, 8), "y": (1,)}, ["--input-shape y: the model's inputs are x"]),
        ((TensorSpec("s", "tensor(string)", (None, 1)),), {}, [NO_TEXTS]),
    ],
)  # fmt: skip
def test_a_shape_that_cannot_be_made_is_refused(
    inputs: tuple[TensorSpec, ...], shapes: dict[str, tuple[int, ...]], lines: list[str]
) -> None:
    assert refusals(SyntheticDataset, DatasetSetup(inputs=inputs, shapes=shapes)) == lines


def test_model_without_declared_inputs_is_refused() -> None:
    assert refusal(SyntheticDataset, DatasetSetup()) == (
        "dataset 'synthetic' needs the model's inputs: name a --model with a manifest, which "
        "`init --model FILE` writes"
    )


MASK = TensorSpec("mask", "int64", ("batch", "sequence"))


def test_one_input_shape_sets_its_dimensions_in_every_input() -> None:
    """Bug: the mask needed its own --input-shape although its dimension has the same name."""
    made = SyntheticDataset(DatasetSetup(inputs=(MASK, SYMBOLIC), shapes={"ids": (1, 7)}))
    made.load([3])
    shapes = {name: rows.shape for name, rows in made.batch([3]).inputs.items()}
    assert shapes == {"ids": (1, 7), "mask": (1, 7)}
    setup = DatasetSetup(inputs=(SYMBOLIC, MASK))
    line = "input 'ids' has the symbolic shape [batch, sequence]: set its sizes, e.g. --input-shape ids=1x64"
    assert refusals(SyntheticDataset, setup) == [line]


@pytest.mark.parametrize("name", ["ids", "my input", "it's"])
def test_the_advice_for_a_shape_can_be_pasted(name: str) -> None:
    """Bug: the advice was "set its sizes with --input-shape ids=1xsequence", which the parser refuses."""
    spec = TensorSpec(name, "int64", ("batch", "sequence", None, 3))
    line = refusal(SyntheticDataset, DatasetSetup(inputs=(spec,)))
    flag, word = shlex.split(line[line.index("--input-shape") :])
    assert flag == "--input-shape"
    shapes = dict([parse_input_shape(word)])
    made = SyntheticDataset(DatasetSetup(inputs=(spec,), shapes=shapes))
    made.load([0])
    assert made.batch([0]).inputs[name].shape == (1, 64, 64, 3)


def test_one_dimension_of_two_sizes_is_refused() -> None:
    """Bug: the framework failed during the warm-up with its own message, and the status was 3."""
    setup = DatasetSetup(inputs=(SYMBOLIC, MASK), shapes={"ids": (1, 16), "mask": (1, 17)})
    assert refusals(SyntheticDataset, setup) == [
        "--input-shape: sequence is 16 in ids and 17 in mask: dimensions with the same name must have the same size"
    ]


@pytest.mark.parametrize(
    ("shape", "advice"),
    [
        (("N", "N", "N", 3), "[N, N, N, 3]: set its sizes, e.g. --input-shape x=1x64x64x3"),
        ((8, "N"), "[8, N], whose first dimension, 8, must be the batch: set its sizes, e.g. --input-shape x=1x64"),
    ],
)  # fmt: skip
def test_the_advice_for_a_shape_names_the_batch(shape: tuple[int | str, ...], advice: str) -> None:
    """Bug: if the batch was the second dimension, following the advice led to "5 outputs for 8 samples"."""
    setup = DatasetSetup(inputs=(TensorSpec("x", "float32", shape),))
    expected = [f"input 'x' has the symbolic shape {advice}"]
    assert refusals(SyntheticDataset, setup) == expected


@pytest.mark.parametrize(
    ("spec", "shape"),
    [(SYMBOLIC, (1, 7)), (TensorSpec("x", "float32", ("N", "N", "N", 3)), (1, 4, 5, 3))],
    ids=["one size", "a placeholder that is the batch too"],
)
def test_a_symbolic_shape_takes_the_sizes_that_were_given(
    spec: TensorSpec, shape: tuple[int, ...]
) -> None:
    made = SyntheticDataset(DatasetSetup(inputs=(spec,), shapes={spec.name: shape}))
    made.load([3])
    assert made.batch([3]).inputs[spec.name].shape == shape


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_an_input_of_one_number_a_sample_is_made(dtype: str) -> None:
    """Bug: rows of shape () were numpy scalars, to which nothing can be assigned."""
    made = synthetic(0, (TensorSpec("x", dtype, ("batch",)),))
    made.load([0, 1, 2])
    numbers = made.batch([0, 1, 2]).inputs["x"]
    assert (numbers.shape, str(numbers.dtype)) == ((3,), dtype)
