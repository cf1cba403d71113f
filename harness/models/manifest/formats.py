"""Recognises the format of a model file without a manifest, and raises an error if the chosen backend does not read
this format.
"""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from harness.core.formats.impostors import impostor
from harness.errors import ConfigError


class Format(NamedTuple):
    name: str
    """Name of the format in a manifest's `files` and in a backend's `formats`."""
    about: str
    """Name of the format in messages."""
    backend: str
    """The backend that usually reads files in this format."""


ONNX = Format("onnx", "an ONNX file", "ort")
TORCHSCRIPT = Format("torchscript", "a TorchScript file", "torch")
BY_SUFFIX: Mapping[str, Format] = {
    ".onnx": ONNX,
    ".xml": Format("openvino", "an OpenVINO IR", "openvino"),
    ".pt": TORCHSCRIPT,
    ".jit": TORCHSCRIPT,
    ".pt2": Format("torch-export", "a torch.export program", "torch"),
    ".keras": Format("keras", "a Keras file", "tensorflow"),
    ".tflite": Format("tflite", "a LiteRT file", "litert"),
    ".pte": Format("executorch", "an ExecuTorch program", "executorch"),
    ".ubj": Format("xgboost", "an XGBoost model", "trees"),
    ".tl": Format("treelite", "a treelite checkpoint", "trees"),
    ".param": Format("ncnn", "an ncnn model", "ncnn"),
    ".mnn": Format("mnn", "an MNN file", "mnn"),
    ".gguf": Format("gguf", "a GGUF file", "llama-cpp"),
    ".nnef.tgz": Format("nnef", "an NNEF archive", "tract"),
    ".nnef.tar": Format("nnef", "an NNEF archive", "tract"),
}
BY_CONTENT: Mapping[str, tuple[re.Pattern[bytes], Format]] = {
    ".json": (re.compile(rb'\s*\{\s*"learner"'), BY_SUFFIX[".ubj"]),
    ".txt": (re.compile(rb"tree\r?\nversion=v"), Format("lightgbm", "a LightGBM model", "trees")),
}
"""Maps each suffix that models share with other kinds of files to the first bytes that identify a model, and to the
model's format.
"""

SAVED_MODEL = Format("savedmodel", "a SavedModel", "tensorflow")
_GENAI = Format("genai", "a folder for ONNX Runtime GenAI", "ort-genai")
_OPENVINO_GENAI = Format("openvino-genai", "a folder for OpenVINO GenAI", "openvino-genai")
_GENAI_WHISPER = Format("genai-whisper", "Whisper for ONNX Runtime GenAI, a folder", "ort-whisper")
_OPENVINO_WHISPER = Format(
    "openvino-whisper", "Whisper for OpenVINO GenAI, a folder", "openvino-whisper"
)
_NNEF_FOLDER = Format("nnef", "a folder with an NNEF model", "tract")
MADE_OF: Mapping[str, str] = {"openvino": "onnx", "tflite": "savedmodel"}
"""Maps a format that the harness can create to the format of the source file."""
_FOLDER_FORMATS = (SAVED_MODEL, _GENAI, _OPENVINO_GENAI, _GENAI_WHISPER, _OPENVINO_WHISPER)
_KNOWN = (*BY_SUFFIX.values(), *_FOLDER_FORMATS, *(one for _, one in BY_CONTENT.values()))
FORMATS = {one.name for one in _KNOWN}
USUAL_BACKEND: Mapping[str, str] = {one.name: one.backend for one in _KNOWN}
"""Maps a format to the backend that usually reads files in this format."""

_TO_ONNX = "export the network to ONNX"
_OTHERS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(
        (".pth", ".ckpt", ".safetensors"),
        (
            "weights without their network",
            "load them in their code, and export with torch.onnx.export",
        ),
    ),
    **dict.fromkeys((".h5", ".hdf5"), ("a Keras HDF5 file", "load it and save it as .keras")),
    **dict.fromkeys((".pkl", ".pickle", ".joblib"), ("a pickle, which is code", _TO_ONNX)),
    **dict.fromkeys(
        (".engine", ".plan", ".trt"),
        (
            "a TensorRT engine",
            "pass the ONNX file that it was built from, or serve it with Triton",
        ),
    ),
    **dict.fromkeys((".mlmodel", ".mlpackage"), ("a Core ML model", f"{_TO_ONNX} from its source")),
}
"""Maps a suffix to a description of the file or folder, and to advice for the user."""

_FOLDERS: Mapping[str, tuple[str, str]] = {
    "config.json": ("a HuggingFace checkpoint", "export it with optimum-cli export onnx"),
    "model.json": (
        "a TensorFlow.js model",
        "convert it to a SavedModel with tensorflowjs_converter",
    ),
}
"""Maps the name of a file in a folder to a description of the folder, and to advice for the user."""

