"""The contract for every backend, tested with the backend's own file of the digits model.

A framework that is not installed is skipped; ./test.sh --all installs all of them.
"""

import subprocess
import sys
import threading
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from harness.core import registry
from harness.core.number_types import BITS, number_type
from harness.datasets.digits import DigitsDataset
from harness.errors import ConfigError
from harness.models.manifest.lookup import load_model
from harness.models.manifest.model import Model
from harness.types import BackendSetup, Batch, DatasetSetup
from tests.builders.models.converted import mnn_file

ROOT = Path(__file__).parents[3]
MODEL = load_model("digits")
TREES = load_model("digits-trees")
NAMELESS = ("torch", "executorch", "trees")
"""Backends whose files do not name their output."""

UNNAMED = ("executorch", "trees")
"""Backends whose files name neither their output nor their input."""

# The number is fixed, because TensorFlow fixes its threads at the first op of a process.
INSTANCES = 2


class Case(NamedTuple):
    backend: str
    format: str
    options: Mapping[str, str] = {}
    device: str = "cpu"

    @property
    def model(self) -> Model:
        """Returns the digits model: the network, or for `trees` a forest with the same input and number of classes."""
        return TREES if self.backend == "trees" else MODEL

    def __str__(self) -> str:
        device = [] if self.device == "cpu" else [self.device]
        return "-".join([self.backend, self.format, *self.options.values(), *device])

    def setup(self, **more: Any) -> BackendSetup:
        values = {
            "model": self.model.path((self.format,)),
            "inputs": self.model.inputs,
            "instances": INSTANCES,
            "max_batch": 64,
            "options": self.options,
            "device": self.device,
        }
        return BackendSetup(model_name=self.model.name, **{**values, **more})

    def open(self, **more: Any) -> Any:
        return registry.load("backend", self.backend)(self.setup(**more))


CASES = (
    Case("ort", "onnx"),
    Case("ort", "onnx", {"io_binding": "on", "share_weights": "on"}),
    Case("litert", "tflite"),
    Case("openvino", "openvino"),
    Case("openvino", "onnx"),
    Case("torch", "torchscript"),
    Case("torch", "torchscript", {"compile": "on"}),
    Case("torch", "torchscript", device="cuda"),
    Case("tensorflow", "savedmodel"),
    Case("tensorflow", "keras"),
    Case("tensorflow", "keras", {"compile": "off"}),
    Case("executorch", "executorch"),
    Case("trees", "xgboost"),
    Case("trees", "xgboost", {"engine": "gtil"}),
    Case("ncnn", "ncnn"),
    Case("mnn", "mnn"),
    Case("tract", "onnx"),
)
REFERENCES = {"digits": Case("ort", "onnx"), "digits-trees": Case("trees", "xgboost")}
"""Maps a model to the case with which all other cases of the model must agree."""


def params(cases: tuple[Case, ...]) -> list[Any]:
    """Marks every framework outside this test's list as slow, because the other frameworks take seconds to import."""
    marks = dict.fromkeys(("ort", "ncnn", "mnn", "tract"), ())
    return [
        pytest.param(case, id=str(case), marks=marks.get(case.backend, (pytest.mark.slow,)))
        for case in cases
    ]


each_case = pytest.mark.parametrize("case", params(CASES))
each_backend = pytest.mark.parametrize(
    "case", params(tuple({case.backend: case for case in reversed(CASES)}.values()))
)


@pytest.fixture(autouse=True)
def _installed(case: Case) -> None:
    entry = registry.BACKENDS[case.backend]
    if not entry.installed:
        pytest.skip(f"extra {entry.extra!r} is not installed")
    if case.device != "cpu" and not import_module("torch").cuda.is_available():
        pytest.skip("this machine has no GPU")


@pytest.fixture(scope="module")
def digits() -> DigitsDataset:
    dataset = DigitsDataset(DatasetSetup(inputs=MODEL.inputs))
    dataset.load(range(500))
    return dataset


