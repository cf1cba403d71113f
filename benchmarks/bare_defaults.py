"""Times a plain loop of one framework: bare_defaults.py FRAMEWORK MODEL SECONDS default|guide BATCH... prints JSON.

default: the framework's default settings, with float32. guide: the settings that the framework's performance guide
recommends for throughput. The output contains one dictionary per batch size: p50_ns of a batch, paused_p50_ns with a
pause of PAUSE_NS before each batch, and samples_per_s.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

CORES = len(os.sched_getaffinity(0))
LARGEST_ID = 1000
LEAST = 10
PAUSE_NS = 10_000
"""Pause between two queries of a run, during which a framework's threads may fall asleep."""

PAUSED_SHARE = 0.2
"""Duration of the loop with pauses, relative to the loop without pauses."""

DIGITS = (1, 8, 8)
"""Shape of a `digits` sample, which TorchScript files do not record."""

_OF_EXECUTORCH = {4: "int64", 6: "float32"}
"""Maps ExecuTorch's number for a type to the type's name."""

Loop = Callable[[], object]
Made = Callable[[int], Sequence[Loop]]
"""Maps a batch size to calls that answer one batch each. Several calls run in separate threads."""


def _noise(dtype: str, shape: Sequence[int]) -> Any:
    random = np.random.default_rng(0)
    if dtype.startswith("int"):
        return random.integers(1, LARGEST_ID, shape).astype(dtype)
    return random.standard_normal(shape, np.float32)


