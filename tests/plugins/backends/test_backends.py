"""Backends in this process: order, every batch size, actual threads, and one line for bad files."""

import os
import re
import subprocess
import sys
import time
import weakref
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from harness.backends.null import NullBackend
from harness.backends.ort import OrtBackend
from harness.backends.parts.framework import with_next_step
from harness.backends.parts.onnx_weights import shared_weights
from harness.core.config.run_config import make_config
from harness.core.extras import how_to_install
from harness.datasets.digits import DigitsDataset
from harness.errors import ConfigError
from harness.loadgen.plan import InstanceGroup
from harness.models.manifest.lookup import load_model
from harness.models.manifest.model import MODELS_DIR
from harness.models.opened.loading import open_backends
from harness.types import BackendSetup, Batch, DatasetSetup, TensorSpec, fixed_batch
from tests.builders.backends import DIGITS, setup
from tests.builders.models import odd_files
from tests.builders.refusals import refusal as refusal_of
from tests.builders.refusals import refusals

ROOT = Path(__file__).parents[3]


def refusal(made: BackendSetup) -> str:
    with pytest.raises(ConfigError) as caught, OrtBackend(made):
        pass
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture(scope="module")
def digits() -> DigitsDataset:
    dataset = DigitsDataset(DatasetSetup(inputs=load_model("digits").inputs))
    dataset.load(range(500))
    return dataset


@pytest.fixture(scope="module")
def logits(digits: DigitsDataset) -> Any:
    """Returns (500, 10): the output for each sample in a batch of one."""
    with OrtBackend(setup()) as backend:
        return np.concatenate([np.asarray(backend.infer(digits.batch([i]))) for i in range(500)])


def test_ort_answers_the_digits(digits: DigitsDataset, logits: Any) -> None:
    labels = [digits.label(i) for i in range(500)]
    # The manifest requires 98.5 % of the 500 answers to be right, which is 493 answers.
    assert int((logits.argmax(axis=1) == labels).sum()) >= 493


@pytest.fixture(scope="module")
def ort() -> Any:
    with OrtBackend(setup(threads=2)) as backend:
        yield backend


@settings(max_examples=40)
@given(st.lists(st.integers(0, 499), min_size=1, max_size=64))
def test_ort_answers_in_the_order_of_the_indices(
    ort: OrtBackend, digits: DigitsDataset, logits: Any, indices: list[int]
) -> None:
    found = np.asarray(ort.infer(digits.batch(indices)))
    assert found.shape == (len(indices), 10)
    assert np.allclose(found, logits[indices], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("size", [1, 2, 3, 8, 31, 63, 64])
def test_ort_takes_every_batch_size(
    ort: OrtBackend, digits: DigitsDataset, logits: Any, size: int
) -> None:
    found = np.asarray(ort.infer(digits.batch(range(size))))
    assert np.allclose(found, logits[:size], rtol=1e-3, atol=1e-3)


def test_ort_does_not_write_to_its_input(ort: OrtBackend, digits: DigitsDataset) -> None:
    batch = digits.batch(range(10))
    before = batch.inputs["image"].copy()
    ort.infer(batch)
    assert batch.inputs["image"].tolist() == before.tolist()


def _threads() -> set[str]:
    return {task.name for task in Path("/proc/self/task").iterdir()}


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_ort_takes_as_many_threads_as_it_is_given_and_gives_them_back(threads: int) -> None:
    with OrtBackend(setup()):
        before = _threads()
        with OrtBackend(setup(threads=threads)) as backend:
            own = _threads() - before
            # The calling thread is the first of the threads, so only the others are new.
            assert len(own) == threads - 1
            assert backend.describe()["threads"] == threads
        assert own & _threads() == set()


def test_ort_describes_its_settings(ort: OrtBackend) -> None:
    assert ort.describe() == {
        "framework": f"onnxruntime {onnxruntime.__version__}",
        "device": "CPUExecutionProvider",
        "precision": "float32",
        "threads": 2,
        "spinning": False,
        "graph": "all",
        "arena": True,
        "io_binding": False,
        "share_weights": False,
        "math_library": "MLAS",
        "opsets": "ai.onnx 17",
    }
    assert ort.signature() == (TensorSpec("image", "float32", ("batch", 1, 8, 8)),)


def test_ort_can_be_left_and_entered_again(digits: DigitsDataset, logits: Any) -> None:
    backend = OrtBackend(setup())
    for _ in range(2):
        with backend:
            found = np.asarray(backend.infer(digits.batch([3])))
        assert np.allclose(found, logits[[3]])


def test_unknown_provider_is_refused_with_the_available_ones() -> None:
    have = ", ".join(onnxruntime.get_available_providers())
    assert refusal(setup(provider="WarpExecutionProvider")) == (
        f"--provider WarpExecutionProvider: this ONNX Runtime supports only {have}"
    )


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"spining": "on"},
            (
                "backend 'ort' has no option 'spining': choose from spinning=auto|off|on graph=all|extended"
                "|basic|off arena=on|off io_binding=auto|off|on share_weights=off|on"
            ),
        ),
        ({"spinning": "yes"}, "--backend-option spinning: 'yes' is not one of auto, off, on"),
    ],
)
def test_unknown_option_of_ort_is_refused(options: dict[str, str], line: str) -> None:
    assert refusal(setup(options=options)) == line


