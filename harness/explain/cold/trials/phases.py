"""Separates the phases of a backend's load by timing the framework's calls.

The backend is opened as in a run. Each framework performs a phase in one public call; a timer wraps this call before
the backend is opened. Time outside these calls counts as the phase `rest`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

DESERIALISE, PREPARE = "deserialise", "prepare"


class Call(NamedTuple):
    """The function `owner.name` of a module. owner: dotted name, or "" for the module."""

    phase: str
    module: str
    owner: str
    name: str


_ORT = "onnxruntime.capi._pybind_state"
_LITERT = "ai_edge_litert.interpreter"

CALLS: Mapping[str, Sequence[Call]] = {
    "ort": (
        Call(DESERIALISE, _ORT, "", "InferenceSession"),
        Call(PREPARE, _ORT, "InferenceSession", "initialize_session"),
    ),
    "openvino": (
        Call(DESERIALISE, "openvino", "Core", "read_model"),
        Call(PREPARE, "openvino", "Core", "compile_model"),
    ),
    "litert": (
        Call(DESERIALISE, _LITERT, "Interpreter", "__init__"),
        Call(PREPARE, _LITERT, "Interpreter", "allocate_tensors"),
    ),
    "tensorflow": (
        Call(DESERIALISE, "tensorflow", "saved_model", "load"),
        Call(DESERIALISE, "tensorflow", "keras.models", "load_model"),
    ),
    "torch": (
        Call(DESERIALISE, "torch", "jit", "load"),
        Call(DESERIALISE, "torch", "export", "load"),
    ),
    "executorch": (
        Call(DESERIALISE, "executorch.runtime", "Runtime", "load_program"),
        Call(PREPARE, "executorch.runtime", "Program", "load_method"),
    ),
    "trees": (Call(DESERIALISE, "harness.backends.trees", "", "opened"),),
    "ncnn": (
        Call(DESERIALISE, "ncnn", "Net", "load_param"),
        Call(PREPARE, "ncnn", "Net", "load_model"),
    ),
    "mnn": (
        Call(DESERIALISE, "MNN", "", "Interpreter"),
        Call(PREPARE, "harness.backends.mnn", "", "create_session"),
    ),
    "tract": (
        Call(DESERIALISE, "tract", "Onnx", "load"),
        Call(DESERIALISE, "tract", "Nnef", "load"),
        Call(PREPARE, "tract", "InferenceModel", "into_model"),
        Call(PREPARE, "tract", "Model", "into_runnable"),
    ),
}
"""The timed calls of each backend's framework."""

NOTES: Mapping[str, str] = {
    "ort": "ONNX Runtime optimises the graph and prepacks the weights in one call: they are one phase",
    "openvino": "OpenVINO optimises the graph and repacks the weights in one call, compile_model: they are one phase",
    "litert": "LiteRT maps the file and chooses XNNPACK's kernels in one call; their weights are packed when tensors "
    "are allocated, or in the first run",
    "tensorflow": (
        "TensorFlow reads the graph and restores the variables in one call, and "
        "optimises the graph in the first run: it has no separate phase of optimisation"
    ),
    "executorch": "ExecuTorch maps the file, and packs the weights for XNNPACK when the method is loaded",
    "trees": "tree libraries read a file in one call, and prepare nothing",
    "torch": "PyTorch optimises a module while it runs: it has no separate phase of optimisation",
    "ncnn": "ncnn reads the weights and repacks them for its kernels in one call: they are one phase",
    "mnn": "MNN repacks the weights when it creates the session, or in the first run after a new shape",
    "tract": "tract reads the file once for the inputs and once for each batch size for which it prepares a network",
}
"""Notes about phases that a backend's framework does not separate."""

FOREIGN = "the backend is a plug-in, whose calls are not known: its load is one phase"


def note(backend: str) -> str:
    return NOTES.get(backend, FOREIGN)


class Clock:
    """Adds up the time spent in wrapped calls.

    spent_ns: the time spent in the calls of each phase. Phases without calls are left out.
    """

    def __init__(self) -> None:
        self.spent_ns: dict[str, int] = {}

    def wrap(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **keywords: Any) -> Any:
            begun_ns = time.monotonic_ns()
            try:
                return function(*arguments, **keywords)
            finally:
                spent_ns = time.monotonic_ns() - begun_ns
                self.spent_ns[phase] = self.spent_ns.get(phase, 0) + spent_ns

        return timed


def watch(backend: str) -> Clock:
    """Wraps the framework's calls for the rest of this process.

    The framework must already be imported. If this version of the framework lacks a call, the time of that phase counts
    as the phase `rest`.
    """
    clock = Clock()
    # Methods are wrapped first, because once a class is wrapped, its name refers to a function without methods.
    for call in sorted(CALLS.get(backend, ()), key=lambda one: not one.owner):
        try:
            owner: Any = import_module(call.module)
            for part in filter(None, call.owner.split(".")):
                owner = getattr(owner, part)
            setattr(owner, call.name, clock.wrap(call.phase, getattr(owner, call.name)))
        except (ImportError, AttributeError, TypeError):
            continue
    return clock
