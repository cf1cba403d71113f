"""Runs whose data are missing, damaged or too few."""

import json
import shutil
import sys
import time
from pathlib import Path

import pytest
import yaml

from harness.models.manifest.model import MODELS_DIR
from tests.builders.pictures import write
from tests.faults.command import (
    DATA,
    ROOT,
    SERVER,
    SHORT,
    SOON,
    codes,
    only_all,
    result,
    run,
    run_here,
    start,
)
from tests.plugins.datasets.test_images import jpeg_bomb

NULL = (*SERVER, *SHORT, "--backend", "null")


def dataset(name: str, out: Path, *more: str) -> tuple[str, ...]:
    words = (*SERVER, "--backend", "null") if "accuracy" in more else NULL
    return (*words, "--dataset", f"{DATA}:{name}", "--out", str(out), *more)


def test_a_good_plug_in_dataset_is_valid(tmp_path: Path) -> None:
    done = run(*dataset("Good", tmp_path / "r"))
    assert done.status == 0, done.said + done.printed
    assert result(tmp_path / "r")["accuracy"]["samples"] == 40


@pytest.mark.slow
def test_a_performance_count_above_the_dataset_uses_all_of_it(tmp_path: Path) -> None:
    done = run(*dataset("Small", tmp_path / "r", "--performance-count", "20000"))
    assert done.status == 0, done.said + done.printed
    assert result(tmp_path / "r")["accuracy"]["samples"] == 40


@pytest.mark.slow
def test_invalid_lengths_are_reported_before_the_run(tmp_path: Path) -> None:
    done = run(
        "--scenario", "offline", "--queries", "700", "--backend", "null",
        "--dataset", f"{DATA}:ForgetsLengths", "--out", f"{tmp_path}/r",
    )  # fmt: skip
    assert done.status == 3
    assert f"dataset '{DATA}:ForgetsLengths': lengths raised ValueError: " in done.said
    assert codes(tmp_path / "r.partial") == ["did-not-start"]


def test_a_missing_folder_is_reported_in_one_line(tmp_path: Path) -> None:
    done = run_here(*NULL, "--data-dir", f"{tmp_path}/none", "--out", f"{tmp_path}/r")
    assert done.status == 2
    assert done.said == f"harness: --data-dir {tmp_path}/none does not exist\n"


@pytest.mark.parametrize(
    ("name", "status", "line"),
    [
        ("Empty", 2, f"harness: dataset '{DATA}:Empty' is empty: nothing can be measured"),
        (
            "RaisesInInit",
            3,
            f"harness: dataset '{DATA}:RaisesInInit' raised FileNotFoundError: images/00001.jpg: see",
        ),
        (
            "RaisesInWarmUp",
            3,
            f"harness: dataset '{DATA}:RaisesInWarmUp', loading samples for the warm-up, raised O",
        ),
        (
            "RaisesInLoad",
            3,
            f"harness: dataset '{DATA}:RaisesInLoad' raised in load: OSError: image 3 is truncated",
        ),
    ],
)
@pytest.mark.slow
def test_a_dataset_that_cannot_load_is_reported_in_one_line(
    name: str, status: int, line: str, tmp_path: Path
) -> None:
    done = run(*dataset(name, tmp_path / "r"))
    assert done.status == status
    assert done.said.splitlines()[-1].startswith(line)


@pytest.mark.slow
def test_a_dataset_that_raises_in_batch_fails_every_sample(tmp_path: Path) -> None:
    done = run(*dataset("RaisesInBatch", tmp_path / "r", "--mode", "performance"))
    assert done.status == 4
    (reason,) = result(tmp_path / "r")["reasons"]
    assert reason["code"] == "batch-failed"
    assert reason["text"].endswith(
        "batch() of the dataset RaisesInBatch raised IndexError: no such row"
    )
    assert result(tmp_path / "r")["queries"]["samples_failed"] == 700


@pytest.mark.slow
def test_a_label_that_raises_gives_no_score(tmp_path: Path) -> None:
    done = run(*dataset("RaisesInLabel", tmp_path / "r"))
    assert done.status == 4
    assert codes(tmp_path / "r") == ["accuracy-failed"]
    assert result(tmp_path / "r")["accuracy"]["value"] is None
    assert result(tmp_path / "r")["latency_ns"]["p99"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("both", "the dataset has changed since the performance run: its digest is "),
        ("accuracy", "ValueError: the dataset has changed since the run loaded it"),
    ],
)
def test_data_that_changes_during_the_run_gives_no_score(
    mode: str, why: str, tmp_path: Path
) -> None:
    done = run(*dataset("Changes", tmp_path / "r", "--mode", mode))
    assert done.status == 4
    folder = tmp_path / ("r.partial" if mode == "both" else "r")
    assert codes(folder) == ["accuracy-failed"]
    assert why in result(folder)["reasons"][0]["text"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metric", "why"),
    [(f"{DATA}:RaisesInScore", "raised ZeroDivisionError: no samples of class 3")],
    ids=["a fault of its own"],
)
def test_a_metric_that_raises_gives_no_score(metric: str, why: str, tmp_path: Path) -> None:
    done = run(*dataset("Good", tmp_path / "r", "--metric", metric))
    assert done.status == 4
    assert codes(tmp_path / "r") == ["accuracy-failed"]
    assert result(tmp_path / "r")["accuracy"]["reason"] == f"scoring with {metric!r} {why}"


