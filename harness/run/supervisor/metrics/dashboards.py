"""Copies the dashboard, rules and configuration for Prometheus and Grafana from this installation."""

import shutil
from pathlib import Path

import harness
from harness.errors import ConfigError
from harness.results.run_folder import ResultFolder

NAME = "dashboards"


def source() -> Path:
    """Returns the folder with the files. The folder is in the root of a checkout, or in the package of a wheel."""
    return next(path for entry in harness.__path__ if (path := Path(entry) / NAME).is_dir())


def copy(out: Path) -> list[str]:
    """Copies the files into the new folder `out`, and returns their paths relative to `out`.

    Raises ConfigError if `out` exists. If `out` cannot be written, removes the incomplete copy and raises ConfigError.
    """
    folder = ResultFolder(out)
    try:
        shutil.copytree(source(), folder.path, dirs_exist_ok=True, copy_function=shutil.copyfile)
        folder.finish(newest=False)
    except OSError as e:
        shutil.rmtree(folder.path, ignore_errors=True)
        raise ConfigError(
            f"{out} cannot be written ({e.strerror or e}): pass a different --out"
        ) from e
    return sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
