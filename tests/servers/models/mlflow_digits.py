"""Saves the digits model as an MLflow model on ONNX Runtime: `python mlflow_digits.py FOLDER`."""

import sys
from typing import Any

import mlflow
import numpy as np
import onnxruntime


class Digits(mlflow.pyfunc.PythonModel):  # type: ignore[misc]
    def load_context(self, context: Any) -> None:
        self.session = onnxruntime.InferenceSession(context.artifacts["network"])

    def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
        (logits,) = self.session.run(None, {"image": model_input.astype(np.float32)})
        return logits


if __name__ == "__main__":
    image = np.zeros((1, 1, 8, 8), np.float32)
    signature = mlflow.models.infer_signature(image, np.zeros((1, 10), np.float32))
    mlflow.pyfunc.save_model(
        sys.argv[1],
        python_model=__file__,
        artifacts={"network": "digits.onnx"},
        signature=signature,
        pip_requirements=[],
    )
else:
    mlflow.models.set_model(Digits())
