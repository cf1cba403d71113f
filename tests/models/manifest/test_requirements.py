"""A manifest's requirements are checked before anything is loaded, and each failure is one line."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.core.extras import how_to_install_packages
from harness.models.manifest import requirements
from harness.models.manifest.model import MODELS_DIR
from harness.models.manifest.requirements import Environment, problems, satisfies
from harness.models.manifest.schema import Requires
from tests.builders.refusals import refused

MACHINE = Environment("onnxruntime", "onnxruntime-gpu", "1.31.1", 4096, frozenset({"avx2", "fma"}))


@pytest.mark.parametrize(
    ("have", "wanted", "holds"),
    [
        ("1.31.1", ">=1.20", True),
        ("1.9", ">=1.20", False),
        ("1.20", "==1.20.0", True),
        ("1.20.1", "==1.20", False),
        ("1.20.1", "!=1.20", True),
        ("1.20", ">1.20", False),
        ("1.20", "<=1.20.0", True),
        ("2.0", ">=1.20, <2", False),
        ("1.31.1", ">= 1.20 , < 2", True),
        ("2.13.0+cpu", ">=2.13", True),
        ("2.21.0rc1", "<2.21", False),
        ("10.0", ">9.9.9", True),
        ("2.6.0a0+ecf3bae", ">=2.6", True),
        ("2.7.3", "~=2.6", True),
        ("3.0", "~=2.6", False),
        ("2.6.9", "==2.6.*", True),
        ("1.5", ">1.0, !=1.5", False),
        ("built-here", ">=99", True),
    ],
)
def test_versions_are_compared_like_package_versions(have: str, wanted: str, holds: bool) -> None:
    assert satisfies(have, wanted) is holds


def test_every_problem_has_its_line() -> None:
    requires = Requires(
        frameworks={"onnxruntime": ">=1.99", "tensorflow": ">=9"},
        ram_mb=10_000,
        cpu_flags=("avx2", "amx_tile", "avx512f"),
    )
    assert list(problems("m", requires, MACHINE)) == [
        (
            "model 'm' requires onnxruntime >=1.99, but 1.31.1 is installed: "
            + how_to_install_packages("onnxruntime-gpu>=1.99")
        ),
        (
            "model 'm' requires 10,000 MiB of memory, but only 4,096 MiB are free: close other programs, or "
            "run it on a larger machine"
        ),
        (
            "model 'm' requires a CPU with avx2, amx_tile, avx512f, but this one lacks amx_tile, "
            "avx512f: run it on a different machine"
        ),
    ]


def test_met_requirement_prints_nothing() -> None:
    requires = Requires(
        frameworks={"onnxruntime": ">=1.20, <2"}, ram_mb=4096, cpu_flags=("fma", "avx2")
    )
    assert list(problems("m", requires, MACHINE)) == []


def test_unknown_property_of_the_machine_breaks_no_requirement() -> None:
    nothing = Environment(None, None, None, 1 << 20, frozenset())
    requires = Requires(frameworks={"torch": ">=99"}, cpu_flags=("avx512f",))
    assert list(problems("m", requires, nothing)) == []


def test_this_machine_can_be_read() -> None:
    found = requirements.read_environment("onnxruntime")
    assert found.version is not None
    assert satisfies(found.version, ">=1.22")
    assert found.ram_mb > 0
    assert requirements.read_environment("no_such_module").version is None


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"frameworks": {"onnx": ">=1"}}, "requires.frameworks.onnx"),
        ({"frameworks": {"torch": "~=2"}}, "requires.frameworks.torch"),
        ({"frameworks": {"torch": ""}}, "requires.frameworks.torch"),
        ({"frameworks": {"torch": "2.1"}}, "requires.frameworks.torch"),
        ({"ram_mb": 0}, "requires.ram_mb"),
        ({"cpu_flags": ["AVX 512"]}, "requires.cpu_flags.0"),
        ({"gpu": "any"}, "requires.gpu"),
    ],
)
def test_a_wrong_requirement_is_an_error_that_names_the_field(
    change: dict[str, Any], field: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.yaml"
    content = yaml.safe_load((MODELS_DIR / "digits.yaml").read_text())
    path.write_text(yaml.safe_dump({**content, "requires": change}))
    (line,) = refused("--scenario", "offline", "--model", path)
    assert f"{path}: " in line
    assert repr(field) in line.replace(".[key]", "")


def test_command_reports_all_problems_before_it_loads_the_model(tmp_path: Path) -> None:
    content = yaml.safe_load((MODELS_DIR / "digits.yaml").read_text())
    content["requires"] = {"frameworks": {"onnxruntime": ">=99"}, "ram_mb": 10**9}
    content["files"] = {"onnx": {"path": "nowhere.onnx", "sha256": None}}
    path = tmp_path / "m.yaml"
    path.write_text(yaml.safe_dump(content))
    none = tmp_path / "none"
    lines = refused("--scenario", "offline", "--model", path, "--data-dir", none)
    assert ["requires" in line for line in lines] == [False, True, True]
