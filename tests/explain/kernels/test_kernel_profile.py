"""The layer level from a backend's own profiler: kernels, nodes, named overhead, and quantities that the profiler does
not report.
"""

import json
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.explain.kernels import framework
from harness.explain.kernels import layers as ly
from harness.explain.kernels.kernels import LayerProfile, Times
from harness.explain.profile.measure.layer_level import Unprofiled, layer_level
from harness.explain.profile.tables.layer_tables import LayerLevel, Profiled, layer_tables
from harness.explain.profile.tables.trace import spans_of
from harness.models.made.onnx_light import LIGHT, make
from harness.profiler import Executed, ExecutedKernel, HasProfiler, Tensor, WiredNode, Wiring
from harness.types import BackendSetup, Batch

ROOT = Path(__file__).parents[3]


def node(name: str, op: str, takes: str, makes: str) -> WiredNode:
    return WiredNode(name, op, "", tuple(takes.split()), (makes,))


FILE = Wiring(
    [
        node("c", "Conv", "x w", "a"),
        node("r", "Relu", "a", "b"),
        node("f", "Flatten", "b", "d"),
        node("s", "Softmax", "d", "y"),
    ],
    ("x",),
    ("y",),
    frozenset({"w"}),
)
MEANS = Executed(
    runtime="some 1.0",
    kernels=[
        ExecutedKernel(node=node("conv", "Convolution", "x w", "b"), duration_ns=(600,)),
        ExecutedKernel(node=node("order", "Reorder", "b", "b#"), inserted=True, duration_ns=(100,)),
        ExecutedKernel(node=node("flat", "Reshape", "b#", "d")),
        ExecutedKernel(node=node("soft", "Softmax", "d", "y"), duration_ns=(200,)),
    ],
    inputs=("x",),
    outputs=("y",),
    constants=frozenset({"w"}),
    tensors={"x": Tensor("float32", (2, 4)), "w": Tensor("bfloat16", (4, 4))},
    file=FILE,
    run_start_ns=(),
    run_ns=(950, 950, 950, 950, 1450),
    without_time="nothing was counted",
    absent={"start": "it is not told", "allocated": "nor is that", "spread": "means only"},
)
PLAIN = Times(start_ns=(0,) * 5, wall_ns=(900,) * 5, cpu_ns=(900,) * 5)
PROFILED = replace(PLAIN, wall_ns=(1000, 1000, 1000, 1000, 1500))
BY_CALL = replace(
    MEANS,
    kernels=[
        replace(
            kernel,
            start_ns=tuple(10_000 * call + 100 * i for call in range(5)),
            duration_ns=kernel.duration_ns * 4 + (9_999,),
            allocated_bytes=8,
        )
        for i, kernel in enumerate(k for k in MEANS.kernels if k.duration_ns)
    ],
    run_start_ns=tuple(10_000 * call for call in range(5)),
    run_ns=(950, 950, 950, 950, 40_000),
    absent={},
)


def found(executed: Executed) -> LayerProfile:
    profile = framework.of_executed(executed, FILE, (PLAIN, PROFILED))
    stored = json.loads(json.dumps(profile.to_json()))
    assert LayerLevel.from_json({"profile": stored, "nodes": []}).profile == profile
    return profile


def content(profile: LayerProfile) -> dict[str, Any]:
    nodes = [ly.NodeCost(n.name, n.op_type, "", None, None, 0)._asdict() for n in FILE.nodes]
    layer = {"profile": profile.to_json(), "nodes": nodes, "no_costs": "it is no ONNX file"}
    return {"batch": 2, "layer": layer, "peaks": {"missing": "no module"}}


def rows(made: dict[str, Any], key: str) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = made[key].to_json()["rows"]
    return listed


