"""A set of models behind one SUT: each sample is answered by its model, and the rows record where the model came from."""

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from harness.core.clock import wall_ns
from harness.core.config.run_config import RunConfig
from harness.errors import ConfigError
from harness.loadgen.plan import InstanceGroup
from harness.models.cache.cache import ORIGINS
from harness.models.cache.model_set import load_model_set
from harness.models.cache.residents import POLICIES, Residents
from harness.models.cache.trace import play
from harness.models.manifest.model import MODELS_DIR
from harness.run.journal import Journal, RowKind
from harness.run.measured.dispatch.instance import Failures
from harness.run.measured.models.instance import SetInstance, cache_summary
from harness.run.measured.models.opening import Opened, open_set

pytest.importorskip("onnxruntime")

SIZE = (MODELS_DIR / "digits.onnx").stat().st_size


class Completed:
    """Stands in for LoadGen; maps a sample id to its answer in bytes, or to None."""

    def __init__(self) -> None:
        self.answers: dict[int, bytes | None] = {}

    def complete(self, ids: Sequence[int], answers: Any) -> int:
        (row,) = answers.rows
        self.answers[ids[0]] = row.tobytes()
        return wall_ns()

    def complete_empty(self, ids: Sequence[int]) -> int:
        self.answers[ids[0]] = None
        return wall_ns()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def opened_set(folder: Path, stack: ExitStack, **content: Any) -> Opened:
    path = folder / "set.yaml"
    values = {
        "models": [{"model": "digits", "copies": 5}],
        "capacity": f"{int(2.5 * SIZE)}B",
        **content,
    }
    path.write_text(yaml.safe_dump(values))
    config = RunConfig(scenario="server", mode="performance", models=path)
    return open_set(config, load_model_set(path), InstanceGroup(1, 1, 1), stack, lambda *_: None)


def answered(
    opened: Opened, indices: Sequence[int]
) -> tuple[Any, dict[int, bytes | None], Failures]:
    """Returns the journal's rows, the answers and the failures for these samples, requested one by one."""
    fd = Journal.create()
    Journal.resize(fd, len(indices), 1, RowKind.CACHED)
    journal = Journal(fd)
    os.close(fd)
    completed, failures = Completed(), Failures()
    instance = SetInstance(
        opened.models, opened.dataset, completed, journal.cached_writer(0), failures
    )
    opened.dataset.load(indices)
    opened.models.reset()
    for order, index in enumerate(indices):
        instance.answer([order], [index], order, wall_ns())
    return journal.rows(0), completed.answers, failures


def models_asked(opened: Opened, indices: Sequence[int]) -> list[int]:
    return [opened.dataset.batch([index]).model for index in indices]


@pytest.mark.parametrize("policy", POLICIES)
def test_rows_and_counts_are_those_of_a_simulation(
    policy: str, tmp_path: Path, stack: ExitStack
) -> None:
    opened = opened_set(tmp_path, stack, policy=policy)
    indices = list(range(60))
    rows, answers, failures = answered(opened, indices)
    asked = models_asked(opened, indices)
    sizes = dict.fromkeys(range(5), SIZE)
    served = list(play(asked, sizes, Residents(int(2.5 * SIZE), policy)))
    how = {"hit": "hit", "local": "loaded", "alone-local": "alone"}
    assert [how[ORIGINS[origin]] for origin in rows["origin"]] == [one.how for one in served]
    assert rows["evicted"].tolist() == [len(one.evicted) for one in served]
    assert not failures.samples
    assert None not in answers.values()
    counted = cache_summary(opened.models)["resident"]
    evicted = Counter(model for one in served for model in one.evicted)
    assert [each["evictions"] for each in counted] == [evicted[model] for model in range(5)]
    stamps = ["taken_ns", "gathered_ns", "acquired_ns", "inferred_ns"]
    for before, after in zip(stamps, [*stamps[1:], "postprocessed_ns"], strict=True):
        assert (rows[before] <= rows[after]).all()
    missed = rows["origin"] != ORIGINS.index("hit")
    waited_ns = rows["acquired_ns"] - rows["gathered_ns"]
    if (~missed).any():
        assert waited_ns[missed].max() > waited_ns[~missed].min()


