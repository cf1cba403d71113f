"""The file for --models: its content, all its problems at once, and each model's samples."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from harness.core.units import parse_bytes
from harness.errors import ConfigError
from harness.models.cache.model_set import (
    SLOTS,
    any_model_from_json,
    load_model_set,
    models_of,
    slots_of,
)
from harness.models.cache.popularity import zipf
from harness.models.manifest.lookup import load_model
from tests.builders.refusals import refusals


def written(folder: Path, **content: Any) -> Path:
    path = folder / "set.yaml"
    values = {"models": [{"model": "digits"}], "capacity": "1MB", **content}
    path.write_text(yaml.safe_dump(values))
    return path


def test_a_set_has_its_models_under_their_own_names(tmp_path: Path) -> None:
    entries = [
        {"model": "digits", "name": "hot", "always": True, "bytes": "10kB"},
        {"model": "digits", "copies": 2, "dataset": "synthetic"},
    ]
    found = load_model_set(written(tmp_path, models=entries, workers=3, policy="fifo"))
    assert [(m.name, m.dataset, m.bytes, m.always) for m in found.members] == [
        ("hot", "digits", 10_000, True),
        ("digits-1", "synthetic", None, False),
        ("digits-2", "synthetic", None, False),
    ]
    assert (found.name, found.workers, found.capacity_bytes) == ("set", 3, 1_000_000)
    assert found.datasets == ("digits", "synthetic")
    again = any_model_from_json(found.to_json())
    assert again.to_json() == found.to_json()


def test_single_model_survives_the_json_round_trip() -> None:
    model = load_model("digits")
    assert any_model_from_json(model.to_json()).name == "digits"


@pytest.mark.parametrize(
    ("content", "problems"),
    [
        (
            {"models": [{"model": "nope"}, {"model": "digits"}, {"model": "digits"}]},
            [
                r"no model named 'nope'.*",
                r"the name 'digits' appears twice: give each model a different `name`",
            ],
        ),
        ({"models": [{"model": "tinylm"}]}, [r"'tinylm' generates its answers token by token, which a set of models does not support: remove this model"]),
        ({"popularity": {"law": "measured"}}, [r"the popularity `law: measured` needs `requests` for each model, at least one of them above 0"]),
        ({"models": [{"model": "digits", "requests": 3}]}, [r"`requests` apply only to the popularity `law: measured`, but the law is zipf"]),
        ({"models": [{"model": "digits", "always": True, "bytes": "3MB"}]}, [r"the models with `always: true` take 300 % of the capacity"]),
        ({"capacity": "1", "policy": "mru"}, [r"field 'capacity': '1' is not a size.*", r"field 'policy': 'mru' is not one of .*"]),
        (
            {"models": [{"model": "digits", "bytes": 500, "copy": 2}]},
            [r"field 'models.0.bytes': '500' is not a size.*", r"unknown field 'models.0.copy'"],
        ),
    ],
)  # fmt: skip
def test_every_problem_of_a_file_has_its_own_line(
    content: dict[str, Any], problems: list[str], tmp_path: Path
) -> None:
    path = written(tmp_path, **content)
    lines = refusals(load_model_set, path)
    assert len(lines) == len(problems)
    for line, problem in zip(lines, problems, strict=True):
        assert re.fullmatch(f"{re.escape(str(path))}: {problem}", line)


@pytest.mark.parametrize("text", ["", "[]", "models"])
def test_file_that_is_not_a_mapping_is_refused_with_the_format(text: str, tmp_path: Path) -> None:
    path = tmp_path / "set.yaml"
    path.write_text(text)
    with pytest.raises(
        ConfigError, match=r"a set of models must be a mapping with `models` and `cap"
    ):
        load_model_set(path)


def test_the_popularity_is_the_laws(tmp_path: Path) -> None:
    counted = [{"model": "digits", "name": n, "requests": r} for n, r in (("a", 3), ("b", 1))]
    measured = load_model_set(written(tmp_path, models=counted, popularity={"law": "measured"}))
    assert measured.shares(1).tolist() == [0.75, 0.25]
    copies = [{"model": "digits", "copies": 5}]
    pareto = load_model_set(written(tmp_path, models=copies, popularity={"law": "pareto"}))
    assert pareto.shares(1).tolist() == pareto.shares(1).tolist() != pareto.shares(2).tolist()
    default = load_model_set(written(tmp_path, models=copies))
    assert default.shares(1).tolist() == zipf(5, 1).tolist()


def test_samples_of_each_model_are_in_proportion_and_mixed_by_the_seed() -> None:
    slots = slots_of(zipf(20, 1.0))
    assert slots.sum() == SLOTS
    models = models_of(slots.tolist(), 7)
    assert Counter(models.tolist()) == dict(enumerate(slots.tolist()))
    assert (models == models_of(slots.tolist(), 7)).all()
    assert (models != models_of(slots.tolist(), 8)).any()
    assert slots_of(np.full(5000, 1 / 5000)).tolist() == [10] * 5000


@pytest.mark.parametrize(
    ("text", "count"), [("800kB", 800_000), ("1.5 GB", 1_500_000_000), ("7B", 7)]
)
def test_a_size_is_read_with_its_unit(text: str, count: int) -> None:
    assert parse_bytes(text) == count