def test_nodes_of_kernels_without_time_have_a_reason() -> None:
    profile = found(MEANS)
    assert [(k.name, k.nodes, k.inserted) for k in profile.kernels] == [
        ("conv", (0, 1), False),
        ("order", (2,), True),
        ("soft", (3,), False),
    ]
    assert profile.eliminated == {}
    assert (profile.kernels[0].activation_bytes, profile.kernels[0].parameter_bytes) == (32, 32)
    without = replace(MEANS, kernels=[k for k in MEANS.kernels if not k.inserted])
    without.kernels[1:2] = [ExecutedKernel(node=node("flat", "Reshape", "b", "d"))]  # type: ignore[index]
    assert found(without).eliminated == {2: "nothing was counted"}


def test_layers_of_ort_on_a_gpu_are_not_measured_on_the_cpu() -> None:
    config = SimpleNamespace(backend="ort", device="cuda:1")
    subject: Any = SimpleNamespace(path=Path("model.onnx"), config=config, spec=None)
    with pytest.raises(Unprofiled, match=r"^on a GPU, ONNX Runtime's profiler times the launches"):
        layer_level(subject, 1, 1)


def test_copies_between_host_and_gpu_are_a_note_of_their_own() -> None:
    copies = {"to the GPU": (9_000, 11_000, 12_000), "from the GPU": (2_000, 2_000, 3_000)}
    made = {t.key: t for t in layer_tables(Profiled(content(found(replace(MEANS, copies=copies)))))}
    assert (
        "copies to the GPU took 11.0 us per call, in addition to the kernels"
        in made["layers"].notes
    )
    assert (
        "copies from the GPU took 2.00 us per call, in addition to the kernels"
        in made["layers"].notes
    )


def test_means_are_not_trimmed_and_add_up_to_the_mean_call() -> None:
    parts = ly.overhead(found(MEANS))
    assert parts.call_ns == 1100
    assert parts.kernels_ns == 900
    assert parts.named_ns == {"runtime, between kernels": 150, "call from Python": 50}
    assert [layer.spread_ns for layer in ly.layers_of(found(MEANS), ())] == [None] * 3


def test_times_per_call_are_trimmed_by_the_whole_call() -> None:
    profile = found(BY_CALL)
    parts = ly.overhead(profile)
    assert (parts.call_ns, parts.kernels_ns) == (1000, 900)
    assert profile.kernels[1].start_ns == (100,) * 5


def test_values_a_framework_does_not_report_are_absent_with_a_reason() -> None:
    made = {table.key: table for table in layer_tables(Profiled(content(found(MEANS))))}
    for key, gone in (("layers", "spread_ns"), ("types", "of_memory_share")):
        assert gone not in rows(made, key)[0]
        assert (
            gone
            in rows({t.key: t for t in layer_tables(Profiled(content(found(BY_CALL))))}, key)[0]
        )
    assert "no allocated: nor is that" in made["layers"].notes
    assert "no roofline: no module" in made["kernels"].notes
    assert made["whole"].notes == ["no FLOPs: it is no ONNX file"]
    assert [row["of"] for row in rows(made, "thirds")] == ["latency", "traffic"]


def test_without_start_times_one_mean_call_is_drawn() -> None:
    call, *kernels = spans_of(Profiled(content(found(MEANS))))
    assert (call.level, call.duration_ns) == ("model", 1100)
    assert {span.parent for span in kernels} == {call.id}
    assert [span.start_ns for span in kernels] == [0, 600, 700]
    drawn = spans_of(Profiled(content(found(BY_CALL))))
    assert [span.level for span in drawn].count("layer") == 3 * 5


def profiled(backend: str, out: Path, *options: str) -> Path:
    """Profiles the layers of the digits model, in a separate process because frameworks keep their settings."""
    command = [sys.executable, "-m", "harness", "profile", "--backend", backend, "--quiet"]
    command += ["--levels", "layer", "--runs", "5", "--threads", "1", "--no-report"]
    for option in options:
        command += ["--backend-option", option]
    command += ["--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def tables(folder: Path) -> dict[str, list[dict[str, Any]]]:
    stored = json.loads((folder / "tables.json").read_text())
    return {key: table["rows"] for key, table in stored.items()}


def is_accounted(made: dict[str, list[dict[str, Any]]]) -> bool:
    """Returns whether each node has a kernel or a reason, kernels and named overhead add up to the call's time, and no
    time is negative.
    """
    parts = {row["part"]: row["time_ns"] for row in made["accounted"]}
    own = [ns for part, ns in parts.items() if part[0] != "=" and part != "less the profiler"]
    return (
        all(row["kernels"] or row["eliminated"] for row in made["nodes"])
        and all(row["latency_ns"] > 0 for row in made["layers"])
        and min(own) >= 0
        and sum(own) == pytest.approx(parts["= the profiled call"])
    )


def needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(module) is None, reason=f"{module} is not installed")


