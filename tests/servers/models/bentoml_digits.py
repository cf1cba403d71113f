"""Serves the digits model with BentoML, on ONNX Runtime: `bentoml serve bentoml_digits:Digits`."""

from typing import Annotated

import bentoml  # type: ignore[import-not-found]
import numpy as np
import onnxruntime
from bentoml.validators import DType, Shape  # type: ignore[import-not-found]

Images = Annotated[np.ndarray, DType("float32"), Shape((-1, 1, 8, 8))]


@bentoml.service(workers=1)
class Digits:
    def __init__(self) -> None:
        self.session = onnxruntime.InferenceSession("digits.onnx")

    @bentoml.api(batchable=True)  # type: ignore[untyped-decorator]
    def logits(self, image: Images) -> np.ndarray:
        (logits,) = self.session.run(None, {"image": image})
        return np.asarray(logits)
