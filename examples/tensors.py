import json

import numpy as np

from harness.errors import ConfigError
from harness.remote import BadAnswer, Refused, Request

JSON = (("Content-Type", "application/json"),)


class JsonTensors:
    """Sends numbers as text to a model on a KServe v2 server, because every such server accepts text."""

    def __init__(self, setup):
        self.path = f"/v2/models/{setup.model_name}"

    def open(self, exchange):  # called before the run, to ask the server what requests must contain
        reply = exchange(Request(self.path, method="GET"))
        if reply.status != 200:
            raise ConfigError(f"the server has no {self.path}: it answered {reply.status}")
        (self.input,) = json.loads(bytes(reply.body))["inputs"]

    def request(self, batch):  # called when a sample is loaded, or during the timed run
        (rows,) = batch.inputs.values()
        tensor = {
            "name": self.input["name"],
            "datatype": self.input["datatype"],
            "shape": rows.shape,
        }
        body = json.dumps({"inputs": [{**tensor, "data": rows.ravel().tolist()}]})
        return Request(f"{self.path}/infer", JSON, (body.encode(),))

    def answer(self, reply, samples):  # timed; returns `samples` outputs in the order of the batch
        if reply.status != 200:
            raise Refused(reply.status, bytes(reply.body).decode(errors="replace"))
        try:
            (output,) = json.loads(bytes(reply.body))["outputs"]
            return np.array(output["data"], np.float32).reshape(samples, *output["shape"][1:])
        except (KeyError, ValueError) as e:
            raise BadAnswer(f"the reply is not an answer: {e}") from e

    def describe(self):
        return {"framework": "KServe v2 as JSON", "device": "remote", "precision": "unknown"}