@pytest.mark.slow
def test_a_metric_for_other_answers_is_refused_before_the_run(tmp_path: Path) -> None:
    done = run(*dataset("Good", tmp_path / "r", "--metric", "squad_f1"))
    assert done.status == 2
    assert done.said.splitlines()[-1] == (
        "harness: metric 'squad_f1' cannot score the model's answers: squad_f1 needs "
        "floating-point logits, but the answers are int64"
    )
    assert not list(tmp_path.glob("r*/performance/run_1/mlperf_log_detail.txt"))


@pytest.mark.slow
def test_a_manifest_without_argmax_is_refused_before_the_run(tmp_path: Path) -> None:
    """Bug: the harness noticed that scores are not labels only after the performance run and the accuracy run."""
    digits = yaml.safe_load((MODELS_DIR / "digits.yaml").read_text())
    digits["files"] = {"onnx": {**digits["files"]["onnx"], "path": "digits.onnx"}}
    digits["outputs"] = [{"name": "logits"}]
    shutil.copyfile(MODELS_DIR / "digits.onnx", tmp_path / "digits.onnx")
    (tmp_path / "m.yaml").write_text(yaml.safe_dump(digits))
    words = ["--scenario", "offline", "--model", str(tmp_path / "m.yaml"), "--duration", "1s"]
    done = run(*words, "--out", str(tmp_path / "r"))
    assert done.status == 2
    assert done.said.splitlines()[-1] == (
        "harness: metric 'top1' cannot score the model's answers: top1 needs labels, but each answer has 10 "
        "float32 scores: postprocess with argmax or topk"
    )
    alone = run(*words, "--mode", "performance", "--out", str(tmp_path / "alone"))
    assert alone.status == 0, alone.said + alone.printed


@pytest.mark.slow
def test_data_or_a_model_that_changed_since_is_refused(tmp_path: Path) -> None:
    assert run(*NULL, "--mode", "performance", "--out", f"{tmp_path}/first").status == 0
    config = yaml.safe_load((tmp_path / "first/config.yaml").read_text())
    (tmp_path / "again.yaml").write_text(yaml.safe_dump({**config, "dataset_digest": "0" * 64}))
    done = run("--config", f"{tmp_path}/again.yaml", "--out", f"{tmp_path}/second")
    assert done.status == 2
    assert "harness: the dataset has changed: its digest is " in done.said
    assert not list(tmp_path.glob("second*"))


def test_a_manifest_whose_file_was_changed_is_refused(tmp_path: Path) -> None:
    for name in ("digits.yaml", "digits.onnx", "digits.tflite", "digits_weights.npz"):
        shutil.copy(ROOT / "harness/models/shipped" / name, tmp_path)
    with (tmp_path / "digits.onnx").open("ab") as model:
        model.write(b"x")
    done = run_here(*SERVER, *SHORT, "--model", f"{tmp_path}/digits.yaml", "--out", f"{tmp_path}/r")
    assert done.status == 2
    assert done.said.startswith(f"harness: {tmp_path}/digits.onnx: SHA-256 is ")
    assert done.said.count("\n") == 1


def test_a_pickle_in_place_of_a_model_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"cos\nsystem\n(S'touch " + bytes(tmp_path) + b"/p'\ntR.")
    done = run(*SERVER, *SHORT, "--model", f"{tmp_path}/model.onnx", "--out", f"{tmp_path}/r")
    assert done.status == 2
    assert "it is not an ONNX file" in done.said
    assert not (tmp_path / "p").exists()


@pytest.mark.slow
def test_a_dataset_without_labels_has_no_score(tmp_path: Path) -> None:
    done = run(*dataset("Unlabelled", tmp_path / "r"))
    assert done.status == 0, done.said + done.printed
    accuracy = result(tmp_path / "r")["accuracy"]
    assert accuracy == {"value": None, "reason": f"dataset '{DATA}:Unlabelled' has no labels"}


