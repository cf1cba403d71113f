"""Ranges of synthetic numbers come from the model's tables or the user, and their origin is recorded."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from harness.core.config.parse import parse_input_range
from harness.core.config.run_config import RunConfig, from_plain, to_plain
from harness.datasets.synthetic import SyntheticDataset
from harness.errors import ConfigError
from harness.models.manifest.lookup import load_model
from harness.models.opened.loading import check_tables
from harness.types import Batch, DatasetSetup, Interval, Lognormal, Table, TensorSpec
from tests.builders.models.odd_files import INT64, value, write
from tests.builders.refusals import refusal, refusals
from tests.faults.command import result, run

INTEGERS = ("bool", "int8", "uint8", "int16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "float32", "float64")


def whole(dtype: str) -> tuple[int, int]:
    """Returns the range of a type."""
    if dtype == "bool":
        return 0, 2
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max) + 1


def synthetic(dtype: str, **more: Any) -> SyntheticDataset:
    inputs = (TensorSpec("x", dtype, ("batch", 50)),)
    return SyntheticDataset(DatasetSetup(inputs=inputs, **more))


def numbers(made: SyntheticDataset, count: int = 4) -> Any:
    made.load(range(count))
    return made.batch(range(count)).inputs["x"]


def about(made: SyntheticDataset) -> Any:
    return made.describe()["ranges"]


@given(st.sampled_from(INTEGERS), st.data())
def test_integers_lie_in_the_range_and_have_the_type(dtype: str, data: st.DataObject) -> None:
    least, most = whole(dtype)
    low = data.draw(st.integers(least, most - 1))
    high = data.draw(st.integers(low + 1, most))
    drawn = numbers(synthetic(dtype, ranges={"x": Interval(low, high)}))
    assert drawn.dtype == np.dtype(dtype)
    assert low <= int(drawn.min()) <= int(drawn.max()) < high


@pytest.mark.parametrize("dtype", INTEGERS)
def test_exactly_the_whole_range_of_a_type_is_used(dtype: str) -> None:
    low, high = whole(dtype)
    drawn = numbers(synthetic(dtype, ranges={"x": Interval(low, high)}), 20)
    assert int(drawn.min()) < low + (high - low) / 20
    assert int(drawn.max()) >= high - 1 - (high - low) // 20
    for wrong in (Interval(low - 1, high), Interval(low, high + 1)):
        line = f"--input-range x={wrong}: the input is {dtype}, whose range is only {low}:{high}"
        assert refusals(synthetic, dtype, ranges={"x": wrong}) == [line]


@given(st.sampled_from(FLOATS), st.floats(-6e4, 6e4), st.floats(1e-2, 1e3))
def test_floats_lie_in_the_range_and_have_the_type(dtype: str, low: float, width: float) -> None:
    high = low + width
    drawn = numbers(synthetic(dtype, ranges={"x": Interval(low, high)}))
    assert drawn.dtype == np.dtype(dtype)
    kind = np.dtype(dtype).type
    assert kind(low) <= drawn.min() <= drawn.max() <= kind(high)
    if kind(low) < kind(high):
        assert drawn.max() < kind(high)


def test_floats_without_a_range_are_normal_as_before() -> None:
    made = synthetic("float32", tables=lambda: {"x": Table("Gather", 7)})
    assert numbers(made).min() < 0
    assert "ranges" not in made.describe()


@pytest.mark.parametrize(
    ("dtype", "interval", "told"),
    [
        ("int64", Interval(0.5, 2), "the input is int64: write whole numbers"),
        (
            "float16",
            Interval(0, 70000),
            "the input is float16, whose range is only -65504 to 65504",
        ),
        ("complex64", Interval(0, 1), "the input is complex64, which has no ranges: drop it"),
    ],
)
def test_a_range_that_a_type_cannot_have_is_refused(
    dtype: str, interval: Interval, told: str
) -> None:
    line = f"--input-range x={interval}: {told}"
    assert refusals(synthetic, dtype, ranges={"x": interval}) == [line]


def test_all_problems_are_reported_at_once_with_the_nearest_name() -> None:
    inputs = (TensorSpec("ids", "int64", ("batch", "n")), TensorSpec("tags", "int8", ("batch", 2)))
    ranges = {"idz": Interval(0, 2), "words": Interval(0, 2), "tags": Interval(0, 200)}
    setup = DatasetSetup(inputs=inputs, shapes={"tag": (1, 2)}, ranges=ranges)
    assert refusals(SyntheticDataset, setup) == [
        "--input-shape tag: the model's inputs are ids, tags: did you mean 'tags'?",
        "--input-range idz: the model's inputs are ids, tags: did you mean 'ids'?",
        "--input-range words: the model's inputs are ids, tags",
        "input 'ids' has the symbolic shape [batch, n]: set its sizes, e.g. --input-shape ids=1x64",
        "--input-range tags=0:200: the input is int8, whose range is only -128:128",
    ]


def test_a_table_is_the_default_and_the_user_wins() -> None:
    """Bug: every token was 0 or 1, so an embedding was measured on two rows that stayed in the cache."""
    made = synthetic("int32", tables=lambda: {"x": Table("Gather", 30522)})
    assert about(made)["x"] == {
        "low": 0,
        "high": 30522,
        "source": "the model's Gather table of 30,522 rows",
    }
    assert "zero_or_one" not in made.describe()
    assert len(np.unique(numbers(made))) > 150
    stated = synthetic(
        "int32", tables=lambda: {"x": Table("Gather", 30522)}, ranges={"x": Interval(-3, 4)}
    )
    assert about(stated)["x"] == {"low": -3, "high": 4, "source": "--input-range"}
    assert set(np.unique(numbers(stated))) == set(range(-3, 4))


@pytest.mark.parametrize(("dtype", "high"), [("int8", 128), ("uint8", 256), ("bool", 2)])
def test_a_table_larger_than_the_type_is_drawn_up_to_the_types_limit(dtype: str, high: int) -> None:
    made = synthetic(dtype, tables=lambda: {"x": Table("Gather", 30522)})
    assert about(made)["x"]["high"] == high
    assert int(numbers(made).max()) < high


def test_file_is_not_read_if_no_integer_needs_it() -> None:
    def fail() -> Any:
        raise AssertionError("the file was read")

    synthetic("float32", tables=fail)
    synthetic("bool", tables=fail, ranges={"x": Interval(0, 2)})


@pytest.mark.parametrize(
    ("interval", "advice"),
    [
        (Interval(0, 8), "x=0:7"),
        (Interval(-3, 1000), "x=-3:7"),
        (Interval(7, 9), "x=6:7"),
        (Interval(1000, 1001), "x=6:7"),
    ],
)
def test_a_range_beyond_the_table_is_refused(interval: Interval, advice: str) -> None:
    """Bug: only ONNX Runtime reported the wrong range, during the warm-up and without naming the input."""
    table = {"x": Table("Gather", 7)}
    line = f"--input-range x={interval}: the model's Gather table has 7 rows: pass at most --input-range {advice}"
    assert refusals(synthetic, "int64", tables=lambda: table, ranges={"x": interval}) == [line]
    passed = dict([parse_input_range(advice)])
    assert about(synthetic("int64", tables=lambda: table, ranges=passed))["x"]["high"] == 7


def test_digest_depends_on_the_range_and_not_on_its_source() -> None:
    ranges = [Interval(0, 2), Interval(0, 7), Interval(1, 7), Interval(0, 8)]
    digests = {str(synthetic("int64", ranges={"x": r}).describe()["digest"]) for r in ranges}
    assert len(digests) == len(ranges)
    assert synthetic("int64").describe()["digest"] in digests
    found = synthetic("int64", tables=lambda: {"x": Table("Gather", 7)})
    assert found.describe()["digest"] in digests


def test_mask_of_drawn_lengths_is_1_unless_the_user_sets_a_range() -> None:
    inputs = tuple(TensorSpec(n, "int64", ("batch", "n")) for n in ("ids", "attention_mask"))
    lengths = {"n": Lognormal(8, 0.5, 20)}
    made = SyntheticDataset(DatasetSetup(inputs=inputs, lengths=lengths))
    made.load(range(20))
    mask = made.batch([0]).inputs["attention_mask"]
    assert set(mask.ravel().tolist()) == {1}
    assert about(made)["attention_mask"]["source"] == "default of a mask; its padding is 0"
    setup = DatasetSetup(inputs=inputs, lengths=lengths, ranges={"attention_mask": Interval(0, 2)})
    other = SyntheticDataset(setup)
    other.load(range(20))
    assert 0 in other.batch([0]).inputs["attention_mask"]


@given(
    st.one_of(
        st.tuples(st.integers(-(2**64), 2**64), st.integers(1, 2**64)),
        st.tuples(st.floats(-1e30, 1e30), st.floats(1, 1e30)).filter(lambda p: p[0] + p[1] > p[0]),
    )
)
def test_ranges_are_read_as_they_are_written(pair: tuple[float, float]) -> None:
    low, high = pair[0], pair[0] + pair[1]
    name, interval = parse_input_range(f"ids:0={low}:{high}")
    assert (name, *interval) == ("ids:0", low, high)
    config = RunConfig(scenario="offline", input_range=((name, interval),))
    assert from_plain(to_plain(config)) == config
    assert all(isinstance(side, int) for side in interval if float(side).is_integer())


NO_RANGE = "is not a range: write NAME=LOW:HIGH, e.g. ids=0:30522"
NO_NUMBER = "is an empty range: LOW must be below HIGH, which is excluded"


@pytest.mark.parametrize(
    ("text", "told"),
    [(text, NO_RANGE) for text in
    ("x", "x=", "=0:2", " =0:2", "x=5", "x=:5", "x=5:", "x=a:b", "x=0:nan", "x=-inf:0", "x=0:1_0",
     "x=0:2:3", f"x=0:{'9' * 5000}")]
    + [(text, NO_NUMBER) for text in ("x=5:5", "x=5:4", "x=-1:-2", "x=0.5:0.5")],
)  # fmt: skip
def test_invalid_or_empty_range_is_refused(text: str, told: str) -> None:
    assert refusal(parse_input_range, text, error=ValueError) == f"{text!r} {told}"


def embedding(folder: Path, rows: int) -> Path:
    """Writes a model that fails if an index is outside its table."""
    node = helper.make_node("Gather", ["table", "ids"], ["y"])
    ids, y = value("ids", ["batch", 16], INT64), value("y", ["batch", 16, 2])
    table = {"table": np.ones((rows, 2), np.float32)}
    return write(folder / "model.onnx", [node], [ids], [y], table)


@pytest.mark.parametrize(("most", "fits"), [(999, True), (1000, False), (2**40, False)])
def test_a_number_beyond_the_table_names_the_input(tmp_path: Path, most: int, fits: bool) -> None:
    """Bug: data that do not fit the model caused ONNX Runtime's message, which does not name the input."""
    config = RunConfig(scenario="offline", model=str(embedding(tmp_path, 1000)))
    batch = Batch(1, {"ids": np.array([[0, most]], np.int64), "other": np.zeros((1, 2))})
    told = ""
    try:
        check_tables(config, load_model(config.model), batch)
    except ConfigError as e:
        told = str(e)
    line = (
        f"input 'ids' contains {most}, but the model's Gather table has 1,000 rows, numbered 0 to 999: "
        "the data do not fit the model"
    )
    assert told == ("" if fits else line)


