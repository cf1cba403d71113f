"""Lists the optional parts of an installation (the extras in pyproject.toml), and how to install them on this machine.

This module imports only the standard library, because `./run.sh install` imports it before any packages are installed.
"""

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import harness

DISTRIBUTION = "mlperf-harness"
ROOT = Path(str(harness.__file__)).parent.parent
"""Root folder of a checkout; for an installed wheel, the folder that contains all installed packages."""

RECOMMENDED = ("ort", "onnx", "report")
"""Extras that the extra `recommended` installs."""

EXTRAS: Mapping[str, str] = {
    "recommended": "ort, onnx and report",
    "ort": "backend ort: ONNX Runtime",
    "ort-gpu": "backend ort with --device cuda; replaces ort",
    "tensorflow": "backend tensorflow",
    "tensorflow-gpu": "backend tensorflow with --device cuda; replaces tensorflow",
    "openvino": "backend openvino",
    "litert": "backend litert",
    "torch": "backend torch",
    "executorch": "backend executorch",
    "trees": "backend trees: XGBoost's predictor and treelite",
    "lightgbm": "LightGBM's own predictor for backend trees",
    "ncnn": "backend ncnn",
    "mnn": "backend mnn",
    "tract": "backend tract",
    "ort-genai": "backend ort-genai, and ort-whisper: ONNX Runtime GenAI",
    "openvino-genai": "backend openvino-genai, and openvino-whisper",
    "llama-cpp": "backend llama-cpp: xllamacpp",
    "kserve-grpc": "grpc:// servers of backend kserve, and `serve --grpc`",
    "ray": "--nodes ray://HEAD: nodes of a Ray cluster",
    "onnx": "models light/* and zoo/*; advise, bricks, layers of profile; int8 and fp16; --ops",
    "report": "pages with plots: report.html and the pages of the other verbs",
    "browse": "the web pages of browse",
    "mlflow": "runs for MLflow: export --format mlflow",
    "coco": "metric map",
    "rouge": "metric rouge",
    "wer": "metric wer-whisper: Whisper's normaliser",
    "nvml": "meter nvml: the power of NVIDIA GPUs",
    "parquet": "dataset parquet",
    "text": "dataset squad; tables with a column of text",
    "hf": "models hf:ORG/NAME@COMMIT; dataset huggingface",
    "audio": "FLAC files of dataset librispeech",
    "images": "image decoders opencv and simplejpeg",
    "photographs": "scikit-learn's two photographs, for pitfalls",
    "dev": "programs that ./test.sh runs; a dependency group, in a checkout only",
}

RIVALS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "ort": ("ort-gpu", ("onnxruntime-gpu",)),
    "ort-gpu": ("ort", ("onnxruntime",)),
    "tensorflow": ("tensorflow-gpu", ("tensorflow",)),
    "tensorflow-gpu": ("tensorflow", ("tensorflow-cpu",)),
}
"""Maps an extra to a rival extra that installs the same module, and to the packages that must be removed first."""


def how_to_install(*extras: str) -> str:
    """Returns the command that installs these extras on this machine, to be appended to messages about missing modules.

    In the checkout's .venv, the command calls ./run.sh; in other environments, the command lists the packages. The
    command does not name this project, because the project is not on a package index and pip would install any project
    registered under its name.
    """
    run = _run_sh()
    if Path(sys.prefix).resolve() == (ROOT / ".venv").resolve():
        return f"{run} install {' '.join(extras)}"
    try:
        packages = _packages_of(extras)
    except ModuleNotFoundError:  # no metadata was found, or `packaging` is not installed
        packages = []
    if not packages:  # the checkout is not installed, or was installed before this extra existed
        return f"{run} install {' '.join(extras)}, and start with {run}"
    rivals = [name for extra in extras if extra in RIVALS for name in RIVALS[extra][1]]
    removed = list(filter(_is_installed, rivals))
    if removed and find_spec("pip") is not None:
        return f"{_pip()} uninstall {' '.join(removed)}, then {how_to_install_packages(*packages)}"
    first = f"remove {', '.join(removed)}, then " if removed else ""
    return first + how_to_install_packages(*packages)


def how_to_install_packages(*requirements: str) -> str:
    """Returns the command that installs packages into this environment. requirements: for pip, such as `onnx>=1.19`."""
    quoted = " ".join(map(shlex.quote, requirements))
    if find_spec("pip") is None:
        return f"install {quoted} into this environment"
    return f"{_pip()} install {quoted}"


def _run_sh() -> str:
    """Returns the path to run.sh as the user would type it in the working directory."""
    return "./run.sh" if Path.cwd() == ROOT else shlex.quote(str(ROOT / "run.sh"))


def _pip() -> str:
    """Returns the command that calls this environment's pip, because a bare `pip` may belong to a different
    environment.
    """
    named = shutil.which("python")
    ours = named is not None and Path(named).parent == Path(sys.executable).parent
    return f"{'python' if ours else shlex.quote(sys.executable)} -m pip"


def _packages_of(extras: Sequence[str]) -> list[str]:
    """Returns the name and version range of each package that this installation's metadata lists for the extras."""
    from importlib.metadata import requires

    from packaging.requirements import Requirement

    packages = []
    for requirement in map(Requirement, requires(DISTRIBUTION) or ()):
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}):
            continue  # every installation already contains this requirement
        if any(marker.evaluate({"extra": extra}) for extra in extras):
            parts = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
            packages.append(f"{requirement.name}{parts}{requirement.specifier}")
    return list(dict.fromkeys(packages))


def _is_installed(package: str) -> bool:
    from importlib.metadata import PackageNotFoundError, version

    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True
