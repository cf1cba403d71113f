"""Serves the digits model with Flask, on ONNX Runtime: `python flask_digits.py PORT`. Images arrive as NumPy files."""

import base64
import io
import sys
from typing import Any

import numpy as np
import onnxruntime
from flask import Flask, jsonify, request  # type: ignore[import-not-found]
from werkzeug.serving import (  # type: ignore[import-not-found]
    WSGIRequestHandler,
    run_simple,
)

app = Flask("digits")
session = onnxruntime.InferenceSession("digits.onnx")


@app.get("/health")  # type: ignore[untyped-decorator]
def health() -> str:
    return "ok"


@app.post("/predict")  # type: ignore[untyped-decorator]
def predict() -> Any:
    if "file" not in request.json:
        return jsonify(error="no file"), 400
    image = np.load(io.BytesIO(base64.b64decode(request.json["file"])), allow_pickle=False)
    (logits,) = session.run(None, {"image": image[None]})
    return jsonify(results=[{"scores": logits[0].tolist()}])


if __name__ == "__main__":
    WSGIRequestHandler.protocol_version = "HTTP/1.1"
    run_simple("127.0.0.1", int(sys.argv[1]), app, threaded=True)
