"""Locates a dataset's files, reports their faults, and computes their digest."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from harness.core.formats.impostors import impostor
from harness.errors import ConfigError, some_of
from harness.types import DatasetSetup, Step


def refuse(problems: Sequence[str]) -> None:
    """Raises a ConfigError that lists the problems, one per line. Does nothing if the list is empty."""
    if problems:
        raise ConfigError(some_of(problems))


def refuse_data_dir(setup: DatasetSetup, dataset: str) -> None:
    """Refuses --data-dir for a dataset without files, because a run must not silently ignore the user's samples."""
    if setup.data_dir is not None:
        raise ConfigError(
            f"dataset {dataset!r} does not use --data-dir: drop --data-dir, or name a --dataset that uses it"
        )


def given_path(setup: DatasetSetup, dataset: str, expected: str) -> Path:
    """Returns the path of --data-dir, which must exist. expected: the expected content, for the error message."""
    if setup.data_dir is None:
        raise ConfigError(f"dataset {dataset!r} needs --data-dir: {expected}")
    if not setup.data_dir.exists():
        raise ConfigError(f"--data-dir {setup.data_dir} does not exist")
    return setup.data_dir


def given_folder(setup: DatasetSetup, dataset: str, expected: str) -> Path:
    path = given_path(setup, dataset, expected)
    if not path.is_dir():
        raise ConfigError(f"--data-dir {path} is a file: dataset {dataset!r} needs {expected}")
    return path


def one_file(
    setup: DatasetSetup, dataset: str, *suffixes: str, most_bytes: int | None = None
) -> Path:
    """Returns --data-dir if it is a file, or the only file in this folder with one of the suffixes.

    most_bytes: maximum size. A larger file is refused before it is read.
    """
    kind = f"a {' or '.join(suffixes)} file"
    path = given_path(setup, dataset, f"{kind}, or a folder with one")
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.suffix in suffixes and p.is_file())
        if len(files) != 1:
            names = ", ".join(p.name for p in files[:5]) or "none"
            raise ConfigError(
                f"{path} must contain exactly one {kind.removeprefix('a ')}, but contains {names}: name one"
            )
        path = files[0]
    elif not path.is_file():
        raise ConfigError(f"--data-dir {path} is neither a file nor a folder: name {kind}")
    if most_bytes is not None and path.stat().st_size > most_bytes:
        raise ConfigError(f"{path} is larger than {most_bytes // 2**30} GiB: split it")
    return path


def check_steps(setup: DatasetSetup, dataset: str, known: Iterable[str]) -> None:
    """Raises a ConfigError that lists every declared step that this dataset does not support.

    Also raises the error if the model's inputs are unknown, because every dataset made from files needs the inputs.
    """
    if not setup.inputs:
        raise needs_inputs(dataset)
    known = tuple(known)
    problems = [*synthetic_options(setup, dataset, shapes=setup.shapes)]
    problems += [
        f"input {name!r}: dataset {dataset!r} has no step {step.name!r}, "
        f"only {', '.join(known)}: choose a different --dataset or change the manifest"
        for name, steps in setup.steps.items()
        for step in steps
        if step.name not in known
    ]
    refuse(problems)


def synthetic_options(
    setup: DatasetSetup, dataset: str, *, shapes: Mapping[str, Sequence[int]]
) -> Iterator[str]:
    """Yields a problem for each option that has no effect on real data.

    shapes: shapes in --input-shape that the dataset ignores.
    """
    flags = {"--input-shape": shapes, "--input-range": setup.ranges, "--lengths": setup.lengths}
    return (
        f"{flag} belongs to dataset 'synthetic': drop it for {dataset!r}"
        for flag, value in flags.items()
        if value
    )


def unknown_inputs(flag: str, names: Iterable[str], setup: DatasetSetup) -> Iterator[str]:
    """Yields a problem for each name in an option that is not an input of the model."""
    inputs = [spec.name for spec in setup.inputs]
    for name in sorted({*names} - {*inputs}):
        near = get_close_matches(name, inputs, n=1)
        hint = f": did you mean {near[0]!r}?" if near else ""
        yield f"{flag} {name}: the model's inputs are {', '.join(inputs)}{hint}"


def own_step(setup: DatasetSetup, name: str, kind: str) -> Step | None:
    """Returns the first step of this kind for the input."""
    return next((step for step in setup.steps.get(name, ()) if step.name == kind), None)


def shown(steps: Iterable[Step]) -> list[dict[str, object]]:
    """Returns the steps as [{step: options}], as in a manifest."""
    return [{step.name: dict(step.options)} for step in steps]


def shown_steps(setup: DatasetSetup) -> Mapping[str, object]:
    """Returns the declared steps of each input, for describe()."""
    return {name: shown(steps) for name, steps in setup.steps.items()}


IN_MANIFEST = "in the model's manifest, which `init --model FILE` writes"
"""End of a message about a step that is missing from the manifest."""


def needs_inputs(dataset: str) -> ConfigError:
    """Returns the error for a run that has no model, or whose model file has no manifest and is not open yet."""
    return ConfigError(
        f"dataset {dataset!r} needs the model's inputs: name a --model with a manifest, which "
        "`init --model FILE` writes"
    )


def digest(files: Mapping[str, Path], setup: DatasetSetup) -> str:
    """Returns the SHA-256 of the files' names and contents, and of the declared steps."""
    total = hashlib.sha256(repr(sorted(shown_steps(setup).items())).encode())
    for name in sorted(files):
        try:
            with files[name].open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as e:
            raise unreadable(files[name], e) from e
        total.update(f"\n{content}  {name}".encode())
    return total.hexdigest()


def with_options(digest: str, options: Sequence[object]) -> str:
    """Returns a digest for data that also depend on options."""
    return hashlib.sha256(f"{digest} {tuple(options)!r}".encode()).hexdigest()


def unreadable(path: Path, error: Exception) -> ConfigError:
    """Returns the error for a file that cannot be opened, or whose content does not match its suffix."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    reason = impostor(path, "data") or reason
    return ConfigError(f"{path} cannot be read: {' '.join(reason.split())[:200]}")