def of_ort(path: str, guide: bool) -> Made:
    """Loads an ONNX file. guide: one session with one thread per core."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    if guide:
        options.intra_op_num_threads = 1
    sessions = [ort.InferenceSession(path, options) for _ in range(CORES if guide else 1)]

    def made(batch: int) -> Sequence[Loop]:
        feeds = {
            port.name: _noise(port.type[7:-1].replace("float", "float32"), (batch, *port.shape[1:]))
            for port in sessions[0].get_inputs()
        }
        return [lambda each=each: each.run(None, feeds) for each in sessions]  # type: ignore[misc]

    return made


def of_openvino(path: str, guide: bool) -> Made:
    """Loads a model into OpenVINO. guide: the hint THROUGHPUT, with the number of requests that the compiled model
    calls optimal.
    """
    import openvino

    hint = {"PERFORMANCE_HINT": "THROUGHPUT"} if guide else {}
    compiled = openvino.Core().compile_model(
        path, "CPU", {"INFERENCE_PRECISION_HINT": "f32", **hint}
    )

    def made(batch: int) -> Sequence[Loop]:
        inputs = [
            _noise(np.dtype(p.element_type.to_dtype()).name, (batch, *_sizes(p.partial_shape)[1:]))
            for p in compiled.inputs
        ]
        count = compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") if guide else 1
        requests = [compiled.create_infer_request() for _ in range(count)]
        return [lambda each=each: each.infer(inputs) for each in requests]  # type: ignore[misc]

    return made


def _sizes(shape: Any) -> list[int]:
    return [size.get_length() if size.is_static else 0 for size in shape]


def of_torch(path: str, guide: bool) -> Made:
    """Loads a PyTorch file. guide: inference mode and, for images, channels last."""
    import torch

    if path.endswith(".pt2"):
        program = torch.export.load(path)
        module = program.module()
        name = program.graph_signature.user_inputs[0]
        value = next(n for n in program.graph.nodes if n.name == name).meta["val"]
        dtype, shape = str(value.dtype)[6:], [int(size) for size in value.shape[1:]]
    else:
        module, dtype, shape = torch.jit.load(path).eval(), "float32", list(DIGITS)
    of_images = len(shape) == len(DIGITS)
    if guide and of_images:
        module = module.to(memory_format=torch.channels_last)
    mode = torch.inference_mode if guide else torch.no_grad

    def made(batch: int) -> Sequence[Loop]:
        rows = torch.from_numpy(_noise(dtype, (batch, *shape)))
        if guide and of_images:
            rows = rows.contiguous(memory_format=torch.channels_last)

        def loop() -> object:
            with mode():
                return module(rows)

        return [loop]

    return made


def of_tensorflow(path: str, guide: bool) -> Made:
    """Loads a SavedModel. guide: one thread pool with one thread per core, and one operator at a time."""
    import tensorflow as tf

    if guide:
        tf.config.threading.set_intra_op_parallelism_threads(CORES)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    model = tf.saved_model.load(path)
    function = model.signatures["serving_default"]

    def made(batch: int) -> Sequence[Loop]:
        inputs = {
            name: tf.constant(_noise(spec.dtype.name, (batch, *spec.shape[1:])))
            for name, spec in function.structured_input_signature[1].items()
        }

        # The argument keeps the model alive, because the function needs its variables.
        def loop(_variables: object = model) -> object:
            return [tensor.numpy() for tensor in function(**inputs).values()]

        return [loop]

    return made


def of_litert(path: str, guide: bool) -> Made:
    """Loads a LiteRT file. guide: one thread per core."""
    from ai_edge_litert.interpreter import Interpreter

    def made(batch: int) -> Sequence[Loop]:
        each = Interpreter(path, num_threads=CORES if guide else None)
        details = each.get_input_details()
        for port in details:
            each.resize_tensor_input(port["index"], [batch, *port["shape"][1:]])
        each.allocate_tensors()
        rows = [
            (p["index"], _noise(np.dtype(p["dtype"]).name, (batch, *p["shape"][1:])))
            for p in details
        ]
        outputs = [port["index"] for port in each.get_output_details()]

        def loop() -> object:
            for index, values in rows:
                each.set_tensor(index, values)
            each.invoke()
            return [each.get_tensor(index) for index in outputs]

        return [loop]

    return made


def of_executorch(path: str, guide: bool) -> Made:
    """Loads an ExecuTorch program. guide: one thread per core."""
    import torch
    from executorch.extension.pybindings.portable_lib import _unsafe_reset_threadpool
    from executorch.runtime import Runtime

    if guide:
        _unsafe_reset_threadpool(CORES)
    method = Runtime.get().load_program(path).load_method("forward")

    def made(batch: int) -> Sequence[Loop]:
        ports = [method.metadata.input_tensor_meta(n) for n in range(method.metadata.num_inputs())]
        rows = [
            torch.from_numpy(_noise(_OF_EXECUTORCH[port.dtype()], (batch, *port.sizes()[1:])))
            for port in ports
        ]
        return [lambda: [each.numpy() for each in method.execute(rows)]]

    return made


def of_ncnn(path: str, guide: bool) -> Made:
    """Loads an ncnn model, whose .param records the shapes. guide: one net with one thread per core."""
    import ncnn

    halves = ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_packed", "bf16_storage")

    def net() -> Any:
        made = ncnn.Net()
        for half in halves:
            setattr(made.opt, f"use_{half}", False)
        if guide:
            made.opt.num_threads = 1
        if made.load_param(path) or made.load_model(f"{path.removesuffix('.param')}.bin"):
            raise SystemExit(f"ncnn refuses {path}")
        return made

    nets = [net() for _ in range(CORES if guide else 1)]
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - as plain as the loops
        lines = [line.split() for line in file if line.startswith("Input ")]
    shapes = {line[4]: _ncnn_sizes(line[5:]) for line in lines}
    readers = {bottom: layer.type for layer in nets[0].layers() for bottom in layer.bottoms}
    inputs = dict(zip(nets[0].input_names(), nets[0].input_indexes(), strict=True))
    outputs = nets[0].output_indexes()

    def made(batch: int) -> Sequence[Loop]:
        feeds = {
            inputs[name]: _noise(
                "int32" if readers[number] == "Embed" else "float32", (batch, *shape)
            )
            for (name, shape), number in zip(shapes.items(), inputs.values(), strict=True)
        }

        def one(each: Any, sample: int) -> object:
            extractor = each.create_extractor()
            for index, rows in feeds.items():
                extractor.input(index, ncnn.Mat(rows[sample]).clone())
            return [np.array(extractor.extract(index)[1].numpy()) for index in outputs]

        return [lambda each=each: [one(each, sample) for sample in range(batch)] for each in nets]  # type: ignore[misc]

    return made


def _ncnn_sizes(words: Sequence[str]) -> list[int]:
    """Returns channels, height and width, although the line may contain only one or two of these sizes."""
    sizes = dict(word.split("=") for word in words)
    return [int(sizes[key]) for key in ("2", "1", "0") if key in sizes]


def of_mnn(path: str, guide: bool) -> Made:
    """Loads an MNN file. guide: one interpreter with one thread per core."""
    import MNN

    config = {"precision": "high", **({"numThread": 1} if guide else {})}
    kinds = {MNN.Halide_Type_Float: "float32", MNN.Halide_Type_Int: "int32"}

    def made(batch: int) -> Sequence[Loop]:
        return [one(batch) for _ in range(CORES if guide else 1)]

    def one(batch: int) -> Loop:
        each = MNN.Interpreter(path)
        session = each.createSession(config)
        tensors = list(each.getSessionInputAll(session).values())
        shapes = [(batch, *tensor.getShape()[1:]) for tensor in tensors]
        for tensor, shape in zip(tensors, shapes, strict=True):
            each.resizeTensor(tensor, shape)
        each.resizeSession(session)
        types = [tensor.getDataType() for tensor in tensors]
        rows = [
            _noise(next(name for kind, name in kinds.items() if kind == own), shape)
            for own, shape in zip(types, shapes, strict=True)
        ]
        caffe = MNN.Tensor_DimensionType_Caffe
        outputs = list(each.getSessionOutputAll(session).values())
        hosts = [
            MNN.Tensor(o.getShape(), o.getDataType(), np.zeros(o.getShape(), np.float32), caffe)
            for o in outputs
        ]

        def loop() -> object:
            for tensor, own, values in zip(tensors, types, rows, strict=True):
                tensor.copyFrom(MNN.Tensor(values.shape, own, values, caffe))
            each.runSession(session)
            for output, host in zip(outputs, hosts, strict=True):
                output.copyToHostTensor(host)
            return [np.array(host.getNumpyData()) for host in hosts]

        return loop

    return made


def of_trees(path: str, guide: bool) -> Made:
    """Loads an XGBoost file. guide: one thread per core."""
    import xgboost

    booster = xgboost.Booster({"nthread": CORES} if guide else {})
    booster.load_model(path)
    columns = booster.num_features()

    def made(batch: int) -> Sequence[Loop]:
        rows = _noise("float32", (batch, columns))
        return [lambda: booster.inplace_predict(rows)]

    return made


def of_tract(path: str, guide: bool) -> Made:
    """Loads an ONNX file for a fixed batch size. guide: one network per core, because tract computes on one thread."""
    import tract

    def made(batch: int) -> Sequence[Loop]:
        return [one(batch) for _ in range(CORES if guide else 1)]

    def one(batch: int) -> Loop:
        model = tract.onnx().load(path)
        rows = []
        for index in range(model.input_count()):
            _, *sizes, kind = str(model.input_fact(index)).split(",")
            shape = (batch, *map(int, sizes))
            model.set_input_fact(index, ",".join(map(str, (*shape, kind))))
            rows.append(_noise({"f32": "float32", "i64": "int64"}[kind], shape))
        runnable = model.into_model().into_runnable()
        return lambda: [tensor.to_numpy() for tensor in runnable.run(rows)]

    return made


def times_ns(loop: Loop, seconds: float) -> "np.typing.NDArray[np.int64]":
    """Returns the duration of each call in ns. Before timing, the loop warms up for a tenth of `seconds`."""
    until = time.perf_counter() + seconds / 10
    while time.perf_counter() < until:
        loop()
    stamps = [time.perf_counter_ns()]
    while len(stamps) <= LEAST or stamps[-1] < stamps[0] + seconds * 1e9:
        loop()
        stamps.append(time.perf_counter_ns())
    return np.diff(stamps)


def paused_p50_ns(loop: Loop, seconds: float) -> float:
    """Returns the median duration of a call after a pause. The calling thread spins during the pause."""
    times: list[int] = []
    until = time.perf_counter() + seconds
    while len(times) <= LEAST or time.perf_counter() < until:
        start_ns = time.perf_counter_ns() + PAUSE_NS
        while (now_ns := time.perf_counter_ns()) < start_ns:
            pass
        loop()
        times.append(time.perf_counter_ns() - now_ns)
    return float(np.median(times))


def measured(loops: Sequence[Loop], batch: int, seconds: float) -> dict[str, float]:
    # A single loop runs on this thread, which has also loaded the model: GNU OpenMP keeps threads for each calling
    # thread, and lets all of them sleep if they outnumber the cores. Loops side by side have one thread each.
    if len(loops) == 1:
        found = [times_ns(loops[0], seconds)]
    else:
        with ThreadPoolExecutor(len(loops)) as pool:
            found = list(pool.map(lambda loop: times_ns(loop, seconds), loops))
    paused_ns = paused_p50_ns(loops[0], PAUSED_SHARE * seconds)
    rate = sum(batch * 1e9 / of.mean() for of in found)
    return {
        "batch": batch,
        "p50_ns": float(np.median(found[0])),
        "paused_p50_ns": paused_ns,
        "samples_per_s": rate,
    }


MADE: dict[str, Callable[[str, bool], Made]] = {
    "ort": of_ort,
    "openvino": of_openvino,
    "torch": of_torch,
    "tensorflow": of_tensorflow,
    "litert": of_litert,
    "executorch": of_executorch,
    "trees": of_trees,
    "ncnn": of_ncnn,
    "mnn": of_mnn,
    "tract": of_tract,
}

if __name__ == "__main__":
    framework, file, length_s, settings, *batches = sys.argv[1:]
    of_batch = MADE[framework](file, settings == "guide")
    print(json.dumps([measured(of_batch(n), n, float(length_s)) for n in map(int, batches)]))