@pytest.fixture(scope="module")
def answers(digits: DigitsDataset) -> dict[str, Any]:
    """Maps a model to its reference's output, (500, 10), computed in one batch."""
    found = {}
    for model, case in REFERENCES.items():
        if registry.BACKENDS[case.backend].installed:
            with case.open() as backend:
                found[model] = np.asarray(backend.infer(digits.batch(range(500))))
    return found


@pytest.fixture
def logits(case: Case, answers: dict[str, Any]) -> Any:
    """Returns (500, 10): ONNX Runtime's output for the network, or XGBoost's for the trees."""
    return answers[case.model.name]


@each_case
def test_backend_agrees_with_the_reference_on_every_digit(
    case: Case, digits: DigitsDataset, logits: Any
) -> None:
    with case.open() as backend:
        found = np.asarray(backend.infer(digits.batch(range(500))))
    assert found.dtype == np.float32
    assert found.shape == (500, 10)
    assert np.abs(found - logits).max() < 1e-4
    assert found.argmax(axis=1).tolist() == logits.argmax(axis=1).tolist()


@each_case
def test_batches_of_every_size_are_answered_in_their_order(
    case: Case, digits: DigitsDataset, logits: Any
) -> None:
    order = np.random.default_rng(1).permutation(500)
    with case.open() as backend:
        for size in (1, 64, 2, 7, 63, 1, 31):
            indices = order[:size].tolist()
            found = np.asarray(backend.infer(digits.batch(indices)))
            assert found.shape == (size, 10)
            assert np.abs(found - logits[indices]).max() < 1e-4


@each_case
def test_an_answer_stays_when_the_next_one_is_given(
    case: Case, digits: DigitsDataset, logits: Any
) -> None:
    with case.open() as backend:
        first = np.asarray(backend.infer(digits.batch([0, 1])))
        backend.infer(digits.batch([2, 3]))
        assert np.abs(first - logits[:2]).max() < 1e-4


@each_case
def test_the_input_is_only_read(case: Case, digits: DigitsDataset, logits: Any) -> None:
    """The rows of a dataset may be in a memory-mapped, read-only file."""
    rows = digits.batch(range(8)).inputs["image"].copy()
    before = rows.copy()
    with case.open() as backend:
        backend.infer(Batch(8, {"image": rows}))
        assert rows.tolist() == before.tolist()
        rows.flags.writeable = False
        found = np.asarray(backend.infer(Batch(8, {"image": rows})))
    assert np.abs(found - logits[:8]).max() < 1e-4


