"""ONNX Runtime."""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import onnxruntime as ort

from harness.errors import ConfigError
from harness.parse import parse_on_off
from harness.types import Array, Backend, BackendSetup, Batch, TensorSpec, fixed_batch

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(uint8)": "uint8",
    "tensor(int8)": "int8",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(bool)": "bool",
}
_ERROR_LEVEL = 3
DEFAULT_PROVIDER = "CPUExecutionProvider"


class OrtBackend:
    """One session. Options: `spinning=on` lets idle threads burn their cores for lower latency."""

    formats = ("onnx",)

    def __init__(self, setup: BackendSetup) -> None:
        unknown = set(setup.options) - {"spinning"}
        if unknown:
            raise ConfigError(
                f"backend 'ort' has no option {min(unknown)!r}: it has spinning=on|off"
            )
        assert setup.model is not None
        self._path: Path = setup.model
        self._threads = setup.threads
        self._provider = setup.provider or DEFAULT_PROVIDER
        try:
            self._spinning = parse_on_off(setup.options.get("spinning", "off"))
        except ValueError as e:
            raise ConfigError(f"--backend-option spinning: {e}") from None

    def __enter__(self) -> Self:
        if self._provider not in ort.get_available_providers():
            raise ConfigError(
                f"--provider {self._provider}: this ONNX Runtime has "
                f"{', '.join(ort.get_available_providers())}"
            )
        ort.set_default_logger_severity(_ERROR_LEVEL)
        try:
            self._session = ort.InferenceSession(
                str(self._path), self._options(), providers=[self._provider]
            )
        except Exception as e:  # ONNX Runtime's own exceptions share no base class
            raise ConfigError(f"{self._path}: ONNX Runtime cannot load it: {_one_line(e)}") from e
        used = self._session.get_providers()
        if used[0] != self._provider:
            raise ConfigError(
                f"--provider {self._provider} was asked for, ONNX Runtime uses {used[0]}: "
                "is its library installed and the device visible?"
            )
        self._inputs = tuple(
            TensorSpec(i.name, _DTYPES.get(i.type, i.type), tuple(i.shape))
            for i in self._session.get_inputs()
        )
        self._outputs = [o.name for o in self._session.get_outputs()]
        self._fixed = fixed_batch(self._inputs)
        self._session.disable_fallback()  # a provider that fails is a failed batch, not another one
        # The public run checks the feed's names each time (1.5 us) before it calls this one.
        self._run = getattr(self._session, "_sess", self._session).run
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del self._run, self._session

    def _options(self) -> ort.SessionOptions:
        options = ort.SessionOptions()
        options.log_severity_level = _ERROR_LEVEL
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        # Spinning costs five times the CPU between sparse queries and starves the other instances.
        options.add_session_config_entry(
            "session.intra_op.allow_spinning", "1" if self._spinning else "0"
        )
        return options

    def signature(self) -> tuple[TensorSpec, ...]:
        return self._inputs

    def outputs(self) -> tuple[str, ...]:
        return tuple(self._outputs)

    def infer(self, batch: Batch) -> Array | Mapping[str, Array]:
        if self._fixed is not None and len(batch.indices) != self._fixed:
            return self._infer_padded(batch, self._fixed)
        outputs = self._run(self._outputs, batch.inputs, None)
        return outputs[0] if len(outputs) == 1 else dict(zip(self._outputs, outputs, strict=True))

    def _infer_padded(self, batch: Batch, size: int) -> Mapping[str, Array]:
        """The file fixes the batch: fill it up by repeating the last sample, drop the surplus."""
        count = len(batch.indices)
        filled = {
            name: np.concatenate([rows, np.repeat(rows[-1:], size - count, axis=0)])
            for name, rows in batch.inputs.items()
        }
        outputs = self._run(self._outputs, filled, None)
        return {  # an output of another length is left as it is: it is seen to be wrong
            name: rows[:count] if len(rows) == size else rows
            for name, rows in zip(self._outputs, outputs, strict=True)
        }

    def describe(self) -> Mapping[str, Any]:
        return {
            "framework": f"onnxruntime {ort.__version__}",
            "device": self._session.get_providers()[0],
            "precision": sorted({i.dtype for i in self._inputs}),
            "threads": self._session.get_session_options().intra_op_num_threads,
            "spinning": self._spinning,
            "math_library": "MLAS",
        }


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else text[:200] + "…"


_: type[Backend] = OrtBackend
