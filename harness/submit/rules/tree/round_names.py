"""The names of the known rounds; `--help` needs them without reading one."""

from pathlib import Path

FOLDER = Path(__file__).parent / "rounds"
DEFAULT = "v6.1"


def known_rounds() -> list[str]:
    return sorted(p.stem.replace("_", ".") for p in FOLDER.glob("*.yaml"))
