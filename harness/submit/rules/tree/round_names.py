"""Lists the names of the known rounds for `--help` from file names, without reading the files."""

from pathlib import Path

FOLDER = Path(__file__).parent / "rounds"
DEFAULT = "v6.1"


def known_rounds() -> list[str]:
    return sorted(p.stem.replace("_", ".") for p in FOLDER.glob("*.yaml"))
