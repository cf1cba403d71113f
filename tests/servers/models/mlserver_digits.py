"""The digits model for MLServer, on ONNX Runtime."""

from typing import Any

import onnxruntime
from mlserver import MLModel  # type: ignore[import-not-found]
from mlserver.codecs import NumpyCodec  # type: ignore[import-not-found]
from mlserver.types import InferenceResponse  # type: ignore[import-not-found]


class Digits(MLModel):  # type: ignore[misc]
    async def load(self) -> bool:
        self.session = onnxruntime.InferenceSession("digits.onnx")
        return True

    async def predict(self, payload: Any) -> Any:
        rows = NumpyCodec.decode_input(payload.inputs[0])
        (logits,) = self.session.run(None, {"image": rows})
        return InferenceResponse(
            model_name=self.name, outputs=[NumpyCodec.encode_output("logits", logits)]
        )
