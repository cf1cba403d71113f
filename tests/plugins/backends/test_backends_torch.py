"""Exported programs (.pt2) run, but the backend refuses programs that contain more than computation."""

import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.core import registry
from harness.errors import ConfigError
from harness.types import BackendSetup, Batch, HasBuffers, TensorSpec

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.slow
torch: Any = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exports x (n, 3) -> {"double": 2x, "sum": sums of the rows}."""

    class Module(torch.nn.Module):  # type: ignore[misc] # torch may not be installed
        def forward(self, x: Any) -> dict[str, Any]:
            return {"double": 2 * x, "sum": x.reshape(x.shape[0] * 3).reshape(-1, 3).sum(1)}

    path = tmp_path_factory.mktemp("torch") / "module.pt2"
    rows = torch.export.Dim("rows", min=1, max=1024)
    exported = torch.export.export(Module(), (torch.zeros(2, 3),), dynamic_shapes=({0: rows},))
    torch.export.save(exported, path)
    return path


def opened(path: Path, **options: str) -> Any:
    setup = BackendSetup(model=path, model_name="module", options=options)
    return registry.load("backend", "torch")(setup)


@pytest.mark.parametrize("compiled", ["off", "on"])
def test_an_exported_program_answers_by_name(program: Path, compiled: str) -> None:
    """Runs in a separate process, because Inductor fails if another test has imported certain versions of setuptools."""
    call = (
        "import sys; from tests.plugins.backends.test_backends_torch import check_answers as check"
    )
    command = [sys.executable, "-c", f"{call}; check(*sys.argv[1:])", str(program), compiled]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def check_answers(file: str, compiled: str) -> None:
    program = Path(file)
    with opened(program, compile=compiled) as backend:
        (spec,) = backend.signature()
        assert (spec.name, spec.dtype, spec.shape) == ("x", "float32", (None, 3))
        assert backend.outputs() == ("double", "sum")
        assert backend.describe()["compile"] == {"off": "none", "on": "Inductor"}[compiled]
        for count in (1, 2, 5):
            rows = np.arange(3 * count, dtype=np.float32).reshape(count, 3)
            found = backend.infer(Batch(count, {"x": rows}))
            assert found["double"].tolist() == (2 * rows).tolist()
            assert found["sum"].tolist() == rows.sum(axis=1).tolist()


def _replaced(program: Path, path: Path, found: str, put: str) -> Path:
    """Returns the archive with one text in its graph replaced."""
    with zipfile.ZipFile(program) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith("/models/model.json"):
                content = content.replace(found.encode(), put.encode())
            new.writestr(zipfile.ZipInfo(name), content)
    return path


def _refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught, opened(path):
        pass
    return str(caught.value)


@pytest.mark.parametrize(
    ("found", "put"),
    [
        ("torch.ops.aten.mul.Tensor", "torch.os.system"),
        ("torch.ops.aten.mul.Tensor", "torch.ops.aten.__class__.mro"),
        ("torch.ops.aten.mul.Tensor", "_operator.attrgetter"),
        ("Symbol('s", "__import__('s"),
        ("Symbol('s", "().__class__.s('s"),
        ("Symbol('s", "FloorDiv('touch', 1)+Symbol('s"),
    ],
)
def test_a_program_that_calls_more_than_operators_is_not_loaded(
    program: Path, tmp_path: Path, found: str, put: str
) -> None:
    with zipfile.ZipFile(program) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith("/models/model.json")]
        text = archive.read(name).decode()
    assert found in text
    path = _replaced(program, tmp_path / "bad.pt2", found, put)
    assert _refusal(path).startswith(f"{path} contains ")
    assert "so this file is not loaded" in _refusal(path)


def test_a_script_that_writes_files_is_not_run(tmp_path: Path) -> None:
    made = tmp_path / "made"

    source = (
        "def forward(self, x: Tensor) -> Tensor:\n"
        f"    y = torch.from_file('{made}', True, 8)\n"
        "    return x + y.sum()\n"
    )
    empty = torch.jit.ScriptModule()
    empty.define(source)
    path = tmp_path / "writes.pt"
    empty.save(str(path))
    assert "aten::from_file, which reads or writes files" in _refusal(path)
    assert not made.exists()


def test_a_program_with_a_library_is_not_loaded(program: Path, tmp_path: Path) -> None:
    path = tmp_path / "library.pt2"
    path.write_bytes(program.read_bytes())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("module/data/aotinductor/model/evil.so", b"\x7fELF")
    assert "evil.so" in _refusal(path)


def test_weights_that_are_a_pickle_of_code_are_not_run(program: Path, tmp_path: Path) -> None:
    """torch.export.load falls back to a full unpickling of the sample inputs, whereas our reader does not."""
    made = tmp_path / "made"

    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (made,)

    torch.save((Evil(),), tmp_path / "evil.pt")
    path = tmp_path / "evil.pt2"
    with zipfile.ZipFile(program) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            evil = name.endswith("sample_inputs/model.pt")
            new.writestr(
                zipfile.ZipInfo(name),
                (tmp_path / "evil.pt").read_bytes() if evil else old.read(name),
            )
    assert _refusal(path).startswith(f"{path}: ")
    assert not made.exists()


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04"])
def test_file_that_is_not_an_archive_is_reported_in_one_line(
    content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "bad.pt2"
    path.write_bytes(content)
    assert _refusal(path).startswith(f"{path} is not an archive that torch.export.save wrote: ")


def test_torchscript_without_a_manifest_is_refused_with_advice(tmp_path: Path) -> None:
    path = Path(__file__).parents[3] / "harness" / "models" / "shipped" / "digits.pt"
    assert _refusal(path) == (
        f"{path}: a TorchScript file does not record the shapes of its inputs: name a manifest that "
        "declares image, or export the model as .pt2"
    )


@pytest.mark.parametrize("precision", ["f32", "bf16", "f16"])
def test_torchscript_computes_in_the_requested_precision(precision: str) -> None:
    from harness.models.manifest.lookup import load_model
    from harness.models.manifest.model import MODELS_DIR

    model = load_model("digits")
    setup = BackendSetup(
        model=MODELS_DIR / "digits.pt",
        model_name="digits",
        inputs=model.inputs,
        options={"precision": precision},
    )
    images = np.random.default_rng(0).random((4, 1, 8, 8), np.float32)
    with registry.load("backend", "torch")(setup) as backend:
        found = backend.infer(Batch(4, {"image": images}))
        told = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}[precision]
        assert backend.describe()["precision"] == told
        weights, strides, macs = backend.network(Batch(4, {"image": images}))
        assert sum(np.prod(s) for s, _ in weights if len(s) > 1) == 71_568
        # Float32 is the type stored in the file.
        assert {kind for _, kind in weights} == {"float32"}
        assert (list(strides), macs) == ([(1, 1), (1, 1)], 4 * 370_944)
    assert found.dtype == np.float32
    whole = registry.load("backend", "torch")(
        BackendSetup(model=MODELS_DIR / "digits.pt", model_name="digits", inputs=model.inputs)
    )
    with whole as backend:
        right = backend.infer(Batch(4, {"image": images}))
    apart = np.abs(found - right).max()
    assert apart == 0 if precision == "f32" else 0 < apart < 0.5


def exported(path: Path, more: Any) -> Path:
    """Exports x (2, 3) -> (x, the result of `more` for x)."""

    class Nested(torch.nn.Module):  # type: ignore[misc] # torch may not be installed
        def forward(self, x: Any) -> Any:
            return x, more(x)

    torch.export.save(torch.export.export(Nested(), (torch.ones(2, 3),)), path)
    return path


@pytest.mark.parametrize(
    "more",
    [lambda x: (2 * x, [3 * x]), lambda x: {"a": 2 * x, "b": (3 * x,)}],
    ids=["lists", "dict"],
)
def test_nested_outputs_are_outputs_of_their_own(more: Any, tmp_path: Path) -> None:
    """Bugs: an LSTM's (output, (h, c)) caused "'tuple' object has no attribute 'cpu'", and a dict recursed endlessly."""
    path = exported(tmp_path / "module.pt2", more)
    with opened(path) as backend:
        answer = backend.infer(Batch(2, {"x": np.ones((2, 3), np.float32)}))
    means = {name: float(rows.mean()) for name, rows in answer.items()}
    assert means == {"output_0": 1, "output_1": 2, "output_2": 3}