@each_case
def test_instances_answer_in_threads_of_their_own_at_the_same_time(
    case: Case, digits: DigitsDataset, logits: Any
) -> None:
    worst: list[float] = []
    start = threading.Barrier(INSTANCES)

    def answer(backend: Any, seed: int) -> None:
        order = np.random.default_rng(seed).permutation(500)
        start.wait()
        for first in range(0, 500, 10):
            indices = order[first : first + 10].tolist()
            found = np.asarray(backend.infer(digits.batch(indices)))
            worst.append(float(np.abs(found - logits[indices]).max()))

    with case.open() as one, case.open() as other:
        threads = [
            threading.Thread(target=answer, args=(backend, seed))
            for seed, backend in enumerate((one, other))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(worst) == 50 * INSTANCES
    assert max(worst) < 1e-4


@each_case
def test_backend_can_be_left_and_entered_again(
    case: Case, digits: DigitsDataset, logits: Any
) -> None:
    backend = case.open()
    for index in (3, 4):
        with backend:
            found = np.asarray(backend.infer(digits.batch([index])))
        assert np.abs(found - logits[[index]]).max() < 1e-4


@each_backend
def test_backend_can_be_opened_again_with_a_different_number_of_threads(
    case: Case, digits: DigitsDataset, logits: Any
) -> None:
    """The warm-up of a stream also tries fewer threads, with one instance after another."""
    if case.backend in (*registry.WITH_FIXED_THREADS, *registry.OF_ONE_THREAD):
        pytest.skip("its number of threads is fixed")
    for threads in (1, 2, 1, 2):
        with case.open(threads=threads, instances=1) as backend:
            found = np.asarray(backend.infer(digits.batch([threads])))
            assert backend.describe()["threads"] == threads
        assert np.abs(found - logits[[threads]]).max() < 1e-4


@each_case
def test_backend_describes_itself_and_its_tensors(case: Case) -> None:
    with case.open() as backend:
        about = backend.describe()
        (image,) = backend.signature()
        outputs = backend.outputs()
    assert {"framework", "device", "precision", "threads", "math_library"} <= set(about)
    assert about["precision"] == "float32"
    assert about["threads"] == 1
    assert any(c.isdigit() for c in about["framework"]), "the version"
    assert (image.name, image.dtype, image.shape[1:]) == ("image", "float32", (1, 8, 8))
    assert not isinstance(image.shape[0], int)
    assert outputs == (() if case.backend in NAMELESS else ("logits",))


@pytest.mark.parametrize(
    "case",
    params(
        tuple(
            Case(backend, form, {"precision": option})
            for backend, form in (
                ("openvino", "onnx"),
                ("torch", "torchscript"),
                ("ncnn", "ncnn"),
                ("mnn", "mnn"),
                ("tract", "onnx"),
            )
            for option in ("f32", "bf16", "f16")
            if (backend, option) != ("tract", "bf16")
        )
    ),
)
def test_each_available_precision_is_reported_by_its_numpy_name(case: Case) -> None:
    try:
        with case.open() as backend:
            told = backend.describe()["precision"]
    except ConfigError as e:
        pytest.skip(str(e))
    assert told == number_type(case.options["precision"])
    assert told in BITS


@each_case
def test_description_distinguishes_compiled_from_eager(case: Case) -> None:
    with case.open() as backend:
        told = backend.describe().get("compile")
    wanted = {
        ("tensorflow", "savedmodel", None): "tf.function",
        ("tensorflow", "keras", None): "tf.function",
        ("tensorflow", "keras", "off"): "eager",
        ("torch", "torchscript", None): "none",
        ("torch", "torchscript", "on"): "TorchScript",
    }
    assert told == wanted.get((case.backend, case.format, case.options.get("compile")))


def _refusal(case: Case, **more: Any) -> str:
    with pytest.raises(ConfigError) as caught, case.open(**more):
        pass
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    return str(caught.value)


@each_backend
@pytest.mark.parametrize("content", [b"", b"not a model", b"\x00" * 1000, "cut"])
def test_a_corrupt_file_is_reported_in_one_line(
    case: Case, content: bytes | str, tmp_path: Path
) -> None:
    good = case.model.path((case.format,))
    assert good is not None
    names = {"openvino": "bad.xml", "onnx": "bad.onnx", "ncnn": "bad.param"}
    in_folder = next((p for end in ("xml", "param") for p in good.glob(f"*.{end}")), None)
    name = names.get(case.format, good.name)
    path = tmp_path / (name if good.is_file() or in_folder else "saved_model.pb")
    whole = good if good.is_file() else in_folder or good / "saved_model.pb"
    path.write_bytes(whole.read_bytes()[:5000] if isinstance(content, str) else content)
    model = tmp_path if path.name == "saved_model.pb" else path
    assert _refusal(case, model=model).startswith(str(model))


@each_backend
def test_an_absent_file_is_reported_in_one_line(case: Case, tmp_path: Path) -> None:
    good = case.model.path((case.format,))
    assert good is not None
    path = tmp_path / good.name
    told = _refusal(case, model=path)
    assert told.startswith((f"{path}: ", f"{path} cannot be read: "))


@each_backend
def test_unknown_option_or_provider_is_refused(case: Case) -> None:
    options = {**case.options, "nosuch": "1"}
    told = _refusal(case, options=options)
    begin = f"backend {case.backend!r} has no option 'nosuch': "
    assert told.startswith((f"{begin}choose from ", f"{begin}it has no options"))
    if case.backend != "ort":
        assert _refusal(case, provider="X") == (
            f"backend {case.backend!r} has no providers: drop --provider X"
        )
        assert _refusal(case, provider_options={"a": "1"}) == (
            f"backend {case.backend!r} has no providers: drop --provider-option"
        )


@each_backend
def test_missing_device_is_refused(case: Case) -> None:
    said = _refusal(case, device="cuda")
    if case.backend in ("litert", "openvino", "ncnn", "mnn", "tract", *UNNAMED):
        assert said == f"backend {case.backend!r} does not support --device cuda: choose from cpu"
    else:
        assert said.startswith("--device cuda: ")


_COUNT_THREADS = """
import sys, threading
from pathlib import Path
import numpy as np
from harness.core import registry
from harness.models.manifest.lookup import load_model
from harness.types import BackendSetup, Batch

name, format, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
model = load_model(sys.argv[4])
rows = np.ones((500, 1, 8, 8), np.float32)
setup = BackendSetup(
    model=model.path((format,)), model_name="digits", inputs=model.inputs, threads=threads,
    max_batch=500,
)

def work():
    for _ in range(5):
        backend.infer(Batch(500, {"image": rows}))
    print("tasks", len(list(Path("/proc/self/task").iterdir())))

with registry.load("backend", name)(setup) as backend:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    print("told", backend.describe()["threads"])
"""


def _threads(case: Case, threads: int) -> dict[str, int]:
    command = [sys.executable, "-W", "ignore", "-c", _COUNT_THREADS]
    command += [case.backend, case.format, str(threads), case.model.name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    words = done.stdout.split()
    return {words[n]: int(words[n + 1]) for n in range(0, len(words), 2)}


@each_backend
def test_requested_number_of_threads_is_used(case: Case) -> None:
    """Runs in separate processes, because TensorFlow fixes its thread counts and PyTorch has one count per process."""
    one, two = _threads(case, 1), _threads(case, 2)
    if case.backend in registry.OF_ONE_THREAD:
        assert (one["told"], two["told"], two["tasks"]) == (1, 1, one["tasks"])
        return
    assert (one["told"], two["told"]) == (1, 2)
    # ncnn adds two threads, because ncnn also loads in parallel, and OpenMP creates threads for each caller.
    assert two["tasks"] - one["tasks"] == (2 if case.backend == "ncnn" else 1)


@pytest.mark.parametrize("case", params((Case("tensorflow", "savedmodel"),)))
def test_change_of_threads_after_their_start_is_refused(case: Case, digits: DigitsDataset) -> None:
    with case.open() as backend:
        backend.infer(digits.batch([0]))
        assert _refusal(case, threads=3) == (
            "--threads 3 --instances 2: TensorFlow already started with 1 and 2 in this process: "
            "use a new process"
        )


def _sequence_onnx(folder: Path) -> Path:
    """Writes ids (n, length) int64 -> ids + 1 with the same length, and their sum as one number."""
    from onnx import helper

    from tests.builders.models.odd_files import INT64, value, write

    nodes = [
        helper.make_node("Add", ["ids", "one"], ["next"]),
        helper.make_node("ReduceSum", ["ids", "axis"], ["total"], keepdims=0),
    ]
    ids, following = (value(name, ["n", "length"], INT64) for name in ("ids", "next"))
    weights = {"one": np.int64(1), "axis": np.array([1])}
    ends = [following, value("total", ["n"], INT64)]
    return write(folder / "sequence.onnx", nodes, [ids], ends, weights)


_SEQUENCE = """
import sys, tensorflow as tf
spec = tf.TensorSpec((None, None), tf.int64, name="ids")
function = tf.function(
    lambda ids: {"next": ids + 1, "total": tf.reduce_sum(ids, axis=1)}, input_signature=[spec]
)
module = tf.Module()
module.function = function
concrete = function.get_concrete_function()
if sys.argv[1].endswith(".tflite"):
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], module)
    open(sys.argv[1], "wb").write(converter.convert())
else:
    tf.saved_model.save(module, sys.argv[1], signatures={"serving_default": concrete})
"""


def _sequence_by_tensorflow(path: Path) -> Path:
    """Runs in a separate process, because TensorFlow's thread counts would remain."""
    pytest.importorskip("tensorflow", reason="TensorFlow writes the model")
    subprocess.run([sys.executable, "-W", "ignore", "-c", _SEQUENCE, path], check=True)
    return path


def _sequence_torch(folder: Path) -> Path:
    torch: Any = pytest.importorskip("torch")

    class Sequence(torch.nn.Module):  # type: ignore[misc] # torch may not be installed
        def forward(self, ids: Any) -> dict[str, Any]:
            return {"next": ids + 1, "total": ids.sum(1)}

    free = {0: torch.export.Dim("n", min=1, max=99), 1: torch.export.Dim("length", min=1, max=99)}
    example = (torch.zeros(2, 3, dtype=torch.int64),)
    exported = torch.export.export(Sequence(), example, dynamic_shapes=(free,))
    torch.export.save(exported, folder / "sequence.pt2")
    return folder / "sequence.pt2"


@pytest.mark.parametrize(
    "case",
    params(
        (
            Case("ort", "onnx"),
            Case("ort", "onnx", {"io_binding": "on"}),
            Case("openvino", "onnx"),
            Case("tract", "onnx"),
            Case("tensorflow", "savedmodel"),
            Case("litert", "tflite"),
            Case("torch", "torchscript"),
        )
    ),
)
def test_sequences_of_any_length_are_answered_in_their_own_type(case: Case, tmp_path: Path) -> None:
    """Ragged inputs are padded to the longest input of their batch, so the length differs between batches."""
    if case.format == "onnx":
        path = _sequence_onnx(tmp_path)
    elif case.backend == "torch":
        path = _sequence_torch(tmp_path)
    else:
        name = "sequence.tflite" if case.format == "tflite" else "sequence"
        path = _sequence_by_tensorflow(tmp_path / name)
    random = np.random.default_rng(0)
    with case.open(model=path, inputs=()) as backend:
        (spec,) = backend.signature()
        assert (spec.dtype, len(spec.shape)) == ("int64", 2)
        assert not any(isinstance(size, int) for size in spec.shape)
        for count, length in ((1, 5), (3, 2), (3, 9), (1, 1), (8, 9), (2, 5)):
            ids = random.integers(0, 99, (count, length))
            found = backend.infer(Batch(count, {spec.name: ids}))
            assert {name: str(rows.dtype) for name, rows in found.items()} == {
                "next": "int64",
                "total": "int64",
            }
            assert found["next"].tolist() == (ids + 1).tolist()
            assert found["total"].tolist() == ids.sum(axis=1).tolist()


@pytest.mark.parametrize(
    "case", params((Case("ort", "onnx"), Case("openvino", "onnx"), Case("tract", "onnx")))
)
def test_weights_in_another_file_are_read(case: Case, digits: DigitsDataset, logits: Any, tmp_path: Path) -> None:  # fmt: skip
    import onnx

    path = tmp_path / "digits.onnx"
    whole = onnx.load(MODEL.path(("onnx",)))
    onnx.save(whole, path, save_as_external_data=True, location="w.data", size_threshold=64)
    with case.open(model=path) as backend:
        found = np.asarray(backend.infer(digits.batch(range(8))))
    assert np.abs(found - logits[:8]).max() < 1e-4


@pytest.mark.parametrize("case", params((Case("tensorflow", "keras"),)))
def test_file_that_is_not_a_keras_archive_is_reported_as_such(case: Case, tmp_path: Path) -> None:
    """Keras itself reports that the file does not exist."""
    path = tmp_path / "bad.keras"
    path.write_bytes(b"not a model")
    assert _refusal(case, model=path) == (f"{path}: not a Keras file: expected a zip archive")


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes x (4, 3) float32 -> y = 2x as ONNX."""
    from onnx import helper

    from tests.builders.models.odd_files import value, write

    path = tmp_path_factory.mktemp("fixed") / "fixed.onnx"
    node = helper.make_node("Mul", ["x", "two"], ["y"])
    x, y = (value(name, [4, 3]) for name in "xy")
    return write(path, [node], [x], [y], {"two": np.float32(2)})


def _fixed_tflite(folder: Path) -> Path:
    """Writes the model as LiteRT, in a separate process so that TensorFlow's thread counts do not remain."""
    path = folder / "fixed.tflite"
    code = (
        "import sys, tensorflow as tf\n"
        "double = tf.function(lambda x: {'y': 2.0 * x},"
        " input_signature=[tf.TensorSpec((4, 3), name='x')])\n"
        "module = tf.Module()\n"
        "converter = tf.lite.TFLiteConverter.from_concrete_functions("
        "[double.get_concrete_function()], module)\n"
        "open(sys.argv[1], 'wb').write(converter.convert())\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, path], check=True)
    return path


@pytest.mark.parametrize(
    "case",
    params(
        (
            Case("ort", "onnx"),
            Case("openvino", "onnx"),
            Case("tract", "onnx"),
            Case("litert", "tflite"),
            Case("mnn", "mnn"),
        )
    ),
)
def test_a_batch_that_the_file_fixes_is_filled_up(case: Case, fixed: Path, tmp_path: Path) -> None:
    if case.backend == "litert":
        pytest.importorskip("tensorflow", reason="TensorFlow converts the model")
        fixed = _fixed_tflite(tmp_path)
    elif case.backend == "mnn":
        fixed = mnn_file(fixed, tmp_path / "fixed.mnn")
    with case.open(model=fixed, inputs=()) as backend:
        (spec,) = backend.signature()
        assert spec.shape == (4, 3)
        for count in (1, 3, 4):
            rows = np.arange(3 * count, dtype=np.float32).reshape(count, 3)
            found = np.asarray(backend.infer(Batch(count, {spec.name: rows})))
            assert found.tolist() == (2 * rows).tolist()


@pytest.mark.parametrize(
    "case", params(tuple(case for case in CASES if case.backend not in UNNAMED))
)
def test_a_file_may_have_names_of_its_own(case: Case, digits: DigitsDataset, logits: Any) -> None:
    (image,) = MODEL.inputs
    names = {"pixels": "image", "scores": "logits"}
    if case.backend in NAMELESS:
        del names["scores"]
    renamed = (image._replace(name="pixels"),)
    rows = digits.batch(range(3)).inputs["image"]
    with case.open(inputs=renamed, names=names) as backend:
        assert [spec.name for spec in backend.signature()] == ["pixels"]
        assert backend.outputs() in (("scores",), ())
        found = np.asarray(backend.infer(Batch(3, {"pixels": rows})))
    assert np.abs(found - logits[:3]).max() < 1e-4
    with (
        pytest.raises(ConfigError, match="PIXELS"),
        case.open(inputs=renamed, names={"pixels": "PIXELS"}),
    ):
        pass


@pytest.mark.parametrize("case", params(tuple(c for c in CASES if c.backend in UNNAMED)))
def test_file_without_names_takes_the_manifest_inputs_as_they_are(
    case: Case, digits: DigitsDataset, logits: Any
) -> None:
    (image,) = case.model.inputs
    renamed = (image._replace(name="pixels"),)
    rows = digits.batch(range(3)).inputs["image"]
    with case.open(inputs=renamed) as backend:
        assert [spec.name for spec in backend.signature()] == ["pixels"]
        found = np.asarray(backend.infer(Batch(3, {"pixels": rows})))
    assert np.abs(found - logits[:3]).max() < 1e-4
    assert "drop this file's `names`" in _refusal(case, inputs=renamed, names={"pixels": "image"})
