"""The files that MLPerf's benchmarks download, either small or as large as a submission needs, with known right
answers.
"""

import csv
import io
import json
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from harness.models.manifest.model import MODELS_DIR

onnx = pytest.importorskip("onnx")
TOPICS = 16
INT64, FLOAT = 7, 1
"""ONNX's codes for the types int64 and float."""

RATINGS_SEED = 5


def tensor_file(path: Path, numbers: np.ndarray, offset: int = 0) -> Path:
    """Writes int64 numbers as torch.save does; the storage starts with `offset` numbers that are not part of the
    tensor.
    """
    storage = np.concatenate([np.full(offset, -7), numbers]).astype("<i8")

    def text(value: str) -> bytes:
        return b"X" + len(value).to_bytes(4, "little") + value.encode()

    def whole(value: int) -> bytes:
        return b"J" + value.to_bytes(4, "little", signed=True)

    described = b"".join(
        [
            b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nq\x00((",
            text("storage") + b"ctorch\nLongStorage\n" + text("0") + text("cpu"),
            whole(len(storage)) + b"tQ",
            whole(offset) + whole(len(numbers)) + b"\x85" + whole(1) + b"\x85",
            b"\x89ccollections\nOrderedDict\n)RtR.",
        ]
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("val_idx/data.pkl", described)
        archive.writestr("val_idx/data/0", storage.tobytes())
        archive.writestr("val_idx/version", "3\n")
    return path


def write_igbh(root: Path, papers: int, *, bare: bool = False, seed: int = 3) -> np.ndarray:
    """Writes a graph with 2 * `papers` papers, and returns the topic of each paper. bare: write labels without a
    header.
    """
    random = np.random.default_rng(seed)
    folder = root / ("full" if bare else "tiny") / "processed"
    (folder / "paper").mkdir(parents=True)
    topics = random.integers(0, TOPICS, 2 * papers)
    labels = folder / "paper" / "node_label_2K.npy"
    if bare:
        topics.astype(np.float32).tofile(labels)
    else:
        np.save(labels, topics.astype(np.float32))
    tensor_file(folder / "val_idx.pt", random.permutation(2 * papers)[:papers], offset=9)
    return topics


def save_graph(path: Path, nodes: Sequence[object], inputs: object, output: object, weights: Sequence[object]) -> Path:  # fmt: skip
    graph = onnx.helper.make_graph(nodes, "stand_in", inputs, [output], weights)
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def manifest_in(folder: Path, name: str) -> Path:
    """Copies a shipped manifest into a folder to which the model's file will be written."""
    folder.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(MODELS_DIR / f"{name}.yaml", folder))


def rgat_model(path: Path, topics: np.ndarray, wrong_share: float) -> Path:
    """Writes a model that returns the right topic, except for a share of the papers."""
    random = np.random.default_rng(11)
    wrong = random.random(len(topics)) < wrong_share
    answers = np.where(wrong, (topics + 1) % TOPICS, topics).astype(np.int64)
    tensors = {
        "table": answers,
        "depth": np.array([TOPICS]),
        "values": np.array([0, 1], np.float32),
    }
    weights = [onnx.numpy_helper.from_array(value, name) for name, value in tensors.items()]
    nodes = [
        onnx.helper.make_node("Gather", ["table", "paper"], ["topic"]),
        onnx.helper.make_node("OneHot", ["topic", "depth", "values"], ["topics"]),
    ]
    paper = onnx.helper.make_tensor_value_info("paper", INT64, ["batch"])
    output = onnx.helper.make_tensor_value_info("topics", FLOAT, ["batch", TOPICS])
    return save_graph(path, nodes, [paper], output, weights)


def rating(random: np.random.Generator, items: np.ndarray, category: int) -> np.ndarray:
    """Returns ratings from 1 to 5 that follow the scores of `dlrm_model`, with noise."""
    likely = 1 / (1 + np.exp(-6 * ((items + category) % 97 / 97 - 0.5)))
    return np.where(random.random(len(items)) < likely, 4, 1) + random.integers(0, 2, len(items))


def write_streaming(
    folder: Path, requests: int, *, timestamps: int = 20, candidates: int = 5, users: int = 0
) -> None:
    """Writes the tables of DLRM-v3. requests: number of requests in the scored timestamps, which are the last tenth."""
    random = np.random.default_rng(RATINGS_SEED)
    answered = max(1, timestamps // 10)
    per_ts = [len(part) for part in np.array_split(np.arange(requests), answered)]
    users = users or max(per_ts)
    folder.mkdir(parents=True)
    offsets, lines = [0], io.BytesIO()
    for user in range(users):
        cells: list[str] = []
        category = 0
        for at in range(timestamps + 2):
            many = candidates - (user + at) % 2
            items = random.integers(0, 1_000_000_000, 2 * many)
            category = category if at else int(items[many]) // 7_812_500
            rated = rating(random, items, category)
            four = (items[:many], rated[:many], items[many:], rated[many:])
            cells += [",".join(map(str, part.tolist())) for part in four]
        line = io.StringIO()
        csv.writer(line).writerow(cells)
        lines.write(line.getvalue().encode())
        offsets.append(lines.tell())
    (folder / "0.csv").write_bytes(lines.getvalue())

    def table(rows: Sequence[Sequence[int]]) -> tuple[str, list[int]]:
        text, begins = io.StringIO(newline=""), []
        for row in rows:
            begins.append(len(text.getvalue()))
            csv.writer(text).writerow([json.dumps([int(n) for n in row])])
        return text.getvalue(), begins

    asked = [[*range(2)] if at < timestamps - answered else [*random.permutation(users)[: per_ts[at - timestamps + answered]]] for at in range(timestamps)]  # fmt: skip
    texts = {"requests_per_ts.csv": table(asked)}
    texts["offset.csv"] = table([offsets[:-1]])
    texts["users_cumsum_per_ts.csv"] = table([[len(row)] for row in asked])
    texts["requests_per_ts_offset.csv"] = table([texts["requests_per_ts.csv"][1]])
    for name, (text, _) in texts.items():
        (folder / name).write_bytes(text.encode())


def dlrm_model(path: Path) -> Path:
    """Writes a model that scores a candidate by its number and the user's first category: the sigmoid of a value in
    [-0.5, 0.5].
    """
    tensors = {
        "prime": np.array([97]), "scale": np.array([1 / 97], np.float32), "shift": np.array([0.5], np.float32),
        "one": np.array([1]), "first": np.array([0]), "axis": np.array([1]),
    }  # fmt: skip
    weights = [onnx.numpy_helper.from_array(value, name) for name, value in tensors.items()]
    node = onnx.helper.make_node
    nodes = [
        node("Slice", ["item_category_id", "first", "one", "axis"], ["category"]),
        node("Add", ["item_candidate_id", "category"], ["both"]),
        node("Mod", ["both", "prime"], ["rest"]),
        node("Cast", ["rest"], ["number"], to=FLOAT),
        node("Mul", ["number", "scale"], ["scaled"]),
        node("Sub", ["scaled", "shift"], ["logit"]),
        node("Sigmoid", ["logit"], ["scores"]),
    ]
    named = {"user_id": [], "history_length": [], "item_id": ["history"], "item_rating": ["history"],
             "item_category_id": ["history"], "item_candidate_id": ["candidates"],
             "item_candidate_category_id": ["candidates"]}  # fmt: skip
    inputs = [
        onnx.helper.make_tensor_value_info(name, INT64, ["batch", *shape])
        for name, shape in named.items()
    ]
    output = onnx.helper.make_tensor_value_info("scores", FLOAT, ["batch", "candidates"])
    return save_graph(path, nodes, inputs, output, weights)


def write_frames(path: Path, count: int) -> Path:
    """Writes questions that contain their answer."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, delimiter="\t")
        rows.writerow(["", "Prompt", "Answer", "wikipedia_link_1", "wikipedia_link_2"])
        for i in range(count):
            question = f'Which number follows {i}?\nName it with a "quote" and a\ttab'
            rows.writerow([i, question, str(i + 1), f"https://en.wikipedia.org/wiki/{i}", ""])
    return path


def write_documents(folder: Path, count: int) -> None:
    folder.mkdir(parents=True)
    for i in range(count):
        page = f"<html><body><h1>Page {i}</h1><p>Brücke {i * i}</p></body></html>"
        (folder / f"page_{i:05}.html").write_text(page, encoding="utf-8")
