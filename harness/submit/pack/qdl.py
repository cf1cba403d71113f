"""Packs the source code of the query dispatch library (QDL), which the Network division requires."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import harness
from harness.core.registry import BACKENDS

_ROOT = Path(harness.__file__).parent
_FILES = ("remote.py", "loadgen/binding.py", "backends/parts/remote_options.py")
_FOLDERS = ("wire", "run/measured/client")


def copy_qdl(backend: str, target: Path) -> None:
    """Copies the QDL's source code. backend: name of a shipped backend; plug-in files are packed together with other
    plug-ins.
    """
    for path in _sources(backend):
        inside = target / path.relative_to(_ROOT)
        inside.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, inside)


def _sources(backend: str) -> Iterator[Path]:
    yield from (_ROOT / name for name in _FILES)
    for folder in _FOLDERS:
        yield from sorted((_ROOT / folder).glob("*.py"))
    if backend in BACKENDS:
        yield _ROOT / "backends" / f"{backend.replace('-', '_')}.py"
        yield from sorted((_ROOT / "backends" / "parts" / backend).glob("*.py"))