@pytest.mark.slow
@needs("openvino")
def test_openvino_kernels_of_digits_are_accounted_for(tmp_path: Path) -> None:
    of_onnx = tables(profiled("openvino", tmp_path / "onnx", "format=onnx"))
    of_ir = tables(profiled("openvino", tmp_path / "ir"))
    assert is_accounted(of_onnx)
    assert is_accounted(of_ir)
    assert {row["type"] for row in of_onnx["layers"]} >= {"Convolution", "FullyConnected"}
    assert [row["type"] for row in of_onnx["nodes"]][:2] == ["Conv", "Relu"]
    assert [row["type"] for row in of_ir["nodes"]][:3] == ["Convolution", "Add", "Relu"]
    assert all(row["implementation"] for row in of_onnx["layers"])


@needs("openvino")
def test_openvino_mean_of_last_calls_is_derived_from_two_means() -> None:
    from harness.backends.parts.openvino_kernels import last_mean_ns

    # The four calls take 90, 30, 30 and 30 us; each list entry is the mean of all calls so far.
    means = [{"conv": 90}, {"conv": 60}, {"conv": 50}, {"conv": 45}]
    assert last_mean_ns(means, 3) == {"conv": 30_000}
    assert last_mean_ns(means, 4) == {"conv": 45_000}
    assert last_mean_ns([{"conv": 1}, {"conv": 0}], 1) == {"conv": 0}


def between_kernels(profile: LayerProfile) -> float:
    """Returns the time that the runtime spends between kernels, as a share of the kernels' time."""
    parts = ly.overhead(profile)
    return parts.named_ns["runtime, between kernels"] / parts.kernels_ns


@pytest.mark.slow
@needs("openvino")
@pytest.mark.parametrize("name", ["squeezenet", "shufflenet", "densenet121"])
def test_openvino_kernels_of_the_light_topologies_are_mapped_whole(name: str) -> None:
    from harness.backends.openvino import OpenVinoBackend

    path = make(name)
    batch = Batch(1, {LIGHT[name].input: np.zeros((1, 3, 224, 224), np.float32)})
    with OpenVinoBackend(BackendSetup(model=path, model_name=name)) as backend:
        assert isinstance(backend, HasProfiler)
        profiler = backend.profiler()
        tries = [
            framework.profile(backend, profiler, batch, path, runs=2, warm_up=1) for _ in range(5)
        ]
    made = tries[0]
    own = [i for kernel in made.profile.kernels if not kernel.inserted for i in kernel.nodes]
    assert len(own) == len(set(own)), "no node has two kernels that compute"
    assert all(kernel.nodes for kernel in made.profile.kernels)
    mapped = {i for kernel in made.profile.kernels for i in kernel.nodes}
    assert mapped | made.profile.eliminated.keys() == set(range(len(made.file.nodes)))
    shares = [between_kernels(one.profile) for one in tries]
    # The test uses the share closest to zero, because other programs interrupt some calls, within kernels or between
    # them.
    assert abs(min(shares, key=abs)) <= 0.1


@pytest.mark.slow
@needs("torch")
def test_torch_operators_of_digits_are_accounted_for(tmp_path: Path) -> None:
    made = tables(profiled("torch", tmp_path / "p"))
    assert is_accounted(made)
    types = [row["type"].removeprefix("aten::") for row in made["nodes"]]
    assert types[:4] == ["_convolution", "relu", "_convolution", "relu"]
    assert len(made["layers"]) == len(made["nodes"]) == 11
    assert all(row["shape"] for row in made["layers"])
    assert made["kernels"][-1]["read_bytes"] == 4 * (128 + 128 * 10 + 10)


