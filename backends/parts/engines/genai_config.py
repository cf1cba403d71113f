"""Reads the configuration of an ONNX Runtime GenAI model, and describes the model."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.core.number_types import precision
from harness.errors import ConfigError

NAME = "genai_config.json"


def read(folder: Path) -> Mapping[str, Any]:
    """Returns the configuration. Raises a ConfigError if the folder contains no configuration."""
    path = folder / NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"{folder} does not contain {NAME}: name the folder that ONNX Runtime GenAI's model builder wrote"
        ) from None
    except (OSError, ValueError) as e:
        raise ConfigError(f"{path} cannot be read ({e}): build the model again") from None
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise ConfigError(f"{path} has no `model` object: build the model again")
    return content


def part(folder: Path, content: Mapping[str, Any], name: str) -> Path | None:
    """Returns the ONNX file of a part; None if the configuration names no file, or a file outside the folder.

    name: `encoder` or `decoder`.
    """
    about = content["model"].get(name)
    file = about.get("filename") if isinstance(about, dict) else None
    if not isinstance(file, str):
        return None
    path = folder / file
    return path if path.resolve().is_relative_to(folder.resolve()) and path.is_file() else None


def described(
    model: Any, version: str, kinds: Iterable[tuple[Sequence[int], str]], threads: int
) -> Mapping[str, object]:
    """Returns a backend's description. model: the package's object. kinds: the result of `weight_types`."""
    return {
        "framework": f"onnxruntime-genai {version}",
        "device": model.device_type.lower(),
        "precision": precision(kinds, ["float32"]),
        "threads": threads,
        "architecture": model.type,
        "math_library": "MLAS",
    }
