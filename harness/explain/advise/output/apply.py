"""Writes the configuration that applies the top advice, for --config."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.core import files
from harness.core.config.run_config import RunConfig, to_plain
from harness.core.console import program
from harness.explain.advise.layers.settings import INT8, PARALLEL, SEQUENTIAL, parse_setting
from harness.results import resolved

CONFIG = "faster.yaml"
INT8_FILE = "int8.onnx"
"""The int8 model in the result folder."""


def write(advice: Mapping[str, Any], run: Mapping[str, Any], folder: Path) -> None:
    """Writes CONFIG where the top advice was measured to be faster and the backend `ort` has
    options for it.
    advice: the content of advise.json. run: the run options passed to `advise`.
    """
    top = advice["top"]
    if not top or top["verdict"] != "faster":
        return
    setting = parse_setting(top["setting"])
    if setting.execution != SEQUENTIAL:
        return
    changed: dict[str, Any] = {
        "threads": setting.threads,
        "backend_option": (("graph", setting.graph),),
    }
    if setting.precision == INT8:
        changed["model_file"] = (folder / INT8_FILE).absolute()
    config = replace(RunConfig(scenario="offline", **run), **changed)
    files.write_yaml(folder / CONFIG, to_plain(replace(config, **resolved.absolute(config))))


def lines(advice: Mapping[str, Any], folder: Path) -> list[str]:
    """The command that applies the top advice; nothing where there is none."""
    top = advice["top"]
    if not top or top["verdict"] != "faster":
        return []
    file = folder / CONFIG
    if file.is_file():
        return [f"{'take it':<12}{program()} --config {file}"]
    if parse_setting(top["setting"]).execution == PARALLEL:
        return [f"{'take it':<12}{top['change']}: no option of the backend ort sets this"]
    return []
