"""Advice on installing extras is right in every kind of environment, and ./run.sh install works."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from harness.core import extras
from harness.core.extras import EXTRAS, RECOMMENDED, RIVALS, how_to_install, how_to_install_packages

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DECLARED = PYPROJECT["project"]["optional-dependencies"]
METADATA = [
    "numpy>=2.0",
    'openvino>=2025.0; extra == "openvino"',
    'onnxruntime>=1.22; extra == "ort"',
    'onnxruntime-gpu>=1.22; extra == "ort-gpu"',
    'tensorflow[and-cuda]>=2.19; extra == "tensorflow-gpu"',
    'pywin32; sys_platform == "win32" and extra == "openvino"',
    'opencv-python-headless>=4.11; extra == "images"',
    'simplejpeg>=1.7; extra == "images"',
]


def test_every_extra_says_what_it_is_for() -> None:
    assert {*EXTRAS} == {*DECLARED, *PYPROJECT["dependency-groups"]}
    table = re.findall(r"^\| `([a-z-]+)` \|", (ROOT / "docs/install.md").read_text(), re.MULTILINE)
    assert table == list(EXTRAS)


def test_recommended_equals_its_listed_extras() -> None:
    """pyproject.toml lists the extras one by one, because an installer would look up `mlperf-harness[ort]` in an index."""
    parts = [requirement for name in RECOMMENDED for requirement in DECLARED[name]]
    assert sorted(parts) == sorted(DECLARED["recommended"])
    assert EXTRAS["recommended"] == "{}, {} and {}".format(*RECOMMENDED)


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_constraints_pin_every_package_that_is_named(version: str) -> None:
    """Bug: a merge lost numpy's line for Python 3.11, so installations got different versions."""
    here = {"python_version": version, "python_full_version": f"{version}.0", "extra": ""}
    here |= {"platform_machine": "x86_64", "sys_platform": "linux"}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {
        canonicalize_name(pin.name): next(iter(pin.specifier)).version
        for pin in map(Requirement, (line for line in lines if not line.startswith("#")))
        if pin.marker is None or pin.marker.evaluate(here)
    }
    extras = (texts for name, texts in DECLARED.items() if not name.endswith("-gpu"))
    groups = (*extras, PYPROJECT["project"]["dependencies"], PYPROJECT["dependency-groups"]["dev"])
    for one in map(Requirement, (text for texts in groups for text in texts)):
        if one.marker is None or one.marker.evaluate(here):
            assert one.specifier.contains(pins[canonicalize_name(one.name)]), one


def test_rivals_name_each_other_and_declared_packages() -> None:
    for extra, (rival, packages) in RIVALS.items():
        assert RIVALS[rival][0] == extra
        declared = {Requirement(text).name for text in DECLARED[rival]}
        assert set(packages) <= declared


def test_no_text_advises_to_install_this_project_from_an_index() -> None:
    """Bug: messages advised pip install 'mlperf-harness[X]', a name that a stranger could register."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    wrong = re.compile(r"mlperf-harness\[|pip install ['\"]?mlperf-harness")
    found = [
        name
        for name in listed.stdout.splitlines()
        if name.endswith((".py", ".md", ".sh", ".yaml", ".yml"))
        and name != "tests/core/test_extras.py"
        if (ROOT / name).is_file() and wrong.search((ROOT / name).read_text(errors="replace"))
    ]
    assert found == []


class Environment:
    """The properties of an environment that `how_to_install` sees."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.patch, self.folder = monkeypatch, tmp_path
        self.metadata(METADATA)
        self.packages(())
        self.patch.setattr(extras, "find_spec", lambda _name: object())
        self.patch.setattr(extras, "ROOT", tmp_path / "a checkout")
        self.patch.setattr(sys, "prefix", str(tmp_path / "env"))
        self.patch.setattr(sys, "executable", str(tmp_path / "env/bin/python"))
        self.patch.setattr(shutil, "which", lambda _name: sys.executable)
        (tmp_path / "a checkout/.venv").mkdir(parents=True)

    def metadata(self, requirements: Iterable[str] | None) -> None:
        def requires(name: str) -> list[str]:
            assert name == "mlperf-harness"
            if requirements is None:
                raise importlib.metadata.PackageNotFoundError(name)
            return list(requirements)

        self.patch.setattr(importlib.metadata, "requires", requires)

    def packages(self, installed: Iterable[str]) -> None:
        self.patch.setattr(extras, "_is_installed", lambda name: name in installed)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Environment:
    return Environment(monkeypatch, tmp_path)


