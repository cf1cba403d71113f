"""Server's rate: given, of the user's user.conf, of a `peak` made before, or found by one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.core.config.parse import Slo, parse_slo
from harness.core.config.run_config import RunConfig, to_plain
from harness.core.console import say
from harness.core.files import read_json
from harness.core.formats.strict_yaml import load_yaml
from harness.errors import ConfigError
from harness.loadgen import user_conf
from harness.models.manifest.lookup import is_path
from harness.results.run_folder import PEAK
from harness.submit.plan.attempts import asked_file, attempts

SEARCH = "Server-peak"
"""The folder of its runs."""


def of_peak(path: Path, options: Mapping[str, Any]) -> tuple[float, Slo]:
    """What a finished `peak` found, in queries/s, and under which SLO.

    path: its folder, or its peak.json. options: of this request's runs. A ConfigError where the
    search did not end, found nothing, or was of another model or backend. Its warnings are told.
    """
    file = path / PEAK if path.is_dir() else path
    content = read_json(file)
    if content.get("scenario") != "server" or content.get("unit") != "queries/s":
        raise ConfigError(f"--peak {file} is no search for Server's rate: `peak --scenario server`")
    rate = content.get("peak")
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not rate > 0:
        raise ConfigError(f"--peak {file} found no rate that passes: pass another")
    for key, default in (("model", "digits"), ("backend", "ort")):
        wanted, found = str(options.get(key, default)), str(content.get(key))
        if _name(wanted) != _name(found):
            raise ConfigError(f"--peak {file} is of --{key} {found}: this is for {wanted}")
    try:
        slo = parse_slo(str(content.get("slo")))
    except ValueError as e:
        raise ConfigError(f"--peak {file}: {e}") from None
    warnings = content.get("warnings")
    for text in warnings if isinstance(warnings, list) else ():
        say(f"--peak {file}: {text}")
    return float(rate), slo


def _name(name: str) -> str:
    """The same file may be named from another folder."""
    return Path(name).name if is_path(name) else name


def of_user_conf(path: Path, model: str) -> float | None:
    """What the user's file gives LoadGen; None where it leaves the rate open."""
    found = user_conf.value(user_conf.lint(path), model, "Server", "target_qps")
    return float(found) if found is not None else None


def searched(work: Path, config: RunConfig) -> float | None:
    """What the newest search in `work` found; None where it has not ended, or was asked otherwise."""
    made = attempts(work, SEARCH)
    if not made:
        return None
    try:
        if load_yaml(asked_file(made[-1])) != to_plain(config):
            return None
        rate = read_json(made[-1] / PEAK).get("peak")
    except ConfigError:
        return None
    ended = not made[-1].name.endswith(".partial")
    return float(rate) if ended and isinstance(rate, int | float) else None
