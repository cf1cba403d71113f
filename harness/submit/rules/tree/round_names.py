"""Lists the known rounds by file name, for `--help`, without reading them."""

from pathlib import Path

FOLDER = Path(__file__).parent / "rounds"
DEFAULT = "v6.1"


def known_rounds() -> list[str]:
    return sorted(p.stem.replace("_", ".") for p in FOLDER.glob("*.yaml"))
