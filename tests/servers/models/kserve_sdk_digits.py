"""Serves the digits model with the KServe SDK, on ONNX Runtime: `python kserve_sdk_digits.py PORT`."""

import sys
from typing import Any

import onnxruntime
import uvicorn
from kserve import InferOutput, InferResponse, Model, ModelServer  # type: ignore[import-not-found]


class HereOnly(uvicorn.Config):
    """Replaces the address, because the SDK has no option for the address and would listen on all addresses."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **{**more, "host": "127.0.0.1"})


class Digits(Model):  # type: ignore[misc]
    def load(self) -> bool:
        self.session = onnxruntime.InferenceSession("digits.onnx")
        self.ready = True
        return True

    def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> Any:
        (logits,) = self.session.run(None, {"image": payload.inputs[0].as_numpy()})
        output = InferOutput("logits", list(logits.shape), "FP32")
        output.set_data_from_numpy(logits, binary_data=True)
        return InferResponse(payload.id, "digits", [output])


if __name__ == "__main__":
    uvicorn.Config = HereOnly  # type: ignore[misc]
    model = Digits("digits")
    model.load()
    ModelServer(http_port=int(sys.argv[1]), enable_grpc=False, workers=1).start([model])
