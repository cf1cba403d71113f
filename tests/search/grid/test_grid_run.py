"""Grids of real runs: int8 and fp32, operators, and a page that a browser renders."""

import re
from pathlib import Path

import numpy as np
import pytest

from harness.cli.main import main
from harness.errors import ConfigError
from harness.models.made import operators
from harness.models.network.files import of_onnx
from harness.models.network.network import difference
from harness.search.grid.cells.options import GridOptions
from harness.search.grid.view.view import stored_view
from tests.builders.support import present
from tests.stand_ins.chromium import needs_chromium, shown


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_the_operators_are_three_of_each_kind_with_their_work() -> None:
    assert {kind: len(each) for kind, each in operators.SUITE.items()} == dict.fromkeys(
        ("gemm", "conv", "lstm"), 3
    )
    assert operators.Gemm(3, 5).flop_per_sample == 2 * 15
    # The first layer of ResNet-50 has 118 MMAC, because it has 112 x 112 positions with 64 filters of 7 x 7 x 3.
    assert operators.Conv(224, 3, 64, 7, 3, 2).flop_per_sample == 2 * 118_013_952
    assert operators.Lstm(256, 25).flop_per_sample == 25 * 16 * 256 * 256


def test_operators_compute_as_their_names_say() -> None:
    ort = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    made = operators.make(("gemm", "conv", "lstm"))
    assert operators.make(("conv",)) == made[3:6]
    outputs = {}
    for path in made:
        session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        (spec,) = session.get_inputs()
        (found,) = session.run(None, {"x": np.ones((2, *spec.shape[1:]), np.float32)})
        assert np.isfinite(found).all()
        outputs[path.stem] = found.shape
        work = present(operators.work_of(str(path)))
        assert work["flop_per_sample"] > 1e6
    assert outputs["gemm_m1760_k1760"] == (2, 1760)
    assert outputs["conv_224x224x3_k64_r7_s2"] == (2, 64, 112, 112)
    assert outputs["lstm_h512_t25"][0] == 2
    # `operators` does not know this foreign file.
    assert operators.work_of("gemm_m1760_k1760.onnx") is None


def test_three_networks_of_one_name_are_distinguished(tmp_path: Path) -> None:
    """Requirement LV5 also applies if only the strides differ, which the weights do not show."""
    onnx = pytest.importorskip("onnx")
    value, kind = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    found = []
    for filters, stride in ((64, 4), (96, 4), (64, 2)):
        weights = onnx.numpy_helper.from_array(np.ones((filters, 3, 11, 11), np.float32), "w")
        graph = onnx.helper.make_graph(
            [onnx.helper.make_node("Conv", ["x", "w"], ["y"], strides=[stride] * 2)],
            "alexnet",
            [value("x", kind, ["n", 3, 224, 224])],
            [value("y", kind, None)],
            [weights],
        )
        path = tmp_path / "alexnet.onnx"
        onnx.save(onnx.helper.make_model(graph), path)
        found.append(of_onnx(path))
    assert difference(found[0], found[0]) == ""
    assert "1 weight tensors with 34,848 weights, not 1" in difference(found[0], found[1])
    assert difference(found[0], found[2]).startswith("strides of convolutions")


@pytest.mark.slow
@needs_chromium()
def test_sweep_measures_int8_beside_fp32(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    arguments = ("--precision", "fp32,int8", "--batch", "4", "--threads", "1", "--duration", "1s")
    assert main(["sweep", *arguments, "--out", "grid"]) == 0
    told = capsys.readouterr()
    assert "cell 1 of 2: digits ort fp32 real threads 1 batch 4: " in told.err
    view = stored_view(Path("grid"), GridOptions())
    fp32, int8 = view.rows
    assert fp32.accuracy == pytest.approx(99.2)
    assert abs(present(int8.accuracy) - 99.2) <= 0.5
    for row in view.rows:
        assert present(row.forward_p50_ns) < present(row.batch_p50_ns) <= (row.batch_p99_ns or 0)
        assert (row.rss_bytes or 0) > 10e6
        assert row.uncertainty is not None
        assert row.no_energy.startswith("no meter")
        assert row.joules_per_sample is None
    assert 0 < view.divergences[int8.cell.variant].relative_l2 < 0.1
    assert view.same_answers[int8.cell] > 0.98
    assert view.strangers == {}
    assert main(["sweep", "--from", "grid"]) == 0
    assert capsys.readouterr().out == told.out
    page = shown(Path("grid/grid.html"))
    assert page.console == []
    assert re.search("<h1>.*Grid · .* · offline", page.document)
    Path("grid/probes/digits-ort-int8-real-t1-b1.npz").write_bytes(b"no archive")
    with pytest.raises(ConfigError, match="is not valid probe output"):
        stored_view(Path("grid"), GridOptions())
