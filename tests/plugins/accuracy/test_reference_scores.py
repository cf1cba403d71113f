"""The scores of R-GAT, DLRM-v3 and the RAG benchmark agree with MLCommons' scripts on 1,000 random answers with errors.

MLCommons' code runs next to ours, from a checkout. DLRM-v3's MetricsLogger needs only torchrec's metrics. The test
stubs torchrec's other modules and reimplements the two fbgemm kernels that the AUC uses.
"""

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from harness.accuracy.mlperf.ingestion import VARIABLE as CHECK
from harness.accuracy.mlperf.ingestion import Ingestion
from harness.accuracy.mlperf.rag_answers import VARIABLE as JUDGE
from harness.accuracy.mlperf.rag_answers import RagAnswers
from harness.accuracy.mlperf.recommendation import Recommendation
from harness.accuracy.top1 import Top1
from harness.datasets.mlperf.frames import FramesDataset
from harness.datasets.mlperf.igbh import IgbhDataset
from harness.types import Answer, DatasetSetup, TensorSpec
from tests.builders.submit.mlperf_data import TOPICS, write_frames, write_igbh
from tests.models.manifest.test_language_tasks import CHECKOUT
from tests.stand_ins.servers.rag_server import RagServer

pytestmark = pytest.mark.slow
COUNT = 1000


@pytest.fixture
def checkout() -> Path:
    folder = os.environ.get(CHECKOUT)
    if not folder:
        pytest.skip(f"set {CHECKOUT} to a checkout of mlcommons/inference")
    return Path(folder)


def log_of(path: Path, answers: Sequence[Answer]) -> Path:
    rows = [
        {"seq_id": i, "qsl_idx": a.sample, "data": a.payload.hex().upper()}
        for i, a in enumerate(answers)
    ]
    path.write_text(json.dumps(rows))
    return path


def run(*words: str | Path, folder: Path, text: str | None = None) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=folder,
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout + done.stderr


