"""Names the versions that a measured point holds for."""

import platform
from importlib.metadata import PackageNotFoundError, version

RECIPE = "1"
"""Version of the measuring method: times of other recipes are not mixed with these."""

PACKAGES = {
    "numpy": ("numpy",),
    "ort": ("onnxruntime", "onnxruntime-gpu"),
    "openvino": ("openvino",),
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
    "torch": ("torch",),
    "litert": ("ai-edge-litert",),
    "": ("numpy",),
}
"""Library in a point's settings -> the packages that may provide it. "" stands for points without a library."""


def versions_of(library: str) -> str:
    """E.g. 'onnxruntime 1.23.2, Python 3.12.3, recipe 1'."""
    found = []
    for package in PACKAGES.get(library, (library,)):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    shown = found[0] if found else f"{library}: not installed"
    return f"{shown}, Python {platform.python_version()}, recipe {RECIPE}"