def test_in_the_checkout_environment_the_command_is_run_sh(environment: Environment) -> None:
    root = environment.folder / "a checkout"
    environment.patch.setattr(sys, "prefix", str(root / ".venv"))
    environment.patch.chdir(root)
    assert how_to_install("openvino", "onnx") == "./run.sh install openvino onnx"
    assert how_to_install("ort-gpu") == "./run.sh install ort-gpu"
    # The printed path is quoted, because it contains a space.
    environment.patch.chdir(environment.folder)
    assert how_to_install("openvino") == f"'{root}/run.sh' install openvino"


def test_outside_a_checkout_the_command_installs_packages_with_versions(
    environment: Environment,
) -> None:
    assert how_to_install("openvino") == "python -m pip install 'openvino>=2025.0'"
    assert how_to_install("images") == (
        "python -m pip install 'opencv-python-headless>=4.11' 'simplejpeg>=1.7'"
    )
    gpu = "python -m pip install 'tensorflow[and-cuda]>=2.19'"
    assert how_to_install("tensorflow-gpu") == gpu
    environment.patch.setattr(shutil, "which", lambda _name: "/usr/bin/python")
    assert how_to_install("openvino") == f"{sys.executable} -m pip install 'openvino>=2025.0'"


def test_without_pip_the_packages_are_named_and_no_command(environment: Environment) -> None:
    environment.patch.setattr(extras, "find_spec", lambda _name: None)
    assert how_to_install("openvino") == "install 'openvino>=2025.0' into this environment"
    assert how_to_install_packages("onnx==1.23.2") == "install onnx==1.23.2 into this environment"
    environment.packages({"onnxruntime"})
    assert how_to_install("ort-gpu") == (
        "remove onnxruntime, then install 'onnxruntime-gpu>=1.22' into this environment"
    )


def test_a_package_with_the_same_module_is_removed_first(environment: Environment) -> None:
    environment.packages({"onnxruntime"})
    assert how_to_install("ort-gpu") == (
        "python -m pip uninstall onnxruntime, then python -m pip install 'onnxruntime-gpu>=1.22'"
    )
    environment.packages(())
    assert how_to_install("ort-gpu") == "python -m pip install 'onnxruntime-gpu>=1.22'"


@pytest.mark.parametrize("metadata", [None, [], METADATA[:1]])
def test_a_checkout_that_is_installed_nowhere_is_started_with_run_sh(
    metadata: list[str] | None, environment: Environment
) -> None:
    environment.metadata(metadata)
    environment.patch.chdir(environment.folder / "a checkout")
    assert how_to_install("openvino") == "./run.sh install openvino, and start with ./run.sh"


FAKE_UV = """#!/usr/bin/env bash
[[ $1 != python ]] || exit 1
printf '%s\\n' "$*" >>"{log}"
if [[ $1 == venv ]]; then
    mkdir -p "{root}/.venv/bin" && ln -s "$(command -v python3)" "{root}/.venv/bin/python"
fi
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Returns a folder with the files that `./run.sh install` reads, and a stand-in for uv that only records its arguments."""
    root = tmp_path / "with space"
    (root / ".uv/bin").mkdir(parents=True)
    for name in ("run.sh", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, root / name)
    for name in ("scripts", "harness"):
        unwanted = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, root / name, ignore=unwanted)
    uv = root / ".uv/bin/uv"
    uv.write_text(FAKE_UV.format(log=tmp_path / "uv.log", root=root))
    uv.chmod(0o755)
    return root


