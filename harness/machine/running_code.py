"""Finds the code that runs before the first line of the harness, and checks whether the harness matches a release or a
commit.

The command line does not show this code. The code consists of `sitecustomize` and `usercustomize`, code lines in `.pth`
files, modules imported because of an environment variable, and libraries that the loader maps before others. A file's
owner is known if the file's digest is in the RECORD of an installed distribution or in Debian's list for a package.
"""

import base64
import hashlib
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from harness.machine.kernel import text

_ASK = """
import sys
modules = {name: getattr(module, "__file__", None) for name, module in [*sys.modules.items()]}
import json, os, site
from importlib.machinery import PathFinder
hooks, others = json.loads(sys.argv[1])
path = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
for names, folders in ((hooks, None), ({*others, *sys.stdlib_module_names}, path)):
    specs = {name: PathFinder.find_spec(name, folders) for name in names}
    modules |= {name: spec.origin for name, spec in specs.items() if spec is not None}
users = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
with open("/proc/self/maps") as maps:
    mapped = sorted({line.split(None, 5)[5].strip() for line in maps if "/" in line})
print(json.dumps([modules, [*site.getsitepackages(), *users], mapped]))
"""
"""Program for an interpreter that starts in the same way as the harness's processes. The program lists the modules
imported at the start, the hooks, the modules that PYTHONPATH would replace, the folders with .pth files, and the files
mapped into memory.
"""

FRAMEWORKS = (
    "MNN",
    "ai_edge_litert",
    "executorch",
    "lightgbm",
    "mlperf_loadgen",
    "ncnn",
    "numpy",
    "onnxruntime",
    "onnxruntime_genai",
    "openvino",
    "openvino_genai",
    "psutil",
    "pydantic",
    "tensorflow",
    "torch",
    "tract",
    "treelite",
    "xgboost",
    "xllamacpp",
)
"""Modules that PYTHONPATH must not replace, in addition to the modules of Python."""

_LIMIT_S = 30
_CODE = ("harness", "accuracy", "backends", "dashboards", "datasets", "scenarios")
_IMPORTED = (".py", ".pyc", ".so")
_MOST_NAMED = 5
_PRELOAD_FILE = Path("/etc/ld.so.preload")
_DEBIAN = Path("/var/lib/dpkg")
_HOOKS = ("sitecustomize", "usercustomize")
"""Modules that Python imports at every start; a Linux distribution may put such a module into the standard library.
"""

_INSTALLERS = ("_virtualenv", "_virtualenv.pth")
"""Files that virtualenv and uv write into each environment, and that no RECORD lists."""


@cache
def running_code() -> Mapping[str, Any]:
    """Returns `code` of findings.json: {"harness": …, "startup": […]}. The result is computed once per process."""
    return {"harness": harness_files(Path(__file__).parents[2]), "startup": startup_code()}


def harness_files(root: Path) -> Mapping[str, Any]:
    """Returns the digest of the harness's files, and the first files that differ from the release or commit.

    Other files in the harness's folders count only if Python can import them, because they may be the user's data.
    root: the checkout, or the folder into which packages are installed. `known_by` is "commit" or "release", or None if
    the folder is neither a checkout nor a release or git cannot read it.
    """
    is_checkout = (root / ".git").exists()
    expected = _committed(root) if is_checkout else _recorded(root, "mlperf_harness")
    expected = {name: digest for name, digest in expected.items() if _top(name) in _CODE}
    # A release contains only `harness`; a folder `datasets` next to it may be HuggingFace's, so that folder is not
    # compared.
    tops = sorted({_top(name) for name in expected}) or _CODE
    digests, lines = {}, {}
    for name, data in _files(root, tops, expected):
        digests[name] = _blob(data) if is_checkout else _sha256(data)
        lines[name] = f"{_sha256(data)}  {name}\n"
    differing = sorted(
        name for name in {*digests, *expected} if digests.get(name) != expected.get(name)
    )
    return {
        "sha256": _sha256("".join(lines[name] for name in sorted(lines)).encode()),
        "known_by": ("commit" if is_checkout else "release") if expected else None,
        "differing": len(differing) if expected else None,
        "first": differing[:_MOST_NAMED] if expected else [],
    }


def _top(name: str) -> str:
    return name.partition("/")[0]


def _files(
    root: Path, tops: Iterable[str], expected: Container[str]
) -> Iterator[tuple[str, bytes]]:
    """Yields the name and content of each file to compare. The content of a link is its target.

    If a file cannot be read, the error replaces the content, so that the file differs from every release and commit.
    """
    for top in tops:
        for folder, folders, names in os.walk(root / top):
            folders[:] = [name for name in folders if name != "__pycache__"]
            for path in (Path(folder, name) for name in [*names, *folders]):
                name = path.relative_to(root).as_posix()
                if name not in expected and not name.endswith(_IMPORTED):
                    continue
                try:
                    if path.is_symlink():
                        yield name, str(path.readlink()).encode()
                    elif path.is_file():
                        yield name, path.read_bytes()
                except OSError as e:
                    yield name, repr(e).encode()


def _committed(root: Path) -> dict[str, str]:
    """Returns the Git digest of each file in the commit, by file name, or {} if git cannot read the folder."""
    command = ["git", "-C", str(root), "ls-tree", "-r", "-z", "HEAD", "--", *_CODE]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    rows = (row.split("\t", 1) for row in os.fsdecode(done.stdout).split("\0") if row)
    return {name: about.split()[2] for about, name in rows}


