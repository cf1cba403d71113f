"""Wheels and npm packages as a package index serves them, built from a few files."""

import base64
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path


def record(files: Mapping[str, bytes], own: str) -> bytes:
    """Returns the content of the file RECORD. own: the path of RECORD in the wheel."""
    lines = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip('=')},{len(content)}"
        for name, content in files.items()
    ]
    return "\n".join([*lines, f"{own},,", ""]).encode()


def wheel(
    folder: Path, name: str, version: str, files: Mapping[str, bytes], **wrong: bytes
) -> Path:
    """wrong: NAME=CONTENT of a file whose content does not match its digest in RECORD; `_` stands for `/` and `.`."""
    info = f"{name}-{version}.dist-info"
    all_files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    listed = record(all_files, f"{info}/RECORD")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for file, content in {**all_files, f"{info}/RECORD": listed}.items():
            plain = file.replace("/", "_").replace(".", "_")
            out.writestr(file, wrong.get(plain, content))
    return path


def tarball(folder: Path, file_name: str, files: Mapping[str, bytes], top: str = "package") -> Path:
    """Writes an npm package with all files in the folder `top`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name
    with tarfile.open(path, "w:gz") as out:
        for file, content in files.items():
            info = tarfile.TarInfo(f"{top}/{file}")
            info.size = len(content)
            out.addfile(info, io.BytesIO(content))
    return path