def install(checkout: Path, *names: str, path: str = "") -> "subprocess.CompletedProcess[str]":
    """path: the value of PATH; by default, this process's PATH without the folders that contain uv."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    folders = env["PATH"].split(os.pathsep)
    without_uv = os.pathsep.join(folder for folder in folders if not (Path(folder) / "uv").exists())
    env["PATH"] = path or without_uv
    command = [str(checkout / "run.sh"), "install", *names]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


def uv_calls(checkout: Path) -> list[str]:
    log = checkout.parent / "uv.log"
    return log.read_text().splitlines() if log.is_file() else []


def test_install_without_names_lists_the_extras_and_marks_installed_ones(checkout: Path) -> None:
    (checkout / ".venv").mkdir()
    (checkout / ".venv/.installed-litert").touch()
    done = install(checkout)
    assert (done.returncode, done.stderr) == (0, "")
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.startswith("  ")}
    assert list(lines) == list(EXTRAS)
    assert all(EXTRAS[name] in line for name, line in lines.items())
    assert [name for name, line in lines.items() if "(installed)" in line] == ["litert"]
    assert install(checkout, "--help").stdout == done.stdout
    assert install(checkout, "--hlep").returncode == 2
    assert uv_calls(checkout) == []


def test_install_accepts_only_the_names_of_extras(checkout: Path) -> None:
    done = install(checkout, "openai", "tinylm", "map", "openvno", "xyzzy", "onnx")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "harness: 'openai' needs no extra: it is installed",
        "harness: 'tinylm' needs no extra: it is installed",
        "harness: 'map' comes with the extra coco: install coco",
        "harness: no extra named 'openvno': did you mean 'openvino'?",
        "harness: no extra named 'xyzzy': `./run.sh install` lists them",
    ]
    assert install(checkout, "ort", "ort-gpu").stderr == (
        "harness: ort and ort-gpu provide the same module: name one\n"
    )
    assert uv_calls(checkout) == []


ACTIVATION = "; for `python -m harness`, run `. .venv/bin/activate` once"


def test_install_puts_extras_into_the_environment_once(checkout: Path) -> None:
    first, second = (install(checkout, "openvino", "onnx") for _ in range(2))
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert first.stderr.splitlines() == [
        "run.sh: installing 'openvino' into .venv (first use)",
        "run.sh: installing 'onnx' into .venv (first use)",
        f"run.sh: installed in .venv: openvino onnx{ACTIVATION}",
    ]
    assert second.stderr == f"run.sh: installed in .venv: openvino onnx{ACTIVATION}\n"
    (_, call) = uv_calls(checkout)
    assert call.startswith("pip install ")
    assert call.endswith(" -c constraints.txt pip -e .[openvino,onnx]")


def test_recommended_is_installed_by_its_parts(checkout: Path) -> None:
    """Installs a package that `ort-gpu` partly replaces."""
    done = install(checkout, "recommended", "litert", "ort")
    assert done.stderr.splitlines()[-1] == (
        f"run.sh: installed in .venv: ort onnx report litert{ACTIVATION}"
    )
    assert uv_calls(checkout)[-1].endswith(" -e .[ort,onnx,report,litert]")
    listed = {line.split()[0]: line for line in install(checkout).stdout.splitlines() if line}
    assert listed["recommended"].endswith("(installed)")
    assert install(checkout, "ort-gpu").returncode == 0
    assert uv_calls(checkout)[-2].endswith(" onnxruntime")
    clash = install(checkout, "recommended", "ort-gpu").stderr
    assert clash == "harness: ort and ort-gpu provide the same module: name one\n"


def test_dev_is_installed_as_a_dependency_group(checkout: Path) -> None:
    assert install(checkout, "dev", "ort").returncode == 0
    assert uv_calls(checkout)[-1].endswith(" pip --group dev -e .[ort]")
    assert (checkout / ".venv/.installed-dev").is_file()


NEEDED = ("bash", "cat", "cksum", "dirname", "flock", "mkdir", "mktemp", "readlink", "rm", "ln")
"""The programs that run.sh calls, apart from Python and uv."""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Returns a folder for PATH with the programs that run.sh calls, but without Python, uv or a compiler."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in NEEDED:
        (folder / name).symlink_to(str(shutil.which(name)))
    return folder


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
    (folder / name).chmod(0o755)


def python(folder: Path, name: str, minor: int) -> None:
    """Writes a Python stand-in that reports version 3.minor."""
    version = f"import sys; sys.version_info = (3, {minor}, 0, 'final', 0); "
    text = f'if [[ $1 == -c ]]; then set -- -c "{version}$2"; fi\nexec {sys.executable} "$@"'
    program(folder, name, text)


def test_uv_is_taken_from_the_path_first(checkout: Path, programs: Path) -> None:
    """Bug: a machine with uv got a second uv, whereas a machine whose Python lacked pip got none."""
    python(programs, "python3", 13)
    (checkout / ".uv/bin/uv").rename(programs / "uv")
    done = install(checkout, "litert", path=str(programs))
    assert done.returncode == 0, done.stderr
    assert uv_calls(checkout)[-1].endswith(" -e .[litert]")


@pytest.mark.parametrize(
    ("minors", "expected"),
    [
        ({"python3": 14, "python3.12": 12, "python3.13": 13, "python3.14": 14}, "python3.13"),
        ({"python3": 11, "python3.13": 13}, "python3"),
        ({"python3": 10, "python3.14": 14}, "python3.14"),
    ],
)
def test_a_python_with_a_wheel_of_loadgen_is_preferred(
    minors: dict[str, int], expected: str, checkout: Path, programs: Path
) -> None:
    """Bug: run.sh chose a `python3` of version 3.14 although 3.13 was installed, too."""
    for name, minor in minors.items():
        python(programs, name, minor)
    done = install(checkout, "litert", path=str(programs))
    assert done.returncode == 0, done.stderr
    made = f"venv --quiet --clear --python {programs}/{expected} "
    assert uv_calls(checkout)[-2].startswith(made)


def test_without_a_python_it_says_how_to_get_one(checkout: Path, programs: Path) -> None:
    done = install(checkout, "litert", path=str(programs))
    assert done.returncode == 1
    assert done.stderr == (
        "run.sh: found no Python 3.11 or newer: install one, e.g. with `uv python install 3.13`\n"
    )


@pytest.mark.parametrize(
    ("machine", "minor", "compiler", "cause"),
    [
        ("aarch64", 13, False, "LoadGen has no wheel for Python 3.13 on Linux aarch64, and compiling"),
        ("x86_64", 14, False, "LoadGen has no wheel for Python 3.14 on Linux x86_64, and compiling"),
        ("aarch64", 13, True, "the installer's output is above"),
        ("x86_64", 13, False, "the installer's output is above"),
    ],
)  # fmt: skip
def test_a_failed_install_says_where_a_compiler_is_missing(
    machine: str, minor: int, compiler: bool, cause: str, checkout: Path, programs: Path
) -> None:
    python(programs, "python3", minor)
    program(programs, "uname", f"echo {machine}")
    program(checkout / ".uv/bin", "uv", "echo the output of uv >&2; exit 1")
    if compiler:
        program(programs, "c++", "")
    (checkout / ".venv/bin").mkdir(parents=True)
    fails = f'[[ $1 == -m ]] && exit 1; exec {sys.executable} "$@"'
    program(checkout / ".venv/bin", "python", fails)
    done = install(checkout, "litert", path=str(programs))
    assert (done.returncode, done.stdout) == (1, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"run.sh: installing core litert into .venv failed: {cause}")
    assert "the output of uv" in done.stderr


@pytest.mark.parametrize(
    "line",
    [
        "  Caused by: dns error: failed to lookup address information",
        "WARNING: Retrying after connection broken by 'NewConnectionError(...)': /simple/pip/",
        "  Caused by: tcp connect error",
    ],
)
def test_an_install_without_a_network_names_it(line: str, checkout: Path) -> None:
    """Bug: the last line before ours was pip's complaint about conflicting package versions."""
    conflict = (
        "ERROR: Cannot install pip because these package versions have conflicting dependencies."
    )
    program(checkout / ".uv/bin", "uv", f'printf "%s\\n" "{line}" "{conflict}" >&2; exit 1')
    (checkout / ".venv/bin").mkdir(parents=True)
    program(
        checkout / ".venv/bin",
        "python",
        f'[[ $1 == -m ]] && exit 1; exec {sys.executable} "$@"',
    )
    done = install(checkout, "litert")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "run.sh: installing core litert into .venv failed: the package index cannot be reached: connect to the "
        "network, or download the wheels elsewhere and put PIP_FIND_LINKS=FOLDER before the command; the "
        "installer's output is above"
    )


