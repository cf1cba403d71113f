"""Checks and writes LoadGen's user.conf, because LoadGen silently ignores mistakes.

If a line has a typo, no space next to '=' or the wrong case in a scenario name, LoadGen ignores the line and returns
status 0. Source of the keys: TestSettings::FromConfig in loadgen/test_settings_internal.cc, tested with 6.0.17.
"""

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path

from harness.core.config.parse import Slo
from harness.core.units import NS_PER_MS
from harness.errors import ConfigError
from harness.loadgen.plan import least_duration_ms

SCENARIOS = ("SingleStream", "MultiStream", "Server", "Offline", "Interactive")
INTEGER_KEYS = frozenset(
    {
        "samples_per_query",
        "min_duration",
        "min_query_count",
        "performance_sample_count_override",
        "accuracy_sample_count_override",
        "coalesce_queries",
        "max_async_queries",
        "sample_concatenate_permutation",
        "use_token_latencies",
        "ttft_latency",
        "tpot_latency",
    }
)
FLOAT_KEYS = frozenset({"target_latency", "target_qps", "target_latency_percentile"})
FORBIDDEN = {
    "max_duration": "an official run must not be cut short",
    "max_query_count": "an official run must not be cut short",
    "mode": "the harness sets it",
}
KEYS = INTEGER_KEYS | FLOAT_KEYS
AUDIT = "audit.config"
OFFICIAL_PERCENTILE = 0.99
"""Latency percentile that mlperf.conf sets for Server."""

_BOUNDS = {"": "target_latency", "ttft": "ttft_latency", "tpot": "tpot_latency"}
"""Maps the quantity that an SLO bounds to the corresponding key in user.conf."""


