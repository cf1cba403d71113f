"""Reads Server's rate from a finished `peak` search or from the user's user.conf."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.core.config.parse import Slo, parse_slo
from harness.core.config.run_config import RunConfig, to_plain
from harness.core.console import say
from harness.core.files import read_json
from harness.core.formats.strict_yaml import load_yaml
from harness.core.numbers import number
from harness.errors import ConfigError
from harness.loadgen import user_conf
from harness.models.manifest.lookup import is_path
from harness.results.run_folder import PEAK
from harness.submit.plan.attempts import asked_file, attempts

SEARCH = "Server-peak"
"""Name of the search in the list of planned runs."""


def of_peak(path: Path, options: Mapping[str, Any]) -> tuple[float, Slo]:
    """Returns the rate in queries/s that a finished `peak` search found, and the search's SLO. Prints the search's
    warnings.

    path: the search's folder or its peak.json. options: the options for this request's runs. Raises a ConfigError if
    the search did not end, did not find a rate, or used a different model or backend.
    """
    file = path / PEAK if path.is_dir() else path
    content = read_json(file)
    if content.get("scenario") != "server" or content.get("unit") != "queries/s":
        raise ConfigError(
            f"--peak {file} is not a search for Server's rate: make one with `peak --scenario server`"
        )
    rate = number(content.get("peak"))
    if rate is None or not rate > 0:
        raise ConfigError(f"--peak {file} has no rate: pass a different search")
    for key, default in (("model", "digits"), ("backend", "ort")):
        expected, searched_for = str(options.get(key, default)), str(content.get(key))
        if _name(expected) != _name(searched_for):
            raise ConfigError(
                f"--peak {file} used --{key} {searched_for}, but this request has {expected}: pass "
                f"a search with --{key} {expected}"
            )
    try:
        slo = parse_slo(str(content.get("slo")))
    except ValueError as e:
        raise ConfigError(f"--peak {file}: {e}") from None
    if slo.of:
        raise ConfigError(f"--peak {file} used the bound {slo}: pass a search with a latency bound")
    warnings = content.get("warnings")
    for text in warnings if isinstance(warnings, list) else ():
        say(f"--peak {file}: {text}")
    return float(rate), slo


def _name(name: str) -> str:
    """Returns the file name in a path, because different folders may lead to the same file."""
    return Path(name).name if is_path(name) else name


def of_user_conf(path: Path, model: str) -> float | None:
    """Returns Server's target_qps in the user's file; None if the file does not set it."""
    rate = user_conf.value(user_conf.lint(path), model, "Server", "target_qps")
    return float(rate) if rate is not None else None


def searched(work: Path, config: RunConfig) -> float | None:
    """Returns the rate that the newest search in `work` found; None if the search did not end or used other settings."""
    folders = attempts(work, SEARCH)
    if not folders:
        return None
    try:
        if load_yaml(asked_file(folders[-1])) != to_plain(config):
            return None
        rate = read_json(folders[-1] / PEAK).get("peak")
    except ConfigError:
        return None
    ended = not folders[-1].name.endswith(".partial")
    return float(rate) if ended and isinstance(rate, int | float) else None
