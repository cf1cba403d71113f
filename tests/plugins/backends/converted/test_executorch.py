"""The backend executorch on programs that the tests make with torch.export and ExecuTorch's XNNPACK partitioner."""

import json
import re
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.cli.main import main
from harness.core import registry
from harness.core.config.run_config import RunConfig
from harness.errors import ConfigError, PluginUnavailable
from harness.loadgen.plan import InstanceGroup
from harness.models.manifest.lookup import load_model
from harness.models.opened.loading import open_backends
from harness.types import BackendSetup, Batch, TensorSpec
from tests.builders.refusals import refusal

ROOT = Path(__file__).parents[4]
DIGITS = ROOT / "harness/models/shipped/digits.pte"

torch: Any = pytest.importorskip("torch")
pytest.importorskip("executorch.runtime")
pytestmark = pytest.mark.slow


def convert(
    path: Path,
    module: Any,
    example: tuple[Any, ...],
    shapes: Any = None,
    *,
    by_xnnpack: bool = True,
) -> Path:
    # ExecuTorch's exporter causes the warnings that are ignored here.
    with warnings.catch_warnings(action="ignore"):
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir import to_edge_transform_and_lower

        program = torch.export.export(module.eval(), example, dynamic_shapes=shapes)
        partitioners = [XnnpackPartitioner()] if by_xnnpack else []
        lowered = to_edge_transform_and_lower(program, partitioner=partitioners)
        path.write_bytes(lowered.to_executorch().buffer)
    return path


def opened(path: Path, **more: Any) -> Any:
    setup = BackendSetup(model=path, model_name="program", **{"max_batch": 1, **more})
    return registry.load("backend", "executorch")(setup)


def network() -> Any:
    torch.manual_seed(0)
    nn = torch.nn
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5)).eval()


def images(count: int) -> Any:
    return np.random.default_rng(count).standard_normal((count, 3, 8, 8), np.float32)


def expected(module: Any, rows: Any) -> Any:
    with torch.inference_mode():
        return module(torch.from_numpy(rows)).numpy()


def test_a_converted_network_answers_as_pytorch_does(tmp_path: Path) -> None:
    batch = torch.export.Dim("batch", min=1, max=32)
    module = network()
    example = (torch.zeros(32, 3, 8, 8),)
    path = convert(tmp_path / "net.pte", module, example, ({0: batch},))
    with opened(path, max_batch=32) as backend:
        assert backend.signature() == (TensorSpec("input_0", "float32", (None, 3, 8, 8)),)
        assert backend.outputs() == ()
        for count in (1, 32, 5):
            rows = images(count)
            found = backend.infer(Batch(count, {"input_0": rows}))
            assert np.abs(found - expected(module, rows)).max() < 1e-4
        about = backend.describe()
    assert about["precision"] == "float32"
    assert about["delegates"] == "XnnpackBackend"
    assert "at most 32 samples at once, but batches may have 33: add --max-batch 32" in refusal(
        opened(path, max_batch=33).__enter__
    )


def test_weights_inside_of_xnnpack_are_read_from_the_file(tmp_path: Path) -> None:
    path = convert(tmp_path / "net.pte", network(), (torch.zeros(1, 3, 8, 8),))
    with opened(path) as backend:
        sizes = sorted(np.prod(shape) for shape, _ in backend.network(None).weights)
    assert {5, 8, 3 * 8 * 9, 5 * 8 * 36} <= set(sizes)


def test_a_batch_that_the_program_fixes_is_filled_up(tmp_path: Path) -> None:
    module = network()
    path = convert(tmp_path / "net.pte", module, (torch.zeros(4, 3, 8, 8),))
    with opened(path, max_batch=4) as backend:
        assert backend.signature()[0].shape == (4, 3, 8, 8)
        for count in (1, 3, 4):
            rows = images(count)
            found = backend.infer(Batch(count, {"input_0": rows}))
            assert np.abs(found - expected(module, rows)).max() < 1e-4


class Sequence(torch.nn.Module if isinstance(torch.nn.Module, type) else object):  # type: ignore[misc]
    def forward(self, ids: Any) -> dict[str, Any]:
        return {"next": ids + 1, "total": ids.sum(1)}


def sequence(folder: Path) -> Path:
    free = {0: torch.export.Dim("n", min=1, max=32), 1: torch.export.Dim("length", min=1, max=64)}
    example = (torch.zeros(32, 64, dtype=torch.int64),)
    return convert(folder / "sequence.pte", Sequence(), example, (free,), by_xnnpack=False)


def test_keys_of_a_dict_name_the_outputs_of_any_length(tmp_path: Path) -> None:
    declared = (TensorSpec("ids", "int64", ("batch", "length")),)
    random = np.random.default_rng(0)
    with opened(sequence(tmp_path), inputs=declared, max_batch=32) as backend:
        assert backend.signature() == (TensorSpec("ids", "int64", (None, "length")),)
        assert backend.outputs() == ("next", "total")
        assert backend.describe()["delegates"] == "none"
        for count, length in ((1, 5), (3, 2), (32, 64), (1, 1)):
            ids = random.integers(0, 99, (count, length))
            found: Mapping[str, Any] = backend.infer(Batch(count, {"ids": ids}))
            assert found["next"].tolist() == (ids + 1).tolist()
            assert found["total"].tolist() == ids.sum(axis=1).tolist()
        with pytest.raises(PluginUnavailable, match="ExecuTorch cannot answer 1 sample at once"):
            backend.infer(Batch(1, {"ids": np.zeros((1, 32 * 64 + 1), np.int64)}))


