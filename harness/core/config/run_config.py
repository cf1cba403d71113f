"""Defines RunConfig, a run's options without contradictions. The module reads a RunConfig from text and writes it as
YAML values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, fields
from typing import Any

from harness.core.config.options import MACHINE, option_key, parse_values
from harness.core.config.problems import NO_SCENARIO, problems
from harness.core.config.schema import RunOptions
from harness.core.registry import DEFAULT_MODEL, default_model
from harness.errors import ConfigError, refuse, some_of

SCHEMA_VERSION = 1
"""Version of the formats of config.yaml and result.json. The harness refuses files with a newer version."""


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
    """Returns YAML values by option key, except options that are not set or not repeated."""
    values: dict[str, object] = {"schema_version": SCHEMA_VERSION}
    for field in fields(config):
        value, of = getattr(config, field.name), field.metadata["of"]
        unset = value in (None, ()) or (value is False and of and MACHINE not in of)
        if field.metadata["repeated"] and not unset:
            values[option_key(field)] = _plain(field, value)
    return values


def _plain(field: Field[Any], value: Any) -> object:
    write = field.metadata["write"]
    if not field.metadata["many"]:
        return write(value)
    texts = [write(one) for one in value]
    return texts[0] if field.name == "slo" and len(texts) == 1 else texts
