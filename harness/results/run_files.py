"""Reads the files of a finished run once, and checks their structure."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from harness.core import files
from harness.core.formats.strict_yaml import load_mapping
from harness.core.registry import SCENARIOS
from harness.core.shown import private
from harness.errors import ConfigError
from harness.results import records, run_folder
from harness.results.evidence.evidence import Evidence
from harness.results.seal.digests import missing

_NEEDED: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("verdict", "scenario", "mode", "backend", "model", "dataset"), (str,)),
    **dict.fromkeys(("reasons", "doubts"), (list,)),
    **dict.fromkeys(
        ("latency_ns", "throughput_per_s", "accuracy", "stages_ns"), (dict, type(None))
    ),
}


class RunFiles(NamedTuple):
    """The files in a run's folder. performance: the performance run; None if the folder has no performance run."""

    name: str
    folder: Path
    result: Mapping[str, Any]
    environment: Mapping[str, Any]
    config: Mapping[str, Any]
    performance: Evidence | None

    def codes(self, kind: str) -> str:
        """Returns the codes in `reasons` or `doubts` as one text, separated by spaces."""
        return " ".join(entry["code"] for entry in self.result[kind])


def read_files(
    folder: Path, known: Evidence | None = None, *, with_evidence: bool = True
) -> RunFiles:
    """Reads a run's folder. Raises a ConfigError that names the file if a file is missing or if a run cannot have
    written it.

    known: the performance run, if it is still in memory. with_evidence: whether to read the performance run, which may
    contain millions of rows.
    """
    result = files.read_json(folder / run_folder.RESULT)
    config = read_config(folder)
    check_shape(result, folder / run_folder.RESULT)
    return RunFiles(
        name=folder.resolve().name,
        folder=folder,
        result=result,
        environment=files.read_json(folder / run_folder.ENVIRONMENT),
        config=config,
        performance=known or _evidence(folder) if with_evidence else None,
    )


def shown_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the content of config.yaml without private names and without arguments of programs."""
    meters = [private.meter(str(text)) for text in config.get("meter") or ()]
    command = config.get("before_run")
    commands = {} if command is None else {"before_run": private.command_line(str(command))}
    shown: Mapping[str, Any] = private.hidden({**config, "meter": meters, **commands})
    return shown


def _evidence(folder: Path) -> Evidence | None:
    return records.read(folder / run_folder.PERFORMANCE, "")


def read_config(folder: Path) -> dict[Any, Any]:
    """Reads config.yaml, which a run writes before its first query."""
    path = folder / run_folder.CONFIG
    if not path.is_file():
        raise ConfigError(missing(folder, path.name, "its run ended before its first query"))
    return load_mapping(path)


def reading_run(folder: Path | str) -> AbstractContextManager[None]:
    """Converts an exception about missing content to a ConfigError. folder: one folder, or the names of several
    folders.
    """
    return files.reading(f"{folder}: its files do not fit together", "run `check` for details")


def check_shape(
    result: Mapping[str, Any], path: Path, hint: str = "run `check` for details"
) -> None:
    """Raises a ConfigError that lists the required keys of result.json whose values are unusable. path: the file's
    path.
    """
    wrong = [n for n, types in _NEEDED.items() if not isinstance(result.get(n, 0), types)]
    if not isinstance(result.get("slo"), str | None):
        wrong.append("slo")
    for name in [n for n in ("reasons", "doubts") if n not in wrong]:
        entries = [one if isinstance(one, dict) else {} for one in result[name]]
        if not all(isinstance(one.get(k), str) for one in entries for k in ("code", "text")):
            wrong.append(name)
    if "scenario" not in wrong and result["scenario"] not in SCENARIOS:
        wrong.append(f"scenario ({result['scenario']!r:.60})")
    if wrong:
        raise ConfigError(f"{path} has no usable {', '.join(wrong)}: {hint}")