@pytest.mark.parametrize("seed", range(3))
def test_topics_are_scored_as_by_accuracy_igbh(seed: int, checkout: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    random = np.random.default_rng(seed)
    write_igbh(tmp_path, COUNT, seed=seed)
    paper = TensorSpec("paper", "int64", (None,))
    data = IgbhDataset(DatasetSetup(inputs=(paper,), data_dir=tmp_path))
    labels: dict[int, object] = {i: data.label(i) for i in range(COUNT)}
    wrong = random.random(COUNT) < 0.1 + 0.3 * seed
    topics = [(int(str(labels[i])) + int(wrong[i])) % TOPICS for i in range(COUNT)]
    order = random.permutation(COUNT).tolist()
    answers = [Answer(i, np.int64(topics[i]).tobytes()) for i in order]
    log = log_of(tmp_path / "log.json", answers)
    script = checkout / "graph/R-GAT/tools/accuracy_igbh.py"
    arguments = (
        "--mlperf-accuracy-file",
        log,
        "--dataset-path",
        tmp_path,
        "--dataset-size",
        "tiny",
    )
    run(script, *arguments, "--dtype", "int64", "--output-file", "out.txt", folder=tmp_path)
    assert Top1("int64").score(answers, labels).line == (tmp_path / "out.txt").read_text()


BOOT = """\
import importlib.util, runpy, sys, types
import torch

def module(name, **members):
    made = types.ModuleType(name)
    made.__dict__.update(members)
    sys.modules[name] = made
    return made

class Config:
    def __init__(self, **values):
        self.__dict__.update(values)

folder, log = sys.argv[1:]
sys.path.insert(0, folder)
place = importlib.util.find_spec("torchrec").submodule_search_locations
module("torchrec").__path__ = list(place)  # without its models and kernels
modules = module("torchrec.modules")
modules.__path__ = []
module("torchrec.modules.embedding_configs", DataType=types.SimpleNamespace(FP16=0), EmbeddingConfig=Config)
module("torchrec.distributed").__path__ = []
module("torchrec.distributed.types", get_tensor_size_bytes=lambda tensor: tensor.nbytes)
module("gin", configurable=lambda thing: thing)
module("tensorboard")
module("torch.utils.tensorboard", SummaryWriter=object)
module("datasets").__path__ = []
module("datasets.dataset", DLRMv3RandomDataset=object)
module("datasets.synthetic_streaming", DLRMv3SyntheticStreamingDataset=object)
for name in ("generative_recommenders", "generative_recommenders.modules"):
    module(name).__path__ = []
module("generative_recommenders.modules.dlrm_hstu", DlrmHSTUConfig=Config)
kinds = types.SimpleNamespace(BINARY_CLASSIFICATION="binary", REGRESSION="regression")
module("generative_recommenders.modules.multitask_module", MultitaskTaskType=kinds, TaskConfig=Config)
kernels = torch.library.Library("fbgemm", "DEF")
kernels.define("asynchronous_complete_cumsum(Tensor lengths) -> Tensor")
kernels.define("jagged_2d_to_dense(Tensor values, Tensor offsets, SymInt most) -> Tensor")

def cumsum(lengths):
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])

def dense(values, offsets, most):
    rows = [values[a:b][:most] for a, b in zip(offsets[:-1], offsets[1:])]
    return torch.stack([torch.nn.functional.pad(row, (0, 0, 0, most - len(row))) for row in rows])

kernels.impl("asynchronous_complete_cumsum", cumsum, "CompositeExplicitAutograd")
kernels.impl("jagged_2d_to_dense", dense, "CompositeExplicitAutograd")
unstable = torch.argsort  # PyTorch leaves the order of equal scores open, and its newest releases change it
torch.argsort = lambda scores, dim: unstable(scores, dim=dim, stable=True)
sys.argv = ["accuracy.py", "--path", log]
runpy.run_path(folder + "/accuracy.py", run_name="__main__")
"""


@pytest.mark.parametrize("seed", range(4))
def test_requests_are_scored_as_by_accuracy_of_dlrm(
    seed: int, checkout: Path, tmp_path: Path
) -> None:
    """The last digit may differ, because torch adds the float64 values within a request in a different order."""
    for name in ("torch", "torchrec", "torchmetrics"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}: put it on PYTHONPATH")
    random = np.random.default_rng(seed)
    answers, labels, whole = [], {}, []
    for index in range(COUNT):
        count = int(random.integers(1, 40))
        liked = (random.random(count) < 0.6).astype(np.float32)
        scores = (0.4 * liked + 0.6 * random.random(count)).astype(np.float32)
        if seed % 2:
            # Rounding creates equal scores and certain answers, which the metric must also handle.
            scores = np.round(scores, 1)
        identity = (index // 300, index % 300)
        labels[index] = {"identity": identity, "liked": liked}
        parts = [identity, scores, liked, np.ones(count), (count,)]
        row = np.concatenate([np.asarray(part, np.float32) for part in parts])
        whole.append(Answer(index, row.tobytes()))
        answers.append(Answer(index, row[: 2 + count].tobytes()))
    log = log_of(tmp_path / "log.json", whole)
    (tmp_path / "boot.py").write_text(BOOT)
    printed = run("boot.py", checkout / "recommendation/dlrm_v3", log, folder=tmp_path)
    for given in (answers, whole):
        score = Recommendation("float32").score(given, labels)
        for name in ("ne", "accuracy", "gauc"):
            found = re.search(rf"metric/lifetime_{name}/rating: ([\d.]+)", printed)
            assert found, printed
            assert score.details[name] == pytest.approx(float(found[1]), rel=2e-15, abs=0)


def test_answers_are_judged_as_by_accuracy_eval(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pandas", "requests"):
        pytest.importorskip(name)
    random = np.random.default_rng(0)
    path = write_frames(tmp_path / "frames_dataset.tsv", COUNT)
    spec = TensorSpec("request", "string", (None,))
    data = FramesDataset(DatasetSetup(inputs=(spec,), data_dir=path))
    labels: dict[int, object] = {i: data.label(i) for i in range(COUNT)}
    wrong = random.random(COUNT) < 0.37
    rich = [json.dumps({"answer": str(i + 1 + int(wrong[i])), "retrieved_urls": [f"https://en.wikipedia.org/wiki/{i}", "x"]}) for i in range(COUNT)]  # fmt: skip
    with RagServer() as judge:
        script = checkout / "e2e-rag/accuracy_eval.py"
        url = f"{judge.url}/v1/chat/completions"
        monkeypatch.setenv(JUDGE, f"{sys.executable} {script} --judge_service_url {url}")
        answers = [Answer(i, text.encode()) for i, text in enumerate(rich)]
        score = RagAnswers("uint8").score(answers, labels)
    assert score.value == pytest.approx(100 * (1 - wrong.mean()), abs=5e-5)
    assert score.details["retrieval_precision"] == pytest.approx(0.5)
    assert score.details["retrieval_recall"] == 1


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_database_is_checked_as_by_datasetup_accuracy_eval(
    is_whole: bool, checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(1)
    database = tmp_path / "vectors.db"
    database.write_bytes(random.bytes(1000))
    md5 = hashlib.md5(database.read_bytes()).hexdigest().encode()
    stored = random.random(COUNT) < 0.996
    answers = [Answer(i, b"\1" if stored[i] else b"\0") for i in range(COUNT)]
    answers[7] = Answer(7, md5)
    stored[7] = True
    if not is_whole:
        database.write_bytes(b"another database")
    script = checkout / "e2e-rag/datasetup_accuracy_eval.py"
    words = (sys.executable, script, "--database", database, "--retriever_model", "''")
    monkeypatch.setenv(CHECK, " ".join(map(str, words)))
    if not is_whole:
        with pytest.raises(ValueError, match="ended with status 1"):
            Ingestion("uint8").score(answers, {})
        return
    score = Ingestion("uint8").score(answers, {})
    log_of(tmp_path / "mlperf_log_accuracy.json", answers)
    out = ("--log_dir", tmp_path, "--output_dir", tmp_path, "--database", database)
    run(script, *out, "--retriever_model", "", folder=tmp_path)
    theirs = json.loads((tmp_path / "accuracy_results.json").read_text())
    assert score.value == 100 * theirs["success_rate"] == 100 * stored.mean()
