"""The readers for MLPerf's downloads: samples, labels, orders, and refused files."""

import json
import random
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from harness.core.formats.torch_tensor import read_tensor
from harness.datasets.mlperf.documents import DocumentsDataset
from harness.datasets.mlperf.frames import FramesDataset
from harness.datasets.mlperf.igbh import IgbhDataset
from harness.datasets.mlperf.streaming_100b import FEATURES, Streaming100bDataset
from harness.errors import ConfigError
from harness.types import DatasetSetup, TensorSpec
from tests.builders.submit.mlperf_data import (
    tensor_file,
    write_documents,
    write_frames,
    write_igbh,
    write_streaming,
)

PAPER = TensorSpec("paper", "int64", (None,))
LISTS = ("item_id", "item_rating", "item_weights", "item_candidate_id", "item_category_id")


def setup_of(root: Path, *specs: TensorSpec) -> DatasetSetup:
    return DatasetSetup(inputs=specs, data_dir=root)


def identity_of(data: Streaming100bDataset, index: int) -> tuple[int, int]:
    timestamp, query = cast("tuple[int, int]", data.label(index)["identity"])
    return timestamp, query


def liked_of(data: Streaming100bDataset, index: int) -> Any:
    return data.label(index)["liked"]


def text_input(name: str) -> TensorSpec:
    return TensorSpec(name, "string", (None,))


@pytest.mark.parametrize("bare", [False, True])
def test_papers_have_the_topics_of_the_labels(bare: bool, tmp_path: Path) -> None:
    topics = write_igbh(tmp_path, 50, bare=bare)
    data = IgbhDataset(setup_of(tmp_path, PAPER))
    assert len(data) == 50
    order = [7, 3, 3, 49]
    data.load(order)
    papers = data.batch(order).inputs["paper"]
    assert papers.dtype == np.int64
    assert [data.label(i) for i in order] == [int(topics[p]) for p in papers]
    assert len({int(p) for p in data.batch([7, 3, 49]).inputs["paper"]}) == 3


def test_the_folder_of_one_graph_is_found(tmp_path: Path) -> None:
    write_igbh(tmp_path, 5)
    for place in (tmp_path, tmp_path / "tiny", tmp_path / "tiny/processed"):
        assert len(IgbhDataset(setup_of(place, PAPER))) == 5
    write_igbh(tmp_path, 5, bare=True)
    with pytest.raises(
        ConfigError, match=r"must contain exactly one graph with val_idx\.pt, but contains full"
    ):
        IgbhDataset(setup_of(tmp_path, PAPER))


def test_papers_beyond_the_labels_are_refused(tmp_path: Path) -> None:
    write_igbh(tmp_path, 5)
    tensor_file(tmp_path / "tiny/processed/val_idx.pt", np.array([3, 10]))
    with pytest.raises(ConfigError, match=r"names paper 10, but .* has the topics of 10 papers"):
        IgbhDataset(setup_of(tmp_path, PAPER)).label(0)


def test_a_view_in_a_tensor_file_is_read_without_its_storage(tmp_path: Path) -> None:
    numbers = np.arange(5) * 3
    found = read_tensor(tensor_file(tmp_path / "view.pt", numbers, offset=4))
    assert found.tolist() == numbers.tolist()
    assert found.dtype == np.int64