@pytest.mark.slow
def test_a_run_of_numbers_beyond_the_table_ends_in_one_line(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", ids=np.full((20, 16), 1000), labels=np.zeros(20, np.int64))
    words = ("--scenario", "offline", "--model", str(embedding(tmp_path, 1000)))
    data = ("--dataset", "npz", "--data-dir", f"{tmp_path}/data.npz")
    done = run(*words, *data, "--mode", "performance", "--out", f"{tmp_path}/a")
    assert done.status == 2
    assert "input 'ids' contains 1000, but the model's Gather table has 1,000" in done.said


@pytest.mark.slow
def test_a_run_draws_from_the_models_table(tmp_path: Path) -> None:
    path = embedding(tmp_path, 1000)
    words = ("--scenario", "offline", "--queries", "700", "--model", str(path))
    done = run(*words, "--out", f"{tmp_path}/a")
    assert done.status == 0, done.said + done.printed
    told = result(tmp_path / "a")
    assert told["dataset_description"]["ranges"] == {
        "ids": {"low": 0, "high": 1000, "source": "the model's Gather table of 1,000 rows"}
    }
    assert "synthetic data" in told["not_for_submission"]
    beyond = run(*words, "--input-range", "ids=1000:1001", "--out", f"{tmp_path}/b")
    assert beyond.status == 2
    assert "pass at most --input-range ids=999:1000" in beyond.said
    fewer = run(*words, "--input-range", "ids=0:900", "--out", f"{tmp_path}/c")
    assert fewer.status == 0, fewer.said + fewer.printed
    compared = run("compare", f"{tmp_path}/a", f"{tmp_path}/c")
    assert "dataset digest" in compared.printed + compared.said
    assert "ids=0:900" in compared.printed + compared.said


def test_real_data_have_no_range(tmp_path: Path) -> None:
    """Bug: the option was ignored, so the run did not use the user's numbers."""
    done = run(
        "--scenario", "offline", "--input-range", "image=0:1", "--out", f"{tmp_path}/r",
        "--lengths", "n=lognormal:median=8,sigma=1,max=9",
    )  # fmt: skip
    assert done.status == 2
    assert done.said == (
        "harness: --input-range belongs to dataset 'synthetic': drop it for 'digits'\n"
        "harness: --lengths belongs to dataset 'synthetic': drop it for 'digits'\n"
    )
