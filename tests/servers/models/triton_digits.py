"""The digits model for Triton's Python backend, computed with ONNX Runtime."""

from pathlib import Path
from typing import Any

import onnxruntime
import triton_python_backend_utils as triton  # type: ignore[import-not-found]


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        file = Path(args["model_repository"]) / args["model_version"] / "digits.onnx"
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(file, options)

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self.answer(request) for request in requests]

    def answer(self, request: Any) -> Any:
        rows = triton.get_input_tensor_by_name(request, "image").as_numpy()
        (logits,) = self.session.run(None, {"image": rows})
        return triton.InferenceResponse([triton.Tensor("logits", logits)])