def test_answers_are_those_of_the_model_alone(tmp_path: Path, stack: ExitStack) -> None:
    opened = opened_set(tmp_path, stack)
    indices = list(range(40))
    _, answers, _ = answered(opened, indices)
    for order, index in enumerate(indices):
        request = opened.dataset.batch([index])
        lease = opened.models.acquire(request.model)
        right = lease.loaded.backend.infer(request)  # type: ignore[arg-type] # as a Batch
        opened.models.release(lease)
        assert answers[order] == np.asarray(right).argmax(axis=1)[0].tobytes()


def test_files_have_a_cache_of_their_own(tmp_path: Path, stack: ExitStack) -> None:
    """With room for one model in memory and for two files, the third load in the requests 0 1 0 2 1 finds a file."""
    opened = opened_set(tmp_path, stack, capacity=f"{SIZE}B", local_capacity=f"{2 * SIZE}B")
    opened.dataset.load(range(200))
    where = {model: models_asked(opened, range(200)).index(model) for model in range(3)}
    rows, _, failures = answered(opened, [where[model] for model in (0, 1, 0, 0, 2, 1)])
    assert not failures.samples, failures.first
    assert [ORIGINS[origin] for origin in rows["origin"]] == [
        *("source", "source", "local", "hit", "source", "source"),
    ]
    files = cache_summary(opened.models)["files"]
    assert files is not None
    assert [each["loads"] for each in files[:3]] == [1, 2, 1]
    assert sum(each["hits"] for each in files) == 1
    assert sum(each["evictions"] for each in files) == 2


def test_a_model_that_fails_to_load_fails_its_samples_and_no_others(
    tmp_path: Path, stack: ExitStack
) -> None:
    for name in ("sound", "lost"):
        shutil.copyfile(MODELS_DIR / "digits.onnx", tmp_path / f"{name}.onnx")
    models = [{"model": "sound.onnx"}, {"model": "lost.onnx"}]
    opened = opened_set(tmp_path, stack, models=models)
    (tmp_path / "lost.onnx").unlink()
    rows, answers, failures = answered(opened, list(range(30)))
    lost = np.array(models_asked(opened, range(30))) == 1
    assert 0 < lost.sum() < 30
    assert (rows["failed"] == lost).all()
    assert ((rows["origin"] == ORIGINS.index("failed")) == lost).all()
    assert [answers[order] is None for order in range(30)] == lost.tolist()
    assert failures.samples == lost.sum()
    assert "lost.onnx" in failures.first
    assert cache_summary(opened.models)["resident"][1]["failures"] == lost.sum()


def test_always_resident_model_is_loaded_before_the_first_query(
    tmp_path: Path, stack: ExitStack
) -> None:
    models = [{"model": "digits", "always": True}]
    rows, _, _ = answered(opened_set(tmp_path, stack, models=models), [0, 1])
    assert [ORIGINS[origin] for origin in rows["origin"]] == ["hit", "hit"]


def test_files_of_always_resident_models_must_fit_the_capacity(
    tmp_path: Path, stack: ExitStack
) -> None:
    models = [{"model": "digits", "always": True, "copies": 3}]
    with pytest.raises(
        ConfigError, match=r"^--models: the [\d,]+ B that are always resident do not fit into"
    ):
        opened_set(tmp_path, stack, models=models)


def test_every_missing_file_is_named_before_anything_is_loaded(
    tmp_path: Path, stack: ExitStack
) -> None:
    models = [{"model": "a.onnx"}, {"model": "b.onnx"}]
    for name in "ab":
        shutil.copyfile(MODELS_DIR / "digits.onnx", tmp_path / f"{name}.onnx")
    path = tmp_path / "set.yaml"
    path.write_text(yaml.safe_dump({"models": models, "capacity": "1MB"}))
    found = load_model_set(path)
    for name in "ab":
        (tmp_path / f"{name}.onnx").unlink()
    config = RunConfig(scenario="server", mode="performance", models=path)
    with pytest.raises(ConfigError) as raised:
        open_set(config, found, InstanceGroup(1, 1, 1), stack, lambda *_: None)
    assert [line.split(":")[0] for line in str(raised.value).splitlines()] == ["a", "b"]
