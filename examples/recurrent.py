import numpy as np
import onnxruntime as ort

from harness.types import TensorSpec


class Recurrent:
    formats = ("onnx",)

    def __init__(self, setup):
        self.setup = setup

    def __enter__(self):
        options = ort.SessionOptions()
        options.intra_op_num_threads = self.setup.threads
        self.session = ort.InferenceSession(str(self.setup.model), options)
        return self

    def __exit__(self, *_):
        del self.session

    def signature(self):  # the samples alone: their first dimension is the batch
        return (TensorSpec("input", "float32", ("batch", 512)),)

    def infer(self, batch):  # each sample begins with an empty state
        state = np.zeros((2, batch.size, 128), np.float32)
        feeds = {**batch.inputs, "state": state, "sr": np.array(16000, np.int64)}
        return self.session.run(["output"], feeds)[0]

    def describe(self):
        name = f"onnxruntime {ort.__version__}"
        return {"framework": name, "device": "cpu", "precision": "float32"}
