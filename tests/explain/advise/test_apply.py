"""Files by which a user applies the top advice of `advise`."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.core.config.run_config import from_plain
from harness.explain.advise.output import apply


def advice(setting: str, verdict: str = "faster") -> dict[str, Any]:
    return {
        "top": {"setting": setting, "verdict": verdict, "change": setting.rsplit(maxsplit=1)[-1]}
    }


def test_a_configuration_runs_the_int8_file(tmp_path: Path) -> None:
    """Bug: `take it`, and neither a file nor a command."""
    one = advice("graph=all threads=1 execution=sequential precision=int8")
    apply.write(one, {"backend": "ort", "model": "digits"}, tmp_path)
    plain = yaml.safe_load((tmp_path / "faster.yaml").read_text())
    config = from_plain(plain, "faster.yaml")
    assert (config.model, config.threads) == ("digits", 1)
    assert config.model_file == tmp_path / "int8.onnx"
    assert config.backend_option == (("graph", "all"),)
    lines = apply.lines(one, tmp_path)
    assert lines == [f"take it     python -m harness --config {tmp_path}/faster.yaml"]


@pytest.mark.parametrize(
    ("advice_json", "output"),
    [
        (advice("graph=all threads=1 execution=sequential precision=file", "slower"), []),
        ({"top": None}, []),
        (
            advice("graph=all threads=2 precision=file execution=parallel"),
            ["take it     execution=parallel: no option of the backend ort sets this"],
        ),
    ],
    ids=["slower", "nothing", "no option"],
)
def test_where_nothing_can_be_taken_nothing_is_written(
    advice_json: dict[str, Any], output: list[str], tmp_path: Path
) -> None:
    apply.write(advice_json, {"backend": "ort", "model": "digits"}, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert apply.lines(advice_json, tmp_path) == output