def test_a_checkout_that_cannot_be_written_is_named_in_one_line(checkout: Path) -> None:
    """Bug: bash's message, `.uv/lock: Permission denied`, was printed before ours."""
    # The lock is a folder, because the superuser may write to any file.
    (checkout / ".uv/lock").mkdir()
    done = install(checkout, "litert")
    assert done.stderr == f"run.sh: cannot write in {checkout}\n"


def test_a_python_without_pip_and_ensurepip_is_named(checkout: Path, programs: Path) -> None:
    """Simulates Debian's python3 without python3-pip and python3-venv."""
    shutil.rmtree(checkout / ".uv/bin")
    fails = '[[ $1 == -m || $2 == "import pip" || $2 == "import ensurepip" ]] && exit 1'
    program(programs, "python3", f'{fails}\nexec {sys.executable} "$@"')
    done = install(checkout, "litert", path=str(programs))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"run.sh: installing core litert into .venv failed: {programs}/python3 has no pip and no "
        "ensurepip: install uv, or python3-venv on Debian; the installer's output is above"
    )


def test_a_gpu_build_replaces_the_cpu_build_and_back(checkout: Path) -> None:
    """Both ONNX Runtime packages provide the module onnxruntime, so the one installed last would overwrite only some of
    the files.
    """
    stamps = [
        {p.name for p in (checkout / ".venv").glob(".installed-ort*")}
        for extra in ("ort", "ort-gpu", "ort")
        if install(checkout, extra).returncode == 0
    ]
    assert stamps == [{".installed-ort"}, {".installed-ort-gpu"}, {".installed-ort"}]
    changes = [call.split()[1:] for call in uv_calls(checkout) if call.startswith("pip ")]
    assert [(words[0], words[-1]) for words in changes] == [
        ("install", ".[ort]"),
        ("uninstall", "onnxruntime"),
        ("install", ".[ort-gpu]"),
        ("uninstall", "onnxruntime-gpu"),
        ("install", ".[ort]"),
    ]


def test_a_run_keeps_the_gpu_build(checkout: Path) -> None:
    assert install(checkout, "ort-gpu", "report").returncode == 0
    before = uv_calls(checkout)
    subprocess.run([str(checkout / "run.sh"), "--version"], capture_output=True, check=False)
    assert uv_calls(checkout) == before


@pytest.mark.parametrize("config", ["run/config.yaml", "run"])
def test_a_run_installs_the_backend_of_its_configuration(config: str, checkout: Path) -> None:
    """Bug: if --config was a run's folder, which stands for its config.yaml, `ort` was installed."""
    (checkout / "run").mkdir()
    (checkout / "run/config.yaml").write_text("scenario: offline\nbackend: litert\n")
    command = [str(checkout / "run.sh"), "--config", config]
    subprocess.run(command, capture_output=True, check=False, cwd=checkout)
    assert [call.split()[-1] for call in uv_calls(checkout)][1:] == [".[litert,report]"]


def test_the_list_needs_no_installed_package() -> None:
    command = [sys.executable, "-S", "-P", "-m", "harness.cli.start.install"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert (done.returncode, done.stderr) == (0, "")
