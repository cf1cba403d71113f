"""Checks the system description, measurements.json and user.conf."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from harness.core.formats.strict_yaml import load_yaml
from harness.errors import ConfigError, one_line
from harness.submit.rules.findings import Finding
from harness.submit.rules.tree.submission import Result, Submitter

_JOINED = (  # the official checkers write these values to a CSV line without quotes
    "system_name",
    "system_type",
    "host_processor_model_name",
    "accelerator_model_name",
    "framework",
    "operating_system",
    "hw_notes",
    "sw_notes",
)


def system_description(who: Submitter, system: str) -> Iterator[Finding]:
    yield from _capacity(who, system)
    file = who.system_file(system)
    if not who.tree.has(file):
        yield Finding("missing-file", file, "no such file", "the description of the system")
        return
    content = who.tree.json(file)
    if not isinstance(content, dict):
        yield Finding("bad-json", file, "not a JSON object", "one JSON object")
        return
    yield from _keys(content, file, who)
    yield from _choices(content, file, who)
    yield from _network(content, file, who)
    for key in who.round.system_keys.numbers:
        if key in content and not _is_count(content[key]):
            yield Finding("system-value", file, f"{key}: {content[key]!r:.80}", "a whole number")
        elif key in who.round.system_keys.at_least_one and content.get(key) in ("0", 0):
            yield Finding("system-value", file, f"{key}: {content[key]!r}", "at least 1")
    for key in who.round.system_keys.counted:
        if content.get(key) and not re.match(r"\s*0*[1-9]|N/A$", str(content[key])):
            actual = f"{key}: {content[key]!r:.80}"
            yield Finding("system-value", file, actual, "a number above 0 at the beginning, or N/A")
    for key in _JOINED:
        value = content.get(key, "")
        if not isinstance(value, str) or '"' in value or "\n" in value:
            actual = f"{key}: {value!r:.80}"
            yield Finding("system-value", file, actual, "one line of text without quotes")


def _capacity(who: Submitter, system: str) -> Iterator[Finding]:
    """Checks <system>_power.yaml, which the new official checker reads even if a result has no power measurement."""
    path = who.system_file(system).removesuffix(".json") + "_power.yaml"
    if who.tree.has(path):
        try:
            load_yaml(who.tree.root / path)
        except ConfigError as e:
            yield Finding("system-value", path, one_line(e), "a YAML file")


def _keys(content: Mapping[str, Any], file: str, who: Submitter) -> Iterator[Finding]:
    keys = who.round.system_keys
    for key in keys.required:
        if key not in content:
            yield Finding("system-key", file, f"no {key}", f"all {len(keys.required)} keys")
    expected = 'a value that is not empty; the string "0" if there is none'
    for key in keys.meaningful:
        if key in content and not content[key]:
            yield Finding("system-value", file, f"{key}: {content[key]!r:.80}", expected)


def _choices(content: Mapping[str, Any], file: str, who: Submitter) -> Iterator[Finding]:
    statuses, categories = who.round.statuses, who.round.categories
    value = content.get
    for key, is_right, expected in (
        ("status", str(value("status", "")).lower() in statuses, f"one of {', '.join(statuses)}"),
        ("system_type", value("system_type") in categories, f"one of {'; '.join(categories)}"),
        (
            "submitter",
            str(value("submitter", "")).lower() == who.name.lower(),
            f"{who.name}, the name of the folder",
        ),
        ("division", value("division") == who.division, f"{who.division}, the name of the folder"),
    ):
        if not is_right:
            yield Finding("system-value", file, f"{key}: {value(key)!r:.80}", expected)


def _network(content: Mapping[str, Any], file: str, who: Submitter) -> Iterator[Finding]:
    """Checks is_network and its keys. is_network must be a string, because the official checkers crash if the value is
    JSON's true.
    """
    value = content.get("is_network")
    if value is not None and value not in ("true", "false"):
        yield Finding(
            "system-value", file, f"is_network: {value!r:.80}", 'the string "true" or "false"'
        )
        return
    expected = {"network": "true", "closed": None}
    if who.division in expected and (value == "true") != (who.division == "network"):
        actual = f"is_network: {value!r}"
        yield Finding("system-value", file, actual, f"the value for the {who.division} division")
    if value:  # if one key has a value, the official checker requires all other keys
        for key in who.round.system_keys.network:
            if key not in content:
                yield Finding("system-key", file, f"no {key}", "the network keys, or no is_network")
            elif value == "true" and content[key] in (None, ""):
                yield Finding("system-value", file, f"{key}: {content[key]!r}", "a string")
    category, categories = content.get("system_type"), who.round.network_categories
    if who.division == "network" and category not in categories:
        actual = f"system_type: {category!r:.80}"
        yield Finding("system-value", file, actual, f"{' or '.join(categories)}, in this division")


def _is_count(value: object) -> bool:
    try:
        return int(value) >= 0  # type: ignore[call-overload,no-any-return]
    except (TypeError, ValueError, OverflowError):
        return False


def measurements(result: Result) -> Iterator[Finding]:
    file = result.inside("measurements.json")
    if not result.tree.has(file):
        return  # the layout check reports the missing file
    content = result.tree.json(file)
    if not isinstance(content, dict):
        yield Finding("bad-json", file, "not a JSON object", "one JSON object")
        return
    retrained = str(content.get("retraining") or "no").strip().lower()
    if not result.submitter.is_open and not re.match(r"n|(false|0)$", retrained):
        actual = f"retraining: {content['retraining']!r:.80}"
        yield Finding("measurements-key", file, actual, "no, in this division")
    for key in result.round.measurement_keys:
        if not content.get(key):
            actual = f"{key}: {content[key]!r:.80}" if key in content else f"no {key}"
            yield Finding("measurements-key", file, actual, 'a value; "N/A" if there is none')