def _blob(data: bytes) -> str:
    """Returns a file's Git digest."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def startup_code() -> list[Mapping[str, Any]] | None:
    """Returns {"name", "sha256", "owner"} for each file that may run code at the start. owner: the distribution or
    package that contains exactly this file.

    Returns None if the interpreter does not start or does not respond.
    """
    command = [sys.executable, "-P", "-c", _ASK, json.dumps([_HOOKS, FRAMEWORKS])]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_LIMIT_S, check=True)
        modules, folders, mapped = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, LookupError):
        return None
    preloaded = _preloaded()
    hooks = {
        name: Path(file) for name, file in modules.items() if file and _is_foreign(name, Path(file))
    }
    lines = {
        path.name: path
        for folder in map(Path, folders)
        for path in sorted(folder.glob("*.pth"))
        if _has_code(path)
    }
    libraries = {path.name: path for path in map(Path, mapped) if path in preloaded}
    entries = [_entry(name, path) for name, path in (hooks | lines | libraries).items()]
    named = {*lines, *libraries, *_HOOKS}
    return [one for one in entries if one["owner"] is None or one["name"] in named]


def _is_foreign(name: str, path: Path) -> bool:
    """Returns whether a module does not belong to Python."""
    return name in _HOOKS or (path.is_absolute() and not _is_python(path))


def _entry(name: str, path: Path) -> Mapping[str, Any]:
    try:
        data = path.read_bytes()
    except OSError:  # the module is in an archive or was deleted
        return {"name": name, "sha256": None, "owner": None}
    return {"name": name, "sha256": _sha256(data), "owner": _owner(name, path, data)}


def _is_python(path: Path) -> bool:
    """Returns whether the file lies in the standard library."""
    libraries = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    installed = {"site-packages", "dist-packages"}
    return any(path.is_relative_to(library) for library in libraries) and installed.isdisjoint(
        path.parts
    )


def _has_code(path: Path) -> bool:
    """Returns whether Python executes any line of the .pth file; all other lines only name folders."""
    with suppress(OSError):
        lines = path.read_bytes().splitlines()
        return any(line.startswith((b"import ", b"import\t")) for line in lines)
    return False


def _preloaded() -> set[Path]:
    """Returns the libraries that the loader prefers because of LD_PRELOAD, LD_AUDIT, ld.so.preload or LD_LIBRARY_PATH.

    Ignores Python's own folder in LD_LIBRARY_PATH.
    """
    words = (
        f"{os.environ.get('LD_PRELOAD', '')} {os.environ.get('LD_AUDIT', '')} {text(_PRELOAD_FILE)}"
    )
    files = {Path(word).resolve() for word in words.replace(":", " ").split()}
    folders = os.environ.get("LD_LIBRARY_PATH", "").replace(";", ":").split(":")
    for folder in (Path(name).resolve() for name in folders if name):
        if not folder.is_relative_to(Path(sys.base_prefix).resolve()):
            with suppress(OSError):
                files |= {path.resolve() for path in folder.iterdir() if ".so" in path.name}
    return files


def _owner(name: str, path: Path, data: bytes) -> str | None:
    """Returns the distribution or Debian package that contains exactly this file."""
    for folder in path.parents:
        if folder.name in ("site-packages", "dist-packages"):
            distribution = _distribution(folder, path.relative_to(folder).as_posix(), data)
            if distribution is not None:
                return distribution
            if name in _INSTALLERS and path.parent == folder:
                return "virtualenv or uv"
    return _package(path.resolve(), hashlib.md5(data, usedforsecurity=False).hexdigest())


def _distribution(folder: Path, name: str, data: bytes) -> str | None:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
    row = b"\n" + os.fsencode(name) + b",sha256=" + digest + b","
    for record, rows in _records(folder).items():
        if row in rows:
            return record.partition("-")[0]
    return None


@cache
def _records(folder: Path) -> Mapping[str, bytes]:
    """Returns each distribution's RECORD, by the name of the distribution's folder.

    Source: Python's specification of binary distribution formats.
    """
    found = {}
    for record in folder.glob("*.dist-info/RECORD"):
        with suppress(OSError):
            found[record.parent.name] = b"\n" + record.read_bytes()
    return found


def _recorded(folder: Path, distribution: str) -> dict[str, str]:
    """Returns the SHA-256 digest of each file in the distribution, by file name, or {} if the folder does not contain
    the distribution.
    """
    rows = [
        line.partition(",sha256=")
        for record, content in _records(folder).items()
        if record.startswith(f"{distribution}-")
        for line in os.fsdecode(content).splitlines()
    ]
    return {
        name: _hexadecimal(rest.partition(",")[0]) for name, separator, rest in rows if separator
    }


def _hexadecimal(digest: str) -> str:
    return base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4)).hex()


def _package(path: Path, md5: str) -> str | None:
    """Returns the Debian package that lists the file with this digest. Debian lists files in /etc in its `status` file."""
    names = {str(path), f"/usr{path}", str(path).removeprefix("/usr")}
    lines = {f"{md5}  {name[1:]}" for name in names}
    for listed in sorted(_DEBIAN.glob("info/*.md5sums")):
        with suppress(OSError, UnicodeError):
            if not lines.isdisjoint(listed.read_text(encoding="utf-8").splitlines()):
                return listed.stem
    return "Debian" if f" {path} {md5}" in text(_DEBIAN / "status") else None
