"""Reads any directory of images: labels from its sub-folders, or from labels.csv."""

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

from harness.datasets.parts.image.preprocessed import ImageDataset
from harness.datasets.parts.listing import Sample, plain, twice
from harness.datasets.parts.sources import given_folder, refuse
from harness.errors import ConfigError
from harness.types import Dataset, DatasetSetup

SUFFIXES = {".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".webp"}
LABELS = "labels.csv"
EXPECTED = f"one sub-folder of images for each class, or images and {LABELS} (file,label)"


class FolderDataset(ImageDataset):
    """The label is the class's number. With sub-folders, their sorted names are the classes 0, 1, ...

    labels.csv has the columns file and label in its first line. A label is a whole number, and the file's
    order is the samples' order. Images that the file does not name are an error.
    """

    name = "folder"

    def __init__(self, setup: DatasetSetup) -> None:
        folder = given_folder(setup, self.name, f"a folder with {EXPECTED}")
        labels = folder / LABELS
        has_labels = labels.exists() or labels.is_symlink()
        samples = _from_csv(folder, labels) if has_labels else _from_folders(folder)
        self._class_names = {} if has_labels else dict(enumerate(_classes(folder)))
        super().__init__(folder, samples, setup)

    def class_names(self) -> Mapping[int, str]:
        return self._class_names


def _classes(folder: Path) -> list[str]:
    """The sorted names of the sub-folders."""
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _from_folders(folder: Path) -> list[Sample]:
    """Sorted by class, then by name."""
    entries = [p for p in folder.iterdir() if not p.name.startswith(".")]
    refuse([f"{p} is a broken link: repair or remove it" for p in entries if _dangles(p)])
    classes = _classes(folder)
    loose = _images(folder, entries)
    if loose:
        raise ConfigError(
            f"{folder / loose[0]} has no label: put images into one sub-folder for each class, or "
            f"write {folder / LABELS} with the columns file and label"
        )
    _check_order(folder, classes)
    return [
        Sample(file, label)
        for label, name in enumerate(classes)
        for file in _images(folder, (folder / name).rglob("*"))
    ]


def _check_order(folder: Path, classes: list[str]) -> None:
    """Refuses names that are numbers in another order than by name: 10 comes before 2 there."""
    if not all(_is_count(name) for name in classes):
        return
    for i, (name, by_number) in enumerate(zip(classes, sorted(classes, key=int), strict=True)):
        if int(name) != int(by_number):
            raise ConfigError(
                f"{folder}: its sub-folders are numbers, and sorted as names {name!r} would be class "
                f"{i}: write them with zeros in front, all of one length, or write {LABELS}"
            )


def _images(folder: Path, paths: Iterable[Path]) -> list[str]:
    """Broken links are included, so that they are reported."""
    return sorted(
        p.relative_to(folder).as_posix()
        for p in paths
        if p.suffix.lower() in SUFFIXES and (p.is_file() or _dangles(p))
    )


def _dangles(path: Path) -> bool:
    return path.is_symlink() and not path.exists()


def _from_csv(folder: Path, path: Path) -> list[Sample]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file, strict=True))
    except (OSError, ValueError, csv.Error) as e:
        raise ConfigError(f"{path} cannot be read: {e}") from e
    if not rows or not {"file", "label"} <= set(rows[0]):
        raise ConfigError(f"{path}: its first line must be file,label, then a line an image")
    problems = [
        f"{path}, row {i}: label {row['label']!r} is not a whole number: number the classes 0, 1, ..."
        for i, row in enumerate(rows, 1)
        if not _is_count(row["label"])
    ]
    files = [plain(row["file"] or "") for row in rows]
    problems += twice(f"{path} names", files)
    unnamed = sorted(set(_images(folder, folder.rglob("*"))) - set(files))
    problems += [
        f"{folder / name} is not in {path.name}: add it, or move it away" for name in unnamed
    ]
    refuse(problems)
    return [Sample(f, int(row["label"])) for f, row in zip(files, rows, strict=True)]


def _is_count(text: object) -> bool:
    return isinstance(text, str) and text.isascii() and text.isdigit()


_: type[Dataset] = FolderDataset
