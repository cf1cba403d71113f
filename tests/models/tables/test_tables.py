"""Tables in model files: the harness finds the smallest table that an input indexes, or none if the table is uncertain.

The reference is ONNX Runtime, which refuses a row outside a table.
"""

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core import registry
from harness.datasets.synthetic import SyntheticDataset
from harness.models.manifest.lookup import load_model
from harness.models.opened.loading import inputs_of
from harness.models.tables import saved_model_file
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
def test_torchscript_shows_its_tables(tmp_path: Path) -> None:
    script = tmp_path / "write.py"
    script.write_text(_SCRIPTED)
    subprocess.run([sys.executable, script, tmp_path, str(ROWS)], check=True, capture_output=True)
    for name in ("traced", "scripted", "frozen"):
        rows = {key: table.rows for key, table in tables_of(tmp_path / f"{name}.pt").items()}
        known = {"ids": ROWS, "place": 50, "items": 30, "axis": 9}
        # The input `shifted` gets no table, because the model adds one to its index.
        assert rows == known, name
    (tmp_path / "broken.pt").write_bytes((tmp_path / "traced.pt").read_bytes()[:-100])
    assert tables_of(tmp_path / "broken.pt") == {}


_SCRIPTED = """
import sys, torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(int(sys.argv[2]), 2)
        self.bag = torch.nn.EmbeddingBag(30, 2)
        self.places = torch.nn.Parameter(torch.ones(50, 2))
        self.axes = torch.nn.Parameter(torch.ones(2, 9))
        self.recurrent = torch.nn.LSTM(2, 2)

    def forward(self, ids, place, items, axis, shifted, mask):
        if ids.shape[0] > 9:
            ids = ids.flip(0)
        for _ in range(ids.shape[1]):
            place = place.t().contiguous().t()
        words = self.recurrent(self.words(torch.cat([ids, ids], 1)) * mask.sum())[0].sum(1)
        rows = self.axes.index_select(1, axis[:, 0]).t() + self.axes[:, axis[:, 1]].t()
        return words + self.places[place].sum(1) + self.bag(items) + rows + self.words(shifted + 1).sum(1)

net = Net().eval()
numbers = tuple(torch.zeros(2, 4, dtype=torch.long) for _ in range(6))
torch.jit.trace(net, numbers).save(sys.argv[1] + "/traced.pt")
scripted = torch.jit.script(net)
scripted.save(sys.argv[1] + "/scripted.pt")
torch.jit.freeze(scripted).save(sys.argv[1] + "/frozen.pt")
"""


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


def _call(layer: str) -> dict[str, Any]:
    """Returns a call of a layer on another layer's first output, in Keras's notation."""
    tensor = {"class_name": "__keras_tensor__", "config": {"keras_history": [layer, 0, 0]}}
    return {"args": [[tensor]], "kwargs": {"mask": None}}


def _layer(kind: str, name: str, *sources: str, **config: Any) -> dict[str, Any]:
    calls = [_call(source) for source in sources]
    return {"class_name": kind, "config": {"name": name, **config}, "inbound_nodes": calls}


def _keras(path: Path, layers: list[dict[str, Any]], kind: str = "Functional") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        config = {"class_name": kind, "config": {"layers": layers}}
        archive.writestr("config.json", json.dumps(config))
    return path


def test_a_keras_file_shows_its_tables(tmp_path: Path) -> None:
    layers = [
        _layer("InputLayer", "ids"),
        _layer("InputLayer", "sums"),
        _layer("InputLayer", "own"),
        _layer("Reshape", "flat", "ids"),
        _layer("Embedding", "words", "flat", "ids", input_dim=ROWS),
        _layer("Embedding", "kinds", "flat", input_dim=7),
        _layer("Add", "added", "sums"),
        _layer("Embedding", "places", "added", input_dim=50),
        _layer("Lambda", "code", "own"),
        _layer("Embedding", "more", "own", input_dim=9),
        _layer("InputLayer", "other"),
        {**_layer("Embedding", "mine", "other", input_dim=9), "registered_name": "mine>Embedding"},
    ]
    assert tables_of(_keras(tmp_path / "net.keras", layers)) == {"ids": Table("Embedding", 7)}
    chain = [_layer("InputLayer", "ids"), _layer("Embedding", "words", input_dim=ROWS)]
    path = _keras(tmp_path / "chain.keras", [*chain, _layer("Dense", "d")], "Sequential")
    assert tables_of(path) == {"ids": Table("Embedding", ROWS)}
    (tmp_path / "net.keras").write_bytes(b"PK")
    assert tables_of(tmp_path / "net.keras") == {}