@pytest.mark.parametrize(("more", "kind"), [(None, "NoneType"), (7, "int")])
def test_output_that_is_not_a_tensor_is_named(more: Any, kind: str, tmp_path: Path) -> None:
    """Bug: the message was "'NoneType' object is not iterable"."""
    path = exported(tmp_path / "module.pt2", lambda _: (more,))
    with (
        opened(path) as backend,
        pytest.raises(ConfigError, match=f"an output is a {kind}: export the model with tensors"),
    ):
        backend.infer(Batch(2, {"x": np.ones((2, 3), np.float32)}))


def test_the_gpus_memory_has_the_manifests_names(program: Path) -> None:
    setup = BackendSetup(
        model=program,
        model_name="module",
        inputs=(TensorSpec("rows", "float32", (None, 3)),),
        names={"rows": "x"},
    )
    with registry.load("backend", "torch")(setup) as backend:
        # The backend has no buffers, because it runs on a CPU.
        assert not isinstance(backend, HasBuffers)
        view = np.zeros((2, 3), np.float32)
        backend._on_gpu = SimpleNamespace(buffers={2: [view]}.get)
        assert backend._buffers(2)["rows"] is view
        assert backend._buffers(3) is None
        backend._fixed = 4
        assert backend._buffers(2) is None