def test_pytorchs_files_are_read_as_pytorch_reads_them(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    shuffled = torch.randperm(100)
    for tensor in (shuffled[60:70], shuffled, torch.rand(3, 4)[:, 1:].t(), torch.ones(2).half()):
        torch.save(tensor, tmp_path / "x.pt")
        assert np.array_equal(read_tensor(tmp_path / "x.pt"), tensor.numpy())


@pytest.mark.parametrize(
    ("pickled", "named"),
    [
        (b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00ls\x85R.", "calls"),
        (b"\x80\x02]q\x00.", "the operation EMPTY_LIST"),
        (b"\x80\x02K\x05.", "objects other than a tensor"),
        (b"\x80\x02.", "single tensor"),
    ],
)
def test_other_objects_in_a_tensor_file_are_refused(
    pickled: bytes, named: str, tmp_path: Path
) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "bad.pt", "w") as archive:
        archive.writestr("x/data.pkl", pickled)
    with pytest.raises(ConfigError, match=named):
        read_tensor(tmp_path / "bad.pt")


def test_a_tensor_larger_than_its_numbers_is_refused(tmp_path: Path) -> None:
    import zipfile

    path = tensor_file(tmp_path / "x.pt", np.arange(5))
    with zipfile.ZipFile(path) as archive:
        pickled = archive.read("val_idx/data.pkl")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("val_idx/data.pkl", pickled)
        archive.writestr("val_idx/data/0", b"\0" * 16)
    with pytest.raises(ConfigError, match="its storage has 2 numbers, but the tensor needs 5"):
        read_tensor(path)


def stream(root: Path, names: tuple[str, ...] = LISTS, requests: int = 12) -> Streaming100bDataset:
    if not root.exists():
        write_streaming(root, requests)
    alone = ("user_id", "history_length", "candidates_length")
    specs = [
        TensorSpec(name, "int64", (None,) if name in alone else (None, None)) for name in names
    ]
    return Streaming100bDataset(setup_of(root, *specs))


def test_requests_follow_each_other_in_time(tmp_path: Path) -> None:
    data = stream(tmp_path / "data")
    assert (len(data), data.performance_count) == (12, 12)
    identities = [identity_of(data, i) for i in range(12)]
    assert [t for t, _ in identities] == [0] * 6 + [1] * 6
    order = list(range(6))
    shuffled = random.Random(123)
    for at in (0, 1):
        expected = list(order)
        shuffled.shuffle(expected)
        assert [q for t, q in identities if t == at] == expected
    data.load(list(range(12)))
    assert [*data.next(5), *data.next(9)] == [*range(12), 0, 1]
    data.load(list(range(12)))
    assert data.next(2) == [0, 1]


def test_a_stream_needs_all_requests_in_memory(tmp_path: Path) -> None:
    data = stream(tmp_path / "data")
    data.load([0, 1, 2])
    with pytest.raises(ConfigError, match="all 12 must be in memory, but 3 are"):
        data.next(1)


def test_a_request_sees_the_history_before_its_time(tmp_path: Path) -> None:
    """The history of a request at the second timestamp includes the user's actions at the first timestamp."""
    import csv

    data = stream(tmp_path / "data", (*LISTS, "history_length", "user_id"))
    data.load(list(range(12)))
    total, trained = 20, 18
    lines = list(csv.reader((tmp_path / "data/0.csv").read_text().splitlines()))
    for index in range(12):
        batch = data.batch([index]).inputs
        user, (at, _) = int(batch["user_id"][0]), identity_of(data, index)
        cells = lines[user]
        assert len(cells) == 4 * (total + 2)
        blocks = [*range(trained + 1), *range(trained + 2, trained + at + 2)]
        items = [int(n) for i in blocks for n in cells[4 * i + 2].split(",")]
        rated = [int(n) for i in blocks for n in cells[4 * i + 3].split(",")]
        assert batch["item_id"][0].tolist() == items
        assert batch["item_weights"][0].tolist() == [[1, 2, 4, 8, 16][r - 1] for r in rated]
        assert batch["item_category_id"][0].tolist() == [n // 7_812_500 for n in items]
        assert int(batch["history_length"][0]) == len(items)
        now = trained + at + 2
        assert batch["item_candidate_id"][0].tolist() == [int(n) for n in cells[4 * now].split(",")]
        liked = [float(int(r) >= 3.5) for r in cells[4 * now + 1].split(",")]
        assert liked_of(data, index).tolist() == liked


def test_answers_begin_with_timestamp_and_request(tmp_path: Path) -> None:
    data = stream(tmp_path / "data")
    data.load(list(range(12)))
    sizes = [len(liked_of(data, i)) for i in range(12)]
    assert set(sizes) == {4, 5}
    scores = [np.linspace(0, 1, 5, dtype=np.float32)] * 12
    for index, row in enumerate(data.identified(scores, range(12))):
        assert row[:2].tolist() == list(identity_of(data, index))
        assert row[2:].tolist() == scores[0][: sizes[index]].tolist()
    data.labelled = True
    (row,) = data.identified(scores[:1], [3])
    liked = liked_of(data, 3)
    assert row[2 + len(liked) :].tolist() == [*liked, *[1.0] * len(liked), len(liked)]
    with pytest.raises(ValueError, match="2 scores for"):
        data.identified([np.zeros(2, np.float32)], [3])


def test_every_feature_but_the_labels_can_be_an_input(tmp_path: Path) -> None:
    data = stream(tmp_path / "data", FEATURES)
    data.load([0, 1])
    assert {*data.batch([0, 1]).inputs} == {*FEATURES}
    with pytest.raises(ConfigError, match="has no input 'item_action_weights'"):
        stream(tmp_path / "data", ("item_action_weights",))


@pytest.mark.parametrize(
    ("file", "text", "named"),
    [
        ("users_cumsum_per_ts.csv", "[3]\n", "has 1 timestamps"),
        ("offset.csv", '"[1, 2.5]"\n', "instead of whole numbers"),
        ("requests_per_ts.csv", '"[1, 2]"\n' * 40, "download the data again|in place of|cells"),
    ],
)
def test_damaged_tables_are_refused(file: str, text: str, named: str, tmp_path: Path) -> None:
    write_streaming(tmp_path / "data", 12)
    (tmp_path / "data" / file).write_text(text)
    with pytest.raises(ConfigError, match=named):
        stream(tmp_path / "data")


def test_questions_become_chats_or_texts(tmp_path: Path) -> None:
    path = write_frames(tmp_path / "frames_dataset.tsv", 7)
    data = FramesDataset(setup_of(path, text_input("request")))
    data.load([2, 1])
    (sample,) = data.batch([1]).inputs["request"]
    (message,) = json.loads(sample)["messages"]
    assert message["content"].startswith("Which number follows 1?\n")
    label = data.label(1)
    assert (label["text"], label["links"]) == ("2", ("https://en.wikipedia.org/wiki/1",))
    plain = FramesDataset(setup_of(path, text_input("question")))
    plain.load([1])
    assert plain.batch([1]).inputs["question"][0].decode() == label["question"]


def test_questions_are_read_as_pandas_reads_them(tmp_path: Path) -> None:
    """MLCommons' scripts read the file with pandas."""
    pandas = pytest.importorskip("pandas")
    path = write_frames(tmp_path / "frames_dataset.tsv", 30)
    table = pandas.read_csv(path, sep="\t")
    data = FramesDataset(setup_of(path, text_input("question")))
    assert [data.label(i)["question"] for i in range(30)] == table["Prompt"].tolist()
    assert [data.label(i)["text"] for i in range(30)] == [str(a) for a in table["Answer"]]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Question\tAnswer\nx\ty\n", "has no column Prompt"),
        ("Prompt\tAnswer\twiki_links\nx\ty\tz\nq\tr", ":3 has too few columns"),
        ("Prompt\tAnswer\nx\t\n", "no question, or no answer"),
        ("Prompt\tAnswer\n", "has no questions"),
    ],
)
def test_questions_without_answers_are_refused(text: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "frames.tsv").write_text(text)
    with pytest.raises(ConfigError, match=named):
        FramesDataset(setup_of(tmp_path, text_input("request")))


def test_pages_are_samples_in_the_order_of_their_names(tmp_path: Path) -> None:
    write_documents(tmp_path / "doc_html", 12)
    (tmp_path / "doc_html/notes.txt").write_text("no page")
    (tmp_path / "doc_html/page_00000.html").write_bytes(b"caf\xe9")
    data = DocumentsDataset(setup_of(tmp_path / "doc_html", text_input("name"), text_input("html")))
    assert [data.label(i) for i in range(12)] == [f"page_{i:05}.html" for i in range(12)]
    data.load([0, 11])
    batch: Any = data.batch([0, 11]).inputs
    assert batch["name"].tolist() == [b"page_00000.html", b"page_00011.html"]
    assert batch["html"][0].decode() == "caf\ufffd"
    with pytest.raises(ConfigError, match="needs a model with the input `html`"):
        DocumentsDataset(setup_of(tmp_path / "doc_html", text_input("name")))
