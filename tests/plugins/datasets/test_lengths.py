"""Sequences of different lengths are equal for equal seeds, and padded to the longest sequence."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from harness.core.config.parse import parse_lengths
from harness.core.config.run_config import RunConfig, from_plain, to_plain
from harness.datasets.parts.lengths import draw, read_lengths
from harness.datasets.parts.rows import RaggedRows
from harness.datasets.synthetic import COUNT, SyntheticDataset
from harness.errors import ConfigError
from harness.types import DatasetSetup, Lognormal, TensorSpec
from tests.builders.models.odd_files import FLOAT, INT64, value, write
from tests.builders.refusals import refusal, refusals
from tests.faults.command import only_all, result, run

TOTAL = 30
shapes = st.tuples(st.integers(1, 4), st.integers(1, 3))


def ragged(sizes: list[tuple[int, int]]) -> tuple[RaggedRows, list[Any]]:
    """Every element of row i is i + 1."""
    rows = RaggedRows(TOTAL)
    held = [np.full(size, i + 1) for i, size in enumerate(sizes)]
    rows.hold(range(len(sizes)), {"x": held})
    return rows, held


@given(st.lists(shapes, min_size=1, max_size=8), st.data())
def test_a_batch_is_its_rows_filled_up_with_zeros(sizes: list[Any], data: Any) -> None:
    asked = data.draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=9))
    rows, held = ragged(sizes)
    batch = rows.batch(asked)
    found = batch.inputs["x"]
    assert batch.size == len(asked)
    assert found.shape == (len(asked), *np.max([sizes[i] for i in asked], axis=0))
    for row, i in zip(found, asked, strict=True):
        assert row[: sizes[i][0], : sizes[i][1]].tolist() == held[i].tolist()
        assert row.sum() == held[i].sum()


def test_a_row_alone_is_a_view_that_cannot_be_written() -> None:
    rows, held = ragged([(2, 2), (1, 3)])
    found = rows.batch([1]).inputs["x"]
    assert np.shares_memory(found, held[1])
    with pytest.raises(ValueError, match="read-only"):
        found[0, 0, 0] = 9


def test_unpadded_rows_form_a_batch_only_if_their_shapes_agree() -> None:
    rows = RaggedRows(TOTAL, pad=False)
    rows.hold([7, 8, 9], {"x": [np.zeros((2, 3)), np.ones((2, 3)), np.ones((2, 4))]})
    assert rows.batch([8, 7]).inputs["x"].sum() == 6
    with pytest.raises(
        ConfigError,
        match=r"^samples of the shapes \[2, 3\] and \[2, 4\] cannot form one batch: run wit",
    ):
        rows.batch([7, 9])


def test_a_row_that_is_not_held_is_named_and_the_first_of_two_is_kept() -> None:
    rows = RaggedRows(TOTAL)
    rows.hold([5, 6, 5], {"x": [np.zeros(1), np.ones(1), np.full(1, 2)]})
    assert rows.batch([5, 6]).inputs["x"].tolist() == [[0], [1]]
    rows.hold([1], {"x": [np.zeros(1)]})
    assert refusal(rows.batch, [1, 5], error=KeyError) == "'sample 5 is not loaded'"
    rows.unload([])
    assert refusal(rows.batch, [1], error=KeyError) == "'sample 1 is not loaded'"


NORMAL = Lognormal(median=20, sigma=0.5, most=64)
SPECS = (
    TensorSpec("ids", "int64", ("batch", "sequence")),
    TensorSpec("attention_mask", "int64", ("batch", "sequence")),
    TensorSpec("frames", "float32", ("batch", "time", 3)),
)


def synthetic(seed: int = 0, **lengths: Any) -> SyntheticDataset:
    given = {"sequence": NORMAL, "time": NORMAL, **lengths}
    return SyntheticDataset(DatasetSetup(inputs=SPECS, lengths=given, seed=seed))


def test_lognormal_lengths_have_their_median_and_their_limits() -> None:
    drawn = draw(NORMAL, 20_000, 1, "sequence")
    assert abs(float(np.median(drawn)) - 20) <= 1
    assert drawn.max() == 64
    assert abs(float(np.log(drawn[drawn < 64]).std()) - 0.5) < 0.05
    assert draw(Lognormal(1, 3, 9), 1000, 0, "x").min() == 1


def test_same_seed_gives_the_same_samples_in_any_order() -> None:
    one, other = synthetic(3), synthetic(3)
    one.load([9, 4])
    other.load(range(10))
    for name, rows in one.batch([4]).inputs.items():
        assert rows.tobytes() == other.batch([4]).inputs[name].tobytes()
    assert one.describe() == other.describe() != synthetic(4).describe()


def test_inputs_of_one_dimension_share_a_length_and_the_mask_shows_it() -> None:
    made = synthetic()
    made.load(range(8))
    batch = made.batch(range(8)).inputs
    drawn, times = (draw(NORMAL, COUNT, 0, name)[:8] for name in ("sequence", "time"))
    assert batch["ids"].shape == batch["attention_mask"].shape == (8, drawn.max())
    assert batch["attention_mask"].sum(axis=1).tolist() == drawn.tolist()
    assert set(batch["ids"].ravel().tolist()) == {0, 1}
    assert batch["frames"].shape == (8, times.max(), 3)
    assert drawn.tolist() != times.tolist()


def test_lengths_measured_on_real_data_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("7\n\n 12 \n7\n")
    drawn = draw(path, 1000, 0, "sequence")
    assert set(drawn.tolist()) == {7, 12}
    assert 0.6 < (drawn == 7).mean() < 0.73
    about: Any = synthetic(sequence=path).describe()["lengths"]
    assert about["sequence"]["from"] == str(path)
    assert (about["sequence"]["min"], about["sequence"]["max"]) == (7, 12)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", " is empty: it must contain one length per line"),
        ("3\n0\nx\n", ":2: '0' is not a length from 1 to 1,000,000"),
        ("9999999999", ":1: '9999999999' is not a length from 1 to 1,000,000"),
        ("\xff", " cannot be read: 'utf-8' codec"),
    ],
)
def test_a_file_that_holds_no_lengths_is_refused(content: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_bytes(content.encode("latin-1"))
    assert refusals(read_lengths, path)[0].startswith(f"{path}{told}")


def test_lengths_of_an_unknown_dimension_are_refused() -> None:
    setup = DatasetSetup(
        inputs=SPECS, lengths={"word": NORMAL, "sequence": NORMAL}, shapes={"frames": (1, 5, 3)}
    )
    assert refusal(SyntheticDataset, setup) == (
        "--lengths word: the model's symbolic dimensions without --input-shape are sequence"
    )
    fixed = dataclasses.replace(setup, lengths={"sequence": NORMAL})
    made = SyntheticDataset(fixed)
    made.load([0])
    assert made.batch([0]).inputs["frames"].shape == (1, 5, 3)


def test_lengths_are_read_as_they_are_written() -> None:
    text = "sequence=lognormal:median=128,sigma=0.6,max=512"
    assert parse_lengths(text) == ("sequence", Lognormal(128, 0.6, 512))
    config = RunConfig(scenario="offline", lengths=(parse_lengths(text), ("t", Path("/a/b"))))
    assert to_plain(config)["lengths"] == [text, "t=/a/b"]
    assert from_plain(to_plain(config)) == config


@pytest.mark.parametrize(
    "text",
    [
        "sequence",
        "sequence=",
        "s=lognormal:128",
        "s=lognormal:median=1..2,sigma=1,max=4",
        "s=lognormal:median=0,sigma=1,max=4",
        "s=lognormal:median=8,sigma=1,max=4",
        "s=lognormal:median=8,sigma=0,max=16",
        "s=lognormal:median=8,sigma=1,max=2000000",
    ],
)
def test_lengths_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^('|the name is empty)"):
        parse_lengths(text)


def sequence_model(folder: Path, nodes: list[Any], output: list[Any], kind: int) -> Path:
    ids, y = value("ids", ["batch", "sequence"], INT64), value("y", output, kind)
    weights = {"axes": np.array([1]), "table": np.arange(10, dtype=np.float32).reshape(2, 5)}
    return write(folder / "model.onnx", nodes, [ids], [y], weights)


@pytest.mark.parametrize("scenario", ["offline", *only_all("single-stream", "server")])
def test_answers_as_long_as_their_sequence_are_measured(scenario: str, tmp_path: Path) -> None:
    """Each piece returns five numbers, and the shapes of answers may differ between batches."""
    nodes = [helper.make_node("Gather", ["table", "ids"], ["y"])]
    path = sequence_model(tmp_path, nodes, ["batch", "sequence", 5], FLOAT)
    more = ("--target-qps", "500", "--slo", "p99=1s") if scenario == "server" else ()
    done = run(
        "--scenario", scenario, "--queries", "700", "--model", str(path), *more,
        "--lengths", "sequence=lognormal:median=8,sigma=0.7,max=32", "--out", f"{tmp_path}/r",
    )  # fmt: skip
    assert done.status == 0, done.said + done.printed
    assert result(tmp_path / "r")["queries"]["samples_failed"] == 0


@pytest.mark.slow
def test_a_run_of_drawn_lengths_is_measured_and_can_be_run_again(tmp_path: Path) -> None:
    nodes = [helper.make_node("ReduceSum", ["ids", "axes"], ["y"], keepdims=0)]
    sequence_model(tmp_path, nodes, ["batch"], INT64)
    (tmp_path / "lengths.txt").write_text("3\n30\n")
    done = run(
        "--scenario", "offline", "--queries", "500", "--model", f"{tmp_path}/model.onnx",
        "--lengths", f"sequence={tmp_path}/lengths.txt", "--out", f"{tmp_path}/r",
    )  # fmt: skip
    assert done.status == 0, done.said + done.printed
    lengths = draw(tmp_path / "lengths.txt", COUNT, 0, "sequence")
    with np.load(tmp_path / "r/performance/run_1/completions.npz") as columns:
        sizes, batch = lengths[columns["index"]], columns["batch"]
    mixed = [b for b in np.unique(batch) if len(set(sizes[batch == b])) > 1]
    # Only two batches may mix lengths: the batch in which the long rows end, and the last batch.
    assert len(mixed) <= 2
    again = yaml.safe_load((tmp_path / "r/config.yaml").read_text())
    assert again["lengths"] == [f"sequence={tmp_path}/lengths.txt"]
    (tmp_path / "lengths.txt").write_text("3\n31\n")
    done = run("--config", f"{tmp_path}/r/config.yaml", "--out", f"{tmp_path}/s")
    assert done.status == 2
    assert "harness: the dataset has changed: its digest is" in done.said
