"""Checks the system description, measurements.json and user.conf."""

from collections.abc import Iterator, Mapping
from typing import Any

from harness.core.formats.strict_yaml import load_yaml
from harness.errors import ConfigError, one_line
from harness.loadgen import user_conf as userconf
from harness.submit.rules.findings import Finding
from harness.submit.rules.tree.submission import Result, Submitter
from harness.submit.rules.tree.tree import shown

_JOINED = (  # the official checkers write these values into a CSV line without quoting
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
    path = who.system_file(system)
    if not who.tree.has(path):
        yield Finding("missing-file", shown(path), "no such file", "the description of the system")
        return
    content = who.tree.json(path)
    if not isinstance(content, dict):
        yield Finding("bad-json", shown(path), "not a JSON object", "one JSON object")
        return
    file = shown(path)
    yield from _keys(content, file, who)
    yield from _choices(content, file, who)
    yield from _network(content, file, who)
    for key in who.round.system_keys.numbers:
        if key in content and not _is_count(content[key]):
            yield Finding("system-value", file, f"{key}: {content[key]!r:.80}", "a whole number")
    for key in _JOINED:
        value = content.get(key, "")
        if not isinstance(value, str) or '"' in value or "\n" in value:
            actual = f"{key}: {value!r:.80}"
            yield Finding("system-value", file, actual, "one line of text without quotes")


def _capacity(who: Submitter, system: str) -> Iterator[Finding]:
    """Checks <system>_power.yaml, which the new official checker reads for results without power, too."""
    path = who.system_file(system).removesuffix(".json") + "_power.yaml"
    if who.tree.has(path):
        try:
            load_yaml(who.tree.root / path)
        except ConfigError as e:
            yield Finding("system-value", shown(path), one_line(e), "a YAML file")


def _keys(content: Mapping[str, Any], file: str, who: Submitter) -> Iterator[Finding]:
    keys = who.round.system_keys
    for key in keys.required:
        if key not in content:
            yield Finding("system-key", file, f"no {key}", f"all {len(keys.required)} keys")
    for key in keys.meaningful:
        if key in content and not content[key]:
            actual = f"{key}: {content[key]!r:.80}"
            yield Finding(
                "system-value",
                file,
                actual,
                'a value that is not empty; the text "0" where there is none',
            )


def _choices(content: Mapping[str, Any], file: str, who: Submitter) -> Iterator[Finding]:
    rules = who.round
    if str(content.get("status", "")).lower() not in rules.statuses:
        actual = f"status: {content.get('status')!r:.80}"
        yield Finding("system-value", file, actual, f"one of {', '.join(rules.statuses)}")
    if content.get("system_type") not in rules.categories:
        actual = f"system_type: {content.get('system_type')!r:.80}"
        yield Finding("system-value", file, actual, f"one of {'; '.join(rules.categories)}")
    if str(content.get("submitter", "")).lower() != who.name.lower():
        actual = f"submitter: {content.get('submitter')!r:.80}"
        yield Finding("system-value", file, actual, f"{who.name}, the name of the folder")
    if content.get("division") != who.division:
        actual = f"division: {content.get('division')!r:.80}"
        yield Finding("system-value", file, actual, f"{who.division}, the name of the folder")


def _network(content: Mapping[str, Any], file: str, who: Submitter) -> Iterator[Finding]:
    """Checks is_network, which must be text: JSON's true makes the official checkers crash."""
    value = content.get("is_network")
    if value is not None and value not in ("true", "false"):
        yield Finding("system-value", file, f"is_network: {value!r:.80}", 'text: "true" or "false"')
        return
    expected = {"network": "true", "closed": None}
    if who.division in expected and (value == "true") != (who.division == "network"):
        actual = f"is_network: {value!r}"
        yield Finding("system-value", file, actual, f"the value for the {who.division} division")
    if value:  # with any value, the official checker requires the other keys, too
        for key in who.round.system_keys.network:
            if key not in content:
                yield Finding("system-key", file, f"no {key}", "the network keys, or no is_network")


def _is_count(value: object) -> bool:
    try:
        return int(value) >= 0  # type: ignore[call-overload,no-any-return]
    except (TypeError, ValueError, OverflowError):
        return False


def measurements(result: Result) -> Iterator[Finding]:
    path = result.inside("measurements.json")
    if not result.tree.has(path):
        return  # the layout reports the missing file
    content = result.tree.json(path)
    file = shown(path)
    if not isinstance(content, dict):
        yield Finding("bad-json", file, "not a JSON object", "one JSON object")
        return
    for key in result.round.measurement_keys:
        if not content.get(key):
            actual = f"{key}: {content[key]!r:.80}" if key in content else f"no {key}"
            yield Finding("measurements-key", file, actual, 'a value; "N/A" where there is none')


def user_conf(result: Result) -> Iterator[Finding]:
    path = result.inside("user.conf")
    for number, problem in userconf.problems(result.tree.text(path)):
        yield Finding(
            "user-conf",
            shown(path),
            f"line {number}: {problem}"[:300],
            "a line that LoadGen understands",
        )