@pytest.mark.slow
def test_samples_may_be_loaded_in_several_sets(tmp_path: Path) -> None:
    """Loading is not timed, so a run does not count as hung between two sets."""
    more = ("--hang-timeout", "3s", "--mode", "accuracy")
    done = run(*dataset("LoadsInSets", tmp_path / "r", *more))
    assert done.status == 0, done.said + done.printed
    assert result(tmp_path / "r")["accuracy"]["samples"] == 40


@pytest.mark.slow
def test_a_metric_that_differs_from_the_manifest_is_a_doubt(tmp_path: Path) -> None:
    done = run(*dataset("Good", tmp_path / "r", "--metric", f"{DATA}:ScoresOther"))
    assert done.status == 0, done.said + done.printed
    (text,) = (d["text"] for d in result(tmp_path / "r")["doubts"] if "target" in d["code"])
    assert text == "the manifest's target is top1 98.5, but the run was scored with 'x'"


@pytest.mark.slow
def test_a_dataset_that_blocks_in_load_does_not_hang_the_run(tmp_path: Path) -> None:
    done = run(*dataset("BlocksInLoad", tmp_path / "r", *SOON))
    assert done.status == 3
    assert "harness: LoadGen issued nothing for 6 s: the dataset is stuck in load" in done.said
    assert codes(tmp_path / "r.partial") == ["did-not-start"]


@pytest.mark.slow
def test_a_dataset_that_reports_slow_loading_is_waited_for(tmp_path: Path) -> None:
    done = run(*dataset("LoadsSlowly", tmp_path / "r", "--mode", "performance"))
    assert done.status == 0, done.said + done.printed


def images(folder: Path, out: Path, *more: str) -> tuple[str, ...]:
    """Returns the arguments for a run with the image dataset `folder`; the manifest lists no model files."""
    (folder / "a").mkdir(parents=True)
    for i in range(6):
        write(folder / f"a/{i}.jpg", i)
    steps = "[{resize: {size: 16}}, {layout: {order: nchw}}]"
    model = folder.parent / "m.yaml"
    model.write_text(
        "{name: m, version: '1', description: d, licence: x, task: image-classification, files: {}, "
        "dataset: folder, outputs: [{name: y}], inputs: [{name: x, dtype: uint8, "
        f"shape: [n, 3, 16, 16], preprocess: {steps}}}]}}"
    )
    return (
        *NULL,
        "--model",
        str(model),
        "--data-dir",
        str(folder),
        "--out",
        str(out),
        "--hang-timeout",
        "30s",
        *more,
    )


def test_broken_image_files_are_named_and_nothing_is_measured(tmp_path: Path) -> None:
    ask = images(tmp_path / "data", tmp_path / "r")
    cut_off, bomb = tmp_path / "data/a/1.jpg", tmp_path / "data/a/3.jpg"
    cut_off.write_bytes(cut_off.read_bytes()[:-100])
    bomb.write_bytes(jpeg_bomb())
    done = run(*ask, env={"XDG_CACHE_HOME": f"{tmp_path}/cache"})
    assert done.status == 2
    lines = [line.removeprefix("harness: ") for line in done.said.splitlines()]
    assert lines == [
        f"{cut_off}: the JPEG is truncated: its end is missing",
        f"{bomb}: 65500 x 65500 pixels are more than 89,478,485 and could fill the memory: make the image smaller",
        f"{sys.executable} -m harness data check folder lists all of them",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_is_noted_and_not_used(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no folder")
    ask = images(tmp_path / "data", tmp_path / "r", "--mode", "performance")
    done = run(*ask, env={"XDG_CACHE_HOME": f"{tmp_path}/cache"})
    assert done.status == 0, done.said + done.printed
    about = json.loads((tmp_path / "r/environment.json").read_text())["dataset"]
    assert about["cache"].endswith("cannot be written: Not a directory")


@pytest.mark.slow
def test_a_run_killed_while_it_fills_the_cache_costs_only_work(tmp_path: Path) -> None:
    ask = images(tmp_path / "data", tmp_path / "r", "--mode", "performance")
    cache = {"XDG_CACHE_HOME": f"{tmp_path}/cache"}
    process = start(*ask, env=cache)
    while not list((tmp_path / "cache").rglob("rows")):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.communicate()
    again = [f"{tmp_path}/second" if word == f"{tmp_path}/r" else word for word in ask]
    done = run(*again, env=cache)
    assert done.status == 0, done.said + done.printed


@pytest.mark.slow
@pytest.mark.parametrize(
    "metric",
    ["Leaves", *only_all("GivesNan", "GivesNothing")],
)
def test_a_metric_without_a_score_loses_no_number(metric: str, tmp_path: Path) -> None:
    done = run(*dataset("Good", tmp_path / "r", "--metric", f"{DATA}:{metric}"))
    assert done.status == 4
    assert codes(tmp_path / "r") == ["accuracy-failed"]
    assert result(tmp_path / "r")["latency_ns"]["p99"] > 0
