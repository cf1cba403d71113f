"""Returns the software versions for which a measured point is valid."""

import platform
from importlib.metadata import PackageNotFoundError, version

RECIPE = "1"
"""Version of the measuring method; times from different versions are not mixed."""

PACKAGES = {
    "numpy": ("numpy",),
    "ort": ("onnxruntime", "onnxruntime-gpu"),
    "openvino": ("openvino",),
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
    "torch": ("torch",),
    "litert": ("ai-edge-litert",),
    "": ("numpy",),
}
"""Maps the library in a point's settings to the packages that may contain it. The key "" is for points without a
library.
"""


def versions_of(library: str) -> str:
    """Returns the versions as text, for example 'onnxruntime 1.23.2, Python 3.12.3, recipe 1'."""
    found = []
    for package in PACKAGES.get(library, (library,)):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    shown = found[0] if found else f"{library}: not installed"
    return f"{shown}, Python {platform.python_version()}, recipe {RECIPE}"
