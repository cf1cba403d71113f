"""The system description and what was done to the model."""

from collections.abc import Iterator, Mapping
from typing import Any

from harness.core.formats.strict_yaml import load_yaml
from harness.errors import ConfigError, one_line
from harness.loadgen import user_conf as userconf
from harness.submit.rules.findings import Finding
from harness.submit.rules.tree.submission import Result, Submitter
from harness.submit.rules.tree.tree import shown

_JOINED = (  # the official checkers put these into a CSV line as they are
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
        yield Finding("missing-file", shown(path), "nothing", "the system's description")
        return
    content = who.tree.json(path)
    if not isinstance(content, dict):
        yield Finding("bad-json", shown(path), "no JSON object", "one JSON object")
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
            found = f"{key}: {value!r:.80}"
            yield Finding("system-value", file, found, "one line of text without quotes")


def _capacity(who: Submitter, system: str) -> Iterator[Finding]:
    """<system>_power.yaml, of a power result: the new checker reads it whether there is power or not."""
    path = who.system_file(system).removesuffix(".json") + "_power.yaml"
    if who.tree.has(path):
        try:
            load_yaml(who.tree.root / path)
        except ConfigError as e:
            yield Finding("system-value", shown(path), one_line(e), "YAML")


def _keys(content: Mapping[str, Any], file: str, who: Submitter) -> Iterator[Finding]:
    keys = who.round.system_keys
    for key in keys.required:
        if key not in content:
            yield Finding("system-key", file, f"no {key}", f"all {len(keys.required)} keys")
    for key in keys.meaningful:
        if key in content and not content[key]:
            found = f"{key}: {content[key]!r:.80}"
            yield Finding("system-value", file, found, 'a value; "0" as text where there is none')


def _choices(content: Mapping[str, Any], file: str, who: Submitter) -> Iterator[Finding]:
    rules = who.round
    if str(content.get("status", "")).lower() not in rules.statuses:
        found = f"status: {content.get('status')!r:.80}"
        yield Finding("system-value", file, found, f"one of {', '.join(rules.statuses)}")
    if content.get("system_type") not in rules.categories:
        found = f"system_type: {content.get('system_type')!r:.80}"
        yield Finding("system-value", file, found, f"one of {'; '.join(rules.categories)}")
    if str(content.get("submitter", "")).lower() != who.name.lower():
        found = f"submitter: {content.get('submitter')!r:.80}"
        yield Finding("system-value", file, found, f"{who.name}, as the folder is called")
    if content.get("division") != who.division:
        found = f"division: {content.get('division')!r:.80}"
        yield Finding("system-value", file, found, f"{who.division}, as the folder is called")


def _network(content: Mapping[str, Any], file: str, who: Submitter) -> Iterator[Finding]:
    """is_network is text in the official checkers: JSON's true makes them crash."""
    value = content.get("is_network")
    if value is not None and value not in ("true", "false"):
        yield Finding("system-value", file, f"is_network: {value!r:.80}", 'text: "true" or "false"')
        return
    wanted = {"network": "true", "closed": None}
    if who.division in wanted and (value == "true") != (who.division == "network"):
        found = f"is_network: {value!r}"
        yield Finding("system-value", file, found, f"what the {who.division} division is")
    if value:  # whatever it says, the official checker then wants the other keys, too
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
        return  # a missing file is told by the layout
    content = result.tree.json(path)
    file = shown(path)
    if not isinstance(content, dict):
        yield Finding("bad-json", file, "no JSON object", "one JSON object")
        return
    for key in result.round.measurement_keys:
        if not content.get(key):
            found = f"{key}: {content[key]!r:.80}" if key in content else f"no {key}"
            yield Finding("measurements-key", file, found, 'a value, "N/A" where there is none')


def user_conf(result: Result) -> Iterator[Finding]:
    path = result.inside("user.conf")
    for number, problem in userconf.problems(result.tree.text(path)):
        yield Finding(
            "user-conf", shown(path), f"line {number}: {problem}"[:300], "as LoadGen reads"
        )