def test_saved_model_without_tables_shows_no_tables(tmp_path: Path) -> None:
    shipped = load_model("digits").path(("savedmodel",))
    assert shipped is not None
    flow = saved_model_file.read(shipped)
    assert [*flow.inputs] == ["image"]
    # The search found copies inside functions, so it follows function calls.
    assert any(copy.target.count("/") for copy in flow.copies)
    assert tables_of(shipped) == {}
    (tmp_path / "saved_model.pb").write_bytes((shipped / "saved_model.pb").read_bytes()[:-99])
    assert tables_of(tmp_path) == {}


@pytest.mark.slow
# The layers of Keras cause this warning.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_tensorflow_accepts_the_last_row_shown_and_refuses_the_next(
    tmp_path: Path,
) -> None:
    tf = pytest.importorskip("tensorflow")

    class Net(tf.Module):  # type: ignore[misc,name-defined] # tensorflow is not typed here
        def __init__(self) -> None:
            super().__init__()
            self.rows, self.columns = tf.Variable(tf.ones([ROWS, 2])), tf.Variable(tf.ones([2, 9]))

        @tf.function(  # type: ignore[untyped-decorator]
            input_signature=[
                tf.TensorSpec([None, 4], tf.int32, name=n)
                for n in ("ids", "axis", "shifted", "mask")
            ]
        )
        def answer(self, ids: Any, axis: Any, shifted: Any, mask: Any) -> Any:
            found = tf.gather(self.rows, tf.where(ids < 0, ids + ROWS, ids))[:, :, 0]
            columns = (
                tf.gather(self.columns, axis, axis=1)[0]
                + tf.gather(self.rows, shifted + 1)[:, :, 0]
            )
            return found + columns * tf.cast(mask, tf.float32)

    net = Net()
    tf.saved_model.save(net, str(tmp_path / "net"), signatures=net.answer)
    ids = tf.keras.Input((4,), dtype="int32", name="ids")
    words = tf.keras.layers.Embedding(ROWS, 2)(ids)
    keras = tf.keras.Model([ids], tf.keras.layers.Flatten()(words))
    keras.save(tmp_path / "net.keras")
    keras.export(tmp_path / "exported", verbose=False)
    for name, expected in (
        ("net", {"ids": ROWS, "axis": 9}),
        ("net.keras", {"ids": ROWS}),
        ("exported", {"ids": ROWS}),
    ):
        path = tmp_path / name
        rows = {key: table.rows for key, table in tables_of(path).items()}
        assert rows == expected
        names, answer = _loaded(tf, path)
        assert set(rows) <= names
        zeros = {key: np.zeros((1, 4), np.int32) for key in names}
        for key, count in rows.items():
            answer(**{**zeros, key: zeros[key] + count - 1})
            with pytest.raises(tf.errors.InvalidArgumentError, match="is not in"):
                answer(**{**zeros, key: zeros[key] + count})


def _loaded(tf: Any, path: Path) -> tuple[set[str], Any]:
    """Returns the names of the inputs, and a function that computes the model from them."""
    if path.is_dir():
        function = tf.saved_model.load(str(path)).signatures["serving_default"]
        names = set(function.structured_input_signature[1])
        return names, lambda **numbers: function(**{n: tf.constant(numbers[n]) for n in names})
    model = tf.keras.models.load_model(path)
    return {tensor.name for tensor in model.inputs}, lambda **numbers: model([numbers["ids"]])
