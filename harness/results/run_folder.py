"""Creates result folders: one appears under its name complete, or stays `<name>.partial`."""

import re
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from harness.core.files import PARTIAL, free_name, point_link
from harness.errors import ConfigError
from harness.results.seal import digests

RESULT = "result.json"
CONFIG = "config.yaml"
ENVIRONMENT = "environment.json"
ACCURACY_TEXT = "accuracy.txt"
PEAK = "peak.json"
LATEST = "latest"
"""Link to the newest run of a folder of results."""
REPEATS = "repeats.json"
OVERHEAD = "overhead.json"
WORKERS = "workers.json"
STUDIES = (
    *(PEAK, REPEATS, OVERHEAD, WORKERS),
    *("sweep.json", "grid.json", "tune.json", "profile.json"),
)
"""Summary of a study, in the folder that has its runs."""
METRICS = "metrics.prom"
ENDPOINT = "metrics.address"
"""While a run goes on: IP address and port of its Prometheus endpoint, e.g. 127.0.0.1:9464."""
RUN = "run.json"
"""Written for each LoadGen run in the folder."""
FOLDERS = {"performance": "performance/run_1", "accuracy": "accuracy", "answers": "answers"}
"""Role of a LoadGen run -> its folder in the result folder."""
PERFORMANCE = FOLDERS["performance"]


class ResultFolder:
    """A folder that is called `path` while it is written and `final` once it is complete."""

    def __init__(self, final: Path, option: str = "--out") -> None:
        """option: the user's name for `final`, in errors."""
        try:
            taken = final.exists() or final.is_symlink()
        except OSError as e:  # a name that is too long
            raise ConfigError(f"{final} cannot be made: {e.strerror}: pass another {option}") from e
        if final.name.endswith(PARTIAL):
            raise ConfigError(
                f"{final}: {option} must not end in {PARTIAL}: unfinished runs have that name"
            )
        if taken:
            raise ConfigError(
                f"{final} exists: results are never overwritten; pass another {option}"
            )
        self.final = final
        self.path = final.with_name(final.name + PARTIAL)
        try:
            self.path.mkdir(parents=True)
        except FileExistsError:
            raise ConfigError(
                f"{self.path} exists, from a run that did not finish or still goes on: pass another "
                f"{option}, or remove it once nothing writes there"
            ) from None
        except OSError as e:
            raise ConfigError(
                f"{self.path} cannot be made: {e.strerror}: pass {option} elsewhere"
            ) from e

    def subfolder(self, role: str) -> Path:
        """Creates the folder of a LoadGen run. Raises an OSError if this folder was removed."""
        path = self.path
        for name in FOLDERS[role].split("/"):
            path = path / name
            path.mkdir()
        return path

    def adopt(self, folder: Path) -> None:
        """Move the files of another run's folder, below this one or beside it, into this one."""
        for path in sorted(folder.iterdir()):
            path.rename(self.path / path.name)
        folder.rmdir()

    def finish(self, *, newest: bool = True) -> Path:
        """Seal a run's files and rename to the final name. newest: point the link `latest` at the folder."""
        if (self.path / RESULT).is_file():
            digests.write(self.path)
        self.path.rename(self.final)
        link = self.final.parent / LATEST
        with suppress(OSError):  # the run is whole without the link
            ours = link.is_symlink() and link.readlink().parent == Path()  # a link to a sibling
            if newest and (ours or not (link.exists() or link.is_symlink())):
                point_link(link, self.final.name)
        return self.final


def is_study(folder: Path) -> bool:
    return any((folder / name).is_file() for name in STUDIES)


def new_folder(out: Path | None, scenario: str, backend: str, model: str) -> ResultFolder:
    """`out`, or results/<time>-<scenario>-<backend>-<model>, numbered when two start at once."""
    if out is not None:
        return ResultFolder(out)
    time = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    name = "-".join([time, scenario, _plain(backend), _plain(model)])
    while True:
        final = free_name(Path("results") / name)
        try:
            return ResultFolder(final)
        except ConfigError:
            if free_name(final) == final:  # no other run took the name meanwhile
                raise


def _plain(name: str) -> str:
    """A plug-in's path as part of a folder name, of which file systems take 255 bytes."""
    name = Path(name).name if "/" in name else name
    return re.sub(r"[^A-Za-z0-9._]+", "_", name).strip("_")[:80]
