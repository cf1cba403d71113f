"""Locates a dataset's files, words what is wrong with them, and computes their digest."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from harness.errors import ConfigError, some_of
from harness.types import DatasetSetup, Step


def refuse(problems: Sequence[str]) -> None:
    """A ConfigError with a line for each problem, if there is any."""
    if problems:
        raise ConfigError(some_of(problems))


def refuse_data_dir(setup: DatasetSetup, dataset: str) -> None:
    """Of a dataset without files: a run on other samples than the user's must not begin."""
    if setup.data_dir is not None:
        raise ConfigError(
            f"dataset {dataset!r} reads no --data-dir: drop it, or name the --dataset that does"
        )


def given_path(setup: DatasetSetup, dataset: str, wanted: str) -> Path:
    """--data-dir, which there must be. wanted: what it should name, for the message."""
    if setup.data_dir is None:
        raise ConfigError(f"dataset {dataset!r} needs --data-dir: {wanted}")
    if not setup.data_dir.exists():
        raise ConfigError(f"--data-dir {setup.data_dir}: there is no such file or folder")
    return setup.data_dir


def given_folder(setup: DatasetSetup, dataset: str, wanted: str) -> Path:
    path = given_path(setup, dataset, wanted)
    if not path.is_dir():
        raise ConfigError(f"--data-dir {path} is a file: dataset {dataset!r} wants {wanted}")
    return path


def one_file(setup: DatasetSetup, dataset: str, suffix: str) -> Path:
    """--data-dir itself, or the one file with `suffix` in it."""
    path = given_path(setup, dataset, f"a {suffix} file, or a folder with one")
    if path.is_file():
        return path
    if not path.is_dir():
        raise ConfigError(f"--data-dir {path} is neither a file nor a folder: name a {suffix} file")
    found = sorted(p for p in path.iterdir() if p.suffix == suffix and p.is_file())
    if len(found) != 1:
        names = ", ".join(p.name for p in found[:5]) or "none"
        raise ConfigError(f"{path} must hold exactly one {suffix} file, it has {names}: name one")
    return found[0]


def check_steps(setup: DatasetSetup, dataset: str, known: Iterable[str]) -> None:
    """A ConfigError names every declared step that this dataset has no use for.

    Also where nothing is known about the model's inputs, which every dataset of files needs.
    """
    if not setup.inputs:
        raise needs_inputs(dataset)
    known = tuple(known)
    given = [("--input-shape", setup.shapes), ("--lengths", setup.lengths)]
    refuse(
        [f"{flag} is of dataset 'synthetic': drop it for {dataset!r}" for flag, of in given if of]
        + [
            f"input {name!r}: dataset {dataset!r} has no step {step.name!r}, "
            f"only {', '.join(known)}: choose another --dataset or change the manifest"
            for name, steps in setup.steps.items()
            for step in steps
            if step.name not in known
        ]
    )


def shown(steps: Iterable[Step]) -> list[dict[str, object]]:
    """[{step: options}], as a manifest writes them."""
    return [{step.name: dict(step.options)} for step in steps]


def shown_steps(setup: DatasetSetup) -> Mapping[str, object]:
    """The declared steps of each input, as describe() tells them."""
    return {name: shown(steps) for name, steps in setup.steps.items()}


def needs_inputs(dataset: str) -> ConfigError:
    """The error for a model of which nothing is known: none was named, or a file without a manifest
    that nobody has opened.
    """
    return ConfigError(
        f"dataset {dataset!r} needs the model's inputs: name a --model with a manifest, which "
        "declares them"
    )


def digest(files: Mapping[str, Path], setup: DatasetSetup) -> str:
    """SHA-256 of the files' names and contents, and of the steps that samples are made by."""
    total = hashlib.sha256(repr(sorted(shown_steps(setup).items())).encode())
    for name in sorted(files):
        try:
            with files[name].open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as e:
            raise unreadable(files[name], e) from e
        total.update(f"\n{content}  {name}".encode())
    return total.hexdigest()


def unreadable(path: Path, error: Exception) -> ConfigError:
    """The error for a file that cannot be opened, or is not what its name says."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ConfigError(f"{path} cannot be read: {' '.join(reason.split())[:200]}")
