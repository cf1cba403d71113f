"""Generated prompts have the requested or recorded lengths, shared prefixes and blocks."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.datasets.text.synthetic_prompts import SyntheticPromptsDataset
from harness.datasets.text.trace import TraceDataset
from harness.errors import ConfigError
from harness.types import Dataset, DatasetSetup, TensorSpec

REQUEST = TensorSpec("request", "string", ("batch",))


def setup(options: Mapping[str, str], path: Path | None = None, seed: int = 0) -> DatasetSetup:
    return DatasetSetup(inputs=(REQUEST,), data_dir=path, options=options, seed=seed)


def synthetic(seed: int = 0, **options: str) -> SyntheticPromptsDataset:
    return SyntheticPromptsDataset(setup({"count": "40", **options}, seed=seed))


def prompts(dataset: Dataset) -> list[dict[str, Any]]:
    dataset.load(range(len(dataset)))
    (rows,) = dataset.batch(range(len(dataset))).inputs.values()
    return [json.loads(row) for row in rows]


@given(
    low=st.integers(1, 50),
    more=st.integers(1, 50),
    share=st.sampled_from(("0", "0.25", "0.5", "1")),
    prefixes=st.integers(1, 5),
    seed=st.integers(0, 2**64 - 1),
)
def test_lengths_and_the_common_prefix_are_as_requested(
    low: int, more: int, share: str, prefixes: int, seed: int
) -> None:
    options = {"input": f"{low}:{low + more}", "prefix": share, "prefixes": str(prefixes)}
    made = synthetic(seed, output="7", **options)
    rows = prompts(made)
    assert rows == prompts(synthetic(seed, output="7", **options))
    for row, size in zip(rows, made.lengths(range(len(made))), strict=True):
        assert row["max_tokens"] == 7
        assert len(row["prompt"]) == size
        assert low <= size < low + more
        assert all(1000 <= token < 30000 for token in row["prompt"])
    begins = {row["prompt"][0] for row in rows}
    if share in ("0.5", "1") and low > 2:
        assert len(begins) <= prefixes
    elif share == "0":
        assert len(begins) > prefixes


def test_another_draw_has_other_tokens_and_the_same_lengths() -> None:
    first, second = (synthetic(input="20:40", prefix="0.5", draw=draw) for draw in ("1", "2"))
    one, other = ([row["prompt"] for row in prompts(made)] for made in (first, second))
    assert [*map(len, one)] == [*map(len, other)]
    assert one[0][:10] != other[0][:10]
    assert first.describe()["digest"] != second.describe()["digest"]
    assert first.describe()["digest"] == synthetic(input="20:40", prefix="0.5").describe()["digest"]


def test_two_prompts_of_one_prefix_differ_behind_it() -> None:
    rows = prompts(synthetic(input="100", prefix="0.6"))
    first, second = rows[0]["prompt"], rows[1]["prompt"]
    assert first[:60] == second[:60]
    assert first[60] != second[60]


def test_description_has_the_statistics_of_lognormal_lengths() -> None:
    made = synthetic(
        input="lognormal:median=100,sigma=0.5,max=300", output="1:9", prefix="0.5", tokens="5:15"
    )
    about = made.describe()
    sizes = made.lengths(range(len(made)))
    assert about["lengths"] == {
        "min": sizes.min(),
        "mean": round(float(sizes.mean()), 1),
        "median": float(np.median(sizes)),
        "max": sizes.max(),
    }
    assert about["prefix_share"] == 0.5
    assert all(5 <= t < 15 for row in prompts(made) for t in row["prompt"])
    assert all(1 <= row["max_tokens"] < 9 for row in prompts(made))
    assert about["digest"] != synthetic(input="100").describe()["digest"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input": "0"}, "input=0 is not a number of tokens, a range LOW:HIGH or lognormal"),
        ({"input": "9:9"}, "input=9:9 is not a number of tokens"),
        ({"output": "lognormal:x"}, "is not a distribution: write DIM=lognormal"),
        ({"prefix": "2"}, "prefix=2 is not a share from 0 to 1"),
        ({"prefixes": "0"}, "prefixes=0 is not a whole number from 1 to 1,000,000"),
        ({"tokens": "9"}, "tokens=9 is not a range of token ids, excluding its end"),
    ],
)
def test_invalid_option_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SyntheticPromptsDataset(setup(options))


def mooncake(folder: Path, *rows: tuple[int, int, list[int]]) -> Path:
    path = folder / "trace.jsonl"
    path.write_text(
        "".join(
            json.dumps({"timestamp": n, "input_length": i, "output_length": o, "hash_ids": ids})
            + "\n"
            for n, (i, o, ids) in enumerate(rows)
        )
    )
    return path


def test_equal_blocks_have_equal_tokens_and_other_tokens_differ_by_prompt(tmp_path: Path) -> None:
    path = mooncake(tmp_path, (20, 3, [1, 2, 3]), (18, 4, [1, 2, 9]), (12, 5, [1]), (4, 6, []))
    made = TraceDataset(setup({"block": "8"}, path))
    rows = prompts(made)
    a, b, c, d = (row["prompt"] for row in rows)
    assert [len(p) for p in (a, b, c, d)] == [20, 18, 12, 4]
    assert [row["max_tokens"] for row in rows] == [3, 4, 5, 6]
    assert a[:16] == b[:16]
    assert c[:8] == a[:8]
    assert a[16:18] != b[16:18]
    assert c[8:10] != a[8:10]
    about = made.describe()
    assert (about["format"], about["block"]) == ("Mooncake", 8)
    assert about["prefix_share"] == round((16 + 8) / (20 + 18 + 12 + 4), 4)
    assert about["digest"] != TraceDataset(setup({"block": "16"}, path)).describe()["digest"]
    assert prompts(TraceDataset(setup({"block": "8"}, path))) == rows
    assert prompts(TraceDataset(setup({"block": "8"}, path, seed=1))) != rows


def test_a_trace_needs_a_model_that_takes_texts(tmp_path: Path) -> None:
    path = mooncake(tmp_path, (2, 1, []))
    image = TensorSpec("image", "float32", ("batch", 3))
    with pytest.raises(
        ConfigError, match="dataset 'trace' needs a model with one input of dtype string"
    ):
        TraceDataset(DatasetSetup(inputs=(image,), data_dir=path))
