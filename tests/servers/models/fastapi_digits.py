"""Serves the digits model with FastAPI and uvicorn, on ONNX Runtime: `python fastapi_digits.py PORT`."""

import sys
from typing import Any

import numpy as np
import onnxruntime
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

Image = list[list[list[float]]]
app = FastAPI(title="digits", version="1.0")
session = onnxruntime.InferenceSession("digits.onnx")


class Sample(BaseModel):
    image: Image


class Samples(BaseModel):
    instances: list[Sample]


class Scores(BaseModel):
    logits: list[float]


class Answers(BaseModel):
    predictions: list[Scores]


def scores(images: list[Image]) -> Any:
    (logits,) = session.run(None, {"image": np.array(images, np.float32)})
    return [{"logits": row} for row in logits.tolist()]


@app.get("/health")
def health() -> str:
    return "ok"


@app.post("/predict", response_model=Scores)
def predict(sample: Sample) -> Any:
    return scores([sample.image])[0]


@app.post("/batch", response_model=Answers)
def batch(samples: Samples) -> Any:
    return {"predictions": scores([sample.image for sample in samples.instances])}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
