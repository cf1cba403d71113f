"""Tables in model files: the smallest one that an input indexes, and none where that is uncertain.

The reference is ONNX Runtime, which refuses a row that a table does not have.
"""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core import registry
from harness.datasets.synthetic import SyntheticDataset
from harness.models.manifest.lookup import load_model
from harness.models.opened.loading import inputs_of
from harness.models.tables.flow import Copy, Flow, Lookup, smallest_tables
from harness.models.tables.tables import tables_of
from harness.types import BackendSetup, DatasetSetup, Table
from tests.builders.models.table_nets import MODELS, ROWS, saved

pytest.importorskip("onnx")

NAMES = st.sampled_from("abcdef")
COPIES = st.lists(st.builds(Copy, NAMES, NAMES, st.booleans()), max_size=12)
LOOKUPS = st.lists(
    st.builds(Lookup, NAMES, st.just("Gather"), st.one_of(st.none(), st.integers(1, 9))), max_size=6
)


@given(COPIES, LOOKUPS, st.lists(st.builds(Lookup, NAMES, st.just("Gather"), st.integers(1, 9))))
def test_a_further_table_never_widens_a_range(
    copies: list[Copy], lookups: list[Lookup], more: list[Lookup]
) -> None:
    inputs = {name: name for name in "ab"}
    fewer = smallest_tables(Flow(inputs, copies, lookups))
    found = smallest_tables(Flow(inputs, copies, lookups + more))
    assert all(found[name].rows <= fewer[name].rows for name in fewer if name in found)
    assert all(table.rows in {one.rows for one in lookups} for table in fewer.values())


@given(COPIES, LOOKUPS)
def test_a_table_of_unknown_rows_leaves_no_range(copies: list[Copy], lookups: list[Lookup]) -> None:
    lookups.append(Lookup("a", "Gather", None))
    assert "a" not in smallest_tables(Flow({"a": "a"}, copies, lookups))


@pytest.mark.parametrize("name", MODELS)
def test_the_runtime_accepts_all_that_is_drawn(name: str, tmp_path: Path) -> None:
    graph, tables, rows = MODELS[name]
    path = saved(graph, tables, tmp_path)
    found = tables_of(path)
    assert {name: table.rows for name, table in found.items()} == rows
    if "vendor" in graph:
        return
    pytest.importorskip("onnxruntime")
    backend = registry.load("backend", "ort")(BackendSetup(model=path, model_name="net"))
    with backend:
        inputs = inputs_of(load_model(str(path)), backend)
        data = SyntheticDataset(DatasetSetup(inputs=inputs, tables=lambda: found))
        data.load(range(100))
        count = 1 if "Loop" in graph else 100
        batch = data.batch(range(count))
        backend.infer(batch)
        high = {key: int(numbers.max()) for key, numbers in batch.inputs.items() if key in rows}
        assert all(high[key] > 1 for key in rows)


def test_a_table_in_another_file_is_found(tmp_path: Path) -> None:
    graph, tables, rows = MODELS["one table"]
    how = {"save_as_external_data": True, "size_threshold": 0, "location": "net.bin"}
    path = saved(graph, tables, tmp_path, **how)
    assert (tmp_path / "net.bin").stat().st_size == 4 * ROWS * 2
    assert tables_of(path) == {"ids": Table("Gather", rows["ids"])}


def test_operators_of_the_runtime_that_look_up_are_known(tmp_path: Path) -> None:
    graph = """(int64[N, 4] ids, int32[N, 4] words, int32[N, 4] kinds) => (float[N, 4, 2] y, float[N, 2] p) {
        y = com.microsoft.GatherBlockQuantized <gather_axis = 0> (t, ids, scale)
        z, p = com.microsoft.EmbedLayerNormalization (words, kinds, w, places, k, one, one)
    }"""
    tables = {
        "t": (50, 8),
        "scale": (50, 1),
        "w": (ROWS, 2),
        "places": (4, 2),
        "k": (3, 2),
        "one": (2,),
    }
    rows = {name: table.rows for name, table in tables_of(saved(graph, tables, tmp_path)).items()}
    assert rows == {"ids": 50, "words": ROWS, "kinds": 3}


def test_a_file_that_is_broken_shows_no_tables(tmp_path: Path) -> None:
    path = saved(*MODELS["one table"][:2], tmp_path)
    path.write_bytes(path.read_bytes()[:-40])
    assert tables_of(path) == {}
    assert tables_of(tmp_path / "missing.onnx") == {}
    (tmp_path / "net.xml").write_text("<net><layers><layer id='0'/></layers></net>")
    assert tables_of(tmp_path / "net.xml") == {}
    (tmp_path / "net.pt2").write_bytes(b"PK")
    assert tables_of(tmp_path / "net.pt2") == {}
    (tmp_path / "net.tflite").write_bytes(b"\0" * 30)
    assert tables_of(tmp_path / "net.tflite") == {}
    (tmp_path / "net.pt").write_bytes(b"PK")
    assert tables_of(tmp_path / "net.pt") == {}


def test_an_ir_shows_the_tables_of_its_onnx_file(tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    for name in ("two inputs and a mask", "an index counted from the end", "columns of a table"):
        graph, tables, rows = MODELS[name]
        folder = tmp_path / re.sub(r"\W", "-", name)
        folder.mkdir()
        model = openvino.convert_model(saved(graph, tables, folder))
        openvino.save_model(model, folder / "net.xml")
        assert {key: table.rows for key, table in tables_of(folder / "net.xml").items()} == rows
        (folder / "net.onnx").unlink()
        assert tables_of(folder) == tables_of(folder / "net.xml")


@pytest.mark.slow
def test_an_exported_program_shows_its_tables(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):  # type: ignore[misc,name-defined] # torch is not typed here
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(ROWS, 2)
            self.bag = torch.nn.EmbeddingBag(30, 2)
            self.places = torch.nn.Parameter(torch.ones(50, 2))
            self.axes = torch.nn.Parameter(torch.ones(2, 9))

        def forward(self, ids: Any, place: Any, items: Any, axis: Any, mask: Any) -> Any:
            words = self.words(torch.cat([ids, ids], 1)) * mask.sum()
            shifted = self.words(axis + 1) if axis.shape[0] > 5 else 0
            rows = self.axes.index_select(1, axis[:, 0]).T
            return words.sum(1) + self.places[place].sum(1) + self.bag(items) + rows + shifted

    numbers = [torch.zeros(2, 4, dtype=torch.long) for _ in range(5)]
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(Net().eval(), tuple(numbers)), path)
    rows = {name: table.rows for name, table in tables_of(path).items()}
    assert rows == {"ids": ROWS, "place": 50, "items": 30, "axis": 9}


@pytest.mark.slow
def test_a_litert_file_shows_its_tables(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    tf = pytest.importorskip("tensorflow")

    class Net(tf.Module):  # type: ignore[misc,name-defined] # tensorflow is not typed here
        @tf.function(  # type: ignore[untyped-decorator]
            input_signature=[tf.TensorSpec([None, 4], tf.int32, name=n) for n in ("ids", "mask")]
        )
        def answer(self, ids: Any, mask: Any) -> Any:
            return tf.gather(tf.ones([ROWS, 2]), ids) * tf.cast(mask, tf.float32)[:, :, None]

    net = Net()
    function = net.answer.get_concrete_function()
    content = tf.lite.TFLiteConverter.from_concrete_functions([function], net).convert()
    (tmp_path / "net.tflite").write_bytes(content)
    assert {n: t.rows for n, t in tables_of(tmp_path / "net.tflite").items()} == {"ids": ROWS}