def test_all_problems_are_reported_at_once() -> None:
    assert len(refusals(OrtBackend, setup(options={"spining": "on", "graph": "none"}))) == 2


def test_missing_cuda_provider_is_refused_with_the_package_to_install() -> None:
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has CUDA")
    assert refusal(setup(device="cuda")) == (
        "--device cuda: this ONNX Runtime has no CUDAExecutionProvider: "
        + how_to_install("ort-gpu")
    )
    assert refusal(setup(device="cuda", provider="CPUExecutionProvider")) == (
        "--device cuda and --provider CPUExecutionProvider contradict each other: keep one"
    )


def test_cuda_of_python_packages_is_loaded_first_and_stdout_stays_clean(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: if only `ort-gpu` was installed, --device cuda did not find libcublas."""
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has CUDA")
    monkeypatch.setattr(
        onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPU"]
    )
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: sys.stdout.write("no libcudart\n"))
    with pytest.warns(UserWarning, match="CUDAExecutionProvider"):
        assert refusal(setup(device="cuda")).startswith(
            "--provider CUDAExecutionProvider: ONNX Runtime uses CPUExecutionProvider instead"
        )
    assert capsys.readouterr() == ("", "no libcudart\n")


class OnGpu(onnxruntime.InferenceSession):  # type: ignore[misc] # onnxruntime may not be installed
    """Stands in for a session on a GPU: records the providers, and computes on the processor."""

    requested: ClassVar[dict[str, dict[str, str]]]
    bound: ClassVar[list[tuple[str, str, int]]]
    engine: ClassVar[str] = ""
    """Name of the engine that the session builds; '' if it builds none."""

    def __init__(
        self, path: str, options: Any, providers: list[str], provider_options: list[dict[str, str]]
    ) -> None:
        super().__init__(path, options, providers=["CPUExecutionProvider"])
        OnGpu.requested = dict(zip(providers, provider_options, strict=True))
        OnGpu.bound = []
        if self.engine:
            (Path(provider_options[0]["trt_engine_cache_path"]) / self.engine).touch()

    def get_providers(self) -> list[str]:
        return [*self.requested, "CPUExecutionProvider"]

    def io_binding(self) -> Any:
        binding = super().io_binding()
        bind = binding.bind_output

        def bind_output(name: str, device_type: str = "cpu", device_id: int = 0) -> None:
            OnGpu.bound.append((name, device_type, device_id))
            bind(name)

        binding.bind_output = bind_output
        return binding


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[OnGpu]:
    providers = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: providers)
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None)
    monkeypatch.setattr(onnxruntime, "InferenceSession", OnGpu)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return OnGpu


def test_cuda_provider_gets_its_options_and_keeps_outputs_on_the_gpu(
    on_gpu: type[OnGpu], digits: DigitsDataset, logits: Any
) -> None:
    asked = {"cudnn_conv_algo_search": "HEURISTIC"}
    with OrtBackend(setup(device="cuda:1", provider_options=asked)) as backend:
        found = np.asarray(backend.infer(digits.batch(range(8))))
        about = backend.describe()
        assert backend.used() == {}
    assert np.abs(found - logits[:8]).max() < 1e-4
    options = {"device_id": "1", "use_tf32": "0", **asked}
    assert on_gpu.requested == {"CUDAExecutionProvider": options}
    assert on_gpu.bound == [("logits", "cuda", 1)]
    assert about["provider_options"] == options
    assert (about["io_binding"], about["precision"]) == (True, "float32")


@pytest.mark.parametrize(
    ("provider", "options", "precision"),
    [
        (None, {"use_tf32": "1"}, "tf32"),
        ("TensorrtExecutionProvider", {}, "tf32"),
        ("TensorrtExecutionProvider", {"trt_fp16_enable": "True"}, "float16"),
    ],
)
def test_precision_of_a_gpu_follows_from_the_provider_options(
    on_gpu: type[OnGpu], provider: str | None, options: dict[str, str], precision: str
) -> None:
    made = setup(device="cuda", provider=provider, provider_options=options)
    with OrtBackend(made) as backend:
        assert backend.describe()["precision"] == precision
    assert on_gpu.requested[provider or "CUDAExecutionProvider"].items() >= options.items()


def test_tensorrt_engines_are_kept_by_model_and_options(
    on_gpu: type[OnGpu], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A cached engine contains the weights, but neither its name nor TensorRT's check depends on them."""

    def opened(model: Path | None = DIGITS, **options: str) -> tuple[str, object]:
        of_tensorrt = setup(
            model,
            device="cuda",
            provider="TensorrtExecutionProvider",
            provider_options=options,
        )
        with OrtBackend(of_tensorrt) as backend:
            used = backend.used()
        assert on_gpu.requested["CUDAExecutionProvider"] == {"device_id": "0", "use_tf32": "0"}
        folder = on_gpu.requested["TensorrtExecutionProvider"]["trt_engine_cache_path"]
        assert used["engine_cache"] == folder
        return folder, used["engines_built"]

    first, built = opened()
    assert built == 0
    assert Path(first).is_relative_to(tmp_path / "mlperf-harness" / "tensorrt")
    monkeypatch.setattr(OnGpu, "engine", "sm90.engine")
    assert opened() == (first, 1)
    monkeypatch.setattr(OnGpu, "engine", "")
    assert opened() == (first, 0)
    assert opened(trt_fp16_enable="1")[0] != first
    assert opened(trt_engine_cache_path=str(tmp_path))[0] == str(tmp_path)
    assert DIGITS is not None
    other = tmp_path / DIGITS.name
    model = onnx.load(DIGITS)
    model.graph.initializer[0].raw_data = bytes(len(model.graph.initializer[0].raw_data))
    onnx.save(model, other)
    assert opened(other)[0] != first


@pytest.mark.parametrize(
    "options",
    [
        {"graph": "off"},
        {"graph": "basic"},
        {"graph": "extended"},
        {"arena": "off"},
        {"io_binding": "on"},
        {"share_weights": "on"},
        {"share_weights": "on", "io_binding": "on", "graph": "off"},
    ],
    ids=str,
)
def test_ort_gives_the_same_answers_with_every_option(
    options: dict[str, str], digits: DigitsDataset, logits: Any
) -> None:
    with OrtBackend(setup(options=options)) as backend:
        about = backend.describe()
        for size in (1, 64, 7):
            found = np.asarray(backend.infer(digits.batch(range(size))))
            assert np.allclose(found, logits[:size], atol=1e-4)
    for name, value in options.items():
        assert about[name] in (value, value == "on")


def test_weights_are_shared_per_file_and_freed_with_the_last_session() -> None:
    assert DIGITS is not None
    first, second = shared_weights(DIGITS), shared_weights(DIGITS)
    assert first is second
    assert set(first.values) >= {"conv2_weight", "dense1_weight"}
    stored = np.load(DIGITS.with_name("digits_weights.npz"))
    for name, value in first.values.items():
        assert value.numpy().tolist() == stored[name].tolist()
    gone = weakref.ref(first)
    del first, second, value
    assert gone() is None


_FOUR_SESSIONS = """
import sys, psutil
from contextlib import ExitStack
from pathlib import Path
from harness.backends.ort import OrtBackend
from harness.types import BackendSetup
before = psutil.Process().memory_info().rss
with ExitStack() as stack:
    for _ in range(4):
        options = {"share_weights": sys.argv[2]}
        made = BackendSetup(model=Path(sys.argv[1]), model_name="big", options=options)
        stack.enter_context(OrtBackend(made))
    print(psutil.Process().memory_info().rss - before)
"""


def test_shared_weights_are_in_memory_once(tmp_path: Path) -> None:
    path = tmp_path / "big.onnx"
    # The weight takes 36 MiB.
    weight = np.random.default_rng(0).standard_normal((3072, 3072), np.float32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    x, y = (odd_files.value(name, ["n", 3072]) for name in "xy")
    odd_files.write(path, [node], [x], [y], {"w": weight})
    grown = {}
    for option in ("off", "on"):
        command = [sys.executable, "-c", _FOUR_SESSIONS, str(path), option]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        grown[option] = int(done.stdout)
    assert grown["off"] > 3.5 * weight.nbytes
    assert grown["on"] < 2 * weight.nbytes


@pytest.mark.parametrize(
    ("asked", "owns_cores", "spins"),
    [
        ({}, False, False),
        ({}, True, True),
        ({"spinning": "off"}, True, False),
        ({"spinning": "on"}, False, True),
    ],
)
def test_idle_threads_spin_on_their_own_cores_or_on_request(
    asked: dict[str, str], owns_cores: bool, spins: bool
) -> None:
    with OrtBackend(setup(options=asked, owns_cores=owns_cores)) as backend:
        assert backend.describe()["spinning"] is spins


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor is all there is")
def test_the_threads_of_a_wide_instance_have_places_of_their_own() -> None:
    first, second, *_ = sorted(os.sched_getaffinity(0))
    before = _threads()
    with OrtBackend(setup(threads=2, owns_cores=True, cpus=(first, second))) as backend:
        (own,) = _threads() - before
        for _ in range(200):  # the loop waits, because the new thread pins itself only when it runs
            if os.sched_getaffinity(int(own)) == {second}:
                break
            time.sleep(0.01)
        assert os.sched_getaffinity(int(own)) == {second}
        options = backend._session.get_session_options()
        assert options.get_session_config_entry("session.force_spinning_stop") == "1"


@pytest.mark.parametrize(("threads", "names"), [(1, ["graph"]), (2, ["spinning", "graph"])])
def test_tune_tries_spinning_only_with_threads_that_could_spin(
    threads: int, names: list[str]
) -> None:
    with OrtBackend(setup(threads=threads)) as backend:
        assert list(backend.tunable) == names


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x00" * 1000, "cut"])
def test_a_corrupt_model_is_reported_in_one_line(content: bytes | str, tmp_path: Path) -> None:
    assert DIGITS is not None
    path = tmp_path / "bad.onnx"
    path.write_bytes(DIGITS.read_bytes()[:5000] if isinstance(content, str) else content)
    line = refusal(setup(path))
    assert re.match(rf"^{re.escape(str(path))}: ONNX Runtime cannot load it: \S", line)
    assert len(line) < len(str(path)) + 250


@pytest.mark.parametrize(
    ("why", "said"),
    [
        (
            "bad weights in bin file!",
            "bad weights in bin file: fetch it again, or convert it again",
        ),
        ("Check failed: a < b :", "Check failed: a < b: fetch it again, or convert it again"),
        ("it is incomplete: export it again", "it is incomplete: export it again"),
    ],
)
def test_reason_without_a_next_step_gets_one(why: str, said: str) -> None:
    """Bug: "tract cannot load it: … method bz2: ReadError('not a bzip2 file')" had no advice."""
    assert with_next_step(why) == said


def test_a_model_that_cannot_be_opened_is_reported_in_one_line(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "gone.onnx"):
        assert refusal(setup(path)).startswith(f"{path}: ONNX Runtime cannot load it: ")


def saved(tmp_path: Path, batch: int | str, outputs: int = 1) -> Path:
    """Writes x (batch, 3) -> 2x under one name, or under several names: y0 = 2x, y1 = 3x, ..."""
    names = [f"y{n}" for n in range(outputs)]
    nodes = [helper.make_node("Mul", ["x", f"f{n}"], [name]) for n, name in enumerate(names)]
    x, *ends = (odd_files.value(name, [batch, 3]) for name in ("x", *names))
    factors = {f"f{n}": np.float32(n + 2) for n in range(outputs)}
    return odd_files.write(tmp_path / "scale.onnx", nodes, [x], ends, factors)


def _rows(count: int) -> Any:
    return np.arange(3 * count, dtype=np.float32).reshape(count, 3)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("outputs", [1, 2])
def test_a_model_with_a_fixed_batch_is_filled_up_and_the_surplus_dropped(
    count: int, outputs: int, tmp_path: Path
) -> None:
    with OrtBackend(setup(saved(tmp_path, 4, outputs))) as backend:
        assert backend.signature() == (TensorSpec("x", "float32", (4, 3)),)
        found = backend.infer(Batch(count, {"x": _rows(count)}))
    by_name = found if isinstance(found, dict) else {"y0": found}
    assert list(by_name) == [f"y{n}" for n in range(outputs)]
    for n, rows in enumerate(by_name.values()):
        assert np.asarray(rows).tolist() == ((n + 2) * _rows(count)).tolist()


def test_a_model_with_several_outputs_gives_them_by_name(tmp_path: Path) -> None:
    with OrtBackend(setup(saved(tmp_path, "n", 3))) as backend:
        found = backend.infer(Batch(2, {"x": _rows(2)}))
    assert isinstance(found, dict)
    assert list(found) == ["y0", "y1", "y2"]
    assert found["y2"].tolist() == (4 * _rows(2)).tolist()


@pytest.mark.parametrize("count", [1, 5])
def test_null_answers_one_row_per_index_and_reports_no_framework(count: int) -> None:
    with NullBackend(setup(None, max_batch=5)) as backend:
        answers = backend.infer(Batch(count, {}))
        about = backend.describe()
    assert answers.shape == (count, 10)
    assert not answers.any()
    assert about["framework"] == about["device"] == "none"


@pytest.mark.parametrize(
    "asked",
    [
        {"provider": "CPU"},
        {"provider_options": {"a": "1"}},
        {"options": {"spinning": "on"}},
        {"device": "cuda"},
    ],
)
def test_null_refuses_unsupported_options(asked: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="takes only --device cpu, no --provider and no"):
        NullBackend(setup(None, **asked))


def test_padding_does_not_hide_an_output_without_a_row_per_sample(tmp_path: Path) -> None:
    node = helper.make_node("Transpose", ["x"], ["y"])
    x, y = odd_files.value("x", [4, 3]), odd_files.value("y", [3, 4])
    path = odd_files.write(tmp_path / "sum.onnx", [node], [x], [y])
    with OrtBackend(setup(path)) as backend:
        found = backend.infer(Batch(2, {"x": _rows(2)}))
    assert np.asarray(found).shape == (3, 4)


def test_more_samples_than_a_file_fixes_are_reported_in_one_line(tmp_path: Path) -> None:
    """Bug: the message was "negative dimensions are not allowed"."""
    path = odd_files.fixed(tmp_path / "m.onnx", 2)
    with OrtBackend(setup(path)) as backend:
        assert refusal_of(backend.infer, Batch(3, {"x": np.zeros((3, 4), np.float32)})) == (
            "the file fixes the batch at 2, but 3 samples arrived at once: use --max-batch 2"
        )


def test_the_batch_that_a_file_fixes() -> None:
    free, four = TensorSpec("a", "float32", ("n", 3)), TensorSpec("b", "float32", (4, 3))
    assert fixed_batch([free]) is None
    assert fixed_batch([free, four]) == 4
    with pytest.raises(ConfigError, match=r"different first dimensions \(b 4, c 1\)"):
        fixed_batch([free, four, TensorSpec("c", "float32", (1, 3))])


def test_shared_weights_with_separate_processes_are_refused() -> None:
    """Bug: the backend did not share memory, but reported True."""
    options = (("share_weights", "on"), ("processes", "on"))
    config = make_config({"scenario": "offline", "backend": "ort", "backend_option": options})
    given = (config, load_model("digits"), MODELS_DIR / "digits.onnx", InstanceGroup(2, 1, 1))
    with ExitStack() as stack:
        assert refusal_of(open_backends, *given, stack) == (
            "--backend-option share_weights=on applies to the instances of one process, but "
            "processes=on runs each instance of backend 'ort' in a separate process: drop one"
        )


def test_file_name_that_is_not_utf_8_is_refused_with_advice(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"n\xff.onnx")
    path.write_bytes((MODELS_DIR / "digits.onnx").read_bytes())
    assert (
        "ONNX Runtime cannot load it: its name or a folder name is not valid UTF-8: rename it"
        in (refusal(setup(path)))
    )
