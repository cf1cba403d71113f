"""Writes a configuration for --config that applies the best measured advice, and commands that verify the gain."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from harness.core.config.run_config import RunConfig, to_plain
from harness.core.console import program
from harness.core.files import sha256
from harness.core.formats.strict_yaml import write_yaml
from harness.core.units import show_percent
from harness.explain.advise.content import AdviceEntry, Content
from harness.explain.advise.layers.settings import INT8, PARALLEL, SEQUENTIAL, parse_setting
from harness.results import resolved

CONFIG = "faster.yaml"
BEFORE = "before.yaml"
"""Configuration without the advice."""

INT8_FILE = "int8.onnx"
"""The int8 model in the result folder."""


def write(advice: Content, run: Mapping[str, Any], folder: Path) -> None:
    """Writes CONFIG and BEFORE if a setting that the backend `ort` can apply was faster in a measurement. advice: the
    content of advise.json. run: the run options passed to `advise`.
    """
    chosen = best_measured(advice)
    if chosen is None:
        return
    for name, text in ((BEFORE, advice["now"]), (CONFIG, chosen["setting"])):
        config = replace(
            RunConfig(scenario="offline", **run),
            # Without this value, each run's warm-up would choose a batch size.
            max_batch=advice["batch"],
            **_options(text, folder),
        )
        write_yaml(folder / name, to_plain(replace(config, **resolved.absolute(config))))


def _options(setting: str, folder: Path) -> Mapping[str, Any]:
    """Returns the run options that apply a setting."""
    parsed = parse_setting(setting)
    options: dict[str, Any] = {
        "threads": parsed.threads,
        "backend_option": (("graph", parsed.graph),),
    }
    if parsed.precision == INT8:
        file = (folder / INT8_FILE).absolute()
        options |= {"model_file": file, "model_sha256": sha256(file)}
    return options


def lines(advice: Content, folder: Path) -> list[str]:
    """Returns lines with the commands that apply and verify the advice. The list is empty if no setting was faster in a
    measurement.
    """
    chosen = best_measured(advice)
    if chosen is not None and (folder / CONFIG).is_file():
        needs = [f"{'decide':<12}{chosen['needs']}"] if chosen["needs"] else []
        return [
            f"{'faster':<12}{saved(chosen)}",
            *needs,
            *(f"{label:<12}{command}" for label, command in commands(advice, folder)),
        ]
    parallel = [one for one in _measured_faster(advice) if _execution(one) == PARALLEL]
    return [
        f"{'take it':<12}{one['change']}: backend ort has no option that sets this"
        for one in parallel
    ][:1]


def commands(advice: Content, folder: Path) -> list[tuple[str, str]]:
    """Returns the labelled commands that apply and verify the advice. The list is empty if CONFIG was not written."""
    chosen = best_measured(advice)
    file = folder / CONFIG
    if chosen is None or not file.is_file():
        return []
    take = f"{program()} --config {quote(str(file))}"
    return [("take it", take), *(("prove it", proof) for proof in _proof(chosen, folder))]


def saved(one: AdviceEntry) -> str:
    """Formats a measured change and its gain."""
    return f"{one['change']}, {show_percent(realised_gain(one), 1)} of the time saved"


def realised_gain(one: AdviceEntry) -> float:
    """Returns the gain of a setting that was measured."""
    realised = one["realised"]
    assert realised is not None
    return realised["gain"]


def _proof(chosen: AdviceEntry, folder: Path) -> list[str]:
    """Returns a command that runs both configurations, repeats them alternately and compares them.

    Returns [] if the int8 file has no accuracy score, because the accuracy cost of the change is then unknown.
    """
    is_int8 = parse_setting(chosen["setting"]).precision == INT8
    if is_int8 and (chosen["accuracy"] or {}).get("score") is None:
        return []
    before, after = (quote(f"{folder}-{word}") for word in ("before", "faster"))
    # One call at a time, as `advise` measured: with fewer threads, the harness would use more instances.
    runs = [
        f"{program()} --config {quote(str(folder / name))} --instances 1 --out {out}"
        for name, out in ((BEFORE, before), (CONFIG, after))
    ]
    compared = f"{program()} rerun {before} {after}" + " --optimised" * is_int8
    return [" && ".join([*runs, compared])]


def best_measured(advice: Content) -> AdviceEntry | None:
    """Returns the setting that saved the most time.

    Prefers settings that do not need a decision by the user, and skips int8 if it breaks the model.
    """
    able = [one for one in _measured_faster(advice) if _execution(one) == SEQUENTIAL]
    sound = [one for one in able if not (one["accuracy"] or {}).get("broken")]
    return max(sound, key=lambda one: (not one["needs"], realised_gain(one)), default=None)


def _measured_faster(advice: Content) -> list[AdviceEntry]:
    return [one for one in advice["advice"] if one["verdict"] == "faster"]


def _execution(one: AdviceEntry) -> str:
    return parse_setting(one["setting"]).execution