@pytest.mark.slow
@needs("torch")
def test_torch_operators_of_an_exported_program_are_found(tmp_path: Path) -> None:
    """Runs in a separate process, because frameworks that share a process crash."""
    code = "from tests.explain.kernels.test_kernel_profile import exported; import pathlib, sys; "
    code += "exported(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(tmp_path / "net.pt2")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def exported(path: Path) -> None:
    """Makes the model at `path`, profiles it, and checks the profile."""
    import torch

    from harness.backends.torch import TorchBackend

    class Net(torch.nn.Module):  # type: ignore[misc] # untyped
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(1, 4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            some, others = torch.relu(self.conv(x)).split(2, 1)
            joined: torch.Tensor = torch.cat([others, some], 1).flatten(1)
            return joined

    free = {"x": {0: torch.export.Dim("n", min=1, max=64)}}
    example = torch.zeros(2, 1, 8, 8)
    torch.export.save(torch.export.export(Net().eval(), (example,), dynamic_shapes=free), path)
    setup = BackendSetup(model=path, model_name="net", options={"precision": "bf16"})
    batch = Batch(3, {"x": np.zeros((3, 1, 8, 8), np.float32)})
    with TorchBackend(setup) as backend:
        assert isinstance(backend, HasProfiler)
        made = framework.profile(backend, backend.profiler(), batch, path, runs=2)
    kernels = made.profile.kernels
    operators = ["conv2d", "relu", "split", "cat", "flatten"]
    assert [kernel.op_type.removeprefix("aten::") for kernel in kernels] == operators
    assert [kernel.nodes for kernel in kernels] == [(i,) for i in range(5)]
    assert kernels[0].name == "conv/conv2d"
    assert kernels[3].outputs == (Tensor("bfloat16", (3, 4, 6, 6)),)
    assert kernels[0].parameter_bytes == 2 * (4 * 9 + 4)


@pytest.mark.slow
@needs("torch")
def test_a_compiled_torch_model_has_no_layers_and_a_reason(tmp_path: Path) -> None:
    folder = profiled("torch", tmp_path / "p", "compile=on")
    missing = json.loads((folder / "profile.json").read_text())["missing"]
    assert "drop --backend-option compile=on" in missing["layer"]
    assert "layers" not in tables(folder)


@pytest.mark.slow
@needs("tensorflow")
@pytest.mark.parametrize("kind", ["savedmodel", "keras"])
def test_tensorflow_kernels_of_digits_are_accounted_for(tmp_path: Path, kind: str) -> None:
    made = tables(profiled("tensorflow", tmp_path / "p", f"format={kind}"))
    assert is_accounted(made)
    types = [row["type"] for row in made["nodes"]]
    assert types.count("Conv2D") == types.count("MatMul") == 2
    heavy = {row["type"] for row in made["layers"][:3]}
    assert any("Conv2D" in kind for kind in heavy)
    assert all(row["nodes_of_the_file"] for row in made["layers"])
    shapes = {row["kernel"]: row["shape"] for row in made["layers"]}
    if kind == "keras":
        fused = {row["nodes_of_the_file"] for row in made["layers"]}
        assert {"Conv2D+BiasAdd+Relu", "MatMul+BiasAdd"} <= fused
        assert shapes["digits_1/pool_1/MaxPool2d"] == "1x4x4x32"
    else:  # in this version, the optimiser moves the pooling before the activation
        assert shapes["PartitionedCall/Relu"] == "1x8x8x16"
        assert shapes["PartitionedCall/Relu_1"] == ""


@pytest.mark.slow
@needs("tensorflow")
def test_tensorflow_without_a_graph_has_no_layers_and_a_reason(tmp_path: Path) -> None:
    folder = profiled("tensorflow", tmp_path / "p", "format=keras", "compile=off")
    missing = json.loads((folder / "profile.json").read_text())["missing"]
    assert "drop --backend-option compile=off" in missing["layer"]
