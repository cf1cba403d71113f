"""`advise` on files that are already quantised, have subgraphs, or give wrong answers in int8."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from onnx import helper

from harness.cli.main import main
from harness.errors import ConfigError
from harness.explain.advise import accuracy as advise_accuracy
from harness.explain.advise.answers import answers
from harness.explain.advise.checks import operators
from harness.explain.advise.output.text import lines
from harness.models.graph import onnx_file
from harness.models.graph.flops import graph_costs
from harness.models.precision import onnx
from harness.models.precision.onnx import already_quantised
from tests.builders.advise_record import MS, NOW, accuracy, record, timing
from tests.builders.models import foreign_nets as nets
from tests.builders.models import odd_files

SKIPPED = [
    word for part in ("weights", "storage", "operators", "checks") for word in ("--skip", part)
]


def text(content: dict[str, Any]) -> str:
    return "\n".join(lines({**answers(content), "parts": {}}))


def slow_layers(**changes: Any) -> dict[str, Any]:
    """Returns a record whose layers take longer when run alone (13 ms) than the whole model (10 ms)."""
    return record(now_runs=timing(10 * MS, 10 * MS), pairs={}, **changes)


def test_a_busy_machine_explains_a_missing_lower_bound() -> None:
    why = "the machine was busier when the layers ran than when the model did"
    content = slow_layers()
    assert answers(content)["lower_bound"]["why_none"] == why
    assert (
        f"  doubt       measured alone, the layers take longer than the model: {why}; use"
        in text(content)
    )
    assert f"ratio 1.30, no lower bound: {why}." in text(content)


def test_short_kernels_explain_a_missing_lower_bound() -> None:
    content = slow_layers()
    for profile in content["profiles"].values():
        for kernel in profile["kernels"]:
            kernel["duration_ns"] = [3_000] * 3
    assert answers(content)["lower_bound"]["why_none"] == (
        "the kernels take only a few microseconds each, which is mostly the profiler's overhead"
    )


def test_a_loop_explains_a_missing_lower_bound() -> None:
    content = slow_layers()
    content["nodes"][0]["op"] = "Loop"
    why = answers(content)["lower_bound"]["why_none"]
    assert why == (
        "31 % of the layers' time is spent in Loop, and the profiler adds its overhead to each kernel in "
        "the bodies of these operators"
    )


def test_lost_quantisation_explains_a_missing_lower_bound() -> None:
    content = slow_layers()
    for kernel in content["profiles"][NOW.graph]["kernels"]:
        if kernel["op"] == "Conv":
            kernel["op"] = "QLinearConv"
    for timed in content["layers"]["join"].values():
        timed["kernels"] = ["Concat"]
    why = answers(content)["lower_bound"]["why_none"]
    assert why == (
        "92 % of the layers' time is spent in layers that run different kernels alone than inside the model "
        "(Conv instead of QLinearConv): measured alone, they lose quantisation or fusion"
    )


def test_signed_integers_explain_a_missing_lower_bound() -> None:
    """Bug: a QGemm took 34 ms alone and 1 ms in the model, and `advise` reported "the machine was busier"."""
    content = slow_layers()
    content["nodes"][1]["makes"] = "int8[1,8]"
    content["nodes"][2] |= {"op": "DequantizeLinear", "takes": [1]}
    assert answers(content)["lower_bound"]["why_none"] == (
        "31 % of the layers' time is spent in layers that read signed 8-bit integers: ONNX Runtime "
        "converts these to unsigned inside the model, but not in a layer alone"
    )


def test_a_valid_lower_bound_needs_no_explanation() -> None:
    assert answers(record())["lower_bound"]["why_none"] == ""


@pytest.mark.parametrize(
    ("agreement", "apart", "is_broken"),
    [
        (0.0, None, True),
        (0.0, 0.9, True),
        (0.49, float("nan"), True),
        (0.0, 0.05, False),
        (0.6, 3.0, False),
    ],
)
def test_answers_of_a_broken_model_are_distinguished_from_lossy_ones(
    agreement: float, apart: float | None, is_broken: bool
) -> None:
    assert bool(advise_accuracy.broken(agreement, apart, 200)) == is_broken


def test_int8_that_breaks_the_model_is_doubted_and_never_the_advice() -> None:
    """Bug: `advise` did not warn although 0 % of the answers agreed."""
    broken = advise_accuracy.broken(0.0, 0.83, 200)
    assert broken == "0.0 % of 200 answers are the same, at a relative distance of 0.83"
    costs = {**accuracy(None, "no labels"), "agreement": 0.0, "broken": broken}
    content = record(accuracy=costs)
    document = answers(content)
    (one,) = (a for a in document["advice"] if a["change"] == "precision=int8")
    assert one["needs"] == f"nothing: do not use it, because {broken}"
    assert document["top"] is not None
    assert document["top"]["change"] != "precision=int8"
    assert f"  doubt       int8 breaks this model: {broken}; ignore its speed" in text(content)
    assert f"Do not use it: {broken}." in document["questions"][5]["answer"]


@pytest.fixture
def qdq(tmp_path: Path) -> Path:
    pytest.importorskip("onnxruntime")
    return nets.quantised(nets.classifier(tmp_path / "whole.onnx"), tmp_path / "q.onnx", "QDQ")


def test_a_quantised_file_is_not_quantised_again(qdq: Path, tmp_path: Path) -> None:
    """Bug: the file was quantised again, and could not be loaded because two nodes had the same name."""
    kinds = "17 DequantizeLinear, 11 QuantizeLinear"
    assert already_quantised(qdq) == kinds
    assert already_quantised(tmp_path / "whole.onnx") == ""
    job: Any = SimpleNamespace(path=qdq)
    actual, int8_file = advise_accuracy.int8(job)
    assert int8_file is None
    assert actual == {"failed": f"is already quantised ({kinds})", "quantised": True}
    answer = answers(record(accuracy=actual))["questions"][5]["answer"]
    assert answer == f"The file is already quantised ({kinds}): it is not quantised again."
    with pytest.raises(ConfigError) as caught:
        onnx.check("int8", qdq)
    assert str(caught.value) == (
        f"{qdq} is quantised already ({kinds}): name its float32 original, "
        "or drop int8 from --precision"
    )
    onnx.check("fp16", qdq)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["QDQ", "metadata", "branch", "loop", "functions", "transformer"])
def test_foreign_files_get_advice(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = tmp_path / "net.onnx"
    if kind == "QDQ":
        nets.quantised(nets.classifier(tmp_path / "whole.onnx"), path, kind)
    else:
        write: Any = {
            "metadata": nets.with_metadata,
            "branch": nets.with_branch,
            "loop": nets.with_loop,
            "functions": nets.with_functions,
            "transformer": nets.transformer,
        }[kind]
        write(path)
    out = tmp_path / "out"
    words = [
        *("--model", str(path), "--threads", "1", "--passes", "1", "--pairs", "1"),
        *("--samples", "8"),
    ]
    database = ["--database", str(tmp_path / "l.sqlite"), "--vary", "precision"]
    assert main(["advise", *words, *database, *SKIPPED, "--out", str(out)]) == 0
    advice = json.loads((out / "advise.json").read_text())
    assert advice["accuracy"].get("quantised", False) == (kind == "QDQ")
    expected = {"QDQ": 2_949_280, "metadata": 1_179_648, "branch": 160, "functions": 768}
    assert advice["work"]["macs"] == expected.get(
        kind, {"transformer": 102_400, "loop": 0}.get(kind)
    )


@pytest.mark.filterwarnings("default")
def test_logarithm_of_noise_is_compared_without_a_warning(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """Bug: numpy printed a warning about a NaN in ONNX's reference."""
    node = helper.make_node("Log", ["x"], ["y"])
    ends = [odd_files.value(name, ["n", 9]) for name in ("x", "y")]
    path = odd_files.write(tmp_path / "m.onnx", [node], ends[:1], ends[1:])
    graph = onnx_file.read(path, shapes={"x": (1, 9)})
    found = operators._one(graph, graph.nodes[0], graph_costs(graph)[0], tmp_path)
    assert found["passed"]
    assert not recwarn.list
