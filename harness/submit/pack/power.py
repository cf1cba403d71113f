"""The power of a result: what a PTDaemon session left, file by file as it is, and both tables beside it."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.core.files import read_json
from harness.submit.pack.finished_run import Made
from harness.submit.rules.tree.rounds import Round

_SERVER = "power/server.json"


def missing_files(made: Made, rules: Round) -> Iterator[Path]:
    """Of the session that a run under `--meter ptdaemon` keeps in its folder."""
    for name in _files(rules):
        path = made.folder / "performance" / name
        if not path.is_file():
            yield path


def pack_power(made: Made, folder: Path, told: Mapping[str, str], rules: Round) -> None:
    """folder: of the scenario. told: what the user says of the analyser and of the settings.

    Raises what reading a description raises that power-dev did not write.
    """
    source, performance = made.folder / "performance", folder / "performance"
    for name in _files(rules):
        (performance / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, performance / name)
    analyser = _analyser(read_json(source / _SERVER))
    _write(
        folder / "analyzer_table.md", "Power analyser", f"{analyser}\n\n{told['power_analyzer']}"
    )
    _write(folder / "power_settings.md", "Power settings", told["power_settings"])


def _files(rules: Round) -> Iterator[str]:
    """Relative to `performance`; LoadGen's logs of run_1 are packed as every run's are."""
    yield from (f"power/{name}" for name in rules.power_files)
    yield from (f"ranging/{name}" for name in (*rules.performance_files, rules.power_log))
    yield f"run_1/{rules.power_log}"


def _analyser(server: Mapping[str, Any]) -> str:
    """A table of what PTDaemon said of it, one analyser a line."""
    said = [m["reply"] for m in server["ptd_messages"] if m["cmd"] == "Identify"][0]  # noqa: RUF015 - an IndexError
    lines = [f"PTDaemon: `{said}`", "", "| device type | interface | channel |", "|---|---|---|"]
    for analyser in server["ptd_config"]:
        words = (analyser.get(k) for k in ("device_type", "interface_flag", "channel"))
        lines.append(f"| {' | '.join(str(word or '-') for word in words)} |")
    return "\n".join(lines)


def _write(path: Path, title: str, text: str) -> None:
    path.write_text(f"# {title}\n\n{text}\n", encoding="utf-8")
