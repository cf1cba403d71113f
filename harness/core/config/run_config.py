"""Defines RunConfig, a run's options without contradictions. The module reads a RunConfig from text and writes it as
YAML values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from harness.core.config.options import option_key, parse_values
from harness.core.config.parse import Cancel, LoadHosts, Ramp
from harness.core.config.problems import NO_SCENARIO, problems
from harness.core.config.schema import RunOptions
from harness.core.registry import DEFAULT_MODEL, default_model
from harness.core.units import write_duration
from harness.errors import ConfigError, refuse, some_of

SCHEMA_VERSION = 1
"""Version of the formats of config.yaml and result.json. The harness refuses files with a newer version."""

_NOT_REPEATED = (
    "out",
    "metrics",
    "no_metrics",
    "metrics_linger_ns",
    "metrics_push",
    "no_report",
    "sign",
)
"""Fields that are not copied when a run is repeated: the folder, metrics, report and signature."""


_OF_SERVERS = ("inputs_on_wire", "insecure", "no_resend", "qdl", "yes_load_this_host")
"""Flags that affect only runs against servers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig(RunOptions):
    """A run's options. The constructor raises a single ConfigError that lists every contradiction."""

    def __post_init__(self) -> None:
        refuse(problems(self))

    @classmethod
    def of(cls, **options: object) -> "RunConfig":
        """Makes a RunConfig from options with the keys and values that a file would contain: `duration="3s"`,
        `slo="p99=20ms"`.

        An option that may be repeated takes a list. Raises a single ConfigError that lists every problem.
        """
        problems: list[str] = []
        return make_config(config_from(options, "RunConfig.of", problems), problems)


def config_from(raw: Mapping[str, object], source: str, problems: list[str]) -> dict[str, Any]:
    """Converts texts or YAML values (by option key) to values (by field). Appends to `problems` instead of raising
    errors.
    """
    if "backend" in raw and raw["backend"] is None:
        raw = {**raw, "backend": "null"}  # YAML reads the bare word null as None
    return parse_values(RunConfig, raw, source, problems)


def make_config(values: Mapping[str, Any], problems: Sequence[str] = ()) -> RunConfig:
    """Makes a RunConfig. Raises a single ConfigError that lists `problems` and the contradictions between the values.

    If no model is set, uses the backend's default model.
    """
    own = default_model(values.get("backend", ""))
    if own != DEFAULT_MODEL and values.get("models") is None:
        values = {"model": own, **values}
    try:
        config = RunConfig(**{"scenario": "", **values})
    except ConfigError as e:
        reported = ("no scenario named", NO_SCENARIO)
        is_reported = any(text in line for line in problems for text in reported)
        more = [n for n in str(e).splitlines() if not (is_reported and n.startswith(NO_SCENARIO))]
        raise ConfigError(some_of([*problems, *more])) from None
    if problems:
        raise ConfigError(some_of(problems))
    return config


def from_plain(plain: Mapping[str, object], source: str = "setup") -> RunConfig:
    problems: list[str] = []
    raw = {k: v for k, v in plain.items() if k != "schema_version"}
    return make_config(config_from(raw, source, problems), problems)


def to_plain(config: RunConfig) -> dict[str, object]:
    """Returns YAML values by option key, except options that are not set or are in `_NOT_REPEATED`."""
    values: dict[str, object] = {"schema_version": SCHEMA_VERSION}
    for f in fields(config):
        value = getattr(config, f.name)
        unset = value is None or value == () or (value is False and f.name in _OF_SERVERS)
        if f.name not in _NOT_REPEATED and not unset:
            values[option_key(f)] = _plain(f.name, value)
    return values


_PAIRS = (
    *("backend_option", "provider_option", "dataset_option", "input_range", "lengths"),
    *("plugin_sha256", "header"),
)
"""Options of the form KEY=VALUE."""


def _plain(name: str, value: Any) -> object:
    if name.endswith("_ns"):
        return write_duration(value)
    if name == "price":
        value = f"{value}/h"
    if name == "input_shape":
        return [f"{key}={'x'.join(map(str, shape))}" for key, shape in value]
    if name == "meter":
        return [f"{meter}={argument}" if argument else meter for meter, argument in value]
    if name in ("url", "slo", "node_urls"):
        texts = list(map(str, value))
        return texts[0] if name == "slo" and len(texts) == 1 else texts
    if name in _PAIRS:
        return [f"{key}={text}" for key, text in value]
    return str(value) if isinstance(value, Path | LoadHosts | Cancel | Ramp) else value
