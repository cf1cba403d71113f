"""Builds a request from the command line, and writes and reads WORK/request.yaml."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from harness.core.config.options import user_path
from harness.core.config.parse import Slo, parse_lengths, parse_meter
from harness.core.config.run_config import config_from
from harness.core.console import say
from harness.core.formats.strict_yaml import load_yaml, write_yaml
from harness.errors import ConfigError, refuse
from harness.machine.power.meters import ptdaemon
from harness.models.manifest.lookup import is_path
from harness.submit.plan import rate
from harness.submit.plan.attempts import RUNS
from harness.submit.plan.request import FILE, Request


def make_request(values: Mapping[str, Any], options: Mapping[str, Any]) -> Request:
    """Makes a request. values: the request's arguments (`peak`: a search's folder). options: the run options as texts."""
    problems: list[str] = []
    config_from(options, "command line", problems)
    slo: Slo | None = None
    if values.get("peak") is not None:
        if "target_qps" in options:
            problems.append("--target-qps and --peak both set Server's rate: keep one")
        searched_rate, slo = rate.of_peak(user_path(values["peak"]), options)
        options = {**options, "target_qps": f"{searched_rate:.10g}"}
    refuse(problems)
    names = [f.name for f in fields(Request)]
    arguments = {name: values[name] for name in names if values.get(name) is not None}
    if "scenarios" in arguments:
        scenarios = arguments["scenarios"].split(",")
        arguments["scenarios"] = tuple(s.strip() for s in scenarios if s.strip())
    if arguments.get("accuracy_data"):
        arguments["accuracy_data"] = str(user_path(arguments["accuracy_data"]).absolute())
    required = dict.fromkeys(("division", "submitter", "system", "category", "benchmark"), "")
    request = Request(**{**required, **arguments}, options=_absolute(options))
    _raise_if_wrong(request, slo)
    return request


def kept_request(work: Path, values: Mapping[str, Any], options: Mapping[str, Any]) -> Request:
    """Returns the request in `work`. The first call stores `values` and `options` (see `make_request`).

    Later calls may omit these arguments. A different value replaces the stored value as long as `work` contains no run;
    later, a different value raises a ConfigError.
    """
    path = work / FILE
    if not path.exists():
        write_request(work, make_request(values, options))
        return read_request(work)
    kept = read_request(work)
    if not values and not options:
        return kept
    stored = asdict(kept)
    stored_options = stored.pop("options")
    if "peak" in values:
        stored_options = {k: v for k, v in stored_options.items() if k != "target_qps"}
    scenarios = ",".join(kept.scenarios)
    requested = make_request(
        {**stored, "scenarios": scenarios, **values}, {**stored_options, **options}
    )
    before, after = ({**asdict(one), **one.options} for one in (kept, requested))
    changed = [
        key
        for key, value in after.items()
        if key != "options" and _text(before.get(key)) != _text(value)
    ]
    if changed and not _has_runs(work):
        write_request(work, requested)
        say(f"{path} now has {', '.join(f'{key} {_text(after[key])}' for key in changed)}")
        return read_request(work)
    refuse(
        f"{path} has {key} {_text(before[key])}, not {_text(after[key])}: edit that file, or pass a different --work"
        if before.get(key)
        else f"{path} has no {key}: edit that file, or pass a different --work"
        for key in changed
    )
    return kept


def _has_runs(work: Path) -> bool:
    """Returns whether `work` contains a run that has begun. A run that refused its settings leaves only a log."""
    return any(path.is_dir() for path in (work / RUNS).glob("*/attempt-*"))


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _raise_if_wrong(request: Request, slo: Slo | None) -> None:
    """Raises a ConfigError if any run's options conflict, before anything is written. slo: the search's SLO."""
    problems: list[str] = []
    if slo is not None and not request.is_short:
        problems += request.looser(slo, "--peak was searched under", request.rules)
    for scenario in request.chosen_scenarios:
        try:
            request.run_config(scenario, "performance", None)
            request.user_conf_rate(scenario)
        except ConfigError as e:
            problems += str(e).splitlines()
    refuse(dict.fromkeys(problems))


def _absolute(options: Mapping[str, Any]) -> dict[str, Any]:
    """Makes paths absolute, because later runs may be started from a different folder."""
    absolute = dict(options)
    for key in ("data_dir", "hook", "user_conf"):
        if key in absolute and not str(absolute[key]).startswith("hf:"):
            absolute[key] = str(user_path(str(absolute[key])).absolute())
    if "meter" in absolute:
        absolute["meter"] = [_absolute_meter(str(text)) for text in absolute["meter"]]
    if "lengths" in absolute:
        absolute["lengths"] = [_absolute_lengths(str(text)) for text in absolute["lengths"]]
    model = str(absolute.get("model", ""))
    if is_path(model) and user_path(model).exists():
        absolute["model"] = str(user_path(model).absolute())
    for key in ("backend", "dataset", "metric"):
        if not absolute.get(key):
            continue
        file, colon, attribute = str(absolute[key]).rpartition(":")
        path = user_path(file if colon else attribute)
        if path.suffix and path.exists():
            absolute[key] = f"{path.absolute()}{colon}{attribute if colon else ''}"
    return absolute


def _absolute_lengths(text: str) -> str:
    """Makes the path to a file of lengths absolute. Raises a ConfigError if the file does not exist."""
    dimension, lengths = parse_lengths(text)
    if not isinstance(lengths, Path):
        return text
    lengths = user_path(lengths)
    if not lengths.is_file():
        raise ConfigError(f"--lengths {text} does not exist")
    return f"{dimension}={lengths.absolute()}"


def _absolute_meter(text: str) -> str:
    """Makes the path to power-dev's folder absolute. Leaves text that does not describe a meter unchanged, because the
    request reports the error.
    """
    try:
        name, argument = parse_meter(text)
        if name == ptdaemon.NAME:
            return f"{name}={ptdaemon.PtdaemonMeter(argument).argument}"
    except (ValueError, ConfigError):
        pass
    return text


def write_request(work: Path, request: Request) -> None:
    path = work / FILE
    try:
        work.mkdir(parents=True, exist_ok=True)
        write_yaml(path, asdict(request) | {"scenarios": list(request.scenarios)})
    except OSError as e:
        raise ConfigError(
            f"{path} cannot be written ({e.strerror}): pass a different --work"
        ) from e


def read_request(work: Path) -> Request:
    path = work / FILE
    content = load_yaml(path)
    if not isinstance(content, dict) or not isinstance(content.get("options", {}), dict):
        raise ConfigError(
            f"{path} is not a valid request file: delete it, and pass its options to `submit plan` again"
        )
    known = {f.name for f in fields(Request)}
    unknown = [str(key) for key in content if key not in known]
    if unknown:
        raise ConfigError(f"{path}: unknown keys {', '.join(unknown)}")
    scenarios = content.get("scenarios") or ()
    required = [f.name for f in fields(Request)[:5]]
    wrong = [f"{name} is missing" for name in required if name not in content]
    texts = [name for name in required if name in content]
    texts += [name for name in ("folder", "accuracy_data", "round") if name in content]
    wrong += [
        f"{name} must be a string" for name in texts if not isinstance(content.get(name), str)
    ]
    if not isinstance(scenarios, list | tuple):
        wrong.append("scenarios must be a list")
    if not isinstance(content.get("rehearsal", False), bool):
        wrong.append("rehearsal must be true or false")
    if not all(isinstance(key, str) for key in content.get("options", {})):
        wrong.append("keys of options must be strings")
    if wrong:
        raise ConfigError(f"{path}: {'; '.join(wrong)}")
    return Request(**{**content, "scenarios": tuple(map(str, scenarios))})
