"""Builds a request from the command line, and writes and reads WORK/request.yaml."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from harness.core.config.options import user_path
from harness.core.config.parse import Slo, parse_meter
from harness.core.config.run_config import config_from
from harness.core.files import write_yaml
from harness.core.formats.strict_yaml import load_yaml
from harness.errors import ConfigError, refuse
from harness.machine.power.meters import ptdaemon
from harness.submit.plan import rate
from harness.submit.plan.request import FILE, Request


def make_request(values: Mapping[str, Any], options: Mapping[str, Any]) -> Request:
    """values: arguments of the request; `peak` is a search's folder. options: of the runs, as text."""
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
    required = dict.fromkeys(("division", "submitter", "system", "category", "benchmark"), "")
    request = Request(**{**required, **arguments}, options=_absolute(options))
    _raise_if_wrong(request, slo)
    return request


def _raise_if_wrong(request: Request, slo: Slo | None) -> None:
    """Raises ConfigError, before anything is written, for conflicts in any run. slo: the search's."""
    problems: list[str] = []
    if slo is not None and not request.is_short:
        problems += request.looser(slo, "--peak was searched under", request.rules)
    for scenario in request.chosen_scenarios:
        try:
            request.run_config(scenario, "performance", None)
            _ = request.conf_rate
        except ConfigError as e:
            problems += str(e).splitlines()
    refuse(dict.fromkeys(problems))


def _absolute(options: Mapping[str, Any]) -> dict[str, Any]:
    """Makes paths absolute, because later runs may be started from another folder."""
    absolute = dict(options)
    for key in ("data_dir", "hook", "user_conf"):
        if key in absolute and not str(absolute[key]).startswith("hf:"):
            absolute[key] = str(user_path(str(absolute[key])).absolute())
    if "meter" in absolute:
        absolute["meter"] = [_absolute_meter(str(text)) for text in absolute["meter"]]
    for key in ("model", "backend", "dataset", "metric"):
        if not absolute.get(key):
            continue
        file, colon, attribute = str(absolute[key]).rpartition(":")
        path = user_path(file if colon else attribute)
        if path.suffix and path.exists():
            absolute[key] = f"{path.absolute()}{colon}{attribute if colon else ''}"
    return absolute


def _absolute_meter(text: str) -> str:
    """Makes power-dev's folder absolute; the request reports text that is not a meter."""
    try:
        name, argument = parse_meter(text)
        if name == ptdaemon.NAME:
            return f"{name}={ptdaemon.PtdaemonMeter(argument).argument}"
    except (ValueError, ConfigError):
        pass
    return text


def write_request(work: Path, request: Request) -> None:
    """Writes the request; raises ConfigError where `work` has another request's runs."""
    path = work / FILE
    if path.exists():
        if read_request(work) != request:
            raise ConfigError(
                f"{path} holds a different request: pass another --work, or edit that file"
            )
        return
    try:
        work.mkdir(parents=True, exist_ok=True)
        write_yaml(path, asdict(request) | {"scenarios": list(request.scenarios)})
    except OSError as e:
        raise ConfigError(f"{path} cannot be written: {e.strerror}: pass another --work") from e


def read_request(work: Path) -> Request:
    path = work / FILE
    content = load_yaml(path)
    if not isinstance(content, dict) or not isinstance(content.get("options", {}), dict):
        raise ConfigError(f"{path} is not a request: let `submit plan` write it")
    known = {f.name for f in fields(Request)}
    unknown = [str(key) for key in content if key not in known]
    if unknown:
        raise ConfigError(f"{path}: unknown keys {', '.join(unknown)}")
    scenarios = content.get("scenarios") or ()
    texts = [f.name for f in fields(Request)[:5]]
    texts += [name for name in ("folder", "round") if name in content]
    wrong = [f"{name} must be text" for name in texts if not isinstance(content.get(name), str)]
    if not isinstance(scenarios, list | tuple):
        wrong.append("scenarios must be a list")
    if not isinstance(content.get("rehearsal", False), bool):
        wrong.append("rehearsal must be true or false")
    if not all(isinstance(key, str) for key in content.get("options", {})):
        wrong.append("keys of options must be text")
    if wrong:
        raise ConfigError(f"{path}: {'; '.join(wrong)}")
    return Request(**{**content, "scenarios": tuple(map(str, scenarios))})