_HEAD_BYTES = 4096
_IS_WHISPER = re.compile(rb'"type"\s*:\s*"whisper"')
_CONFIG_BYTES = 1 << 16
_TEXT = frozenset(range(0x20, 0x100)) | frozenset(b"\t\n\f\r\x1b")


def may_have(path: Path, name: str) -> bool:
    """Returns whether the file or folder may have the format `name`; returns True if the actual format is unknown."""
    own = format_of(path)
    return own is None or own.name == name


def check(path: Path, formats: Collection[str]) -> None:
    """Raises ConfigError if no backend with these formats can load the file or folder. A backend with a format that
    this module does not list is assumed to read any file.
    """
    if not FORMATS.issuperset(formats):
        return
    own = format_of(path)
    refuse_other(path.name, own, formats)
    if path.is_file() and (content := impostor(path)):
        raise ConfigError(f"{path.name}: {content}")
    if found := _no_model(path):
        raise ConfigError(f"{path.name} is {': '.join(found)}")
    if own is None and path.is_dir():
        raise ConfigError(
            f"{path.name} is a folder without a model: a SavedModel has saved_model.pb"
        )
    if own is None and _is_text(path):
        _, missed = BY_CONTENT.get(suffix_of(path.name), (None, None))
        raise ConfigError(
            f"{path.name} is a text file{f', but not {missed.about}' if missed else ''}: --model takes a model file "
            f"({', '.join(BY_SUFFIX)}, or .json and .txt of boosted trees), the folder of a SavedModel, or a manifest "
            "(.yaml)"
        )


def _no_model(path: Path) -> tuple[str, str] | None:
    """Returns a description of a file or folder that no backend reads, and advice, or None if the kind is unknown."""
    own = format_of(path)
    if path.is_dir():
        inside = (about for name, about in _FOLDERS.items() if (path / name).is_file())
        return None if own else next(inside, _OTHERS.get(path.suffix.lower()))
    return None if own else kind_by_name(path.name)


def kind_by_name(name: str) -> tuple[str, str] | None:
    """Returns a description of a file that no backend reads, and advice, or None if the file's name does not show its
    kind.
    """
    if Path(name).name in _FOLDERS:
        return _FOLDERS[Path(name).name]
    return _OTHERS.get(Path(name).suffix.lower())


def refuse_other(name: str, own: Format | None, formats: Collection[str]) -> None:
    """Raises ConfigError if the file's format is known but the backend does not read it. name: the file's name."""
    if FORMATS.issuperset(formats) and own is not None and own.name not in formats:
        raise ConfigError(f"{Path(name).name} is {own.about}: pass --backend {own.backend}")


def format_of(path: Path) -> Format | None:
    """Returns the format, or None for a file with an unknown suffix and unknown content, or for a folder whose files do
    not show a format.
    """
    if path.is_dir():
        return _format_of_folder(path)
    suffix = suffix_of(path.name)
    if suffix not in BY_CONTENT:
        return BY_SUFFIX.get(suffix)
    begins, one = BY_CONTENT[suffix]
    return one if begins.match(_head(path)) else None


def _format_of_folder(path: Path) -> Format | None:
    if (path / "saved_model.pb").is_file():
        return SAVED_MODEL
    if (path / "graph.nnef").is_file():
        return _NNEF_FOLDER
    if (config := path / "genai_config.json").is_file():
        return _GENAI_WHISPER if _IS_WHISPER.search(_head(config, _CONFIG_BYTES)) else _GENAI
    if (path / "openvino_encoder_model.xml").is_file():
        return _OPENVINO_WHISPER
    if (path / "openvino_model.xml").is_file() and (path / "generation_config.json").is_file():
        return _OPENVINO_GENAI
    return BY_SUFFIX[".param"] if any(path.glob("*.param")) else None


def suffix_of(name: str) -> str:
    """Returns the suffix that shows a file's format, in lower case; it may have two parts, as in `.nnef.tgz`."""
    suffixes = [suffix.lower() for suffix in Path(name).suffixes]
    both = "".join(suffixes[-2:])
    return both if both in BY_SUFFIX else "".join(suffixes[-1:])


def _head(path: Path, count: int = _HEAD_BYTES) -> bytes:
    """Returns the first bytes, or no bytes if the file cannot be read; the error is reported later, when the file is
    opened.
    """
    try:
        with path.open("rb") as file:
            return file.read(count)
    except OSError:
        return b""


def _is_text(path: Path) -> bool:
    """Returns whether the file is a text file. Model files contain control characters, and text files do not."""
    return _TEXT.issuperset(_head(path))
