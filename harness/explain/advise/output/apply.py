"""Writes the configuration that applies the best measured advice, for --config."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.core.config.run_config import RunConfig, to_plain
from harness.core.console import program
from harness.core.files import sha256
from harness.core.formats.strict_yaml import write_yaml
from harness.core.units import show_percent
from harness.explain.advise.layers.settings import INT8, PARALLEL, SEQUENTIAL, parse_setting
from harness.results import resolved

CONFIG = "faster.yaml"
INT8_FILE = "int8.onnx"
"""The int8 model in the result folder."""


def write(advice: Mapping[str, Any], run: Mapping[str, Any], folder: Path) -> None:
    """Writes CONFIG where a setting was measured to be faster and the backend `ort` has options for it.
    advice: the content of advise.json. run: the run options passed to `advise`.
    """
    chosen = _faster(advice)
    if chosen is None:
        return
    setting = parse_setting(chosen["setting"])
    changed: dict[str, Any] = {
        "threads": setting.threads,
        "backend_option": (("graph", setting.graph),),
    }
    if setting.precision == INT8:
        file = (folder / INT8_FILE).absolute()
        changed |= {"model_file": file, "model_sha256": sha256(file)}
    config = replace(RunConfig(scenario="offline", **run), **changed)
    write_yaml(folder / CONFIG, to_plain(replace(config, **resolved.absolute(config))))


def lines(advice: Mapping[str, Any], folder: Path) -> list[str]:
    """The command that applies the advice; nothing where no setting was measured to be faster."""
    chosen = _faster(advice)
    file = folder / CONFIG
    if chosen is not None and file.is_file():
        gain = show_percent(chosen["realised"]["gain"], 1, signed=True)
        about = f"{chosen['change']}, {gain} of the time saved"
        needs = [f"{'decide':<12}{chosen['needs']}"] if chosen["needs"] else []
        command = f"{program()} --config {file}"
        return [f"{'faster':<12}{about}", *needs, f"{'take it':<12}{command}"]
    parallel = [one for one in _measured_faster(advice) if _execution(one) == PARALLEL]
    return [
        f"{'take it':<12}{one['change']}: no option of the backend ort sets this"
        for one in parallel
    ][:1]


def _faster(advice: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The setting to take: of those that need no decision the one that saved the most time, else of the
    others. int8 that breaks the model is none.
    """
    able = [one for one in _measured_faster(advice) if _execution(one) == SEQUENTIAL]
    sound = [one for one in able if not (one["accuracy"] or {}).get("broken")]
    return max(sound, key=lambda one: (not one["needs"], one["realised"]["gain"]), default=None)


def _measured_faster(advice: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [one for one in advice["advice"] if one["verdict"] == "faster"]


def _execution(one: Mapping[str, Any]) -> str:
    return parse_setting(one["setting"]).execution
