"""The result folder: it appears under its name whole, or stays `<name>.partial`."""

import os
import re
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from harness.errors import ConfigError

RESULT = "result.json"
CONFIG = "config.yaml"
ENVIRONMENT = "environment.json"
ACCURACY_TEXT = "accuracy.txt"
PEAK = "peak.json"
MOST_NAMED = 3
REPEATS = "repeats.json"
RUN = "run.json"
"""Of each of the LoadGen runs in the folder."""


class ResultFolder:
    """`path` while it is written, `final` once it is complete."""

    def __init__(self, final: Path) -> None:
        try:
            taken = final.exists() or final.is_symlink()
        except OSError as e:  # a name that is too long
            raise ConfigError(f"{final} cannot be made: {e.strerror}: pass another --out") from e
        if final.name.endswith(".partial"):
            raise ConfigError(
                f"{final}: runs that did not finish are called so; pass another --out"
            )
        if taken:
            raise ConfigError(f"{final} exists: results are never overwritten; pass another --out")
        self.final = final
        self.path = final.with_name(final.name + ".partial")
        try:
            self.path.mkdir(parents=True)
        except FileExistsError:
            raise ConfigError(
                f"{self.path} exists, from a run that did not finish or still goes on: pass another "
                "--out, or remove it once nothing writes there"
            ) from None
        except OSError as e:
            raise ConfigError(f"{self.path} cannot be made: {e.strerror}: pass --out") from e

    def subfolder(self, *names: str) -> Path:
        """Made in here; an OSError when this folder itself has been taken away meanwhile."""
        path = self.path
        for name in names:
            path = path / name
            path.mkdir()
        return path

    def adopt(self, made: Path) -> None:
        """Another run's folder, below this one or beside it, becomes this one: its files move here."""
        for path in sorted(made.iterdir()):
            path.rename(self.path / path.name)
        made.rmdir()

    def finish(self, *, newest: bool = True) -> Path:
        """Rename to the final name and, where this is a run, point `latest` at it."""
        self.path.rename(self.final)
        if newest:
            with suppress(OSError):  # the run is whole without it
                self._point_at_it(self.final.parent / "latest")
        return self.final

    def _point_at_it(self, link: Path) -> None:
        ours = link.is_symlink() and link.readlink().parent == Path()  # made here: a sibling
        if ours or not (link.exists() or link.is_symlink()):
            fresh = link.with_name(f".latest-{os.getpid()}")
            fresh.symlink_to(self.final.name)
            fresh.replace(link)


def new_folder(out: Path | None, scenario: str, backend: str, model: str) -> ResultFolder:
    """`out`, or results/<time>-<scenario>-<backend>-<model>, numbered when two start at once."""
    if out is not None:
        return ResultFolder(out)
    time = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    name = "-".join([time, scenario, _plain(backend), _plain(model)])
    for number in range(1, 100):
        final = Path("results") / (name if number == 1 else f"{name}-{number}")
        if not final.exists() and not final.with_name(final.name + ".partial").exists():
            try:
                return ResultFolder(final)
            except ConfigError:
                if not final.parent.is_dir() or not os.access(final.parent, os.W_OK):
                    raise
    raise ConfigError(f"results/{name} and 99 more exist: pass --out")


def _plain(name: str) -> str:
    """A plug-in's path as part of a folder name, of which file systems take 255 bytes."""
    name = Path(name).name if "/" in name else name
    return re.sub(r"[^A-Za-z0-9._]+", "_", name).strip("_")[:80]


def not_a_run(folder: Path, name: str) -> str:
    """What to say of a folder that is there and lacks `name`. The newest runs that it holds are named."""
    found = [p.parent for p in folder.glob(f"*/{RESULT}") if not p.parent.is_symlink()]
    if not found or name not in (RESULT, CONFIG):
        return f"{folder} has no {name}: is this a run's folder?"
    newest = sorted(found, key=lambda run: (run.stat().st_mtime_ns, run.name), reverse=True)
    shown = ", ".join(map(str, newest[:MOST_NAMED]))
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return f"{folder} is not a run's folder, the runs in it are: {shown}{more}: name one of them"
