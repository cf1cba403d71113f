"""The set-up of a backend for the digits model or for a different file."""

from pathlib import Path
from typing import Any

from harness.models.manifest.lookup import load_model
from harness.types import BackendSetup

DIGITS = load_model("digits").path(("onnx",))


def setup(model: Path | None = DIGITS, **more: Any) -> BackendSetup:
    return BackendSetup(model=model, model_name="test", **more)