def lint(path: Path) -> str:
    """Returns the text of the file. Raises a ConfigError that lists every line that LoadGen would misread."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"--user-conf {path} cannot be read: {e}") from None
    misread = [f"{path}, line {number}: {problem}" for number, problem in problems(text)]
    if misread:
        raise ConfigError("\n".join(misread))
    return text


def problems(text: str) -> Iterator[tuple[int, str]]:
    """Yields (line number, problem) for each line that LoadGen would misread."""
    for number, line in enumerate(text.splitlines(), 1):
        for problem in _line_problems(line):
            yield number, problem


def _line_problems(line: str) -> Iterator[str]:
    content = line.partition("#")[0].strip()
    if not content:
        return
    if content != line.strip():
        yield f"{line.strip()!r}: LoadGen reads a comment only on a separate line"
        return
    match = re.fullmatch(r"(\S+) += +(\S+)", content)
    if match is None:
        yield f"{content!r} is not 'model.Scenario.key = value' with spaces around '='"
        return
    name, value = match.groups()
    parts = name.rsplit(".", 2)
    if len(parts) != 3:
        yield f"{name!r} is not model.Scenario.key, e.g. *.Server.target_qps"
        return
    yield from _name_problems(parts[1], parts[2])
    least_ms = least_duration_ms(parts[0])
    yield from _value_problems(parts[1], parts[2], value, least_ms)


def _name_problems(scenario: str, key: str) -> Iterator[str]:
    if scenario not in (*SCENARIOS, "*"):
        near = get_close_matches(scenario.lower(), [s.lower() for s in SCENARIOS], n=1)
        right = next((s for s in SCENARIOS if [s.lower()] == near), None)
        hint = f"write {right}" if right else f"choose from {', '.join(SCENARIOS)} or *"
        yield f"scenario {scenario!r} is not known to LoadGen: {hint}"
    if key in FORBIDDEN:
        yield f"{key} is not allowed: {FORBIDDEN[key]}"
    elif key not in KEYS:
        near = get_close_matches(key, KEYS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"keys are {', '.join(sorted(KEYS))}"
        yield f"unknown key {key!r}: {hint}"


def _value_problems(scenario: str, key: str, value: str, least_ms: int) -> Iterator[str]:
    """Yields the problems of a value. least_ms: minimum value of min_duration."""
    if key in INTEGER_KEYS and not re.fullmatch(r"\d+", value):
        yield f"{key} = {value}: LoadGen reads whole numbers here, without an exponent"
        return
    if key not in KEYS:
        return
    if not re.fullmatch(r"\d+(\.\d+)?", value):
        yield f"{key} = {value}: LoadGen reads plain decimal numbers here"
        return
    if key == "target_latency" and scenario == "Server" and "." in value:
        yield f"Server.target_latency = {value}: LoadGen truncates it to whole milliseconds"
    if key == "target_latency" and scenario == "*" and "." in value:
        yield f"*.target_latency = {value}: for Server LoadGen truncates it to whole ms: name a scenario"
    if key == "target_latency_percentile" and not 50 <= float(value) < 100:
        yield f"target_latency_percentile = {value}: LoadGen reads percent here, e.g. 99"
    if key == "min_duration" and int(value) < least_ms:
        yield f"min_duration = {value}: official runs need at least {least_ms} ms"
    if key in ("target_qps", "target_latency") and float(value) == 0:
        yield f"{key} = {value}: it must be more than 0"


def compose(user_text: str, sized: Iterator[tuple[str, str]]) -> str:
    """Returns the user.conf for LoadGen, with lines from the calibration and then the user's lines.

    user_text: the user's file. sized: ('Scenario.key', value) pairs from the calibration. A pair is omitted if the
    user's file sets the same key. A user's line for a different model does not replace a calibrated line, because
    LoadGen prefers model.Scenario, then *.Scenario, then model.*, and then *.*.
    """
    own = {
        (match[1], match[2], match[3])
        for match in re.finditer(r"^\s*([^\s#.]\S*)\.(\S+)\.(\w+) +=", user_text, re.MULTILINE)
    }
    lines = []
    for scenario_key, value in sized:
        scenario, _, key = scenario_key.partition(".")
        if {("*", scenario, key), ("*", "*", key)} & own:
            continue
        weaker = any(o[1:] == ("*", key) for o in own)
        lines.append(f"*.{'*' if weaker else scenario}.{key} = {value}")
    parts = ["# sized by calibration", *lines] if lines else []
    if user_text:
        parts.append(user_text.rstrip())
    return "\n".join([*parts, ""]) if parts else ""


def server_text(rate_per_s: float, slos: Sequence[Slo], about: str) -> str:
    """Returns the text of a --user-conf file with this arrival rate and these SLOs, which must not bound `itl`.

    LoadGen reads bounds only in whole ms. Any other bound is omitted, so that the rules' bound applies, and a comment
    explains the omission. LoadGen has one percentile for all SLOs. The text uses the highest percentile of the
    SLOs, because a run that meets a bound at this percentile also meets the bound at lower percentiles. about: lines
    for the first comment.
    """
    lines = [f"# {line}" for line in about.splitlines()]
    lines.append(f"*.Server.target_qps = {rate_per_s:.6f}")
    of_tokens = any(slo.of for slo in slos)
    if of_tokens:
        lines.append("*.Server.use_token_latencies = 1")
    for slo in slos:
        if of_tokens and not slo.of:
            lines.append(f"# {slo}: LoadGen judges tokens instead")
        elif slo.bound_ns % NS_PER_MS:
            lines.append(f"# {slo}: LoadGen reads whole ms, so the bound of the rules applies")
        else:
            lines.append(f"*.Server.{_BOUNDS[slo.of]} = {slo.bound_ns // NS_PER_MS}")
    highest = max(slo.percentile for slo in slos)
    if highest != OFFICIAL_PERCENTILE:
        lines.append(f"*.Server.target_latency_percentile = {highest * 100:.10g}")
    return "\n".join([*lines, ""])


def value(text: str, model: str, scenario: str, key: str) -> str | None:
    """Returns the value of a key that LoadGen would use from the file; None if no line sets the key."""
    lines = {
        (match[1], match[2]): match[3]
        for match in re.finditer(rf"^\s*([^\s#]+)\.(\w+|\*)\.{key} += +(\S+)", text, re.MULTILINE)
    }
    places = ((model, scenario), ("*", scenario), (model, "*"), ("*", "*"))
    return next((lines[place] for place in places if place in lines), None)


def copy_audit(path: Path, outdir: Path) -> str:
    """Copies the audit.config to the folder of the run's logs, where the copy identifies the logs. Returns the copy's
    path.
    """
    copy = outdir.absolute() / AUDIT
    try:
        copy.write_bytes(path.read_bytes())
    except OSError as e:
        raise ConfigError(f"--audit {path} cannot be copied to {copy}: {e.strerror}") from e
    return str(copy)


def without(text: str, key: str) -> str:
    """Returns the text without the lines that set 'Scenario.key' for any model."""
    line_of_key = re.compile(rf"\s*\S+\.{re.escape(key)} +=")
    return "\n".join(line for line in text.splitlines() if not line_of_key.match(line))
