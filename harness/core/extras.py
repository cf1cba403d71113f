"""Lists the optional parts of an installation (pyproject.toml's extras), and how to install them here.

Imports the standard library only: `./run.sh install` runs it before anything is installed.
"""

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import harness
from harness.core.console import say, show
from harness.errors import ConfigError, HarnessError, refuse

DISTRIBUTION = "mlperf-harness"
ROOT = Path(str(harness.__file__)).parent.parent
"""The root of a checkout; in a wheel, the folder that all packages are installed in."""

RECOMMENDED = ("ort", "onnx", "report")
"""The extras that the extra `recommended` stands for."""

EXTRAS: Mapping[str, str] = {
    "recommended": "ort, onnx and report",
    "ort": "backend ort: ONNX Runtime",
    "ort-gpu": "backend ort with --device cuda; takes the place of ort",
    "tensorflow": "backend tensorflow",
    "tensorflow-gpu": "backend tensorflow with --device cuda; takes the place of tensorflow",
    "openvino": "backend openvino",
    "litert": "backend litert",
    "torch": "backend torch",
    "kserve-grpc": "grpc:// servers of backend kserve, and `serve --grpc`",
    "ray": "--nodes ray://HEAD: nodes of a Ray cluster",
    "onnx": "models light/* and zoo/*; advise, bricks, layers of profile; int8 and fp16; --ops",
    "report": "pages with plots: report.html and those of the other verbs",
    "browse": "the web pages of browse",
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
    "dev": "what ./test.sh runs; a dependency group, in a checkout only",
}

RIVALS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "ort": ("ort-gpu", ("onnxruntime-gpu",)),
    "ort-gpu": ("ort", ("onnxruntime",)),
    "tensorflow": ("tensorflow-gpu", ("tensorflow",)),
    "tensorflow-gpu": ("tensorflow", ("tensorflow-cpu",)),
}
"""Extra -> the extra that provides the same module, and the packages to remove before."""


def how_to_install(*extras: str) -> str:
    """The command that installs these extras here: the end of a message about a missing module.

    In the checkout's own .venv: ./run.sh. Elsewhere the packages by name, because this project is on
    no package index: whoever registered its name there would be installed in its place.
    """
    run = _run_sh()
    if Path(sys.prefix).resolve() == (ROOT / ".venv").resolve():
        return f"{run} install {' '.join(extras)}"
    try:
        packages = _packages_of(extras)
    except ModuleNotFoundError:  # no metadata, or no `packaging`
        packages = []
    if not packages:  # a checkout that was installed nowhere, or before it had that extra
        return f"{run} install {' '.join(extras)}, and start with {run}"
    rivals = [name for extra in extras if extra in RIVALS for name in RIVALS[extra][1]]
    removed = list(filter(_is_installed, rivals))
    if removed and find_spec("pip") is not None:
        return f"{_pip()} uninstall {' '.join(removed)}, then {how_to_install_packages(*packages)}"
    first = f"remove {', '.join(removed)}, then " if removed else ""
    return first + how_to_install_packages(*packages)


def how_to_install_packages(*requirements: str) -> str:
    """requirements: as pip takes them, e.g. `onnx>=1.19`."""
    quoted = " ".join(map(shlex.quote, requirements))
    if find_spec("pip") is None:
        return f"install {quoted} into this environment"
    return f"{_pip()} install {quoted}"


def _run_sh() -> str:
    """The path of run.sh from the working directory."""
    return "./run.sh" if Path.cwd() == ROOT else shlex.quote(str(ROOT / "run.sh"))


def _pip() -> str:
    """pip of this environment: a bare `pip` may belong to another one."""
    named = shutil.which("python")
    ours = named is not None and Path(named).parent == Path(sys.executable).parent
    return f"{'python' if ours else shlex.quote(sys.executable)} -m pip"


def _packages_of(extras: Sequence[str]) -> list[str]:
    """Name and version range of each package that this installation declares for them, on this platform."""
    from importlib.metadata import requires

    from packaging.requirements import Requirement

    packages = []
    for requirement in map(Requirement, requires(DISTRIBUTION) or ()):
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}):
            continue  # of the core
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


def main(arguments: Sequence[str]) -> int:
    """`./run.sh install`: without names, a list of the extras. Returns the exit status.

    With names it prints for scripts/env.sh the extras to install, on one line, and `EXTRA PACKAGE...`
    for each rival of theirs, which is removed first.
    """
    if not arguments or arguments[0].startswith("-"):
        show("usage: ./run.sh install EXTRA...\n\nInstalls optional parts into .venv:\n")
        width = max(map(len, EXTRAS))
        for name, about in EXTRAS.items():
            mark = "  (installed)" if all(map(_is_in_venv, _single([name]))) else ""
            show(f"  {name:<{width}}  {about}{mark}")
        return 0 if not arguments or arguments[0] in ("-h", "--help") else ConfigError.exit_status
    names = _single(arguments)
    try:
        _check_names(names)
    except HarnessError as e:
        say(str(e))
        return e.exit_status
    show(" ".join(names))
    for name in names:
        if name in RIVALS:
            rival, packages = RIVALS[name]
            show(f"{rival} {' '.join(packages)}")
    return 0


def _single(names: Sequence[str]) -> list[str]:
    """The names with those that `recommended` stands for in its place, each once."""
    parts = (RECOMMENDED if name == "recommended" else (name,) for name in names)
    return list(dict.fromkeys(chain.from_iterable(parts)))


def _is_in_venv(name: str) -> bool:
    return (ROOT / ".venv" / f".installed-{name}").is_file()


def _extra_of(name: str) -> str | None:
    """The extra that a plug-in or a shipped model of that name needs, '' for none; None where nothing has it."""
    from harness.core.registry import KINDS

    extras = [table[name].extra for table in KINDS.values() if name in table]
    if not extras and (Path(harness.__file__).parent / f"models/shipped/{name}.yaml").is_file():
        return ""
    return min(extras, default=None)


def _check_names(names: Sequence[str]) -> None:
    problems = []
    for name in names:
        if name not in EXTRAS and (own := _extra_of(name)) is not None:
            hint = (
                f"comes with the extra {own}: name that"
                if own
                else "needs no extra: it is installed"
            )
            problems.append(f"{name!r} {hint}")
        elif name not in EXTRAS:
            near = get_close_matches(name, EXTRAS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "`./run.sh install` lists them"
            problems.append(f"no extra named {name!r}: {hint}")
        elif name in RIVALS and RIVALS[name][0] in names:
            both = " and ".join(sorted((name, RIVALS[name][0])))
            problems.append(f"{both} provide the same module: name one")
    refuse(dict.fromkeys(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
