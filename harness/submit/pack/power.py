"""Packs a result's power files: the unchanged files from the PTDaemon session and both description tables."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.core.files import read_json
from harness.submit.plan.finished_run import FinishedRun
from harness.submit.rules.tree.rounds import Round

_SERVER = "power/server.json"


def missing_files(run: FinishedRun, rules: Round) -> Iterator[Path]:
    """Yields the session files that are missing from a run with `--meter ptdaemon`."""
    for name in _files(rules):
        path = run.folder / "performance" / name
        if not path.is_file():
            yield path


def pack_power(run: FinishedRun, folder: Path, answers: Mapping[str, str], rules: Round) -> None:
    """Packs the power files into the scenario's folder. answers: the values for the keys in POWER.

    Raises an exception from WRONG_CONTENT if power-dev did not write the description.
    """
    source, performance = run.folder / "performance", folder / "performance"
    for name in _files(rules):
        (performance / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, performance / name)
    analyser = _analyser(read_json(source / _SERVER))
    _write(
        folder / "analyzer_table.md", "Power analyser", f"{analyser}\n\n{answers['power_analyzer']}"
    )
    _write(folder / "power_settings.md", "Power settings", answers["power_settings"])


def _files(rules: Round) -> Iterator[str]:
    """Yields paths relative to the folder `performance`. Omits LoadGen's logs in run_1, because every run has these
    logs.
    """
    yield from (f"power/{name}" for name in rules.power_files)
    yield from (f"ranging/{name}" for name in (*rules.performance_files, rules.power_log))
    yield f"run_1/{rules.power_log}"


def _analyser(server: Mapping[str, Any]) -> str:
    identity = [m["reply"] for m in server["ptd_messages"] if m["cmd"] == "Identify"][0]  # noqa: RUF015 - an IndexError
    lines = [
        f"PTDaemon: `{identity}`",
        "",
        "| device type | interface | channel |",
        "|---|---|---|",
    ]
    for analyser in server["ptd_config"]:
        words = (analyser.get(k) for k in ("device_type", "interface_flag", "channel"))
        lines.append(f"| {' | '.join(str(word or '-') for word in words)} |")
    return "\n".join(lines)


def _write(path: Path, title: str, text: str) -> None:
    path.write_text(f"# {title}\n\n{text}\n", encoding="utf-8")