def test_several_outputs_have_numbers(tmp_path: Path) -> None:
    class Two(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x + 1, x * 2

    path = convert(tmp_path / "two.pte", Two(), (torch.zeros(1, 3),))
    with opened(path) as backend:
        assert backend.outputs() == ("output_0", "output_1")
        found = backend.infer(Batch(1, {"input_0": np.ones((1, 3), np.float32)}))
    assert [rows.tolist() for rows in found.values()] == [[[2, 2, 2]], [[2, 2, 2]]]


def test_wrong_number_of_inputs_is_refused(tmp_path: Path) -> None:
    spec = TensorSpec("a", "int64", (None, "length"))
    said = refusal(opened(sequence(tmp_path), inputs=(spec, spec._replace(name="b"))).__enter__)
    assert "the manifest has 2 inputs" in said


def test_absent_operator_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from executorch.runtime import Runtime

    class Bare:
        operator_names = Runtime.get().operator_registry.operator_names - {"aten::sum.IntList_out"}

    path = sequence(tmp_path)
    monkeypatch.setattr(Runtime.get(), "operator_registry", Bare())
    assert refusal(opened(path).__enter__).startswith(
        f"{path} needs aten::sum.IntList_out, which the installed package executorch lacks: "
    )


def test_loaded_program_keeps_its_number_of_threads(tmp_path: Path) -> None:
    """The thread pool belongs to the process, and a new pool would leave the program with a pointer to the old pool."""
    path = convert(tmp_path / "net.pte", network(), (torch.zeros(1, 3, 8, 8),))
    with opened(path, threads=1) as backend:
        other = opened(path, threads=2)
        said = refusal(other.__enter__)
        assert "one thread pool per process" in said
        assert said.endswith("add --backend-option processes=on")
        assert backend.describe()["threads"] == 1
        backend.infer(Batch(1, {"input_0": images(1)}))
    with opened(path, threads=2) as backend:
        assert backend.describe()["threads"] == 2


def test_a_refused_program_leaves_the_pool(tmp_path: Path) -> None:
    for threads in (1, 2):
        path = tmp_path / "cut.pte"
        path.write_bytes(DIGITS.read_bytes()[:-1000])
        with pytest.raises(ConfigError):
            opened(path, threads=threads).__enter__()
        with opened(DIGITS, threads=threads) as backend:
            assert backend.describe()["threads"] == threads


@pytest.mark.parametrize(
    ("instances", "options", "in_process"),
    [
        (1, {}, False),
        (2, {}, True),
        (2, {"processes": "off"}, False),
        (1, {"processes": "on"}, True),
    ],
)
def test_several_instances_run_in_processes_because_of_the_gil(
    instances: int, options: dict[str, str], in_process: bool
) -> None:
    from contextlib import ExitStack

    config = RunConfig(
        scenario="offline", backend="executorch", backend_option=tuple(options.items())
    )
    model = load_model("digits")
    with ExitStack() as stack:
        backends = open_backends(config, model, DIGITS, InstanceGroup(instances, 1, 8), stack)
        assert ["process" in backend.describe() for backend in backends] == [in_process] * instances


def test_profile_lists_the_operators_of_xnnpack(tmp_path: Path) -> None:
    out = tmp_path / "profile"
    words = ["profile", "--backend", "executorch", "--model", "digits", "--out", str(out)]
    assert main([*words, "--quiet"]) == 0
    content = json.loads((out / "profile.json").read_text())
    kernels = content["layer"]["profile"]["kernels"]
    names = " ".join(kernel["op_type"] for kernel in kernels)
    assert "Convolution" in names
    assert "Fully Connected" in names
    assert all(min(kernel["duration_ns"]) >= 0 for kernel in kernels)


_READ_DAMAGED = """
import sys
import numpy as np
from pathlib import Path
from harness.core import registry
from harness.errors import HarnessError
from harness.types import BackendSetup, Batch

source, folder, rounds = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
whole = source.read_bytes()
random = np.random.default_rng(2)
refused = read = 0
for round in range(rounds):
    content = bytearray(whole)
    if round % 2:
        del content[random.integers(len(content)):]
    else:
        content[random.integers(64)] ^= 1 << random.integers(8)
    path = folder / "damaged.pte"
    path.write_bytes(content)
    setup = BackendSetup(model=path, model_name="m")
    try:
        with registry.load("backend", "executorch")(setup) as backend:
            backend.describe()
        read += 1
    except HarnessError as e:
        assert chr(10) not in str(e), e
        refused += 1
print(refused, read)
"""


def test_damaged_programs_are_read_without_a_crash(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        _READ_DAMAGED,
        str(DIGITS),
        str(tmp_path),
        "200",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    refused, _ = map(int, re.findall(r"\d+", done.stdout.splitlines()[-1]))
    assert refused >= 100
